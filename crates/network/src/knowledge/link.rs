//! State of one link, and of each direction of a storage.

use longhaul_model::{Blame, Timestamp};
use serde::{Deserialize, Serialize};

use crate::calibration::LinkCalibration;
use crate::change_point::{Alarm, ChangePointDetector, DropDetector};
use crate::concurrency_curve::ConcurrencyCurve;
use crate::ewma::{FastEwma, SlowEwma};
use crate::forecast_combiner::LinkBias;
use crate::goodput_meter::{EndpointCounters, GoodputMeter, Sample};
use crate::rate_history::RateHistory;
use crate::startup_cost::StartupCost;
use crate::window_aggregator::{AggregatedWindow, WindowAggregator};

/// Half-life of a failure: ten minutes.
const FAILURE_HALF_LIFE_S: f64 = 600.0;
/// Attempts remembered.
pub(super) const FAILURE_ATTEMPTS_MAX: f64 = 100.0;
/// Prior trust in a link, in attempts that succeeded (additive smoothing).
const FAILURE_PRIOR_ATTEMPTS: f64 = 3.0;

/// Memory of the usual number of files, in seconds of observation.
const FILES_MEMORY_S: f64 = 20.0;
/// Start-up may take this share of a window before the window says nothing of the rate.
const STARTUP_SHARE_MAX: f64 = 0.5;
/// Share of the sample noise that a whole transfer still shows.
const TRANSFER_NOISE_SHARE: f64 = 0.1;

#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    pub fast: FastEwma,
    pub slow: SlowEwma,
    pub meter: GoodputMeter,
    pub endpoint_counters: EndpointCounters,
    /// Aggregate that the detector observes next.
    pub aggregator: WindowAggregator,
    pub failures: FailureStats,
    pub rate_last: f32,
    pub curve: ConcurrencyCurve,
    pub startup: StartupCost,
    /// Over aggregates and five-minute means: robust against late reports and busy ends.
    pub detector: ChangePointDetector,
    /// Over single windows, which come soon enough on a link that has become very slow.
    pub drops: DropDetector,
    pub calibration: LinkCalibration,
    /// Logarithm of the bytes of its largest outcome.
    pub bytes_log_max: f32,
    /// Bias of its outcomes against the forecast of all links.
    pub bias: LinkBias,
    pub history: RateHistory,
    /// Logarithm of the number of files with which `fast` was measured.
    pub files_log: f32,
    /// Five-minute mean that the detector observes next.
    pub block: FiveMinuteBlock,
}

/// Sum of the measurements of the current five minutes, and their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FiveMinuteBlock {
    /// Deviations from the baseline. Measurements beside other links' work are dropped then.
    Alone { off: f32, count: u16 },
    /// Only measurements beside other links' work: how far they were below the link's share.
    Shared { below: f32, count: u16 },
}

impl Default for FiveMinuteBlock {
    fn default() -> Self {
        FiveMinuteBlock::Shared { below: 0.0, count: 0 }
    }
}

impl FiveMinuteBlock {
    fn add_alone(&mut self, more: f64) {
        let (off, count) = match *self {
            FiveMinuteBlock::Alone { off, count } => (off, count),
            FiveMinuteBlock::Shared { .. } => (0.0, 0),
        };
        *self = FiveMinuteBlock::Alone { off: off + more as f32, count: count.saturating_add(1) };
    }

    fn add_shared(&mut self, more: f64) {
        if let FiveMinuteBlock::Shared { below, count } = self {
            *below += more as f32;
            *count = count.saturating_add(1);
        }
    }
}

impl LinkState {
    /// Number of files with which the rate was measured.
    pub(super) fn files_usual(&self) -> f64 {
        f64::from(self.files_log).exp()
    }

    /// Observes a window of the link; returns an alarm if the link changed.
    pub(super) fn observe_window(&mut self, sample: &Sample, telling: bool, now: Timestamp) -> Option<Alarm> {
        let log = sample.bytes_per_s.max(1.0).ln();
        self.fast.observe(sample.bytes_per_s, sample.weight, now);
        self.slow.observe(sample.bytes_per_s, sample.weight, now);
        let follow = (sample.weight / (FILES_MEMORY_S / 2.0)).min(1.0) as f32;
        self.files_log += (sample.files.max(1.0).ln() as f32 - self.files_log) * follow;
        let closed = self.history.add(log, sample.seconds, now).is_some();
        let alarm = if closed { self.close_block(now) } else { None };
        if !telling || !sample.informative {
            return alarm;
        }
        alarm.or(self.observe_drop(sample, now))
    }

