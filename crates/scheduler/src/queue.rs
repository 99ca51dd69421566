//! Transfer queues: every waiting transfer is where it can be found. Each want has a queue per source, and
//! each priority of a target knows for each source the wants with files in that queue, by age. Adding or
//! removing a source costs O(log n) per source of that file, and the part in use stays small however much
//! waits.
//!
//! Invariant: what makes up the [`QueueKey`] of a transfer changes only between `dequeue` and `enqueue`.

use longhaul_model::{Timestamp, TransferId};

use crate::cached_min_set::CachedMinSet;
use crate::queue_key::QueueKey;
use crate::scheduler::{Scheduler, Timer};
use crate::settings::SOURCES_MAX;
use crate::sources::TransferSource;
use crate::state::{Class, Phase, Rank};
use crate::strategy::Strategy;

/// One ordered set per source, in the order of the sources.
type BySource<T> = Vec<(u32, CachedMinSet<T>)>;

/// True if the set of this source was empty before.
fn insert<T: Ord + Copy>(sets: &mut BySource<T>, source: u32, value: T) -> bool {
    match sets.binary_search_by_key(&source, |(source, _)| *source) {
        Ok(at) => {
            sets[at].1.insert(value);
            false
        }
        Err(at) => {
            sets.insert(at, (source, CachedMinSet::from_value(value)));
            true
        }
    }
}

/// True if the set of this source is empty now.
fn remove<T: Ord + Copy>(sets: &mut BySource<T>, source: u32, value: &T) -> bool {
    let Ok(at) = sets.binary_search_by_key(&source, |(source, _)| *source) else { return false };
    let found = sets[at].1.remove(value);
    assert!(found, "what waits is in the queue of each of its sources");
    let empty = sets[at].1.is_empty();
    if empty {
        sets.remove(at);
    }
    empty
}

impl Class {
    pub(crate) fn has_waiting_for(&self, source: u32) -> bool {
        self.sources.binary_search_by_key(&source, |(source, _)| *source).is_ok()
    }

    /// True if nothing waited for that source.
    pub(crate) fn add_want(&mut self, source: u32, rank: Rank, want: u32) -> bool {
        self.waiting.insert((rank, want));
        insert(&mut self.sources, source, (rank, want))
    }

    /// `last`: the want has nothing in any other queue. True if nothing waits for that source any more.
    pub(crate) fn remove_want(&mut self, source: u32, rank: Rank, want: u32, last: bool) -> bool {
        if last {
            self.waiting.remove(&(rank, want));
        }
        remove(&mut self.sources, source, &(rank, want))
    }
}

impl Scheduler {
    fn queue_key(&self, index: u32) -> QueueKey {
        let transfer = &self.transfers[index];
        QueueKey::new(transfer.awaited > 0, transfer.sources.len(), transfer.position, index)
    }

    /// Determines the phase of a transfer that is in no queue, and puts it into its queues.
    pub(crate) fn enqueue(&mut self, index: u32, now: Timestamp) {
        let transfer = &self.transfers[index];
        assert!(transfer.phase == Phase::New, "only what was taken out is placed");
        let mut queues = 0u8;
        let mut wake: Option<Timestamp> = None;
        let mut linked = false;
        for (bit, source) in transfer.sources.iter().enumerate() {
            if !self.may_link(source.storage, transfer.target, self.wants[transfer.want].party) {
                continue;
            }
            linked = true;
            if source.backoff_until <= now {
                queues |= 1 << bit;
            } else {
                wake = Some(wake.map_or(source.backoff_until, |at| at.min(source.backoff_until)));
            }
        }
        let resting = transfer.backoff_until > now;
        if queues != 0 && self.strategy_of(&self.transfers[index]) != Strategy::Best {
            queues = self.choose_source(index, now).map_or(queues, |at| 1 << at);
        }
        let transfer = &self.transfers[index];
        let phase = match () {
            () if transfer.sources.is_empty() => Phase::Parked,
            () if !linked => Phase::Unlinked,
            () if resting || queues == 0 => Phase::InBackoff,
            () => Phase::Queued,
        };
        let wake = if resting { Some(transfer.backoff_until) } else { wake };
        if phase == Phase::Queued {
            let key = self.queue_key(index);
            let transfer = &self.transfers[index];
            let want = &mut self.wants[transfer.want];
            let target = &mut self.storages[transfer.target].target;
            let class = target.lanes.class_mut(want.lane);
            for (bit, source) in transfer.sources.iter().enumerate() {
                if queues & (1 << bit) != 0
                    && insert(&mut want.queues, source.storage, key)
                    && class.add_want(source.storage, want.rank, transfer.want)
                {
                    target.exclusive.add_waiting_lane(source.storage);
                }
            }
        }
        let transfer = &mut self.transfers[index];
        transfer.queues = if phase == Phase::Queued { queues } else { 0 };
        transfer.phase = phase;
        let (id, target, timer_at) = (transfer.id, transfer.target, transfer.timer_at);
        if phase == Phase::Queued && self.strategy_of(&self.transfers[index]) != Strategy::Best {
            self.count_waiting_on_link(index, true);
        }
        self.count(index, true);
        match wake {
            Some(at)
                if !matches!(phase, Phase::Parked | Phase::Unlinked)
                    && timer_at.is_none_or(|set| at < set) =>
            {
                self.transfers[index].timer_at = Some(at);
                self.set_timer(at, Timer::Transfer(id));
            }
            _ => {}
        }
        match phase {
            Phase::Queued => self.wake(target),
            Phase::Unlinked => {
                self.unlinked.insert(id);
            }
            _ => {
                self.refill.insert(target);
            }
        }
    }

