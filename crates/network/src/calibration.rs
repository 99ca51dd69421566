//! Online calibration of prediction intervals by quantile tracking (stochastic gradient descent on the
//! pinball loss; Gibbs and Candès, *Adaptive conformal inference*, 2021).
//!
//! An interval that promises 90 % is widened or narrowed until 90 % of the outcomes lie in it, per link and
//! per class of links with as much history.

use serde::{Deserialize, Serialize};

use crate::forecast_combiner::ForecastCombiner;

/// Initial quantiles in standard deviations: those of a normal distribution for 5 %, 50 % and 95 %, widened
/// for caution.
const QUANTILES_INITIAL: [f32; 3] = [-2.3, 0.0, 2.3];
/// Levels of the tracked quantiles: the ends of the 90 % interval, and its median.
const QUANTILE_LEVELS: [f32; 3] = [0.05, 0.5, 0.95];
/// First step of a link's quantiles: large, so that they adapt within a few outcomes.
const LINK_STEP_INITIAL: f32 = 0.8;
/// Smallest step of a link's quantiles: never so small that they cannot follow a change.
const LINK_STEP_MIN: f32 = 0.12;
/// First step of the quantiles of a class.
const CLASS_STEP_INITIAL: f32 = 1.0;
/// Smallest step of the quantiles of a class: small, since a class sees many outcomes.
const CLASS_STEP_MIN: f32 = 0.03;
/// Standardised errors are clipped to this many standard deviations.
const STANDARDIZED_ERROR_MAX: f32 = 30.0;
/// Prior standard deviation of the error of a forecast (logarithm of the time).
const ERROR_SPREAD_ASSUMED: f32 = 0.6;
/// Outcomes that the prior standard deviation weighs.
const ERROR_SPREAD_PRIOR_OUTCOMES: f32 = 5.0;
/// Outcomes over which the mean square of the error is averaged.
const ERROR_OUTCOMES_MAX: f32 = 500.0;
/// Errors are clipped to this (a factor of e³) before they are squared.
const ERROR_LOG_MAX: f32 = 3.0;
/// Shrinkage of a link's quantiles: outcomes that the quantiles of its class weigh.
const LINK_PRIOR_OUTCOMES: u16 = 8;

/// Upper bounds of the classes: links with fewer outcomes than this.
pub(crate) const CLASS_OUTCOMES_MAX: [u16; 4] = [8, 32, 128, u16::MAX];

/// Bins of the histogram of a link's rates, which gives the baseline forecast: empirical quantiles, without
/// knowledge of sizes and loads. The range is 7 B/s to 1 TB/s, since small files are slow by factors of
/// millions; a narrower one would flatter our forecasts.
const HISTOGRAM_BINS: usize = 72;
/// Width of a histogram bin in log(rate).
const HISTOGRAM_BIN_LOG_WIDTH: f32 = 0.36;
/// Lower end of the histogram in log(rate).
const HISTOGRAM_LOG_MIN: f32 = 2.0;
/// Outcomes before the histogram gives a baseline.
const BASELINE_OUTCOMES_MIN: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct QuantileTracker([f32; 3]);

impl Default for QuantileTracker {
    fn default() -> Self {
        QuantileTracker(QUANTILES_INITIAL)
    }
}

impl QuantileTracker {
    fn update(&mut self, off: f32, step: f32) {
        for (point, share) in self.0.iter_mut().zip(QUANTILE_LEVELS) {
            // Steps up and down in the ratio that balances when `share` of the outcomes lie below the point.
            *point += if off > *point { step * share } else { -step * (1.0 - share) } * 2.0;
        }
        let [low, middle, high] = &mut self.0;
        *middle = middle.clamp(-STANDARDIZED_ERROR_MAX, STANDARDIZED_ERROR_MAX);
        *low = low.clamp(-STANDARDIZED_ERROR_MAX, *middle - 0.05);
        *high = high.clamp(*middle + 0.05, STANDARDIZED_ERROR_MAX);
    }

