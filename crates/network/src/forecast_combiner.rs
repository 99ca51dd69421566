//! Forecast combination: recursive least squares with a forgetting factor (Haykin, *Adaptive Filter Theory*,
//! chapter 10; Bates and Granger, 1969, for combining forecasts).
//!
//! Several models predict how long work takes, and each is right at times: the link is shared evenly; it
//! works through its queue in order; its source, or its target, is the bottleneck. The weights of the models
//! are learned from outcomes, in logarithms. Until there are outcomes, the longest prediction is used.

use serde::{Deserialize, Serialize};

/// Models in [`ModelPredictions`].
pub(crate) const MODELS: usize = 4;
/// Regressors: a constant, the longest prediction, each model below it, and the start-up time below it.
const REGRESSORS: usize = MODELS + 3;
/// The longest prediction is centred here (log seconds), so that its weight and the constant are learned
/// independently.
const LONGEST_LOG_CENTRE: f64 = 3.0;
/// Forgetting factor λ: what one outcome leaves of the weight of earlier ones (a memory of about 1,000).
const FORGETTING_FACTOR: f64 = 0.999;
/// Prior standard deviation of each weight.
const WEIGHT_SPREAD_INITIAL: f64 = 0.3;
/// If the variance of a weight exceeds this, the covariance has wound up and is reset.
const WEIGHT_VARIANCE_MAX: f64 = 10.0;
/// Residuals are clipped to this factor (e²), so that one outlier does not move the weights far.
const RESIDUAL_LOG_MAX: f64 = 2.0;

/// Seconds that the work takes by each model, and seconds to start its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelPredictions {
    pub models: [f32; MODELS],
    pub start: f32,
}

impl ModelPredictions {
    fn regressors(&self) -> (f64, [f64; REGRESSORS]) {
        // Not a number counts as next to nothing.
        let log = |seconds: f32| {
            let known = if seconds.is_nan() { 0.0 } else { seconds };
            f64::from(known.clamp(1e-3, 1e9)).ln()
        };
        let models = self.models.map(log);
        let longest = models.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let [one, two, three, four] = models.map(|model| (model - longest).max(-5.0));
        let start = (log(self.start) - longest).clamp(-5.0, 0.0);
        (longest, [1.0, (longest - LONGEST_LOG_CENTRE).clamp(-10.0, 10.0), one, two, three, four, start])
    }
}

/// The weights and their covariance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ForecastCombiner {
    weights: [f64; REGRESSORS],
    #[serde(rename = "unsure")]
    covariance: [[f64; REGRESSORS]; REGRESSORS],
}

impl Default for ForecastCombiner {
    fn default() -> Self {
        let mut unsure = [[0.0; REGRESSORS]; REGRESSORS];
        for (at, row) in unsure.iter_mut().enumerate() {
            row[at] = WEIGHT_SPREAD_INITIAL * WEIGHT_SPREAD_INITIAL;
        }
        ForecastCombiner { weights: [0.0; REGRESSORS], covariance: unsure }
    }
}

impl ForecastCombiner {
    /// Expected logarithm of the seconds.
    pub(crate) fn predict(&self, guesses: &ModelPredictions) -> f64 {
        let (longest, terms) = guesses.regressors();
        longest + dot(&self.weights, &terms)
    }

    /// Learns from an outcome: `took` is the logarithm of the seconds, `level` the bias of this link against
    /// all links.
    pub(crate) fn update(&mut self, guesses: &ModelPredictions, took: f64, level: f64) {
        let (longest, terms) = guesses.regressors();
        let off = took - level - longest - dot(&self.weights, &terms);
        if !off.is_finite() {
            return;
        }
        let leaning = self.covariance.map(|row| dot(&row, &terms));
        let noise = FORGETTING_FACTOR + dot(&leaning, &terms);
        let off = off.clamp(-RESIDUAL_LOG_MAX, RESIDUAL_LOG_MAX);
        for (weight, lean) in self.weights.iter_mut().zip(leaning) {
            *weight += lean / noise * off;
        }
        for (row, one) in self.covariance.iter_mut().zip(leaning) {
            for (cell, other) in row.iter_mut().zip(leaning) {
                *cell = (*cell - one * other / noise) / FORGETTING_FACTOR;
            }
        }
        let most = (0..REGRESSORS).map(|at| self.covariance[at][at]).fold(0.0, f64::max);
        if most > WEIGHT_VARIANCE_MAX || !self.is_valid() {
            // Covariance wind-up: a regressor had no excitation for very long. Start over from the present
            // weights.
            let weights = self.weights.map(|weight| if weight.is_finite() { weight } else { 0.0 });
            *self = ForecastCombiner { weights, ..ForecastCombiner::default() };
        }
    }

