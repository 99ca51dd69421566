//! Change-point detection: two-sided CUSUM (Page, 1954) over samples and over five-minute means of log(rate),
//! corrected for our own load.
//!
//! - Over single samples, for large shifts: it answers within a few transfers. Its slack covers the known
//!   fluctuation of the five-minute means, whose noise lasts for hundreds of samples.
//! - Over five-minute means, for smaller shifts that last.
//!
//! A one-sided CUSUM over single windows ([`DropDetector`]) complements them, since a link that has become
//! very slow yields little else.
//!
//! Thresholds follow the link's own noise and its number of measurements, for less than one false alarm per
//! month (average run length).

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::change::Evidence;

/// Samples before there is a baseline.
const BASELINE_SAMPLES_MIN: f32 = 12.0;
/// Five-minute means before there is a baseline.
const BASELINE_BLOCKS_MIN: f32 = 6.0;
/// Prior noise of five-minute means.
const BLOCK_NOISE_ASSUMED: f32 = 0.12;
/// Five-minute means that the prior noise weighs.
const BLOCK_NOISE_PRIOR_BLOCKS: f32 = 4.0;
/// Prior noise of single samples.
const SAMPLE_NOISE_ASSUMED: f32 = 0.4;
/// Memory of the level and the noise, in samples.
const MEMORY_SAMPLES_MAX: f32 = 300.0;
/// Memory of the level, in five-minute means: three hours.
const LEVEL_BLOCKS_MAX: f32 = 36.0;
/// Memory of the noise of five-minute means, in means.
const NOISE_BLOCKS_MAX: f32 = 200.0;
/// Minimum slack of the sample CUSUM: shifts below a factor of 1.65 are left to the means.
const SAMPLE_SLACK_MIN: f32 = 0.5;
/// Slack of the sample CUSUM in standard deviations of the means: these reach it once in a hundred months.
const SAMPLE_SLACK_BLOCK_NOISES: f32 = 4.5;
/// One sample counts for at most a factor of 4.5, so that an outlier alone raises no alarm.
const SAMPLE_CLIP_MIN: f32 = 1.5;
/// Minimum threshold of the sample CUSUM: several samples have to agree.
const SAMPLE_THRESHOLD_MIN: f32 = 2.2;
/// Logarithm of the samples per false alarm: a hundred months of a million samples.
const FALSE_ALARM_SAMPLES_LOG: f32 = 18.4;
/// Logarithm of the five-minute means per false alarm: a hundred months of 8,640.
const FALSE_ALARM_BLOCKS_LOG: f32 = 13.7;
/// Half of the minimum threshold: a sum above this may be a change, so the noise is not updated from it.
const SUSPICION_THRESHOLD: f32 = SAMPLE_THRESHOLD_MIN / 2.0;
/// Slack of the CUSUM over means, in standard deviations of the means.
const BLOCK_SLACK_NOISES: f32 = 1.0;
/// Minimum slack of the CUSUM over means.
const BLOCK_SLACK_MIN: f32 = 0.2;
/// Minimum threshold of the CUSUM over means.
const BLOCK_THRESHOLD_MIN: f32 = 1.0;

/// Two-sided CUSUM over samples and five-minute means; values are logarithms corrected for load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangePointDetector {
    #[serde(flatten)]
    usual: Baseline,
    blocks: f32,
    /// Mean square of the deviations of five-minute means.
    block_noise: f32,
    noise_blocks: f32,
    /// CUSUM of single samples, downwards and upwards.
    sums: [f32; 2],
    /// CUSUM of five-minute means, downwards and upwards.
    block_sums: [f32; 2],
    /// Samples since each sum left zero: they estimate the time of the change and the new level.
    #[serde(rename = "since")]
    excursions: [Excursion; 2],
    /// Five-minute means since each of their sums left zero.
    #[serde(rename = "block_since")]
    block_excursions: [Excursion; 2],
}

/// Level and noise of the samples while nothing changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Baseline {
    samples: f32,
    level: f32,
    /// Mean square of the deviations of samples.
    #[serde(rename = "sample_noise")]
    noise: f32,
}

