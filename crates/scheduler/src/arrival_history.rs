//! What of a subscription came lately: its rate as an exponentially weighted moving average of arrivals, and
//! when the last came. A forecast by the rate of the target alone does not show that this subscription gets
//! less of it.

use longhaul_model::Timestamp;

/// Memory of the rate in seconds.
const RATE_MEMORY_S: f64 = 60.0;
/// What comes after a silence of this length tells of another state of things than what came before it.
const GAP_S_MAX: f64 = 30.0;
/// After so many seconds it is trusted as much as not.
const TRUST_HALF_S: f64 = 5.0;
/// A shorter history says nothing of the rate.
const HISTORY_S_MIN: f64 = 5.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivalHistory {
    /// Bytes, older ones decayed, as of `last`.
    decayed_bytes: f64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl ArrivalHistory {
    pub(crate) fn record(&mut self, bytes: u64, now: Timestamp) {
        if self.last.is_some_and(|last| now.since(last).as_secs_f64() > GAP_S_MAX) {
            self.restart();
        }
        self.decayed_bytes = self.decayed_bytes * self.decay(now) + bytes as f64;
        self.first.get_or_insert(now);
        self.last = self.last.max(Some(now));
    }

    /// What came so far says nothing of what will come: its place among others has changed.
    pub(crate) fn restart(&mut self) {
        *self = ArrivalHistory { last: self.last, ..ArrivalHistory::default() };
    }

    pub(crate) fn last(&self) -> Option<Timestamp> {
        self.last
    }

    fn decay(&self, now: Timestamp) -> f64 {
        self.last.map_or(1.0, |last| (-now.since(last).as_secs_f64() / RATE_MEMORY_S).exp())
    }

    /// Bytes per second of the last minute, and how far to trust it, 0 to 1; none while too little is known.
    pub(crate) fn rate(&self, now: Timestamp) -> Option<(f64, f64)> {
        let seconds = now.since(self.first?).as_secs_f64();
        // The average over an exponential window that began with the first arrival.
        let covered = 1.0 - (-seconds / RATE_MEMORY_S).exp();
        let rate = self.decayed_bytes * self.decay(now) / (RATE_MEMORY_S * covered);
        (seconds >= HISTORY_S_MIN && rate > 0.0).then(|| (rate, seconds / (seconds + TRUST_HALF_S)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000) + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_steady_rate_is_found_and_falls_when_nothing_comes() {
        let mut history = ArrivalHistory::default();
        assert_eq!(history.rate(at(0.0)), None);
        (0..=40).for_each(|second| history.record(1_000, at(f64::from(second))));
        let (rate, trust) = history.rate(at(40.0)).unwrap();
        assert!((rate / 1_000.0 - 1.0).abs() < 0.05 && (0.85..0.95).contains(&trust), "{rate} {trust}");
        let (later, _) = history.rate(at(100.0)).unwrap();
        assert!(later < rate / 2.0, "{later} after a minute of silence");
        history.record(5, Timestamp::from_seconds(0));
        assert!(history.rate(at(101.0)).is_some_and(|(rate, _)| rate.is_finite()));
    }
}
