//! Exponential backoff with jitter, for a service that does not answer (the schedule is `model::Backoff`).

use std::time::Duration;

use longhaul_model::{Backoff as Schedule, Jitter};

/// A service that is back is noticed within five seconds, and a site's agents do not come back all at once.
const SCHEDULE: Schedule =
    Schedule { first: Duration::from_millis(100), max: Duration::from_secs(5), jitter: Jitter::Equal };

/// Counts failures in a row; each doubles the delay.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// A try has succeeded.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether the last try failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// The delay after one more failure, with a random number for its jitter.
    pub(crate) fn next_delay(&mut self, random: u64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        delay_after(self.failures, random)
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
