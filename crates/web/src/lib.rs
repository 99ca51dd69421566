//! The web interface under `/ui/`: pages rendered on the server from the views that the API returns. They are
//! complete without scripts; one small script of our own keeps them fresh.
//!
//! Not here: the data (`service::Operations`) and who may see it (`security`). Each page is
//! a function from a view to markup in [`pages`], so that it can be tested without a server. Start with
//! [`router`].

mod circuits;
mod jobs;
mod layout;
mod login;
pub mod pages;
mod plot;
#[cfg(feature = "testing")]
pub mod promises;
mod router;
mod show;
mod steer;
mod timeline;

pub use router::router;
