//! Links that go by reserved circuits: their rate is believed at once, from the moment they go up and again
//! when they go down; and files over a circuit go before work that is not due yet, since its time is paid
//! for.

use std::collections::BTreeMap;

use longhaul_model::{StorageId, Timestamp};
use longhaul_network::Link;
use serde::{Deserialize, Serialize};

use crate::dispatch::TargetBacklog;
use crate::pick::OLDEST_BLOCKS_SCANNED;
use crate::recent_rate::RecentRate;
use crate::scheduler::Scheduler;
use crate::settings::Rules;
use crate::state::CachedRate;

/// A link whose transfers go by a circuit, with the reserved rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCircuit {
    pub source: StorageId,
    pub target: StorageId,
    pub bytes_per_s: f64,
}

impl Scheduler {
    pub(crate) fn circuits_changed(&mut self, all: &[LinkCircuit], now: Timestamp) {
        let link = |one: &LinkCircuit| Link { source: one.source, target: one.target };
        let all: BTreeMap<Link, f64> = all.iter().map(|one| (link(one), one.bytes_per_s)).collect();
        for link in self.knowledge.set_circuits(&all, now) {
            let (source, target) = (self.storage_index(link.source), self.storage_index(link.target));
            let is_up = self.knowledge.is_on_circuit(link);
            let row = &mut self.storages[target].target;
            match is_up {
                true => row.circuit_sources.insert(source),
                false => row.circuit_sources.remove(&source),
            };
            // What was measured over the other path no longer applies.
            if let Some(state) = row.links.get_mut(source) {
                state.rate = CachedRate::default();
                state.recent_rate = RecentRate::default();
                let mark = state.mark(now);
                state.recent_rate.restart(mark);
            }
            self.wake(target);
        }
    }

    pub(crate) fn goes_by_circuit(&self, source: u32, target: u32) -> bool {
        self.storages[target].target.circuit_sources.contains(&source)
    }

    /// The first of the oldest blocks of a priority with files over a circuit. A block that is due is
    /// overtaken by none.
    pub(crate) fn pick_over_circuit(
        &mut self,
        target: u32,
        lane: usize,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<u32> {
        if self.storages[target].target.circuit_sources.is_empty() || self.settings.rules != Rules::Ours {
            return None;
        }
        let mut oldest = [None; OLDEST_BLOCKS_SCANNED];
        let waiting = self.storages[target].target.lanes.class(lane).waiting.iter();
        oldest.iter_mut().zip(waiting).for_each(|(slot, &entry)| *slot = Some(entry));
        for (rank, want) in oldest.into_iter().map_while(|entry| entry) {
            let found = self.best_over_circuit(want, target, lane, backlog, now);
            if found.is_some() {
                return found;
            }
            if rank.due <= now {
                return None;
            }
        }
        None
    }

    fn best_over_circuit(
        &mut self,
        want: u32,
        target: u32,
        lane: usize,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<u32> {
        let mut best: Option<(f64, u32)> = None;
        for at in 0..self.wants[want].queues.len() {
            let (source, queue) = &self.wants[want].queues[at];
            let (source, head) = (*source, queue.first().copied());
            let Some(head) = head.filter(|head| !head.awaited() || self.runs_low(backlog, target, now))
            else {
                continue;
            };
            if !self.goes_by_circuit(source, target) || !self.may_lease(source, target, lane, now) {
                continue;
            }
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.expected_finish(source, target, size, now);
            if best.is_none_or(|(known, _)| finish < known) {
                best = Some((finish, head.transfer()));
            }
        }
        best.map(|(_, transfer)| transfer)
    }
}
