//! Scavenger congestion control (less than best effort): a receive window that follows the queueing delay, so
//! that a stream yields to all other traffic.
//!
//! Akin to LEDBAT++ and rLEDBAT (RFC 6817, RFC 9840), run by the receiver: it works with whatever congestion
//! control the source uses. A round trip beyond the shortest recent one is queueing delay. The window keeps
//! our delay at a small target, far below what a person notices and what other traffic builds up by itself:
//! where others fill the queue, the window falls to next to nothing, and when they are gone, it recovers
//! within seconds.
//!
//! Not here: measuring round trips, and setting the window in the kernel. Start with [`Scavenger`].

use std::time::Duration;

/// Two segments: the least that keeps a stream alive.
pub const WINDOW_BYTES_MIN: u64 = 4 << 10;
/// More than any one stream needs.
pub const WINDOW_BYTES_MAX: u64 = 256 << 20;
/// Initial window.
const WINDOW_BYTES_INITIAL: f64 = (64 << 10) as f64;
/// Target queueing delay, as a share of the base round trip.
const TARGET_DELAY_SHARE: f64 = 1.0 / 8.0;
/// Lower bound of the target delay: less cannot be measured reliably.
const TARGET_DELAY_MIN: Duration = Duration::from_millis(3);
/// Upper bound of the target delay: more is noticeable to others.
const TARGET_DELAY_MAX: Duration = Duration::from_millis(15);
/// Part of the difference to the computed window that one step makes up.
const WINDOW_GAIN: f64 = 0.5;
/// Additive increase per round trip while there is no queue: makes several scavengers converge to equal
/// shares.
const ADDITIVE_INCREASE_BYTES: f64 = 3_000.0;
/// Slow start: growth per round trip until queueing is first seen.
const SLOW_START_GROWTH: f64 = 1.5;
/// Growth per round trip after a queue has drained: others have left, and capacity is free.
const RECOVERY_GROWTH: f64 = 1.25;
/// Consecutive steps without queueing that prove it.
const EMPTY_QUEUE_STEPS: u32 = 4;
/// The window counts as used if this share of it arrived within a round trip. An unused window must not grow.
const WINDOW_USED_SHARE_MIN: f64 = 0.6;
/// Up to this size a window counts as used as long as anything arrives: a few segments come in bursts and are
/// acknowledged late, and the window would stay small for good.
const WINDOW_BYTES_SMALL: f64 = (32 << 10) as f64;
/// Interval of the periodic slowdown, which gives most of the window up for a moment to measure the path
/// without our own queue.
const SLOWDOWN_INTERVAL: Duration = Duration::from_secs(20);
/// Share of the window that is kept during a slowdown.
const SLOWDOWN_SHARE: f64 = 0.25;
/// Duration of a slowdown, in round trips.
const SLOWDOWN_ROUND_TRIPS: u32 = 2;
/// Minimum interval between steps. Only the shortest round trip in between counts, since a busy processor at
/// either end delays some of them without any queue.
const STEP_INTERVAL_MIN: Duration = Duration::from_millis(60);
/// Slowdown periods over which the shortest round trip is remembered: paths change.
const BASE_DELAY_PERIODS: usize = 3;

/// The controller of one stream.
#[derive(Clone, Debug)]
pub struct Scavenger {
    window: f64,
    phase: Phase,
    base: BaseDelay,
    /// Shortest round trip since the last step.
    shortest: Option<Duration>,
    received: u64,
    stepped_at: Duration,
    slowdown_at: Duration,
}

/// Phase of the controller.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Multiplicative growth until queueing is seen, or up to a ceiling.
    SlowStart { ceiling: f64, growth: f64 },
    /// Holds the target delay.
    Steady { empty_queue_steps: u32 },
    /// Measures the path without our own queue.
    Slowdown { until: Duration, before: f64 },
}

/// Shortest round trip of each of the last periods.
#[derive(Clone, Copy, Debug)]
struct BaseDelay {
    periods: [Option<Duration>; BASE_DELAY_PERIODS],
}

impl BaseDelay {
    fn add(&mut self, sample: Duration) {
        let newest = &mut self.periods[0];
        *newest = Some(newest.map_or(sample, |known| known.min(sample)));
    }

    fn next_period(&mut self) {
        self.periods.rotate_right(1);
        self.periods[0] = None;
    }

