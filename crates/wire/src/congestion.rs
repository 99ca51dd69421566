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

use crate::path::{Limit, PathReport, Sum};

/// On shorter paths a window has grown again soon after a loss.
const FAR: Duration = Duration::from_millis(40);
/// A round trip longer than the shortest by this factor has waited in a queue.
const QUEUED: f64 = 1.15;
/// Losses apart for each segment from which on they hinder, and how many of them tell: many losses are plain
/// soon, ...
const HINDERS_MUCH: Least = Least { share: 5e-4, events: 2 };
/// ... few take longer. Not while windows open for the first time: they overshoot, one stream after the
/// other, and that says nothing.
const HINDERS: Least = Least { share: 5e-5, events: 6 };
/// So many round trips it takes until all have.
const START_ROUND_TRIPS: u32 = 15;
/// Share of segments sent again: more is a path that is full or broken.
const LOSS_MOST: f64 = 2e-2;
/// What the streams may lose by rate and round trip.
const LOSS_ENDS: f64 = 4e-2;
/// Segments before they say something.
const TELLING_SEGMENTS: u32 = 300;
/// What is lost within so many round trips is one event: so long a window that overshot takes to be mended.
const EVENT_ROUND_TRIPS: u32 = 4;
/// More segments than this halve what was counted before: a path that was good for an hour may have become
/// bad.
const REMEMBERED_SEGMENTS: u32 = 200_000;
/// Segments after which the loss of the other law says something.
const ENDING_SEGMENTS: u32 = 5_000;
/// Routes change: what was found holds for so long.
const HOLDS: Duration = Duration::from_secs(600);
/// After it was given up.
const RESTS: Duration = Duration::from_secs(3_600);

struct Least {
    share: f64,
    events: u32,
}

/// Of the streams to one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Congestion {
    stand: Stand,
    began: Option<Duration>,
    started: bool,
    segments: u32,
    retransmits: u32,
    events: u32,
    last_event: Duration,
}

/// Which law the streams go by, and until when that is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    #[default]
    Open,
    ByRate(Duration),
    ByLoss(Duration),
}

impl Congestion {
    /// What one stream saw since its last look, and its shortest round trip of late.
    pub fn look(&mut self, seen: &PathReport, round_trip_min: Duration, by_rate: bool, now: Duration) {
        match self.stand {
            Stand::ByRate(until) | Stand::ByLoss(until) if now >= until => *self = Congestion::default(),
            // A stream that goes by another law yet says nothing of this one.
            Stand::ByRate(_) if by_rate => self.look_by_rate(seen, now),
            Stand::Open => self.look_by_loss(seen, round_trip_min, now),
            Stand::ByRate(_) | Stand::ByLoss(_) => {}
        }
    }

    /// Whether the streams are to go by rate and round trip.
    pub fn wants_rate(&self) -> bool {
        matches!(self.stand, Stand::ByRate(_))
    }

    /// The kernel does not let us.
    pub fn refused(&mut self, now: Duration) {
        self.settle(Stand::ByLoss(now + RESTS));
    }

    fn look_by_loss(&mut self, seen: &PathReport, round_trip_min: Duration, now: Duration) {
        let mut sum = Sum::default();
        sum.add(seen);
        let queued = seen.round_trip.as_secs_f64() > QUEUED * round_trip_min.as_secs_f64();
        if round_trip_min < FAR || sum.limit(false) != Some(Limit::Network) {
            return;
        }
        if queued {
            // What is lost next may be for want of room.
            return self.settle(Stand::Open);
        }
        let began = *self.began.get_or_insert(now);
        if !self.started && now.saturating_sub(began) >= START_ROUND_TRIPS * round_trip_min {
            self.settle(Stand::Open);
            self.started = true;
        }
        self.count(seen);
        if seen.retransmits > 0
            && (self.events == 0 || now >= self.last_event + EVENT_ROUND_TRIPS * round_trip_min)
        {
            self.events += 1;
            self.last_event = now;
        }
        let hinders = self.reach(&HINDERS_MUCH) || (self.started && self.reach(&HINDERS));
        if hinders && self.segments >= TELLING_SEGMENTS && self.loss() <= LOSS_MOST {
            self.settle(Stand::ByRate(now + HOLDS));
        }
    }

    fn look_by_rate(&mut self, seen: &PathReport, now: Duration) {
        self.count(seen);
        if self.segments < ENDING_SEGMENTS {
            return;
        }
        let stand = if self.loss() > LOSS_ENDS { Stand::ByLoss(now + RESTS) } else { self.stand };
        self.settle(stand);
    }

    fn count(&mut self, seen: &PathReport) {
        if self.segments > REMEMBERED_SEGMENTS {
            (self.segments, self.retransmits, self.events) =
                (self.segments / 2, self.retransmits / 2, self.events / 2);
        }
        self.segments = self.segments.saturating_add(seen.segments);
        self.retransmits = self.retransmits.saturating_add(seen.retransmits);
    }

    fn reach(&self, least: &Least) -> bool {
        self.events >= least.events && f64::from(self.events) >= least.share * f64::from(self.segments)
    }

