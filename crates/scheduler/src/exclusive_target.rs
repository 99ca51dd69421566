//! What is due first has its target to itself, where that costs nothing. A full port or disk is shared by all
//! that comes over it: files of later blocks, from other sources, take from those of the first, and all are
//! complete late. So while every source of the first block has what it can use, nothing of later blocks is
//! dealt. Where others wait too, communities, activities or priorities, all stays as their shares want it.
//!
//! ```text
//! shared: what comes in all? ──some seconds──► alone: does as much come? ──no──► rest: a minute, two, … eight
//!    ▲                                           │ after half an hour              │
//!    └───────────────────────────────────────────┴─────────────────────────────────┘
//! ```
//!
//! Nothing is believed: that a target is full shows only when the links of its first block take over what the
//! others leave. What came is measured over all that is first one after the other, since blocks may be small;
//! a few seconds of it can be too little by chance, so that what came in the last minutes counts as well:
//! counted, since the best of several samples would be more than any port gives, and nothing could ever keep
//! up with that. What came says nothing of sources that had nothing to give then: when something waits for
//! another one, it is shared again, for as long as a new link needs to show what it can. And what holds
//! others back has to move: a link that is silent, or that a limit, a pause or a fault keeps from more, holds
//! back nothing, and who waits so looks again without news.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::decision::Unusable;
use crate::dispatch::TargetBacklog;
use crate::scheduler::{Scheduler, Timer};
use crate::settings::Rules;

/// Part of what came in all that the links of the first block are believed to give: what is believed comes
/// from times when they had to share.
const EXPECTED_RATE_SHARE_MIN: f64 = 0.25;
/// Part of what came in all before that must go on coming; and of what came in the last minutes, which may
/// have passed.
const EXCLUSIVE_RATE_SHARE_MIN: f64 = 0.95;
const RECENT_RATE_SHARE: f64 = 0.95;
/// With less than this after half a measurement it is over at once.
const EXCLUSIVE_RATE_SHARE_ABORT: f64 = 0.7;
/// How long is measured what comes while it is shared, and in how many reports at least: meanwhile others are
/// given files.
const SHARED_MEASURE_MIN: Duration = Duration::from_secs(5);
const SHARED_ARRIVALS_MIN: u64 = 3;
/// What comes then: some reports of large files.
const EXCLUSIVE_MEASURE_MIN: Duration = Duration::from_secs(30);
/// The last minutes are one or two of these.
const RECENT_WINDOW_STEP: Duration = Duration::from_secs(60);
/// Not asked for so long, it begins anew.
const QUERY_GAP_MAX: Duration = Duration::from_secs(30);
/// After so long it is shared again for a measurement: the target may take more than it did.
const REMEASURE_INTERVAL: Duration = Duration::from_secs(1800);
/// Until the next try, doubled each time.
const BACKOFF_MIN: Duration = Duration::from_secs(60);
const BACKOFF_MAX: Duration = Duration::from_secs(480);
/// A link that is silent for longer does not move.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// When a target that is held back is looked at without news.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Whether the first block of a target has it to itself, and since when.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveTarget {
    state: State,
    /// Sources for which something waits or did, in their order.
    sources: Vec<(u32, SourceDemand)>,
    /// Something waits for another source than those of which it was measured what comes.
    source_joined: bool,
    failed_trials: u32,
    /// When it was asked last.
    last_query: Option<Timestamp>,
    /// Something is held back just now.
    holds_back: bool,
    /// A look without news is to come.
    next_check: Option<Timestamp>,
    /// Begin and middle of the last minutes.
    recent_window: Option<[Seen; 2]>,
}

/// Whether something waits for a source.
#[derive(Clone, Copy, Debug)]
enum SourceDemand {
    /// In so many lanes.
    Lanes(u32),
    /// Nothing since this target was asked for last.
    IdleSince(Option<Timestamp>),
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// For so long at least.
    Shared {
        from: Seen,
        least: Duration,
    },
    /// `before` bytes a second came while it was shared; each measurement takes `span`.
    Exclusive {
        begun: Timestamp,
        from: Seen,
        span: Duration,
        shared_rate: f64,
    },
    Backoff {
        until: Timestamp,
    },
}

/// The target at a moment: bytes that have come in all, and in how many pieces.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Timestamp,
    come: f64,
    pieces: u64,
}

