//! Demand: blocks wanted at targets, turned into transfers one window at a time.
//!
//! A block that several subscriptions want at one target is one [`Want`], served once. Transfers exist only
//! within the target's horizon: when a priority runs low, the oldest of its wants is expanded further.
//!
//! Targets that want the same block begin with different files of it, so that each soon has what the other
//! lacks, and a loaded source sends each file once (as in BitTorrent swarms). Each want begins elsewhere in
//! the window: at 0, 1/2, 1/4, 3/4, … (van der Corput sequence) in the order in which targets came. Blocks
//! are taken in the same order everywhere: targets that exchange the files of one block complete it together,
//! and early; with different blocks none would be complete for long.

use std::collections::BTreeSet;

use longhaul_model::{BlockId, StorageId, SubscriptionId, Timestamp, TransferId, limits};

use crate::arrival_history::ArrivalHistory;
use crate::decision::{CancelWhy, Decision};
use crate::event::{AdoptedTransfer, Demand, DemandId, WantedFile};
use crate::lanes::LEVELS;
use crate::scheduler::{Scheduler, Timer};
use crate::settings::SOURCES_MAX;
use crate::slab::{RowMarker, SmallSet};
use crate::sources::{SourceList, TransferSource};
use crate::state::{
    ActiveLease, Class, DemandSet, DemandTerms, FileRow, Phase, Rank, Subscription, Transfer, Want,
};

impl Scheduler {
    pub(crate) fn demand_changed(&mut self, demand: &Demand, now: Timestamp) {
        let target = self.storage_index(demand.target);
        let id = demand.id;
        let level = usize::from(demand.priority.clamp(1, LEVELS as u8)) - 1;
        let party = self.parties.number(&demand.party);
        let Demand { created, deadline, strategy, .. } = *demand;
        let wish = DemandTerms { party, level, created, deadline, strategy };
        if self.subscriptions.get(&id.subscription).is_some_and(|known| known.target != target) {
            return; // A subscription has one target; another one is a mistake of the caller.
        }
        let index = match self.want_of.get(&(id.block, target)) {
            Some(&index) => index,
            None => self.add_want(id, target, wish),
        };
        let subscription = self.subscriptions.entry(id.subscription).or_insert_with(|| Subscription {
            target,
            wants: BTreeSet::new(),
            files_left: 0,
            bytes_left: 0,
            bytes_ranked: 0,
            expedited: false,
            arrivals: ArrivalHistory::default(),
        });
        let want = &mut self.wants[index];
        if subscription.wants.insert(index) {
            subscription.files_left = subscription.files_left.saturating_add(want.files_left);
            subscription.bytes_left += want.bytes_left;
        }
        want.demands.insert(id.subscription, wish);
        want.relay = false;
        self.unlist_open(index);
        self.set_left(index, demand.files_left, u128::from(demand.bytes_left));
        let want = &mut self.wants[index];
        if want.exhausted && want.files_left > want.transfers.len() as u64 {
            // The block has grown, or lost some of what was there, or somebody asks for failed files again.
            want.exhausted = false;
            want.cursor = None;
        }
        self.list_open(index);
        self.rank_subscription(id.subscription, now);
        self.rerank(index, now);
    }

    fn add_want(&mut self, id: DemandId, target: u32, wish: DemandTerms) -> u32 {
        let shift = self.want_of.range((id.block, 0)..=(id.block, u32::MAX)).count() as u32;
        let lane = self.storages[target].target.lanes.lane(wish.party, wish.level, &self.parties);
        let created = wish.created;
        let strategy = wish.strategy.unwrap_or(self.settings.strategy);
        let rank = Rank { due: created, created, subscription: id.subscription, block: id.block };
        let want = Want {
            relay: false,
            demands: DemandSet::with_demand(id.subscription, wish),
            exhausted: false,
            shift,
            ..Want::relay(id.block, target, lane, wish.party, strategy, rank)
        };
        let index = self.wants.add(want);
        self.want_of.insert((id.block, target), index);
        index
    }

    /// Sets what a want lacks, and adjusts the sums over its subscriptions and its priority.
    pub(crate) fn set_left(&mut self, index: u32, files: u64, bytes: u128) {
        let want = &mut self.wants[index];
        let (files_before, bytes_before) = (want.files_left, want.bytes_left);
        want.files_left = files;
        want.bytes_left = bytes;
        for (subscription, _) in want.demands.iter() {
            if let Some(row) = self.subscriptions.get_mut(&subscription) {
                row.files_left = row.files_left.saturating_sub(files_before).saturating_add(files);
                row.bytes_left = row.bytes_left.saturating_sub(bytes_before).saturating_add(bytes);
            }
        }
        let class = self.storages[want.target].target.lanes.class_mut(want.lane);
        class.bytes_left = class.bytes_left.saturating_sub(bytes_before).saturating_add(bytes);
    }

