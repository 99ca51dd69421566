//! What is kept of one link, and of each side of a storage.

use longhaul_model::{Blame, Timestamp};
use serde::{Deserialize, Serialize};

use crate::belief::{Belief, Slow};
use crate::bins::Bins;
use crate::blend::Level;
use crate::calibrate::LinkRecord;
use crate::curve::Curve;
use crate::detect::{Alarm, Detector, Falls};
use crate::gather::{Gather, Whole};
use crate::meter::{Ends, Meter, Sample};
use crate::overhead::Overhead;

/// Failures count half after this; attempts beyond the most recent so many do not count.
const FAILURE_HALF_LIFE_S: f64 = 600.0;
pub(super) const FAILURE_TRIES_MAX: f64 = 100.0;
/// Trust in a link before its first attempts, in attempts that succeeded.
const FAILURE_PRIOR_TRIES: f64 = 3.0;

/// How fast the usual number of files follows, in seconds of observation.
const FILES_MEMORY_S: f64 = 20.0;
/// Starting files may take this part of a window before it says nothing of the rate.
const STARTS_MAX: f64 = 0.5;
/// What of the noise of single measurements a whole transfer still shows.
const NOISE_SHARE: f64 = 0.1;

#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    pub belief: Belief,
    pub slow: Slow,
    pub meter: Meter,
    pub ends: Ends,
    /// What the detector is told of next.
    pub gather: Gather,
    pub trouble: Trouble,
    pub rate_last: f32,
    pub curve: Curve,
    pub overhead: Overhead,
    /// Of windows put together and of five minutes: sees through files told of late and through busy ends, …
    pub detector: Detector,
    /// … and of single windows, which come soon enough on a link that has become very slow.
    pub falls: Falls,
    pub record: LinkRecord,
    /// Of its outcomes against what is expected of all links.
    pub level: Level,
    pub bins: Bins,
    /// Logarithm of the number of files with which `belief` was measured.
    pub files_log: f32,
    /// The five minutes that the detector is told of next.
    pub block: Block,
}

/// What measurements of five minutes come to, in so many of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Block {
    /// How far they were off what is usual. Those among others do not count beside.
    Alone { off: f32, count: u16 },
    /// There were only such while an end was busy with others: how far they were below the link's part of it.
    AmongOthers { below: f32, count: u16 },
}

impl Default for Block {
    fn default() -> Self {
        Block::AmongOthers { below: 0.0, count: 0 }
    }
}

impl Block {
    fn add_alone(&mut self, more: f64) {
        let (off, count) = match *self {
            Block::Alone { off, count } => (off, count),
            Block::AmongOthers { .. } => (0.0, 0),
        };
        *self = Block::Alone { off: off + more as f32, count: count.saturating_add(1) };
    }

    fn add_among_others(&mut self, more: f64) {
        if let Block::AmongOthers { below, count } = self {
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
    pub(super) fn believe(&mut self, sample: &Sample, telling: bool, now: Timestamp) -> Option<Alarm> {
        let log = sample.bytes_per_s.max(1.0).ln();
        self.belief.observe(sample.bytes_per_s, sample.weight, now);
        self.slow.observe(sample.bytes_per_s, sample.weight, now);
        let follow = (sample.weight / (FILES_MEMORY_S / 2.0)).min(1.0) as f32;
        self.files_log += (sample.files.max(1.0).ln() as f32 - self.files_log) * follow;
        let closed = self.bins.add(log, sample.seconds, now).is_some();
        let alarm = if closed { self.close_block(now) } else { None };
        if !telling || !sample.telling {
            return alarm;
        }
        let corrected = sample.bytes_per_s.max(1.0) * self.starts(sample)?;
        let expected = self.curve.tried(sample.files);
        self.curve.observe(sample.files, corrected, sample.seconds, now);
        let off = corrected.ln() - expected?;
        alarm.or(self.falls.sample(off, self.detector.slack(), now))
    }

    /// Holds what several windows say against what is usual with so many files, or against `share`, which is
    /// what the link had to get of an end that was busy with others.
    pub(super) fn judge(&mut self, whole: &Whole, share: Option<f64>, now: Timestamp) -> Option<Alarm> {
        let log = whole.bytes_per_s.max(1.0).ln();
        let off = log - self.curve.tried(whole.files)?;
        match share.filter(|_| self.detector.is_ready()) {
            Some(share) => {
                let below = share.max(1.0).ln() - log;
                self.block.add_among_others(below.min(self.detector.level() - off));
                self.detector.shared(off, below, now)
            }
            None => {
                self.block.add_alone(off);
                self.detector.sample(off, now)
            }
        }
    }

    /// What the link will give with so many files, by its own curve and by what it lately was off that: mean
    /// and variance of the logarithm; none for a number of files that was never measured.
    pub(super) fn expected(&self, files: f64) -> Option<(f64, f64)> {
        let usual = self.curve.tried(files)?;
        let (sum, count) = match self.block {
            Block::Alone { off, count } => (f64::from(off), f64::from(count)),
            Block::AmongOthers { .. } => (0.0, 0.0),
        };
        let (noise, wander) = (self.detector.noise(), self.detector.wander());
        // The mean of these five minutes, as far as it is more than the noise of single measurements.
        let trust = count * wander * wander / (count * wander * wander + noise * noise);
        let off = if count > 0.0 { (sum / count - self.detector.level()) * trust } else { 0.0 };
        Some((usual + off, wander * wander * (1.0 - trust) + noise * noise * NOISE_SHARE))
    }

    fn close_block(&mut self, now: Timestamp) -> Option<Alarm> {
        match std::mem::take(&mut self.block) {
            Block::Alone { off, count } => self.detector.block(f64::from(off) / f64::from(count), now),
            Block::AmongOthers { below, count } => {
                self.detector.shared_block(f64::from(below) / f64::from(count.max(1)));
                None
            }
        }
    }

    /// One more window, for the detector; gives what several say together.
    pub(super) fn gather(&mut self, sample: &Sample, ends: [f64; 2]) -> Option<Whole> {
        let starts = self.starts(sample)?;
        self.gather.add(sample, starts, ends)
    }

    /// By what factor more would have come had all files been there from the start; none where starting them
    /// was most of it.
    fn starts(&self, sample: &Sample) -> Option<f64> {
        let (start, _) = self.overhead.fit();
        let known = self.record.outcomes() > 0;
        let starts = if known { start * sample.files_per_s / sample.files.max(1.0) } else { 0.0 };
        (starts < STARTS_MAX).then(|| 1.0 / (1.0 - starts))
    }

    /// From now on it is another link: by so much, in logarithms.
    pub(super) fn shift(&mut self, by: f64) {
        self.curve.shift(by);
        self.slow.shift(by);
        self.belief.restart();
        self.block = Block::default();
        self.gather = Gather::default();
        // The curve moved, so that measurements are off by nothing again.
        self.detector.restart(0.0);
        self.falls.restart();
    }

    /// Bytes that this takes, all told.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.bins.heap_bytes()
    }
}

/// One side of a storage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndState {
    /// What all its links give together.
    pub total: Belief,
    pub meter: Meter,
    /// Links that have work now.
    pub links: u32,
    /// Bytes since ever.
    pub moved: u64,
    pub pace: Pace,
}

