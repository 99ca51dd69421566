//! A clock for lengths within a process that still shows the time of day: it never steps, and follows the
//! wall clock by slewing, as adjtime(3) does. Pure: both clocks that it reads are arguments.
//!
//! The wall clock of a host is stepped by people, by NTP after a long absence, and with virtual machines. A
//! limit, throttle, lease or forecast that took the difference of two of its times would be wrong by the
//! step.

use std::time::Duration;

use crate::Timestamp;

/// The clock runs at most this share faster or slower than time while it follows the wall clock: lengths are
/// measured to a tenth, a minute is made up for in ten minutes and three hours in thirty.
const SLEW_DIVISOR: i64 = 10;
/// The clock begins a new segment this often at most, so that shares of short times are not rounded away.
const SEGMENT: Duration = Duration::from_millis(50);
/// A difference from the wall clock that is worth a word.
const STEP_NOTED: Duration = Duration::from_secs(1);

/// Shows times that never go back, and whose differences are lengths of time.
#[derive(Clone, Debug)]
pub struct SteadyClock {
    /// What was shown when the segment began, and what the monotonic clock showed then.
    begin: (Timestamp, Duration),
    last: Timestamp,
    /// How far the wall clock was ahead (in microseconds) when this was last told.
    told: i64,
}

/// What a reading came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyReading {
    /// What the clock shows.
    pub now: Timestamp,
    /// The wall clock was stepped: how far it is ahead of this clock now, in microseconds; negative: behind.
    pub stepped_us: Option<i64>,
}

impl SteadyClock {
    /// Shows the wall clock's time at first.
    pub fn start(wall: Timestamp, monotonic: Duration) -> SteadyClock {
        SteadyClock { begin: (wall, monotonic), last: wall, told: 0 }
    }

    /// `monotonic` never steps; it is measured from any fixed start.
    pub fn read(&mut self, wall: Timestamp, monotonic: Duration) -> SteadyReading {
        let (begin, from) = self.begin;
        let elapsed = monotonic.saturating_sub(from);
        let elapsed_us = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
        let unslewed = begin.0.saturating_add(elapsed_us);
        let slew_max = elapsed_us / SLEW_DIVISOR;
        let slewed = unslewed.saturating_add(wall.0.saturating_sub(unslewed).clamp(-slew_max, slew_max));
        // Within a segment the wall clock may have been stepped back.
        self.last = self.last.max(Timestamp(slewed));
        if elapsed >= SEGMENT {
            self.begin = (self.last, monotonic);
        }
        SteadyReading { now: self.last, stepped_us: self.note_step(wall) }
    }