    pub(crate) fn subscription_gone(&mut self, subscription: SubscriptionId, now: Timestamp) {
        let Some(row) = self.subscriptions.get(&subscription) else { return };
        let wants: Vec<u32> = row.wants.iter().copied().collect();
        for index in wants {
            let block = self.wants[index].block;
            self.demand_gone(DemandId { subscription, block }, now);
        }
    }

    pub(crate) fn demand_gone(&mut self, id: DemandId, now: Timestamp) {
        let Some(index) = self.want_by_demand(id) else { return };
        self.unlist_open(index);
        if let Some(row) = self.subscriptions.get_mut(&id.subscription) {
            row.wants.remove(&index);
            row.files_left = row.files_left.saturating_sub(self.wants[index].files_left);
            row.bytes_left = row.bytes_left.saturating_sub(self.wants[index].bytes_left);
            if row.wants.is_empty() {
                self.subscriptions.remove(&id.subscription);
            }
        }
        if self.wants[index].expanding.is_some_and(|(by, _)| by == id.subscription) {
            self.end_expansion(index);
        }
        self.wants[index].demands.remove(id.subscription);
        if self.wants[index].demands.is_empty() {
            self.remove_want(index, now);
        } else {
            self.rerank(index, now);
            self.list_open(index);
        }
    }

    fn remove_want(&mut self, index: u32, now: Timestamp) {
        let transfers: Vec<u32> = self.wants[index].transfers.iter().copied().collect();
        transfers.into_iter().for_each(|transfer| self.drop_transfer(transfer, now));
        self.set_left(index, 0, 0);
        self.parked_demands.remove(&index);
        if let Some(want) = self.wants.remove(index) {
            self.want_of.remove(&(want.block, want.target));
        }
        // Something may have been passing through.
        self.reroute();
    }

    /// Drops a transfer that nobody wants any more; a lease is revoked.
    pub(crate) fn drop_transfer(&mut self, index: u32, now: Timestamp) {
        if let Some(lease) = self.transfers[index].lease() {
            let (transfer, why) = (self.transfers[index].id, CancelWhy::Unwanted);
            let ActiveLease { attempt, agent, .. } = lease;
            self.out.push_back(Decision::Cancel { transfer, attempt, agent, why });
            self.revoke_lease(index, now);
        }
        self.forget(index);
    }

    pub(crate) fn want_by_demand(&self, id: DemandId) -> Option<u32> {
        let subscription = self.subscriptions.get(&id.subscription)?;
        let index = *self.want_of.get(&(id.block, subscription.target))?;
        subscription.wants.contains(&index).then_some(index)
    }

    // ---- asking for files ----------------------------------------------------------------------------

    /// Lists a want among those with more files than transfers, if so.
    fn list_open(&mut self, index: u32) {
        let want = &self.wants[index];
        if !want.exhausted && want.expanding.is_none() && want.files_left > 0 {
            self.storages[want.target].target.lanes.list_open(want.lane, want.rank, index);
            self.refill.insert(want.target);
        }
    }

    fn unlist_open(&mut self, index: u32) {
        let want = &self.wants[index];
        self.storages[want.target].target.lanes.unlist_open(want.lane, want.rank, index);
    }

    /// The next expansion query of a target, if it needs more files.
    pub(crate) fn next_expansion(&mut self, target: u32) -> Option<Decision> {
        let wanting = self.want_to_expand(target);
        self.storages[target].target.samples_subscriptions &= wanting.is_some();
        let (index, room) = wanting?;
        self.unlist_open(index);
        let want = &mut self.wants[index];
        let left = u32::try_from(want.files_left).unwrap_or(u32::MAX);
        let wider = 1u32.checked_shl(want.empty_answers.min(20)).unwrap_or(1);
        let limit = room.min(left).saturating_mul(wider).min(self.settings.expand_files).max(1);
        let subscription = want.rank.subscription;
        want.expanding = Some((subscription, limit));
        self.replica_races.begin_query(index);
        let want = &mut self.wants[index];
        self.storages[target].target.lanes.count_in_memory(want.lane, limit, true);
        let demand = DemandId { subscription, block: want.block };
        let after = want.cursor;
        Some(Decision::Expand { demand, block: want.block, target: self.storages[target].id, after, limit })
    }

