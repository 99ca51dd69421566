//! File selection: which file a target gets next.
//!
//! Community, activity and priority are chosen by `lanes`. Within a priority: due time, then age, block by
//! block. A file that cannot be leased now (its source is busy, away or full) does not block those behind it
//! (no head-of-line blocking). Among the sources with files of the same block the earliest finish wins; from
//! the queue of that source, the files that only it has come first.
//!
//! Cost: mostly one of the oldest blocks has a usable source, so these are scanned first, and all that the
//! sources have only if none of them can be used.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_network::IntakeRate;

use crate::decision::Unusable;
use crate::dispatch::TargetBacklog;
use crate::queue_key::QueueKey;
use crate::scheduler::Scheduler;
use crate::settings::Rules;
use crate::state::{ActiveLease, LinkState, Rank, to_f64};
use crate::strategy::Strategy;

/// Blocks scanned in the order of their age before the sources are scanned one by one.
pub(crate) const OLDEST_BLOCKS_SCANNED: usize = 12;
/// Blocks scanned for one that a slow source may send files of.
const BLOCKS_AHEAD_MAX: usize = 4;
/// A source may need this much longer than the rest of a block without delaying it.
const BLOCK_SLACK_S: f64 = 1.0;
/// A busy source is worth waiting for if it delivers within this share of the time.
const SOONER_TIME_SHARE_MAX: f64 = 0.8;
/// Cost of a file besides its bytes when turns are charged, so that empty files are not free.
const FILE_COST_BYTES: f64 = 1e6;
/// Full links with more work waiting are noted this often.
const FULL_LINK_LOG_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) fn turn_cost(size: u64) -> f64 {
    size as f64 + FILE_COST_BYTES
}

/// State of one source while one priority of a target is scanned.
#[derive(Clone, Copy)]
struct ScannedSource {
    source: u32,
    /// Blocks scanned so far, and their bytes.
    blocks: usize,
    bytes_before: u128,
    /// It has offered a file, or cannot.
    done: bool,
}

/// All scanned sources, found by index.
#[derive(Default)]
pub(crate) struct SourceScan {
    sources: Vec<ScannedSource>,
    /// By source index: one more than its position in the list; 0 is none.
    index_of: Vec<u32>,
    /// Whether a block may still be the first of all that wait. Turns that a priority leaves, where it is not
    /// the only one, would go to the others beyond their shares.
    is_first: Option<bool>,
}

impl SourceScan {
    fn clear(&mut self) {
        self.is_first = None;
        for scanned in self.sources.drain(..) {
            self.index_of[scanned.source as usize] = 0;
        }
    }

    fn index_of_source(&self, source: u32) -> Option<usize> {
        let index = self.index_of.get(source as usize)?.checked_sub(1)?;
        Some(index as usize)
    }

    fn get(&self, source: u32) -> Option<&ScannedSource> {
        self.index_of_source(source).map(|index| &self.sources[index])
    }

    /// Adds a source that was not scanned before.
    fn add(&mut self, source: u32, done: bool) -> usize {
        self.sources.push(ScannedSource { source, blocks: 0, bytes_before: 0, done });
        let needed_len = source as usize + 1;
        if self.index_of.len() < needed_len {
            self.index_of.resize(needed_len, 0);
        }
        self.index_of[source as usize] = self.sources.len() as u32;
        self.sources.len() - 1
    }
}

/// The best candidate so far: oldest, not awaited from another target, soonest.
#[derive(Default)]
struct BestCandidate(Option<((Rank, bool), f64, u32)>);

impl BestCandidate {
    fn offer(&mut self, rank: Rank, head: QueueKey, finish: f64) {
        let order = (rank, head.awaited());
        let better = self
            .0
            .as_ref()
            .is_none_or(|(known, time, _)| order.cmp(known).then(finish.total_cmp(time)).is_lt());
        if better {
            self.0 = Some((order, finish, head.transfer()));
        }
    }

    fn transfer(&self) -> Option<u32> {
        self.0.map(|(.., transfer)| transfer)
    }
}

