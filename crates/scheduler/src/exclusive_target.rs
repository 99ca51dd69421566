//! Exclusive target: the oldest block gets a full target to itself where that costs nothing (against
//! head-of-line interleaving; the shortest-job-first argument for mean completion time).
//!
//! While the oldest block's sources can fill the target, later blocks are not interleaved: files of later
//! blocks would take from a full port or disk, and all blocks would complete late. Tried for 30 s, and kept
//! if at least 95 % of the former rate goes on. Where several communities, activities or priorities wait,
//! shares decide.
//!
//! ```text
//! shared: measure the rate ──5 s──► exclusive: as much? ──no──► backoff: 1 min, 2 min, … 8 min
//!    ▲                                  │ after half an hour        │
//!    └──────────────────────────────────┴───────────────────────────┘
//! ```
//!
//! Nothing is assumed: whether a target is full shows only when the links of the first block take over what
//! the others leave. The rate is measured over all first blocks one after another, since blocks may be small.
//! A few seconds can be too low by chance, so the rate of the last minutes counts as well, as a mean: the
//! best of several samples would be more than any port gives. A rate says nothing about sources that had
//! nothing to give then: when work for another source arrives, the target is shared again for as long as a
//! new link needs to show its rate. Work that is held back needs a moving link: one that is silent, limited,
//! paused or failing holds back nothing, and a target that holds back checks again by timer.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::decision::Unusable;
use crate::dispatch::TargetBacklog;
use crate::recent_rate::ArrivalMark;
use crate::scheduler::{Scheduler, Timer};
use crate::settings::Rules;

/// Share of the shared rate that the links of the first block must be expected to give. It is low because
/// their estimates come from times when they had to share.
const EXPECTED_RATE_SHARE_MIN: f64 = 0.25;
/// Share of the shared rate that must go on while the target is exclusive.
const EXCLUSIVE_RATE_SHARE_MIN: f64 = 0.95;
/// Share of the rate of the last minutes, which may have passed, that counts as the shared rate at least.
const RECENT_RATE_SHARE: f64 = 0.95;
/// With less than this share after half a measurement the trial ends at once.
const EXCLUSIVE_RATE_SHARE_ABORT: f64 = 0.7;
/// Minimum length of a measurement while shared; meanwhile others get files.
const SHARED_MEASURE_MIN: Duration = Duration::from_secs(5);
/// Minimum number of arrivals in a measurement while shared.
const SHARED_ARRIVALS_MIN: u64 = 3;
/// Minimum length of a measurement while exclusive: some reports of large files.
const EXCLUSIVE_MEASURE_MIN: Duration = Duration::from_secs(30);
/// The recent rate covers one to two of these.
const RECENT_WINDOW_STEP: Duration = Duration::from_secs(60);
/// Without a query for this long everything begins anew.
const QUERY_GAP_MAX: Duration = Duration::from_secs(30);
/// After this long the target is shared again for a measurement: it may take more than it did.
const REMEASURE_INTERVAL: Duration = Duration::from_secs(1800);
/// Pause after the first failed trial; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_secs(60);
/// Longest pause between trials.
const BACKOFF_MAX: Duration = Duration::from_secs(480);
/// A link that is silent for longer is not moving.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// A target that holds back is checked this often without news.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Whether the first block of a target has it to itself: the state machine drawn above.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveTarget {
    state: State,
    /// Sources for which work waits or did, in their order.
    sources: Vec<(u32, SourceDemand)>,
    /// Work waits for a source that was not part of the measured rate.
    source_joined: bool,
    failed_trials: u32,
    /// Time of the last query.
    last_query: Option<Timestamp>,
    /// Work is held back right now.
    holds_back: bool,
    /// Time of the next check without news.
    next_check: Option<Timestamp>,
    /// Begin and middle of the window for the recent rate.
    recent_window: Option<[ArrivalMark; 2]>,
}

/// Work that waits for a source.
#[derive(Clone, Copy, Debug)]
enum SourceDemand {
    /// Number of lanes with such work.
    Lanes(u32),
    /// None since this query of the target.
    IdleSince(Option<Timestamp>),
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Measures the shared rate for at least this long.
    Shared {
        from: ArrivalMark,
        least: Duration,
    },
    /// `shared_rate` is the former rate in bytes per second; each measurement takes `span`.
    Exclusive {
        begun: Timestamp,
        from: ArrivalMark,
        span: Duration,
        shared_rate: f64,
    },
    Backoff {
        until: Timestamp,
    },
}