impl ExclusiveTarget {
    /// Whether nothing else is dealt now. `given`: what the links of the first block are believed to give.
    fn should_hold_back(&mut self, now: Seen, given: f64) -> bool {
        let asked = self.last_query.replace(now.at);
        let broken_off = asked.is_some_and(|at| now.at.since(at) > QUERY_GAP_MAX);
        let pace = self.recent_rate(now, broken_off);
        if std::mem::take(&mut self.source_joined) && !matches!(self.state, State::Backoff { .. }) {
            return self.is(State::Shared { from: now, least: EXCLUSIVE_MEASURE_MIN }, false);
        }
        match self.state {
            State::Backoff { until } if now.at < until => false,
            State::Shared { from, least } if !broken_off => {
                self.measure_shared(from, least, now, given, pace)
            }
            State::Exclusive { begun, from, span, shared_rate: before }
                if !broken_off && given >= EXPECTED_RATE_SHARE_MIN * before =>
            {
                let took = now.at.since(from.at);
                let part = (now.come - from.come) / (before * took.as_secs_f64()).max(1.0);
                let over = took >= span;
                if took >= span / 2 && part < EXCLUSIVE_RATE_SHARE_ABORT
                    || over && part < EXCLUSIVE_RATE_SHARE_MIN
                {
                    let rest = BACKOFF_MIN.saturating_mul(1 << self.failed_trials.min(5)).min(BACKOFF_MAX);
                    self.failed_trials = self.failed_trials.saturating_add(1);
                    return self.is(State::Backoff { until: now.at + rest }, false);
                }
                if over {
                    self.failed_trials = 0;
                    if now.at.since(begun) > REMEASURE_INTERVAL {
                        return self.is(State::Shared { from: now, least: SHARED_MEASURE_MIN }, false);
                    }
                    return self.is(State::Exclusive { begun, from: now, span, shared_rate: before }, true);
                }
                true
            }
            _ => self.is(State::Shared { from: now, least: SHARED_MEASURE_MIN }, false),
        }
    }

    /// Bytes a second that came in the last minutes; nothing where that is not known yet.
    fn recent_rate(&mut self, now: Seen, broken_off: bool) -> f64 {
        let [begin, middle] = self.recent_window.filter(|_| !broken_off).unwrap_or([now; 2]);
        let next = now.at.since(middle.at) >= RECENT_WINDOW_STEP;
        self.recent_window = Some(if next { [middle, now] } else { [begin, middle] });
        let took = now.at.since(begin.at);
        if took < EXCLUSIVE_MEASURE_MIN { 0.0 } else { (now.come - begin.come) / took.as_secs_f64() }
    }

    fn measure_shared(&mut self, from: Seen, least: Duration, now: Seen, given: f64, pace: f64) -> bool {
        let took = now.at.since(from.at);
        if took < least || now.pieces - from.pieces < SHARED_ARRIVALS_MIN {
            return false;
        }
        let before = ((now.come - from.come) / took.as_secs_f64()).max(RECENT_RATE_SHARE * pace);
        if given >= EXPECTED_RATE_SHARE_MIN * before {
            let span = took.max(EXCLUSIVE_MEASURE_MIN);
            return self.is(State::Exclusive { begun: now.at, from: now, span, shared_rate: before }, true);
        }
        if took > EXCLUSIVE_MEASURE_MIN * 2 {
            self.state = State::Shared { from: now, least: SHARED_MEASURE_MIN };
        }
        false
    }

    /// In a lane something waits for a source now, as nothing did.
    pub(crate) fn add_waiting_lane(&mut self, source: u32) {
        match self.sources.binary_search_by_key(&source, |(source, _)| *source) {
            Ok(at) => {
                let waits = &mut self.sources[at].1;
                match waits {
                    SourceDemand::Lanes(lanes) => *lanes += 1,
                    SourceDemand::IdleSince(left) => {
                        let away =
                            |asked: Timestamp| left.is_none_or(|left| asked.since(left) > QUERY_GAP_MAX);
                        self.source_joined |= self.last_query.is_some_and(away);
                        *waits = SourceDemand::Lanes(1);
                    }
                }
            }
            Err(at) => {
                self.sources.insert(at, (source, SourceDemand::Lanes(1)));
                self.source_joined = true;
            }
        }
    }

    /// In a lane nothing waits for it any more.
    pub(crate) fn remove_waiting_lane(&mut self, source: u32) {
        let Ok(at) = self.sources.binary_search_by_key(&source, |(source, _)| *source) else { return };
        let waits = &mut self.sources[at].1;
        *waits = match waits {
            SourceDemand::Lanes(lanes) if *lanes > 1 => SourceDemand::Lanes(*lanes - 1),
            _ => SourceDemand::IdleSince(self.last_query),
        };
    }

    fn is(&mut self, state: State, alone: bool) -> bool {
        self.state = state;
        alone
    }
}