    fn loss(&self) -> f64 {
        f64::from(self.retransmits) / f64::from(self.segments.max(1))
    }

    fn settle(&mut self, stand: Stand) {
        let Congestion { began, started, .. } = *self;
        *self = Congestion { stand, began, started, ..Congestion::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);

    /// A quarter of a second of a stream that is busy all the time.
    fn seen(segments: u32, retransmits: u32, round_trip_ms: u64) -> PathReport {
        let (interval, round_trip) = (Duration::from_millis(250), Duration::from_millis(round_trip_ms));
        PathReport { interval, busy: interval, round_trip, segments, retransmits, ..PathReport::default() }
    }

    /// Looks four times a second; when it went by rate, if ever within a minute.
    fn turned(congestion: &mut Congestion, each: impl Fn(u64) -> PathReport, min: Duration) -> Option<u64> {
        (0..240).find(|look| {
            congestion.look(&each(*look), min, false, Duration::from_millis(250 * look));
            congestion.wants_rate()
        })
    }

    #[test]
    fn losses_without_a_queue_on_a_long_path_turn_it() {
        let lossy = |look: u64| seen(400, u32::from(look.is_multiple_of(2)), 101);
        assert_eq!(turned(&mut Congestion::default(), lossy, MIN), Some(2));
        // Windows that overshoot, one after the other; then a loss among 100,000 segments.
        let clean = |look: u64| match look {
            0..10 => seen(4_000, 60, 101),
            _ => seen(2_500, u32::from(look.is_multiple_of(40)), 101),
        };
        assert_eq!(turned(&mut Congestion::default(), clean, MIN), None);
        // Many losses that begin when windows have long been open are as plain.
        let later = |look: u64| seen(400, u32::from(look >= 40 && look.is_multiple_of(2)), 101);
        assert_eq!(turned(&mut Congestion::default(), later, MIN), Some(50));
        // One among 10,000 hinders where the path could carry ten times as much, which only time can tell.
        let some = |look: u64| seen(1_250, u32::from(look.is_multiple_of(8)), 101);
        assert_eq!(turned(&mut Congestion::default(), some, MIN), Some(48));
        let after_an_hour = |look: u64| seen(2_500, u32::from(look >= 14_400 && look.is_multiple_of(4)), 101);
        let mut congestion = Congestion::default();
        let turned_at = (0..14_800).find(|look| {
            congestion.look(&after_an_hour(*look), MIN, false, Duration::from_millis(250 * look));
            congestion.wants_rate()
        });
        assert!(turned_at.is_some_and(|look| look < 14_400 + 120), "{turned_at:?}");
        // Near, clean, or far too much.
        assert_eq!(turned(&mut Congestion::default(), lossy, Duration::from_millis(39)), None);
        assert_eq!(turned(&mut Congestion::default(), |_| seen(400, 0, 101), MIN), None);
        assert_eq!(turned(&mut Congestion::default(), |_| seen(400, 40, 101), MIN), None);
        // The queue is full whenever something is lost.
        let full = |look: u64| {
            seen(400, u32::from(look.is_multiple_of(4)), if look.is_multiple_of(4) { 130 } else { 105 })
        };
        assert_eq!(turned(&mut Congestion::default(), full, MIN), None);
        // The receiver holds it up.
        let held = |_| PathReport { receiver_limited: Duration::from_millis(200), ..seen(400, 1, 101) };
        assert_eq!(turned(&mut Congestion::default(), held, MIN), None);
    }

    #[test]
    fn it_turns_back_where_it_brings_losses_and_asks_again_when_things_may_have_changed() {
        let mut congestion = Congestion::default();
        assert!(turned(&mut congestion, |_| seen(400, 1, 101), MIN).is_some());
        let now = Duration::from_secs(60);
        // A stream that has not turned yet says nothing of it, and losses of the path itself are none of its
        // own.
        (0..40).for_each(|_| congestion.look(&seen(4_000, 400, 101), MIN, false, now));
        (0..40).for_each(|_| congestion.look(&seen(4_000, 80, 101), MIN, true, now));
        assert!(congestion.wants_rate());
        (0..2).for_each(|_| congestion.look(&seen(4_000, 400, 101), MIN, true, now));
        assert!(congestion.stand != Stand::Open && !congestion.wants_rate());
        assert_eq!(turned(&mut congestion, |_| seen(400, 1, 101), MIN), None, "it rests");
        congestion.look(&seen(400, 1, 101), MIN, false, now + RESTS);
        assert_eq!(congestion.stand, Stand::Open);

        let mut refused = Congestion::default();
        refused.refused(now);
        assert!(!refused.wants_rate() && refused.stand != Stand::Open);
    }

    #[test]
    fn what_was_found_does_not_hold_for_ever() {
        let mut congestion = Congestion::default();
        assert!(turned(&mut congestion, |_| seen(400, 1, 101), MIN).is_some());
        congestion.look(&seen(400, 1, 101), MIN, true, HOLDS + Duration::from_secs(60));
        assert_eq!(congestion.stand, Stand::Open);
    }
}
