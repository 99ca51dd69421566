//! What people and programs ask of the service and get back: `/api/v1`, except the agent's calls.
//!
//! Lists are pages: `limit` items at the most, `next` is the cursor of the following page.

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

/// One page of a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
