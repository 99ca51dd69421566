//! Concurrency control by hill climbing (Russell, Norvig, *Artificial Intelligence*, 4.1): finds, while a
//! link works, how many large files to lease at once.
//!
//! More files than a link can use only wait at the agent, fix their source too early, and start datasets that
//! could wait. Fewer leave the link idle where a single file is slow (small windows, disk pools, tape).
//!
//! ```text
//! climb: n, 2n, 4n, … while the rate grows ──no gain──► bisect the last step ──worth it──► hold
//!    ▲                                                                                       │
//!    └──── the rate differs by a third, three times in a row; or a descend trial failed ◄────┘
//! ```
//!
//! A gain counts only as far as the source in total and the target in total gained as well: what was taken
//! from other links is no gain. A measurement counts only if the limit was what held the link back: it was
//! reached, and more would have been leased. So nothing is tried where the target has enough work.
//!
//! Reference: the online tuning of concurrency in GridFTP and Globus; E. Arslan, T. Kosar, "High-Speed
//! Transfer Optimization Based on Historical Analysis and Real-Time Tuning", IEEE TPDS 29(6), 2018.
//!
//! Not here: counting the bytes (`target_throughput`), and whether a link is full (`dispatch`).

use std::mem;
use std::time::Duration;

use longhaul_model::{Timestamp, units};

/// After a change, wait at least this long before measuring, so that new files are under way.
const SETTLE_MIN: Duration = Duration::from_secs(2);
/// After a change, measure anyway after this long, even if some files have not begun.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// A change is complete once this share of the files has received bytes.
const SETTLED_FILES_SHARE: f64 = 0.8;
/// Minimum length of a measurement.
const MEASURE_MIN: Duration = Duration::from_secs(5);
/// Minimum number of reports in a measurement.
const REPORTS_MIN: u32 = 4;
/// A measurement lasts at least this many times the longest gap between reports.
const SILENCES_COVERED_MIN: u32 = 3;
/// A gap in the work of at least this long is a pause and starts a new trial; shorter gaps lie between two
/// files.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// A gap between arrivals longer than any file waits at its source: the endpoint was gone, or nothing was
/// leased.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Without progress reports for this long, the ends of files count as reports.
const REPORT_ABSENCE_MIN: Duration = Duration::from_secs(15);
/// Arrivals within this time belong to one burst and are counted together.
const BURST_LENGTH_MAX: Duration = Duration::from_millis(5);
/// A measurement counts only if the link held at least this share of the files it may have.
const LIMIT_REACHED_SHARE: f64 = 0.85;
/// With at most this many files leased the search starts from their number; more of them, for little work,
/// are small files.
const SEARCH_START_FILES_MAX: u32 = 16;
/// A link that carries this share of all traffic at both ends takes nothing from other links.
const SOLE_LINK_SHARE: f64 = 0.9;
/// More files are worth while if they bring at least this share of a proportional gain.
const GAIN_SHARE_MIN: f64 = 0.15;
/// From this share of a proportional gain on, the next step quadruples the limit.
const GAIN_SHARE_LARGE: f64 = 0.8;
/// Share of a gain of the link that its source and its target must show in total.
const ENDPOINT_GAIN_SHARE_MIN: f64 = 0.5;
/// A rate that differs from the one held by at least this share may be a change.
const RATE_CHANGE_SHARE_MIN: f64 = 1.0 / 3.0;
/// A change of the rate is believed after this many measurements in a row.
const RATE_CHANGES_MIN: u32 = 3;
/// Fewer files bring as much as more if they reach this share of the rate.
const SAME_RATE_SHARE: f64 = 0.95;
/// Half as many files are enough if they keep this share of the rate.
const HALVED_RATE_SHARE_MIN: f64 = 0.9;
/// A trial is abandoned after this many measurements without a conclusion.
const INCONCLUSIVE_MAX: u32 = 3;
/// The search never goes beyond this many files at once.
pub(crate) const FILES_MAX: u32 = 256;

/// Bytes over the link, out of its source in total, and into its target in total: cumulative, or per second.
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

/// State of the link at an arrival, before that arrival is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub bytes: FlowBytes,
    /// Leased files, and those of them that have received bytes.
    pub files: u32,
    pub moving: u32,
    /// Progress of a running file, as opposed to the end of a file.
    pub report: bool,
}

