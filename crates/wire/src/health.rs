//! Whether the peer of a stream is alive: ask after a while of silence, give up after more of it.

use std::time::Duration;

use crate::limits::{PING_AFTER, SILENCE_MAX};

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

    pub fn check(&mut self, now: Duration) -> Pulse {
        let silent = now.saturating_sub(self.heard);
        if silent >= SILENCE_MAX {
            return Pulse::Dead;
        }
        if silent >= PING_AFTER && self.asked.is_none_or(|asked| now.saturating_sub(asked) >= PING_AFTER) {
            self.asked = Some(now);
            self.number += 1;
            return Pulse::Ask(self.number);
        }
        Pulse::Fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_then_gives_up() {
        let at = Duration::from_secs;
        let mut health = Health::new(at(100));
        assert_eq!(health.check(at(101)), Pulse::Fine);
        assert_eq!(health.check(at(103)), Pulse::Ask(1));
        assert_eq!(health.check(at(104)), Pulse::Fine);
        assert_eq!(health.check(at(106)), Pulse::Ask(2));
        health.heard(at(107));
        assert_eq!(health.check(at(108)), Pulse::Fine);
        assert_eq!(health.check(at(116)), Pulse::Dead);
    }
}
