//! One rate limit for all sessions of a direction: a token bucket whose tokens are divided by start-time fair
//! queueing (P. Goyal, H. M. Vin, H. Cheng, *Start-time Fair Queueing*, SIGCOMM 1996). Without it the session
//! that happens to be asked first after each refill takes all, and the others starve. Pure: time is an
//! argument.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::TokenBucket;

/// Burst of the rate limits: short enough that a chart of seconds shows the limit.
const BURST: Duration = Duration::from_millis(100);
/// A session that has not asked for so long waits no more. Waiting ones ask with every tick of the engine.
const BACKLOG_TTL: Duration = Duration::from_millis(200);
/// A session that has not asked for so long is forgotten: it has no credit or debt left that would matter.
const SESSION_TTL: Duration = Duration::from_secs(60);

/// A session, as a limiter knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionTag(u64);

pub(crate) struct RateLimiter {
    bucket: TokenBucket,
    bytes_per_s: Option<u64>,
    sessions: BTreeMap<SessionTag, SessionState>,
    last_tag: u64,
    /// The least start tag of the sessions that waited last: where one that returns begins.
    virtual_time: u64,
}

#[derive(Clone, Copy)]
struct SessionState {
    /// Start tag: bytes taken while others waited, in virtual time.
    start: u64,
    asked_at: Duration,
    /// Whether it asked and did not leave unused what it was offered.
    is_backlogged: bool,
}

impl SessionState {
    fn waits(&self, now: Duration) -> bool {
        self.is_backlogged && now.saturating_sub(self.asked_at) < BACKLOG_TTL
    }
}

impl RateLimiter {
    /// A limiter without a limit, until [`RateLimiter::set_rate`] sets one.
    pub(crate) fn unlimited() -> RateLimiter {
        RateLimiter {
            bucket: TokenBucket::unlimited(BURST),
            bytes_per_s: None,
            sessions: BTreeMap::new(),
            last_tag: 0,
            virtual_time: 0,
        }
    }

    /// Changes the rate; none means unlimited.
    pub(crate) fn set_rate(&mut self, bytes_per_s: Option<u64>, now: Duration) {
        self.bucket.set_rate(bytes_per_s, now);
        self.bytes_per_s = bytes_per_s;
        self.sessions.clear();
    }

    /// The tag of a new session.
    pub(crate) fn add_session(&mut self) -> SessionTag {
        self.last_tag += 1;
        SessionTag(self.last_tag)
    }

    /// Bytes that a session may request now: none while it is another one's turn. The last item may exceed
    /// them; [`RateLimiter::take`] says what became of them.
    pub(crate) fn allowance(&mut self, session: SessionTag, now: Duration) -> u64 {
        let Some(bytes_per_s) = self.bytes_per_s else { return u64::MAX };
        let available = self.bucket.available(now);
        self.sessions.retain(|_, state| now.saturating_sub(state.asked_at) < SESSION_TTL);
        let others = self.sessions.iter().filter(|(tag, state)| **tag != session && state.waits(now));
        let least = others.map(|(_, state)| state.start).min();
        let virtual_time = self.virtual_time;
        let state = self.sessions.entry(session).or_insert(SessionState {
            start: virtual_time,
            asked_at: now,
            is_backlogged: false,
        });
        if !state.waits(now) {
            state.start = state.start.max(virtual_time);
        }
        (state.asked_at, state.is_backlogged) = (now, true);
        let start = state.start;
        self.virtual_time = virtual_time.max(least.map_or(start, |least| least.min(start)));
        let Some(least) = least else { return available };
        // Whoever is ahead by more than one burst waits for the others.
        let lead_max = (bytes_per_s as f64 * BURST.as_secs_f64()) as u64;
        match least.saturating_add(lead_max).checked_sub(start) {
            Some(room) => available.min(room.max(1)),
            None => 0,
        }
    }

    /// Records what a session took of its allowance. One that leaves it unused does not wait: others go on.
    pub(crate) fn take(&mut self, session: SessionTag, allowance: u64, taken: u64) {
        self.bucket.consume(taken);
        if let Some(state) = self.sessions.get_mut(&session) {
            state.start = state.start.saturating_add(taken);
            state.is_backlogged = taken > 0 || allowance == 0;
        }
    }

    /// Returns bytes that a session took and that were not sent. They go to whoever is next: its turn is
    /// over, or a session that sends nothing would hold up those that do.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.bucket.refund(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_millis(20);

    /// A session of a test: what it wants at each tick, and in pieces of which size.
    struct Demand {
        tag: SessionTag,
        piece: u64,
        wants: bool,
        taken: u64,
    }

    impl Demand {
        fn take_turn(&mut self, limiter: &mut RateLimiter, now: Duration) {
            let allowance = limiter.allowance(self.tag, now);
            let mut taken = 0;
            while self.wants && taken < allowance {
                taken += self.piece;
            }
            limiter.take(self.tag, allowance, taken);
            self.taken += taken;
        }
    }

    fn limiter(bytes_per_s: u64, pieces: &[u64]) -> (RateLimiter, Vec<Demand>) {
        let mut limiter = RateLimiter::unlimited();
        limiter.set_rate(Some(bytes_per_s), Duration::ZERO);
        let demands = pieces
            .iter()
            .map(|&piece| Demand { tag: limiter.add_session(), piece, wants: true, taken: 0 })
            .collect();
        (limiter, demands)
    }

