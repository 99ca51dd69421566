//! The control plane: the loops that join catalog, scheduler and network, and the HTTP API over them.
//!
//! Four threads of events and one of requests. The *brain* (`brain`) owns the scheduler and what we believe
//! of the network; it never waits for a disk. The *scribe* (`scribe`) makes decisions and reports durable,
//! many in one transaction, and only then lets them leave the process. The *reader* (`reader`) fetches from
//! the catalog what the brain asks for. The *desk* (`jobs`) does for copies between URLs what the scribe does
//! for the rest. Requests of people and programs are answered by [`Operations`], one method per route.
//!
//! Not here: what moves next (`scheduler`), what is stored how (`catalog`), pages (`web`), moving bytes
//! (`agent`, `engine`). Start with [`Service::start`], then follow a lease: `brain` → `scribe` → `agents`
//! (outboxes) → `http::agent`.

mod agents;
mod brain;
mod changes;
mod choice;
mod circuits;
mod commissioning;
mod config;
mod database;
mod deadlines;
mod fts;
mod http;
mod jobs;
mod limits;
mod live;
mod marking;
mod measured;
mod messages;
mod metrics;
mod operations;
mod outbox;
mod plan;
mod problems;
mod rates;
mod reader;
mod recorded;
mod scribe;
mod service;
mod shared;
mod state;
mod steering;
mod views;

pub use config::{ArchiveConfig, Config, HttpLimits};
pub use database::DatabaseConfig;
#[doc(hidden)]
pub use fts::ROUTES as FTS_ROUTES;
pub use http::cookie;
pub use jobs::{
    Begun, CopyOrder, Credential, End, ForeignMover, JobNews, Jobs, JobsConfig, Moved, Progress, Standing,
    Stop, TapeConfig, UserFiles, Verify,
};
pub use longhaul_identity::{Clock, FtsConfig, LoginConfig};
pub use marking::MarkingConfig;
pub use messages::{MessagesConfig, NatsConfig, StompConfig};
pub use operations::{FileList, JobList, MoreWork, Operations, PageQuery, SubscriptionList, TaskList};
pub use plan::{BudgetConfig, CircuitsConfig, Level, ProviderConfig};
pub use service::Service;
pub use state::{InitReply, init};
