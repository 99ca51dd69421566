//! Forecasts: how long a link takes for given work, with a calibrated 90 % interval, and the scoring of
//! outcomes.

use std::time::Duration;

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::prior::Prior;
use super::{Basis, Estimate, Knowledge, Link};
use crate::calibration::{ForecastQuality, Outcome, SizeDecadeQuality};
use crate::forecast_combiner::ModelPredictions;
use crate::observation::PathSelector;

/// Additional standard deviation where the concurrency was never measured.
const UNMEASURED_SPREAD: f64 = 0.4;
/// Work of up to ten times (as a logarithm) the bytes of the largest outcome of a link is like it.
const KNOWN_SIZE_LOG: f64 = std::f64::consts::LN_10;
/// Longest forecast; longer is as good as never.
const FORECAST_S_MAX: f64 = 1e9;

/// Files to transfer, `at_once` of them concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub bytes: u64,
    pub files: u32,
    pub at_once: u32,
    pub backlog: Backlog,
}

/// Bytes requested earlier of the link, of its source and into its target, and not there yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    pub link: u64,
    pub source: u64,
    pub target: u64,
}

impl Work {
    pub fn file(bytes: u64) -> Self {
        Work { bytes, files: 1, at_once: 1, backlog: Backlog::default() }
    }
}

/// Forecast of a duration. Small, so that it can be kept until the outcome is known and is scored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Median.
    pub seconds: f32,
    /// Lower end of the 90 % interval.
    pub low_s: f32,
    /// Upper end of the 90 % interval.
    pub high_s: f32,
    /// Seconds of the bytes alone at the estimated rate.
    data_s: f32,
    /// Seconds of the work by each model.
    #[serde(rename = "guesses")]
    predictions: ModelPredictions,
    /// Expected logarithm of the seconds over all links.
    #[serde(rename = "all")]
    log_mean: f32,
    /// Expected logarithm of the seconds with the bias of this link.
    #[serde(rename = "own")]
    with_bias: f32,
    /// Standard deviation of the logarithm.
    spread: f32,
}

impl Knowledge {
    /// Estimated rate with `more` files beyond those under way; busy ends are shared with their other links.
    pub fn rate_with(&self, link: Link, more: u32, now: Timestamp) -> Estimate {
        self.rate_under_load(link, more, now).estimate()
    }

    fn rate_under_load(&self, link: Link, more: u32, now: Timestamp) -> Prior {
        let loaded = self.rate_under_load_unbounded(link, more, now);
        match self.circuits.reserved_rate(link) {
            Some(most) => Prior { mean: loaded.mean.min(most.max(1.0).ln()), ..loaded },
            None => loaded,
        }
    }

    fn rate_under_load_unbounded(&self, link: Link, more: u32, now: Timestamp) -> Prior {
        let believed = self.posterior(link, now);
        let state = self.links.get(&link);
        let active = state.map_or(0, |state| state.meter.active()).saturating_add(more).max(1);
        let files = f64::from(active);
        if let Some((mean, variance)) = state.and_then(|state| state.expected(files)) {
            return self.share_of_busy_ends(
                link,
                Prior { mean, variance, basis: Basis::Measured },
                files,
                more,
                now,
            );
        }
        let own = state.and_then(|state| state.curve.growth(state.files_usual(), files));
        // A new link grows as others do.
        let usual = state
            .filter(|state| state.slow.has_data())
            .map_or(self.typical_curve.usual_files(), |state| state.files_usual());
        let as_others = || self.typical_curve.growth(usual, files).map(|(growth, _)| (growth, false));
        let (growth, tried) =
            own.filter(|&(_, tried)| tried).or_else(as_others).or(own).unwrap_or((0.0, false));
        let untried = if tried { 0.0 } else { UNMEASURED_SPREAD * UNMEASURED_SPREAD };
        let loaded =
            Prior { mean: believed.mean + growth, variance: believed.variance + untried, ..believed };
        self.share_of_busy_ends(link, loaded, files, more, now)
    }

    /// Caps the rate by the link's share of an end that other links use.
    fn share_of_busy_ends(&self, link: Link, loaded: Prior, files: f64, more: u32, now: Timestamp) -> Prior {
        let mut mean = loaded.mean;
        for (into, storage) in [(false, link.source), (true, link.target)] {
            let ends = if into { &self.targets } else { &self.sources };
            let Some(end) = ends.get(&storage) else { continue };
            let all = f64::from(end.meter.active().saturating_add(more)).max(files);
            if all > files
                && let Some(total) = self.end_rate(storage, into, now)
            {
                mean = mean.min((total.high * files / all).max(1.0).ln());
            }
        }
        Prior { mean, ..loaded }
    }

    /// Estimated rate over one path between the ends if measured, else that of the link.
    pub fn rate_over_path(&self, link: Link, path: PathSelector, now: Timestamp) -> Estimate {
        let posterior = self.posterior(link, now);
        match self.path_state(link, path) {
            Some(state) => {
                let with = posterior.combined_with(&state.rate, state.rate.weight_at(now), Basis::Measured);
                match state.rate_max() {
                    Some(cap) if cap.ln() < with.mean => Prior { mean: cap.max(1.0).ln(), ..with }.estimate(),
                    _ => with.estimate(),
                }
            }
            None => posterior.estimate(),
        }
    }

