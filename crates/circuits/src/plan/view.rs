//! Input of the planner: ports, best-effort rates, pending work, and providers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{CommunityName, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

/// Rows of pending work considered: groups of a dataset and a target are thousands, not millions.
pub(crate) const PENDING_ROWS_MAX: usize = 100_000;
/// Rates of one provider for one pair.
const RATES_PER_PAIR_MAX: usize = 16;
/// Sources of one row of pending work.
pub(crate) const SOURCES_PER_ROW_MAX: usize = 64;
/// 1 Mbit/s in bytes per second.
pub(crate) const MBIT_BYTES_PER_S: f64 = 125_000.0;

/// Ordered pair of sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SitePair {
    pub source: SiteId,
    pub target: SiteId,
}

impl SitePair {
    /// Both ports: the site, and whether data enters there.
    pub(crate) fn ends(self) -> [(SiteId, bool); 2] {
        [(self.source, false), (self.target, true)]
    }

    pub(crate) fn touches(self, sites: &BTreeSet<SiteId>) -> bool {
        sites.contains(&self.source) || sites.contains(&self.target)
    }
}

/// Capacity of a site's uplink, in bytes per second.
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

/// Pending work for a target, queued already or not.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingWork {
    pub target: SiteId,
    /// Sites that have the data.
    pub sources: Vec<SiteId>,
    pub bytes: u64,
    /// 1 to 9, higher is more urgent.
    pub priority: u8,
    pub community: CommunityName,
    /// Waiting since.
    pub since: Timestamp,
}

/// A provider of circuits and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    pub name: String,
    /// Sites that it reaches; none means all.
    pub sites: Option<BTreeSet<SiteId>>,
    /// Rates on offer, in Mbit/s.
    pub mbit: Vec<u64>,
    /// The only pairs that it reaches, with the rates on offer there; none means all of `sites`, at `mbit`.
    pub pairs: Option<BTreeMap<SitePair, Vec<u64>>>,
    /// Its circuits are lines of their own and take no bandwidth from any port.
    pub bypasses_ports: bool,
    /// A pair has at most one circuit at a time, so a replacement can only be made after a break.
    pub one_circuit_per_pair: bool,
    /// Time from a request to its use, as measured.
    pub setup: Duration,
    /// Concurrent circuits.
    pub circuits_max: u32,
    /// Total rate of all its circuits.
    pub mbit_total_max: Option<u64>,
    /// Share of each port that may be reserved; the rest stays best effort.
    pub port_share: f64,
    /// Longest lifetime of a circuit.
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

    /// Rates on offer for the pair, in Mbit/s.
    pub(crate) fn rates(&self, pair: SitePair) -> impl Iterator<Item = u64> + '_ {
        let own = self.pairs.as_ref().map(|pairs| pairs.get(&pair).map_or(&[][..], Vec::as_slice));
        own.unwrap_or(&self.mbit).iter().copied().take(RATES_PER_PAIR_MAX)
    }
}

/// A circuit requested by somebody else: the pair gets none from the plan, and its rate is not available to
/// others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignCircuit {
    /// Its provider.
    pub provider: String,
    pub mbit: u64,
}

impl PlanView {
    /// Capacity of a port that foreign traffic leaves to us, in bytes per second.
    pub(crate) fn available(&self, site: SiteId, inward: bool) -> f64 {
        let others = self.foreign_traffic.get(&(site, inward)).copied().filter(|others| *others > 0.0);
        let port = self.ports.get(&site).map_or(0.0, |port| port.rate(inward));
        (port - others.unwrap_or(0.0)).max(0.0)
    }
}

/// The planner's input at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanView {
    pub ports: BTreeMap<SiteId, Port>,
    /// Forecast best-effort rate of each pair, in bytes per second. A pair that is missing is unknown, and
    /// gets no circuit.
    pub best_effort: BTreeMap<SitePair, f64>,
    /// Recently measured best-effort rates of busy pairs: a forecast below that is wrong.
    pub observed: BTreeMap<SitePair, f64>,
    /// Foreign traffic by port (site, and whether data enters there).
    pub foreign_traffic: BTreeMap<(SiteId, bool), f64>,
    /// Rate that the storages of a pair allow, where known.
    pub storage_rate_max: BTreeMap<SitePair, f64>,
    pub pending: Vec<PendingWork>,
    pub providers: Vec<Provider>,
    /// Sites that do not answer.
    pub unreachable_sites: BTreeSet<SiteId>,
    /// Pairs with a circuit that is not of the plan.
    pub foreign_circuits: BTreeMap<SitePair, ForeignCircuit>,
}
