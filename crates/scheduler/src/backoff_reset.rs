//! Trouble that has passed: the first file that comes over a link after failures ends the rest of the others
//! that failed there. A pause that has grown with a long trouble must not outlast it; how often a file has
//! failed stays counted, so that what fails again rests longer still.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::scheduler::Scheduler;
use crate::settings::Backoff;
use crate::state::Phase;

/// At most so often for a link: where some come and some fail for long, pauses still grow.
const BACKOFF_RESET_INTERVAL: Duration = Duration::from_secs(60);

impl Scheduler {
    pub(crate) fn note_failure(&mut self, target: u32, source: u32) {
        if let Some(link) = self.storages[target].target.links.get_mut(source) {
            link.failed_since_arrival = true;
        }
    }

    /// A file has come over the link.
    pub(crate) fn reset_backoff(&mut self, target: u32, source: u32, now: Timestamp) {
        let legacy = self.settings.backoff == Backoff::Legacy;
        let Some(link) = self.storages[target].target.links.get_mut(source) else { return };
        if !link.failed_since_arrival
            || legacy
            || link.backoff_reset_at.is_some_and(|at| now.since(at) < BACKOFF_RESET_INTERVAL)
        {
            return;
        }
        link.failed_since_arrival = false;
        link.backoff_reset_at = Some(now);
        let wants = self.want_of.iter().filter(|((_, at), _)| *at == target).map(|(_, want)| *want);
        let resting: Vec<u32> = wants
            .flat_map(|want| self.wants[want].transfers.iter().copied())
            .filter(|&index| self.transfers[index].phase == Phase::InBackoff)
            .collect();
        for index in resting {
            let transfer = &mut self.transfers[index];
            let mut from_there = transfer.sources.iter_mut().filter(|row| row.storage == source);
            let Some(row) = from_there.next() else { continue };
            row.backoff_until = row.backoff_until.min(now);
            transfer.backoff_until = transfer.backoff_until.min(now);
            let id = transfer.id;
            self.end_backoff(id, now);
        }
    }
}
