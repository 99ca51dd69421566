//! The FTS3 REST API at FTS's own paths, so that its unmodified clients work against this service.
//!
//! A request comes through [`door`], which knows FTS's paths; [`person`] says who asks and what they may;
//! then the module of its path answers. All of them block on the catalog and run where that is allowed. Not
//! here: what submissions and answers look like (`api::fts`), states of jobs (`model::job`), what runs next.

mod ask;
mod bans;
mod bearer;
mod clouds;
mod configuration;
mod delegation;
mod door;
mod effect;
mod files;
mod jobs;
mod kept;
mod monitor;
mod namespace;
mod network;
mod owner;
mod person;
mod routes;
mod settings;
mod status;
mod strict;
mod submit;
pub(crate) mod turns;
mod users;
mod views;

pub(crate) use bearer::open as open_issuers;
pub(crate) use clouds::keys as cloud_keys;
pub use door::door;
pub(crate) use effect::{HostCopies, Ways};
pub use kept::Kept;
pub(crate) use kept::{Objects, objects, refusal};
pub use owner::Owners;
pub(crate) use owner::{details, still_may};
pub(crate) use person::{Person, Seen, of_caller};
#[doc(hidden)]
pub use routes::ROUTES;
pub use settings::{FtsConfig, FtsIssuer, FtsPerson, Reach};
pub use users::Users;
