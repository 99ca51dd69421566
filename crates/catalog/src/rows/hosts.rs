//! The mapping of hosts to sites.

use std::collections::BTreeSet;

use longhaul_model::{SiteName, Timestamp};
use longhaul_network::mapping::Entry;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRow {
    pub entry: Entry,
    pub created: Timestamp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostsUpdate {
    pub set: u64,
    pub unchanged: u64,
    /// Explicit entries that an import left alone.
    pub kept_explicit: u64,
    /// Sites that do not exist, whose entries were skipped.
    pub unknown_sites: BTreeSet<SiteName>,
}
