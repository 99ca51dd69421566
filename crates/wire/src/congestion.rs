//! Selects the congestion control of the streams to one peer: loss-based (CUBIC) or rate-based (BBR).
//!
//! Reno and CUBIC shrink their window at every loss, whatever caused it. On a long path with a random loss of
//! 1e-4 they stay far below the path's capacity (Mathis et al. 1997; RFC 9438). Losses without queueing delay
//! are random, not congestion: there the kernel's BBR (Cardwell et al. 2016) takes over. BBR gives way again
//! if it causes losses of its own, as it does where queues are shallow.
//!
//! Losses are rare events, so all streams to one peer are judged together. Time is an argument.

use std::time::Duration;

use crate::path::{Bottleneck, PathReport, PathSummary};

/// Shorter paths stay loss-based: their window recovers soon after a loss.
const ROUND_TRIP_LONG_MIN: Duration = Duration::from_millis(40);
/// A round trip this many times the shortest one includes queueing delay.
const QUEUEING_FACTOR: f64 = 1.15;
/// Frequent losses, as loss events per segment: two events suffice to tell.
const LOSS_EVENTS_HEAVY: LossThreshold = LossThreshold { share: 5e-4, events: 2 };
/// Occasional losses, as loss events per segment, counted only after slow start: windows that open for the
/// first time overshoot, one stream after the other, and that says nothing about the path.
const LOSS_EVENTS_LIGHT: LossThreshold = LossThreshold { share: 5e-5, events: 6 };
/// Round trips until all streams have left slow start.
const SLOW_START_ROUND_TRIPS: u32 = 15;
/// Above this share of retransmitted segments the path is congested or broken, and BBR would not help.
const LOSS_SHARE_MAX: f64 = 2e-2;
/// BBR is dropped when more than this share of segments is retransmitted.
const RATE_BASED_LOSS_SHARE_MAX: f64 = 4e-2;
/// Minimum number of segments for a decision.
const DECISION_SEGMENTS_MIN: u32 = 300;
/// Losses within this many round trips are one event: the time in which an overshooting window is repaired.
const LOSS_EVENT_ROUND_TRIPS: u32 = 4;
/// Above this many segments the counts are halved, so that a path which was good for an hour may still be
/// found bad.
const DECAY_SEGMENTS: u32 = 200_000;
/// Minimum number of segments to judge the losses under BBR.
const RATE_BASED_SEGMENTS_MIN: u32 = 5_000;
/// How long BBR is kept before the path is judged afresh, since routes change.
const RATE_BASED_DURATION: Duration = Duration::from_secs(600);
/// How long loss-based control is kept after BBR was dropped or refused.
const LOSS_BASED_DURATION: Duration = Duration::from_secs(3_600);

/// Minimum number and frequency of loss events to call a path lossy.
struct LossThreshold {
    share: f64,
    events: u32,
}

/// The choice for the streams to one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionControlSelector {
    decision: Decision,
    observed_since: Option<Duration>,
    slow_start_over: bool,
    segments: u32,
    retransmits: u32,
    events: u32,
    last_event: Duration,
}

/// The congestion control in use, and until when the choice stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Decision {
    #[default]
    Undecided,
    RateBased(Duration),
    LossBased(Duration),
}

impl CongestionControlSelector {
    /// Adds what one stream reported since its last call, with its shortest recent round trip.
    pub fn observe(&mut self, seen: &PathReport, round_trip_min: Duration, by_rate: bool, now: Duration) {
        match self.decision {
            Decision::RateBased(until) | Decision::LossBased(until) if now >= until => {
                *self = CongestionControlSelector::default()
            }
            // A stream that has not switched yet says nothing about BBR.
            Decision::RateBased(_) if by_rate => self.observe_rate_based(seen, now),
            Decision::Undecided => self.observe_loss_based(seen, round_trip_min, now),
            Decision::RateBased(_) | Decision::LossBased(_) => {}
        }
    }