/// What a target took lately; follows a rise at once and a fall slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    pub bytes_per_s: f64,
    pub files_per_s: f64,
}

impl Pace {
    pub(super) fn follow(&mut self, sample: Sample) {
        let next = |old: f64, new: f64| if new > old { new } else { 0.7 * old + 0.3 * new };
        self.bytes_per_s = next(self.bytes_per_s, sample.bytes_per_s);
        self.files_per_s = next(self.files_per_s, sample.files_per_s);
    }
}

/// Attempts of late, and how many failed by whose fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trouble {
    tries: f32,
    failures: [f32; Blame::ALL.len()],
    last: Timestamp,
}

impl Trouble {
    pub(super) fn count(&mut self, failed: Option<Blame>, now: Timestamp) {
        let kept = self.kept(now).min((FAILURE_TRIES_MAX - 1.0) / f64::from(self.tries).max(1.0));
        self.tries = (f64::from(self.tries) * kept) as f32 + 1.0;
        self.failures = self.failures.map(|failures| (f64::from(failures) * kept) as f32);
        if let Some(slot) = failed.and_then(|blame| self.failures.get_mut(blame as usize)) {
            *slot += 1.0;
        }
        self.last = self.last.max(now);
    }

    fn kept(&self, now: Timestamp) -> f64 {
        (-now.since(self.last).as_secs_f64() / FAILURE_HALF_LIFE_S).exp2()
    }

    /// Of the attempts that did not fail by another's fault, those that failed by that of the source or of
    /// the network: what speaks against this source. A target that is full would be so for any.
    pub(super) fn share(&self, now: Timestamp) -> f64 {
        let of = |blame: Blame| self.failures.get(blame as usize).map_or(0.0, |count| f64::from(*count));
        let all: f64 = self.failures.iter().map(|count| f64::from(*count)).sum();
        let own = of(Blame::Source) + of(Blame::Network);
        self.part(own, f64::from(self.tries) - (all - own), now)
    }

    /// By whose fault attempts failed, of all.
    pub(super) fn shares(&self, now: Timestamp) -> [f64; Blame::ALL.len()] {
        self.failures.map(|failures| self.part(failures.into(), self.tries.into(), now))
    }

    fn part(&self, failures: f64, tries: f64, now: Timestamp) -> f64 {
        let kept = self.kept(now);
        (failures * kept / (tries.max(failures) * kept + FAILURE_PRIOR_TRIES)).clamp(0.0, 1.0)
    }

    /// Numbers read from outside are made sound.
    pub(super) fn sound(mut self) -> Self {
        self.tries =
            if self.tries.is_finite() { self.tries.clamp(0.0, FAILURE_TRIES_MAX as f32) } else { 0.0 };
        let most = self.tries / self.failures.len() as f32;
        let sum: f32 = self.failures.iter().sum();
        let possible = self.failures.iter().all(|failures| failures.is_finite() && *failures >= 0.0);
        if !possible {
            self.failures = [0.0; Blame::ALL.len()];
        } else if sum > self.tries {
            self.failures = self.failures.map(|failures| failures.min(most));
        }
        self
    }
}
