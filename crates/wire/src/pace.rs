//! A rate limit: so many bytes per second, with a burst of a fraction of a second.

use std::time::Duration;

/// Bytes that may pass at once, as a share of a second.
const BURST: f64 = 0.1;

#[derive(Clone, Debug)]
pub struct Pace {
    bytes_per_s: Option<u64>,
    /// May be negative: what passed beyond the limit is paid back by waiting.
    credit: f64,
    at: Duration,
}

impl Pace {
    pub fn unlimited() -> Self {
        Pace { bytes_per_s: None, credit: 0.0, at: Duration::ZERO }
    }

    pub fn set(&mut self, bytes_per_s: Option<u64>, now: Duration) {
        self.refill(now);
        self.bytes_per_s = bytes_per_s;
        self.credit = self.credit.min(0.0);
    }

    /// Bytes that may pass now.
    pub fn allowance(&mut self, now: Duration) -> u64 {
        match self.bytes_per_s {
            None => u64::MAX,
            Some(_) => {
                self.refill(now);
                self.credit.max(0.0) as u64
            }
        }
    }

    /// That many did pass. The last piece may go beyond the allowance.
    pub fn passed(&mut self, bytes: u64) {
        if self.bytes_per_s.is_some() {
            self.credit -= bytes as f64;
        }
    }

    fn refill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        if let Some(rate) = self.bytes_per_s {
            let rate = rate as f64;
            self.credit = (self.credit + rate * elapsed).min((rate * BURST).max(1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_limit_is_no_limit() {
        assert_eq!(Pace::unlimited().allowance(Duration::ZERO), u64::MAX);
    }

    proptest! {
        /// Promise 8: over any time no more than the limit, one burst and one piece pass.
        #[test]
        fn holds_the_limit(rate in 1_000u64..10_000_000, steps in proptest::collection::vec(0u64..50_000, 1..200), piece in 1u64..1_000_000) {
            let mut pace = Pace::unlimited();
            pace.set(Some(rate), Duration::ZERO);
            let (mut now, mut passed) = (Duration::ZERO, 0u64);
            for step in steps {
                now += Duration::from_micros(step);
                if pace.allowance(now) > 0 {
                    pace.passed(piece);
                    passed += piece;
                }
            }
            let most = rate as f64 * (now.as_secs_f64() + BURST) + piece as f64 + 1.0;
            prop_assert!(passed as f64 <= most, "{passed} of {most}");
        }
    }
}
