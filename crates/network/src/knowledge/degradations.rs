//! Ongoing degradations: changes for the worse that a person should know of. Each ends by itself, when the
//! value has nearly recovered or the change is so old that it is the new normal.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::Timestamp;

use super::{Knowledge, Link, PathKey};
use crate::change::{Change, ChangeScope, Shift};

/// A degradation older than a day is the new normal.
const DEGRADATION_AGE_MAX: Duration = Duration::from_secs(86_400);
/// A path that flapped counts as quiet after three hours.
const FLAPPING_AGE_MAX: Duration = Duration::from_secs(3 * 3_600);
/// A rate below this share of the former one is reported.
const RATE_DEGRADED_SHARE: f64 = 0.7;
/// A rate from this share of the former one has recovered.
const RATE_RECOVERED_SHARE: f64 = 0.8;
/// A round trip within this factor of the former one has recovered.
const ROUND_TRIP_RECOVERED_FACTOR: f64 = 1.2;
/// A loss within this factor of the former one has recovered.
const LOSS_RECOVERED_FACTOR: f64 = 2.0;
/// A loss below this has recovered in any case.
const LOSS_NEGLIGIBLE_SHARE: f64 = 1e-4;

impl Knowledge {
    /// The ongoing degradations, relative to the value before the first: successive falls are merged, with
    /// the first `from` and `before`.
    pub fn ongoing_degradations(&self, now: Timestamp) -> Vec<Change> {
        let mut standing: BTreeMap<(ChangeScope, &'static str), Change> = BTreeMap::new();
        for change in self.changes() {
            let key = (change.affected, change.kind());
            let known = standing.remove(&key);
            let since = known.map_or(*change, |first| merge(first, change));
            if since.is_worse() && !has_recovered(&since.shift, None) {
                standing.insert(key, since);
            }
        }
        let holds = |change: &Change| {
            let most = if matches!(change.shift, Shift::Flapping { .. }) {
                FLAPPING_AGE_MAX
            } else {
                DEGRADATION_AGE_MAX
            };
            now.since(change.noticed) < most
                && is_reportable(&change.shift)
                && !has_recovered(&change.shift, self.current_value(change))
        };
        standing.into_values().filter(holds).collect()
    }

    /// Current value in the unit of the shift; none if unknown.
    fn current_value(&self, change: &Change) -> Option<f64> {
        match (change.affected, change.shift) {
            (ChangeScope::Link(link), Shift::Rate { .. }) => self.level(link),
            (ChangeScope::Link(_), _) => None,
            (ChangeScope::Path { source, target, path }, shift) => {
                let state = self.paths.get(&PathKey { source, target, path })?;
                match shift {
                    Shift::Rate { .. } => state.rate.has_data().then(|| state.rate.mean().exp()),
                    Shift::RoundTrip { .. } => state.rtt_us(),
                    Shift::Loss { .. } => state.loss_share(),
                    // Packets that vanish come back when none vanishes any more.
                    Shift::Mtu { black_hole: true, .. } => (!state.black_hole).then_some(f64::MAX),
                    Shift::Mtu { .. } => state.mtu.map(f64::from),
                    Shift::Flapping { .. } => None,
                }
            }
        }
    }

    /// Level of the change-point detector: it follows slow recoveries, which raise no alarm.
    fn level(&self, link: Link) -> Option<f64> {
        let state = self.links.get(&link)?;
        let (log, _) = state.curve.log_rate(state.files_usual())?;
        Some((log + state.detector.level()).exp())
    }
}

/// Merges a later change of the same kind into an ongoing one.
fn merge(first: Change, then: &Change) -> Change {
    let shift = match (first.shift, then.shift) {
        (Shift::Rate { before, .. }, Shift::Rate { before: level, after }) => {
            Shift::Rate { before: before.max(level), after }
        }
        (Shift::RoundTrip { before_us, .. }, Shift::RoundTrip { after_us, .. }) => {
            Shift::RoundTrip { before_us, after_us }
        }
        (Shift::Loss { before, .. }, Shift::Loss { after, .. }) => Shift::Loss { before, after },
        (Shift::Mtu { before, .. }, Shift::Mtu { after, black_hole, .. }) => {
            Shift::Mtu { before, after, black_hole }
        }
        (_, shift) => shift,
    };
    Change { from: first.from, shift, ..*then }
}

/// Whether a change is large enough to report.
fn is_reportable(shift: &Shift) -> bool {
    match *shift {
        Shift::Rate { before, after } => after < RATE_DEGRADED_SHARE * before,
        _ => true,
    }
}

/// Whether the value has nearly recovered, by its value `now` or else by the change itself.
fn has_recovered(shift: &Shift, now: Option<f64>) -> bool {
    match *shift {
        Shift::Rate { before, after } => now.unwrap_or(after) >= RATE_RECOVERED_SHARE * before,
        Shift::RoundTrip { before_us, after_us } => {
            now.unwrap_or(after_us) <= ROUND_TRIP_RECOVERED_FACTOR * before_us
        }
        Shift::Loss { before, after } => {
            now.unwrap_or(after) <= (LOSS_RECOVERED_FACTOR * before).max(LOSS_NEGLIGIBLE_SHARE)
        }
        Shift::Mtu { before, after, black_hole } => {
            now.map_or(!black_hole && after >= before, |now| now >= f64::from(before))
        }
        Shift::Flapping { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::{SiteId, StorageId};

    use super::*;
    use crate::change::Evidence;
    use crate::knowledge::AttemptEnd;
    use crate::observation::{
        Endpoint, Mapping, Metric, Observation, ObservationId, Origin, PathSelector, Subject,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    const LINK: Link = Link { source: StorageId(1), target: StorageId(2) };

    /// Transfers one-second files in sequence at a rate.
    fn run(knowledge: &mut Knowledge, rate: u64, from: i64, seconds: i64) -> i64 {
        for second in from..from + seconds {
            knowledge.attempt_began(LINK, at(second));
            knowledge.attempt_ended(LINK, rate, AttemptEnd::Arrived, at(second + 1));
        }
        from + seconds
    }

    #[test]
    fn a_degradation_lasts_until_the_link_recovers() {
        let mut knowledge = Knowledge::default();
        let fell = run(&mut knowledge, 100_000_000, 0, 900);
        assert_eq!(knowledge.ongoing_degradations(at(fell)), []);
        let fell_again = run(&mut knowledge, 40_000_000, fell, 120);
        let [change] = knowledge.ongoing_degradations(at(fell_again))[..] else { panic!("one fall") };
        let Evidence::Measurements(count) = change.evidence else { panic!("{change:?}") };
        assert!((1..=20).contains(&count), "noticed within 20 transfers: {change:?}");
        let words = change.describe("alpha", "beta");
        assert!(
            words.starts_with("rate from alpha to beta fell 2.") && words.contains(" measurements"),
            "{words}"
        );

        let rose = run(&mut knowledge, 10_000_000, fell_again, 120);
        let [worse] = knowledge.ongoing_degradations(at(rose))[..] else { panic!("two falls are one") };
        let Shift::Rate { before, after } = worse.shift else { panic!("{worse:?}") };
        assert!((80e6..120e6).contains(&before) && (8e6..13e6).contains(&after), "{worse:?}");
        assert_eq!(worse.from, change.from);
        assert_eq!(
            knowledge.ongoing_degradations(at(rose) + DEGRADATION_AGE_MAX),
            [],
            "after a day it is how things are"
        );

        let end = run(&mut knowledge, 100_000_000, rose, 300);
        assert_eq!(knowledge.ongoing_degradations(at(end)), []);
    }

    fn rtt(knowledge: &mut Knowledge, ms: f64, second: i64) {
        probe(knowledge, Metric::Rtt { us: ms * 1e3 }, second);
    }

    /// A measurement between two sites by a probe.
    fn probe(knowledge: &mut Knowledge, metric: Metric, second: i64) {
        let seen = Observation {
            id: ObservationId(second as u64),
            origin: Origin::Probe,
            mapping: Mapping::Explicit,
            subject: Subject::Path {
                source: Endpoint::Site(SiteId(1)),
                target: Endpoint::Site(SiteId(2)),
                path: PathSelector::default(),
            },
            at: at(second),
            metric,
        };
        knowledge.observe(&seen, at(second)).unwrap();
    }

    #[test]
    fn a_longer_round_trip_lasts_until_the_route_recovers() {
        let mut knowledge = Knowledge::default();
        knowledge.set_storage_site(StorageId(1), SiteId(1));
        knowledge.set_storage_site(StorageId(2), SiteId(2));
        (0..40).for_each(|step| rtt(&mut knowledge, 20.0, step * 60));
        (40..60).for_each(|step| rtt(&mut knowledge, 90.0, step * 60));
        let [change] = knowledge.ongoing_degradations(at(3_600))[..] else { panic!("one change") };
        assert_eq!(change.kind(), "round-trip");
        (60..80).for_each(|step| rtt(&mut knowledge, 20.0, step * 60));
        assert_eq!(knowledge.ongoing_degradations(at(4_800)), []);
    }

    #[test]
    fn packets_that_vanish_are_a_degradation_until_none_does() {
        let mut knowledge = Knowledge::default();
        knowledge.set_storage_site(StorageId(1), SiteId(1));
        knowledge.set_storage_site(StorageId(2), SiteId(2));
        let mtu = |black_hole| Metric::Mtu { bytes: 1_500, black_hole };
        (0..10).for_each(|step| probe(&mut knowledge, mtu(false), step * 60));
        (10..20).for_each(|step| probe(&mut knowledge, mtu(true), step * 60));
        let [change] = knowledge.ongoing_degradations(at(1_200))[..] else { panic!("one change") };
        assert!(change.kind() == "mtu" && change.is_worse(), "{change:?}");
        (20..30).for_each(|step| probe(&mut knowledge, mtu(false), step * 60));
        assert_eq!(knowledge.ongoing_degradations(at(1_800)), []);
        let smaller = Shift::Mtu { before: 9_000, after: 1_500, black_hole: true };
        assert!(Change { shift: smaller, ..change }.is_worse());
        let larger = Shift::Mtu { before: 1_500, after: 9_000, black_hole: false };
        assert!(!Change { shift: larger, ..change }.is_worse());
    }
}
