//! What is due first has its target to itself, where that costs nothing. A full port or disk is shared by all that comes over
//! it: files of later blocks, from other sources, take from those of the first, and all are complete late. So while every
//! source of the first block has what it can use, nothing of later blocks is dealt. Where others
//! wait too, communities, activities or priorities, all stays as their shares want it.
//!
//! ```text
//! shared: what comes in all, and over the links of the first? ──they have a part only──► alone: does as much come in all?
//!    ▲                                                                                         │
//!    └──── every half an hour; after a pause, longer each time, where less came ◄───────────────┘
//! ```
//!
//! Nothing is believed: that a target is full shows only when the links of its first block take over what the others leave. And
//! what holds others back has to move: a link that is silent, or that a limit, a pause or a fault keeps from more, holds back
//! nothing.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::decision::Unusable;
use crate::scheduler::Scheduler;
use crate::settings::Rules;

/// Part of what came in all that the links of the first block are believed to give: what is believed comes from times when they
/// had to share.
const ENOUGH: f64 = 0.25;
/// With more than this part of all that comes it is as good as alone.
const OWN: f64 = 0.9;
/// Part of what came in all before that must go on coming.
const AS_MUCH: f64 = 0.85;
/// How long is measured what comes while it is shared: meanwhile others are given large files. And what comes then: some reports
/// of large files.
const SHARED: Duration = Duration::from_secs(3);
const MEASURE: Duration = Duration::from_secs(20);
/// Not asked for so long, it begins anew.
const BROKEN_OFF: Duration = Duration::from_secs(30);
/// After so long it is shared again for a measurement: the target may take more than it did.
const AGAIN: Duration = Duration::from_secs(1800);
/// Until the next try, doubled each time.
const REST: Duration = Duration::from_secs(60);
const REST_MAX: Duration = Duration::from_secs(480);
/// A link that is silent for longer does not move.
const SILENT: Duration = Duration::from_secs(5);
/// What the first block of a target has, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct First {
    state: State,
    failed: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    New,
    Shared {
        from: Seen,
    },
    /// `before` bytes a second came while it was shared.
    Alone {
        begun: Timestamp,
        from: Seen,
        last: Timestamp,
        before: f64,
    },
    Rests {
        until: Timestamp,
    },
}

/// The target at a moment.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Timestamp,
    want: u32,
    /// Bytes that have come in all, and over the links of the want.
    come: f64,
    own: f64,
    /// What these links are believed to give.
    given: f64,
}

impl First {
    /// Whether nothing else is dealt now.
    fn alone(&mut self, now: Seen) -> bool {
        let shared = State::Shared { from: now };
        match self.state {
            State::Rests { until } if now.at < until => false,
            State::Rests { .. } | State::New => self.is(shared, false),
            State::Shared { from } => {
                let took = now.at.since(from.at);
                if from.want != now.want || took > BROKEN_OFF {
                    return self.is(shared, false);
                }
                if took < SHARED {
                    return false;
                }
                let (come, own) = (now.come - from.come, now.own - from.own);
                let before = come / took.as_secs_f64();
                if come <= 0.0 || own > OWN * come || now.given < ENOUGH * before {
                    return self.is(shared, false);
                }
                self.is(State::Alone { begun: now.at, from: now, last: now.at, before }, true)
            }
            State::Alone { last, before, .. }
                if now.at.since(last) > BROKEN_OFF || now.given < ENOUGH * before =>
            {
                self.is(shared, false)
            }
            State::Alone { begun, from, before, .. } => {
                let took = now.at.since(from.at);
                if took < MEASURE {
                    return self.is(State::Alone { begun, from, last: now.at, before }, true);
                }
                if now.come - from.come < AS_MUCH * before * took.as_secs_f64() {
                    let rest = REST.saturating_mul(1 << self.failed.min(5)).min(REST_MAX);
                    self.failed = self.failed.saturating_add(1);
                    return self.is(State::Rests { until: now.at + rest }, false);
                }
                self.failed = 0;
                if now.at.since(begun) > AGAIN {
                    return self.is(shared, false);
                }
                self.is(State::Alone { begun, from: now, last: now.at, before }, true)
            }
        }
    }

