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
const SETTLE: Duration = Duration::from_secs(2);
/// … the most, where files do not all begin, …
const SETTLE_MOST: Duration = Duration::from_secs(30);
/// … and the part of the files from which on the change is complete.
const SETTLED: f64 = 0.8;
/// The least that a measurement takes; it covers …
const MEASURE: Duration = Duration::from_secs(5);
/// … so many reports, and so many times the longest silence.
const REPORTS: u32 = 4;
const SILENCES: u32 = 3;
/// The work of a moment ends and the next begins within this: longer is a pause.
const PAUSE: Duration = Duration::from_secs(2);
/// A silence that is longer than any file waits at its source: the end was gone, or nobody worked.
const SILENCE_MOST: Duration = Duration::from_secs(300);
/// Without a report of running files for so long, ends of files count as reports.
const NO_REPORTS: Duration = Duration::from_secs(15);
/// Facts that come within this belong together.
const GATHERED: Duration = Duration::from_millis(5);
/// The link had this part of the files it may have, or the measurement says nothing of the number.
const REACHED: f64 = 0.85;
/// More than this, though fewer are asked for, are small files.
const FEW: u32 = 16;
/// With this part of all that moves at its ends a link takes nothing from others.
const OWN: f64 = 0.9;
/// Part of a proportional gain that makes more files worth while.
const WORTH: f64 = 0.15;
/// Part of a proportional gain from which the next step is a large one.
const FAR: f64 = 0.8;
/// Part of a gain that the ends must show.
const IN_ALL: f64 = 0.5;
/// Another rate than the one held, and how many times in a row until it is believed.
const OTHER: f64 = 1.0 / 3.0;
const BELIEVED: u32 = 3;
/// Fewer bring as much as more if it is this part.
const AS_MUCH: f64 = 0.95;
/// Half as many are enough if they bring this part.
const ENOUGH: f64 = 0.9;
/// Measurements that say nothing until what was tried is given up.
const IDLE_MOST: u32 = 3;
/// More than this is never tried.
pub(crate) const MOST: u32 = 256;

/// Bytes that have come so far: over the link, from its source in all, into its target in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Come {
    pub link: f64,
    pub source: f64,
    pub target: f64,
}

impl Come {
    fn rate(self, before: Come, seconds: f64) -> Come {
        let rate = |now: f64, then: f64| (now - then).max(0.0) / seconds.max(1e-3);
        Come {
            link: rate(self.link, before.link),
            source: rate(self.source, before.source),
            target: rate(self.target, before.target),
        }
    }
}

/// The link at the moment of an arrival, before that is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    pub come: Come,
    /// Leased; of these, of how many something has come.
    pub files: u32,
    pub moving: u32,
    /// A running file's progress, not a file's end.
    pub report: bool,
}

/// A number of files and what it gave.
type Point = (u32, Come);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Climb {
        before: Option<Point>,
    },
    /// Between what was worth while and what was no more; with what that gave.
    Middle {
        low: Point,
        high: Point,
    },
    Hold {
        rate: Come,
        /// What more files gave.
        more: Option<Point>,
        other: u32,
    },
    /// More comes than before: perhaps half as many are enough.
    Ease {
        from: Point,
    },
}

/// The number comes first: it is read much more often than all else.
#[derive(Clone, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct AtOnce {
    /// None: as many as any link gets.
    files: Option<u32>,
    phase: Phase,
    /// None until something has come.
    period: Option<Period>,
    /// The last report of a running file.
    reported: Option<Timestamp>,
    idle: u32,
}

/// From a change of the number, or a pause, until what it brings has been measured.
#[derive(Clone, Debug, PartialEq)]
struct Period {
    since: Timestamp,
    /// When the change was complete, and what had come by then.
    settled: Option<(Timestamp, Come)>,
    /// The last moment at which something came, and the last one that begins or ends a measurement.
    seen: Timestamp,
    marked: Timestamp,
    silence: Duration,
    reports: u32,
    ended: u32,
    /// Files times seconds since it had settled.
    held: f64,
    /// More would have been leased, had the number been higher.
    wanted: bool,
}

