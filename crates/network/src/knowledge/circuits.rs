//! Links on circuits. Measurements of one path say nothing about the other, so each keeps a state of its own,
//! and the inactive one is restored on a switch. Nothing measured on a circuit is used for other links.

use std::collections::BTreeMap;

use longhaul_model::Timestamp;

use super::prior::Prior;
use super::{Basis, Knowledge, Link, LinkState};
use crate::goodput_meter::EndpointCounters;

/// Share of the reserved rate that arrives as payload: headers, and what senders leave unused.
const CIRCUIT_PAYLOAD_SHARE: f64 = 0.9;
/// Variance of log(rate) on a circuit: small, since the rate is reserved.
const CIRCUIT_VARIANCE: f64 = 0.02;
/// Inactive states kept; beyond this, those of links without a circuit are dropped.
pub(super) const INACTIVE_STATES_MAX: usize = 10_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct CircuitStates {
    /// Reserved bytes per second of the links on circuits.
    reserved: BTreeMap<Link, f64>,
    /// States of the paths not in use.
    inactive: BTreeMap<Link, LinkState>,
}

impl CircuitStates {
    /// Restored after a restart: no link is on its circuit yet.
    pub(super) fn from_inactive(aside: BTreeMap<Link, LinkState>) -> CircuitStates {
        CircuitStates { reserved: BTreeMap::new(), inactive: aside }
    }

    pub(super) fn contains(&self, link: Link) -> bool {
        self.reserved.contains_key(&link)
    }

    /// Prior of a link on a circuit that was not measured yet.
    pub(super) fn prior(&self, link: Link) -> Option<Prior> {
        let bytes_per_s = self.reserved.get(&link)?;
        let mean = (bytes_per_s * CIRCUIT_PAYLOAD_SHARE).max(1.0).ln();
        Some(Prior { mean, variance: CIRCUIT_VARIANCE, basis: Basis::Reserved })
    }

    /// Reserved bytes per second, the upper bound of the rate.
    pub(super) fn reserved_rate(&self, link: Link) -> Option<f64> {
        self.reserved.get(&link).copied()
    }

    /// State of the best-effort path of a link on a circuit.
    pub(super) fn best_effort_state(&self, link: Link) -> Option<&LinkState> {
        self.inactive.get(&link).filter(|_| self.contains(link))
    }

    pub(super) fn into_inactive(self) -> BTreeMap<Link, LinkState> {
        self.inactive
    }
}

impl Knowledge {
    /// Replaces the set of links on circuits, with their reserved bytes per second. Returns the links that
    /// changed path.
    pub fn set_circuits(&mut self, all: &BTreeMap<Link, f64>, now: Timestamp) -> Vec<Link> {
        let sound = |rate: f64| rate.is_finite() && rate > 0.0;
        let all: BTreeMap<Link, f64> = all
            .iter()
            .map(|(link, rate)| (*link, *rate))
            .filter(|(_, rate)| sound(*rate))
            .take(INACTIVE_STATES_MAX)
            .collect();
        let before = std::mem::take(&mut self.circuits.reserved);
        let gone = before.keys().filter(|link| !all.contains_key(link));
        let come = all.keys().filter(|link| !before.contains_key(link));
        let changed: Vec<Link> = gone.chain(come).copied().collect();
        for &link in &changed {
            self.switch_path(link, now);
        }
        self.circuits.reserved = all;
        self.evict_inactive();
        changed
    }

    pub fn is_on_circuit(&self, link: Link) -> bool {
        self.circuits.contains(link)
    }

    /// Attempts under way continue; bytes of the open window count for neither path.
    fn switch_path(&mut self, link: Link, now: Timestamp) {
        let moved = self.end_bytes_moved(link);
        let mut other = self.circuits.inactive.remove(&link).unwrap_or_default();
        let state = self.links.entry(link).or_default();
        other.meter = state.meter.restarted(now);
        other.endpoint_counters = EndpointCounters::default();
        other.endpoint_counters.count(moved, false);
        self.circuits.inactive.insert(link, std::mem::replace(state, other));
    }

    fn evict_inactive(&mut self) {
        let CircuitStates { reserved: up, inactive: aside } = &mut self.circuits;
        if aside.len() > INACTIVE_STATES_MAX {
            aside.retain(|link, _| up.contains_key(link));
        }
    }

