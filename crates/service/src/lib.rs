//! The service: HTTP, the native and the FTS3 façade, and the wiring of the control plane's rooms.
//!
//! Requests of people and programs are answered by [`Operations`], one method per route. It owns no thread of
//! its own: those of the scheduler and the catalog are `control`'s, that of jobs is `jobs`'. Here are the
//! listeners, the messages to brokers, and the housekeeping. Authentication and authorisation are
//! in `identity`.
//!
//! Not here: what moves next (`scheduler`), what is stored how (`catalog`), pages (`web`), moving bytes
//! (`agent`, `engine`). Start with [`Service::start`], then follow a lease: `control::brain` →
//! `control::commit_loop` → `control::agents` (outboxes) → `http`.

mod config;
mod context;
mod database;
mod fts;
mod housekeeping;
mod http;
mod listener_tls;
mod marking;
mod messages;
mod operations;
mod recovery;
mod service;
#[cfg(feature = "testing")]
mod simulated;
mod state;
mod state_check;
mod state_place;
mod views;
mod wiring;

pub use config::{Config, HttpLimits};
pub use database::DatabaseConfig;
#[cfg(feature = "testing")]
pub use fts::ROUTES as FTS_ROUTES;
pub use http::cookie;
pub use longhaul_identity::{Clock, Clocks, FtsConfig, LoginConfig};
pub use longhaul_jobs::{
    CopyOrder, Credential, DirectCopy, End, ExistingFile, ForeignMover, JobNews, Jobs, JobsConfig, Moved,
    Progress, Stop, TapeConfig, UserFiles, Verify,
};
pub use longhaul_netops::{ArchiveConfig, BudgetConfig, CircuitsConfig, Level, ProviderConfig};
pub use marking::MarkingConfig;
pub use messages::{MessagesConfig, NatsConfig, StompConfig};
#[cfg(feature = "testing")]
pub use operations::AgentPeer;
pub use operations::{FileList, JobList, MoreWork, Operations, PageQuery, SubscriptionList, TaskList};
pub use service::Service;
#[cfg(feature = "testing")]
pub use simulated::{ServiceAnswer, ServiceStep, SimulatedService, init_in_memory};
pub use state::{InitReply, init};
