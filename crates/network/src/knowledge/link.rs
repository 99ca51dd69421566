//! What is kept of one link, and of each side of a storage.

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

/// Failures count half after this; attempts beyond the most recent so many do not count.
const FAILURE_HALF_LIFE_S: f64 = 600.0;
pub(super) const FAILURE_ATTEMPTS_MAX: f64 = 100.0;
/// Trust in a link before its first attempts, in attempts that succeeded.
const FAILURE_PRIOR_ATTEMPTS: f64 = 3.0;

/// How fast the usual number of files follows, in seconds of observation.
const FILES_MEMORY_S: f64 = 20.0;
/// Starting files may take this part of a window before it says nothing of the rate.
const STARTUP_SHARE_MAX: f64 = 0.5;
/// What of the noise of single measurements a whole transfer still shows.
const TRANSFER_NOISE_SHARE: f64 = 0.1;

#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    pub fast: FastEwma,
    pub slow: SlowEwma,
    pub meter: GoodputMeter,
    pub endpoint_counters: EndpointCounters,
    /// What the detector is told of next.
    pub aggregator: WindowAggregator,
    pub failures: FailureStats,
    pub rate_last: f32,
    pub curve: ConcurrencyCurve,
    pub startup: StartupCost,
    /// Of windows put together and of five minutes: sees through files told of late and through busy ends, …
    pub detector: ChangePointDetector,
    /// … and of single windows, which come soon enough on a link that has become very slow.
    pub drops: DropDetector,
    pub calibration: LinkCalibration,
    /// Of its outcomes against what is expected of all links.
    pub bias: LinkBias,
    pub history: RateHistory,
    /// Logarithm of the number of files with which `belief` was measured.
    pub files_log: f32,
    /// The five minutes that the detector is told of next.
    pub block: FiveMinuteBlock,
}

/// What measurements of five minutes come to, in so many of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FiveMinuteBlock {
    /// How far they were off what is usual. Those among others do not count beside.
    Alone { off: f32, count: u16 },
    /// There were only such while an end was busy with others: how far they were below the link's part of it.
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
    /// Number of files with which the rate believed was measured.
    pub(super) fn files_usual(&self) -> f64 {
        f64::from(self.files_log).exp()
    }

    /// Takes a measurement in which the link itself showed; says if the link is not what it was.
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
        let corrected = sample.bytes_per_s.max(1.0) * self.startup_correction(sample)?;
        let expected = self.curve.measured_log_rate(sample.files);
        self.curve.observe(sample.files, corrected, sample.seconds, now);
        let off = corrected.ln() - expected?;
        alarm.or(self.drops.observe(off, self.detector.slack(), now))
    }

    /// Holds what several windows say against what is usual with so many files, or against `share`, which is
    /// what the link had to get of an end that was busy with others.
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

    /// What the link will give with so many files, by its own curve and by what it lately was off that: mean
    /// and variance of the logarithm; none for a number of files that was never measured.
    pub(super) fn expected(&self, files: f64) -> Option<(f64, f64)> {
        let usual = self.curve.measured_log_rate(files)?;
        let (sum, count) = match self.block {
            FiveMinuteBlock::Alone { off, count } => (f64::from(off), f64::from(count)),
            FiveMinuteBlock::Shared { .. } => (0.0, 0.0),
        };
        let (noise, wander) = (self.detector.noise(), self.detector.block_noise());
        // The mean of these five minutes, as far as it is more than the noise of single measurements.
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

    /// One more window, for the detector; gives what several say together.
    pub(super) fn aggregate(&mut self, sample: &Sample, ends: [f64; 2]) -> Option<AggregatedWindow> {
        let starts = self.startup_correction(sample)?;
        self.aggregator.add(sample, starts, ends)
    }

    /// By what factor more would have come had all files been there from the start; none where starting them
    /// was most of it.
    fn startup_correction(&self, sample: &Sample) -> Option<f64> {
        let (start, _) = self.startup.fit();
        let known = self.calibration.outcomes() > 0;
        let starts = if known { start * sample.files_per_s / sample.files.max(1.0) } else { 0.0 };
        (starts < STARTUP_SHARE_MAX).then(|| 1.0 / (1.0 - starts))
    }

    /// From now on it is another link: by so much, in logarithms.
    pub(super) fn shift(&mut self, by: f64) {
        self.curve.shift(by);
        self.slow.shift(by);
        self.fast.restart();
        self.block = FiveMinuteBlock::default();
        self.aggregator = WindowAggregator::default();
        // The curve moved, so that measurements are off by nothing again.
        self.detector.restart(0.0);
        self.drops.restart();
    }

    /// Bytes that this takes, all told.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.history.heap_bytes()
    }
}

/// One side of a storage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StorageEndState {
    /// What all its links give together.
    pub total: FastEwma,
    pub meter: GoodputMeter,
    /// Links that have work now.
    pub links: u32,
    /// Bytes since ever.
    pub moved: u64,
    pub intake: IntakeRate,
}

/// What a target took lately; follows a rise at once and a fall slowly.
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

/// Attempts of late, and how many failed by whose fault.
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

    /// Of the attempts that did not fail by another's fault, those that failed by that of the source or of
    /// the network: what speaks against this source. A target that is full would be so for any.
    pub(super) fn link_share(&self, now: Timestamp) -> f64 {
        let of = |blame: Blame| self.failures.get(blame as usize).map_or(0.0, |count| f64::from(*count));
        let all: f64 = self.failures.iter().map(|count| f64::from(*count)).sum();
        let own = of(Blame::Source) + of(Blame::Network);
        self.shrunk_share(own, f64::from(self.attempts) - (all - own), now)
    }

    /// By whose fault attempts failed, of all.
    pub(super) fn shares_by_blame(&self, now: Timestamp) -> [f64; Blame::ALL.len()] {
        self.failures.map(|failures| self.shrunk_share(failures.into(), self.attempts.into(), now))
    }

    fn shrunk_share(&self, failures: f64, tries: f64, now: Timestamp) -> f64 {
        let kept = self.decay(now);
        (failures * kept / (tries.max(failures) * kept + FAILURE_PRIOR_ATTEMPTS)).clamp(0.0, 1.0)
    }

    /// Numbers read from outside are made sound.
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