    /// Asks all sessions in the same order at each tick, as the engine does.
    fn run(limiter: &mut RateLimiter, demands: &mut [Demand], from: Duration, seconds: u64) -> Duration {
        let mut now = from;
        while now < from + Duration::from_secs(seconds) {
            demands.iter_mut().for_each(|demand| demand.take_turn(limiter, now));
            now += TICK;
        }
        now
    }

    #[test]
    fn no_session_starves_when_a_chunk_costs_seconds_of_the_limit() {
        let (mut limiter, mut demands) = limiter(2_000_000, &[4 << 20, 4 << 20]);
        run(&mut limiter, &mut demands, Duration::ZERO, 60);
        let taken: Vec<u64> = demands.iter().map(|demand| demand.taken / (4 << 20)).collect();
        assert!(taken[0].abs_diff(taken[1]) <= 1 && taken[0] > 12, "{taken:?}");
    }

    #[test]
    fn a_session_that_uses_nothing_delays_nobody() {
        let (mut limiter, mut demands) = limiter(2_000_000, &[100_000, 100_000]);
        demands[1].wants = false;
        run(&mut limiter, &mut demands, Duration::ZERO, 60);
        assert!(demands[0].taken >= 115_000_000, "{}", demands[0].taken);
    }

    #[test]
    fn a_session_that_returns_gets_its_share_and_no_arrears() {
        let (mut limiter, mut demands) = limiter(10_000_000, &[100_000, 100_000]);
        demands[1].wants = false;
        let now = run(&mut limiter, &mut demands, Duration::ZERO, 600);
        demands[1].wants = true;
        let before = demands[0].taken;
        run(&mut limiter, &mut demands, now, 60);
        let (first, second) = (demands[0].taken - before, demands[1].taken);
        assert!(first.abs_diff(second) <= 2_000_000, "{first} and {second}");
    }

    #[test]
    fn a_session_that_asks_no_more_is_not_waited_for() {
        let (mut limiter, mut demands) = limiter(10_000_000, &[100_000, 100_000]);
        let now = run(&mut limiter, &mut demands, Duration::ZERO, 10);
        let before = demands[0].taken;
        run(&mut limiter, &mut demands[..1], now, 60);
        assert!(demands[0].taken - before >= 590_000_000, "{}", demands[0].taken - before);
    }

    /// Each takes a piece when the limit allows it, and all that the first takes comes back.
    #[test]
    fn what_was_not_sent_is_left_for_others_and_gives_no_precedence() {
        let (mut limiter, mut demands) = limiter(2_000_000, &[1 << 20, 1 << 20]);
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(60) {
            let before = demands[0].taken;
            demands[0].take_turn(&mut limiter, now);
            limiter.refund(demands[0].taken - before);
            demands[1].take_turn(&mut limiter, now);
            now += TICK;
        }
        let (unsent, sent) = (demands[0].taken, demands[1].taken);
        assert!(sent >= 115_000_000 && unsent.abs_diff(sent) <= 2 << 20, "{unsent} and {sent}");
    }

    #[test]
    fn a_session_alone_is_not_held_up_by_what_was_not_sent() {
        let (mut limiter, mut demands) = limiter(2_000_000, &[1 << 20]);
        let ticks = 50u32;
        for tick in 0..ticks {
            let before = demands[0].taken;
            demands[0].take_turn(&mut limiter, TICK * tick);
            limiter.refund(demands[0].taken - before);
        }
        assert!(demands[0].taken >= u64::from(ticks - 1) << 20, "{}", demands[0].taken);
    }

    #[test]
    fn without_a_limit_nobody_waits_and_nothing_is_remembered() {
        let mut limiter = RateLimiter::unlimited();
        let tag = limiter.add_session();
        assert_eq!(limiter.allowance(tag, TICK), u64::MAX);
        limiter.take(tag, u64::MAX, u64::MAX);
        assert!(limiter.sessions.is_empty());
    }

    proptest! {
        /// The limit holds over the whole time, nothing of it is lost, and all that want it get the same.
        #[test]
        fn the_limit_is_used_in_full_and_divided_evenly(
            rate in 1_000_000u64..1_000_000_000,
            pieces in proptest::collection::vec(1_000u64..4_194_304, 1..8),
        ) {
            let (mut limiter, mut demands) = limiter(rate, &pieces);
            run(&mut limiter, &mut demands, Duration::ZERO, 100);
            let total: u64 = demands.iter().map(|demand| demand.taken).sum();
            let largest = pieces.iter().copied().max().unwrap_or(0);
            let slack = rate / 5 + 2 * largest;
            prop_assert!(total.abs_diff(100 * rate) <= slack + rate, "{total} of {}", 100 * rate);
            let (least, most) = (
                demands.iter().map(|demand| demand.taken).min().unwrap_or(0),
                demands.iter().map(|demand| demand.taken).max().unwrap_or(0),
            );
            prop_assert!(most - least <= 2 * slack, "{least} to {most}");
        }
    }
}