    /// Forecasts the duration of work next to what is under way.
    pub fn forecast(&self, link: Link, work: Work, now: Timestamp) -> Forecast {
        let at_once = work.at_once.clamp(1, work.files.max(1));
        let estimate = self.rate_under_load(link, at_once, now).estimate();
        let rate = estimate.bytes_per_s.max(1.0);
        let state = self.links.get(&link);
        let active = f64::from(state.map_or(0, |state| state.meter.active()).saturating_add(at_once));
        // Its share of the link is that of its files.
        let data_s = (work.bytes as f64 * active.max(1.0) / f64::from(at_once) / rate).min(FORECAST_S_MAX);
        let (start, slope) = state.map_or((0.2, 1.0), |state| state.startup.fit());
        let starts = start * f64::from(work.files.max(1)) / f64::from(at_once);
        let behind = |ahead: u64, rate: f64| (ahead as f64 + work.bytes as f64) / rate.max(1.0);
        let end = |storage, into, ahead| {
            let total = self.end_rate(storage, into, now).map_or(rate, |total| total.bytes_per_s.max(rate));
            behind(ahead, total)
        };
        let models = [
            slope * data_s,
            behind(work.backlog.link, rate),
            end(link.source, false, work.backlog.source),
            end(link.target, true, work.backlog.target),
        ];
        let guesses = ModelPredictions {
            models: models.map(|model| (starts + model).clamp(1e-3, FORECAST_S_MAX) as f32),
            start: starts as f32,
        };
        let bytes_log = (work.bytes.max(1) as f64).ln();
        let all = self.calibration.combiner.predict(&guesses) + self.calibration.size_correction(bytes_log);
        let outcomes = state.map_or(0, |state| state.calibration.outcomes());
        let own = all + state.map_or(0.0, |state| f64::from(state.bias.mean(outcomes)));
        let record = state.map(|state| &state.calibration);
        let usual = self.calibration.spread(record);
        let spread = f64::from(state.map_or(usual, |state| state.bias.spread(usual, outcomes)));
        let [low, middle, high] = self.calibration.quantiles(record);
        // What was learned from smaller work does not carry over decades: larger work takes as long as its
        // bytes at the estimated rate, or at an end of its interval.
        let largest = state.map_or(0.0, |state| f64::from(state.bytes_log_max));
        let largest = if largest > 0.0 { largest } else { self.calibration.bytes_log_max() };
        let known = bytes_log <= largest + KNOWN_SIZE_LOG;
        let floor = |per_s: f64| if known { 0.0 } else { data_s * rate / per_s.max(1.0) };
        let at = |point: f64, per_s: f64| {
            let fitted = (own + point * spread).exp().max(floor(per_s));
            fitted.clamp(1e-3, 10.0 * FORECAST_S_MAX) as f32
        };
        Forecast {
            seconds: at(middle, rate),
            low_s: at(low, estimate.high),
            high_s: at(high, estimate.low),
            data_s: data_s as f32,
            predictions: guesses,
            log_mean: all as f32,
            with_bias: own as f32,
            spread: spread as f32,
        }
    }

    /// Scores a forecast for work of `bytes` that completed after `took`.
    pub fn score(&mut self, link: Link, forecast: &Forecast, bytes: u64, took: Duration, now: Timestamp) {
        let seconds = took.as_secs_f64().max(1e-3);
        let Some(state) = self.links.get_mut(&link) else { return };
        let value = seconds.ln();
        let interval = (f64::from(forecast.low_s).ln(), f64::from(forecast.high_s).ln());
        let off = value - f64::from(forecast.with_bias);
        let spread = f64::from(forecast.spread);
        let outcome = Outcome { interval, value, error: off, spread, bytes_log: (bytes.max(1) as f64).ln() };
        state.bias.update(value - f64::from(forecast.log_mean), state.calibration.outcomes());
        self.calibration.score(&mut state.calibration, &outcome);
        let level = state.bias.mean(state.calibration.outcomes());
        self.calibration.combiner.update(&forecast.predictions, value, f64::from(level));
        state.startup.observe(f64::from(forecast.data_s), seconds, now);
        state.bytes_log_max = state.bytes_log_max.max((bytes.max(1) as f64).ln() as f32);
    }

    /// Records a completed transfer, with or without a forecast, for the baseline.
    pub fn record_completion(&mut self, link: Link, bytes: u64, took: Duration) {
        if let Some(state) = self.links.get_mut(&link) {
            let log_rate = (bytes.max(1) as f64).ln() - took.as_secs_f64().max(1e-3).ln();
            state.calibration.record_rate(log_rate as f32);
        }
    }

    /// Quality of the forecasts by the history of their links.
    pub fn quality(&self) -> Vec<ForecastQuality> {
        self.calibration.quality()
    }

    /// Quality of the forecasts by decade of size.
    pub fn size_decades(&self) -> Vec<SizeDecadeQuality> {
        self.calibration.decades()
    }

    /// Quality in four quarters of equally many outcomes, links with the least history first.
    pub fn quarters(&self) -> [ForecastQuality; 4] {
        self.calibration.quarters()
    }
}
