//! Exponentially weighted moving average (EWMA; Roberts, 1959) and variance of the logarithm of a rate.
//!
//! Weights are seconds of observation, so the update is West's incremental weighted mean and variance
//! (Communications of the ACM 22, 1979) with a weight that decays by half in each half-life.

use std::time::Duration;

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

/// Prior rate of a link when nothing was ever measured: most of the slowest ports in use (1 Gbit/s).
pub const RATE_BYTES_PER_S_ASSUMED: f64 = 100e6;
/// Rates are clamped to at least this, so that logarithms stay finite.
const VALUE_MIN: f64 = 1.0;
/// Rates are clamped to at most this, so that no arithmetic overflows.
const VALUE_MAX: f64 = 1e15;
/// If the newest observation lies further in the future than this, the clock was set back.
const CLOCK_STEP_MIN: Duration = Duration::from_secs(3_600);
/// Bound of a logarithm, and of a difference of logarithms: exp(40) is beyond any rate.
const LOG_MAX: f64 = 40.0;

/// EWMA with a half-life of 30 minutes and at most 20 s of weight: a change of rate shows within a few
/// windows.
pub type FastEwma = LogEwma<1_800, 20>;
/// EWMA with a half-life of a day and at most 10 minutes of weight: what holds from day to day.
pub(crate) type SlowEwma = LogEwma<86_400, 600>;

/// EWMA of a logarithm. The weight is seconds of observation; it halves every `HALF_LIFE_S` and is capped at
/// `WEIGHT_MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogEwma<const HALF_LIFE_S: u32, const WEIGHT_MAX: u32> {
    weight: f32,
    variance: f32,
    /// Mean of the natural logarithm of bytes per second.
    mean: f64,
    last: Timestamp,
}

impl<const HALF_LIFE_S: u32, const WEIGHT_MAX: u32> LogEwma<HALF_LIFE_S, WEIGHT_MAX> {
    const WEIGHT_MAX: f64 = WEIGHT_MAX as f64;

    pub fn observe(&mut self, value: f64, weight: f64, now: Timestamp) {
        if value.is_finite() {
            self.observe_log(value.clamp(VALUE_MIN, VALUE_MAX).ln(), weight, now);
        }
    }

    /// Observes a value that is a logarithm already, or a difference of logarithms.
    pub(crate) fn observe_log(&mut self, value: f64, weight: f64, now: Timestamp) {
        if !value.is_finite() || !weight.is_finite() || weight <= 0.0 {
            return;
        }
        if self.last.since(now) > CLOCK_STEP_MIN {
            self.last = now;
        }
        // A late observation weighs what it would weigh now had it come in time.
        let late = (-self.last.since(now).as_secs_f64() / f64::from(HALF_LIFE_S)).exp2();
        let weight = weight.min(Self::WEIGHT_MAX) * late;
        let kept = self.weight_at(now).min(Self::WEIGHT_MAX);
        let total = kept + weight;
        let value = value.clamp(-LOG_MAX, LOG_MAX);
        let off = value - self.mean;
        if kept > 0.0 {
            self.variance = ((kept * self.variance() + kept * weight / total * off * off) / total) as f32;
            self.mean += off * weight / total;
        } else {
            self.mean = value;
            self.variance = 0.0;
        }
        self.weight = total.min(Self::WEIGHT_MAX) as f32;
        self.last = self.last.max(now);
    }

    /// Shifts the level by `by` and keeps a quarter of the weight, so that new observations soon prevail.
    pub(crate) fn shift(&mut self, by: f64) {
        if by.is_finite() {
            self.mean = (self.mean + by).clamp(-LOG_MAX, LOG_MAX);
            self.weight /= 4.0;
        }
    }

    /// Discards all weight: the next observation sets the mean.
    pub(crate) fn restart(&mut self) {
        self.weight = 0.0;
    }

    /// Whether anything was observed since the last restart.
    pub(crate) fn has_data(&self) -> bool {
        self.weight > 0.0
    }

    /// Seconds of observation that still count.
    pub fn weight_at(&self, now: Timestamp) -> f64 {
        f64::from(self.weight) * (-now.since(self.last).as_secs_f64() / f64::from(HALF_LIFE_S)).exp2()
    }

    pub fn mean(&self) -> f64 {
        self.mean
    }

    pub fn variance(&self) -> f64 {
        f64::from(self.variance)
    }

    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.last)
    }

    pub(crate) fn last(&self) -> Timestamp {
        self.last
    }

    /// Makes deserialised numbers valid.
    pub(crate) fn sanitized(mut self) -> Self {
        let finite = self.weight.is_finite() && self.mean.is_finite() && self.variance.is_finite();
        if !finite || self.weight < 0.0 {
            return Self::default();
        }
        self.weight = self.weight.min(Self::WEIGHT_MAX as f32);
        self.mean = self.mean.clamp(-LOG_MAX, LOG_MAX);
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
        let mut belief = FastEwma::default();
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
        let mut belief = FastEwma::default();
        belief.observe(1e6, 10.0, at(0));
        assert!(belief.weight_at(at(1_800)) < 5.1);
        assert!(belief.weight_at(at(-50)) <= 10.0, "a clock that went back makes nothing heavier");
    }

    proptest! {
        #[test]
        fn extreme_inputs_keep_the_state_valid(values in proptest::collection::vec((any::<f64>(),
            any::<f64>(), any::<i64>()), 0..50)) {
            let mut belief = FastEwma::default();
            for (rate, weight, time) in values {
                belief.observe(rate, weight, Timestamp(time));
                prop_assert!(belief.mean().is_finite() && belief.variance().is_finite());
                prop_assert!(belief.weight_at(Timestamp(time)) >= 0.0);
            }
        }
    }
}
