//! The pages under `/ui/`: HTML rendered on the server from the same views that the API returns, complete
//! without a script and kept fresh by a small one of our own.
//!
//! Not here: what is shown (`service::Operations` decides that) and who may see it (`security`). Each page is
//! a function from a view to markup in [`pages`], so that it can be tested without a server. Start with
//! [`router`].

mod circuits;
mod jobs;
mod layout;
mod login;
pub mod pages;
mod plot;
mod router;
mod show;
mod steer;
mod timeline;

pub use router::router;
