//! What is due first has its target to itself, where that is enough. A full port or disk is shared by all that comes over it:
//! files of later blocks, from other sources, would take from those of the first, and all would be complete late. So while every
//! source of a block has what it can use, and these are believed to give [`ENOUGH`] of what the target takes, nothing of
//! later blocks of the same priority is dealt.
//!
//! What is believed of a link comes from times when it had to share, and says too little of what it gives alone. So half is
//! enough to try; and whether the target still takes as much is measured. If it does not, later blocks come beside the first
//! again, and the next try is later each time.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::scheduler::Scheduler;
use crate::settings::Rules;

/// Part of what a target takes that its first block's links are believed to give. With 0.9 hardly anything was ever held; with
/// 0.3 targets idled in worlds with failures and tape.
const ENOUGH: f64 = 0.5;
/// Part of what a target took before that it must go on taking.
const AS_MUCH: f64 = 0.85;
/// How long that is measured: some reports of large files.
const MEASURE: Duration = Duration::from_secs(20);
/// Without being held for so long, it begins anew.
const BROKEN_OFF: Duration = Duration::from_secs(10);
/// Until the next try, doubled each time.
const REST: Duration = Duration::from_secs(60);
const REST_MAX: Duration = Duration::from_secs(1920);

/// What a target's first block has to itself, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct First {
    held: Option<Held>,
    rests_until: Option<Timestamp>,
    failed: u32,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// Begin of the measurement, and what had come by then.
    since: Timestamp,
    come: f64,
    last: Timestamp,
    /// Bytes a second before.
    before: f64,
}

impl First {
    /// Whether it may go on so, with what has come so far and what the target is believed to take.
    fn may(&mut self, come: f64, takes: f64, now: Timestamp) -> bool {
        if self.rests_until.is_some_and(|until| now < until) {
            return false;
        }
        let fresh = Held { since: now, come, last: now, before: takes };
        let held = self.held.get_or_insert(fresh);
        if now.since(held.last) > BROKEN_OFF {
            *held = fresh;
        }
        held.last = now;
        let seconds = now.since(held.since);
        if seconds < MEASURE {
            return true;
        }
        let enough = come - held.come >= AS_MUCH * held.before * seconds.as_secs_f64();
        if enough {
            (held.since, held.come, self.failed) = (now, come, 0);
        } else {
            let rest = REST.saturating_mul(1 << self.failed.min(5)).min(REST_MAX);
            *self =
                First { held: None, rests_until: Some(now + rest), failed: self.failed.saturating_add(1) };
        }
        enough
    }
}

impl Scheduler {
    /// Whether nothing of later blocks is dealt beside this one, of which nothing can be dealt now.
    pub(crate) fn has_all(&mut self, target: u32, want: u32, now: Timestamp) -> bool {
        if self.settings.rules != Rules::Ours || self.pace_of(want).is_none() {
            return false;
        }
        let Some(takes) = self.knowledge.total(self.storages[target].id, true, now) else { return false };
        let mut given = 0.0;
        for at in 0..self.wants[want].queues.len() {
            let (source, queue) = &self.wants[want].queues[at];
            let (source, has_some) = (*source, !queue.is_empty());
            let Some(link) = self.storages[target].target.links.get(source) else { continue };
            if has_some && link.files > 0 && self.link_full(source, target, link) {
                given += self.link_rate(source, target, now).0;
            }
        }
        if given < ENOUGH * takes.bytes_per_s {
            return false;
        }
        let row = &mut self.storages[target].target;
        row.first.may(row.come, takes.bytes_per_s, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(1_800_000_000_000_000 + seconds * 1_000_000)
    }

    /// Asked each second, while `rate` comes; the seconds in which it held.
    fn held(first: &mut First, rate: f64, from: i64, to: i64) -> Vec<i64> {
        (from..to).filter(|&second| first.may(rate * second as f64, 100.0, at(second))).collect()
    }

    #[test]
    fn it_goes_on_while_as_much_comes_as_before() {
        assert_eq!(held(&mut First::default(), 90.0, 0, 600).len(), 600);
    }

    #[test]
    fn a_target_that_takes_less_is_shared_again_and_each_try_is_later() {
        let mut first = First::default();
        let tries = held(&mut first, 50.0, 0, 400);
        let began: Vec<i64> = tries.iter().copied().filter(|second| !tries.contains(&(second - 1))).collect();
        assert_eq!(began, [0, 80, 220], "after 20 s, and pauses of 60 and 120 s");
        assert_eq!(tries.iter().filter(|second| **second < 80).count(), 20);
        // Once it has gone well, the first pause is short again.
        held(&mut first, 100.0, 10_000, 10_100);
        let tries = held(&mut first, 50.0, 20_000, 20_200);
        assert!(tries.contains(&20_080), "{tries:?}");
    }

    #[test]
    fn what_was_broken_off_is_measured_anew() {
        let mut first = First::default();
        assert_eq!(held(&mut first, 50.0, 0, 15).len(), 15);
        assert_eq!(held(&mut first, 50.0, 40, 55).len(), 15, "nothing is concluded from the time between");
    }
}
