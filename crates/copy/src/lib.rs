//! The `copy` and `serve` commands as a library: URLs, listing, filters, batch files, third-party copies.
//!
//! ```text
//! copy ─► pull      server ─► local        planner (listing, plan) ─► fetching ─► landing
//!      ─► push      local  ─► server       push_plan ─► the server's receiving ─► the same
//!      ─► third     server ─► server       the target's server runs a pull
//!      ─► local     within this host
//! ```
//! Both ends of an ad-hoc copy are agents of a deployment that their shared secret makes (`site`); questions
//! between them are in `protocol`. A pull may read from several servers at once (`replicas`): then each
//! file's tree is asked for before it is begun (`planning`, `trees`), and the engine compares every chunk
//! with it.
//!
//! Not here: moving bytes (`engine`), paths in a file system (`storage`), the command line (`longhaul`).
//! Start with [`copy`] and [`Server`].

pub mod accounts;
pub mod batch;
mod batch_copy;
mod circuit;
mod clock;
mod copy;
mod fetch_job;
pub mod filter;
mod listing_diff;
pub mod local;
mod local_copy;
mod options;
mod plan_queue;
mod progress;
mod protocol;
mod pull;
mod pull_steps;
mod push;
mod push_export;
mod push_steps;
mod remote;
mod rename_on_commit;
mod replicas;
pub mod report;
pub mod rules;
pub mod server;
mod site;
mod ssh;
mod state;
mod stop;
mod sync;
mod target_index;
mod third_party;
mod trees;
pub mod url;
pub mod walk;

pub use batch_copy::copy_pairs;
pub use copy::{CopyRequest, copy};
pub use longhaul_gateways::circuits::CircuitConfig;
pub use longhaul_model::DataSecurity;
pub use options::{MEMORY_BYTES, Options};
pub use progress::{
    CircuitNote, FileOutcome, Outcome, Progress, ReplicaShare, ReplicaTotals, Totals, WrongRange,
};
pub use replicas::SERVERS_MAX;
pub use server::{RetainedKey, ServeOptions, Server};
pub use stop::Stop;
pub use url::Endpoint;
