//! Requests and replies of people and programs: `/api/v1`, except the agents' calls.
//!
//! Lists are paged: at most `limit` items, and `next` is the cursor of the next page.

mod access;
mod datasets;
mod replicas;
mod sites;
mod status;
mod subscriptions;
mod transfers;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use access::*;
pub use datasets::*;
pub use replicas::*;
pub use sites::*;
pub use status::*;
pub use subscriptions::*;
pub use transfers::*;

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// Items of this page, at most `limit`.
    pub items: Vec<T>,
    /// Cursor of the next page, to pass as `after`; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
