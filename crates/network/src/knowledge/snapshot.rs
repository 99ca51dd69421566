//! Serialised form of the network state: lists, since JSON allows only text as keys. Invalid numbers are
//! corrected on reading.

use std::net::IpAddr;

use longhaul_model::{SiteId, StorageId};
use serde::{Deserialize, Serialize};

use super::circuits::{CircuitStates, INACTIVE_STATES_MAX};
use super::link::FailureStats;
use super::observe::PATHS_MAX;
use super::prior::{EffectEwma, LocalityEffects};
use super::{IntakeRate, Knowledge, LINKS_MAX, Link, LinkState, PathKey, StorageEndState, Uplink};
use crate::calibration::{Calibration, LinkCalibration, QuantileTracker};
use crate::change::ChangeLog;
use crate::change_point::{ChangePointDetector, DropDetector};
use crate::concurrency_curve::ConcurrencyCurve;
use crate::ewma::{FastEwma, SlowEwma};
use crate::forecast_combiner::LinkBias;
use crate::observation::ObservationId;
use crate::path_state::PathState;
use crate::rate_history::RateHistory;
use crate::startup_cost::StartupCost;
use crate::topology::{Locality, RegionId, Topology};

/// Version of the form; a snapshot of another version is discarded.
const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
pub(super) struct KnowledgeSnapshot {
    version: u32,
    storages: Vec<(StorageId, SiteId)>,
    sites: Vec<(SiteId, RegionId)>,
    links: Vec<LinkSnapshot>,
    /// States of the paths not in use.
    #[serde(default)]
    circuits: Vec<LinkSnapshot>,
    sources: Vec<(StorageId, FastEwma, IntakeRate)>,
    targets: Vec<(StorageId, FastEwma, IntakeRate)>,
    pairs: Vec<(Locality, Locality, EffectEwma)>,
    homes: Vec<(Locality, EffectEwma, EffectEwma)>,
    regions: Vec<(RegionId, RegionId, EffectEwma)>,
    all: EffectEwma,
    typical: ConcurrencyCurve,
    paths: Vec<(PathKey, PathState)>,
    uplinks: Vec<(SiteId, Uplink)>,
    recent: Vec<ObservationId>,
    changes: ChangeLog,
    calibration: Calibration,
    hops: Vec<IpAddr>,
}

#[derive(Serialize, Deserialize)]
struct LinkSnapshot {
    link: Link,
    belief: FastEwma,
    slow: SlowEwma,
    trouble: FailureStats,
    curve: ConcurrencyCurve,
    overhead: StartupCost,
    detector: ChangePointDetector,
    #[serde(default)]
    falls: DropDetector,
    points: (QuantileTracker, u16),
    #[serde(default)]
    bytes_log_max: f32,
    #[serde(default)]
    level: LinkBias,
    bins: RateHistory,
    files_log: f32,
}

impl From<Knowledge> for KnowledgeSnapshot {
    fn from(knowledge: Knowledge) -> Self {
        let ends = |ends: std::collections::BTreeMap<StorageId, StorageEndState>| {
            ends.into_iter().map(|(id, end)| (id, end.total, end.intake)).collect()
        };
        let knowledge = knowledge.with_best_effort_paths();
        let rows = |links: std::collections::BTreeMap<Link, LinkState>| {
            links.into_iter().map(|(link, state)| LinkSnapshot::from_state(link, state)).collect()
        };
        KnowledgeSnapshot {
            version: VERSION,
            storages: knowledge.topology.storages.into_iter().collect(),
            sites: knowledge.topology.sites.into_iter().collect(),
            links: rows(knowledge.links),
            circuits: rows(knowledge.circuits.into_inactive()),
            sources: ends(knowledge.sources),
            targets: ends(knowledge.targets),
            pairs: knowledge.pairs.into_iter().map(|((from, to), pair)| (from, to, pair)).collect(),
            homes: knowledge
                .localities
                .into_iter()
                .map(|(home, state)| (home, state.out, state.into))
                .collect(),
            regions: knowledge.regions.into_iter().map(|((from, to), state)| (from, to, state)).collect(),
            all: knowledge.all,
            typical: knowledge.typical_curve,
            paths: knowledge.paths.into_iter().collect(),
            uplinks: knowledge.uplinks.into_iter().collect(),
            recent: knowledge.recent_ids.list(),
            changes: knowledge.changes,
            calibration: knowledge.calibration,
            hops: knowledge.router_addresses.into_values().collect(),
        }
    }
}

