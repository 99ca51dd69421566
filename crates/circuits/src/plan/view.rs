//! What the planner is told: ports, what links carry without a circuit, what waits, and who provides
//! circuits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{CommunityName, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

/// More rows of waiting work are not looked at: groups of a dataset and a target are thousands, not millions.
pub(crate) const PENDING_ROWS_MAX: usize = 100_000;
/// Of one provider, at one pair.
const RATES_PER_PAIR_MAX: usize = 16;
/// Sources of one row.
pub(crate) const SOURCES_PER_ROW_MAX: usize = 64;
/// One Mbit/s in bytes a second.
pub(crate) const MBIT_BYTES_PER_S: f64 = 125_000.0;

/// From one site to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SitePair {
    pub source: SiteId,
    pub target: SiteId,
}

impl SitePair {
    /// Both ends, each with whether data enter there.
    pub(crate) fn ends(self) -> [(SiteId, bool); 2] {
        [(self.source, false), (self.target, true)]
    }

    pub(crate) fn touches(self, sites: &BTreeSet<SiteId>) -> bool {
        sites.contains(&self.source) || sites.contains(&self.target)
    }
}

/// What a site's uplink carries, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Port {
    pub outward: f64,
    pub inward: f64,
}

impl Port {
    pub(crate) fn rate(&self, inward: bool) -> f64 {
        let rate = if inward { self.inward } else { self.outward };
        if rate.is_finite() { rate.max(0.0) } else { 0.0 }
    }
}

/// Work that waits: all that is wanted of it at a target, queued already or not.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingWork {
    pub target: SiteId,
    /// Sites that have it.
    pub sources: Vec<SiteId>,
    pub bytes: u64,
    /// 1 to 9, the higher the sooner.
    pub priority: u8,
    pub community: CommunityName,
    /// Since when.
    pub since: Timestamp,
}

/// Who makes circuits, and within which limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    pub name: String,
    /// Sites that it reaches; none: all.
    pub sites: Option<BTreeSet<SiteId>>,
    /// Mbit/s that can be had.
    pub mbit: Vec<u64>,
    /// The only pairs that it reaches, each with what can be had there; none: all of `sites`, at `mbit`.
    pub pairs: Option<BTreeMap<SitePair, Vec<u64>>>,
    /// Its circuits are lines of their own, and take nothing from any port.
    pub bypasses_ports: bool,
    /// A pair has at most one circuit at a time: another one is made only after it was broken.
    pub one_circuit_per_pair: bool,
    /// From a request to its use, as seen so far.
    pub setup: Duration,
    /// Circuits at once.
    pub circuits_max: u32,
    /// Of all its circuits together.
    pub mbit_total_max: Option<u64>,
    /// The part of each port that may be reserved: what is left is everybody's.
    pub port_share: f64,
    /// No circuit lasts longer.
    pub lifetime: Duration,
    pub requests_per_hour: u32,
}

impl Provider {
    pub(crate) fn reaches(&self, pair: SitePair) -> bool {
        if let Some(pairs) = &self.pairs {
            return pairs.contains_key(&pair);
        }
        let has = |site| self.sites.as_ref().is_none_or(|sites| sites.contains(site));
        has(&pair.source) && has(&pair.target)
    }

    /// What can be had there, in Mbit/s.
    pub(crate) fn rates(&self, pair: SitePair) -> impl Iterator<Item = u64> + '_ {
        let own = self.pairs.as_ref().map(|pairs| pairs.get(&pair).map_or(&[][..], Vec::as_slice));
        own.unwrap_or(&self.mbit).iter().copied().take(RATES_PER_PAIR_MAX)
    }
}

/// A circuit that somebody else asked for: the pair gets none from the plan, and what it takes is not there
/// for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignCircuit {
    /// Its provider.
    pub provider: String,
    pub mbit: u64,
}

impl PlanView {
    /// Of a port, in bytes a second: what others leave to us.
    pub(crate) fn available(&self, site: SiteId, inward: bool) -> f64 {
        let others = self.foreign_traffic.get(&(site, inward)).copied().filter(|others| *others > 0.0);
        let port = self.ports.get(&site).map_or(0.0, |port| port.rate(inward));
        (port - others.unwrap_or(0.0)).max(0.0)
    }
}

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanView {
    pub ports: BTreeMap<SiteId, Port>,
    /// What each pair is expected to carry without a circuit, in bytes a second. What is not here is not
    /// known, and gets none.
    pub best_effort: BTreeMap<SitePair, f64>,
    /// What pairs were seen to carry of late without a circuit, while they had work: a forecast below that is
    /// wrong.
    pub observed: BTreeMap<SitePair, f64>,
    /// Of ports, what those take whose traffic is not ours, each with whether data enter there.
    pub foreign_traffic: BTreeMap<(SiteId, bool), f64>,
    /// What the storages of a pair allow at most, where that is known.
    pub storage_rate_max: BTreeMap<SitePair, f64>,
    pub pending: Vec<PendingWork>,
    pub providers: Vec<Provider>,
    /// Sites that do not answer.
    pub unreachable_sites: BTreeSet<SiteId>,
    /// Pairs whose circuit is not of the plan.
    pub foreign_circuits: BTreeMap<SitePair, ForeignCircuit>,
}