    fn sanitized(self) -> Self {
        let [low, middle, high] = self.0;
        let fine = self.0.iter().all(|point| point.is_finite() && point.abs() <= STANDARDIZED_ERROR_MAX)
            && low < middle
            && middle < high;
        if fine { self } else { QuantileTracker::default() }
    }
}

/// Calibration of one link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkCalibration {
    points: QuantileTracker,
    outcomes: u16,
    histogram: [u8; HISTOGRAM_BINS],
}

impl Default for LinkCalibration {
    fn default() -> Self {
        LinkCalibration { points: QuantileTracker::default(), outcomes: 0, histogram: [0; HISTOGRAM_BINS] }
    }
}

impl LinkCalibration {
    /// Counts the rate of a finished transfer, whether or not it had a forecast.
    pub(crate) fn record_rate(&mut self, log_rate: f32) {
        let at = ((log_rate - HISTOGRAM_LOG_MIN) / HISTOGRAM_BIN_LOG_WIDTH)
            .floor()
            .clamp(0.0, HISTOGRAM_BINS as f32 - 1.0);
        if let Some(count) = self.histogram.get_mut(at as usize) {
            *count = count.saturating_add(1);
            if *count == u8::MAX {
                self.histogram = self.histogram.map(|count| count / 2);
            }
        }
    }

    /// Logarithm of the rate below which `share` of the outcomes lie; none until there are a few.
    fn quantile(&self, share: f32) -> Option<f32> {
        let total: u32 = self.histogram.iter().map(|&count| u32::from(count)).sum();
        if total < BASELINE_OUTCOMES_MIN {
            return None;
        }
        let mut left = share * total as f32;
        for (index, &count) in self.histogram.iter().enumerate() {
            let count = f32::from(count);
            if left <= count && count > 0.0 {
                let within = left / count;
                return Some(HISTOGRAM_LOG_MIN + (index as f32 + within) * HISTOGRAM_BIN_LOG_WIDTH);
            }
            left -= count;
        }
        None
    }

    pub(crate) fn outcomes(&self) -> u16 {
        self.outcomes
    }

    pub(crate) fn to_stored(self) -> (QuantileTracker, u16) {
        (self.points, self.outcomes)
    }

    pub(crate) fn from_stored((points, outcomes): (QuantileTracker, u16)) -> Self {
        LinkCalibration { points: points.sanitized(), outcomes, ..LinkCalibration::default() }
    }
}

/// Coverage and interval scores of forecasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct IntervalScores {
    scored: f64,
    within: f64,
    score: f64,
    /// Outcomes for which the link had a baseline, with our scores and the baseline's.
    compared: f64,
    #[serde(rename = "ours")]
    score_ours: f64,
    #[serde(rename = "theirs")]
    score_baseline: f64,
}

impl IntervalScores {
    fn numbers(&self) -> [f64; 6] {
        [self.scored, self.within, self.score, self.compared, self.score_ours, self.score_baseline]
    }

    /// Adds a part of another's sums.
    fn add(&mut self, other: &IntervalScores, part: f64) {
        let [scored, within, score, compared, ours, theirs] = other.numbers().map(|sum| sum * part);
        self.scored += scored;
        self.within += within;
        self.score += score;
        self.compared += compared;
        self.score_ours += ours;
        self.score_baseline += theirs;
    }

    fn quality(&self, history_max: Option<u16>) -> ForecastQuality {
        let mean = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        ForecastQuality {
            history_max,
            outcomes: self.scored.round() as u64,
            within: mean(self.within, self.scored),
            score: mean(self.score, self.scored),
            score_ratio: (self.compared > 0.0 && self.score_baseline > 0.0)
                .then(|| self.score_ours / self.score_baseline),
        }
    }

    fn sanitized(self) -> Self {
        let fine = self.numbers().iter().all(|sum| sum.is_finite() && *sum >= 0.0);
        if fine && self.within <= self.scored { self } else { IntervalScores::default() }
    }
}

