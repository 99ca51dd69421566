//! The FTS3 REST API at FTS's own paths, so that its unmodified clients work against this service.
//!
//! Every request passes [`route_fts`], which knows FTS's paths, authenticates the caller (`identity`) and
//! calls the module of the path. All of these block on the catalog and run on threads where that is allowed.
//!
//! Not here: the format of submissions and answers (`api::fts`), states of jobs (`model::job`), what runs
//! next (`scheduler`). Start with [`route_fts`].

pub(crate) mod admission;
mod bans;
mod clouds;
mod configuration;
mod delegation;
mod files;
mod jobs;
mod middleware;
mod monitor;
mod namespace;
mod network;
mod request;
mod routes;
mod status;
mod strict;
mod submit;
mod views;

pub use middleware::route_fts;
#[cfg(feature = "testing")]
pub use routes::ROUTES;
