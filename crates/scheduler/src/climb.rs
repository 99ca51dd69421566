//! How many files of a link are leased at once, found while it works. More files than it can use only wait at the
//! agent; fewer leave it idle where one file alone is slow (small windows, slow disks, pools).
//!
//! ```text
//! climb: n, 2n, 4n, … while goodput grows ──no more──► the middle of the last step ──► hold the least that is as good
//!    ▲                                                                                      │
//!    └──────────── the rate has been another by a third, three periods in a row ◄──────────┘
//! ```
//!
//! Coupled ends: what a link gains counts only as far as its source or its target gives or takes more in all; what is
//! taken from other links of both is no gain. Only periods count in which the number was what held the link back.

use std::time::Duration;

use longhaul_model::Timestamp;

/// One measurement; the first part of it shows the change and does not count.
const PERIOD: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(5);
/// Part of a proportional gain that makes more files worth while.
const WORTH: f64 = 0.3;
/// As good as the best.
const AS_GOOD: f64 = 0.95;
/// Another rate than the one held, and how many periods in a row until it is believed.
const OTHER: f64 = 1.0 / 3.0;
const BELIEVED: u32 = 3;

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

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The number tried before, and what it gave.
    Climb {
        before: Option<(u32, Come)>,
    },
    /// Between what was worth while and what was no more.
    Middle {
        low: (u32, f64),
        high: (u32, f64),
    },
    Hold {
        rate: f64,
        other: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Climb {
    files: u32,
    phase: Phase,
    /// Begin of the present period, and what had come when it had settled.
    since: Option<Timestamp>,
    settled: Option<(Timestamp, Come)>,
    /// The number held the link back at some time, and it never ran short of files.
    bound: bool,
    short: bool,
}

impl Climb {
    pub(crate) fn new(files: u32) -> Self {
        Climb {
            files: files.max(1),
            phase: Phase::Climb { before: None },
            since: None,
            settled: None,
            bound: false,
            short: false,
        }
    }

    pub(crate) fn files(&self) -> u32 {
        self.files
    }

    /// More could have been leased, had the number been higher.
    pub(crate) fn held_back(&mut self) {
        self.bound = true;
    }

    /// The link has fewer files than it may have, and there are no more.
    pub(crate) fn ran_short(&mut self) {
        self.short = true;
    }

    /// Something came, or time went by. `most` files are never exceeded.
    pub(crate) fn look(&mut self, come: Come, most: u32, now: Timestamp) {
        let Some(since) = self.since else { return self.begin(now) };
        let age = now.since(since);
        if age >= SETTLE && self.settled.is_none() {
            self.settled = Some((now, come));
        }
        let Some((from, before)) = self.settled else { return };
        if age < PERIOD || now.since(from) < PERIOD - SETTLE {
            return;
        }
        let rate = come.rate(before, now.since(from).as_secs_f64());
        if self.bound && !self.short && rate.link > 0.0 {
            self.step(rate, most.max(1));
        }
        self.begin(now);
    }

    fn begin(&mut self, now: Timestamp) {
        self.since = Some(now);
        self.settled = None;
        self.bound = false;
        self.short = false;
    }

    fn step(&mut self, rate: Come, most: u32) {
        match self.phase {
            Phase::Climb { before } => match before {
                Some((files, old)) if !worth(files, old, self.files, rate) => {
                    let middle = files + (self.files - files) / 2;
                    let high = (self.files, rate.link);
                    self.phase = Phase::Middle { low: (files, old.link), high };
                    self.files = middle;
                    if middle == files {
                        self.hold(&[(files, old.link), high]);
                    }
                }
                _ if self.files >= most => self.hold(&[(self.files, rate.link)]),
                _ => {
                    self.phase = Phase::Climb { before: Some((self.files, rate)) };
                    self.files = self.files.saturating_mul(2).min(most);
                }
            },
            Phase::Middle { low, high } => self.hold(&[low, (self.files, rate.link), high]),
            Phase::Hold { rate: held, other } => {
                let off = (rate.link - held).abs() > OTHER * held;
                let other = if off { other + 1 } else { 0 };
                self.phase = Phase::Hold { rate: held, other };
                if other >= BELIEVED {
                    self.files = (self.files / 2).max(1);
                    self.phase = Phase::Climb { before: None };
                }
            }
        }
    }

    /// Of what was tried, ordered by files: the least that is as good as the best.
    fn hold(&mut self, tried: &[(u32, f64)]) {
        let best = tried.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        if let Some(&(files, rate)) = tried.iter().find(|(_, rate)| *rate >= AS_GOOD * best) {
            self.files = files;
            self.phase = Phase::Hold { rate, other: 0 };
        }
    }
}

/// Whether going from one number to a higher one brought enough, to the link and in all.
fn worth(files: u32, old: Come, more: u32, new: Come) -> bool {
    let wanted = WORTH * (f64::from(more) / f64::from(files) - 1.0) * old.link;
    let gain = new.link - old.link;
    let in_all = (new.source - old.source).max(new.target - old.target);
    gain >= wanted && in_all >= gain / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a link whose goodput is a function of the number of files; returns the number after each period.
    fn run(climb: &mut Climb, periods: u32, rate: impl Fn(u32) -> f64, taken: f64) -> Vec<u32> {
        let mut come = Come { link: 0.0, source: 1e12, target: 1e12 };
        let mut now = climb.since.unwrap_or(Timestamp::from_seconds(1_800_000_000));
        let mut numbers = Vec::new();
        for _ in 0..periods {
            for _ in 0..20 {
                now = now + Duration::from_secs(1);
                let bytes = rate(climb.files());
                come.link += bytes;
                come.source += bytes * (1.0 - taken);
                come.target += bytes * (1.0 - taken);
                climb.held_back();
                climb.look(come, 1_000, now);
            }
            numbers.push(climb.files());
        }
        numbers
    }

    #[test]
    fn finds_the_least_that_fills_the_link_and_stays() {
        for limit in [1u32, 5, 8, 20, 37, 81, 200] {
            let rate = |files: u32| 15e6 * f64::from(files.min(limit));
            let mut climb = Climb::new(8);
            let numbers = run(&mut climb, 15, rate, 0.0);
            let got = rate(numbers[14]);
            assert!(got >= 0.9 * rate(1_000), "limit {limit}: {numbers:?}");
            assert!(
                numbers[14] <= (limit * 3 / 2).max(8),
                "limit {limit}: not more than needed: {numbers:?}"
            );
            let more = run(&mut climb, 60, rate, 0.0);
            assert!(more.iter().all(|&files| files == numbers[14]), "it stays: {more:?}");
        }
    }

    #[test]
    fn what_is_taken_from_others_is_no_gain() {
        let mut climb = Climb::new(8);
        let numbers = run(&mut climb, 10, |files| 15e6 * f64::from(files), 1.0);
        assert!(numbers[9] <= 16, "{numbers:?}");
    }

    #[test]
    fn climbs_again_when_the_link_is_another() {
        let mut climb = Climb::new(8);
        run(&mut climb, 15, |files| 15e6 * f64::from(files.min(8)), 0.0);
        let numbers = run(&mut climb, 20, |files| 25e6 * f64::from(files.min(64)), 0.0);
        assert!(numbers[19] >= 48, "{numbers:?}");
    }

    #[test]
    fn a_link_that_runs_short_tells_nothing() {
        let mut climb = Climb::new(8);
        let mut now = Timestamp::from_seconds(1_800_000_000);
        for second in 0..200 {
            now = now + Duration::from_secs(1);
            climb.held_back();
            climb.ran_short();
            let come = f64::from(second) * 1e6;
            climb.look(Come { link: come, source: come, target: come }, 1_000, now);
        }
        assert_eq!(climb.files(), 8);
    }
}
