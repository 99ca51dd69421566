//! Limits that administrators set while the service runs: `/api/v1/limits`.

use longhaul_model::StorageName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a limit is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// What goes from one storage to another; its name is `SOURCE:TARGET`.
    Link,
    /// What comes to a storage.
    Into,
    /// What leaves a storage.
    Out,
    Community,
}

/// `GET /api/v1/limits`: one for each that is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitView {
    pub of: LimitKind,
    pub name: String,
    /// Files at once.
    pub active: Option<u32>,
    pub bytes_per_s: Option<u64>,
}

/// `POST /api/v1/limits`: in place of what was set of the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitChange {
    pub of: LimitKind,
    /// A storage, a community, or `SOURCE:TARGET`.
    pub name: String,
    /// None: as many as pay. 0: none at all.
    #[serde(default)]
    pub active: Option<u32>,
    /// None: as fast as it goes; at least 1.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
}

impl LimitChange {
    /// The two ends of a link.
    pub fn link(name: &str) -> Result<(StorageName, StorageName), String> {
        let (source, target) = name.split_once(':').ok_or("a link is SOURCE:TARGET, such as alpha:beta")?;
        let name = |text: &str| StorageName::parse(text).map_err(|error| error.to_string());
        Ok((name(source)?, name(target)?))
    }
}