    /// Out of all queues and counts; its phase is [`Phase::New`] afterwards.
    pub(crate) fn dequeue(&mut self, index: u32) {
        self.count(index, false);
        if self.transfers[index].phase == Phase::Queued {
            if self.strategy_of(&self.transfers[index]) != Strategy::Best {
                self.count_waiting_on_link(index, false);
            }
            let key = self.queue_key(index);
            let transfer = &self.transfers[index];
            let want = &mut self.wants[transfer.want];
            let target = &mut self.storages[transfer.target].target;
            let class = target.lanes.class_mut(want.lane);
            for (bit, source) in transfer.sources.iter().enumerate() {
                if transfer.queues & (1 << bit) != 0
                    && remove(&mut want.queues, source.storage, &key)
                    && class.remove_want(source.storage, want.rank, transfer.want, want.queues.is_empty())
                {
                    target.exclusive.remove_waiting_lane(source.storage);
                }
            }
        }
        let transfer = &mut self.transfers[index];
        transfer.phase = Phase::New;
        transfer.queues = 0;
    }

    /// A lease's own sums are kept by `dispatch` and `outcome`; here is what all phases have.
    pub(crate) fn count(&mut self, index: u32, more: bool) {
        if self.transfers[index].phase == Phase::Unlinked {
            if more {
                self.unroutable.insert(index);
            } else {
                self.unroutable.remove(&index);
            }
        }
        let transfer = &self.transfers[index];
        let want = &mut self.wants[transfer.want];
        let target = &mut self.storages[transfer.target].target;
        let step = |number: &mut u32| if more { *number += 1 } else { *number -= 1 };
        match transfer.phase {
            Phase::New => return,
            Phase::Parked => return step(&mut target.parked),
            Phase::InBackoff | Phase::Unlinked => step(&mut target.in_backoff),
            Phase::Queued => {
                target.lanes.count_queued(want.lane, more);
                step(&mut want.queued);
                let class = target.lanes.class_mut(want.lane);
                for bytes in [&mut class.queued_bytes, &mut want.queued_bytes] {
                    if more {
                        *bytes += u128::from(transfer.size);
                    } else {
                        *bytes -= u128::from(transfer.size);
                    }
                }
            }
            Phase::Leased(_) => {}
        }
        step(&mut target.lanes.class_mut(want.lane).live);
        target.lanes.count_in_memory(want.lane, 1, more);
        step(&mut want.live);
    }

    /// The end of a rest, of the transfer or of one of its sources.
    pub(crate) fn end_backoff(&mut self, id: TransferId, now: Timestamp) {
        let Some(&index) = self.by_id.get(&id) else { return };
        let transfer = &mut self.transfers[index];
        transfer.timer_at = None;
        match transfer.phase {
            Phase::InBackoff => {
                let dealt = self.storages[transfer.target].target.leases_issued;
                let transfer = &mut self.transfers[index];
                transfer.since = now;
                transfer.leases_issued_before = dealt;
            }
            Phase::Queued => {}
            _ => return,
        }
        self.dequeue(index);
        self.enqueue(index, now);
    }

    /// By request: neither the transfer nor any of its sources rests any longer.
    pub(crate) fn try_now(&mut self, id: TransferId, now: Timestamp) {
        let Some(&index) = self.by_id.get(&id) else { return };
        let transfer = &mut self.transfers[index];
        transfer.backoff_until = now;
        transfer.sources.iter_mut().for_each(|source| source.backoff_until = now);
        self.end_backoff(id, now);
    }

    /// Adds a source to a transfer; a full list lets go of one that cannot be used.
    pub(crate) fn add_source(&mut self, index: u32, storage: u32, now: Timestamp) {
        let known = self.transfers[index].sources.iter().any(|source| source.storage == storage);
        if known {
            return;
        }
        let mut at = None;
        if self.transfers[index].sources.len() >= SOURCES_MAX {
            let sources = &self.transfers[index].sources;
            at = sources.iter().position(|source| !self.storages[source.storage].connected);
            if at.is_none() {
                return;
            }
        }
        let waiting = self.transfers[index].lease().is_none();
        if waiting {
            self.dequeue(index);
        }
        let sources = &mut self.transfers[index].sources;
        let source = TransferSource::new(storage);
        match at {
            Some(at) => sources[at] = source,
            None => sources.push(source),
        }
        if waiting {
            self.enqueue(index, now);
        }
    }

    pub(crate) fn remove_source(&mut self, index: u32, storage: u32, now: Timestamp) {
        let waiting = self.transfers[index].lease().is_none();
        if waiting {
            self.dequeue(index);
        }
        self.transfers[index].sources.remove(storage);
        if waiting {
            self.enqueue(index, now);
        }
    }

    /// Forgets a transfer that is not leased.
    pub(crate) fn forget(&mut self, index: u32) {
        assert!(self.transfers[index].lease().is_none(), "a leased transfer is unleased first");
        self.dequeue(index);
        let Some(transfer) = self.transfers.remove(index) else { return };
        self.by_id.remove(&transfer.id);
        self.forget_recall(transfer.id);
        let row = &mut self.files[transfer.file_row];
        row.transfers.remove(index);
        let is_hop = |index: u32| self.wants[self.transfers[index].want].relay;
        let idle = !self.wants[transfer.want].relay && row.transfers.iter().all(is_hop);
        // Of most files there is none.
        let hops: Vec<u32> = if idle { row.transfers.iter().collect() } else { Vec::new() };
        if row.transfers.len() == 0 {
            self.by_file.remove(row.file.0);
            self.files.remove(transfer.file_row);
        }
        let want = &mut self.wants[transfer.want];
        want.transfers.remove(&index);
        self.refill.insert(transfer.target);
        self.sweep_or_remove(transfer.want);
        self.end_idle_hops(hops);
    }
}