impl Period {
    fn begin(now: Timestamp) -> Period {
        Period {
            since: now,
            settled: None,
            seen: now,
            marked: now,
            silence: Duration::ZERO,
            reports: 0,
            ended: 0,
            held: 0.0,
            wanted: false,
        }
    }

    /// Something comes where so many files are asked for; if it `counts`, it can begin or end a measurement.
    /// When that is complete: the files that the link had in the mean, and the rate.
    fn look(&mut self, look: &Look, files: u32, counts: bool, now: Timestamp) -> Option<(f64, Come)> {
        let seen = mem::replace(&mut self.seen, now);
        if self.settled.is_some() {
            self.held += f64::from(look.files) * now.since(seen).as_secs_f64();
        }
        if !counts || now.since(seen) <= GATHERED {
            return None;
        }
        // What came at `seen` is complete.
        self.silence = self.silence.max(seen.since(mem::replace(&mut self.marked, seen)));
        let Some((from, before)) = self.settled else {
            let begun = f64::from(look.moving) >= SETTLED * f64::from(files) || self.ended > files;
            let age = seen.since(self.since);
            if age >= SETTLE_MOST || age >= SETTLE && begun {
                self.settled = Some((seen, look.come));
                self.held = f64::from(look.files) * now.since(seen).as_secs_f64();
            }
            return None;
        };
        self.reports += 1;
        let took = seen.since(from);
        if took < MEASURE || self.reports < REPORTS || took < self.silence * SILENCES {
            return None;
        }
        let held = self.held / now.since(from).as_secs_f64().max(1e-3);
        Some((held, look.come.rate(before, took.as_secs_f64())))
    }
}

impl Default for AtOnce {
    fn default() -> Self {
        AtOnce { files: None, phase: Phase::Climb { before: None }, period: None, reported: None, idle: 0 }
    }
}

impl AtOnce {
    pub(crate) fn files(&self, least: u32) -> u32 {
        self.files.unwrap_or(least).max(least).max(1)
    }

    /// The number keeps the target from more.
    pub(crate) fn held_back(&mut self) {
        if let Some(period) = &mut self.period {
            period.wanted = true;
        }
    }

    /// Work begins. A pause before it is no silence and says nothing of the number, so it ends what is being
    /// measured.
    pub(crate) fn begins(&mut self, now: Timestamp) {
        let Some(period) = self.period.as_ref().filter(|period| now.since(period.seen) >= PAUSE) else {
            return;
        };
        if period.settled.is_some() {
            self.no_use();
        }
        self.period = Some(Period::begin(now));
    }

    /// Whether something that comes now can be the beginning or the end of a measurement.
    pub(crate) fn looks(&self, now: Timestamp) -> bool {
        self.period.as_ref().is_none_or(|period| now.since(period.seen) > GATHERED)
    }

    /// What came at the same moment as other things.
    pub(crate) fn comes_as_well(&mut self, report: bool, now: Timestamp) {
        if report {
            self.reported = Some(now);
        } else if let Some(period) = &mut self.period {
            period.ended = period.ended.saturating_add(1);
        }
    }

    /// Something comes.
    pub(crate) fn look(&mut self, look: &Look, least: u32, now: Timestamp) {
        self.comes_as_well(look.report, now);
        let counts = look.report || self.reported.is_none_or(|at| now.since(at) > NO_REPORTS);
        let files = self.files(least);
        let period = self.period.get_or_insert_with(|| Period::begin(now));
        if now.since(period.seen) > SILENCE_MOST {
            *period = Period::begin(now);
        } else if let Some((held, rate)) = period.look(look, files, counts, now) {
            let wanted = period.wanted;
            self.measured(files, held, rate, wanted, least);
            self.period = Some(Period::begin(now));
        }
    }

