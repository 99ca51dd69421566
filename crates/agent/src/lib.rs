//! The site daemon: leases, engine, storages, tasks, measurements and reports of one agent.
//!
//! It polls the service for work and reports results, in two loops that never wait for each other. Leases and
//! unacknowledged facts are in its outbox log, durable across any crash, so that the service may be away for
//! any time (Promises 3, 5).
//!
//! Each loop is a state machine that is stepped with the time (`step`); `driver` drives them in production, a
//! test drives several agents in one thread.
//!
//! Not here: what to move and from where (`scheduler`), moving bytes (`engine`), files and names (`storage`),
//! certificates (`security`), the messages' form (`api::agent`), how to probe a path (`doctor::probe`). Start
//! with [`Agent::run`] and [`Config`]; then `outbox_log`, which holds what must not be lost.

mod agent;
mod attempt_temps;
mod backoff;
mod certificate_renewal;
mod circuits;
mod clock;
mod command;
mod command_mover;
mod config;
mod context;
mod door_audit;
mod doors;
mod driver;
#[cfg(test)]
mod fault_injecting_storage;
mod foreign;
mod hooks;
mod http_service_api;
mod inner_mover;
mod join;
mod lease_expiry;
mod measure;
mod mover;
mod null_mover;
mod outbox_log;
mod outcomes;
mod pool_drain;
mod record_log;
mod report;
mod root_marks;
mod service_api;
mod service_session;
mod shared_roots;
mod state_dir;
mod step;
mod stop;
mod storage_health;
mod tape;
mod tasks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod third_party;
mod threads;
mod unconfirmed_storages;
mod work;

pub use agent::Agent;
pub use config::circuits::CircuitLinkConfig;
pub use config::doors::{DoorConfig, DoorRight, DoorRule};
pub use config::foreign::ForeignMoverConfig;
pub use config::hooks::HooksConfig;
pub use config::marking::MarkingConfig;
pub use config::mover::MoverConfig;
pub use config::server::ServerConfig;
pub use config::source_names::SourceNames;
pub use config::tape::TapeConfig;
pub use config::uplinks::UplinkConfig;
pub use config::{Config, Flush, StorageConfig};
pub use join::{JoinedAgent, join};
pub use null_mover::NullLinks;
pub use root_marks::accept_root;
