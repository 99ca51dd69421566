//! Reaction to a detected change: beliefs restart, the change is recorded, and its cause is located by what
//! else changed and what did not.

use std::collections::BTreeSet;
use std::net::IpAddr;

use longhaul_model::{StorageId, Timestamp};

use super::{Knowledge, Link, PathKey};
use crate::change::{COMMON_CAUSE_WINDOW, CauseLocation, Change, ChangeScope, Evidence, RouteChange, Shift};
use crate::change_point::Alarm;
use crate::topology::Locality;

/// Router addresses remembered.
const ROUTER_ADDRESSES_MAX: usize = 20_000;
/// A common cause needs so many changed pairs for each unchanged one.
const COMMON_CAUSE_RATIO_MIN: usize = 2;

type LocalityPairs = BTreeSet<(Locality, Locality)>;

impl Knowledge {
    /// The recorded changes, oldest first.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.changes.iter()
    }

    /// Changes since the start of the process.
    pub fn changes_since_start(&self) -> u64 {
        self.changes.count_since_start()
    }

    pub(super) fn link_changed(&mut self, link: Link, rate: f64, alarm: Alarm, now: Timestamp) {
        let by = alarm.after - alarm.before;
        let Some(state) = self.links.get_mut(&link) else { return };
        let level = state.curve.log_rate(state.files_usual()).map_or(rate.max(1.0).ln(), |(log, _)| log);
        let (before, after) = ((level + alarm.before).exp(), (level + alarm.after).exp());
        state.shift(by);
        state.fast.observe(rate, 1.0, now);
        let (source, target) = self.localities_of(link);
        if let Some(pair) = self.pairs.get_mut(&(source, target)) {
            pair.shift(by);
        }
        let rerouted = self.recent_route_change(source, target, alarm.from);
        self.record_change(Change {
            from: alarm.from,
            noticed: now,
            affected: ChangeScope::Link(link),
            shift: Shift::Rate { before, after },
            rerouted,
            location: CauseLocation::Unknown,
            evidence: alarm.evidence,
        });
    }

    pub(super) fn path_changed(&mut self, key: PathKey, shift: Shift, at: Timestamp, now: Timestamp) {
        let (source, target) = (key.source, key.target);
        if let Shift::Rate { before, after } = shift {
            let by = (after.max(1.0) / before.max(1.0)).ln();
            if let Some(pair) = self.pairs.get_mut(&(source, target)) {
                pair.shift(by);
            }
            for link in self.links_between(source, target) {
                let Some(state) = self.links.get_mut(&link) else { continue };
                // A link with work detects the change by itself.
                if state.meter.active() == 0 {
                    state.shift(by);
                }
            }
        }
        let rerouted = self.recent_route_change(source, target, at);
        let affected = ChangeScope::Path { source, target, path: key.path };
        let evidence = Evidence::Unspecified;
        let location = CauseLocation::Unknown;
        self.record_change(Change { from: at, noticed: now, affected, shift, rerouted, location, evidence });
    }

    /// The last route change between two localities near this time.
    fn recent_route_change(
        &self,
        source: Locality,
        target: Locality,
        from: Timestamp,
    ) -> Option<RouteChange> {
        self.paths_between(source, target)
            .filter_map(|path| path.signature.as_ref())
            .filter(|signature| signature.before != 0)
            .map(|signature| RouteChange {
                at: signature.since,
                before: signature.before,
                after: signature.digest,
            })
            .filter(|rerouted| {
                rerouted.at.since(from) < COMMON_CAUSE_WINDOW
                    && from.since(rerouted.at) < COMMON_CAUSE_WINDOW * 6
            })
            .max_by_key(|rerouted| rerouted.at)
    }

    fn record_change(&mut self, change: Change) {
        let now = change.noticed;
        self.changes.push(change);
        // A new change may locate the cause of earlier ones.
        let recent: Vec<Change> =
            self.changes.iter().filter(|one| now.since(one.noticed) < COMMON_CAUSE_WINDOW).copied().collect();
        let located: Vec<CauseLocation> = recent.iter().map(|change| self.locate(change, &recent)).collect();
        let mut located = located.into_iter().rev();
        for change in self.changes.iter_mut().rev().filter(|one| now.since(one.noticed) < COMMON_CAUSE_WINDOW)
        {
            if let Some(location) = located.next() {
                change.location = location;
            }
        }
    }

    pub(super) fn localities_of_change(&self, change: &Change) -> (Locality, Locality) {
        match change.affected {
            ChangeScope::Link(link) => self.localities_of(link),
            ChangeScope::Path { source, target, .. } => (source, target),
        }
    }

    fn locate(&self, change: &Change, recent: &[Change]) -> CauseLocation {
        let alike = |one: &&Change| one.is_worse() == change.is_worse();
        let changed: LocalityPairs =
            recent.iter().filter(alike).map(|one| self.localities_of_change(one)).collect();
        let (source, target) = self.localities_of_change(change);
        let as_before: LocalityPairs = self
            .pairs
            .iter()
            .filter(|(pair, state)| state.last() >= change.from && !changed.contains(*pair))
            .map(|(&pair, _)| pair)
            .collect();
        let others = |pairs: &LocalityPairs, like: &dyn Fn(&(Locality, Locality)) -> bool| {
            pairs.iter().filter(|pair| **pair != (source, target) && like(pair)).count()
        };
        let same_source = |pair: &(Locality, Locality)| pair.0 == source;
        let same_target = |pair: &(Locality, Locality)| pair.1 == target;
        let out = (others(&changed, &same_source), others(&as_before, &same_source));
        let into = (others(&changed, &same_target), others(&as_before, &same_target));
        let common = |(changed, as_before): (usize, usize)| {
            changed > 0 && changed >= COMMON_CAUSE_RATIO_MIN * as_before
        };
        match (common(out), common(into)) {
            (true, false) => return CauseLocation::Source,
            (false, true) => return CauseLocation::Target,
            (true, true) if out.0 > into.0 => return CauseLocation::Source,
            (true, true) if out.0 < into.0 => return CauseLocation::Target,
            _ => {}
        }
        if changed.len() > 1
            && let Some(hop) = self.shared_hop(&changed, &as_before)
        {
            return CauseLocation::Hop(hop);
        }
        if out.1 + into.1 > 0 && out.0 + into.0 == 0 { CauseLocation::Link } else { CauseLocation::Unknown }
    }

    /// A router that all of `these` pairs pass and none of `those`.
    fn shared_hop(&self, these: &LocalityPairs, those: &LocalityPairs) -> Option<IpAddr> {
        let hops = |&(source, target): &(Locality, Locality)| -> BTreeSet<u32> {
            let signatures = self.paths_between(source, target).filter_map(|path| path.signature.as_ref());
            signatures.flat_map(|signature| signature.hops.iter().copied()).filter(|&hop| hop != 0).collect()
        };
        let mut shared =
            these.iter().map(hops).reduce(|all, more| all.intersection(&more).copied().collect())?;
        for pair in those {
            for hop in hops(pair) {
                shared.remove(&hop);
            }
        }
        shared.into_iter().find_map(|hop| self.router_addresses.get(&hop).copied())
    }

    pub(super) fn remember_routers(&mut self, hops: &[Option<IpAddr>]) {
        for hop in hops.iter().flatten() {
            if self.router_addresses.len() < ROUTER_ADDRESSES_MAX {
                self.router_addresses.insert(crate::path_state::router_digest(*hop), *hop);
            }
        }
    }

    pub(crate) fn links_between(&self, source: Locality, target: Locality) -> Vec<Link> {
        let at = |home: Locality| -> Vec<StorageId> {
            match home {
                Locality::Storage(storage) => vec![storage],
                Locality::Site(site) => {
                    let all = self.topology.storages.iter();
                    all.filter(|&(_, &at)| at == site).map(|(&storage, _)| storage).collect()
                }
            }
        };
        let targets = at(target);
        let pairs = at(source)
            .into_iter()
            .flat_map(|source| targets.iter().map(move |&target| Link { source, target }));
        pairs.filter(|link| self.links.contains_key(link)).collect()
    }
}
