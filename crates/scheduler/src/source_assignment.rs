//! Source selection under FTS3's strategies: a queued transfer is assigned one source and waits for it alone.

use longhaul_model::{StorageId, Timestamp, TransferId};
use longhaul_network::{Basis, Link};

use crate::scheduler::Scheduler;
use crate::state::{Phase, Transfer};
use crate::strategy::{self, SourceStats, Strategy};

/// Weight of the newest file in the moving average of a single file's rate, the value that FTS3 uses.
const FILE_RATE_EWMA_WEIGHT: f64 = 0.1;

impl Scheduler {
    pub(crate) fn strategy_of(&self, transfer: &Transfer) -> Strategy {
        self.wants[transfer.want].strategy
    }

    /// The source to wait for among those not in backoff, by position in the list.
    pub(crate) fn choose_source(&self, index: u32, now: Timestamp) -> Option<usize> {
        self.choose_source_by(self.strategy_of(&self.transfers[index]), index, now)
    }

    /// Where another strategy would fetch a transfer from, as things are now. Only of those that go by what
    /// links have shown: what waits where is not counted under [`Strategy::Best`].
    pub fn preferred(&self, transfer: TransferId, strategy: Strategy, now: Timestamp) -> Option<StorageId> {
        let index = *self.by_id.get(&transfer)?;
        let at = self.choose_source_by(strategy, index, self.clock.steady_time(now))?;
        let source = self.transfers[index].sources.get(at)?;
        Some(self.storages[source.storage].id)
    }

    fn choose_source_by(&self, strategy: Strategy, index: u32, now: Timestamp) -> Option<usize> {
        let transfer = &self.transfers[index];
        let party = self.wants[transfer.want].party;
        let ready = || {
            (0..).zip(transfer.sources.iter()).filter(|(_, source)| {
                source.backoff_until <= now && self.may_link(source.storage, transfer.target, party)
            })
        };
        let serving = ready().any(|(_, source)| self.may_serve(source.storage));
        let ranked =
            ready().filter(|(_, source)| !serving || self.may_serve(source.storage)).map(|(at, _)| {
                (at, strategy::rank_source(strategy, &self.source_stats(transfer, at, now), transfer.size))
            });
        ranked.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(at, _)| at)
    }

    pub(crate) fn source_stats(&self, transfer: &Transfer, at: usize, now: Timestamp) -> SourceStats {
        let source = transfer.sources[at].storage;
        let link = Link { source: self.storages[source].id, target: self.storages[transfer.target].id };
        let estimate = self.knowledge.rate(link, now);
        let mut stats = SourceStats {
            position: at,
            failure_share: self.knowledge.failure_share(link, now),
            throughput: if estimate.basis == Basis::Measured { estimate.bytes_per_s } else { 0.0 },
            ..SourceStats::default()
        };
        let Some(state) = self.storages[transfer.target].target.links.get(source) else { return stats };
        stats.file_throughput = state.file_rate;
        let own = self.wants[transfer.want].party;
        let community = self.parties.community(own);
        let weight = self.parties.weight_of_activity(own);
        for (&party, waiting) in &state.waiting {
            if self.parties.community(party) == community {
                stats.files_waiting += waiting.files;
                if self.parties.weight_of_activity(party) >= weight {
                    stats.bytes_waiting = stats.bytes_waiting.saturating_add(waiting.bytes);
                }
            }
        }
        stats
    }

    /// An assigned transfer enters or leaves the queue of its link.
    pub(crate) fn count_waiting_on_link(&mut self, index: u32, more: bool) {
        let transfer = &self.transfers[index];
        let Some(source) = transfer.assigned() else { return };
        let party = self.wants[transfer.want].party;
        let links = &mut self.storages[transfer.target].target.links;
        let waiting = links.row(source).waiting.entry(party).or_default();
        if more {
            waiting.files += 1;
            waiting.bytes = waiting.bytes.saturating_add(transfer.size);
        } else {
            waiting.files -= 1;
            waiting.bytes = waiting.bytes.saturating_sub(transfer.size);
        }
    }

    /// A file came whole: what a single file gets over the link.
    pub(crate) fn record_file_rate(
        &mut self,
        target: u32,
        source: u32,
        bytes: u64,
        began: Timestamp,
        now: Timestamp,
    ) {
        let seconds = now.since(began).as_secs_f64();
        let Some(link) = self.storages[target].target.links.get_mut(source) else { return };
        if seconds > 0.0 && bytes > 0 {
            let rate = bytes as f64 / seconds;
            link.file_rate = if link.file_rate > 0.0 {
                link.file_rate + FILE_RATE_EWMA_WEIGHT * (rate - link.file_rate)
            } else {
                rate
            };
        }
    }

    /// A source may be gone for a while: what waits for it alone, and could be had elsewhere, chooses again.
    pub(crate) fn reassign_from(&mut self, source: u32, now: Timestamp) {
        let by_strategy = |index: &u32| {
            let transfer = &self.transfers[*index];
            transfer.phase == Phase::Queued
                && transfer.sources.len() > 1
                && transfer.assigned() == Some(source)
        };
        let wants = self.want_of.values().filter(|&&want| self.wants[want].strategy != Strategy::Best);
        let indexes: Vec<u32> =
            wants.flat_map(|&want| self.wants[want].transfers.iter().copied()).filter(by_strategy).collect();
        self.requeue_all(indexes, now);
    }

    pub(crate) fn requeue_all(&mut self, indexes: Vec<u32>, now: Timestamp) {
        for index in indexes {
            self.dequeue(index);
            self.enqueue(index, now);
        }
    }
}
