//! How long to wait before asking a service again that did not answer.

use std::time::Duration;

use crate::state_dir::random_u64;

const DELAY_MIN: Duration = Duration::from_millis(100);
/// A service that is back is noticed within this.
const DELAY_MAX: Duration = Duration::from_secs(5);

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

    /// The wait after one more failure, spread so that a site's agents do not come back all at once.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = delay_after(self.failures, random_u64().unwrap_or_default());
        self.failures = self.failures.saturating_add(1);
        delay
    }
}

/// Half of the step for certain, the other half by chance.
fn delay_after(failures: u32, random: u64) -> Duration {
    let step = DELAY_MIN.saturating_mul(1 << failures.min(10)).min(DELAY_MAX);
    step / 2 + (step / 2).mul_f64((random % 1_000) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_is_spread_and_bounded() {
        assert!(delay_after(0, 999) <= DELAY_MIN);
        assert!(delay_after(4, 0) > delay_after(1, 999));
        assert!(delay_after(3, 1) != delay_after(3, 500));
        assert!(delay_after(u32::MAX, u64::MAX) <= DELAY_MAX);
        assert!(delay_after(u32::MAX, 0) >= DELAY_MAX / 2);
    }
}