/// One-sided CUSUM over single windows: detects that a link has become far slower. Single windows are noisier
/// than aggregates, but on a very slow link they come much sooner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DropDetector {
    #[serde(flatten)]
    usual: Baseline,
    sum: f32,
    #[serde(rename = "since")]
    excursion: Excursion,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Excursion {
    from_s: u32,
    count: f32,
    total: f32,
}

/// A detected change of the level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alarm {
    pub from: Timestamp,
    pub before: f64,
    pub after: f64,
    /// How many samples or five-minute means since the change agree.
    pub evidence: Evidence,
}

impl Excursion {
    fn add(&mut self, value: f32, now: Timestamp) {
        if self.count == 0.0 {
            self.from_s = u32::try_from(now.as_micros() / 1_000_000).unwrap_or(0);
        }
        self.count += 1.0;
        self.total += value;
    }

    /// Alarm with the mean of the excursion as the new level.
    fn alarm(&self, before: f32, now: Timestamp) -> Alarm {
        Alarm {
            from: Timestamp::from_seconds(i64::from(self.from_s)).min(now),
            before: f64::from(before),
            after: f64::from(self.total / self.count),
            evidence: Evidence::Unspecified,
        }
    }

    fn is_valid(&self) -> bool {
        let numbers = self.count.is_finite() && self.total.is_finite() && self.count >= 0.0;
        numbers && (self.count > 0.0 || self.total == 0.0)
    }
}

impl Baseline {
    /// Updates level and noise; returns the deviation once there is a baseline.
    fn learn(&mut self, value: f32) -> Option<f32> {
        let off = value - self.level;
        if !self.is_ready() {
            self.samples += 1.0;
            self.level += off / self.samples;
            if self.samples > 1.0 {
                let square = off * off * (self.samples - 1.0) / self.samples;
                self.noise += (square - self.noise) / (self.samples - 1.0);
            }
            return None;
        }
        // Robust: an outlier raises the noise no more than three standard deviations do.
        let noise = self.deviation();
        let bounded = off.clamp(-3.0 * noise, 3.0 * noise);
        self.noise += (bounded * bounded - self.noise) / self.samples.min(MEMORY_SAMPLES_MAX);
        self.samples = (self.samples + 1.0).min(MEMORY_SAMPLES_MAX);
        Some(off)
    }

    /// Moves the level by a small, bounded step.
    fn follow(&mut self, off: f32) {
        let noise = self.deviation();
        self.level += off.clamp(-noise, noise) / (self.samples + 1.0);
    }

    fn is_ready(&self) -> bool {
        self.samples >= BASELINE_SAMPLES_MIN
    }

    fn deviation(&self) -> f32 {
        // Shrunk towards the prior while samples are few.
        let assumed = SAMPLE_NOISE_ASSUMED * SAMPLE_NOISE_ASSUMED;
        ((self.noise * self.samples + assumed * 4.0) / (self.samples + 4.0)).max(0.0025).sqrt()
    }

    /// Threshold of the CUSUM for a slack, and the clip of one sample.
    fn threshold_and_clip(&self, slack: f32) -> (f32, f32) {
        let noise = self.deviation();
        let bound = SAMPLE_THRESHOLD_MIN.max(noise * noise * FALSE_ALARM_SAMPLES_LOG / (2.0 * slack));
        (bound, SAMPLE_CLIP_MIN.max(slack * 1.4).max(noise * 2.5))
    }

    /// Restarts at another level; the noise is kept.
    fn restart(&mut self, level: f32) {
        *self = Baseline { samples: BASELINE_SAMPLES_MIN, level, noise: self.noise };
    }

    fn is_valid(&self) -> bool {
        [self.samples, self.noise].iter().all(|value| value.is_finite() && *value >= 0.0)
            && self.level.is_finite()
    }
}

/// A finite number in a range that no arithmetic overflows.
fn clamp_finite(value: f64) -> Option<f32> {
    let value = (value as f32).clamp(-100.0, 100.0);
    value.is_finite().then_some(value)
}