    /// Where `files` were asked for, the link had `held` in the mean and brought this.
    fn measured(&mut self, files: u32, held: f64, rate: Come, wanted: bool, least: u32) {
        if held * REACHED > f64::from(files) {
            // More were leased before, or all are small: another number would have shown the same. Unless
            // they are few, since a file takes about as long as the work that is given out: that many are
            // where to begin. Not where ends are shared: while more are tried there, they take from what is
            // due before.
            let few = held.round() as u32;
            let alone = rate.link > 0.0 && rate.link >= OWN * rate.source.max(rate.target);
            let begins = matches!(self.phase, Phase::Climb { before: None });
            if wanted && begins && alone && few <= FEW {
                self.step(few, rate);
            }
        } else if wanted && rate.link > 0.0 && held >= REACHED * f64::from(files) {
            self.idle = 0;
            self.step(files, rate);
            if matches!(self.phase, Phase::Ease { .. }) && self.files(least) == files {
                self.phase = Phase::Climb { before: None }; // As few as any get.
            }
        } else {
            self.no_use();
        }
    }

    /// The link could not have used more than it had: what was tried without an answer is given up.
    fn no_use(&mut self) {
        self.idle += 1;
        let low = match self.phase {
            Phase::Climb { before: Some(low) } | Phase::Middle { low, .. } | Phase::Ease { from: low } => low,
            _ => return,
        };
        if self.idle >= IDLE_MOST {
            self.files = Some(low.0);
            self.phase = Phase::Climb { before: None };
            self.idle = 0;
        }
    }

    fn step(&mut self, files: u32, rate: Come) {
        match self.phase {
            Phase::Climb { before: Some(low) } if too_far(low, (files, rate)) => {
                self.between(low, (files, rate));
            }
            Phase::Climb { .. } if files >= MOST => self.hold((files, rate), None),
            Phase::Climb { before } => {
                let far = before.is_some_and(|low| gain(low, (files, rate)) >= FAR);
                self.phase = Phase::Climb { before: Some((files, rate)) };
                self.files = Some(files.saturating_mul(if far { 4 } else { 2 }).min(MOST));
            }
            Phase::Middle { low, high } => {
                let middle = (files, rate);
                if worth(low, high) && rate.link < AS_MUCH * high.1.link {
                    self.between(middle, high);
                } else {
                    self.between(low, middle);
                }
            }
            Phase::Hold { rate: held, more, other } => {
                let off = (rate.link - held.link).abs();
                let in_all = (rate.source - held.source).abs().min((rate.target - held.target).abs());
                let off = off > OTHER * held.link && in_all > IN_ALL * off;
                let other = if off { other + 1 } else { 0 };
                self.phase = Phase::Hold { rate: held, more, other };
                if other >= BELIEVED && rate.link > held.link {
                    self.ease((files, rate));
                } else if other >= BELIEVED {
                    self.phase = Phase::Climb { before: None };
                }
            }
            Phase::Ease { from } if rate.link >= ENOUGH * from.1.link => self.ease((files, from.1)),
            Phase::Ease { from } => {
                self.files = Some(from.0);
                self.phase = Phase::Climb { before: None };
            }
        }
    }

    /// `low` is too few, or just enough; `high` is enough, or too many. Looks at what is half way.
    fn between(&mut self, low: Point, high: Point) {
        let apart = high.0.saturating_sub(low.0);
        if apart <= 1.max(low.0 / 16) {
            return if worth(low, high) { self.hold(high, None) } else { self.hold(low, Some(high)) };
        }
        let middle = low.0 + apart / 2;
        self.files = Some(middle);
        self.phase = Phase::Middle { low, high };
    }

    fn ease(&mut self, from: Point) {
        self.files = Some(from.0 / 2);
        self.phase = if from.0 > 1 { Phase::Ease { from } } else { Phase::Climb { before: None } };
    }

    fn hold(&mut self, (files, rate): Point, more: Option<Point>) {
        self.files = Some(files);
        self.phase = Phase::Hold { rate, more, other: 0 };
    }

