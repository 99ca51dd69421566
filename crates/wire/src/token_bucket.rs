//! Token bucket rate limiter (RFC 2697): a rate in bytes per second, and a burst of a tenth of a second. Time
//! is an argument.

use std::time::Duration;

/// Capacity of the bucket, in seconds of the rate.
const BURST_S: f64 = 0.1;

/// A token bucket that may go into debt: the last piece is never cut, and paid for by waiting.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    bytes_per_s: Option<u64>,
    /// May be negative: bytes beyond the limit are repaid by waiting.
    tokens: f64,
    refilled_at: Duration,
}

impl TokenBucket {
    pub fn unlimited() -> Self {
        TokenBucket { bytes_per_s: None, tokens: 0.0, refilled_at: Duration::ZERO }
    }

    /// Sets or removes the limit. Saved-up tokens expire, debt stays.
    pub fn set_rate(&mut self, bytes_per_s: Option<u64>, now: Duration) {
        self.refill(now);
        self.bytes_per_s = bytes_per_s;
        self.tokens = self.tokens.min(0.0);
    }

    /// Bytes that may pass now.
    pub fn available(&mut self, now: Duration) -> u64 {
        match self.bytes_per_s {
            None => u64::MAX,
            Some(_) => {
                self.refill(now);
                self.tokens.max(0.0) as u64
            }
        }
    }

    /// Takes the tokens of bytes that passed. The last piece may exceed what was available.
    pub fn consume(&mut self, bytes: u64) {
        if self.bytes_per_s.is_some() {
            self.tokens -= bytes as f64;
        }
    }

    fn refill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.refilled_at).as_secs_f64();
        self.refilled_at = self.refilled_at.max(now);
        if let Some(rate) = self.bytes_per_s {
            let rate = rate as f64;
            self.tokens = (self.tokens + rate * elapsed).min((rate * BURST_S).max(1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_unlimited_bucket_never_runs_out() {
        assert_eq!(TokenBucket::unlimited().available(Duration::ZERO), u64::MAX);
    }

    proptest! {
        /// Promise 8: over any interval at most the rate, one burst and one piece pass.
        #[test]
        fn the_rate_limit_holds_over_any_interval(rate in 1_000u64..10_000_000, steps in proptest::collection::vec(0u64..50_000, 1..200), piece in 1u64..1_000_000) {
            let mut pace = TokenBucket::unlimited();
            pace.set_rate(Some(rate), Duration::ZERO);
            let (mut now, mut passed) = (Duration::ZERO, 0u64);
            for step in steps {
                now += Duration::from_micros(step);
                if pace.available(now) > 0 {
                    pace.consume(piece);
                    passed += piece;
                }
            }
            let most = rate as f64 * (now.as_secs_f64() + BURST_S) + piece as f64 + 1.0;
            prop_assert!(passed as f64 <= most, "{passed} of {most}");
        }
    }
}
