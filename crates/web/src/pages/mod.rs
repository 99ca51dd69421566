//! One file per kind of page. Each function turns a view of the API into a whole page.

mod datasets;
mod login;
mod overview;
mod problems;
mod sites;
mod subscriptions;
mod transfers;

pub use datasets::{dataset, datasets};
pub use login::{login, problem};
pub use overview::overview;
pub use problems::problems;
pub use sites::{site, sites};
pub use subscriptions::{subscription, subscriptions};
pub use transfers::{transfer, transfers};

use longhaul_model::Timestamp;

use crate::layout::Viewer;

/// What every page needs besides its view.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub deployment: &'a str,
    pub viewer: Option<Viewer<'a>>,
    pub now: Timestamp,
}
