//! Rate limit of all reads together: one token bucket that every piece passes.

use std::time::Duration;

use longhaul_model::TokenBucket;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// Reads that paused catch up for this long; a burst hides the jitter of many small pieces.
const BURST: Duration = Duration::from_millis(250);

pub(crate) struct RateLimiter {
    state: Mutex<State>,
    started: Instant,
}

struct State {
    bytes_per_s: Option<u64>,
    bucket: TokenBucket,
}

impl RateLimiter {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> RateLimiter {
        let bucket = TokenBucket::full(bytes_per_s, BURST, Duration::ZERO);
        RateLimiter { state: Mutex::new(State { bytes_per_s, bucket }), started: Instant::now() }
    }

    pub(crate) fn set_rate(&self, bytes_per_s: Option<u64>) {
        let mut state = self.state.lock();
        if state.bytes_per_s != bytes_per_s {
            let bucket = TokenBucket::full(bytes_per_s, BURST, self.started.elapsed());
            *state = State { bytes_per_s, bucket };
        }
    }

    /// Ends when a piece of that size may pass.
    pub(crate) async fn pass(&self, bytes: usize) {
        let wait = self.reserve(bytes, self.started.elapsed());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    fn reserve(&self, bytes: usize, now: Duration) -> Duration {
        let mut state = self.state.lock();
        state.bucket.reserve(bytes as u64, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_come_at_the_rate_and_no_faster_whoever_takes_them() {
        let limiter = RateLimiter::new(Some(1_000));
        let ms = Duration::from_millis;
        // A quarter of a second is had at once.
        assert_eq!(limiter.reserve(250, ms(0)), ms(0));
        assert_eq!(limiter.reserve(100, ms(0)), ms(100));
        assert_eq!(limiter.reserve(1_000, ms(0)), ms(1_100));
        // Idle time saves up no more than the burst.
        assert_eq!(limiter.reserve(1_250, ms(60_000)), ms(1_000));
        limiter.set_rate(None);
        assert_eq!(limiter.reserve(1_000_000, ms(60_000)), ms(0));
    }
}
