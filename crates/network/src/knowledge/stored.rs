//! The serialised form: lists, since JSON knows only text as keys. Absurd numbers in it are made sound.

use std::net::IpAddr;

use longhaul_model::{SiteId, StorageId};
use serde::{Deserialize, Serialize};

use super::circuits::{ASIDE_MAX, Circuits};
use super::link::Trouble;
use super::observe::PATHS_MAX;
use super::prior::{Effect, HomeState};
use super::{EndState, Knowledge, LINKS_MAX, Link, LinkState, Pace, PathKey, Uplink};
use crate::belief::{Belief, Slow};
use crate::bins::Bins;
use crate::blend::Level;
use crate::calibrate::{Calibration, LinkRecord, Points};
use crate::change::Changes;
use crate::curve::Curve;
use crate::detect::{Detector, Falls};
use crate::observation::ObservationId;
use crate::overhead::Overhead;
use crate::path::PathState;
use crate::places::{Home, Places, RegionId};

/// Grows when what was kept before cannot be read any more.
const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    version: u32,
    storages: Vec<(StorageId, SiteId)>,
    sites: Vec<(SiteId, RegionId)>,
    links: Vec<StoredLink>,
    /// The same of their circuits.
    #[serde(default)]
    circuits: Vec<StoredLink>,
    sources: Vec<(StorageId, Belief, Pace)>,
    targets: Vec<(StorageId, Belief, Pace)>,
    pairs: Vec<(Home, Home, Effect)>,
    homes: Vec<(Home, Effect, Effect)>,
    regions: Vec<(RegionId, RegionId, Effect)>,
    all: Effect,
    typical: Curve,
    paths: Vec<(PathKey, PathState)>,
    uplinks: Vec<(SiteId, Uplink)>,
    recent: Vec<ObservationId>,
    changes: Changes,
    calibration: Calibration,
    hops: Vec<IpAddr>,
}

#[derive(Serialize, Deserialize)]
struct StoredLink {
    link: Link,
    belief: Belief,
    slow: Slow,
    trouble: Trouble,
    curve: Curve,
    overhead: Overhead,
    detector: Detector,
    #[serde(default)]
    falls: Falls,
    points: (Points, u16),
    #[serde(default)]
    level: Level,
    bins: Bins,
    files_log: f32,
}

impl From<Knowledge> for Stored {
    fn from(knowledge: Knowledge) -> Self {
        let ends = |ends: std::collections::BTreeMap<StorageId, EndState>| {
            ends.into_iter().map(|(id, end)| (id, end.total, end.pace)).collect()
        };
        let knowledge = knowledge.without_circuits();
        let rows = |links: std::collections::BTreeMap<Link, LinkState>| {
            links.into_iter().map(|(link, state)| StoredLink::of(link, state)).collect()
        };
        Stored {
            version: VERSION,
            storages: knowledge.places.storages.into_iter().collect(),
            sites: knowledge.places.sites.into_iter().collect(),
            links: rows(knowledge.links),
            circuits: rows(knowledge.circuits.into_aside()),
            sources: ends(knowledge.sources),
            targets: ends(knowledge.targets),
            pairs: knowledge.pairs.into_iter().map(|((from, to), pair)| (from, to, pair)).collect(),
            homes: knowledge.homes.into_iter().map(|(home, state)| (home, state.out, state.into)).collect(),
            regions: knowledge.regions.into_iter().map(|((from, to), state)| (from, to, state)).collect(),
            all: knowledge.all,
            typical: knowledge.typical,
            paths: knowledge.paths.into_iter().collect(),
            uplinks: knowledge.uplinks.into_iter().collect(),
            recent: knowledge.recent.list(),
            changes: knowledge.changes,
            calibration: knowledge.calibration,
            hops: knowledge.hops.into_values().collect(),
        }
    }
}

impl StoredLink {
    fn of(link: Link, state: LinkState) -> Self {
        StoredLink {
            link,
            belief: state.belief,
            slow: state.slow,
            trouble: state.trouble,
            curve: state.curve,
            overhead: state.overhead,
            detector: state.detector,
            falls: state.falls,
            points: state.record.points_only(),
            level: state.level,
            bins: state.bins,
            files_log: state.files_log,
        }
    }

    fn sound(self) -> LinkState {
        LinkState {
            belief: self.belief.sound(),
            slow: self.slow.sound(),
            trouble: self.trouble.sound(),
            curve: self.curve.sound(),
            overhead: self.overhead.sound(),
            detector: self.detector.sound(),
            falls: self.falls.sound(),
            record: LinkRecord::from_points(self.points),
            level: self.level.sound(),
            bins: self.bins.sound(),
            files_log: if self.files_log.is_finite() { self.files_log.clamp(0.0, 20.0) } else { 0.0 },
            ..LinkState::default()
        }
    }
}

impl From<Stored> for Knowledge {
    fn from(stored: Stored) -> Self {
        if stored.version != VERSION {
            return Knowledge::default();
        }
        let mut knowledge = Knowledge {
            places: Places {
                storages: stored.storages.into_iter().collect(),
                sites: stored.sites.into_iter().collect(),
            },
            links: rows(stored.links, LINKS_MAX),
            circuits: Circuits::restored(rows(stored.circuits, ASIDE_MAX)),
            sources: ends(stored.sources),
            targets: ends(stored.targets),
            pairs: stored.pairs.into_iter().map(|(from, to, pair)| ((from, to), pair.sound())).collect(),
            homes: stored
                .homes
                .into_iter()
                .map(|(home, out, into)| (home, HomeState { out: out.sound(), into: into.sound() }))
                .collect(),
            regions: stored
                .regions
                .into_iter()
                .map(|(from, to, state)| ((from, to), state.sound()))
                .collect(),
            all: stored.all.sound(),
            typical: stored.typical.sound(),
            paths: stored.paths.into_iter().take(PATHS_MAX).map(|(key, path)| (key, path.sound())).collect(),
            uplinks: stored
                .uplinks
                .into_iter()
                .filter_map(|(site, uplink)| Some((site, uplink.sound()?)))
                .collect(),
            changes: stored.changes.sound(),
            calibration: stored.calibration.sound(),
            ..Knowledge::default()
        };
        let hops: Vec<Option<IpAddr>> = stored.hops.into_iter().map(Some).collect();
        knowledge.know_hops(&hops);
        for id in stored.recent {
            knowledge.recent.insert(id);
        }
        knowledge
    }
}

fn rows(list: Vec<StoredLink>, most: usize) -> std::collections::BTreeMap<Link, LinkState> {
    list.into_iter().take(most).map(|row| (row.link, row.sound())).collect()
}

fn ends(list: Vec<(StorageId, Belief, Pace)>) -> std::collections::BTreeMap<StorageId, EndState> {
    let sound = |value: f64| if value.is_finite() { value.clamp(0.0, 1e15) } else { 0.0 };
    list.into_iter()
        .map(|(id, total, pace)| {
            let pace = Pace { bytes_per_s: sound(pace.bytes_per_s), files_per_s: sound(pace.files_per_s) };
            (id, EndState { total: total.sound(), pace, ..EndState::default() })
        })
        .collect()
}