/// Result of scanning the oldest blocks.
enum PickResult {
    Transfer(u32),
    /// One of them has the target to itself, and no more of it can be leased now.
    HeldBack,
    Nothing,
}

impl PickResult {
    fn from_transfer(transfer: Option<u32>) -> PickResult {
        transfer.map_or(PickResult::Nothing, PickResult::Transfer)
    }
}

impl Scheduler {
    pub(crate) fn pick(
        &mut self,
        target: u32,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<(u32, usize)> {
        let mut turns = std::mem::take(&mut self.turn_order);
        let strict = self.settings.rules == Rules::Fts3;
        self.storages[target].target.lanes.begin_turns(strict, &mut turns);
        let mut found = None;
        while found.is_none()
            && let Some(lane) = self.storages[target].target.lanes.next_turn(&mut turns)
        {
            found = self.pick_in_lane(target, lane, backlog, now).map(|index| (index, lane));
        }
        self.turn_order = turns;
        found
    }

    /// Charges a lease. `turn`: the lane whose turn it was; its community pays even if another lane got the
    /// file.
    pub(crate) fn pay(&mut self, target: u32, turn: usize, lane: usize, size: u64, pace: IntakeRate) {
        let relief = f64::from(self.settings.relief.max(2));
        let claim = self.claim(pace);
        self.storages[target].target.lanes.pay(turn, lane, turn_cost(size), relief, &self.parties, claim);
    }

    /// Refunds the part of a failed lease that did not arrive.
    pub(crate) fn refund(&mut self, index: u32, lease: &ActiveLease, bytes_moved: u64) {
        let transfer = &self.transfers[index];
        let back = turn_cost(transfer.size.saturating_sub(bytes_moved));
        let lane = self.wants[transfer.want].lane;
        let turn = lease.charged_lane.map_or(lane, |after| after.get() as usize - 1);
        let target = transfer.target;
        let claim = self.claim(self.knowledge.intake_rate(self.storages[target].id));
        self.storages[target].target.lanes.refund(turn, lane, back, &self.parties, claim);
        self.refund_at_link(index, lease, back);
    }

    /// Bytes that parties whose sources were busy can catch up on in full, all together.
    pub(crate) fn claim(&self, pace: IntakeRate) -> f64 {
        (pace.bytes_per_s * self.settings.share_claim.as_secs_f64()).max(self.settings.lease_bytes_min as f64)
    }

    /// The best file of one priority.
    fn pick_in_lane(
        &mut self,
        target: u32,
        lane: usize,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<u32> {
        let mut scan = std::mem::take(&mut self.source_scan);
        scan.clear();
        let mut found = PickResult::from_transfer(self.pick_over_circuit(target, lane, backlog, now));
        if let PickResult::Nothing = found {
            found = self.pick_from_oldest(target, lane, backlog, now, &mut scan);
        }
        let all = self.storages[target].target.lanes.class(lane).waiting.len() <= OLDEST_BLOCKS_SCANNED;
        let picked = match found {
            PickResult::Transfer(transfer) => Some(transfer),
            PickResult::Nothing if !all => self.pick_from_sources(target, lane, backlog, now, &scan),
            PickResult::Nothing | PickResult::HeldBack => None,
        };
        self.source_scan = scan;
        picked
    }

    /// The oldest blocks, one after the other, until one has something that can be leased.
    fn pick_from_oldest(
        &mut self,
        target: u32,
        lane: usize,
        backlog: &TargetBacklog,
        now: Timestamp,
        scan: &mut SourceScan,
    ) -> PickResult {
        // Mostly the first or the second has something.
        let Some(&oldest) = self.storages[target].target.lanes.class(lane).waiting.first() else {
            return PickResult::Nothing;
        };
        if let Some(found) = self.pick_in_block(target, lane, backlog, oldest, scan, now) {
            return found;
        }
        for (from, to) in [(1, 2), (2, OLDEST_BLOCKS_SCANNED)] {
            let mut oldest = [None; OLDEST_BLOCKS_SCANNED];
            let waiting = self.storages[target].target.lanes.class(lane).waiting.iter();
            oldest.iter_mut().zip(waiting.take(to).skip(from)).for_each(|(slot, &entry)| *slot = Some(entry));
            for entry in oldest.into_iter().map_while(|entry| entry) {
                if let Some(found) = self.pick_in_block(target, lane, backlog, entry, scan, now) {
                    return found;
                }
            }
        }
        PickResult::Nothing
    }

    /// Scans one of the oldest blocks; none: scan the next one.
    fn pick_in_block(
        &mut self,
        target: u32,
        lane: usize,
        backlog: &TargetBacklog,
        entry: (Rank, u32),
        scan: &mut SourceScan,
        now: Timestamp,
    ) -> Option<PickResult> {
        let best = self.best_in_block(target, lane, backlog, entry, scan, now);
        if best.0.is_some() {
            return Some(PickResult::from_transfer(best.transfer()));
        }
        let lanes = &self.storages[target].target.lanes;
        if *scan.is_first.get_or_insert_with(|| lanes.holds_all_queued(lane)) {
            match self.holds_back_later_blocks(target, entry.1, backlog, now) {
                Some(true) => return Some(PickResult::HeldBack),
                Some(false) => scan.is_first = Some(false),
                None => {}
            }
        }
        None
    }

    /// The best file that the sources of a block offer, skipping sources known to have none.
    fn best_in_block(
        &mut self,
        target: u32,
        lane: usize,
        backlog: &TargetBacklog,
        (rank, want): (Rank, u32),
        scan: &mut SourceScan,
        now: Timestamp,
    ) -> BestCandidate {
        let mut best = BestCandidate::default();
        let pace = self.target_rate_for(want, backlog);
        let row = &self.wants[want];
        let bytes = row.bytes_left.saturating_sub(row.bytes_arrived);
        for at in 0..row.queues.len() {
            let source = self.wants[want].queues[at].0;
            let known = scan.index_of_source(source).unwrap_or_else(|| {
                let done = !self.may_lease(source, target, lane, now);
                scan.add(source, done)
            });
            let scanned = &mut scan.sources[known];
            if scanned.done {
                continue;
            }
            scanned.blocks += 1;
            scanned.bytes_before += bytes;
            let before = scanned.bytes_before;
            let Some(&head) = self.wants[want].queues[at].1.first() else { continue };
            if head.awaited() && !self.runs_low(backlog, target, now) {
                scan.sources[known].done = true;
                continue;
            }
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.expected_finish(source, target, size, now);
            if pace.is_some_and(|pace| self.is_too_slow(source, head, finish, to_f64(before) / pace, now)) {
                scan.sources[known].done = scan.sources[known].blocks >= BLOCKS_AHEAD_MAX;
            } else {
                scan.sources[known].done = true;
                best.offer(rank, head, finish);
            }
        }
        best
    }

    /// The best of the heads of all sources' queues, skipping sources known to have none.
    fn pick_from_sources(
        &mut self,
        target: u32,
        lane: usize,
        backlog: &TargetBacklog,
        now: Timestamp,
        scan: &SourceScan,
    ) -> Option<u32> {
        let mut best = BestCandidate::default();
        for at in 0..self.storages[target].target.lanes.class(lane).sources.len() {
            let source = self.storages[target].target.lanes.class(lane).sources[at].0;
            let known = scan.get(source);
            if known.is_some_and(|scanned| scanned.done)
                || known.is_none() && !self.may_lease(source, target, lane, now)
            {
                continue;
            }
            let Some((rank, head)) = self.first_of_source(target, lane, at, backlog, now) else { continue };
            if head.awaited() && !self.runs_low(backlog, target, now) {
                continue;
            }
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.expected_finish(source, target, size, now);
            best.offer(rank, head, finish);
        }
        best.transfer()
    }

    /// Whether something can be leased over a link now; otherwise notes the demand at what prevents it.
    pub(crate) fn may_lease(&mut self, source: u32, target: u32, lane: usize, now: Timestamp) -> bool {
        let party = self.storages[target].target.lanes.party(lane);
        match self.unusable(source, target, party, now) {
            None => return true,
            Some(Unusable::LimitRate { until, .. }) => self.arm_limit_timer(until, now),
            Some(Unusable::ActiveOut { .. }) => {
                let level = self.storages[target].target.lanes.level(lane) as u8 + 1;
                let site = self.storages[source].site;
                self.sites[site].slot_waiters.add(target, level);
                if self.sites[site].has_slot(false) {
                    self.sites_with_free_slots.insert(site);
                }
            }
            Some(Unusable::WindowFull { .. }) => {
                if let Some(link) = self.storages[target].target.links.get_mut(source) {
                    link.concurrency.note_limited();
                }
            }
            Some(_) => {}
        }
        false
    }

    /// Notes at full links with more work waiting that their limit held it back: a dispatch does not visit
    /// each of them.
    pub(crate) fn note_full_links(&mut self, target: u32, now: Timestamp) {
        let row = &mut self.storages[target].target;
        if row.full_links_noted_at.is_some_and(|at| now.since(at) < FULL_LINK_LOG_INTERVAL) {
            return;
        }
        row.full_links_noted_at = Some(now);
        let full = |(source, link): (u32, &LinkState)| {
            let waits =
                || self.storages[target].target.lanes.iter().any(|class| class.has_waiting_for(source));
            (link.files > 0 && self.link_full(source, target, link) && waits()).then_some(source)
        };
        let full: Vec<u32> = self.storages[target].target.links.iter().filter_map(full).collect();
        for source in full {
            if let Some(link) = self.storages[target].target.links.get_mut(source) {
                link.concurrency.note_limited();
            }
        }
    }

    /// The first file that a lane's source (by position there) should send. A slow source does not get the
    /// last
    /// files of a block, which would then wait for it alone: they are left to faster sources, though these
    /// are
    /// busy, and the slow one gets files of the next block.
    pub(crate) fn first_of_source(
        &mut self,
        target: u32,
        lane: usize,
        at: usize,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<(Rank, QueueKey)> {
        let mut before = 0u128;
        for step in 0..BLOCKS_AHEAD_MAX {
            let (source, wants) = &self.storages[target].target.lanes.class(lane).sources[at];
            let source = *source;
            let nth = if step == 0 { wants.first() } else { wants.iter().nth(step) };
            let &(rank, want) = nth?;
            let row = &self.wants[want];
            before += row.bytes_left.saturating_sub(row.bytes_arrived);
            let Some(head) = row.head(source) else { continue };
            let Some(pace) = self.target_rate_for(want, backlog) else { return Some((rank, head)) };
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.expected_finish(source, target, size, now);
            if !self.is_too_slow(source, head, finish, to_f64(before) / pace, now) {
                return Some((rank, head));
            }
        }
        None
    }

    /// The intake rate of the target, if sources may leave files of this block to faster ones.
    pub(crate) fn target_rate_for(&self, want: u32, backlog: &TargetBacklog) -> Option<f64> {
        let pace = backlog.pace.bytes_per_s;
        (pace > 0.0 && self.wants[want].strategy == Strategy::Best).then_some(pace)
    }

    /// Whether a file from `source` would arrive after everything else, in `rest` seconds, and sooner from
    /// another source that is only busy.
    fn is_too_slow(&mut self, source: u32, head: QueueKey, finish: f64, rest: f64, now: Timestamp) -> bool {
        if finish <= rest + BLOCK_SLACK_S {
            return false;
        }
        let index = head.transfer();
        let (target, size) = (self.transfers[index].target, self.transfers[index].size);
        let party = self.wants[self.transfers[index].want].party;
        for at in 0..self.transfers[index].sources.len() {
            let other = self.transfers[index].sources[at];
            if other.storage == source || other.backoff_until > now {
                continue;
            }
            let why = self.unusable(other.storage, target, party, now);
            if matches!(why, None | Some(Unusable::WindowFull { .. } | Unusable::LimitRate { .. })) {
                let (sooner, ..) = self.expected_finish(other.storage, target, size, now);
                if sooner < SOONER_TIME_SHARE_MAX * finish {
                    return true;
                }
            }
        }
        false
    }
}