    /// Puts all links on their best-effort paths, for the snapshot.
    pub(super) fn with_best_effort_paths(mut self) -> Knowledge {
        self.set_circuits(&BTreeMap::new(), Timestamp::ZERO);
        self
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::StorageId;

    use super::*;
    use crate::knowledge::AttemptEnd;

    const LINK: Link = Link { source: StorageId(1), target: StorageId(2) };
    const OTHER_LINK: Link = Link { source: StorageId(1), target: StorageId(3) };

    fn at(ms: i64) -> Timestamp {
        Timestamp(1_800_000_000_000_000 + ms * 1_000)
    }

    /// Moves files of 100 MB in sequence; returns when it is done.
    fn run(knowledge: &mut Knowledge, files: i64, rate: f64, from: i64) -> i64 {
        let each = (100e6 / rate * 1e3) as i64;
        for file in 0..files {
            knowledge.attempt_began(LINK, at(from + file * each));
            knowledge.attempt_ended(LINK, 100_000_000, AttemptEnd::Arrived, at(from + (file + 1) * each));
        }
        from + files * each
    }

    fn circuit(bytes_per_s: f64) -> BTreeMap<Link, f64> {
        BTreeMap::from([(LINK, bytes_per_s)])
    }

    fn near(knowledge: &Knowledge, rate: f64, now: i64) -> bool {
        (knowledge.rate(LINK, at(now)).bytes_per_s / rate - 1.0).abs() < 0.15
    }

    #[test]
    fn switching_paths_restores_the_estimate_of_each() {
        let mut knowledge = Knowledge::default();
        let now = run(&mut knowledge, 60, 1e8, 0);
        let elsewhere = knowledge.rate(OTHER_LINK, at(now)).bytes_per_s;
        assert_eq!(knowledge.set_circuits(&circuit(1e9), at(now)), [LINK]);
        let booked = knowledge.rate(LINK, at(now));
        assert!(near(&knowledge, 9e8, now) && booked.basis == Basis::Reserved, "{booked:?}");
        assert!(knowledge.rate_with(LINK, 50, at(now)).bytes_per_s <= 1e9, "no more than is booked");
        let plain = knowledge.best_effort_rate(LINK, at(now)).bytes_per_s;
        assert!((plain / 1e8 - 1.0).abs() < 0.15, "{plain} without it");
        // It yields less than reserved, which is soon believed.
        let now = run(&mut knowledge, 300, 7e8, now);
        assert!(near(&knowledge, 7e8, now), "{:?}", knowledge.rate(LINK, at(now)));
        assert_eq!(knowledge.set_circuits(&circuit(1e9), at(now)), [], "the same again");
        assert_eq!(knowledge.set_circuits(&BTreeMap::new(), at(now)), [LINK]);
        assert!(near(&knowledge, 1e8, now), "{:?}", knowledge.rate(LINK, at(now)));
        assert_eq!(knowledge.rate(LINK, at(now)).basis, Basis::Measured);
        let after = knowledge.rate(OTHER_LINK, at(now)).bytes_per_s;
        assert!((after / elsewhere - 1.0).abs() < 0.05, "others are as they were: {elsewhere} {after}");
        // The next circuit starts from what the last one yielded.
        knowledge.set_circuits(&circuit(1e9), at(now));
        assert!(near(&knowledge, 7e8, now), "{:?}", knowledge.rate(LINK, at(now)));
    }

    #[test]
    fn files_under_way_count_for_the_path_they_end_on() {
        let mut knowledge = Knowledge::default();
        let now = run(&mut knowledge, 60, 1e8, 0);
        knowledge.attempt_began(LINK, at(now));
        knowledge.bytes_arrived(LINK, 50_000_000, at(now + 500));
        knowledge.set_circuits(&circuit(1e9), at(now + 500));
        for step in 1..=20 {
            knowledge.bytes_arrived(LINK, 90_000_000, at(now + 500 + step * 100));
        }
        assert!(near(&knowledge, 9e8, now + 2_500), "{:?}", knowledge.rate(LINK, at(now + 2_500)));
        knowledge.attempt_ended(LINK, 0, AttemptEnd::Arrived, at(now + 2_500));
        assert_eq!(knowledge.rate_now(LINK, at(now + 2_500)), 0.0, "nothing is under way");
    }

    #[test]
    fn both_paths_survive_a_restart_and_invalid_rates_are_ignored() {
        let mut knowledge = Knowledge::default();
        let now = run(&mut knowledge, 60, 1e8, 0);
        knowledge.set_circuits(&circuit(1e9), at(now));
        let now = run(&mut knowledge, 300, 7e8, now);
        let text = serde_json::to_string(&knowledge).unwrap();
        let mut again: Knowledge = serde_json::from_str(&text).unwrap();
        assert!(near(&again, 1e8, now), "{:?}", again.rate(LINK, at(now)));
        for absurd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(again.set_circuits(&circuit(absurd), at(now)), []);
        }
        assert_eq!(again.set_circuits(&circuit(1e9), at(now)), [LINK]);
        assert!(near(&again, 7e8, now), "{:?}", again.rate(LINK, at(now)));
    }
}
