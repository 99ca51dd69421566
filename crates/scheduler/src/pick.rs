//! Which file a target gets next: the order of what waits.
//!
//! Community, activity and priority by `lanes`. Within a priority: due time, age, block by block. A file that
//! cannot be had now (its source has enough to do, is away, or is full) does not hold up those behind it. Of
//! the sources that have something of the same block, the one from which it would be there first; of its
//! queue first what only it has.
//!
//! Cost. Most of the time one of the oldest blocks has a source that can be used: so these are looked at
//! first, and all that the sources have only if none of them can.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_network::IntakeRate;

use crate::deal::Low;
use crate::decision::Unusable;
use crate::key::Key;
use crate::scheduler::Scheduler;
use crate::settings::Rules;
use crate::state::{Leased, LinkState, Rank, float};
use crate::strategy::Strategy;

/// Blocks that are looked at in the order of their age before the sources are asked one by one.
pub(crate) const BLOCKS_FIRST: usize = 12;
/// Blocks that are looked through for one that a slow source may send files of.
const BLOCKS_AHEAD: usize = 4;
/// A source that needs so much longer than the rest of a block is no hindrance.
const SLACK_S: f64 = 1.0;
/// By so much another source must be sooner to be waited for.
const SOONER: f64 = 0.8;
/// Counted for each file when turns are taken, so that empty files are not free.
const FILE_COST_BYTES: f64 = 1e6;
/// How often full links with more to do are noted.
const NOTED_EVERY: Duration = Duration::from_millis(250);

pub(crate) fn cost(size: u64) -> f64 {
    size as f64 + FILE_COST_BYTES
}

/// What is known of a source while one priority of a target is looked through.
#[derive(Clone, Copy)]
struct Look {
    source: u32,
    /// Blocks of it that were looked at, and the bytes of these.
    blocks: usize,
    before: u128,
    /// It has offered something, or cannot.
    done: bool,
}

/// All of that, found by the place of the source.
#[derive(Default)]
pub(crate) struct Looks {
    list: Vec<Look>,
    /// By place of the source: one more than its place in the list; 0 is none.
    places: Vec<u32>,
    /// Whether a block may still be the first of all that wait. What a priority that is not the only one left
    /// would go to the others, beyond their shares.
    is_first: Option<bool>,
}

impl Looks {
    fn clear(&mut self) {
        self.is_first = None;
        for look in self.list.drain(..) {
            self.places[look.source as usize] = 0;
        }
    }

    fn place(&self, source: u32) -> Option<usize> {
        let place = self.places.get(source as usize)?.checked_sub(1)?;
        Some(place as usize)
    }

    fn get(&self, source: u32) -> Option<&Look> {
        self.place(source).map(|place| &self.list[place])
    }

    /// One that was not looked at before.
    fn add(&mut self, source: u32, done: bool) -> usize {
        self.list.push(Look { source, blocks: 0, before: 0, done });
        let least = source as usize + 1;
        if self.places.len() < least {
            self.places.resize(least, 0);
        }
        self.places[source as usize] = self.list.len() as u32;
        self.list.len() - 1
    }
}

/// The best so far: by age, not awaited from elsewhere, soonest.
#[derive(Default)]
struct Best(Option<((Rank, bool), f64, u32)>);

