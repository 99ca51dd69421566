//! How long to wait before asking a service again that did not answer.

use std::time::Duration;

use longhaul_model::{Backoff as Schedule, Jitter};

use crate::state_dir::random_u64;

/// A service that is back is noticed within five seconds, and a site's agents do not come back all at once.
const SCHEDULE: Schedule =
    Schedule { first: Duration::from_millis(100), max: Duration::from_secs(5), jitter: Jitter::Equal };

/// Doubles with each failure in a row.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether the last try failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// The wait after one more failure.
    pub(crate) fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        delay_after(self.failures, random_u64().unwrap_or_default())
    }
}

fn delay_after(failures: u32, random: u64) -> Duration {
    SCHEDULE.delay(failures, (random % 1_000) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_is_spread_and_bounded() {
        assert!(delay_after(1, 999) <= SCHEDULE.first);
        assert!(delay_after(5, 0) > delay_after(2, 999));
        assert!(delay_after(4, 1) != delay_after(4, 500));
        assert!(delay_after(u32::MAX, u64::MAX) <= SCHEDULE.max);
        assert!(delay_after(u32::MAX, 0) >= SCHEDULE.max / 2);
    }
}
