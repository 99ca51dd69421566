//! The scheduler: events in, decisions out, and the order in which it looks for the next decision.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_model::{AttemptId, BlockId, SiteId, StorageId, SubscriptionId, Timestamp, TransferId};
use longhaul_network::{Forecast, Knowledge, Observation, ObservationError};

use crate::decision::{Candidate, Decision};
use crate::event::Event;
use crate::fts3::{self, Optimizer};
use crate::id_map::IdMap;
use crate::lanes::TurnOrder;
use crate::limits::LimitTable;
use crate::link_shares::LinkShareTable;
use crate::monotonic_clock::MonotonicClock;
use crate::pick::SourceScan;
use crate::replica_races::ReplicaRaces;
use crate::routes::Routes;
use crate::settings::{Rules, Settings};
use crate::shares::{Parties, Shares};
use crate::slab::Slab;
use crate::state::{FileRow, Site, Storage, Subscription, Transfer, Want};

/// Decides what moves next, from where and over which route. Feed it events with [`Scheduler::handle`], take
/// decisions with [`Scheduler::poll_decision`] until there is none, then sleep until
/// [`Scheduler::next_wakeup`] or the next event.
pub struct Scheduler {
    pub(crate) settings: Settings,
    pub(crate) knowledge: Knowledge,
    pub(crate) clock: MonotonicClock,
    pub(crate) parties: Parties,
    pub(crate) link_shares: LinkShareTable,
    pub(crate) limits: LimitTable,
    pub(crate) replica_races: ReplicaRaces,
    /// Forecasts of sampled attempts, with the time of the lease.
    pub(crate) forecasts: BTreeMap<AttemptId, (Timestamp, Forecast)>,
    /// Transfers whose leases were recalled, with attempt and time, until the transfer is over.
    pub(crate) recalled: BTreeMap<TransferId, (AttemptId, Timestamp)>,
    /// The recall timer is armed.
    pub(crate) recall_timer_set: bool,
    pub(crate) routes: Routes,
    /// Transfers without a link from a replica to their target, for which a route is to be found.
    pub(crate) unlinked: BTreeSet<TransferId>,
    /// All transfers without a link from a replica to their target.
    pub(crate) unroutable: BTreeSet<u32>,
    /// By target and source; only under [`crate::Rules::Fts3`].
    pub(crate) optimizers: BTreeMap<(u32, u32), Optimizer>,
    pub(crate) last_id: u64,

    pub(crate) sites: Slab<Site>,
    pub(crate) site_of: BTreeMap<SiteId, u32>,
    pub(crate) storages: Slab<Storage>,
    pub(crate) storage_of: BTreeMap<StorageId, u32>,

    pub(crate) transfers: Slab<Transfer>,
    pub(crate) by_id: BTreeMap<TransferId, u32>,
    pub(crate) by_attempt: IdMap<u32>,
    pub(crate) files: Slab<FileRow>,
    pub(crate) by_file: IdMap<u32>,

    pub(crate) wants: Slab<Want>,
    pub(crate) want_of: BTreeMap<(BlockId, u32), u32>,
    pub(crate) subscriptions: BTreeMap<SubscriptionId, Subscription>,
    /// Wants with files that were left out of memory because none of their sources could be used.
    pub(crate) parked_demands: BTreeSet<u32>,

    timers: BTreeMap<(Timestamp, u64), Timer>,
    timers_set: u64,
    /// Decisions that follow from an event.
    pub(crate) out: VecDeque<Decision>,
    /// The order of turns at a target: scratch buffer, reused to avoid allocation.
    pub(crate) turn_order: TurnOrder,
    /// Sources scanned while a file is picked: scratch buffer, reused to avoid allocation.
    pub(crate) source_scan: SourceScan,
    /// Candidates of one choice, with their source indexes: scratch buffer, reused to avoid allocation.
    pub(crate) candidates: Vec<(Candidate, u32)>,
    /// Targets that may need to expand a demand.
    pub(crate) refill: BTreeSet<u32>,
    /// Targets that may have something to lease, in round-robin order.
    ready_targets: VecDeque<u32>,
    /// Sites with a free slot out and targets that wait for it.
    pub(crate) sites_with_free_slots: BTreeSet<u32>,
}