/// A number of files at once and the rate it gave.
type Measurement = (u32, FlowBytes);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Climb {
        before: Option<Measurement>,
    },
    /// Between a limit that was worth while and one that was not.
    Bisect {
        low: Measurement,
        high: Measurement,
    },
    Hold {
        rate: FlowBytes,
        /// The rate that a higher limit gave.
        more: Option<Measurement>,
        rate_changes: u32,
    },
    /// The rate rose: perhaps half as many files are enough.
    Descend {
        from: Measurement,
    },
}

/// Hill climbing over the number of files at once. The limit comes first: it is read most often.
#[derive(Clone, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct ConcurrencyTuner {
    /// None: the minimum that every link gets.
    limit: Option<u32>,
    phase: Phase,
    /// None before the first arrival.
    trial: Option<Trial>,
    /// Time of the last progress report of a running file.
    last_report: Option<Timestamp>,
    inconclusive: u32,
}

/// One trial: from a change of the limit, or a pause, until the rate has been measured.
#[derive(Clone, Debug, PartialEq)]
struct Trial {
    since: Timestamp,
    /// When the change was complete, and the bytes until then.
    settled: Option<(Timestamp, FlowBytes)>,
    /// Time of the last arrival.
    last_arrival: Timestamp,
    /// Time of the last arrival that may begin or end a measurement.
    last_mark: Timestamp,
    silence_max: Duration,
    reports: u32,
    files_ended: u32,
    /// Files times seconds since the change was complete.
    file_seconds: f64,
    /// More files would have been leased under a higher limit.
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

    /// Records an arrival under a limit of `files`; one that `counts` may begin or end a measurement. Returns
    /// the mean number of files and the rate when the measurement is complete.
    fn record(
        &mut self,
        look: &Sample,
        files: u32,
        counts: bool,
        now: Timestamp,
    ) -> Option<(f64, FlowBytes)> {
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

    /// Notes that the limit kept work back.
    pub(crate) fn note_limited(&mut self) {
        if let Some(period) = &mut self.trial {
            period.limited = true;
        }
    }

    /// Work begins. A pause before it says nothing about the limit, so it ends the current trial.
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

    /// Whether an arrival now can begin or end a measurement.
    pub(crate) fn may_sample(&self, now: Timestamp) -> bool {
        self.trial.as_ref().is_none_or(|period| now.since(period.last_arrival) > BURST_LENGTH_MAX)
    }

    /// Counts an arrival that belongs to the same burst as the one before.
    pub(crate) fn count_with_last(&mut self, report: bool, now: Timestamp) {
        if report {
            self.last_report = Some(now);
        } else if let Some(period) = &mut self.trial {
            period.files_ended = period.files_ended.saturating_add(1);
        }
    }

    /// Records an arrival.
    pub(crate) fn record_sample(&mut self, look: &Sample, least: u32, now: Timestamp) {
        self.count_with_last(look.report, now);
        let counts = look.report || self.last_report.is_none_or(|at| now.since(at) > REPORT_ABSENCE_MIN);
        let files = self.files(least);
        let period = self.trial.get_or_insert_with(|| Trial::begin(now));
        if now.since(period.last_arrival) > SILENCE_MAX {
            *period = Trial::begin(now);
        } else if let Some((held, rate)) = period.record(look, files, counts, now) {
            let wanted = period.limited;
            self.conclude(files, held, rate, wanted, least);
            self.trial = Some(Trial::begin(now));
        }
    }

    /// Concludes a trial: under a limit of `files` the link had `held` of them in the mean, at this rate.
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

    /// Counts a measurement without a conclusion, and abandons the trial after too many.
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

    /// Tries half way between `low` (too few, or just enough) and `high` (enough, or too many).
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

    /// Why the limit has its value; follows the number in a sentence.
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

/// Whether a higher limit brought enough, to the link and to both ends in total.
fn is_worth_it(low: Measurement, high: Measurement) -> bool {
    let more = high.1.link - low.1.link;
    let in_all = (high.1.source - low.1.source).min(high.1.target - low.1.target);
    more > 0.0 && gain(low, high) >= GAIN_SHARE_MIN && in_all >= ENDPOINT_GAIN_SHARE_MIN * more
}

/// Whether a step went too far: it brought too little, or a large one less than expected.
fn is_too_far(low: Measurement, high: Measurement) -> bool {
    !is_worth_it(low, high) || high.0 > low.0.saturating_mul(2) && gain(low, high) < GAIN_SHARE_LARGE
}

/// Gain of the link as a share of a gain proportional to the number of files.
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
                self.at_once.record_sample(&look, 2, self.now);
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
            run.at_once.record_sample(&look, 2, run.now);
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