/// Calibration of the links with about as much history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct HistoryClass {
    points: QuantileTracker,
    #[serde(rename = "tally", default)]
    scores: IntervalScores,
    /// Mean square of recent errors.
    #[serde(rename = "square", default)]
    error_square: f32,
}

/// Quality of the forecasts for links with about as much history.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ForecastQuality {
    /// Upper bound of the outcomes that these links had before.
    pub history_max: Option<u16>,
    pub outcomes: u64,
    /// Coverage: share of the outcomes within their 90 % interval.
    pub within: f64,
    /// Mean interval score (Winkler, 1972; Gneiting and Raftery, 2007) of the logarithm of the time: the
    /// width of the interval plus 20 times the distance of an outcome outside it. Less is better.
    pub score: f64,
    /// Our score relative to that of the baseline, the quantiles of the link's earlier rates, which knows
    /// nothing of sizes and loads.
    pub score_ratio: Option<f64>,
}

/// Quality of the forecasts for files of one decade of size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizeDecadeQuality {
    /// Upper bound of the sizes.
    pub bytes_max: f64,
    #[serde(flatten)]
    pub quality: ForecastQuality,
}

/// Decades of size: below 10 bytes, below 100 bytes, …, the last without an upper bound.
const SIZE_DECADES: usize = 15;
/// Shrinkage of a decade's mean error: outcomes that the prior of zero weighs.
const DECADE_PRIOR_OUTCOMES: f64 = 100.0;
/// Outcomes over which the mean error of a decade is averaged.
const DECADE_OUTCOMES_MAX: f64 = 300.0;

/// Calibration of forecasts for files of one decade of size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct SizeDecade {
    scores: IntervalScores,
    /// What is added to the logarithm of the seconds, so that the mean error is zero.
    correction: f32,
}

fn decade_index(bytes_log: f64) -> usize {
    ((bytes_log / std::f64::consts::LN_10).floor().max(0.0) as usize).min(SIZE_DECADES - 1)
}

/// Outcomes are grouped by the history of their link in octaves: 0, 1, 2 to 3, 4 to 7, …
const HISTORY_OCTAVES: usize = 17;

/// A forecast and its outcome, in logarithms of seconds.
pub(crate) struct Outcome {
    /// The interval in which nine of ten outcomes should lie.
    pub interval: (f64, f64),
    pub value: f64,
    /// Error against the uncorrected forecast, and the standard deviation that was expected of it.
    pub error: f64,
    pub spread: f64,
    /// Logarithm of the bytes.
    pub bytes_log: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calibration {
    classes: [HistoryClass; CLASS_OUTCOMES_MAX.len()],
    #[serde(default)]
    octaves: [IntervalScores; HISTORY_OCTAVES],
    #[serde(default)]
    decades: [SizeDecade; SIZE_DECADES],
    /// Logarithm of the bytes of the largest outcome.
    #[serde(default)]
    bytes_log_max: f32,
    #[serde(rename = "blend", default)]
    pub(crate) combiner: ForecastCombiner,
}

fn class_index(outcomes: u16) -> usize {
    CLASS_OUTCOMES_MAX.iter().position(|&most| outcomes < most).unwrap_or(CLASS_OUTCOMES_MAX.len() - 1)
}

fn interval_score(low: f64, high: f64, value: f64) -> f64 {
    let beyond = (low - value).max(0.0) + (value - high).max(0.0);
    high - low + beyond * 2.0 / 0.1
}

impl Calibration {
    /// Low, middle and high quantile for a link, in standard deviations.
    pub(crate) fn quantiles(&self, record: Option<&LinkCalibration>) -> [f64; 3] {
        let outcomes = record.map_or(0, LinkCalibration::outcomes);
        let class = self.classes.get(class_index(outcomes)).copied().unwrap_or_default().points;
        let own = record.map_or(class, |record| record.points);
        let weight = f32::from(outcomes) / f32::from(outcomes.saturating_add(LINK_PRIOR_OUTCOMES));
        let mut points = class.0;
        for (point, own) in points.iter_mut().zip(own.0) {
            *point += (own - *point) * weight;
        }
        points.map(f64::from)
    }