/// Timers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Timer {
    Transfer(TransferId),
    /// Leases from this storage or to it may be possible again.
    Storage(u32),
    /// This target may lease more, though no event said so.
    Target(u32),
    /// This target may lease more if nothing has arrived for a while.
    Silence(u32),
    /// A block that was expanded to its end and is not complete is expanded again from its beginning.
    Sweep(BlockId, u32),
    /// An expansion that failed is repeated.
    Reopen(BlockId, u32),
    /// FTS3's optimizer decides.
    Optimize,
    /// A limited rate has room again.
    Limits,
    LeaseRecall,
    Detours,
}

impl Scheduler {
    /// `last_id`: the highest transfer or attempt id ever used (0 if none), so that ids never repeat.
    pub fn new(settings: Settings, knowledge: Knowledge, last_id: u64) -> Self {
        Scheduler {
            settings,
            knowledge,
            clock: MonotonicClock::default(),
            parties: Parties::default(),
            link_shares: LinkShareTable::default(),
            limits: LimitTable::default(),
            replica_races: ReplicaRaces::default(),
            forecasts: BTreeMap::new(),
            recalled: BTreeMap::new(),
            recall_timer_set: false,
            routes: Routes::default(),
            unlinked: BTreeSet::new(),
            unroutable: BTreeSet::new(),
            optimizers: BTreeMap::new(),
            last_id,
            sites: Slab::default(),
            site_of: BTreeMap::new(),
            storages: Slab::default(),
            storage_of: BTreeMap::new(),
            transfers: Slab::default(),
            by_id: BTreeMap::new(),
            by_attempt: IdMap::default(),
            files: Slab::default(),
            by_file: IdMap::default(),
            wants: Slab::default(),
            want_of: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            parked_demands: BTreeSet::new(),
            timers: BTreeMap::new(),
            timers_set: 0,
            out: VecDeque::new(),
            turn_order: TurnOrder::default(),
            source_scan: SourceScan::default(),
            candidates: Vec::new(),
            refill: BTreeSet::new(),
            ready_targets: VecDeque::new(),
            sites_with_free_slots: BTreeSet::new(),
        }
    }

    /// Handles one event. The cost depends on what it changes, not on how much waits.
    pub fn handle(&mut self, event: Event, now: Timestamp) {
        let now = self.clock.advance_to(now);
        match event {
            Event::Site(site) => self.site_changed(site, now),
            Event::Region { site, region } => {
                self.knowledge.set_site_region(site, region.unwrap_or_default())
            }
            Event::Storage(storage) => self.storage_changed(storage),
            Event::Agent { storage, agent, connected } => self.agent_changed(storage, agent, connected, now),
            Event::HeldLeases { agent, attempts } => self.reconcile_leases(agent, &attempts, now),
            Event::Links(links) => self.links_changed(links, now),
            Event::Shares(shares) => self.shares_changed(shares),
            Event::LinkShares(shares) => self.link_shares_changed(shares),
            Event::Limits(limits) => self.limits_changed(limits, now),
            Event::Circuits(all) => self.circuits_changed(&all, now),
            Event::Demand(demand) => self.demand_changed(&demand, now),
            Event::DemandGone { id } => self.demand_gone(id, now),
            Event::SubscriptionGone { subscription } => self.subscription_gone(subscription, now),
            Event::Expedite { subscription, expedite: hurry } => self.set_expedited(subscription, hurry, now),
            Event::Files { demand, files, exhausted } => self.files_received(demand, &files, exhausted, now),
            Event::ExpandFailed { demand } => self.expand_failed(demand, now),
            Event::ReplicaAdded { file, storage } => {
                let storage = self.storage_index(storage);
                self.replica_added(file, storage, now);
            }
            Event::ReplicaLost { file, storage } => {
                let storage = self.storage_index(storage);
                self.replica_lost(file, storage, now);
            }
            Event::FilesReadable { block, target } => self.files_readable(block, target),
            Event::BlockComplete { block, storage } => self.block_complete(block, storage, now),
            Event::BlockLost { block, storage } => self.block_lost(block, storage, now),
            Event::Adopt(adopted) => self.adopt(&adopted, now),
            Event::Started { attempt } => self.progress(attempt, 0, now),
            Event::Progress { attempt, bytes_done } => self.progress(attempt, bytes_done, now),
            Event::Outcome(outcome) => self.handle_outcome(outcome, now),
            Event::LeaseReleased { attempt } => self.lease_released(attempt, now),
            Event::TryNow { transfer } => self.try_now(transfer, now),
        }
    }