    fn is_valid(&self) -> bool {
        let weights = self.weights.iter().all(|weight| weight.is_finite() && weight.abs() < 100.0);
        weights && self.covariance.iter().flatten().all(|cell| cell.is_finite() && cell.abs() < 1e6)
    }

    pub(crate) fn sanitized(self) -> Self {
        if self.is_valid() { self } else { ForecastCombiner::default() }
    }
}

fn dot(one: &[f64; REGRESSORS], other: &[f64; REGRESSORS]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Mean and variance of one link's residuals against the combined forecast (a random intercept). The number
/// of outcomes is kept elsewhere, since a link has little room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkBias {
    mean: f32,
    square: f32,
}

/// Residuals remembered per link.
const BIAS_OUTCOMES_MAX: u16 = 12;
/// Shrinkage of the mean: outcomes that the prior of zero weighs.
const BIAS_PRIOR_OUTCOMES: f32 = 2.0;
/// Shrinkage of the spread: outcomes that the spread of all links weighs.
const SPREAD_PRIOR_OUTCOMES: f32 = 6.0;
/// No spread is believed below 5 %: a run of equal outcomes is chance.
const SPREAD_MIN: f32 = 0.05;

fn outcomes_in_memory(outcomes: u16) -> f32 {
    f32::from(outcomes.min(BIAS_OUTCOMES_MAX))
}

impl LinkBias {
    /// Learns from residual `off`, after `before` earlier outcomes.
    pub(crate) fn update(&mut self, off: f64, before: u16) {
        if off.is_nan() {
            return;
        }
        let off = (off as f32).clamp(-5.0, 5.0);
        let surprise = off - self.mean(before);
        let count = outcomes_in_memory(before.saturating_add(1));
        self.mean += (off - self.mean) / count;
        self.square += (surprise * surprise - self.square) / count;
    }

    pub(crate) fn mean(&self, outcomes: u16) -> f32 {
        let count = outcomes_in_memory(outcomes);
        self.mean * count / (count + BIAS_PRIOR_OUTCOMES)
    }

    /// Standard deviation of one outcome, shrunk towards that of all links.
    pub(crate) fn spread(&self, all: f32, outcomes: u16) -> f32 {
        let count = outcomes_in_memory(outcomes);
        let square =
            (self.square * count + all * all * SPREAD_PRIOR_OUTCOMES) / (count + SPREAD_PRIOR_OUTCOMES);
        square.sqrt().max(SPREAD_MIN)
    }

    pub(crate) fn sanitized(self) -> Self {
        let fine = [self.mean, self.square].iter().all(|value| value.is_finite() && value.abs() < 1e3);
        if fine && self.square >= 0.0 { self } else { LinkBias::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Uniform in (0, 1), deterministic.
    fn noise(number: u64) -> f32 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 24) as f32
    }

    #[test]
    fn weights_converge_to_the_right_model() {
        let mut blend = ForecastCombiner::default();
        let guesses = |round: u64| {
            let model = |which: u64| (noise(round * 8 + which) * 5.0).exp();
            ModelPredictions { models: [model(1), model(2), model(3), model(4)], start: 0.5 }
        };
        for round in 0..2_000 {
            let guesses = guesses(round);
            blend.update(&guesses, f64::from(guesses.models[1] * 2.0).ln(), 0.0);
        }
        for round in 5_000..5_050 {
            let guesses = guesses(round);
            let off = blend.predict(&guesses) - f64::from(guesses.models[1] * 2.0).ln();
            assert!(off.abs() < 0.4, "{off}");
        }
        let one = ModelPredictions { models: [1.0, 5.0, 2.0, 2.0], start: 0.1 };
        assert!(
            (ForecastCombiner::default().predict(&one).exp() - 5.0).abs() < 1e-6,
            "at first the longest stands"
        );
    }

    #[test]
    fn a_link_learns_its_bias_and_spread() {
        let mut level = LinkBias::default();
        (0..50).for_each(|round| level.update(1.0 + 0.2 * f64::from(noise(round.into())) - 0.1, round));
        assert!((level.mean(50) - 1.0).abs() < 0.2 && level.spread(0.6, 50) < 0.5, "{level:?}");
    }

    proptest! {
        #[test]
        fn extreme_outcomes_keep_the_state_valid(all in proptest::collection::vec((any::<[f32; 4]>(),
            any::<f32>(), any::<f64>()), 0..60)) {
            let (mut blend, mut level) = (ForecastCombiner::default(), LinkBias::default());
            for (number, (models, start, took)) in (0..).zip(all) {
                let guesses = ModelPredictions { models, start };
                blend.update(&guesses, took, f64::from(level.mean(number)));
                level.update(took, number);
                prop_assert!(blend.predict(&guesses).is_finite());
                prop_assert_eq!(blend.sanitized(), blend);
                prop_assert_eq!(level.sanitized(), level);
            }
        }
    }
}