impl DropDetector {
    /// Observes one window of a link whose means fluctuate by up to `slack`.
    pub(crate) fn observe(&mut self, value: f64, slack: f32, now: Timestamp) -> Option<Alarm> {
        let value = clamp_finite(value)?;
        let off = self.usual.learn(value)?;
        self.usual.follow(off);
        let (bound, clip) = self.usual.threshold_and_clip(slack);
        self.sum = (self.sum - off.clamp(-clip, clip) - slack).max(0.0);
        if self.sum == 0.0 {
            self.excursion = Excursion::default();
            return None;
        }
        self.excursion.add(value, now);
        if self.sum <= bound {
            return None;
        }
        let alarm = self.excursion.alarm(self.usual.level, now);
        Some(Alarm { evidence: Evidence::Measurements(self.excursion.count as u32), ..alarm })
    }

    pub(crate) fn restart(&mut self) {
        self.usual.restart(0.0);
        *self = DropDetector { usual: self.usual, ..DropDetector::default() };
    }

    pub(crate) fn sanitized(self) -> Self {
        let sound =
            self.usual.is_valid() && self.excursion.is_valid() && self.sum.is_finite() && self.sum >= 0.0;
        if sound { self } else { DropDetector::default() }
    }
}

impl ChangePointDetector {
    /// Observes one sample that shows the link itself.
    pub(crate) fn observe_sample(&mut self, value: f64, now: Timestamp) -> Option<Alarm> {
        let value = clamp_finite(value)?;
        let off = self.usual.learn(value)?;
        if self.blocks < BASELINE_BLOCKS_MIN {
            self.usual.follow(off);
        }
        self.update_sample_sums(value, self.slack(), now)
    }

    /// Observes one sample while an end was busy with other links; `below` is how far the link was under its
    /// share of that end. Updates neither level nor noise. A shortfall within the link's fluctuation is
    /// ignored; beyond it, the unexplained part counts.
    pub(crate) fn observe_shared_sample(&mut self, value: f64, below: f64, now: Timestamp) -> Option<Alarm> {
        let (value, below) = (clamp_finite(value)?, clamp_finite(below)?);
        if !self.is_ready() {
            return None;
        }
        let short = self.usual.level - value;
        if short <= 0.0 {
            return self.update_sample_sums(value, self.slack(), now);
        }
        let counts = if short > self.slack() { below.clamp(0.0, short.min(SAMPLE_CLIP_MIN)) } else { 0.0 };
        self.update_sample_sums(self.usual.level - counts, SAMPLE_SLACK_MIN, now)
    }

    /// Observes five minutes in which an end was always busy with other links; `below` is how far the link
    /// was under its share in the mean. A link is held back by itself when it gets less than its share, so
    /// this is a lower bound of its fluctuation; a link that is seldom alone would otherwise be judged by a
    /// few quiet hours. Ignored if it is less than the known noise, or while a change is suspected, which
    /// would pass for noise.
    pub(crate) fn observe_shared_block(&mut self, below: f64) {
        let Some(below) = clamp_finite(below) else { return };
        let [down, _] = self.sums;
        if self.is_ready() && below > self.block_deviation() && down <= SUSPICION_THRESHOLD {
            self.learn_block_noise(below);
        }
    }

    /// Whether there is a baseline.
    pub(crate) fn is_ready(&self) -> bool {
        self.usual.is_ready()
    }

    /// Slack of the sample CUSUM: what the link fluctuates in any case.
    pub(crate) fn slack(&self) -> f32 {
        SAMPLE_SLACK_MIN.max(SAMPLE_SLACK_BLOCK_NOISES * self.block_deviation())
    }

    fn update_sample_sums(&mut self, value: f32, slack: f32, now: Timestamp) -> Option<Alarm> {
        let (bound, clip) = self.usual.threshold_and_clip(self.slack());
        let off = value - self.usual.level;
        let (mut sums, mut since) = (self.sums, self.excursions);
        let alarm =
            self.update_sums(off.clamp(-clip, clip), value, slack, bound, (&mut sums, &mut since), now);
        if alarm.is_none() {
            (self.sums, self.excursions) = (sums, since);
        }
        alarm.map(|(alarm, count)| Alarm { evidence: Evidence::Measurements(count), ..alarm })
    }

