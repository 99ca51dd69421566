//! Whether transfers fare worse on a circuit than beside it.

use std::collections::VecDeque;

use longhaul_model::Timestamp;

use crate::{Note, Settings};

/// Ends of transfers that are remembered.
const REMEMBERED_MAX: usize = 1000;
/// So much larger must the share of failures be on the circuit than beside it: noise is no reason to leave.
const CLEARLY: f64 = 0.2;

#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// When, whether on the circuit, whether it went well.
    ends: VecDeque<(Timestamp, bool, bool)>,
}

impl Trouble {
    pub(crate) fn add(&mut self, now: Timestamp, on_circuit: bool, good: bool) {
        if self.ends.len() == REMEMBERED_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back((now, on_circuit, good));
    }

    pub(crate) fn clear(&mut self) {
        self.ends.clear();
    }

    pub(crate) fn judge(&mut self, now: Timestamp, settings: &Settings) -> Option<Note> {
        // Also what comes from a clock that has gone back since.
        self.ends.retain(|(at, ..)| *at <= now && now.since(*at) <= settings.failures_within);
        let count = |circuit: bool, only_bad: bool| {
            let these = self.ends.iter().filter(|(_, on, good)| *on == circuit && !(only_bad && *good));
            these.count()
        };
        let (failed, of) = (count(true, true), count(true, false));
        let share = |failed: usize, of: usize| failed as f64 / of.max(1) as f64;
        let beside = share(count(false, true), count(false, false));
        let here = share(failed, of);
        let much = failed >= settings.failures as usize && here > settings.failures_share;
        (much && here > beside + CLEARLY).then_some(Note::Failing {
            failed,
            of,
            within: settings.failures_within,
        })
    }
}
