//! Backoff reset: the first file that arrives over a link after failures ends the backoff of the others that
//! failed there, so that a backoff grown in a long outage does not outlast it. The count of failures stays,
//! so that what fails again backs off longer still.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::scheduler::Scheduler;
use crate::settings::Backoff;
use crate::state::Phase;

/// A link resets backoff at most this often: where some files arrive and some fail, backoff still grows.
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
