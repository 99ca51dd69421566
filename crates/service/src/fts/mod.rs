//! The FTS3 REST API at FTS's own paths, so that its unmodified clients work against this service.
//!
//! A request comes through [`door`], which knows FTS's paths; [`person`] says who asks and what they may;
//! then the module of its path answers. All of them block on the catalog and run where that is allowed. Not
//! here: what submissions and answers look like (`api::fts`), states of jobs (`model::job`), what runs next.

mod ask;
mod bans;
mod clouds;
mod configuration;
mod delegation;
mod door;
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

pub use door::door;
#[cfg(feature = "testing")]
pub use routes::ROUTES;