impl LinkSnapshot {
    fn from_state(link: Link, state: LinkState) -> Self {
        LinkSnapshot {
            link,
            belief: state.fast,
            slow: state.slow,
            trouble: state.failures,
            curve: state.curve,
            overhead: state.startup,
            detector: state.detector,
            falls: state.drops,
            points: state.calibration.to_stored(),
            bytes_log_max: state.bytes_log_max,
            level: state.bias,
            bins: state.history,
            files_log: state.files_log,
        }
    }

    fn into_state(self) -> LinkState {
        LinkState {
            fast: self.belief.sanitized(),
            slow: self.slow.sanitized(),
            failures: self.trouble.sanitized(),
            curve: self.curve.sanitized(),
            startup: self.overhead.sanitized(),
            detector: self.detector.sanitized(),
            drops: self.falls.sanitized(),
            calibration: LinkCalibration::from_stored(self.points),
            bytes_log_max: if self.bytes_log_max.is_finite() {
                self.bytes_log_max.clamp(0.0, 50.0)
            } else {
                0.0
            },
            bias: self.level.sanitized(),
            history: self.bins.sanitized(),
            files_log: if self.files_log.is_finite() { self.files_log.clamp(0.0, 20.0) } else { 0.0 },
            ..LinkState::default()
        }
    }
}

impl From<KnowledgeSnapshot> for Knowledge {
    fn from(stored: KnowledgeSnapshot) -> Self {
        if stored.version != VERSION {
            return Knowledge::default();
        }
        let mut knowledge = Knowledge {
            topology: Topology {
                storages: stored.storages.into_iter().collect(),
                sites: stored.sites.into_iter().collect(),
            },
            links: rows(stored.links, LINKS_MAX),
            circuits: CircuitStates::from_inactive(rows(stored.circuits, INACTIVE_STATES_MAX)),
            sources: ends(stored.sources),
            targets: ends(stored.targets),
            pairs: stored.pairs.into_iter().map(|(from, to, pair)| ((from, to), pair.sanitized())).collect(),
            localities: stored
                .homes
                .into_iter()
                .map(|(home, out, into)| {
                    (home, LocalityEffects { out: out.sanitized(), into: into.sanitized() })
                })
                .collect(),
            regions: stored
                .regions
                .into_iter()
                .map(|(from, to, state)| ((from, to), state.sanitized()))
                .collect(),
            all: stored.all.sanitized(),
            typical_curve: stored.typical.sanitized(),
            paths: stored
                .paths
                .into_iter()
                .take(PATHS_MAX)
                .map(|(key, path)| (key, path.sanitized()))
                .collect(),
            uplinks: stored
                .uplinks
                .into_iter()
                .filter_map(|(site, uplink)| Some((site, uplink.sanitized()?)))
                .collect(),
            changes: stored.changes.sanitized(),
            calibration: stored.calibration.sanitized(),
            ..Knowledge::default()
        };
        let hops: Vec<Option<IpAddr>> = stored.hops.into_iter().map(Some).collect();
        knowledge.remember_routers(&hops);
        for id in stored.recent {
            knowledge.recent_ids.insert(id);
        }
        knowledge
    }
}

fn rows(list: Vec<LinkSnapshot>, most: usize) -> std::collections::BTreeMap<Link, LinkState> {
    list.into_iter().take(most).map(|row| (row.link, row.into_state())).collect()
}

fn ends(
    list: Vec<(StorageId, FastEwma, IntakeRate)>,
) -> std::collections::BTreeMap<StorageId, StorageEndState> {
    let sound = |value: f64| if value.is_finite() { value.clamp(0.0, 1e15) } else { 0.0 };
    list.into_iter()
        .map(|(id, total, pace)| {
            let pace =
                IntakeRate { bytes_per_s: sound(pace.bytes_per_s), files_per_s: sound(pace.files_per_s) };
            (id, StorageEndState { total: total.sanitized(), intake: pace, ..StorageEndState::default() })
        })
        .collect()
}
