//! Who was allowed or refused what.

use longhaul_model::{SiteName, StorageName, Timestamp};

/// Equal decisions of a short while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDecision {
    pub allowed: bool,
    pub since: Timestamp,
    pub at: Timestamp,
    pub times: u64,
    pub who: String,
    /// What kind of credential they showed.
    pub credential: String,
    /// From which address.
    pub origin: String,
    /// What was asked for.
    pub operation: String,
    /// Of what.
    pub object: String,
    /// Of refusals, the reason; else by which right.
    pub why: String,
    /// Where, if at a door of an agent.
    pub at_door: Option<(SiteName, StorageName)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRow {
    pub id: u64,
    pub decision: NewDecision,
}

/// Which decisions of a list.
#[derive(Clone, Debug, Default)]
pub struct DecisionFilter {
    pub allowed: Option<bool>,
    pub who: Option<String>,
    /// Only those of doors of these sites.
    pub sites: Option<Vec<SiteName>>,
    /// Those before this id.
    pub before: Option<u64>,
    pub limit: usize,
}
