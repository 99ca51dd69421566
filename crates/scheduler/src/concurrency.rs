//! How many large files of a link are leased at once, found while it works. More than it can use only wait at
//! the agent, choose their source too early and begin datasets that could wait; fewer leave it idle where one
//! file alone is slow (small windows, pools, tape).
//!
//! ```text
//! climb: n, 2n, 4n, … while more comes ──no more──► half of the last step, a quarter, … ──worth it──► hold
//!    ▲                                                                                     │
//!    └────── another rate by a third, three times in a row; or what went amiss is tried again ◄──┘
//! ```
//!
//! Ends are coupled: a gain counts as far as the source in all and the target in all have gained it; what was
//! taken from other links is none. Only measurements count in which the number was what held the link back:
//! it was reached, and more would have been leased. So where the target has enough to do, nothing is tried.
//!
//! Not here: who counts the bytes (`outcome`), who asks whether a link is full (`deal`).

use std::mem;
use std::time::Duration;

use longhaul_model::{Timestamp, units};

/// The least that passes between a change and its measurement, …
const SETTLE_MIN: Duration = Duration::from_secs(2);
/// … the most, where files do not all begin, …
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// … and the part of the files from which on the change is complete.
const SETTLED_FILES_SHARE: f64 = 0.8;
/// The least that a measurement takes; it covers …
const MEASURE_MIN: Duration = Duration::from_secs(5);
/// … so many reports, and so many times the longest silence.
const REPORTS_MIN: u32 = 4;
const SILENCES_COVERED_MIN: u32 = 3;
/// The work of a moment ends and the next begins within this: longer is a pause.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// A silence that is longer than any file waits at its source: the end was gone, or nobody worked.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Without a report of running files for so long, ends of files count as reports.
const REPORT_ABSENCE_MIN: Duration = Duration::from_secs(15);
/// Facts that come within this belong together.
const BURST_LENGTH_MAX: Duration = Duration::from_millis(5);
/// The link had this part of the files it may have, or the measurement says nothing of the number.
const LIMIT_REACHED_SHARE: f64 = 0.85;
/// More than this, though fewer are asked for, are small files.
const SEARCH_START_FILES_MAX: u32 = 16;
/// With this part of all that moves at its ends a link takes nothing from others.
const SOLE_LINK_SHARE: f64 = 0.9;
/// Part of a proportional gain that makes more files worth while.
const GAIN_SHARE_MIN: f64 = 0.15;
/// Part of a proportional gain from which the next step is a large one.
const GAIN_SHARE_LARGE: f64 = 0.8;
/// Part of a gain that the ends must show.
const ENDPOINT_GAIN_SHARE_MIN: f64 = 0.5;
/// Another rate than the one held, and how many times in a row until it is believed.
const RATE_CHANGE_SHARE_MIN: f64 = 1.0 / 3.0;
const RATE_CHANGES_MIN: u32 = 3;
/// Fewer bring as much as more if it is this part.
const SAME_RATE_SHARE: f64 = 0.95;
/// Half as many are enough if they bring this part.
const HALVED_RATE_SHARE_MIN: f64 = 0.9;
/// Measurements that say nothing until what was tried is given up.
const INCONCLUSIVE_MAX: u32 = 3;
/// More than this is never tried.
pub(crate) const FILES_MAX: u32 = 256;

/// Bytes that have come so far: over the link, from its source in all, into its target in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FlowBytes {
    pub link: f64,
    pub source: f64,
    pub target: f64,
}

impl FlowBytes {
    fn rate(self, before: FlowBytes, seconds: f64) -> FlowBytes {
        let rate = |now: f64, then: f64| (now - then).max(0.0) / seconds.max(1e-3);
        FlowBytes {
            link: rate(self.link, before.link),
            source: rate(self.source, before.source),
            target: rate(self.target, before.target),
        }
    }
}

/// The link at the moment of an arrival, before that is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub bytes: FlowBytes,
    /// Leased; of these, of how many something has come.
    pub files: u32,
    pub moving: u32,
    /// A running file's progress, not a file's end.
    pub report: bool,
}

/// A number of files and what it gave.
type Measurement = (u32, FlowBytes);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Climb {
        before: Option<Measurement>,
    },
    /// Between what was worth while and what was no more; with what that gave.
    Bisect {
        low: Measurement,
        high: Measurement,
    },
    Hold {
        rate: FlowBytes,
        /// What more files gave.
        more: Option<Measurement>,
        rate_changes: u32,
    },
    /// More comes than before: perhaps half as many are enough.
    Descend {
        from: Measurement,
    },
}