impl ExclusiveTarget {
    /// Whether later blocks are held back now. `given`: the expected rate of the links of the first block.
    fn should_hold_back(&mut self, now: ArrivalMark, given: f64) -> bool {
        let asked = self.last_query.replace(now.at);
        let broken_off = asked.is_some_and(|at| now.at.since(at) > QUERY_GAP_MAX);
        let pace = self.recent_rate(now, broken_off);
        if std::mem::take(&mut self.source_joined) && !matches!(self.state, State::Backoff { .. }) {
            return self.enter(State::Shared { from: now, least: EXCLUSIVE_MEASURE_MIN });
        }
        match self.state {
            State::Backoff { until } if now.at < until => false,
            State::Shared { from, least } if !broken_off => {
                self.measure_shared(from, least, now, given, pace)
            }
            State::Exclusive { begun, from, span, shared_rate }
                if !broken_off && given >= EXPECTED_RATE_SHARE_MIN * shared_rate =>
            {
                let took = now.at.since(from.at);
                let part = (now.bytes - from.bytes) / (shared_rate * took.as_secs_f64()).max(1.0);
                let over = took >= span;
                if took >= span / 2 && part < EXCLUSIVE_RATE_SHARE_ABORT
                    || over && part < EXCLUSIVE_RATE_SHARE_MIN
                {
                    let rest = BACKOFF_MIN.saturating_mul(1 << self.failed_trials.min(5)).min(BACKOFF_MAX);
                    self.failed_trials = self.failed_trials.saturating_add(1);
                    return self.enter(State::Backoff { until: now.at + rest });
                }
                if over {
                    self.failed_trials = 0;
                    if now.at.since(begun) > REMEASURE_INTERVAL {
                        return self.enter(State::Shared { from: now, least: SHARED_MEASURE_MIN });
                    }
                    return self.enter(State::Exclusive { begun, from: now, span, shared_rate });
                }
                true
            }
            _ => self.enter(State::Shared { from: now, least: SHARED_MEASURE_MIN }),
        }
    }

    /// Rate of the last minutes in bytes per second; 0 until there is enough history.
    fn recent_rate(&mut self, now: ArrivalMark, broken_off: bool) -> f64 {
        let [begin, middle] = self.recent_window.filter(|_| !broken_off).unwrap_or([now; 2]);
        let next = now.at.since(middle.at) >= RECENT_WINDOW_STEP;
        self.recent_window = Some(if next { [middle, now] } else { [begin, middle] });
        let took = now.at.since(begin.at);
        if took < EXCLUSIVE_MEASURE_MIN { 0.0 } else { (now.bytes - begin.bytes) / took.as_secs_f64() }
    }

    fn measure_shared(
        &mut self,
        from: ArrivalMark,
        least: Duration,
        now: ArrivalMark,
        given: f64,
        pace: f64,
    ) -> bool {
        let took = now.at.since(from.at);
        if took < least || now.arrivals - from.arrivals < SHARED_ARRIVALS_MIN {
            return false;
        }
        let shared_rate = ((now.bytes - from.bytes) / took.as_secs_f64()).max(RECENT_RATE_SHARE * pace);
        if given >= EXPECTED_RATE_SHARE_MIN * shared_rate {
            let span = took.max(EXCLUSIVE_MEASURE_MIN);
            return self.enter(State::Exclusive { begun: now.at, from: now, span, shared_rate });
        }
        if took > EXCLUSIVE_MEASURE_MIN * 2 {
            self.state = State::Shared { from: now, least: SHARED_MEASURE_MIN };
        }
        false
    }

    /// A lane begins to have work for a source.
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

    /// A lane has no more work for a source.
    pub(crate) fn remove_waiting_lane(&mut self, source: u32) {
        let Ok(at) = self.sources.binary_search_by_key(&source, |(source, _)| *source) else { return };
        let waits = &mut self.sources[at].1;
        *waits = match waits {
            SourceDemand::Lanes(lanes) if *lanes > 1 => SourceDemand::Lanes(*lanes - 1),
            _ => SourceDemand::IdleSince(self.last_query),
        };
    }