    /// Compares one window with the curve, and learns the curve from it.
    fn observe_drop(&mut self, sample: &Sample, now: Timestamp) -> Option<Alarm> {
        let corrected = sample.bytes_per_s.max(1.0) * self.startup_correction(sample)?;
        let expected = self.curve.measured_log_rate(sample.files);
        self.curve.observe(sample.files, corrected, sample.seconds, now);
        let off = corrected.ln() - expected?;
        self.drops.observe(off, self.detector.slack(), now)
    }

    /// Compares an aggregate with the curve, or with `share`, the link's fair share of an end busy with other
    /// links.
    pub(super) fn detect_change(
        &mut self,
        whole: &AggregatedWindow,
        share: Option<f64>,
        now: Timestamp,
    ) -> Option<Alarm> {
        let log = whole.bytes_per_s.max(1.0).ln();
        let off = log - self.curve.measured_log_rate(whole.files)?;
        match share.filter(|_| self.detector.is_ready()) {
            Some(share) => {
                let below = share.max(1.0).ln() - log;
                self.block.add_shared(below.min(self.detector.level() - off));
                self.detector.observe_shared_sample(off, below, now)
            }
            None => {
                self.block.add_alone(off);
                self.detector.observe_sample(off, now)
            }
        }
    }

    /// Mean and variance of log(rate) with so many files, from the link's own curve and its recent deviation;
    /// none for a concurrency that was never measured.
    pub(super) fn expected(&self, files: f64) -> Option<(f64, f64)> {
        let usual = self.curve.measured_log_rate(files)?;
        let (sum, count) = match self.block {
            FiveMinuteBlock::Alone { off, count } => (f64::from(off), f64::from(count)),
            FiveMinuteBlock::Shared { .. } => (0.0, 0.0),
        };
        let (noise, wander) = (self.detector.noise(), self.detector.block_noise());
        // The mean of these five minutes, shrunk by the noise of single measurements.
        let trust = count * wander * wander / (count * wander * wander + noise * noise);
        let off = if count > 0.0 { (sum / count - self.detector.level()) * trust } else { 0.0 };
        Some((usual + off, wander * wander * (1.0 - trust) + noise * noise * TRANSFER_NOISE_SHARE))
    }

    fn close_block(&mut self, now: Timestamp) -> Option<Alarm> {
        match std::mem::take(&mut self.block) {
            FiveMinuteBlock::Alone { off, count } => {
                self.detector.observe_block(f64::from(off) / f64::from(count), now)
            }
            FiveMinuteBlock::Shared { below, count } => {
                self.detector.observe_shared_block(f64::from(below) / f64::from(count.max(1)));
                None
            }
        }
    }

    /// Observes a window that a limit of ours explains: it counts for the present rate only.
    pub(super) fn observe_limited_window(&mut self, sample: &Sample, now: Timestamp) {
        self.fast.observe(sample.bytes_per_s, sample.weight, now);
        self.history.add(sample.bytes_per_s.max(1.0).ln(), sample.seconds, now);
        self.block = FiveMinuteBlock::default();
        self.aggregator = WindowAggregator::default();
    }

    /// Forgets the present rate and what of it is not complete.
    pub(super) fn forget_window(&mut self) {
        self.meter.forget_window();
        self.fast.restart();
        self.block = FiveMinuteBlock::default();
        self.aggregator = WindowAggregator::default();
    }

    /// Adds a window to the aggregate; returns it when complete.
    pub(super) fn aggregate(&mut self, sample: &Sample, ends: [f64; 2]) -> Option<AggregatedWindow> {
        let starts = self.startup_correction(sample)?;
        self.aggregator.add(sample, starts, ends)
    }

    /// Factor by which more would have come without the start-up of files; none where that was most of the
    /// window.
    fn startup_correction(&self, sample: &Sample) -> Option<f64> {
        let (start, _) = self.startup.fit();
        let known = self.calibration.outcomes() > 0;
        let starts = if known { start * sample.files_per_s / sample.files.max(1.0) } else { 0.0 };
        (starts < STARTUP_SHARE_MAX).then(|| 1.0 / (1.0 - starts))
    }

    /// Moves the level by `by` (logarithm) after a change; what was learned about the shape is kept.
    pub(super) fn shift(&mut self, by: f64) {
        self.curve.shift(by);
        self.slow.shift(by);
        self.fast.restart();
        self.block = FiveMinuteBlock::default();
        self.aggregator = WindowAggregator::default();
        // The curve moved, so that deviations are zero again.
        self.detector.restart(0.0);
        self.drops.restart();
    }

    /// Memory in use.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.history.heap_bytes()
    }
}

/// State of one direction of a storage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StorageEndState {
    /// Total rate of all its links.
    pub total: FastEwma,
    pub meter: GoodputMeter,
    /// Links with work.
    pub links: u32,
    /// Bytes since the start.
    pub moved: u64,
    pub intake: IntakeRate,
}