/// The number comes first: it is read much more often than all else.
#[derive(Clone, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct ConcurrencyTuner {
    /// None: as many as any link gets.
    limit: Option<u32>,
    phase: Phase,
    /// None until something has come.
    trial: Option<Trial>,
    /// The last report of a running file.
    last_report: Option<Timestamp>,
    inconclusive: u32,
}

/// From a change of the number, or a pause, until what it brings has been measured.
#[derive(Clone, Debug, PartialEq)]
struct Trial {
    since: Timestamp,
    /// When the change was complete, and what had come by then.
    settled: Option<(Timestamp, FlowBytes)>,
    /// The last moment at which something came, and the last one that begins or ends a measurement.
    last_arrival: Timestamp,
    last_mark: Timestamp,
    silence_max: Duration,
    reports: u32,
    files_ended: u32,
    /// Files times seconds since it had settled.
    file_seconds: f64,
    /// More would have been leased, had the number been higher.
    limited: bool,
}

impl Trial {
    fn begin(now: Timestamp) -> Trial {
        Trial {
            since: now,
            settled: None,
            last_arrival: now,
            last_mark: now,
            silence_max: Duration::ZERO,
            reports: 0,
            files_ended: 0,
            file_seconds: 0.0,
            limited: false,
        }
    }

    /// Something comes where so many files are asked for; if it `counts`, it can begin or end a measurement.
    /// When that is complete: the files that the link had in the mean, and the rate.
    fn look(&mut self, look: &Sample, files: u32, counts: bool, now: Timestamp) -> Option<(f64, FlowBytes)> {
        let seen = mem::replace(&mut self.last_arrival, now);
        if self.settled.is_some() {
            self.file_seconds += f64::from(look.files) * now.since(seen).as_secs_f64();
        }
        if !counts || now.since(seen) <= BURST_LENGTH_MAX {
            return None;
        }
        // What came at `seen` is complete.
        self.silence_max = self.silence_max.max(seen.since(mem::replace(&mut self.last_mark, seen)));
        let Some((from, before)) = self.settled else {
            let begun =
                f64::from(look.moving) >= SETTLED_FILES_SHARE * f64::from(files) || self.files_ended > files;
            let age = seen.since(self.since);
            if age >= SETTLE_MAX || age >= SETTLE_MIN && begun {
                self.settled = Some((seen, look.bytes));
                self.file_seconds = f64::from(look.files) * now.since(seen).as_secs_f64();
            }
            return None;
        };
        self.reports += 1;
        let took = seen.since(from);
        if took < MEASURE_MIN || self.reports < REPORTS_MIN || took < self.silence_max * SILENCES_COVERED_MIN
        {
            return None;
        }
        let held = self.file_seconds / now.since(from).as_secs_f64().max(1e-3);
        Some((held, look.bytes.rate(before, took.as_secs_f64())))
    }
}

impl Default for ConcurrencyTuner {
    fn default() -> Self {
        ConcurrencyTuner {
            limit: None,
            phase: Phase::Climb { before: None },
            trial: None,
            last_report: None,
            inconclusive: 0,
        }
    }
}

impl ConcurrencyTuner {
    pub(crate) fn files(&self, least: u32) -> u32 {
        self.limit.unwrap_or(least).max(least).max(1)
    }

    /// The number keeps the target from more.
    pub(crate) fn note_limited(&mut self) {
        if let Some(period) = &mut self.trial {
            period.limited = true;
        }
    }

    /// Work begins. A pause before it is no silence and says nothing of the number, so it ends what is being
    /// measured.
    pub(crate) fn work_begins(&mut self, now: Timestamp) {
        let Some(period) = self.trial.as_ref().filter(|period| now.since(period.last_arrival) >= PAUSE_MIN)
        else {
            return;
        };
        if period.settled.is_some() {
            self.note_inconclusive();
        }
        self.trial = Some(Trial::begin(now));
    }

    /// Whether something that comes now can be the beginning or the end of a measurement.
    pub(crate) fn may_sample(&self, now: Timestamp) -> bool {
        self.trial.as_ref().is_none_or(|period| now.since(period.last_arrival) > BURST_LENGTH_MAX)
    }

    /// What came at the same moment as other things.
    pub(crate) fn count_with_last(&mut self, report: bool, now: Timestamp) {
        if report {
            self.last_report = Some(now);
        } else if let Some(period) = &mut self.trial {
            period.files_ended = period.files_ended.saturating_add(1);
        }
    }

