//! Circuit breaker (Nygard, *Release It!*): drops a circuit whose transfers fail more often than those beside
//! it.

use std::collections::VecDeque;

use longhaul_model::Timestamp;

use crate::{Note, Settings};

/// Outcomes remembered.
const OUTCOMES_MAX: usize = 1000;
/// Margin by which the failure share on the circuit must exceed the one beside it: noise is no reason to drop
/// a circuit.
const FAILURE_SHARE_MARGIN: f64 = 0.2;

#[derive(Debug, Default)]
pub(crate) struct TransferOutcomes {
    /// Time, whether on the circuit, whether it succeeded.
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
        // Drops outcomes from the future as well, after a clock step.
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
