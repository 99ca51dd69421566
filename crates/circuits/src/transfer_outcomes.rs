//! Whether transfers fare worse on a circuit than beside it.

use std::collections::VecDeque;

use longhaul_model::Timestamp;

use crate::{Note, Settings};

/// Ends of transfers that are remembered.
const OUTCOMES_MAX: usize = 1000;
/// So much larger must the share of failures be on the circuit than beside it: noise is no reason to leave.
const FAILURE_SHARE_MARGIN: f64 = 0.2;

#[derive(Debug, Default)]
pub(crate) struct TransferOutcomes {
    /// When, whether on the circuit, whether it went well.
    outcomes: VecDeque<(Timestamp, bool, bool)>,
}

impl TransferOutcomes {
    pub(crate) fn add(&mut self, now: Timestamp, on_circuit: bool, good: bool) {
        if self.outcomes.len() == OUTCOMES_MAX {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back((now, on_circuit, good));
    }

    pub(crate) fn clear(&mut self) {
        self.outcomes.clear();
    }

    pub(crate) fn check_failures(&mut self, now: Timestamp, settings: &Settings) -> Option<Note> {
        // Also what comes from a clock that has gone back since.
        self.outcomes.retain(|(at, ..)| *at <= now && now.since(*at) <= settings.failure_window);
        let count = |circuit: bool, only_bad: bool| {
            let these = self.outcomes.iter().filter(|(_, on, good)| *on == circuit && !(only_bad && *good));
            these.count()
        };
        let (failed, of) = (count(true, true), count(true, false));
        let share = |failed: usize, of: usize| failed as f64 / of.max(1) as f64;
        let beside = share(count(false, true), count(false, false));
        let here = share(failed, of);
        let much = failed >= settings.failures_min as usize && here > settings.failure_share_min;
        (much && here > beside + FAILURE_SHARE_MARGIN).then_some(Note::TransfersFailing {
            failed,
            of,
            within: settings.failure_window,
        })
    }
}
