//! Keepalive: pings a silent peer and declares it dead if it stays silent (as TCP keepalive, RFC 9293 section
//! 3.8.4). Also the delays between attempts to reconnect (exponential backoff).

use std::time::Duration;

use crate::limits::{BUSY_PING_AFTER, BUSY_SILENCE_MAX, PING_AFTER, SILENCE_MAX};

/// How long a peer may be silent before it is pinged, and before it is declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveTimeouts {
    /// Silence after which the peer is pinged.
    pub ping_after: Duration,
    /// Silence after which the peer is dead; longer than `ping_after`.
    pub silence_max: Duration,
}

impl KeepaliveTimeouts {
    /// For a peer that owes us nothing.
    pub const IDLE: KeepaliveTimeouts =
        KeepaliveTimeouts { ping_after: PING_AFTER, silence_max: SILENCE_MAX };

    /// For a peer that owes us data. Distant ones are given longer.
    pub fn busy(round_trip: Duration) -> KeepaliveTimeouts {
        let silence_max = BUSY_SILENCE_MAX.max(4 * round_trip).min(SILENCE_MAX);
        KeepaliveTimeouts { ping_after: BUSY_PING_AFTER, silence_max }
    }
}

/// What to do about a silent peer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepaliveAction {
    /// Nothing: it was heard recently, or has time to answer.
    Wait,
    /// Send a `Ping` with this number.
    Ping(u64),
    /// The peer is dead: close the stream.
    Close,
}

/// State of the keepalive of one stream.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    received_at: Duration,
    pinged_at: Option<Duration>,
    pings: u64,
}

impl Keepalive {
    /// A peer that is alive at `now`.
    pub fn new(now: Duration) -> Self {
        Keepalive { received_at: now, pinged_at: None, pings: 0 }
    }

    /// Any byte from the peer proves that it is alive.
    pub fn note_received(&mut self, now: Duration) {
        self.received_at = now;
        self.pinged_at = None;
    }

    /// Call it several times a second.
    pub fn check(&mut self, timeouts: KeepaliveTimeouts, now: Duration) -> KeepaliveAction {
        let silent = now.saturating_sub(self.received_at);
        if silent >= timeouts.silence_max {
            return KeepaliveAction::Close;
        }
        let long_ago = |then| now.saturating_sub(then) >= timeouts.ping_after;
        if long_ago(self.received_at) && self.pinged_at.is_none_or(long_ago) {
            self.pinged_at = Some(now);
            self.pings += 1;
            return KeepaliveAction::Ping(self.pings);
        }
        KeepaliveAction::Wait
    }
}

/// Delays before successive attempts to connect; the last one repeats.
const RECONNECT_DELAYS_MS: [u64; 6] = [0, 100, 300, 700, 1_500, 3_000];

/// Delay before the next attempt, after this many consecutive failures.
pub fn reconnect_delay(failures: usize) -> Duration {
    Duration::from_millis(RECONNECT_DELAYS_MS[failures.min(RECONNECT_DELAYS_MS.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_then_closes() {
        let at = Duration::from_secs;
        let mut health = Keepalive::new(at(100));
        let check = |health: &mut Keepalive, seconds| health.check(KeepaliveTimeouts::IDLE, at(seconds));
        assert_eq!(check(&mut health, 101), KeepaliveAction::Wait);
        assert_eq!(check(&mut health, 103), KeepaliveAction::Ping(1));
        assert_eq!(check(&mut health, 104), KeepaliveAction::Wait);
        assert_eq!(check(&mut health, 106), KeepaliveAction::Ping(2));
        health.note_received(at(107));
        assert_eq!(check(&mut health, 108), KeepaliveAction::Wait);
        assert_eq!(check(&mut health, 116), KeepaliveAction::Close);
        // A peer that owes us data is pinged sooner, and distant peers are given longer.
        health.note_received(at(200));
        assert_eq!(health.check(KeepaliveTimeouts::busy(Duration::ZERO), at(201)), KeepaliveAction::Ping(3));
        assert_eq!(health.check(KeepaliveTimeouts::busy(at(1)), at(203)), KeepaliveAction::Ping(4));
        assert_eq!(health.check(KeepaliveTimeouts::busy(at(1)), at(204)), KeepaliveAction::Close);
        assert_eq!(health.check(KeepaliveTimeouts::busy(Duration::ZERO), at(202)), KeepaliveAction::Close);
    }
}