    /// Observes a five-minute mean.
    pub(crate) fn observe_block(&mut self, value: f64, now: Timestamp) -> Option<Alarm> {
        let value = clamp_finite(value)?;
        if !self.is_ready() {
            return None;
        }
        self.blocks += 1.0;
        let off = value - self.usual.level;
        let wander = self.block_deviation();
        let bounded = self.learn_block_noise(off);
        if self.blocks < BASELINE_BLOCKS_MIN {
            self.usual.level += off / (self.blocks + 1.0);
            return None;
        }
        let slack = BLOCK_SLACK_MIN.max(BLOCK_SLACK_NOISES * wander);
        let bound = BLOCK_THRESHOLD_MIN.max(wander * wander * FALSE_ALARM_BLOCKS_LOG / (2.0 * slack));
        let (mut sums, mut since) = (self.block_sums, self.block_excursions);
        let alarm = self.update_sums(bounded, value, slack, bound, (&mut sums, &mut since), now);
        if alarm.is_none() {
            (self.block_sums, self.block_excursions) = (sums, since);
            self.usual.level += bounded / (self.blocks + 1.0).min(LEVEL_BLOCKS_MAX);
        }
        alarm.map(|(alarm, count)| Alarm { evidence: Evidence::FiveMinuteMeans(count), ..alarm })
    }

    /// Updates the noise of the means; returns the clipped deviation.
    fn learn_block_noise(&mut self, off: f32) -> f32 {
        let wander = self.block_deviation();
        let bounded = off.clamp(-3.0 * wander, 3.0 * wander);
        self.noise_blocks = (self.noise_blocks + 1.0).min(NOISE_BLOCKS_MAX);
        self.block_noise += (bounded * bounded - self.block_noise) / self.noise_blocks;
        bounded
    }

    fn update_sums(
        &mut self,
        off: f32,
        value: f32,
        slack: f32,
        bound: f32,
        (sums, runs): (&mut [f32; 2], &mut [Excursion; 2]),
        now: Timestamp,
    ) -> Option<(Alarm, u32)> {
        for ((sum, run), sign) in sums.iter_mut().zip(runs.iter_mut()).zip([-1.0, 1.0]) {
            *sum = (*sum + sign * off - slack).max(0.0);
            if *sum == 0.0 {
                *run = Excursion::default();
                continue;
            }
            run.add(value, now);
            if *sum > bound {
                let (alarm, count) = (run.alarm(self.usual.level, now), run.count as u32);
                self.restart(alarm.after as f32);
                return Some((alarm, count));
            }
        }
        None
    }

    /// Restarts at another level; the noise is kept.
    pub(crate) fn restart(&mut self, level: f32) {
        self.usual.restart(level);
        *self = ChangePointDetector {
            usual: self.usual,
            block_noise: self.block_noise,
            noise_blocks: self.noise_blocks,
            ..ChangePointDetector::default()
        };
    }

    /// Level of the baseline.
    pub(crate) fn level(&self) -> f64 {
        f64::from(self.usual.level)
    }

    /// Standard deviation of single samples.
    pub(crate) fn noise(&self) -> f64 {
        f64::from(self.usual.deviation())
    }

    /// Standard deviation of five-minute means.
    pub(crate) fn block_noise(&self) -> f64 {
        f64::from(self.block_deviation())
    }

    fn block_deviation(&self) -> f32 {
        let assumed = BLOCK_NOISE_ASSUMED * BLOCK_NOISE_ASSUMED;
        let seen = self.noise_blocks;
        ((self.block_noise * seen + assumed * BLOCK_NOISE_PRIOR_BLOCKS) / (seen + BLOCK_NOISE_PRIOR_BLOCKS))
            .max(0.0025)
            .sqrt()
    }