    /// Tells a step once; what remains of it while it is made up for is no other step.
    fn note_step(&mut self, wall: Timestamp) -> Option<i64> {
        let ahead = wall.0.saturating_sub(self.last.0);
        let noted = i64::try_from(STEP_NOTED.as_micros()).unwrap_or(i64::MAX);
        let is_step = ahead.saturating_sub(self.told).saturating_abs() >= noted;
        let is_follow =
            ahead.saturating_abs() < self.told.saturating_abs() && ahead.signum() * self.told.signum() >= 0;
        if is_step || is_follow {
            self.told = ahead;
        }
        (is_step && !is_follow).then_some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenBucket;
    use proptest::prelude::*;

    const START: Timestamp = Timestamp(1_763_717_531_000_000);
    const MINUTE: i64 = 60;
    const THREE_HOURS: i64 = 3 * 3_600;
    const STEPS_S: [i64; 4] = [-MINUTE, MINUTE, -THREE_HOURS, THREE_HOURS];

    fn wall(after: Duration, stepped_s: i64) -> Timestamp {
        Timestamp(START.plus(after).0 + stepped_s * 1_000_000)
    }

    /// What the clock shows of `length` after the wall clock was stepped by `stepped_s`.
    fn shown(stepped_s: i64, length: Duration) -> Duration {
        let mut clock = SteadyClock::start(START, Duration::ZERO);
        let before = clock.read(wall(Duration::from_secs(5), 0), Duration::from_secs(5)).now;
        let after = Duration::from_secs(5) + length;
        clock.read(wall(after, stepped_s), after).now.since(before)
    }

    #[test]
    fn a_length_is_right_to_a_tenth_whatever_the_step() {
        for stepped_s in STEPS_S {
            for length in [Duration::from_millis(20), Duration::from_secs(1), Duration::from_secs(7_200)] {
                let (least, most) = (length * 9 / 10, length * 11 / 10);
                let shown = shown(stepped_s, length);
                assert!((least..=most).contains(&shown), "{stepped_s} s, {length:?}: {shown:?}");
            }
        }
        assert_eq!(shown(0, Duration::from_secs(86_400)), Duration::from_secs(86_400), "no step, no slew");
    }

    #[test]
    fn a_step_is_made_up_for_in_ten_times_its_length_and_told_once() {
        for stepped_s in STEPS_S {
            let mut clock = SteadyClock::start(START, Duration::ZERO);
            let mut told = Vec::new();
            let mut agrees = None;
            for second in 1..=200_000u64 {
                let after = Duration::from_secs(second);
                let wall = wall(after, stepped_s);
                let reading = clock.read(wall, after);
                told.extend(reading.stepped_us);
                if reading.now == wall && agrees.is_none() {
                    agrees = Some(second);
                }
            }
            assert_eq!(agrees, Some(stepped_s.unsigned_abs() * 10), "{stepped_s} s");
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].signum(), stepped_s.signum());
        }
    }

    #[test]
    fn two_steps_are_two_steps() {
        let mut clock = SteadyClock::start(START, Duration::ZERO);
        let mut at = |second: u64, stepped_s: i64| {
            let after = Duration::from_secs(second);
            clock.read(wall(after, stepped_s), after).stepped_us.map(|us| us / 1_000_000)
        };
        assert_eq!((at(1, 0), at(2, 100), at(3, 100)), (None, Some(99), None));
        assert_eq!((at(4, 300), at(5, 300)), (Some(299), None));
        assert_eq!((at(6, -300), at(7, -300)), (Some(-300), None));
    }

    /// Set back by three hours, a service refused everybody for three hours; set forward, limits and leases
    /// were over at once.
    #[test]
    fn a_rate_limit_neither_locks_out_nor_opens_at_a_step() {
        for stepped_s in STEPS_S {
            let mut clock = SteadyClock::start(START, Duration::ZERO);
            let mut bucket =
                TokenBucket::full(Some(10), Duration::from_secs(2), START.since(Timestamp::ZERO));
            let mut passed = 0;
            for tick in 1..=10_000u64 {
                let after = Duration::from_millis(tick * 10);
                let now = clock.read(wall(after, if tick > 100 { stepped_s } else { 0 }), after).now;
                if bucket.wait_for(1, now.since(Timestamp::ZERO)).is_zero() {
                    bucket.consume(1);
                    passed += 1;
                }
            }
            assert!((900..=1_140).contains(&passed), "{stepped_s} s: {passed} in 100 s");
        }
    }

    /// Set forward by three hours, a service let 127 leases expire that had begun a moment before.
    #[test]
    fn a_lease_or_session_lasts_its_length_at_any_step() {
        for stepped_s in STEPS_S {
            for length_s in [600, 8 * 3_600] {
                let mut clock = SteadyClock::start(START, Duration::ZERO);
                let until = START + Duration::from_secs(length_s);
                let over = (1..).find(|&second: &u64| {
                    let after = Duration::from_secs(second);
                    clock.read(wall(after, if second > 10 { stepped_s } else { 0 }), after).now >= until
                });
                let (least, most) = (length_s * 9 / 10, length_s * 10 / 9 + 10);
                assert!(over.is_some_and(|over| (least..=most).contains(&over)), "{stepped_s} s: {over:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn it_never_goes_back_and_never_runs_away(
            reads in proptest::collection::vec((0u64..5_000_000, -20_000_000_000i64..20_000_000_000), 1..300),
        ) {
            let mut clock = SteadyClock::start(START, Duration::ZERO);
            let (mut elapsed_us, mut last) = (0, START);
            for (step_us, wall_us) in reads {
                elapsed_us += step_us;
                let now = clock.read(Timestamp(START.0 + wall_us), Duration::from_micros(elapsed_us)).now;
                prop_assert!(now >= last);
                let most = i64::try_from(elapsed_us).unwrap() * 11 / 10 + 1;
                prop_assert!(now.0 - START.0 <= most);
                last = now;
            }
        }
    }
}