    /// The want to expand next, and by how many files. Each activity has its fraction of the horizon.
    fn want_to_expand(&mut self, target: u32) -> Option<(u32, u32)> {
        self.storages[target].target.lanes.update_fractions(&self.parties);
        let row = &self.storages[target].target;
        // The horizon is about what waits; what is leased comes on top.
        let waiting = self.horizon_files(target);
        let all_leased = row.leased.len() as u32;
        row.lanes.find_open_activity(|part, activity| {
            let of = |files: u32| ceil(f64::from(files) * part);
            let (waiting, leased) = (of(waiting), of(all_leased));
            let horizon = waiting.saturating_add(leased);
            for (level, held, own) in activity.open_levels() {
                let room = match () {
                    // Half empty: fill it up.
                    () if held < leased.saturating_add(waiting.div_ceil(2)) => horizon - held,
                    () if own < self.settings.reserve_files => self.settings.reserve_files - own,
                    // All that is in memory waits for something: look further, within the bound.
                    () if row.starved && held < horizon.saturating_mul(STARVED_HORIZONS_MAX) => {
                        horizon.div_ceil(2)
                    }
                    () if row.samples_subscriptions => {
                        match self.want_below_reserve(row.lanes.class(activity.lane(level)?)) {
                            Some(found) => return Some(found),
                            None => continue,
                        }
                    }
                    () => continue,
                };
                let (_, want) = row.lanes.class(activity.lane(level)?).open.first()?;
                return Some((*want, room));
            }
            None
        })
    }

    /// A want of the first subscriptions with fewer files in memory than the reserve. When all that is in
    /// memory waits for busy sources, this keeps one subscription from hiding the usable sources of another.
    fn want_below_reserve(&self, class: &Class) -> Option<(u32, u32)> {
        let reserve = self.settings.reserve_files;
        let mut next = class.open.first();
        for _ in 0..SUBSCRIPTIONS_SAMPLED_MAX {
            let (rank, index) = *next?;
            let live = self.wants[index].live;
            if live < reserve.div_ceil(2) {
                return Some((index, reserve - live));
            }
            next = class.open.after(&(Rank { block: BlockId(u64::MAX), ..rank }, u32::MAX));
        }
        None
    }

    fn horizon_files(&self, target: u32) -> u32 {
        let pace = self.knowledge.intake_rate(self.storages[target].id).files_per_s;
        let files = (pace * self.settings.horizon.as_secs_f64()) as u32;
        let most = self.settings.horizon_files.max(1);
        files.clamp(self.settings.horizon_files_min.clamp(1, most), most)
    }

    /// Ends an expansion query; returns for how many files it was.
    fn end_expansion(&mut self, index: u32) -> u32 {
        let want = &mut self.wants[index];
        let Some((_, limit)) = want.expanding.take() else { return 0 };
        self.replica_races.end_query(index);
        self.storages[want.target].target.lanes.count_in_memory(want.lane, limit, false);
        limit
    }

    pub(crate) fn expand_failed(&mut self, demand: DemandId, now: Timestamp) {
        let Some(index) = self.want_by_demand(demand) else { return };
        let want = &self.wants[index];
        if want.expanding.is_some_and(|(by, _)| by == demand.subscription) {
            let timer = Timer::Reopen(want.block, want.target);
            self.end_expansion(index);
            self.set_timer(now + self.settings.expand_retry_delay, timer);
        }
    }

    pub(crate) fn reopen(&mut self, block: BlockId, target: u32) {
        if let Some(&index) = self.want_of.get(&(block, target)) {
            self.list_open(index);
        }
    }

    pub(crate) fn files_received(
        &mut self,
        demand: DemandId,
        files: &[WantedFile],
        exhausted: bool,
        now: Timestamp,
    ) {
        let Some(index) = self.want_by_demand(demand) else { return };
        let want = &self.wants[index];
        if want.expanding.is_none_or(|(by, _)| by != demand.subscription) {
            return;
        }
        let target = want.target;
        let row = &self.storages[target].target;
        let live = || row.lanes.iter().map(|class| class.live).sum::<u32>();
        let crowded = row.starved && live() >= self.settings.horizon_files_min;
        let news = self.replica_races.replicas_since_query(index);
        let limit = self.end_expansion(index);
        let count = files.len() as u64;
        let shift = shifted_start(self.wants[index].shift, count);
        let first = self.wants[index].positions;
        for (at, file) in (0u64..).zip(files) {
            let mut sources: Vec<u32> =
                file.sources.iter().map(|&source| self.storage_index(source)).collect();
            let newer = news.range((file.file, 0)..=(file.file, u32::MAX));
            sources.extend(newer.map(|(_, storage)| *storage).filter(|&storage| storage != target));
            let unusable = !sources.iter().any(|&source| self.may_serve(source));
            let parked = self.storages[target].target.parked;
            if unusable && (crowded && !sources.is_empty() || parked >= PARKED_FILES_MAX) {
                self.wants[index].has_parked_files = true;
                self.parked_demands.insert(index);
                continue;
            }
            let position = first + (at + count - shift) % count;
            let id = TransferId(self.next_id(now));
            self.add_transfer(index, id, file, &sources, position, now);
        }
        let want = &mut self.wants[index];
        want.positions += count;
        want.cursor = files.iter().map(|file| file.file).max().or(want.cursor).max(want.cursor);
        if files.is_empty() {
            // All of that page failed for good, so the service left them out.
            want.empty_answers = want.empty_answers.saturating_add(1);
        } else {
            want.empty_answers = 0;
        }
        want.exhausted = exhausted || limit >= self.settings.expand_files && files.is_empty();
        self.storages[target].target.starved = false;
        self.wake(target);
        self.refill.insert(target);
        if std::mem::take(&mut self.wants[index].rewind) {
            self.rewind(index);
        }
        self.list_open(index);
        self.sweep_or_remove(index);
    }