    /// Standard deviation of the error for links with as much history.
    pub(crate) fn spread(&self, record: Option<&LinkCalibration>) -> f32 {
        let class = self.classes.get(class_index(record.map_or(0, LinkCalibration::outcomes)));
        let (square, seen) =
            class.map_or((0.0, 0.0), |class| (class.error_square, class.scores.scored as f32));
        let known = seen.min(ERROR_OUTCOMES_MAX);
        let assumed = ERROR_SPREAD_ASSUMED * ERROR_SPREAD_ASSUMED;
        ((square * known + assumed * ERROR_SPREAD_PRIOR_OUTCOMES) / (known + ERROR_SPREAD_PRIOR_OUTCOMES))
            .sqrt()
    }

    /// What forecasts for work of this size are off by, as a logarithm.
    pub(crate) fn size_correction(&self, bytes_log: f64) -> f64 {
        f64::from(self.decades[decade_index(bytes_log)].correction)
    }

    pub(crate) fn bytes_log_max(&self) -> f64 {
        f64::from(self.bytes_log_max)
    }

    fn score_decade(&mut self, one: &IntervalScores, error: f64, bytes_log: f64) {
        let decade = &mut self.decades[decade_index(bytes_log)];
        decade.scores.add(one, 1.0);
        let memory = (decade.scores.scored + DECADE_PRIOR_OUTCOMES).min(DECADE_OUTCOMES_MAX);
        let bounded = (error as f32).clamp(-ERROR_LOG_MAX, ERROR_LOG_MAX);
        decade.correction += bounded / memory as f32;
        self.bytes_log_max = self.bytes_log_max.max(bytes_log as f32);
    }

    /// Quality by decade of size, of those with outcomes.
    pub(crate) fn decades(&self) -> Vec<SizeDecadeQuality> {
        let of = |(number, decade): (i32, &SizeDecade)| SizeDecadeQuality {
            bytes_max: 10f64.powi(number + 1),
            quality: decade.scores.quality(None),
        };
        (0..).zip(&self.decades).filter(|(_, decade)| decade.scores.scored > 0.0).map(of).collect()
    }

    pub(crate) fn score(&mut self, record: &mut LinkCalibration, outcome: &Outcome) {
        let Outcome { interval: (low, high), value, error: off, spread, bytes_log } = *outcome;
        if ![low, high, value, off, spread, bytes_log].iter().all(|number| number.is_finite()) || high < low {
            return;
        }
        let Some(class) = self.classes.get_mut(class_index(record.outcomes)) else { return };
        let score = interval_score(low, high, value);
        let mut one = IntervalScores {
            scored: 1.0,
            score,
            within: f64::from(u8::from((low..=high).contains(&value))),
            ..IntervalScores::default()
        };
        let rate = |share| record.quantile(share).map(|log_rate| bytes_log - f64::from(log_rate));
        if let (Some(low), Some(high)) = (rate(0.95), rate(0.05)) {
            (one.compared, one.score_ours, one.score_baseline) =
                (1.0, score, interval_score(low, high, value));
        }
        class.scores.add(&one, 1.0);
        self.score_decade(&one, off, bytes_log);
        let Some(class) = self.classes.get_mut(class_index(record.outcomes)) else { return };
        let octave = (u16::BITS - record.outcomes.leading_zeros()) as usize;
        if let Some(tally) = self.octaves.get_mut(octave) {
            tally.add(&one, 1.0);
        }
        let bounded = (off as f32).clamp(-ERROR_LOG_MAX, ERROR_LOG_MAX);
        let memory = (class.scores.scored as f32).min(ERROR_OUTCOMES_MAX);
        class.error_square += (bounded * bounded - class.error_square) / memory;
        let spreads =
            ((off / spread.max(0.01)) as f32).clamp(-STANDARDIZED_ERROR_MAX, STANDARDIZED_ERROR_MAX);
        let step = CLASS_STEP_INITIAL / (1.0 + class.scores.scored as f32 / 10.0);
        class.points.update(spreads, step.max(CLASS_STEP_MIN));
        if record.outcomes == 0 {
            record.points = class.points;
        }
        record.points.update(
            spreads,
            (LINK_STEP_INITIAL / (1.0 + f32::from(record.outcomes) / 4.0)).max(LINK_STEP_MIN),
        );
        record.outcomes = record.outcomes.saturating_add(1);
    }

