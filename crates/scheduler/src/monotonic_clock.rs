//! Monotonic clock over the caller's wall clock: time that never goes back, so that a wait of ten seconds
//! does not become an hour when a clock is set back.

use std::time::Duration;

use longhaul_model::Timestamp;

/// Monotonic time is the caller's time plus all steps back so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MonotonicClock {
    now: Timestamp,
    ahead: Duration,
}

impl MonotonicClock {
    /// Advances to the caller's time.
    pub(crate) fn advance_to(&mut self, outer: Timestamp) -> Timestamp {
        let steady = outer + self.ahead;
        if steady < self.now {
            self.ahead = self.ahead.saturating_add(self.now.since(steady));
        } else {
            self.now = steady;
        }
        self.now
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// Converts monotonic time to the caller's time.
    pub(crate) fn caller_time(&self, steady: Timestamp) -> Timestamp {
        steady - self.ahead
    }

    /// Converts the caller's time to monotonic time.
    pub(crate) fn steady_time(&self, outer: Timestamp) -> Timestamp {
        outer + self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaps_back_are_bridged() {
        let mut steady = MonotonicClock::default();
        let start = steady.advance_to(Timestamp::from_seconds(10_000));
        let back = steady.advance_to(Timestamp::from_seconds(5_000));
        assert_eq!(back, start);
        let later = steady.advance_to(Timestamp::from_seconds(5_010));
        assert_eq!(later.since(start), Duration::from_secs(10));
        assert_eq!(steady.caller_time(later), Timestamp::from_seconds(5_010));
    }

    #[test]
    fn the_ends_of_time_do_no_harm() {
        let mut steady = MonotonicClock::default();
        for outer in [i64::MAX, i64::MIN, 0, i64::MAX, -1] {
            let before = steady.now();
            assert!(steady.advance_to(Timestamp(outer)) >= before);
        }
    }
}