    /// Enters a state; returns whether later blocks are held back in it.
    fn enter(&mut self, state: State) -> bool {
        self.state = state;
        matches!(state, State::Exclusive { .. })
    }
}

impl Scheduler {
    /// Whether later blocks are held back for this one, of which nothing can be leased now; none if nothing
    /// of
    /// it is moving.
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
        // Other strategies have no first block, and a target without history has no rate to compare.
        self.target_rate_for(want, backlog)?;
        let party = self.wants[want].party;
        let mut given = 0.0;
        for (source, queue) in &self.wants[want].queues {
            let Some(link) = self.storages[target].target.links.get(*source) else { continue };
            let moves = link.files > 0 && now.since(link.last_arrival) < SILENCE_MAX;
            if moves && !queue.is_empty() {
                let why = self.unusable(*source, target, party, now);
                // The cached rate: refreshing it is for choices that are made.
                given += if matches!(why, Some(Unusable::WindowFull { .. })) { link.rate.rate } else { 0.0 };
            }
        }
        if given <= 0.0 {
            return None;
        }
        let row = &mut self.storages[target].target;
        let held_back = row.exclusive.should_hold_back(
            ArrivalMark { at: now, bytes: row.bytes_arrived, arrivals: row.arrivals },
            given,
        );
        row.exclusive.holds_back = held_back;
        Some(held_back)
    }

    /// Whether nothing was found for a target because work is held back. Arms a check, since no event would
    /// follow if the first block stops moving.
    pub(crate) fn is_held_back(&mut self, target: u32, now: Timestamp) -> bool {
        let exclusive = &mut self.storages[target].target.exclusive;
        if !std::mem::take(&mut exclusive.holds_back) {
            return false;
        }
        let next = now + RECHECK_INTERVAL;
        if next > now && exclusive.next_check.is_none_or(|at| at <= now) {
            exclusive.next_check = Some(next);
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
    fn seconds_alone(exclusive: &mut ExclusiveTarget, rate: [f64; 2], from: u64, seconds: u64) -> Vec<u64> {
        let (mut come, mut is_held_back) = (0.0, false);
        let mut found = Vec::new();
        for second in from..from + seconds {
            come += rate[usize::from(is_held_back)];
            let at = Timestamp::from_seconds(1_800_000_000 + second as i64);
            is_held_back =
                exclusive.should_hold_back(ArrivalMark { at, bytes: come, arrivals: second }, 100.0);
            found.extend(is_held_back.then_some(second));
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
        let at = |second: u64, come: f64| ArrivalMark {
            at: Timestamp::from_seconds(1_800_000_000 + second as i64),
            bytes: come,
            arrivals: second,
        };
        let mut exclusive = ExclusiveTarget::default();
        // Its links are believed to give too little for it.
        assert!(!(0..100).any(|second| exclusive.should_hold_back(at(second, 100.0 * second as f64), 10.0)));
        exclusive.state = State::Shared { from: at(99, 9_900.0), least: SHARED_MEASURE_MIN };
        // 20 a second for a moment, and half of what came before once it is alone.
        let mut found = (100..105).filter(|second| {
            exclusive.should_hold_back(at(*second, 9_900.0 + 20.0 * (second - 99) as f64), 100.0)
        });
        assert_eq!(found.next(), Some(104));
        let held_back = (105..160).filter(|second| {
            exclusive.should_hold_back(at(*second, 10_000.0 + 50.0 * (second - 104) as f64), 100.0)
        });
        assert_eq!(
            held_back.count(),
            14,
            "far less than in the last minutes is known after half a measurement"
        );
    }

    #[test]
    fn what_could_not_use_it_is_never_alone() {
        assert!(seconds_alone(&mut ExclusiveTarget::default(), [1_000.0, 1_000.0], 0, 500).is_empty());
    }

    #[test]
    fn what_was_not_asked_for_a_while_begins_anew() {
        let mut exclusive = ExclusiveTarget::default();
        assert_eq!(seconds_alone(&mut exclusive, [100.0, 97.0], 0, 15).len(), 10);
        let found = seconds_alone(&mut exclusive, [100.0, 97.0], 60, 15);
        assert_eq!(found, (65..75).collect::<Vec<u64>>(), "nothing is concluded from the time between");
    }
}