    /// Something comes.
    pub(crate) fn look(&mut self, look: &Sample, least: u32, now: Timestamp) {
        self.count_with_last(look.report, now);
        let counts = look.report || self.last_report.is_none_or(|at| now.since(at) > REPORT_ABSENCE_MIN);
        let files = self.files(least);
        let period = self.trial.get_or_insert_with(|| Trial::begin(now));
        if now.since(period.last_arrival) > SILENCE_MAX {
            *period = Trial::begin(now);
        } else if let Some((held, rate)) = period.look(look, files, counts, now) {
            let wanted = period.limited;
            self.conclude(files, held, rate, wanted, least);
            self.trial = Some(Trial::begin(now));
        }
    }

    /// Where `files` were asked for, the link had `held` in the mean and brought this.
    fn conclude(&mut self, files: u32, held: f64, rate: FlowBytes, wanted: bool, least: u32) {
        if held * LIMIT_REACHED_SHARE > f64::from(files) {
            // More were leased before, or all are small: another number would have shown the same. Unless
            // they are few, since a file takes about as long as the work that is given out: that many are
            // where to begin. Not where ends are shared: while more are tried there, they take from what is
            // due before.
            let few = held.round() as u32;
            let alone = rate.link > 0.0 && rate.link >= SOLE_LINK_SHARE * rate.source.max(rate.target);
            let begins = matches!(self.phase, Phase::Climb { before: None });
            if wanted && begins && alone && few <= SEARCH_START_FILES_MAX {
                self.search(few, rate);
            }
        } else if wanted && rate.link > 0.0 && held >= LIMIT_REACHED_SHARE * f64::from(files) {
            self.inconclusive = 0;
            self.search(files, rate);
            if matches!(self.phase, Phase::Descend { .. }) && self.files(least) == files {
                self.phase = Phase::Climb { before: None }; // As few as any get.
            }
        } else {
            self.note_inconclusive();
        }
    }

    /// The link could not have used more than it had: what was tried without an answer is given up.
    fn note_inconclusive(&mut self) {
        self.inconclusive += 1;
        let low = match self.phase {
            Phase::Climb { before: Some(low) } | Phase::Bisect { low, .. } | Phase::Descend { from: low } => {
                low
            }
            _ => return,
        };
        if self.inconclusive >= INCONCLUSIVE_MAX {
            self.limit = Some(low.0);
            self.phase = Phase::Climb { before: None };
            self.inconclusive = 0;
        }
    }

    fn search(&mut self, files: u32, rate: FlowBytes) {
        match self.phase {
            Phase::Climb { before: Some(low) } if is_too_far(low, (files, rate)) => {
                self.bisect(low, (files, rate));
            }
            Phase::Climb { .. } if files >= FILES_MAX => self.hold((files, rate), None),
            Phase::Climb { before } => {
                let far = before.is_some_and(|low| gain(low, (files, rate)) >= GAIN_SHARE_LARGE);
                self.phase = Phase::Climb { before: Some((files, rate)) };
                self.limit = Some(files.saturating_mul(if far { 4 } else { 2 }).min(FILES_MAX));
            }
            Phase::Bisect { low, high } => {
                let middle = (files, rate);
                if is_worth_it(low, high) && rate.link < SAME_RATE_SHARE * high.1.link {
                    self.bisect(middle, high);
                } else {
                    self.bisect(low, middle);
                }
            }
            Phase::Hold { rate: held, more, rate_changes: other } => {
                let off = (rate.link - held.link).abs();
                let in_all = (rate.source - held.source).abs().min((rate.target - held.target).abs());
                let off = off > RATE_CHANGE_SHARE_MIN * held.link && in_all > ENDPOINT_GAIN_SHARE_MIN * off;
                let other = if off { other + 1 } else { 0 };
                self.phase = Phase::Hold { rate: held, more, rate_changes: other };
                if other >= RATE_CHANGES_MIN && rate.link > held.link {
                    self.descend((files, rate));
                } else if other >= RATE_CHANGES_MIN {
                    self.phase = Phase::Climb { before: None };
                }
            }
            Phase::Descend { from } if rate.link >= HALVED_RATE_SHARE_MIN * from.1.link => {
                self.descend((files, from.1))
            }
            Phase::Descend { from } => {
                self.limit = Some(from.0);
                self.phase = Phase::Climb { before: None };
            }
        }
    }

    /// `low` is too few, or just enough; `high` is enough, or too many. Looks at what is half way.
    fn bisect(&mut self, low: Measurement, high: Measurement) {
        let apart = high.0.saturating_sub(low.0);
        if apart <= 1.max(low.0 / 16) {
            return if is_worth_it(low, high) { self.hold(high, None) } else { self.hold(low, Some(high)) };
        }
        let middle = low.0 + apart / 2;
        self.limit = Some(middle);
        self.phase = Phase::Bisect { low, high };
    }

