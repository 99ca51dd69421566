//! What of a subscription came lately: its rate as an exponentially weighted moving average of arrivals, and
//! when the last came. A forecast by the rate of the target alone does not show that this subscription gets
//! less of it.

use longhaul_model::Timestamp;

/// Memory of the rate in seconds.
const RATE_MEMORY_S: f64 = 60.0;
/// What comes after a silence of this length tells of another state of things than what came before it.
const GAP_S_MAX: f64 = 30.0;
/// After so many seconds, and after so many arrivals, it is trusted as much as not: the mean of a thousand
/// small files says more than that of ten large ones.
const TRUST_HALF_S: f64 = 1.0;
const TRUST_HALF_ARRIVALS: f64 = 100.0;
/// A shorter history says nothing of the rate.
const HISTORY_S_MIN: f64 = 5.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivalHistory {
    /// Bytes and arrivals, older ones decayed, as of `last`.
    decayed_bytes: f64,
    decayed_arrivals: f64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl ArrivalHistory {
    pub(crate) fn record(&mut self, bytes: u64, now: Timestamp) {
        if self.last.is_some_and(|last| now.since(last).as_secs_f64() > GAP_S_MAX) {
            self.restart();
        }
        let decay = self.decay(now);
        self.decayed_bytes = self.decayed_bytes * decay + bytes as f64;
        self.decayed_arrivals = self.decayed_arrivals * decay + 1.0;
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
        let trust = seconds / (seconds + TRUST_HALF_S) * self.decayed_arrivals
            / (self.decayed_arrivals + TRUST_HALF_ARRIVALS);
        (seconds >= HISTORY_S_MIN && rate > 0.0).then_some((rate, trust))
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
        assert!((rate / 1_000.0 - 1.0).abs() < 0.05 && (0.2..0.3).contains(&trust), "{rate} {trust}");
        let mut many = ArrivalHistory::default();
        (0..=4_000).for_each(|part| many.record(10, at(f64::from(part) / 100.0)));
        let (rate, trust) = many.rate(at(40.0)).unwrap();
        assert!((rate / 1_000.0 - 1.0).abs() < 0.05 && trust > 0.9, "of small files: {rate} {trust}");
        let (later, _) = history.rate(at(100.0)).unwrap();
        assert!(later < rate / 2.0, "{later} after a minute of silence");
        history.record(5, Timestamp::from_seconds(0));
        assert!(history.rate(at(101.0)).is_some_and(|(rate, _)| rate.is_finite()));
    }
}
