//! When the streams to a peer give up a congestion control that takes every loss for a full queue.
//!
//! Reno and CUBIC take back their window at a loss, whatever lost it. On a long path that loses one segment
//! of ten thousand for other reasons they stay far below what it carries (Mathis 1997; RFC 9438). Such a loss
//! can be told from that of a full queue: the round trip is as short as ever. There the kernel's BBR takes
//! over, which goes by rate and round trip. It has to give way again if it brings losses of its own, as it
//! does where queues are shallow.
//!
//! All streams to one peer are looked at together, since losses are rare events. Time is an argument.

use std::time::Duration;

use crate::path::{Bottleneck, PathReport, PathSummary};

/// On shorter paths a window has grown again soon after a loss.
const ROUND_TRIP_LONG_MIN: Duration = Duration::from_millis(40);
/// A round trip longer than the shortest by this factor has waited in a queue.
const QUEUEING_FACTOR: f64 = 1.15;
/// Losses apart for each segment from which on they hinder, and how many of them tell: many losses are plain
/// soon, ...
const LOSS_EVENTS_HEAVY: LossThreshold = LossThreshold { share: 5e-4, events: 2 };
/// ... few take longer. Not while windows open for the first time: they overshoot, one stream after the
/// other, and that says nothing.
const LOSS_EVENTS_LIGHT: LossThreshold = LossThreshold { share: 5e-5, events: 6 };
/// So many round trips it takes until all have.
const SLOW_START_ROUND_TRIPS: u32 = 15;
/// Share of segments sent again: more is a path that is full or broken.
const LOSS_SHARE_MAX: f64 = 2e-2;
/// What the streams may lose by rate and round trip.
const RATE_BASED_LOSS_SHARE_MAX: f64 = 4e-2;
/// Segments before they say something.
const DECISION_SEGMENTS_MIN: u32 = 300;
/// What is lost within so many round trips is one event: so long a window that overshot takes to be mended.
const LOSS_EVENT_ROUND_TRIPS: u32 = 4;
/// More segments than this halve what was counted before: a path that was good for an hour may have become
/// bad.
const DECAY_SEGMENTS: u32 = 200_000;
/// Segments after which the loss of the other law says something.
const RATE_BASED_SEGMENTS_MIN: u32 = 5_000;
/// Routes change: what was found holds for so long.
const RATE_BASED_DURATION: Duration = Duration::from_secs(600);
/// After it was given up.
const LOSS_BASED_DURATION: Duration = Duration::from_secs(3_600);

struct LossThreshold {
    share: f64,
    events: u32,
}

/// Of the streams to one peer.
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

/// Which law the streams go by, and until when that is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Decision {
    #[default]
    Undecided,
    RateBased(Duration),
    LossBased(Duration),
}

impl CongestionControlSelector {
    /// What one stream saw since its last look, and its shortest round trip of late.
    pub fn observe(&mut self, seen: &PathReport, round_trip_min: Duration, by_rate: bool, now: Duration) {
        match self.decision {
            Decision::RateBased(until) | Decision::LossBased(until) if now >= until => {
                *self = CongestionControlSelector::default()
            }
            // A stream that goes by another law yet says nothing of this one.
            Decision::RateBased(_) if by_rate => self.observe_rate_based(seen, now),
            Decision::Undecided => self.observe_loss_based(seen, round_trip_min, now),
            Decision::RateBased(_) | Decision::LossBased(_) => {}
        }
    }

    /// Whether the streams are to go by rate and round trip.
    pub fn prefers_rate_based(&self) -> bool {
        matches!(self.decision, Decision::RateBased(_))
    }

    /// The kernel does not let us.
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
            // What is lost next may be for want of room.
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

    /// A quarter of a second of a stream that is busy all the time.
    fn report(segments: u32, retransmits: u32, round_trip_ms: u64) -> PathReport {
        let (interval, round_trip) = (Duration::from_millis(250), Duration::from_millis(round_trip_ms));
        PathReport { interval, busy: interval, round_trip, segments, retransmits, ..PathReport::default() }
    }

    /// Looks four times a second; when it went by rate, if ever within a minute.
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
        // Windows that overshoot, one after the other; then a loss among 100,000 segments.
        let clean = |look: u64| match look {
            0..10 => report(4_000, 60, 101),
            _ => report(2_500, u32::from(look.is_multiple_of(40)), 101),
        };
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), clean, MIN), None);
        // Many losses that begin when windows have long been open are as plain.
        let later = |look: u64| report(400, u32::from(look >= 40 && look.is_multiple_of(2)), 101);
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), later, MIN), Some(50));
        // One among 10,000 hinders where the path could carry ten times as much, which only time can tell.
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
        // Near, clean, or far too much.
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
        // The queue is full whenever something is lost.
        let full = |look: u64| {
            report(400, u32::from(look.is_multiple_of(4)), if look.is_multiple_of(4) { 130 } else { 105 })
        };
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), full, MIN), None);
        // The receiver holds it up.
        let held = |_| PathReport { receiver_limited: Duration::from_millis(200), ..report(400, 1, 101) };
        assert_eq!(turns_rate_based_at(&mut CongestionControlSelector::default(), held, MIN), None);
    }

    #[test]
    fn bbr_is_dropped_when_it_causes_losses_and_tried_again_later() {
        let mut congestion = CongestionControlSelector::default();
        assert!(turns_rate_based_at(&mut congestion, |_| report(400, 1, 101), MIN).is_some());
        let now = Duration::from_secs(60);
        // A stream that has not turned yet says nothing of it, and losses of the path itself are none of its
        // own.
        (0..40).for_each(|_| congestion.observe(&report(4_000, 400, 101), MIN, false, now));
        (0..40).for_each(|_| congestion.observe(&report(4_000, 80, 101), MIN, true, now));
        assert!(congestion.prefers_rate_based());
        (0..2).for_each(|_| congestion.observe(&report(4_000, 400, 101), MIN, true, now));
        assert!(congestion.decision != Decision::Undecided && !congestion.prefers_rate_based());
        assert_eq!(turns_rate_based_at(&mut congestion, |_| report(400, 1, 101), MIN), None, "it rests");
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
