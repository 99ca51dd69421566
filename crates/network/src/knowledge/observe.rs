//! Observations of others: validated, deduplicated and applied.

use std::collections::{BTreeSet, VecDeque};

use longhaul_model::{SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Knowledge, Link};
use crate::observation::{
    Endpoint, Metric, Observation, ObservationError, ObservationId, PathSelector, Subject,
};
use crate::path_state::PathState;
use crate::topology::Locality;

/// Observation ids remembered: an archive that is asked again repeats its last quarter of an hour.
const RECENT_MAX: usize = 8_192;
/// Paths remembered; beyond it, the least recently used are evicted.
pub(super) const PATHS_MAX: usize = 180_000;
/// Uplink counters older than this are stale.
const UPLINK_AGE_S_MAX: f64 = 900.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct PathKey {
    pub source: Locality,
    pub target: Locality,
    #[serde(rename = "way")]
    pub path: PathSelector,
}

/// Counters of a site's uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Uplink {
    pub into_bytes_per_s: f64,
    pub out_bytes_per_s: f64,
    pub capacity_bytes_per_s: Option<f64>,
    pub at: Timestamp,
}

impl Uplink {
    /// Utilisation of the capacity, if both are known and recent.
    pub(crate) fn utilization(&self, into: bool, now: Timestamp) -> Option<f64> {
        let capacity = self.capacity_bytes_per_s?;
        if now.since(self.at).as_secs_f64() > UPLINK_AGE_S_MAX {
            return None;
        }
        Some((if into { self.into_bytes_per_s } else { self.out_bytes_per_s } / capacity).clamp(0.0, 1.0))
    }

    pub(super) fn sanitized(self) -> Option<Self> {
        let rates = [self.into_bytes_per_s, self.out_bytes_per_s];
        let capacity = self.capacity_bytes_per_s.filter(|capacity| capacity.is_finite() && *capacity > 0.0);
        rates
            .iter()
            .all(|rate| rate.is_finite() && *rate >= 0.0)
            .then_some(Uplink { capacity_bytes_per_s: capacity, ..self })
    }
}

/// Ids of the last observations, in order of arrival.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentIds {
    known: BTreeSet<ObservationId>,
    order: VecDeque<ObservationId>,
}

impl RecentIds {
    /// Returns false for a duplicate.
    pub(super) fn insert(&mut self, id: ObservationId) -> bool {
        if !self.known.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > RECENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    pub(super) fn list(&self) -> Vec<ObservationId> {
        self.order.iter().copied().collect()
    }
}

impl Knowledge {
    /// Applies an observation or rejects it. Whatever comes, estimates stay valid.
    pub fn observe(&mut self, observation: &Observation, now: Timestamp) -> Result<(), ObservationError> {
        observation.check(now)?;
        let place = |place: Endpoint| {
            let used = |storage| self.sources.contains_key(&storage) || self.targets.contains_key(&storage);
            self.topology.resolve(place, used)
        };
        match observation.subject {
            Subject::Uplink { site } => {
                place(Endpoint::Site(site))?;
                self.observe_uplink(site, observation)
            }
            Subject::Path { source, target, path } => {
                let key = PathKey { source: place(source)?, target: place(target)?, path };
                if key.source == key.target && !matches!(observation.metric, Metric::Transfer { .. }) {
                    return Err(ObservationError::Implausible(
                        "source and target are at the same site".to_owned(),
                    ));
                }
                let link = match (source, target) {
                    (Endpoint::Storage(source), Endpoint::Storage(target)) => Some(Link { source, target }),
                    _ => None,
                };
                self.observe_path(key, link, observation, now)
            }
        }
    }

    fn observe_uplink(&mut self, site: SiteId, observation: &Observation) -> Result<(), ObservationError> {
        let known = self.uplinks.get(&site).copied().unwrap_or_default();
        if known.at > observation.at {
            return Err(ObservationError::OutOfOrder { behind: known.at.since(observation.at) });
        }
        if !self.recent_ids.insert(observation.id) {
            return Err(ObservationError::Duplicate);
        }
        if let Metric::Uplink { into_bytes_per_s, out_bytes_per_s, capacity_bytes_per_s } = observation.metric
        {
            let capacity_bytes_per_s = capacity_bytes_per_s.or(known.capacity_bytes_per_s);
            let at = observation.at;
            self.uplinks.insert(site, Uplink { into_bytes_per_s, out_bytes_per_s, capacity_bytes_per_s, at });
        }
        Ok(())
    }

    fn observe_path(
        &mut self,
        key: PathKey,
        link: Option<Link>,
        observation: &Observation,
        now: Timestamp,
    ) -> Result<(), ObservationError> {
        if self.paths.len() >= PATHS_MAX && !self.paths.contains_key(&key) {
            self.evict_unused_paths();
        }
        if self.recent_ids.known.contains(&observation.id) {
            return Err(ObservationError::Duplicate);
        }
        let load = self.load_between(&key);
        let path = self.paths.entry(key).or_default();
        path.check_order(observation.metric.kind_index(), observation.at, now)?;
        self.recent_ids.insert(observation.id);
        let (at, weight) = (observation.at.min(now), observation.weight());
        let mut shift = path.detect_shift(&observation.metric, load, at);
        if path.apply(&observation.metric, weight, at).is_some() {
            shift = shift.or(path.confirm_outlier());
        }
        match &observation.metric {
            Metric::Hops(hops) => self.remember_routers(hops),
            &Metric::Reach { up } => self.record_reachability(key, up, at),
            _ => {}
        }
        if let Some(shift) = shift {
            self.path_changed(key, shift, at, now);
        }
        let rate = match observation.metric {
            Metric::Throughput { bytes_per_s, seconds, .. } => Some((bytes_per_s, seconds.clamp(1.0, 10.0))),
            Metric::Summary { bytes_per_s, seconds, .. } => Some((bytes_per_s, seconds.clamp(0.0, 10.0))),
            _ => None,
        };
        if let Some((bytes_per_s, seconds)) = rate {
            self.learn_between(key.source, key.target, bytes_per_s.ln(), weight * seconds, at);
            if let Some(state) = link.and_then(|link| self.links.get_mut(&link)) {
                state.slow.observe(bytes_per_s, weight * seconds, at);
            }
        }
        Ok(())
    }

    /// Our transfers under way between the ends of a path.
    fn load_between(&self, key: &PathKey) -> f64 {
        let links = self.links_between(key.source, key.target);
        links
            .iter()
            .filter_map(|link| self.links.get(link))
            .map(|state| f64::from(state.meter.active()))
            .sum()
    }

    fn evict_unused_paths(&mut self) {
        let mut all: Vec<(u32, PathKey)> = self.paths.iter().map(|(&key, path)| (path.last(), key)).collect();
        all.sort_unstable();
        for (_, key) in all.into_iter().take(PATHS_MAX / 8) {
            self.paths.remove(&key);
        }
    }

    /// State of one path between the localities of two storages.
    pub(crate) fn path_state(&self, link: Link, path: PathSelector) -> Option<&PathState> {
        let (source, target) = self.localities_of(link);
        self.paths.get(&PathKey { source, target, path })
    }
}
