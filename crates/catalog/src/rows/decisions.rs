//! Entries of the access log: who was allowed or refused what.

use longhaul_model::{SiteName, StorageName, Timestamp};

/// Equal decisions within a short time, aggregated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDecision {
    pub allowed: bool,
    pub since: Timestamp,
    pub at: Timestamp,
    pub times: u64,
    pub who: String,
    /// The kind of credential.
    pub credential: String,
    /// The client's address.
    pub origin: String,
    /// The operation requested.
    pub operation: String,
    /// The object of the operation.
    pub object: String,
    /// The reason of a refusal, or the right that allowed it.
    pub why: String,
    /// The site and storage, if it was decided at an agent's door.
    pub at_door: Option<(SiteName, StorageName)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRow {
    pub id: u64,
    pub decision: NewDecision,
}

/// A filter for lists of decisions.
#[derive(Clone, Debug, Default)]
pub struct DecisionFilter {
    pub allowed: Option<bool>,
    pub who: Option<String>,
    /// Only decisions of doors of these sites.
    pub sites: Option<Vec<SiteName>>,
    /// Only decisions with an id below this.
    pub before: Option<u64>,
    pub limit: usize,
}