    /// The next decision, if there is one now.
    pub fn poll_decision(&mut self, now: Timestamp) -> Option<Decision> {
        let now = self.clock.advance_to(now);
        self.fire_timers(now);
        if let Some(decision) = self.out.pop_front() {
            return Some(decision);
        }
        while let Some(transfer) = self.unlinked.pop_first() {
            if let Some(&index) = self.by_id.get(&transfer) {
                self.route_transfer(index, now);
            }
        }
        loop {
            while let Some(&target) = self.refill.first() {
                if let Some(decision) = self.next_expansion(target) {
                    return Some(decision);
                }
                self.refill.remove(&target);
            }
            let target = match self.next_slot_waiter() {
                Some((site, target)) => {
                    self.sites[site].next_waiter = Some(target);
                    let lease = self.dispatch(target, now);
                    self.sites[site].next_waiter = None;
                    if lease.is_some() {
                        self.wake(target);
                        return lease;
                    }
                    continue;
                }
                None => self.ready_targets.pop_front(),
            };
            let Some(target) = target else {
                if self.refill.is_empty() {
                    return None;
                }
                continue;
            };
            self.storages[target].target.is_ready = false;
            if let Some(lease) = self.dispatch(target, now) {
                self.wake(target);
                return Some(lease);
            }
        }
    }

    /// When to poll again even without an event.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let busy = !(self.out.is_empty() && self.refill.is_empty() && self.ready_targets.is_empty());
        if busy {
            return Some(self.clock.caller_time(self.clock.now()));
        }
        self.timers.keys().next().map(|(at, _)| self.clock.caller_time(*at))
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Records an observation of the network, or returns why it is refused.
    pub fn observe(&mut self, observation: Observation, now: Timestamp) -> Result<(), ObservationError> {
        let now = self.clock.advance_to(now);
        let at = self.clock.steady_time(observation.at);
        self.knowledge.observe(&Observation { at, ..observation }, now)
    }

    /// Knowledge of the network, to be stored across restarts.
    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// Knowledge of the network, to be changed by observations and topology.
    pub fn knowledge_mut(&mut self) -> &mut Knowledge {
        &mut self.knowledge
    }

    /// The target whose turn it is for a free slot of a site.
    fn next_slot_waiter(&mut self) -> Option<(u32, u32)> {
        while let Some(&site) = self.sites_with_free_slots.first() {
            let row = &mut self.sites[site];
            if row.has_slot(false)
                && let Some(target) = row.slot_waiters.next()
            {
                return Some((site, target));
            }
            self.sites_with_free_slots.remove(&site);
        }
        None
    }

