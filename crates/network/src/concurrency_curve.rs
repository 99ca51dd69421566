//! Throughput as a function of concurrency: linear while each file runs at its own best, then saturated
//! (roofline, rate(c) = min(c · r_max, C)).
//!
//! Learned by octaves of concurrency; interpolated between them and extrapolated by the model.

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

/// Octaves of concurrency: 1, 2, 4, … 128 and more files.
const CONCURRENCY_OCTAVES: usize = 8;
/// Seconds of observation remembered per octave.
const WEIGHT_S_MAX: f32 = 3_600.0;
/// Seconds of observation from which an octave counts as measured.
const MEASURED_WEIGHT_S_MIN: f32 = 10.0;
/// Half-life of an observation: a day.
const HALF_LIFE_S: f32 = 86_400.0;
/// Rates are clamped to this, so that no arithmetic overflows.
const RATE_BYTES_PER_S_MAX: f64 = 1e15;
/// Prior exponent of the growth of the rate with concurrency: the square root.
const GROWTH_EXPONENT_ASSUMED: f64 = 0.5;
/// Growth exponent below which an octave counts as saturated.
const GROWTH_EXPONENT_SATURATED: f64 = 0.3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Octave {
    /// Bytes per second: all bytes by all seconds, since a file may be reported only when it is complete.
    rate: f32,
    /// Seconds of observation.
    weight: f32,
    /// Last observation, in seconds since 1970.
    last: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConcurrencyCurve {
    octaves: [Octave; CONCURRENCY_OCTAVES],
}

fn position(files: f64) -> f64 {
    files.max(1.0).log2().min(CONCURRENCY_OCTAVES as f64 - 1.0)
}

impl ConcurrencyCurve {
    pub(crate) fn observe(&mut self, files: f64, rate: f64, seconds: f64, now: Timestamp) {
        if !(files.is_finite() && rate.is_finite() && seconds.is_finite()) || seconds <= 0.0 {
            return;
        }
        let at = position(files);
        let index = at.round() as usize;
        let Some(octave) = self.octaves.get_mut(index) else { return };
        let clock = u32::try_from(now.as_micros() / 1_000_000).unwrap_or(0);
        let kept = octave.weight * (-(clock.saturating_sub(octave.last) as f32) / HALF_LIFE_S).exp2();
        let weight = (seconds as f32).min(WEIGHT_S_MAX);
        // Moved to the middle of the octave along the prior growth.
        let value =
            rate.clamp(1e-9, RATE_BYTES_PER_S_MAX) * (-(at - index as f64) * GROWTH_EXPONENT_ASSUMED).exp2();
        let total = kept + weight;
        octave.rate = if kept > 0.0 {
            octave.rate + (value as f32 - octave.rate) * weight / total
        } else {
            value as f32
        };
        octave.weight = total.min(WEIGHT_S_MAX);
        octave.last = clock;
    }

    /// Octaves with at least a second of observation: position and logarithm of the rate.
    fn measured_octaves(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.octaves
            .iter()
            .enumerate()
            .filter(|(_, octave)| octave.weight >= 1.0 && octave.rate > 0.0)
            .map(|(index, octave)| (index as f64, f64::from(octave.rate).ln()))
    }

    /// Logarithm of the rate with so many files, and whether that was measured nearby.
    pub(crate) fn log_rate(&self, files: f64) -> Option<(f64, bool)> {
        let at = position(files);
        let below = self.measured_octaves().take_while(|&(index, _)| index <= at).last();
        let above = self.measured_octaves().find(|&(index, _)| index >= at);
        let octave = std::f64::consts::LN_2;
        match (below, above) {
            (Some((low, from)), Some((high, to))) if high > low => {
                Some((from + (to - from) * (at - low) / (high - low), high - low <= 2.0))
            }
            (Some((_, from)), Some(_)) => Some((from, true)),
            (Some((low, from)), None) => {
                let growth = self.last_growth(low);
                Some((from + (at - low) * octave * growth, at - low <= 0.5))
            }
            // Fewer files than ever measured: scaled down along the prior growth.
            (None, Some((high, to))) => {
                Some((to - (high - at) * octave * GROWTH_EXPONENT_ASSUMED, high - at <= 0.5))
            }
            (None, None) => None,
        }
    }

    /// Logarithm of the rate with so many files, if that was measured for long enough.
    pub(crate) fn measured_log_rate(&self, files: f64) -> Option<f64> {
        let at = position(files);
        let octave = self.octaves.get(at.round() as usize)?;
        let within = (at - at.round()) * std::f64::consts::LN_2 * GROWTH_EXPONENT_ASSUMED;
        (octave.weight >= MEASURED_WEIGHT_S_MIN && octave.rate > 0.0)
            .then(|| f64::from(octave.rate).ln() + within)
    }

    /// Growth of log(rate) from `now` to `then` files, and whether both were measured.
    pub(crate) fn growth(&self, now: f64, then: f64) -> Option<(f64, bool)> {
        let ((from, one), (to, other)) = (self.log_rate(now)?, self.log_rate(then)?);
        Some((to - from, one && other))
    }

    /// Mean number of files at which the link was measured.
    pub(crate) fn usual_files(&self) -> f64 {
        let weight: f32 = self.octaves.iter().map(|octave| octave.weight).sum();
        let sum: f32 =
            self.octaves.iter().enumerate().map(|(index, octave)| index as f32 * octave.weight).sum();
        if weight > 0.0 { f64::from(sum / weight).exp2() } else { 1.0 }
    }

    /// Growth exponent between the last two measured octaves; zero if saturated.
    fn last_growth(&self, last: f64) -> f64 {
        let before = self.measured_octaves().take_while(|&(index, _)| index < last).last();
        let (Some((low, from)), Some((high, to))) = (before, self.measured_octaves().last()) else {
            return GROWTH_EXPONENT_ASSUMED;
        };
        let growth = (to - from) / ((high - low) * std::f64::consts::LN_2);
        if growth < GROWTH_EXPONENT_SATURATED { 0.0 } else { growth.min(1.0) }
    }

    /// Best rate of one file, from the lowest measured octave.
    pub(crate) fn file_max(&self) -> Option<f64> {
        self.measured_octaves().next().map(|(index, log)| log.exp() / index.exp2())
    }

    /// Capacity: the highest rate, if more files were seen to bring no more.
    pub(crate) fn capacity(&self) -> Option<f64> {
        let (last, _) = self.measured_octaves().last()?;
        let most = self.measured_octaves().map(|(_, log)| log).reduce(f64::max)?;
        (self.measured_octaves().count() > 1 && self.last_growth(last) == 0.0).then(|| most.exp())
    }

    /// After a change of the link its curve keeps the shape and moves its level.
    pub(crate) fn shift(&mut self, by: f64) {
        for octave in self.octaves.iter_mut().filter(|octave| octave.weight > 0.0) {
            octave.rate =
                (octave.rate * by.clamp(-40.0, 40.0).exp() as f32).clamp(1e-9, RATE_BYTES_PER_S_MAX as f32);
            octave.weight = octave.weight.min(WEIGHT_S_MAX / 10.0);
        }
    }

    pub(crate) fn sanitized(mut self) -> Self {
        for octave in &mut self.octaves {
            if !octave.rate.is_finite() || !octave.weight.is_finite() || octave.weight < 0.0 {
                *octave = Octave::default();
            }
            octave.rate = octave.rate.clamp(0.0, RATE_BYTES_PER_S_MAX as f32);
            octave.weight = octave.weight.min(WEIGHT_S_MAX);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn learned(files: &[f64], model: impl Fn(f64) -> f64) -> ConcurrencyCurve {
        let mut curve = ConcurrencyCurve::default();
        for second in 0..200 {
            for &files in files {
                curve.observe(files, model(files), 1.0, Timestamp::from_seconds(1_800_000_000 + second));
            }
        }
        curve
    }

    fn model(files: f64) -> f64 {
        (files * 20e6).min(200e6)
    }

    #[test]
    fn file_rate_and_capacity_are_estimated() {
        let curve = learned(&[1.0, 2.0, 4.0, 16.0, 32.0], model);
        assert!((curve.file_max().unwrap() / 20e6 - 1.0).abs() < 0.05);
        assert!((curve.capacity().unwrap() / 200e6 - 1.0).abs() < 0.05);
        for files in [1.0, 2.0, 4.0, 16.0, 64.0, 100.0] {
            let (log, _) = curve.log_rate(files).unwrap();
            assert!((log.exp() / model(files) - 1.0).abs() < 0.3, "{files} files: {}", log.exp());
        }
        assert!(curve.log_rate(24.0).unwrap().1 && !curve.log_rate(120.0).unwrap().1);
        assert_eq!(learned(&[1.0, 2.0], model).capacity(), None, "it still grew");
    }

    proptest! {
        #[test]
        fn extreme_inputs_keep_the_state_valid(steps in proptest::collection::vec((any::<f64>(),
            any::<f64>(), any::<f64>(), any::<i64>()), 0..60), files in any::<f64>()) {
            let mut curve = ConcurrencyCurve::default();
            for (files, rate, weight, time) in steps {
                curve.observe(files, rate, weight, Timestamp(time));
            }
            if let Some((log, _)) = curve.log_rate(files) {
                prop_assert!(log.is_finite());
            }
            prop_assert!(curve.capacity().is_none_or(f64::is_finite));
        }
    }
}