    pub(crate) fn sanitized(self) -> Self {
        let runs = self.excursions.iter().chain(&self.block_excursions).all(Excursion::is_valid);
        let sums = self.sums.iter().chain(&self.block_sums).all(|sum| sum.is_finite() && *sum >= 0.0);
        let rest = [self.blocks, self.block_noise, self.noise_blocks];
        let rest = rest.iter().all(|value| value.is_finite() && *value >= 0.0) && self.usual.is_valid();
        if runs && sums && rest { self } else { ChangePointDetector::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_testkit::Dice;
    use proptest::prelude::*;

    /// A synthetic link with noise of single samples and of five-minute means; the latter also drifts over
    /// the day.
    struct Stream {
        noise: Dice,
        single: f64,
        block: f64,
        block_now: f64,
        sum: f64,
        count: u32,
    }

    impl Stream {
        fn new(seed: u64, single: f64, block: f64) -> Self {
            Stream { noise: Dice(seed), single, block, block_now: 0.0, sum: 0.0, count: 0 }
        }

        /// One step per second, with one sample each.
        fn step(&mut self, detector: &mut ChangePointDetector, second: i64, level: f64) -> Option<Alarm> {
            let now = Timestamp::from_seconds(1_800_000_000 + second);
            let mut alarm = None;
            if second % 300 == 0 {
                if self.count > 0 {
                    alarm = detector.observe_block(self.sum / f64::from(self.count), now);
                }
                (self.sum, self.count) = (0.0, 0);
                let day = 0.15 * (second as f64 / 86_400.0 * std::f64::consts::TAU).sin();
                self.block_now = day + self.block * self.noise.normal();
            }
            let value = level + self.block_now + self.single * self.noise.normal();
            self.sum += value;
            self.count += 1;
            alarm.or(detector.observe_sample(value, now))
        }
    }

    const KINDS: [(f64, f64); 5] = [(0.05, 0.02), (0.2, 0.1), (0.4, 0.15), (0.7, 0.1), (0.3, 0.18)];

    #[test]
    fn a_steady_month_gives_at_most_one_false_alarm() {
        for (kind, (single, block)) in KINDS.into_iter().enumerate() {
            let mut worst = 0;
            for seed in 0..4 {
                let mut stream = Stream::new(1_000 * kind as u64 + seed, single, block);
                let mut detector = ChangePointDetector::default();
                let alarms =
                    (0..30 * 86_400).filter(|&second| stream.step(&mut detector, second, 18.0).is_some());
                worst += alarms.count();
            }
            assert!(worst <= 4, "{worst} false alarms in four months with noise {single} and {block}");
        }
    }

    #[test]
    fn a_five_fold_shift_is_detected_within_twenty_transfers() {
        for (single, block) in KINDS {
            for (seed, change) in (0..40).flat_map(|seed| [(seed, -5_f64.ln()), (seed, 5_f64.ln())]) {
                let mut stream = Stream::new(50_000 + seed, single, block);
                let mut detector = ChangePointDetector::default();
                let before = 7_200 + 17 * seed as i64;
                for second in 0..before {
                    stream.step(&mut detector, second, 18.0);
                }
                let noticed = (0..40).find_map(|step| {
                    stream.step(&mut detector, before + step, 18.0 + change).map(|alarm| (step + 1, alarm))
                });
                let (steps, alarm) =
                    noticed.unwrap_or_else(|| panic!("{single} {block} {seed}: not noticed"));
                assert!(steps <= 20, "{steps} transfers with noise {single} and {block}, seed {seed}");
                assert!((alarm.after - alarm.before - change).abs() < 0.9, "{alarm:?}");
            }
        }
    }

    /// A link that is calm while alone, in its first night; then its target is shared, and its own port is
    /// busy in every other five minutes.
    fn run_among_other_links(detector: &mut ChangePointDetector, minutes: i64, low: f64) -> Option<i64> {
        let mut noise = Dice(11);
        let mut stream = Stream::new(5, 0.4, 0.1);
        (0..7_200).for_each(|second| assert_eq!(stream.step(detector, second, 18.0), None));
        (0..minutes * 6).find(|&tenth| {
            let now = Timestamp::from_seconds(1_800_007_200 + tenth * 10);
            let block = tenth / 30;
            // Its share, and in every second five minutes a port that leaves less than that.
            let part = 18.0 - 0.7;
            let rate = if block % 2 == 0 { part - low } else { part } + 0.2 * noise.normal();
            if tenth > 0 && tenth % 30 == 0 {
                detector.observe_shared_block(if block % 2 == 1 { low } else { 0.0 });
            }
            detector.observe_shared_sample(rate, part - rate, now).is_some()
        })
    }

    #[test]
    fn shortfalls_on_shared_ends_raise_the_noise() {
        let mut detector = ChangePointDetector::default();
        assert_eq!(run_among_other_links(&mut detector, 600, 0.5), None, "it is seldom far below");
        let wander = detector.block_noise();
        assert!(wander > 0.25, "{wander}, and it was 0.1 while it was alone");
        let mut detector = ChangePointDetector::default();
        let noticed = run_among_other_links(&mut detector, 5, 5_f64.ln());
        assert!(noticed.is_some_and(|count| count < 20), "a fifth of its part: {noticed:?}");
    }

    #[test]
    fn a_suspected_change_does_not_raise_the_noise() {
        let mut detector = ChangePointDetector::default();
        assert_eq!(run_among_other_links(&mut detector, 5, 0.1), None);
        let before = detector.block_noise();
        detector.sums[0] = SUSPICION_THRESHOLD * 1.1;
        (0..100).for_each(|_| detector.observe_shared_block(1.0));
        assert_eq!(detector.block_noise(), before);
        detector.sums[0] = 0.0;
        (0..100).for_each(|_| detector.observe_shared_block(before / 2.0));
        assert_eq!(detector.block_noise(), before, "it is no less for what others explain");
    }

    #[test]
    fn outliers_raise_no_alarm() {
        let mut stream = Stream::new(7, 0.1, 0.05);
        let mut detector = ChangePointDetector::default();
        for second in 0..86_400 {
            let level = if second % 50 == 0 { 12.0 } else { 18.0 };
            assert_eq!(stream.step(&mut detector, second, level), None, "at {second}");
        }
    }

    #[test]
    fn single_windows_detect_a_fall_but_no_rise() {
        let (mut noise, mut falls) = (Dice(3), DropDetector::default());
        let now = Timestamp::from_seconds(1_800_000_000);
        let mut steady = |falls: &mut DropDetector, count: usize, level: f64| {
            (0..count)
                .filter_map(|_| falls.observe(level + 0.7 * noise.normal(), 0.54, now))
                .collect::<Vec<_>>()
        };
        assert_eq!(steady(&mut falls, 100_000, 18.0), []);
        assert_eq!(steady(&mut falls, 50, 21.0), []);
        let mut falls = DropDetector::default();
        assert_eq!(steady(&mut falls, 200, 18.0), []);
        let alarms = steady(&mut falls, 20, 18.0 - 30_f64.ln());
        assert!(
            alarms.first().is_some_and(|alarm| (alarm.before - alarm.after - 3.4).abs() < 0.9),
            "{alarms:?}"
        );
    }

    proptest! {
        #[test]
        fn extreme_inputs_keep_the_state_valid(values in proptest::collection::vec((any::<f64>(),
            any::<bool>(), any::<i64>()), 0..100)) {
            let (mut detector, mut falls) = (ChangePointDetector::default(), DropDetector::default());
            for (value, block, time) in values {
                let now = Timestamp(time);
                let alarm = if block { detector.observe_block(value,
                    now) } else { detector.observe_sample(value, now) };
                detector.observe_shared_block(value);
                if let Some(alarm) = alarm {
                    prop_assert!(alarm.before.is_finite() && alarm.after.is_finite());
                }
                prop_assert_eq!(detector.sanitized(), detector);
                falls.observe(value, 0.5, now);
                prop_assert_eq!(falls.sanitized(), falls);
            }
        }
    }
}