    fn descend(&mut self, from: Measurement) {
        self.limit = Some(from.0 / 2);
        self.phase = if from.0 > 1 { Phase::Descend { from } } else { Phase::Climb { before: None } };
    }

    fn hold(&mut self, (files, rate): Measurement, more: Option<Measurement>) {
        self.limit = Some(files);
        self.phase = Phase::Hold { rate, more, rate_changes: 0 };
    }

    /// Why this many, in words; follows the number.
    pub(crate) fn in_words(&self) -> String {
        let rate = |(_, come): Measurement| units::rate(come.link);
        match self.phase {
            Phase::Climb { before: None } => "so many to begin with".to_owned(),
            Phase::Climb { before: Some(low) } | Phase::Bisect { low, .. } => {
                format!("being tried: {} at once gave {}", low.0, rate(low))
            }
            Phase::Hold { rate: held, more: Some(more), .. } => {
                let held = units::rate(held.link);
                format!(
                    "found while it worked: these gave {held}, and {} no more than {}",
                    more.0,
                    rate(more)
                )
            }
            Phase::Hold { rate: held, .. } => {
                format!("found while it worked: fewer gave less than these {}", units::rate(held.link))
            }
            Phase::Descend { from } => format!("being tried: {} at once gave {}", from.0, rate(from)),
        }
    }
}

/// Whether going from one number to a higher one brought enough, to the link and in all.
fn is_worth_it(low: Measurement, high: Measurement) -> bool {
    let more = high.1.link - low.1.link;
    let in_all = (high.1.source - low.1.source).min(high.1.target - low.1.target);
    more > 0.0 && gain(low, high) >= GAIN_SHARE_MIN && in_all >= ENDPOINT_GAIN_SHARE_MIN * more
}

/// A step brought too little, or as a large one less than was expected of it.
fn is_too_far(low: Measurement, high: Measurement) -> bool {
    !is_worth_it(low, high) || high.0 > low.0.saturating_mul(2) && gain(low, high) < GAIN_SHARE_LARGE
}

