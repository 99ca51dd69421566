//! Token bucket (J. Turner, *New Directions in Communications*, IEEE Communications Magazine, 1986): a rate
//! limit with a bounded burst. Pure: time is an argument, measured from any fixed start.

use std::time::Duration;

/// A bucket that may go into debt: the last item is never split, and its excess is paid off by waiting.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_s: Option<u64>,
    /// Time over which an idle bucket accumulates tokens.
    burst: Duration,
    /// Negative while it is in debt, which waiting pays off.
    tokens: f64,
    refilled_at: Duration,
}

impl TokenBucket {
    /// A bucket without a limit, until [`TokenBucket::set_rate`] sets one.
    pub fn unlimited(burst: Duration) -> Self {
        TokenBucket { per_s: None, burst, tokens: 0.0, refilled_at: Duration::ZERO }
    }

    /// A full bucket of `per_s` tokens a second; none means unlimited.
    pub fn full(per_s: Option<u64>, burst: Duration, now: Duration) -> Self {
        let mut bucket = TokenBucket { per_s, burst, tokens: 0.0, refilled_at: now };
        bucket.tokens = bucket.capacity();
        bucket
    }

    /// Changes the rate; none means unlimited. Accumulated tokens are dropped, a debt stays.
    pub fn set_rate(&mut self, per_s: Option<u64>, now: Duration) {
        self.refill(now);
        self.per_s = per_s;
        self.tokens = self.tokens.min(0.0);
    }

    /// Tokens that may be consumed now; `u64::MAX` without a limit.
    pub fn available(&mut self, now: Duration) -> u64 {
        match self.per_s {
            None => u64::MAX,
            Some(_) => {
                self.refill(now);
                self.tokens.max(0.0) as u64
            }
        }
    }

    /// Whether the bucket has been idle long enough to be forgotten.
    pub fn is_full(&mut self, now: Duration) -> bool {
        self.refill(now);
        self.tokens >= self.capacity()
    }

    /// Consumes tokens. The last item may take more than are available.
    pub fn consume(&mut self, tokens: u64) {
        if self.per_s.is_some() {
            self.tokens -= tokens as f64;
        }
    }

    /// Returns tokens that were consumed for nothing. A full bucket takes no more.
    pub fn refund(&mut self, tokens: u64) {
        if self.per_s.is_some() {
            self.tokens = (self.tokens + tokens as f64).min(self.capacity());
        }
    }

    /// Time until this many tokens are available.
    pub fn wait_for(&mut self, tokens: u64, now: Duration) -> Duration {
        let Some(per_s) = self.per_s else { return Duration::ZERO };
        self.refill(now);
        Duration::from_secs_f64((tokens as f64 - self.tokens).max(0.0) / per_s.max(1) as f64)
    }

    /// Consumes tokens whether available or not, and returns the time until the debt is paid off. Concurrent
    /// callers queue up: each waits for those before it.
    pub fn reserve(&mut self, tokens: u64, now: Duration) -> Duration {
        self.refill(now);
        self.consume(tokens);
        self.wait_for(0, now)
    }

    fn capacity(&self) -> f64 {
        (self.per_s.unwrap_or(0) as f64 * self.burst.as_secs_f64()).max(1.0)
    }

    /// A clock that stepped back adds nothing.
    fn refill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.refilled_at).as_secs_f64();
        self.refilled_at = now;
        if let Some(per_s) = self.per_s {
            self.tokens = (self.tokens + per_s as f64 * elapsed).min(self.capacity());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BURST: Duration = Duration::from_millis(100);

    #[test]
    fn an_unlimited_bucket_never_runs_out() {
        let mut bucket = TokenBucket::unlimited(BURST);
        assert_eq!(bucket.available(Duration::ZERO), u64::MAX);
        assert_eq!(bucket.reserve(u64::MAX, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_bucket_says_how_long_to_wait() {
        let mut bucket = TokenBucket::full(Some(100), Duration::from_secs(2), Duration::ZERO);
        assert!(bucket.is_full(Duration::ZERO));
        assert_eq!(bucket.wait_for(200, Duration::ZERO), Duration::ZERO);
        bucket.consume(200);
        assert_eq!(bucket.wait_for(1, Duration::ZERO), Duration::from_millis(10));
        assert!(!bucket.is_full(Duration::from_secs(1)) && bucket.is_full(Duration::from_secs(2)));
    }

    #[test]
    fn a_refund_pays_a_debt_and_never_exceeds_the_burst() {
        let mut bucket = TokenBucket::full(Some(100), Duration::from_secs(2), Duration::ZERO);
        bucket.consume(500);
        assert_eq!(bucket.wait_for(0, Duration::ZERO), Duration::from_secs(3));
        bucket.refund(400);
        assert_eq!(bucket.available(Duration::ZERO), 100);
        bucket.refund(400);
        assert_eq!(bucket.available(Duration::ZERO), 200);
        let mut unlimited = TokenBucket::unlimited(BURST);
        unlimited.refund(u64::MAX);
        assert_eq!(unlimited.available(Duration::ZERO), u64::MAX);
    }

    proptest! {
        /// Promise 8: over any time no more than the limit, one burst and one piece pass.
        #[test]
        fn the_rate_limit_holds_over_any_interval(
            rate in 1_000u64..10_000_000,
            steps in proptest::collection::vec(0u64..50_000, 1..200),
            piece in 1u64..1_000_000,
        ) {
            let mut bucket = TokenBucket::unlimited(BURST);
            bucket.set_rate(Some(rate), Duration::ZERO);
            let (mut now, mut passed) = (Duration::ZERO, 0u64);
            for step in steps {
                now += Duration::from_micros(step);
                if bucket.available(now) > 0 {
                    bucket.consume(piece);
                    passed += piece;
                }
            }
            let most = rate as f64 * (now.as_secs_f64() + BURST.as_secs_f64()) + piece as f64 + 1.0;
            prop_assert!(passed as f64 <= most, "{passed} of {most}");
        }
    }
}