    pub(crate) fn quality(&self) -> Vec<ForecastQuality> {
        let of =
            |(class, most): (&HistoryClass, u16)| class.scores.quality((most != u16::MAX).then_some(most));
        self.classes.iter().zip(CLASS_OUTCOMES_MAX).map(of).collect()
    }

    /// Four quarters with equally many outcomes, ordered by history; an octave that straddles two is divided
    /// between them.
    pub(crate) fn quarters(&self) -> [ForecastQuality; 4] {
        let all: f64 = self.octaves.iter().map(|tally| tally.scored).sum();
        let mut parts = [IntervalScores::default(); 4];
        let mut last = [0u32; 4];
        let mut before = 0.0;
        for (octave, tally) in self.octaves.iter().enumerate().filter(|(_, tally)| tally.scored > 0.0) {
            for (number, (part, last)) in parts.iter_mut().zip(&mut last).enumerate() {
                let (from, to) = (all * number as f64 / 4.0, all * (number + 1) as f64 / 4.0);
                let shared = (to.min(before + tally.scored) - from.max(before)).max(0.0);
                if shared > 0.0 {
                    part.add(tally, shared / tally.scored);
                    *last = 1 << octave;
                }
            }
            before += tally.scored;
        }
        let mut rows = parts.iter().zip(last).map(|(part, last)| part.quality(u16::try_from(last).ok()));
        std::array::from_fn(|_| rows.next().unwrap_or_else(|| IntervalScores::default().quality(None)))
    }

    pub(crate) fn sanitized(mut self) -> Self {
        for class in &mut self.classes {
            class.scores = class.scores.sanitized();
            class.points = class.points.sanitized();
            let fine = class.error_square.is_finite()
                && (0.0..=ERROR_LOG_MAX * ERROR_LOG_MAX).contains(&class.error_square);
            class.error_square = if fine { class.error_square } else { 0.0 };
        }
        self.octaves = self.octaves.map(IntervalScores::sanitized);
        self.bytes_log_max =
            if self.bytes_log_max.is_finite() { self.bytes_log_max.clamp(0.0, 50.0) } else { 0.0 };
        for decade in &mut self.decades {
            decade.scores = decade.scores.sanitized();
            let fine = decade.correction.is_finite() && decade.correction.abs() <= ERROR_LOG_MAX;
            decade.correction = if fine { decade.correction } else { 0.0 };
        }
        self.combiner = self.combiner.sanitized();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_forecasts_of_a_size_are_off_by_is_corrected_for_that_decade_alone() {
        let (mut calibration, mut record) = (Calibration::default(), LinkCalibration::default());
        let (bytes_log, others_log) = (5e6_f64.ln(), 5e9_f64.ln());
        for _ in 0..2_000 {
            // The corrected forecast is for one second; it takes e seconds.
            let error = 1.0 - calibration.size_correction(bytes_log);
            let outcome = Outcome { interval: (-2.0, 2.0), value: 1.0, error, spread: 0.5, bytes_log };
            calibration.score(&mut record, &outcome);
        }
        let correction = calibration.size_correction(bytes_log);
        assert!((correction - 1.0).abs() < 0.02, "{correction}");
        assert_eq!(calibration.size_correction(others_log), 0.0);
        assert_eq!(calibration.decades().len(), 1);
    }
}
