//! One belief about a rate: a fading weighted mean and variance of its logarithm.

use std::time::Duration;

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

/// Taken for a link when nothing at all was ever measured: a fair part of the slowest ports in use (1 Gb/s).
pub const ASSUMED_BYTES_PER_S: f64 = 100e6;
/// Nothing slower or faster than these is believed, so that no arithmetic can overflow.
const SLOWEST: f64 = 1.0;
const FASTEST: f64 = 1e15;
/// What was seen half an hour ago counts half.
const HALF_LIFE_S: f64 = 1_800.0;
/// More than so many seconds of observation are not remembered: a change of rate shows after a few windows.
const WEIGHT_MAX: f64 = 20.0;

/// Weights are seconds of observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Belief {
    weight: f64,
    /// Of the natural logarithm of bytes per second.
    mean: f64,
    variance: f64,
    last: Timestamp,
}

impl Belief {
    pub fn observe(&mut self, bytes_per_s: f64, weight: f64, now: Timestamp) {
        if !bytes_per_s.is_finite() || !weight.is_finite() || weight <= 0.0 {
            return;
        }
        let weight = weight.min(WEIGHT_MAX);
        let kept = self.weight_at(now).min(WEIGHT_MAX);
        let total = kept + weight;
        let value = bytes_per_s.clamp(SLOWEST, FASTEST).ln();
        let off = value - self.mean;
        if kept > 0.0 {
            self.variance = (kept * self.variance + kept * weight / total * off * off) / total;
            self.mean += off * weight / total;
        } else {
            self.mean = value;
            self.variance = 0.0;
        }
        self.weight = total.min(WEIGHT_MAX);
        self.last = self.last.max(now);
    }

    /// Seconds of observation that still count.
    pub fn weight_at(&self, now: Timestamp) -> f64 {
        self.weight * (-now.since(self.last).as_secs_f64() / HALF_LIFE_S).exp2()
    }

    pub fn mean(&self) -> f64 {
        self.mean
    }

    pub fn variance(&self) -> f64 {
        self.variance
    }

    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.last)
    }

    pub(crate) fn last(&self) -> Timestamp {
        self.last
    }

    /// Numbers read from outside are made sound.
    pub(crate) fn sound(mut self) -> Self {
        let finite = self.weight.is_finite() && self.mean.is_finite() && self.variance.is_finite();
        if !finite || self.weight < 0.0 {
            return Belief::default();
        }
        self.weight = self.weight.min(WEIGHT_MAX);
        self.mean = self.mean.clamp(SLOWEST.ln(), FASTEST.ln());
        self.variance = self.variance.clamp(0.0, 100.0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    #[test]
    fn follows_a_change_within_a_few_windows() {
        let mut belief = Belief::default();
        for second in 0..100 {
            belief.observe(100e6, 1.0, at(second));
        }
        assert!((belief.mean().exp() - 100e6).abs() < 1e3);
        let mut windows = 0;
        while belief.mean().exp() > 40e6 {
            belief.observe(20e6, 1.0, at(100 + windows));
            windows += 1;
            assert!(windows < 20, "a five-fold drop is believed within 20 windows");
        }
    }

    #[test]
    fn fades_with_time() {
        let mut belief = Belief::default();
        belief.observe(1e6, 10.0, at(0));
        assert!(belief.weight_at(at(1_800)) < 5.1);
        assert!(belief.weight_at(at(-50)) <= 10.0, "a clock that went back makes nothing heavier");
    }

    proptest! {
        #[test]
        fn absurd_numbers_leave_it_sound(values in proptest::collection::vec((any::<f64>(), any::<f64>(), any::<i64>()), 0..50)) {
            let mut belief = Belief::default();
            for (rate, weight, time) in values {
                belief.observe(rate, weight, Timestamp(time));
                prop_assert!(belief.mean().is_finite() && belief.variance().is_finite());
                prop_assert!(belief.weight_at(Timestamp(time)) >= 0.0);
            }
        }
    }
}