    /// Whether the streams should use BBR.
    pub fn prefers_rate_based(&self) -> bool {
        matches!(self.decision, Decision::RateBased(_))
    }

    /// The kernel refused BBR.
    pub fn rate_based_refused(&mut self, now: Duration) {
        self.decide(Decision::LossBased(now + LOSS_BASED_DURATION));
    }

    fn observe_loss_based(&mut self, seen: &PathReport, round_trip_min: Duration, now: Duration) {
        let mut sum = PathSummary::default();
        sum.add(seen);
        let queued = seen.round_trip.as_secs_f64() > QUEUEING_FACTOR * round_trip_min.as_secs_f64();
        if round_trip_min < ROUND_TRIP_LONG_MIN || sum.bottleneck(false) != Some(Bottleneck::Network) {
            return;
        }
        if queued {
            // The next losses may be due to the full queue.
            return self.decide(Decision::Undecided);
        }
        let began = *self.observed_since.get_or_insert(now);
        if !self.slow_start_over && now.saturating_sub(began) >= SLOW_START_ROUND_TRIPS * round_trip_min {
            self.decide(Decision::Undecided);
            self.slow_start_over = true;
        }
        self.count(seen);
        if seen.retransmits > 0
            && (self.events == 0 || now >= self.last_event + LOSS_EVENT_ROUND_TRIPS * round_trip_min)
        {
            self.events += 1;
            self.last_event = now;
        }
        let hinders =
            self.reaches(&LOSS_EVENTS_HEAVY) || (self.slow_start_over && self.reaches(&LOSS_EVENTS_LIGHT));
        if hinders && self.segments >= DECISION_SEGMENTS_MIN && self.loss_share() <= LOSS_SHARE_MAX {
            self.decide(Decision::RateBased(now + RATE_BASED_DURATION));
        }
    }

    fn observe_rate_based(&mut self, seen: &PathReport, now: Duration) {
        self.count(seen);
        if self.segments < RATE_BASED_SEGMENTS_MIN {
            return;
        }
        let stand = if self.loss_share() > RATE_BASED_LOSS_SHARE_MAX {
            Decision::LossBased(now + LOSS_BASED_DURATION)
        } else {
            self.decision
        };
        self.decide(stand);
    }

    fn count(&mut self, seen: &PathReport) {
        if self.segments > DECAY_SEGMENTS {
            (self.segments, self.retransmits, self.events) =
                (self.segments / 2, self.retransmits / 2, self.events / 2);
        }
        self.segments = self.segments.saturating_add(seen.segments);
        self.retransmits = self.retransmits.saturating_add(seen.retransmits);
    }

    fn reaches(&self, least: &LossThreshold) -> bool {
        self.events >= least.events && f64::from(self.events) >= least.share * f64::from(self.segments)
    }

    fn loss_share(&self) -> f64 {
        f64::from(self.retransmits) / f64::from(self.segments.max(1))
    }