    /// Why this many, in words; follows the number.
    pub(crate) fn in_words(&self) -> String {
        let rate = |(_, come): Point| units::rate(come.link);
        match self.phase {
            Phase::Climb { before: None } => "so many to begin with".to_owned(),
            Phase::Climb { before: Some(low) } | Phase::Middle { low, .. } => {
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
            Phase::Ease { from } => format!("being tried: {} at once gave {}", from.0, rate(from)),
        }
    }
}

/// Whether going from one number to a higher one brought enough, to the link and in all.
fn worth(low: Point, high: Point) -> bool {
    let more = high.1.link - low.1.link;
    let in_all = (high.1.source - low.1.source).min(high.1.target - low.1.target);
    more > 0.0 && gain(low, high) >= WORTH && in_all >= IN_ALL * more
}

/// A step brought too little, or as a large one less than was expected of it.
fn too_far(low: Point, high: Point) -> bool {
    !worth(low, high) || high.0 > low.0.saturating_mul(2) && gain(low, high) < FAR
}

/// What more files brought to the link, as part of what is proportional to their number.
fn gain((files, old): Point, (more, new): Point) -> f64 {
    let proportional = (f64::from(more) / f64::from(files.max(1)) - 1.0) * old.link;
    (new.link - old.link) / proportional.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Run {
        at_once: AtOnce,
        come: Come,
        now: Timestamp,
    }

    impl Run {
        fn new() -> Self {
            let come = Come { link: 0.0, source: 1e12, target: 1e12 };
            Run { at_once: AtOnce::default(), come, now: Timestamp::from_seconds(1_800_000_000) }
        }

        /// A link whose goodput is a function of the number of files, and of which a part is taken from
        /// others; returns the number after each second.
        fn seconds(&mut self, seconds: u32, rate: impl Fn(u32) -> f64, taken: f64, wanted: bool) -> Vec<u32> {
            let mut numbers = Vec::new();
            for _ in 0..seconds {
                self.now = self.now + Duration::from_secs(1);
                let files = self.at_once.files(2);
                if wanted {
                    self.at_once.held_back();
                }
                let look = Look { come: self.come, files, moving: files, report: true };
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
    fn few(seconds: u32, others: f64) -> Vec<u32> {
        let mut run = Run::new();
        let mut numbers = Vec::new();
        for _ in 0..seconds {
            run.now = run.now + Duration::from_secs(1);
            let files = run.at_once.files(2).max(3);
            run.at_once.held_back();
            let look = Look { come: run.come, files, moving: files, report: true };
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
        let numbers = few(300, 0.0);
        assert!(numbers[200..].iter().all(|&files| files >= 17), "{numbers:?}");
    }

    #[test]
    fn where_an_end_is_shared_as_many_as_are_the_work_are_enough() {
        let numbers = few(300, 100e6);
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
    fn after_a_night(leased: bool, seconds: u32) -> (u32, u32) {
        let mut run = Run::new();
        run.seconds(seconds, |files| 15e6 * f64::from(files.min(8)), 0.0, true);
        let before = run.at_once.files(2);
        run.now = run.now + Duration::from_secs(3 * 3_600);
        if !leased {
            run.at_once.begins(run.now);
        }
        (before, run.seconds(300, |files| 25e6 * f64::from(files.min(64)), 0.0, true)[299])
    }

    #[test]
    fn a_night_without_work_or_without_the_site_is_no_silence_that_a_measurement_must_cover() {
        for (leased, seconds) in (0..20).map(|more| (more % 2 == 0, 200 + more / 2)) {
            let (before, after) = after_a_night(leased, seconds);
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
        for _ in 0..IDLE_MOST {
            run.seconds(5, rate, 0.0, true);
            run.now = run.now + Duration::from_secs(10);
            run.at_once.begins(run.now);
        }
        assert_eq!(run.at_once.files(2), 2, "nothing is known of more");
        run.seconds(3, rate, 0.0, true);
        let since = |at_once: &AtOnce| at_once.period.as_ref().map(|period| period.since);
        let (before, moment) = (since(&run.at_once), Duration::from_secs(1));
        run.at_once.begins(run.now + moment);
        assert_eq!(since(&run.at_once), before, "between two files is no pause");
    }

    #[test]
    fn nothing_is_tried_where_the_target_has_enough() {
        let mut run = Run::new();
        let numbers = run.seconds(300, |files| 15e6 * f64::from(files), 0.0, false);
        assert!(numbers.iter().all(|&files| files == 2), "{numbers:?}");
    }
}