/// What more files brought to the link, as part of what is proportional to their number.
fn gain((files, old): Measurement, (more, new): Measurement) -> f64 {
    let proportional = (f64::from(more) / f64::from(files.max(1)) - 1.0) * old.link;
    (new.link - old.link) / proportional.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Run {
        at_once: ConcurrencyTuner,
        come: FlowBytes,
        now: Timestamp,
    }

    impl Run {
        fn new() -> Self {
            let come = FlowBytes { link: 0.0, source: 1e12, target: 1e12 };
            Run { at_once: ConcurrencyTuner::default(), come, now: Timestamp::from_seconds(1_800_000_000) }
        }

        /// A link whose goodput is a function of the number of files, and of which a part is taken from
        /// others; returns the number after each second.
        fn seconds(&mut self, seconds: u32, rate: impl Fn(u32) -> f64, taken: f64, wanted: bool) -> Vec<u32> {
            let mut numbers = Vec::new();
            for _ in 0..seconds {
                self.now = self.now + Duration::from_secs(1);
                let files = self.at_once.files(2);
                if wanted {
                    self.at_once.note_limited();
                }
                let look = Sample { bytes: self.come, files, moving: files, report: true };
                self.at_once.look(&look, 2, self.now);
                let bytes = rate(files);
                self.come.link += bytes;
                self.come.source += bytes * (1.0 - taken);
                self.come.target += bytes * (1.0 - taken);
                numbers.push(self.at_once.files(2));
            }
            numbers
        }
    }

    #[test]
    fn finds_the_least_that_fills_the_link_and_stays() {
        for limit in [1u32, 2, 3, 5, 8, 20, 37, 81, 200] {
            let rate = |files: u32| 15e6 * f64::from(files.min(limit));
            let mut run = Run::new();
            let numbers = run.seconds(200, rate, 0.0, true);
            let found = numbers[199];
            assert!(rate(found) >= 0.9 * rate(1_000), "limit {limit}: {found}");
            assert!(found <= (limit * 3 / 2).max(2), "limit {limit}: not more than needed: {found}");
            let later = run.seconds(900, rate, 0.0, true);
            assert!(later.iter().all(|&files| files == found), "it stays: {later:?}");
        }
    }

    /// Three files are the work of the next seconds, whatever the number says; others bring as much into the
    /// target besides.
    fn serve_three_files(seconds: u32, others: f64) -> Vec<u32> {
        let mut run = Run::new();
        let mut numbers = Vec::new();
        for _ in 0..seconds {
            run.now = run.now + Duration::from_secs(1);
            let files = run.at_once.files(2).max(3);
            run.at_once.note_limited();
            let look = Sample { bytes: run.come, files, moving: files, report: true };
            run.at_once.look(&look, 2, run.now);
            let bytes = 70e6 * f64::from(files.min(18));
            run.come.link += bytes;
            run.come.source += bytes;
            run.come.target += bytes + others;
            numbers.push(files);
        }
        numbers
    }

    #[test]
    fn where_the_work_that_is_given_is_a_few_files_more_are_tried_from_these() {
        let numbers = serve_three_files(300, 0.0);
        assert!(numbers[200..].iter().all(|&files| files >= 17), "{numbers:?}");
    }

    #[test]
    fn where_an_end_is_shared_as_many_as_are_the_work_are_enough() {
        let numbers = serve_three_files(300, 100e6);
        assert!(numbers.iter().all(|&files| files == 3), "{numbers:?}");
    }

    #[test]
    fn a_storage_that_many_files_slow_down_gets_few() {
        // 20 MB/s each up to ten files; beyond, all of it slows down.
        let rate =
            |files: u32| 20e6 * f64::from(files.min(10)) / (1.0 + 0.1 * f64::from(files.saturating_sub(10)));
        let mut run = Run::new();
        let found = run.seconds(200, rate, 0.0, true)[199];
        assert!(rate(found) >= 0.9 * rate(10), "{found}");
    }

    #[test]
    fn what_is_taken_from_others_is_no_gain() {
        let mut run = Run::new();
        let numbers = run.seconds(300, |files| 15e6 * f64::from(files), 1.0, true);
        assert_eq!(numbers[299], 2, "{numbers:?}");
    }

    #[test]
    fn climbs_again_when_the_link_is_another() {
        let mut run = Run::new();
        run.seconds(200, |files| 15e6 * f64::from(files.min(8)), 0.0, true);
        let numbers = run.seconds(300, |files| 25e6 * f64::from(files.min(64)), 0.0, true);
        assert!(numbers[299] >= 58, "{}", numbers[299]);
    }

    /// Three hours without anything, with files that are leased or without, which begin after so many
    /// seconds.
    fn limits_around_a_night(leased: bool, seconds: u32) -> (u32, u32) {
        let mut run = Run::new();
        run.seconds(seconds, |files| 15e6 * f64::from(files.min(8)), 0.0, true);
        let before = run.at_once.files(2);
        run.now = run.now + Duration::from_secs(3 * 3_600);
        if !leased {
            run.at_once.work_begins(run.now);
        }
        (before, run.seconds(300, |files| 25e6 * f64::from(files.min(64)), 0.0, true)[299])
    }

    #[test]
    fn a_night_without_work_or_without_the_site_is_no_silence_that_a_measurement_must_cover() {
        for (leased, seconds) in (0..20).map(|more| (more % 2 == 0, 200 + more / 2)) {
            let (before, after) = limits_around_a_night(leased, seconds);
            assert!(
                before <= 12 && after >= 58,
                "{before} before, {after} after {seconds} s; leased: {leased}"
            );
        }
    }

    #[test]
    fn what_is_tried_in_bursts_that_are_too_short_to_measure_is_given_up() {
        let mut run = Run::new();
        let rate = |files: u32| 15e6 * f64::from(files);
        let tried = (0..60).find(|_| run.seconds(1, rate, 0.0, true) != [2]);
        assert!(tried.is_some());
        for _ in 0..INCONCLUSIVE_MAX {
            run.seconds(5, rate, 0.0, true);
            run.now = run.now + Duration::from_secs(10);
            run.at_once.work_begins(run.now);
        }
        assert_eq!(run.at_once.files(2), 2, "nothing is known of more");
        run.seconds(3, rate, 0.0, true);
        let since = |at_once: &ConcurrencyTuner| at_once.trial.as_ref().map(|period| period.since);
        let (before, moment) = (since(&run.at_once), Duration::from_secs(1));
        run.at_once.work_begins(run.now + moment);
        assert_eq!(since(&run.at_once), before, "between two files is no pause");
    }

    #[test]
    fn nothing_is_tried_where_the_target_has_enough() {
        let mut run = Run::new();
        let numbers = run.seconds(300, |files| 15e6 * f64::from(files), 0.0, false);
        assert!(numbers.iter().all(|&files| files == 2), "{numbers:?}");
    }
}