    pub(crate) fn add_transfer(
        &mut self,
        want: u32,
        id: TransferId,
        file: &WantedFile,
        sources: &[u32],
        position: u64,
        now: Timestamp,
    ) -> Option<u32> {
        let target = self.wants[want].target;
        let known = self.by_file.get(file.file.0).copied();
        let mut awaited = 0;
        if let Some(row) = known {
            for other in self.files[row].transfers.iter() {
                if self.transfers[other].target == target {
                    return None; // It has one already.
                }
                awaited += u32::from(self.transfers[other].lease().is_some());
            }
        }
        let mut kept = SourceList::default();
        let ready = sources.iter().filter(|&&source| self.may_serve(source));
        let rest = sources.iter().filter(|&&source| !self.may_serve(source));
        for &storage in ready.chain(rest) {
            let known = kept.iter().any(|source| source.storage == storage);
            if !known && storage != target && kept.len() < SOURCES_MAX {
                kept.push(TransferSource::new(storage));
            }
        }
        let file_row = known.unwrap_or_else(|| {
            let row = self.files.add(FileRow { file: file.file, transfers: SmallSet::default() });
            self.by_file.insert(file.file.0, row);
            row
        });
        let transfer = Transfer {
            here: RowMarker::Yes,
            id,
            file: file.file,
            file_row,
            size: file.size.min(limits::FILE_BYTES_MAX),
            want,
            target,
            position,
            epoch: 0,
            tries: 0,
            sources: kept,
            backoff_until: Timestamp(i64::MIN),
            timer_at: None,
            fault: None,
            awaited,
            since: now,
            leases_issued_before: self.storages[target].target.leases_issued,
            phase: Phase::New,
            queues: 0,
        };
        let index = self.transfers.add(transfer);
        self.by_id.insert(id, index);
        self.files[file_row].transfers.push(index);
        self.wants[want].transfers.insert(index);
        self.wants[want].failed.remove(&file.file);
        self.enqueue(index, now);
        Some(index)
    }

    // ---- what was left behind ------------------------------------------------------------------------

    /// Removes an idle relay want. A want that was expanded to its end, and still lacks files that are not
    /// transfers, is swept again from its beginning after a while: they may have become available.
    pub(crate) fn sweep_or_remove(&mut self, index: u32) {
        if self.is_idle_relay(index) {
            if let Some(want) = self.wants.remove(index) {
                self.want_of.remove(&(want.block, want.target));
            }
            return;
        }
        let want = &mut self.wants[index];
        let hidden = want.files_left > (want.failed.len() + want.transfers.len()) as u64;
        if hidden && want.exhausted && !want.sweep_set {
            want.sweep_set = true;
            let wait = self.settings.expand_retry_delay * (1 << want.sweeps.min(SWEEP_DOUBLINGS_MAX));
            want.sweeps = want.sweeps.saturating_add(1);
            let timer = Timer::Sweep(want.block, want.target);
            self.set_timer(self.clock.now() + wait, timer);
        }
    }

    pub(crate) fn sweep(&mut self, block: BlockId, target: u32) {
        let Some(&index) = self.want_of.get(&(block, target)) else { return };
        self.wants[index].sweep_set = false;
        if self.wants[index].exhausted {
            self.rewind(index);
        }
    }

    /// Files that answers left out can be had now: what was expanded already is expanded again.
    pub(crate) fn files_readable(&mut self, block: BlockId, target: StorageId) {
        let target = self.storage_index(target);
        if let Some(&index) = self.want_of.get(&(block, target)) {
            self.rewind(index);
            self.refill.insert(target);
        }
    }

