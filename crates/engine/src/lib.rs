//! Moves bytes between agents: sockets, TLS, buffer pools, disk I/O, write-ahead journals.
//!
//! The target pulls. It dials the source's data port, presents a permit with a list of files, requests
//! extents for which it holds buffers, verifies every chunk, writes it, journals it, and commits the file
//! under its final name only if its digest matches the catalog's (promises 1, 2, 4, 7).
//!
//! Not here: what to move, from where and when (`scheduler`), leases and reports (`agent`), the rules of the
//! protocol (`wire`), names in a file system (`storage`), certificates and permits (`security`). Start with
//! [`Engine`]; `examples/embed.rs` embeds two engines and copies a file.

mod buffer_pool;
mod calls;
mod congestion;
mod context;
mod device;
mod engine;
mod events;
mod fetch;
mod foreign_deployment;
mod interface;
mod io_pressure;
mod marks;
mod net;
mod offers;
mod paths;
mod queue;
mod rate_limiter;
mod refused_peers;
mod resolve;
mod serve;
mod socket;
mod sync;
mod tcp;
mod tls;

pub use calls::Channel;
pub use engine::Engine;
pub use foreign_deployment::ForeignDeployment;
pub use interface::{
    AttemptOutcome, AttemptTimeline, Clock, Config, DeviceSnapshot, Event, Export, FetchBatch, FetchFile,
    MarkSnapshot, Marking, MarkingSnapshot, Path, PathProfile, PathSnapshot, Replica, Responder,
    SessionSnapshot, Snapshot, SourceShare, Success,
};
pub use io_pressure::open_counters;
pub use longhaul_wire::firefly::PORT as FIREFLY_PORT;
pub use longhaul_wire::receiver::ORIGINS_MAX;
pub use longhaul_wire::{Bottleneck, BottleneckCause};
pub use offers::Offer;