    fn fire_timers(&mut self, now: Timestamp) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                return;
            }
            match entry.remove() {
                Timer::Transfer(id) => self.end_backoff(id, now),
                Timer::Storage(storage) => self.wake_around(storage),
                Timer::Target(target) => self.wake(target),
                Timer::Silence(target) => self.check_silence(target, now),
                Timer::Sweep(block, target) => self.sweep(block, target),
                Timer::Optimize => self.optimize(now),
                Timer::Limits => self.limits_freed(),
                Timer::LeaseRecall => self.recall_slow_leases(now),
                Timer::Detours => self.find_detours(now),
                Timer::Reopen(block, target) => self.reopen(block, target),
            }
        }
    }

    fn optimize(&mut self, now: Timestamp) {
        let links: Vec<(u32, u32)> = self.optimizers.keys().copied().collect();
        for (target, source) in links {
            let link = self.storages[target].target.links.get(source);
            let active = link.map_or(0, |link| link.files);
            let waiting = link.map_or(0, |link| link.waiting.values().map(|waiting| waiting.files).sum());
            if let Some(optimizer) = self.optimizers.get_mut(&(target, source))
                && active + waiting > 0
            {
                optimizer.decide(active, waiting, now);
                self.wake(target);
            }
        }
        self.set_timer(now + fts3::DECISION_PERIOD, Timer::Optimize);
    }

    /// The optimizer of a link, under FTS3's rules only.
    pub(crate) fn optimizer(&mut self, target: u32, source: u32, now: Timestamp) -> Option<&mut Optimizer> {
        if self.settings.rules != Rules::Fts3 {
            return None;
        }
        if self.optimizers.is_empty() {
            self.set_timer(now + fts3::DECISION_PERIOD, Timer::Optimize);
        }
        Some(self.optimizers.entry((target, source)).or_default())
    }

    pub(crate) fn set_timer(&mut self, at: Timestamp, timer: Timer) {
        self.timers_set += 1;
        self.timers.insert((at, self.timers_set), timer);
    }

    /// `target` may have something to lease now.
    pub(crate) fn wake(&mut self, target: u32) {
        let row = &mut self.storages[target].target;
        if !row.is_ready {
            row.is_ready = true;
            self.ready_targets.push_back(target);
        }
    }

    fn shares_changed(&mut self, shares: Shares) {
        let before = self.parties.set(shares);
        for &index in self.storage_of.values() {
            self.storages[index].target.lanes.reweigh(&before, &self.parties);
        }
    }

    pub(crate) fn wake_all(&mut self) {
        let indexes: Vec<u32> = self.storage_of.values().copied().collect();
        for index in indexes {
            self.wake(index);
            self.refill.insert(index);
        }
    }

    /// Wakes a storage and the targets that have something waiting for it.
    pub(crate) fn wake_around(&mut self, storage: u32) {
        let targets: Vec<u32> = self
            .storage_of
            .values()
            .copied()
            .filter(|&target| {
                let lanes = &self.storages[target].target.lanes;
                target == storage || lanes.iter().any(|class| class.has_waiting_for(storage))
            })
            .collect();
        targets.into_iter().for_each(|target| self.wake(target));
    }

    pub(crate) fn next_id(&mut self, now: Timestamp) -> u64 {
        let mut maker = longhaul_model::IdMaker::after(self.last_id);
        let id: TransferId = maker.next(self.clock.caller_time(now));
        self.last_id = id.0;
        id.0
    }

    /// The index of a storage, known or not yet.
    pub(crate) fn storage_index(&mut self, id: StorageId) -> u32 {
        if let Some(&index) = self.storage_of.get(&id) {
            return index;
        }
        let nowhere = self.site_index(SiteId(u64::MAX));
        let index = self.storages.add(Storage::new(id, nowhere));
        self.storage_of.insert(id, index);
        index
    }

    pub(crate) fn site_index(&mut self, id: SiteId) -> u32 {
        match self.site_of.get(&id) {
            Some(&index) => index,
            None => {
                let index = self.sites.add(Site::new());
                self.site_of.insert(id, index);
                index
            }
        }
    }
}