    fn decide(&mut self, stand: Decision) {
        let CongestionControlSelector { observed_since: began, slow_start_over: started, .. } = *self;
        *self = CongestionControlSelector {
            decision: stand,
            observed_since: began,
            slow_start_over: started,
            ..CongestionControlSelector::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);

    /// A report over a quarter of a second from a stream that was busy throughout.
    fn report(segments: u32, retransmits: u32, round_trip_ms: u64) -> PathReport {
        let (interval, round_trip) = (Duration::from_millis(250), Duration::from_millis(round_trip_ms));
        PathReport { interval, busy: interval, round_trip, segments, retransmits, ..PathReport::default() }
    }

    /// Four reports a second for a minute: the first after which BBR is selected.
    fn turns_rate_based_at(
        congestion: &mut CongestionControlSelector,
        each: impl Fn(u64) -> PathReport,
        min: Duration,
    ) -> Option<u64> {
        (0..240).find(|look| {
            congestion.observe(&each(*look), min, false, Duration::from_millis(250 * look));
            congestion.prefers_rate_based()
        })
    }

    #[test]
    fn losses_without_queueing_on_a_long_path_select_bbr() {
        let lossy = |look: u64| report(400, u32::from(look.is_multiple_of(2)), 101);
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), lossy, MIN), Some(2));
        // Windows overshoot one after the other; then one loss in 100,000 segments.
        let clean = |look: u64| match look {
            0..10 => report(4_000, 60, 101),
            _ => report(2_500, u32::from(look.is_multiple_of(40)), 101),
        };
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), clean, MIN), None);
        // Frequent losses long after slow start are detected as fast.
        let later = |look: u64| report(400, u32::from(look >= 40 && look.is_multiple_of(2)), 101);
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), later, MIN), Some(50));
        // One loss in 10,000 takes longer to detect.
        let some = |look: u64| report(1_250, u32::from(look.is_multiple_of(8)), 101);
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), some, MIN), Some(48));
        let after_an_hour =
            |look: u64| report(2_500, u32::from(look >= 14_400 && look.is_multiple_of(4)), 101);
        let mut congestion = CongestionControlSelector::default();
        let turned_at = (0..14_800).find(|look| {
            congestion.observe(&after_an_hour(*look), MIN, false, Duration::from_millis(250 * look));
            congestion.prefers_rate_based()
        });
        assert!(turned_at.is_some_and(|look| look < 14_400 + 120), "{turned_at:?}");
        // A short path, a clean one, and one that loses far too much.
        assert_eq!(
            turns_rate_based_at(&mut CongestionControlSelector::default(), lossy, Duration::from_millis(39)),
            None
        );
        assert_eq!(
            turns_rate_based_at(&mut CongestionControlSelector::default(), |_| report(400, 0, 101), MIN),
            None
        );
        assert_eq!(
            turns_rate_based_at(&mut CongestionControlSelector::default(), |_| report(400, 40, 101), MIN),
            None
        );
        // Every loss comes with queueing delay.
        let full = |look: u64| {
            report(400, u32::from(look.is_multiple_of(4)), if look.is_multiple_of(4) { 130 } else { 105 })
        };
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), full, MIN), None);
        // The receiver is the bottleneck.
        let held = |_| PathReport { receiver_limited: Duration::from_millis(200), ..report(400, 1, 101) };
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), held, MIN), None);
    }

    #[test]
    fn bbr_is_dropped_when_it_causes_losses_and_tried_again_later() {
        let mut congestion = CongestionControlSelector::default();
        assert!(turns_rate_based_at(&mut congestion, |_| report(400, 1, 101), MIN).is_some());
        let now = Duration::from_secs(60);
        // A stream that has not switched says nothing about BBR, and random losses of the path are not held
        // against it.
        (0..40).for_each(|_| congestion.observe(&report(4_000, 400, 101), MIN, false, now));
        (0..40).for_each(|_| congestion.observe(&report(4_000, 80, 101), MIN, true, now));
        assert!(congestion.prefers_rate_based());
        (0..2).for_each(|_| congestion.observe(&report(4_000, 400, 101), MIN, true, now));
        assert!(congestion.decision != Decision::Undecided && !congestion.prefers_rate_based());
        assert_eq!(
            turns_rate_based_at(&mut congestion, |_| report(400, 1, 101), MIN),
            None,
            "loss-based control is kept for a while"
        );
        congestion.observe(&report(400, 1, 101), MIN, false, now + LOSS_BASED_DURATION);
        assert_eq!(congestion.decision, Decision::Undecided);

        let mut refused = CongestionControlSelector::default();
        refused.rate_based_refused(now);
        assert!(!refused.prefers_rate_based() && refused.decision != Decision::Undecided);
    }

    #[test]
    fn the_decision_expires() {
        let mut congestion = CongestionControlSelector::default();
        assert!(turns_rate_based_at(&mut congestion, |_| report(400, 1, 101), MIN).is_some());
        congestion.observe(&report(400, 1, 101), MIN, true, RATE_BASED_DURATION + Duration::from_secs(60));
        assert_eq!(congestion.decision, Decision::Undecided);
    }
}