impl Best {
    fn offer(&mut self, rank: Rank, head: Key, finish: f64) {
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

/// Among the oldest blocks.
enum Found {
    Transfer(u32),
    /// One of them has the target to itself, and can be given no more now.
    Alone,
    Nothing,
}

impl Found {
    fn of(transfer: Option<u32>) -> Found {
        transfer.map_or(Found::Nothing, Found::Transfer)
    }
}

impl Scheduler {
    pub(crate) fn pick(&mut self, target: u32, low: &Low, now: Timestamp) -> Option<(u32, usize)> {
        let mut turns = std::mem::take(&mut self.turns);
        let strict = self.settings.rules == Rules::Fts3;
        self.storages[target].target.lanes.begin_turns(strict, &mut turns);
        let mut found = None;
        while found.is_none()
            && let Some(lane) = self.storages[target].target.lanes.next_turn(&mut turns)
        {
            found = self.pick_in(target, lane, low, now).map(|place| (place, lane));
        }
        self.turns = turns;
        found
    }

    /// Keeps account of what everybody got. `turn`: the lane whose turn it was; its community pays for what
    /// another lane got.
    pub(crate) fn pay(&mut self, target: u32, turn: usize, lane: usize, size: u64, pace: IntakeRate) {
        let relief = f64::from(self.settings.relief.max(2));
        let claim = self.claim(pace);
        self.storages[target].target.lanes.pay(turn, lane, cost(size), relief, &self.parties, claim);
    }

    /// What failed is given back, as far as it did not come.
    pub(crate) fn refund(&mut self, place: u32, lease: &Leased, bytes_moved: u64) {
        let transfer = &self.transfers[place];
        let back = cost(transfer.size.saturating_sub(bytes_moved));
        let lane = self.wants[transfer.want].lane;
        let turn = lease.turn.map_or(lane, |after| after.get() as usize - 1);
        let target = transfer.target;
        let claim = self.claim(self.knowledge.intake_rate(self.storages[target].id));
        self.storages[target].target.lanes.refund(turn, lane, back, &self.parties, claim);
        self.refund_at_link(place, lease, back);
    }

    /// The bytes that those whose sources were busy can catch up on in full, all together.
    pub(crate) fn claim(&self, pace: IntakeRate) -> f64 {
        (pace.bytes_per_s * self.settings.share_claim.as_secs_f64()).max(self.settings.lease_bytes_min as f64)
    }

    /// The best file of one priority.
    fn pick_in(&mut self, target: u32, lane: usize, low: &Low, now: Timestamp) -> Option<u32> {
        let mut looks = std::mem::take(&mut self.looks);
        looks.clear();
        let mut found = Found::of(self.pick_by_circuit(target, lane, low, now));
        if let Found::Nothing = found {
            found = self.pick_oldest(target, lane, low, now, &mut looks);
        }
        let all = self.storages[target].target.lanes.class(lane).waiting.len() <= BLOCKS_FIRST;
        let picked = match found {
            Found::Transfer(transfer) => Some(transfer),
            Found::Nothing if !all => self.pick_of_sources(target, lane, low, now, &looks),
            Found::Nothing | Found::Alone => None,
        };
        self.looks = looks;
        picked
    }

    /// The oldest blocks, one after the other, until one has something that can be leased.
    fn pick_oldest(
        &mut self,
        target: u32,
        lane: usize,
        low: &Low,
        now: Timestamp,
        looks: &mut Looks,
    ) -> Found {
        // Mostly the first or the second has something.
        let Some(&oldest) = self.storages[target].target.lanes.class(lane).waiting.first() else {
            return Found::Nothing;
        };
        if let Some(found) = self.found_in(target, lane, low, oldest, looks, now) {
            return found;
        }
        for (from, to) in [(1, 2), (2, BLOCKS_FIRST)] {
            let mut oldest = [None; BLOCKS_FIRST];
            let waiting = self.storages[target].target.lanes.class(lane).waiting.iter();
            oldest.iter_mut().zip(waiting.take(to).skip(from)).for_each(|(slot, &entry)| *slot = Some(entry));
            for entry in oldest.into_iter().map_while(|entry| entry) {
                if let Some(found) = self.found_in(target, lane, low, entry, looks, now) {
                    return found;
                }
            }
        }
        Found::Nothing
    }

    /// What one of the oldest blocks comes to; none: the next one is looked at.
    fn found_in(
        &mut self,
        target: u32,
        lane: usize,
        low: &Low,
        entry: (Rank, u32),
        looks: &mut Looks,
        now: Timestamp,
    ) -> Option<Found> {
        let best = self.best_of(target, lane, low, entry, looks, now);
        if best.0.is_some() {
            return Some(Found::of(best.transfer()));
        }
        let lanes = &self.storages[target].target.lanes;
        if *looks.is_first.get_or_insert_with(|| lanes.is_only(lane)) {
            match self.has_target_alone(target, entry.1, low, now) {
                Some(true) => return Some(Found::Alone),
                Some(false) => looks.is_first = Some(false),
                None => {}
            }
        }
        None
    }

    /// The best that the sources of a block offer, but those of which it is known that they have nothing.
    fn best_of(
        &mut self,
        target: u32,
        lane: usize,
        low: &Low,
        (rank, want): (Rank, u32),
        looks: &mut Looks,
        now: Timestamp,
    ) -> Best {
        let mut best = Best::default();
        let pace = self.pace_of(want, low);
        let row = &self.wants[want];
        let bytes = row.bytes_left.saturating_sub(row.bytes_arrived);
        for at in 0..row.queues.len() {
            let source = self.wants[want].queues[at].0;
            let known = looks.place(source).unwrap_or_else(|| {
                let done = !self.may_give(source, target, lane, now);
                looks.add(source, done)
            });
            let look = &mut looks.list[known];
            if look.done {
                continue;
            }
            look.blocks += 1;
            look.before += bytes;
            let before = look.before;
            let Some(&head) = self.wants[want].queues[at].1.first() else { continue };
            if head.awaited() && !self.runs_low(low, target, now) {
                looks.list[known].done = true;
                continue;
            }
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.finish(source, target, size, now);
            if pace.is_some_and(|pace| self.too_slow(source, head, finish, float(before) / pace, now)) {
                looks.list[known].done = looks.list[known].blocks >= BLOCKS_AHEAD;
            } else {
                looks.list[known].done = true;
                best.offer(rank, head, finish);
            }
        }
        best
    }

    /// Over the heads of all its sources' queues, but those of which it is known that they have nothing.
    fn pick_of_sources(
        &mut self,
        target: u32,
        lane: usize,
        low: &Low,
        now: Timestamp,
        looks: &Looks,
    ) -> Option<u32> {
        let mut best = Best::default();
        for at in 0..self.storages[target].target.lanes.class(lane).sources.len() {
            let source = self.storages[target].target.lanes.class(lane).sources[at].0;
            let known = looks.get(source);
            if known.is_some_and(|look| look.done)
                || known.is_none() && !self.may_give(source, target, lane, now)
            {
                continue;
            }
            let Some((rank, head)) = self.head(target, lane, at, low, now) else { continue };
            if head.awaited() && !self.runs_low(low, target, now) {
                continue;
            }
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.finish(source, target, size, now);
            best.offer(rank, head, finish);
        }
        best.transfer()
    }

    /// Whether something can be leased over a link now; else what keeps it from that learns of it.
    pub(crate) fn may_give(&mut self, source: u32, target: u32, lane: usize, now: Timestamp) -> bool {
        let party = self.storages[target].target.lanes.party(lane);
        match self.unusable(source, target, party, now) {
            None => return true,
            Some(Unusable::LimitRate { until, .. }) => self.look_again(until, now),
            Some(Unusable::ActiveOut { .. }) => {
                let level = self.storages[target].target.lanes.level(lane) as u8 + 1;
                let site = self.storages[source].site;
                self.sites[site].wait_out.add(target, level);
                if self.sites[site].has_slot(false) {
                    self.relieved.insert(site);
                }
            }
            Some(Unusable::WindowFull { .. }) => {
                if let Some(link) = self.storages[target].target.links.get_mut(source) {
                    link.at_once.held_back();
                }
            }
            Some(_) => {}
        }
        false
    }

    /// Tells the links that have all that they may, and for which more waits, that this held them back: not
    /// each of them is asked for each lease.
    pub(crate) fn note_full_links(&mut self, target: u32, now: Timestamp) {
        let row = &mut self.storages[target].target;
        if row.noted.is_some_and(|at| now.since(at) < NOTED_EVERY) {
            return;
        }
        row.noted = Some(now);
        let full = |(source, link): (u32, &LinkState)| {
            let waits = || self.storages[target].target.lanes.iter().any(|class| class.has_for(source));
            (link.files > 0 && self.link_full(source, target, link) && waits()).then_some(source)
        };
        let full: Vec<u32> = self.storages[target].target.links.iter().filter_map(full).collect();
        for source in full {
            if let Some(link) = self.storages[target].target.links.get_mut(source) {
                link.at_once.held_back();
            }
        }
    }

    /// What a lane's source, by its place there, would send first. A slow source does not get the last files
    /// of a block, which would then wait for it alone: they are left for the faster ones, though these are
    /// busy now, and the slow one gets files of the next block.
    pub(crate) fn head(
        &mut self,
        target: u32,
        lane: usize,
        at: usize,
        low: &Low,
        now: Timestamp,
    ) -> Option<(Rank, Key)> {
        let mut before = 0u128;
        for step in 0..BLOCKS_AHEAD {
            let (source, wants) = &self.storages[target].target.lanes.class(lane).sources[at];
            let source = *source;
            let nth = if step == 0 { wants.first() } else { wants.iter().nth(step) };
            let &(rank, want) = nth?;
            let row = &self.wants[want];
            before += row.bytes_left.saturating_sub(row.bytes_arrived);
            let Some(head) = row.head(source) else { continue };
            let Some(pace) = self.pace_of(want, low) else { return Some((rank, head)) };
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.finish(source, target, size, now);
            if !self.too_slow(source, head, finish, float(before) / pace, now) {
                return Some((rank, head));
            }
        }
        None
    }

    /// What the target takes, of which this is a block: by that a source may leave its next file to faster
    /// ones.
    pub(crate) fn pace_of(&self, want: u32, low: &Low) -> Option<f64> {
        let pace = low.pace.bytes_per_s;
        (pace > 0.0 && self.wants[want].strategy == Strategy::Best).then_some(pace)
    }

    /// Whether a file would come from `source` after everything else has come, in `rest` seconds, and sooner
    /// from another that is only busy.
    fn too_slow(&mut self, source: u32, head: Key, finish: f64, rest: f64, now: Timestamp) -> bool {
        if finish <= rest + SLACK_S {
            return false;
        }
        let place = head.transfer();
        let (target, size) = (self.transfers[place].target, self.transfers[place].size);
        let party = self.wants[self.transfers[place].want].party;
        for at in 0..self.transfers[place].sources.len() {
            let other = self.transfers[place].sources[at];
            if other.storage == source || other.rest_until > now {
                continue;
            }
            let why = self.unusable(other.storage, target, party, now);
            if matches!(why, None | Some(Unusable::WindowFull { .. } | Unusable::LimitRate { .. })) {
                let (sooner, ..) = self.finish(other.storage, target, size, now);
                if sooner < SOONER * finish {
                    return true;
                }
            }
        }
        false
    }
}
