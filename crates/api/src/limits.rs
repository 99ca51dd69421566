//! Limits that administrators set at run time: `/api/v1/limits`.

use longhaul_model::StorageName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// Kind of thing that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Traffic from one storage to another; the name is `SOURCE:TARGET`.
    Link,
    /// All traffic into a storage.
    Into,
    /// All traffic out of a storage.
    Out,
    /// All traffic charged to a community.
    Community,
}

/// `GET /api/v1/limits`: one entry for each limit that is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitView {
    /// Kind of thing that is limited.
    pub of: LimitKind,
    /// A storage, a community, or `SOURCE:TARGET`.
    pub name: String,
    /// Files under way at the same time; absent if their number is not limited.
    pub active: Option<u32>,
    /// Bytes per second; absent if the rate is not limited.
    pub bytes_per_s: Option<u64>,
}

/// `POST /api/v1/limits`: replaces the limit of the same kind and name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitChange {
    /// Kind of thing to limit.
    pub of: LimitKind,
    /// A storage, a community, or `SOURCE:TARGET`.
    #[schema(value_type = formats::LimitedName)]
    pub name: String,
    /// Files under way at the same time; 0 stops all traffic, absent lifts this limit.
    #[serde(default)]
    pub active: Option<u32>,
    /// Bytes per second, at least 1; absent lifts this limit.
    #[serde(default)]
    #[schema(value_type = Option<formats::BytesPerSecond>)]
    pub bytes_per_s: Option<u64>,
}

impl LimitChange {
    /// Splits the name of a link into its source and target.
    ///
    /// # Errors
    /// The name is not `SOURCE:TARGET`, or one of the two is not a storage name.
    pub fn link(name: &str) -> Result<(StorageName, StorageName), String> {
        let (source, target) = name.split_once(':').ok_or("a link is SOURCE:TARGET, such as alpha:beta")?;
        let name = |text: &str| StorageName::parse(text).map_err(|error| error.to_string());
        Ok((name(source)?, name(target)?))
    }
}
