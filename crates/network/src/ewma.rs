//! One belief about a quantity above zero: a fading weighted mean and variance of its logarithm.

use std::time::Duration;

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

/// Taken for a link when nothing at all was ever measured: a fair part of the slowest ports in use (1 Gb/s).
pub const RATE_BYTES_PER_S_ASSUMED: f64 = 100e6;
/// Nothing slower or faster than these is believed, so that no arithmetic can overflow.
const VALUE_MIN: f64 = 1.0;
const VALUE_MAX: f64 = 1e15;
/// A clock that is ahead of what is remembered by more than this was set back meanwhile.
const CLOCK_STEP_MIN: Duration = Duration::from_secs(3_600);
/// Logarithms beyond are absurd, also as differences.
const LOG_MAX: f64 = 40.0;

/// What was seen half an hour ago counts half, and no more than 20 s are remembered: a change of rate shows
/// after a few windows.
pub type FastEwma = LogEwma<1_800, 20>;
/// What holds from day to day.
pub(crate) type SlowEwma = LogEwma<86_400, 600>;

/// Weights are seconds of observation; they halve every `HALF_LIFE_S`, and at most `WEIGHT_MAX` are
/// remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogEwma<const HALF_LIFE_S: u32, const WEIGHT_MAX: u32> {
    weight: f32,
    variance: f32,
    /// Of the natural logarithm of bytes per second.
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

    /// The same for a logarithm, or a difference of logarithms.
    pub(crate) fn observe_log(&mut self, value: f64, weight: f64, now: Timestamp) {
        if !value.is_finite() || !weight.is_finite() || weight <= 0.0 {
            return;
        }
        if self.last.since(now) > CLOCK_STEP_MIN {
            self.last = now;
        }
        // What comes late counts as much as it would now had it come in time.
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

    /// The level moved by so much: it is kept, believed less.
    pub(crate) fn shift(&mut self, by: f64) {
        if by.is_finite() {
            self.mean = (self.mean + by).clamp(-LOG_MAX, LOG_MAX);
            self.weight /= 4.0;
        }
    }

    /// Nothing before counts any more.
    pub(crate) fn restart(&mut self) {
        self.weight = 0.0;
    }

    /// Whether anything was ever observed.
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

    /// Numbers read from outside are made sound.
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
        fn absurd_numbers_leave_it_sound(values in proptest::collection::vec((any::<f64>(), any::<f64>(), any::<i64>()), 0..50)) {
            let mut belief = FastEwma::default();
            for (rate, weight, time) in values {
                belief.observe(rate, weight, Timestamp(time));
                prop_assert!(belief.mean().is_finite() && belief.variance().is_finite());
                prop_assert!(belief.weight_at(Timestamp(time)) >= 0.0);
            }
        }
    }
}
