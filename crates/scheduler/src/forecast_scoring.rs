//! What the network is expected to do for an attempt, against what it did: forecasts are themselves measured.

use longhaul_model::{AttemptId, Timestamp};
use longhaul_network::{Backlog, Link, Work};

use crate::scheduler::Scheduler;
use crate::state::ActiveLease;

/// One attempt of so many is foreseen: forecasts cost, and some tell as much as all.
const FORECAST_SAMPLE_INTERVAL: u64 = 8;
/// Attempts under way of which it is known what was expected.
const FORECASTS_MAX: usize = 10_000;

impl Scheduler {
    /// The attempt is about to be leased from `source`.
    pub(crate) fn record_forecast(&mut self, attempt: AttemptId, index: u32, source: u32, now: Timestamp) {
        let transfer = &self.transfers[index];
        let target = &self.storages[transfer.target];
        if !target.target.leases_issued.is_multiple_of(FORECAST_SAMPLE_INTERVAL)
            || self.forecasts.len() >= FORECASTS_MAX
        {
            return;
        }
        let link = Link { source: self.storages[source].id, target: target.id };
        let work = Work { backlog: self.ahead_at(source, transfer.target), ..Work::file(transfer.size) };
        let forecast = self.knowledge.forecast(link, work, now);
        self.forecasts.insert(attempt, (now, forecast));
    }

    /// What was asked of a link and of its ends before, and is not there yet.
    pub fn link_ahead(&self, link: Link) -> Backlog {
        match (self.storage_of.get(&link.source), self.storage_of.get(&link.target)) {
            (Some(&source), Some(&target)) => self.ahead_at(source, target),
            _ => Backlog::default(),
        }
    }

    fn ahead_at(&self, source: u32, target: u32) -> Backlog {
        let target = &self.storages[target].target;
        let bytes = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        Backlog {
            link: target.links.get(source).map_or(0, |link| bytes(link.bytes)),
            source: bytes(self.storages[source].bytes_ahead),
            target: bytes(target.leased_bytes),
        }
    }

    /// It has come. What was resumed or was there already tells nothing.
    pub(crate) fn score_forecast(
        &mut self,
        index: u32,
        lease: &ActiveLease,
        bytes_moved: u64,
        now: Timestamp,
    ) {
        let foreseen = self.forecasts.remove(&lease.attempt);
        let transfer = &self.transfers[index];
        if bytes_moved != transfer.size || bytes_moved == 0 {
            return;
        }
        let target = self.storages[transfer.target].id;
        let link = Link { source: self.storages[lease.source].id, target };
        if let Some((leased, forecast)) = foreseen {
            self.knowledge.score(link, &forecast, bytes_moved, now.since(leased), now);
        }
        if let Some(leased) = lease.leased {
            self.knowledge.record_completion(link, bytes_moved, now.since(leased));
        }
    }
}