    fn rewind(&mut self, index: u32) {
        let want = &mut self.wants[index];
        if want.expanding.is_some() {
            want.rewind = true; // The answer under way is of the part after the cursor.
            return;
        }
        want.cursor = None;
        want.exhausted = false;
        want.has_parked_files = false;
        self.parked_demands.remove(&index);
        self.list_open(index);
    }

    /// A source may have become usable: parked demands are expanded again.
    pub(crate) fn retry_parked_demands(&mut self) {
        let aside: Vec<u32> = self.parked_demands.iter().copied().collect();
        aside.into_iter().for_each(|index| self.rewind(index));
        self.reroute();
    }

    // ---- after a restart -----------------------------------------------------------------------------

    pub(crate) fn adopt(&mut self, adopted: &AdoptedTransfer, now: Timestamp) {
        self.last_id = self.last_id.max(adopted.transfer.0);
        self.last_id = self.last_id.max(adopted.lease.map_or(0, |lease| lease.attempt.0));
        let target = self.storage_index(adopted.target);
        let known = self.want_of.get(&(adopted.block, target)).copied();
        let Some(want) = known.or_else(|| self.relay_want_for(adopted.block, target)) else {
            self.out.push_back(match adopted.lease {
                Some(lease) => Decision::Cancel {
                    transfer: adopted.transfer,
                    attempt: lease.attempt,
                    agent: lease.agent,
                    why: CancelWhy::Unwanted,
                },
                None => Decision::Drop { transfer: adopted.transfer },
            });
            return;
        };
        if self.by_id.contains_key(&adopted.transfer) {
            return;
        }
        let file = WantedFile { file: adopted.file, size: adopted.size, sources: Vec::new() };
        let sources: Vec<u32> = adopted.sources.iter().map(|&source| self.storage_index(source)).collect();
        let position = self.wants[want].positions;
        self.wants[want].positions += 1;
        let Some(index) = self.add_transfer(want, adopted.transfer, &file, &sources, position, now) else {
            return;
        };
        self.dequeue(index);
        let transfer = &mut self.transfers[index];
        transfer.epoch = adopted.epoch.0;
        transfer.tries = adopted.attempts;
        if let Some(at) = adopted.not_before {
            transfer.backoff_until = self.clock.steady_time(at);
        }
        match adopted.lease {
            None => self.enqueue(index, now),
            Some(lease) => {
                let source = self.storage_index(lease.source);
                let leased = ActiveLease {
                    attempt: lease.attempt,
                    agent: lease.agent,
                    source,
                    party: self.wants[self.transfers[index].want].party,
                    limits: self.limits.version(),
                    charged_lane: None,
                    started: false,
                    leased: None,
                    began: now,
                    bytes_done: 0,
                };
                self.record_lease(index, leased, now);
            }
        }
    }
}

/// Files without a usable source that one target keeps in memory; more are expanded again from time to time.
const PARKED_FILES_MAX: u32 = 4_000;
/// A target with nothing to lease looks this many horizons ahead for a file that it can lease.
const STARVED_HORIZONS_MAX: u32 = 5;

/// While a target could take more, this many subscriptions of one priority have at least some files in
/// memory.
const SUBSCRIPTIONS_SAMPLED_MAX: usize = 8;

/// The pause between sweeps doubles at most this many times.
const SWEEP_DOUBLINGS_MAX: u32 = 5;

/// Rounds up. `f64::ceil` would be a function call, dozens of times per query.
fn ceil(number: f64) -> u32 {
    let whole = number as u32;
    whole.saturating_add(u32::from(f64::from(whole) < number))
}

/// Start of the want number `shift` in a window of `count` files: 0, 1/2, 1/4, 3/4, 1/8, … of it, by reversed
/// bits, so that starts stay spread however many wants there are.
fn shifted_start(shift: u32, count: u64) -> u64 {
    ((u128::from(shift.reverse_bits()) * u128::from(count)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_spread() {
        let beginnings: Vec<u64> = (0..5).map(|shift| shifted_start(shift, 1_000)).collect();
        assert_eq!(beginnings, [0, 500, 250, 750, 125]);
        assert_eq!(shifted_start(3, 0), 0);
    }

    #[test]
    fn at_least_is_the_ceiling() {
        for number in
            [0.0, 1e-300, 0.5, 1.0, 1.0 + f64::EPSILON, 4e9, 1e10, -0.5, -7.0, f64::INFINITY, f64::NAN]
        {
            assert_eq!(ceil(number), number.ceil() as u32, "{number}");
        }
    }
}
