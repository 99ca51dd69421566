//! Keepalive: pings a silent peer and declares it dead if it stays silent (as TCP keepalive, RFC 9293 section
//! 3.8.4). Also the delays between attempts to reconnect (exponential backoff).

use std::time::Duration;

use crate::limits::{BUSY_PING_AFTER, BUSY_SILENCE_MAX, PING_AFTER, SILENCE_MAX};

/// How long a peer may be silent before it is pinged, and before it is declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveTimeouts {
    /// Silence after which the peer is pinged.
    pub ping_after: Duration,
    /// Silence after which a pinged peer is dead; longer than `ping_after`.
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

    /// Least time for the answer to a ping that was sent late, because this process stood still: half of what
    /// is left after one in time.
    fn answer_min(&self) -> Duration {
        self.silence_max.saturating_sub(self.ping_after) / 2
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
    /// The first ping since then.
    asked_at: Option<Duration>,
    /// The last ping since then.
    pinged_at: Option<Duration>,
    pings: u64,
}

impl Keepalive {
    /// A peer that is alive at `now`.
    pub fn new(now: Duration) -> Self {
        Keepalive { received_at: now, asked_at: None, pinged_at: None, pings: 0 }
    }

    /// Any byte from the peer proves that it is alive.
    pub fn note_received(&mut self, now: Duration) {
        self.received_at = now;
        (self.asked_at, self.pinged_at) = (None, None);
    }

    /// Call it several times a second. A peer that was not asked is not dead, however long nothing came.
    pub fn check(&mut self, timeouts: KeepaliveTimeouts, now: Duration) -> KeepaliveAction {
        let since = |then| now.saturating_sub(then);
        let had_time = self.asked_at.is_some_and(|asked| since(asked) >= timeouts.answer_min());
        if had_time && since(self.received_at) >= timeouts.silence_max {
            return KeepaliveAction::Close;
        }
        let long_ago = |then| since(then) >= timeouts.ping_after;
        if long_ago(self.received_at) && self.pinged_at.is_none_or(long_ago) {
            self.asked_at.get_or_insert(now);
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
        assert_eq!(check(&mut health, 110), KeepaliveAction::Ping(3));
        assert_eq!(check(&mut health, 113), KeepaliveAction::Ping(4));
        assert_eq!(check(&mut health, 115), KeepaliveAction::Wait);
        assert_eq!(check(&mut health, 116), KeepaliveAction::Close);
        // A peer that owes us data is pinged sooner, and distant peers are given longer.
        health.note_received(at(200));
        assert_eq!(health.check(KeepaliveTimeouts::busy(Duration::ZERO), at(201)), KeepaliveAction::Ping(5));
        assert_eq!(health.check(KeepaliveTimeouts::busy(at(1)), at(203)), KeepaliveAction::Ping(6));
        assert_eq!(health.check(KeepaliveTimeouts::busy(at(1)), at(204)), KeepaliveAction::Close);
        assert_eq!(health.check(KeepaliveTimeouts::busy(Duration::ZERO), at(202)), KeepaliveAction::Close);
    }

    /// As after a pause of this process, in which nobody looked whether something came.
    #[test]
    fn a_peer_that_was_not_asked_is_not_dead() {
        let at = Duration::from_millis;
        let mut health = Keepalive::new(at(0));
        let busy = KeepaliveTimeouts::busy(Duration::ZERO);
        assert_eq!(health.check(busy, at(5_000)), KeepaliveAction::Ping(1));
        assert_eq!(health.check(busy, at(5_200)), KeepaliveAction::Wait, "it has time to answer");
        let mut answered = health;
        answered.note_received(at(5_300));
        assert_eq!(answered.check(busy, at(5_600)), KeepaliveAction::Wait);
        assert_eq!(health.check(busy, at(5_600)), KeepaliveAction::Close);
        // A later ping gives it no more time than the first.
        health.note_received(at(10_000));
        for (now, action) in [(11_900, KeepaliveAction::Ping(2)), (12_300, KeepaliveAction::Wait)] {
            assert_eq!(health.check(busy, at(now)), action);
        }
        assert_eq!(health.check(busy, at(12_400)), KeepaliveAction::Close);
        assert_eq!(health.check(KeepaliveTimeouts::IDLE, at(14_900)), KeepaliveAction::Ping(3));
        assert_eq!(health.check(KeepaliveTimeouts::IDLE, at(18_900)), KeepaliveAction::Ping(4));
        assert_eq!(health.check(KeepaliveTimeouts::IDLE, at(19_000)), KeepaliveAction::Close);
    }
}
