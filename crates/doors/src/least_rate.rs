//! The least rate of a body: a client that sends a byte now and then must not hold a transfer's place for
//! days.

use std::time::Duration;

/// Counts what comes against the time that was spent waiting for it; how long the disk took is not the
/// client's fault. Time is an argument.
#[derive(Debug)]
pub(crate) struct LeastRate {
    window: Duration,
    bytes_min: u64,
    waited: Duration,
    bytes: u64,
}

impl LeastRate {
    /// At least `bytes_min` have to come in each `window` of waiting, or the rest of the body.
    pub(crate) fn new(bytes_min: u64, window: Duration) -> LeastRate {
        LeastRate { window, bytes_min, waited: Duration::ZERO, bytes: 0 }
    }

    /// How long to wait for the next piece.
    pub(crate) fn patience(&self) -> Duration {
        self.window.saturating_sub(self.waited)
    }

    /// A piece came after `waited`.
    pub(crate) fn add(&mut self, bytes: u64, waited: Duration) {
        self.waited = self.waited.saturating_add(waited);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= self.bytes_min {
            (self.waited, self.bytes) = (Duration::ZERO, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Seconds until a client that sends `bytes` every `every_s` seconds has no patience left; none within a
    /// day.
    fn ends_after_s(bytes: u64, every_s: u64) -> Option<u64> {
        let mut rate = LeastRate::new(1_000, MINUTE);
        let mut passed_s = 0;
        while passed_s < 86_400 {
            if rate.patience() <= Duration::from_secs(every_s) {
                return Some(passed_s + rate.patience().as_secs());
            }
            rate.add(bytes, Duration::from_secs(every_s));
            passed_s += every_s;
        }
        None
    }

    #[test]
    fn a_client_that_trickles_is_cut_off() {
        assert_eq!(ends_after_s(1, 1), Some(60));
        assert_eq!(ends_after_s(1, 59), Some(60));
        assert_eq!(ends_after_s(16, 1), Some(60), "960 bytes in a minute");
        assert_eq!(ends_after_s(0, 10), Some(60), "empty pieces are none");
    }

    #[test]
    fn a_slow_client_that_goes_on_is_served() {
        assert_eq!(ends_after_s(17, 1), None);
        assert_eq!(ends_after_s(1_000, 59), None);
        assert_eq!(ends_after_s(u64::MAX, 1), None);
    }

    #[test]
    fn time_that_nobody_waited_costs_nothing() {
        let mut rate = LeastRate::new(1_000, MINUTE);
        for _ in 0..10_000 {
            rate.add(1, Duration::ZERO);
        }
        assert_eq!(rate.patience(), MINUTE);
        rate.add(1, Duration::MAX);
        assert_eq!(rate.patience(), Duration::ZERO);
    }
}