/// Recent intake of a target: peak detector that follows a rise at once and decays slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntakeRate {
    pub bytes_per_s: f64,
    pub files_per_s: f64,
}

impl IntakeRate {
    pub(super) fn observe(&mut self, sample: Sample) {
        let next = |old: f64, new: f64| if new > old { new } else { 0.7 * old + 0.3 * new };
        self.bytes_per_s = next(self.bytes_per_s, sample.bytes_per_s);
        self.files_per_s = next(self.files_per_s, sample.files_per_s);
    }
}

/// Exponentially weighted counts of attempts and of failures by blame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FailureStats {
    #[serde(rename = "tries")]
    attempts: f32,
    failures: [f32; Blame::ALL.len()],
    last: Timestamp,
}

impl FailureStats {
    pub(super) fn count(&mut self, failed: Option<Blame>, now: Timestamp) {
        let kept = self.decay(now).min((FAILURE_ATTEMPTS_MAX - 1.0) / f64::from(self.attempts).max(1.0));
        self.attempts = (f64::from(self.attempts) * kept) as f32 + 1.0;
        self.failures = self.failures.map(|failures| (f64::from(failures) * kept) as f32);
        if let Some(slot) = failed.and_then(|blame| self.failures.get_mut(blame as usize)) {
            *slot += 1.0;
        }
        self.last = self.last.max(now);
    }

    fn decay(&self, now: Timestamp) -> f64 {
        (-now.since(self.last).as_secs_f64() / FAILURE_HALF_LIFE_S).exp2()
    }

    /// Share of failures that speak against this link: by its source or the network, among attempts that
    /// others did not fail. A full target would be full for any source.
    pub(super) fn link_share(&self, now: Timestamp) -> f64 {
        let of = |blame: Blame| self.failures.get(blame as usize).map_or(0.0, |count| f64::from(*count));
        let all: f64 = self.failures.iter().map(|count| f64::from(*count)).sum();
        let own = of(Blame::Source) + of(Blame::Network);
        self.shrunk_share(own, f64::from(self.attempts) - (all - own), now)
    }

    /// Shares of failures by blame, among all attempts.
    pub(super) fn shares_by_blame(&self, now: Timestamp) -> [f64; Blame::ALL.len()] {
        self.failures.map(|failures| self.shrunk_share(failures.into(), self.attempts.into(), now))
    }

    fn shrunk_share(&self, failures: f64, tries: f64, now: Timestamp) -> f64 {
        let kept = self.decay(now);
        (failures * kept / (tries.max(failures) * kept + FAILURE_PRIOR_ATTEMPTS)).clamp(0.0, 1.0)
    }

    /// Makes deserialised numbers valid.
    pub(super) fn sanitized(mut self) -> Self {
        self.attempts = if self.attempts.is_finite() {
            self.attempts.clamp(0.0, FAILURE_ATTEMPTS_MAX as f32)
        } else {
            0.0
        };
        let most = self.attempts / self.failures.len() as f32;
        let sum: f32 = self.failures.iter().sum();
        let possible = self.failures.iter().all(|failures| failures.is_finite() && *failures >= 0.0);
        if !possible {
            self.failures = [0.0; Blame::ALL.len()];
        } else if sum > self.attempts {
            self.failures = self.failures.map(|failures| failures.min(most));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(files_per_s: f64) -> Sample {
        Sample {
            bytes_per_s: 50e6,
            files_per_s,
            squares: 0.0,
            files: 1.0,
            seconds: 10.0,
            informative: true,
            weight: 10.0,
        }
    }

    /// Hours of five-minute means, the later ones far lower; whether an alarm comes.
    fn falls(state: &mut LinkState, sample: &Sample) -> bool {
        (0..60 * 30).any(|number| {
            let off = if number < 30 * 30 { 0.0 } else { -1.5 };
            let now = Timestamp::from_seconds(1_800_000_000 + number * 10);
            if off == 0.0 {
                state.detector.observe_sample(off, now);
            }
            state.block.add_alone(off);
            state.observe_window(sample, true, now).is_some()
        })
    }

    #[test]
    fn an_alarm_of_the_means_does_not_depend_on_the_window_that_closes_them() {
        assert!(falls(&mut LinkState::default(), &window(0.1)), "files take their bytes' time");
        // The window says nothing by itself: it is all start-up.
        let calibration = LinkCalibration::from_stored((Default::default(), 9));
        let mut starts = LinkState { calibration, ..LinkState::default() };
        (0..20).for_each(|second| starts.startup.observe(0.0, 1.0, Timestamp::from_seconds(second)));
        assert!(starts.startup_correction(&window(1.0)).is_none());
        assert!(falls(&mut starts, &window(1.0)));
    }
}
