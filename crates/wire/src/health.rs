//! Whether the peer of a stream is alive: ask after a while of silence, give up after more of it. And when to
//! try again.

use std::time::Duration;

use crate::limits::{BUSY_PING_AFTER, BUSY_SILENCE_MAX, PING_AFTER, SILENCE_MAX};

/// How long to bear silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    pub ask_after: Duration,
    pub silence_max: Duration,
}

impl Patience {
    pub const RESTING: Patience = Patience { ask_after: PING_AFTER, silence_max: SILENCE_MAX };

    /// With a peer that owes us data. What is far away may take longer.
    pub fn busy(round_trip: Duration) -> Patience {
        let silence_max = BUSY_SILENCE_MAX.max(4 * round_trip).min(SILENCE_MAX);
        Patience { ask_after: BUSY_PING_AFTER, silence_max }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    Fine,
    /// Send a `Ping` with this number.
    Ask(u64),
    Dead,
}

#[derive(Clone, Copy, Debug)]
pub struct Health {
    heard: Duration,
    asked: Option<Duration>,
    number: u64,
}

impl Health {
    pub fn new(now: Duration) -> Self {
        Health { heard: now, asked: None, number: 0 }
    }

    /// Any byte from the peer counts.
    pub fn heard(&mut self, now: Duration) {
        self.heard = now;
        self.asked = None;
    }

    pub fn check(&mut self, patience: Patience, now: Duration) -> Pulse {
        let silent = now.saturating_sub(self.heard);
        if silent >= patience.silence_max {
            return Pulse::Dead;
        }
        let long_ago = |then| now.saturating_sub(then) >= patience.ask_after;
        if long_ago(self.heard) && self.asked.is_none_or(long_ago) {
            self.asked = Some(now);
            self.number += 1;
            return Pulse::Ask(self.number);
        }
        Pulse::Fine
    }
}

/// Waits between tries to connect; the last one repeats.
const BACK_OFF_MS: [u64; 6] = [0, 100, 300, 700, 1_500, 3_000];

/// How long to wait before the next try, after so many that failed in a row.
pub fn back_off(failures: usize) -> Duration {
    Duration::from_millis(BACK_OFF_MS[failures.min(BACK_OFF_MS.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_then_gives_up() {
        let at = Duration::from_secs;
        let mut health = Health::new(at(100));
        let check = |health: &mut Health, seconds| health.check(Patience::RESTING, at(seconds));
        assert_eq!(check(&mut health, 101), Pulse::Fine);
        assert_eq!(check(&mut health, 103), Pulse::Ask(1));
        assert_eq!(check(&mut health, 104), Pulse::Fine);
        assert_eq!(check(&mut health, 106), Pulse::Ask(2));
        health.heard(at(107));
        assert_eq!(check(&mut health, 108), Pulse::Fine);
        assert_eq!(check(&mut health, 116), Pulse::Dead);
        // Who owes us data is asked sooner, and farther peers are given more time.
        health.heard(at(200));
        assert_eq!(health.check(Patience::busy(Duration::ZERO), at(201)), Pulse::Ask(3));
        assert_eq!(health.check(Patience::busy(at(1)), at(203)), Pulse::Ask(4));
        assert_eq!(health.check(Patience::busy(at(1)), at(204)), Pulse::Dead);
        assert_eq!(health.check(Patience::busy(Duration::ZERO), at(202)), Pulse::Dead);
    }
}
