//! Forecast scoring: forecasts of sampled attempts are compared with what the network did.

use longhaul_model::{AttemptId, Timestamp};
use longhaul_network::{Backlog, Link, Work};

use crate::scheduler::Scheduler;
use crate::state::ActiveLease;

/// One attempt in this many gets a forecast: forecasts cost time, and a sample says as much as all.
const FORECAST_SAMPLE_INTERVAL: u64 = 8;
/// Attempts under way with a recorded forecast.
const FORECASTS_MAX: usize = 10_000;

impl Scheduler {
    /// Records the forecast of an attempt that is about to be leased from `source`.
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

    /// Bytes given to a link and to its ends before that have not arrived yet.
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

    /// Scores the forecast of a file that arrived. Resumed files and files that were there already do not
    /// count.
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
