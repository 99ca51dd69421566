//! The FTS3 REST API at FTS's own paths, so that its unmodified clients work against this service.
//!
//! A request comes through [`door`], which knows FTS's paths; [`person`] says who asks and what they may;
//! then the module of its path answers. All of them block on the catalog and run where that is allowed. Not
//! here: what submissions and answers look like (`api::fts`), states of jobs (`model::job`), what runs next.

mod ask;
mod bans;
mod clouds;
mod config_store;
mod configuration;
mod delegation;
mod door;
mod effect;
mod files;
mod jobs;
mod monitor;
mod namespace;
mod network;
mod routes;
mod status;
mod strict;
mod submit;
pub(crate) mod turns;
mod views;

pub(crate) use clouds::keys as cloud_keys;
pub use config_store::ConfigStore;
pub(crate) use config_store::Objects;
pub use door::door;
pub(crate) use effect::{HostCopies, Ways};
#[doc(hidden)]
pub use routes::ROUTES;