impl Scheduler {
    /// Whether nothing of later blocks is dealt beside this one, of which nothing can be dealt now; none
    /// where that says nothing of it, since nothing of it moves.
    pub(crate) fn holds_back_later_blocks(
        &mut self,
        target: u32,
        want: u32,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<bool> {
        if self.settings.rules != Rules::Ours {
            return None;
        }
        // Other strategies know no first, and of a target that never took anything nothing can be compared.
        self.target_rate_for(want, backlog)?;
        let party = self.wants[want].party;
        let mut given = 0.0;
        for (source, queue) in &self.wants[want].queues {
            let Some(link) = self.storages[target].target.links.get(*source) else { continue };
            let moves = link.files > 0 && now.since(link.last_arrival) < SILENCE_MAX;
            if moves && !queue.is_empty() {
                let why = self.unusable(*source, target, party, now);
                // As it was asked for last: asking anew is for choices that are made.
                given += if matches!(why, Some(Unusable::WindowFull { .. })) { link.rate.rate } else { 0.0 };
            }
        }
        if given <= 0.0 {
            return None;
        }
        let row = &mut self.storages[target].target;
        let alone = row
            .exclusive
            .should_hold_back(Seen { at: now, come: row.bytes_arrived, pieces: row.arrivals }, given);
        row.exclusive.holds_back = alone;
        Some(alone)
    }

    /// Nothing was found for a target: whether that is so since it is held back. Of what does not move no
    /// news comes, and nothing else would look again.
    pub(crate) fn is_held_back(&mut self, target: u32, now: Timestamp) -> bool {
        let first = &mut self.storages[target].target.exclusive;
        if !std::mem::take(&mut first.holds_back) {
            return false;
        }
        let next = now + RECHECK_INTERVAL;
        if next > now && first.next_check.is_none_or(|at| at <= now) {
            first.next_check = Some(next);
            self.set_timer(next, Timer::Target(target));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asked each second while it waits, from a moment on; `rate` comes in all while it is shared and while
    /// it is alone. The seconds in which it was alone.
    fn seconds_alone(first: &mut ExclusiveTarget, rate: [f64; 2], from: u64, seconds: u64) -> Vec<u64> {
        let (mut come, mut is_alone) = (0.0, false);
        let mut found = Vec::new();
        for second in from..from + seconds {
            come += rate[usize::from(is_alone)];
            let at = Timestamp::from_seconds(1_800_000_000 + second as i64);
            is_alone = first.should_hold_back(Seen { at, come, pieces: second }, 100.0);
            found.extend(is_alone.then_some(second));
        }
        found
    }

    fn begins(found: &[u64]) -> Vec<u64> {
        found.iter().copied().filter(|&second| second == 0 || !found.contains(&(second - 1))).collect()
    }

    #[test]
    fn where_as_much_comes_as_before_it_goes_on_and_is_measured_again() {
        let found = seconds_alone(&mut ExclusiveTarget::default(), [100.0, 97.0], 0, 2_500);
        assert_eq!(begins(&found), [5, 1_840], "it is shared for a moment after half an hour");
        assert!(found.len() > 2_480, "{}", found.len());
    }

    #[test]
    fn a_target_that_gets_less_is_shared_again_and_each_try_is_later() {
        let found = seconds_alone(&mut ExclusiveTarget::default(), [100.0, 85.0], 0, 480);
        assert_eq!(begins(&found), [5, 100, 255], "after 30 s, pauses of 60 and 120 s, and 5 s to measure");
        assert_eq!(found.iter().filter(|second| **second < 95).count(), 30);
        let found = seconds_alone(&mut ExclusiveTarget::default(), [100.0, 50.0], 0, 60);
        assert_eq!(found.len(), 15, "far less is known sooner");
    }

    #[test]
    fn a_measurement_that_is_too_low_by_chance_does_not_count() {
        let at = |second: u64, come: f64| Seen {
            at: Timestamp::from_seconds(1_800_000_000 + second as i64),
            come,
            pieces: second,
        };
        let mut first = ExclusiveTarget::default();
        // Its links are believed to give too little for it.
        assert!(!(0..100).any(|second| first.should_hold_back(at(second, 100.0 * second as f64), 10.0)));
        first.state = State::Shared { from: at(99, 9_900.0), least: SHARED_MEASURE_MIN };
        // 20 a second for a moment, and half of what came before once it is alone.
        let mut found = (100..105).filter(|second| {
            first.should_hold_back(at(*second, 9_900.0 + 20.0 * (second - 99) as f64), 100.0)
        });
        assert_eq!(found.next(), Some(104));
        let alone = (105..160).filter(|second| {
            first.should_hold_back(at(*second, 10_000.0 + 50.0 * (second - 104) as f64), 100.0)
        });
        assert_eq!(alone.count(), 14, "far less than in the last minutes is known after half a measurement");
    }

    #[test]
    fn what_could_not_use_it_is_never_alone() {
        assert!(seconds_alone(&mut ExclusiveTarget::default(), [1_000.0, 1_000.0], 0, 500).is_empty());
    }

    #[test]
    fn what_was_not_asked_for_a_while_begins_anew() {
        let mut first = ExclusiveTarget::default();
        assert_eq!(seconds_alone(&mut first, [100.0, 97.0], 0, 15).len(), 10);
        let found = seconds_alone(&mut first, [100.0, 97.0], 60, 15);
        assert_eq!(found, (65..75).collect::<Vec<u64>>(), "nothing is concluded from the time between");
    }
}
