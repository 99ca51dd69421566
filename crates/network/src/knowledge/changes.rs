//! What follows when something is not what it was: beliefs begin anew, the change is told, and its cause is
//! located by what else changed and what did not.

use std::collections::BTreeSet;
use std::net::IpAddr;

use longhaul_model::{StorageId, Timestamp};

use super::{Knowledge, Link, PathKey};
use crate::change::{Affected, Change, Evidence, Location, Rerouted, Shift, TOGETHER};
use crate::detect::Alarm;
use crate::places::Home;

/// Routers remembered by address.
const HOPS_KNOWN_MAX: usize = 20_000;
/// So many of a kind changed for each that did not, or it is no common cause.
const MOSTLY: usize = 2;

type Pairs = BTreeSet<(Home, Home)>;

impl Knowledge {
    /// The last changes, oldest first.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.changes.iter()
    }

    /// How many there were since the start of the program.
    pub fn changes_told(&self) -> u64 {
        self.changes.told()
    }

    pub(super) fn link_changed(&mut self, link: Link, rate: f64, alarm: Alarm, now: Timestamp) {
        let by = alarm.after - alarm.before;
        let Some(state) = self.links.get_mut(&link) else { return };
        let level = state.curve.log_rate(state.files_usual()).map_or(rate.max(1.0).ln(), |(log, _)| log);
        let (before, after) = ((level + alarm.before).exp(), (level + alarm.after).exp());
        state.shift(by);
        state.belief.observe(rate, 1.0, now);
        let (source, target) = self.homes_of(link);
        if let Some(pair) = self.pairs.get_mut(&(source, target)) {
            pair.shift(by);
        }
        let rerouted = self.rerouted(source, target, alarm.from);
        self.tell(Change {
            from: alarm.from,
            noticed: now,
            affected: Affected::Link(link),
            shift: Shift::Rate { before, after },
            rerouted,
            location: Location::Unknown,
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
                // A link that has work at the moment sees for itself.
                if state.meter.active() == 0 {
                    state.shift(by);
                }
            }
        }
        let rerouted = self.rerouted(source, target, at);
        let affected = Affected::Path { source, target, way: key.way };
        let evidence = Evidence::Untold;
        let location = Location::Unknown;
        self.tell(Change { from: at, noticed: now, affected, shift, rerouted, location, evidence });
    }

    /// The last change of route between two homes, if it was about then.
    fn rerouted(&self, source: Home, target: Home, from: Timestamp) -> Option<Rerouted> {
        self.paths_between(source, target)
            .filter_map(|path| path.signature.as_ref())
            .filter(|signature| signature.before != 0)
            .map(|signature| Rerouted { at: signature.since, before: signature.before, after: signature.sum })
            .filter(|rerouted| rerouted.at.since(from) < TOGETHER && from.since(rerouted.at) < TOGETHER * 6)
            .max_by_key(|rerouted| rerouted.at)
    }

    fn tell(&mut self, change: Change) {
        let now = change.noticed;
        self.changes.push(change);
        // What comes now may tell where the cause of former ones lies.
        let recent: Vec<Change> =
            self.changes.iter().filter(|one| now.since(one.noticed) < TOGETHER).copied().collect();
        let located: Vec<Location> = recent.iter().map(|change| self.locate(change, &recent)).collect();
        let mut located = located.into_iter().rev();
        for change in self.changes.iter_mut().rev().filter(|one| now.since(one.noticed) < TOGETHER) {
            if let Some(location) = located.next() {
                change.location = location;
            }
        }
    }

    pub(super) fn pair_of(&self, change: &Change) -> (Home, Home) {
        match change.affected {
            Affected::Link(link) => self.homes_of(link),
            Affected::Path { source, target, .. } => (source, target),
        }
    }

    fn locate(&self, change: &Change, recent: &[Change]) -> Location {
        let alike = |one: &&Change| one.worse() == change.worse();
        let changed: Pairs = recent.iter().filter(alike).map(|one| self.pair_of(one)).collect();
        let (source, target) = self.pair_of(change);
        let as_before: Pairs = self
            .pairs
            .iter()
            .filter(|(pair, state)| state.last() >= change.from && !changed.contains(*pair))
            .map(|(&pair, _)| pair)
            .collect();
        let others = |pairs: &Pairs, like: &dyn Fn(&(Home, Home)) -> bool| {
            pairs.iter().filter(|pair| **pair != (source, target) && like(pair)).count()
        };
        let same_source = |pair: &(Home, Home)| pair.0 == source;
        let same_target = |pair: &(Home, Home)| pair.1 == target;
        let out = (others(&changed, &same_source), others(&as_before, &same_source));
        let into = (others(&changed, &same_target), others(&as_before, &same_target));
        let common = |(changed, as_before): (usize, usize)| changed > 0 && changed >= MOSTLY * as_before;
        match (common(out), common(into)) {
            (true, false) => return Location::Source,
            (false, true) => return Location::Target,
            (true, true) if out.0 > into.0 => return Location::Source,
            (true, true) if out.0 < into.0 => return Location::Target,
            _ => {}
        }
        if changed.len() > 1
            && let Some(hop) = self.shared_hop(&changed, &as_before)
        {
            return Location::Hop(hop);
        }
        if out.1 + into.1 > 0 && out.0 + into.0 == 0 { Location::Link } else { Location::Unknown }
    }

    /// A router that all of `these` pass and none of `those`.
    fn shared_hop(&self, these: &Pairs, those: &Pairs) -> Option<IpAddr> {
        let hops = |&(source, target): &(Home, Home)| -> BTreeSet<u32> {
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
        shared.into_iter().find_map(|hop| self.hops.get(&hop).copied())
    }

    pub(super) fn know_hops(&mut self, hops: &[Option<IpAddr>]) {
        for hop in hops.iter().flatten() {
            if self.hops.len() < HOPS_KNOWN_MAX {
                self.hops.insert(crate::path::digest(*hop), *hop);
            }
        }
    }

    pub(crate) fn links_between(&self, source: Home, target: Home) -> Vec<Link> {
        let at = |home: Home| -> Vec<StorageId> {
            match home {
                Home::Alone(storage) => vec![storage],
                Home::Site(site) => {
                    let all = self.places.storages.iter();
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