    fn is(&mut self, state: State, alone: bool) -> bool {
        self.state = state;
        alone
    }
}

impl Scheduler {
    /// Whether nothing of later blocks is dealt beside this one, of which nothing can be dealt now; none where that says
    /// nothing of it, since nothing of it moves.
    pub(crate) fn has_target_alone(&mut self, target: u32, want: u32, now: Timestamp) -> Option<bool> {
        if self.settings.rules != Rules::Ours || self.pace_of(want).is_none() {
            return None;
        }
        let party = self.wants[want].party;
        let (mut own, mut given) = (0.0, 0.0);
        for at in 0..self.wants[want].queues.len() {
            let (source, queue) = &self.wants[want].queues[at];
            let (source, has_some) = (*source, !queue.is_empty());
            let Some(link) = self.storages[target].target.links.get(source) else { continue };
            let moves = link.files > 0 && now.since(link.heard) < SILENT;
            own += link.come;
            if has_some
                && moves
                && matches!(self.unusable(source, target, party, now), Some(Unusable::WindowFull { .. }))
            {
                given += self.link_rate(source, target, now).0;
            }
        }
        if given <= 0.0 {
            return None;
        }
        let row = &mut self.storages[target].target;
        let alone = row.first.alone(Seen { at: now, want, come: row.come, own, given });
        Some(alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asked each second while it waits, from a moment on; `rate` comes in all while it is shared and while it is alone, of
    /// which its own links give `part` while it is shared. The seconds in which it was alone.
    fn alone(first: &mut First, rate: [f64; 2], part: f64, from: i64, seconds: i64) -> Vec<i64> {
        let (mut come, mut own, mut is_alone) = (0.0, 0.0, false);
        let mut found = Vec::new();
        for second in from..from + seconds {
            let now = rate[usize::from(is_alone)];
            come += now;
            own += if is_alone { now } else { part * now };
            let at = Timestamp::from_seconds(1_800_000_000 + second);
            is_alone = first.alone(Seen { at, want: 1, come, own, given: 100.0 });
            found.extend(is_alone.then_some(second));
        }
        found
    }

    #[test]
    fn where_as_much_comes_as_before_it_goes_on_and_is_measured_again() {
        let found = alone(&mut First::default(), [100.0, 90.0], 0.5, 0, 2_500);
        assert_eq!(found.first(), Some(&3));
        assert!(found.len() > 2_490, "{}", found.len());
        assert!(!found.contains(&1_824), "it is shared for a moment: {found:?}");
    }

    #[test]
    fn a_target_that_gets_less_is_shared_again_and_each_try_is_later() {
        let mut first = First::default();
        let found = alone(&mut first, [100.0, 50.0], 0.5, 0, 480);
        let begun: Vec<i64> = found.iter().copied().filter(|second| !found.contains(&(second - 1))).collect();
        assert_eq!(begun, [3, 86, 229], "after 20 s, pauses of 60 and 120 s, and 3 s to measure");
        assert_eq!(found.iter().filter(|second| **second < 83).count(), 20);
    }

    #[test]
    fn what_has_nearly_all_or_could_not_use_it_is_never_alone() {
        assert!(alone(&mut First::default(), [100.0, 100.0], 0.95, 0, 500).is_empty());
        assert!(alone(&mut First::default(), [1_000.0, 1_000.0], 0.1, 0, 500).is_empty());
        assert!(alone(&mut First::default(), [0.0, 0.0], 0.5, 0, 500).is_empty());
    }

    #[test]
    fn what_was_not_asked_for_a_while_begins_anew() {
        let mut first = First::default();
        assert_eq!(alone(&mut first, [100.0, 90.0], 0.5, 0, 15).len(), 12);
        let found = alone(&mut first, [100.0, 90.0], 0.5, 60, 15);
        assert_eq!(found, (63..75).collect::<Vec<i64>>(), "nothing is concluded from the time between");
    }
}
