//! What the network is expected to do for an attempt, against what it did: forecasts are themselves measured.

use longhaul_model::{AttemptId, Timestamp};
use longhaul_network::{Ahead, Link, Work};

use crate::scheduler::Scheduler;

/// One attempt of so many is foreseen: forecasts cost, and some tell as much as all.
const EACH: u64 = 8;
/// Attempts under way of which it is known what was expected.
const FORESEEN_MAX: usize = 10_000;

impl Scheduler {
    /// The attempt is about to be leased from `source`.
    pub(crate) fn foresee(&mut self, attempt: AttemptId, place: u32, source: u32, now: Timestamp) {
        let transfer = &self.transfers[place];
        let target = &self.storages[transfer.target];
        if !target.target.dealt.is_multiple_of(EACH) || self.forecasts.len() >= FORESEEN_MAX {
            return;
        }
        let link = Link { source: self.storages[source].id, target: target.id };
        let bytes = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        let ahead = Ahead {
            link: target.target.links.get(source).map_or(0, |link| bytes(link.bytes)),
            source: bytes(self.storages[source].bytes_ahead),
            target: bytes(target.target.leased_bytes),
        };
        let work = Work { ahead, ..Work::file(transfer.size) };
        let forecast = self.knowledge.forecast(link, work, now);
        self.forecasts.insert(attempt, (now, forecast));
    }

    /// It has come. What was resumed or was there already tells nothing.
    pub(crate) fn score(
        &mut self,
        attempt: AttemptId,
        place: u32,
        source: u32,
        bytes_moved: u64,
        now: Timestamp,
    ) {
        let Some((leased, forecast)) = self.forecasts.remove(&attempt) else { return };
        let transfer = &self.transfers[place];
        if bytes_moved == transfer.size && bytes_moved > 0 {
            let target = self.storages[transfer.target].id;
            let link = Link { source: self.storages[source].id, target };
            self.knowledge.score(link, &forecast, bytes_moved, now.since(leased), now);
        }
    }
}