    fn get(&self) -> Option<Duration> {
        self.periods.iter().flatten().min().copied()
    }
}

impl Scavenger {
    /// A controller in slow start.
    pub fn new(now: Duration) -> Scavenger {
        Scavenger {
            window: WINDOW_BYTES_INITIAL,
            phase: Phase::SlowStart { ceiling: f64::INFINITY, growth: SLOW_START_GROWTH },
            base: BaseDelay { periods: [None; BASE_DELAY_PERIODS] },
            shortest: None,
            received: 0,
            stepped_at: now,
            slowdown_at: now + SLOWDOWN_INTERVAL,
        }
    }

    /// Adds a round-trip sample.
    pub fn add_round_trip(&mut self, round_trip: Duration) {
        if round_trip.is_zero() {
            return;
        }
        self.base.add(round_trip);
        self.shortest = Some(self.shortest.map_or(round_trip, |known| known.min(round_trip)));
    }

    /// Counts bytes that arrived.
    pub fn add_received(&mut self, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
    }

    /// The window in bytes from now on. Call it several times per [`STEP_INTERVAL_MIN`].
    pub fn window(&mut self, now: Duration) -> u64 {
        if let (Some(base), Some(last)) = (self.base.get(), self.shortest) {
            let elapsed = now.saturating_sub(self.stepped_at);
            if elapsed >= last.max(STEP_INTERVAL_MIN) {
                self.step(base, last, elapsed, now);
                (self.shortest, self.received, self.stepped_at) = (None, 0, now);
            }
        }
        self.window = self.window.clamp(WINDOW_BYTES_MIN as f64, WINDOW_BYTES_MAX as f64);
        self.window as u64
    }

    fn step(&mut self, base: Duration, last: Duration, elapsed: Duration, now: Duration) {
        let target = base.mul_f64(TARGET_DELAY_SHARE).clamp(TARGET_DELAY_MIN, TARGET_DELAY_MAX).as_secs_f64();
        let (base, last_s) = (base.as_secs_f64(), last.as_secs_f64());
        let queue = last_s - base;
        let rate = self.received as f64 / elapsed.as_secs_f64();
        let used = rate * last_s >= WINDOW_USED_SHARE_MIN * self.window
            || (self.window <= WINDOW_BYTES_SMALL && self.received > 0);
        match self.phase {
            Phase::Slowdown { until, before } if now >= until => {
                // Grow back in steps: opened at once, the window would arrive as one burst.
                self.phase = Phase::SlowStart { ceiling: before, growth: SLOW_START_GROWTH };
            }
            Phase::Slowdown { .. } => {}
            _ if now >= self.slowdown_at => self.begin_slowdown(last, now),
            Phase::SlowStart { ceiling: most, growth } => {
                if queue > target {
                    self.phase = Phase::Steady { empty_queue_steps: 0 };
                    let carried = rate * (base + target);
                    self.window = self.window.min(carried.max(self.window / 4.0)).min(most);
                } else if used {
                    self.window = (self.window * growth).min(most);
                    if self.window >= most {
                        self.phase = Phase::Steady { empty_queue_steps: 0 };
                    }
                }
            }
            Phase::Steady { empty_queue_steps: calm } => {
                let factor = 1.0 - WINDOW_GAIN + WINDOW_GAIN * (base + target) / last_s;
                if factor < 1.0 {
                    self.window *= factor;
                } else if used {
                    let room = (1.0 - queue / target).max(0.0);
                    self.window = self.window * factor + ADDITIVE_INCREASE_BYTES * room;
                }
                let calm = if queue < target / 4.0 && used { calm + 1 } else { 0 };
                self.phase = match calm {
                    EMPTY_QUEUE_STEPS.. => {
                        Phase::SlowStart { ceiling: f64::INFINITY, growth: RECOVERY_GROWTH }
                    }
                    _ => Phase::Steady { empty_queue_steps: calm },
                };
            }
        }
    }

    fn begin_slowdown(&mut self, round_trip: Duration, now: Duration) {
        self.slowdown_at = now + SLOWDOWN_INTERVAL;
        self.base.next_period();
        let until = now + SLOWDOWN_ROUND_TRIPS * round_trip.max(STEP_INTERVAL_MIN);
        self.phase = Phase::Slowdown { until, before: self.window };
        self.window *= SLOWDOWN_SHARE;
    }
}

#[cfg(test)]
mod tests;
