//! Network operations: what is measured of paths, and circuits between sites.
//!
//! [`measured`] maps measurements of others and of our agents to sites and passes them to the scheduler loop;
//! [`circuits`] keeps what agents tell of their links and carries people's orders to them; [`plan`] decides
//! about circuits for all sites, where the service is to decide.
//!
//! It owns no thread; `plan::run` and `measured::puller::run` are tasks of the service's runtime, and what
//! blocks runs on its blocking threads.
//!
//! Not here: what a measurement means (`network`), when a circuit is worth its while (`circuits`), clients of
//! archives (`gateways`), who asks a provider (`agent`). Start with [`NetOps`].

pub mod circuits;
pub mod measured;
mod netops;
pub mod plan;

pub use measured::ArchiveConfig;
pub use netops::{BacklogSource, JobBacklog, NetOps, NetOpsSettings};
pub use plan::{BudgetConfig, CircuitsConfig, HostConfig, Level, ProviderConfig};
