//! The table of places and what a change of it did.

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
    /// Left as somebody here had said.
    pub kept_explicit: u64,
    /// Their entries were left out.
    pub unknown_sites: BTreeSet<SiteName>,
}
