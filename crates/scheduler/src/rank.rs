//! Rank of a want among the others of its target: party, priority and due time. Waiting files move along with
//! it.
//!
//! Due times favour small subscriptions (shortest job first with aging). A want that a relay passes on to
//! several targets is due sooner, by the number of targets that wait for it: for work on one machine the mean
//! weighted completion time is least in the order of length over weight (W. E. Smith, 1956).

use std::time::Duration;

use longhaul_model::{SubscriptionId, Timestamp};

use crate::lanes::LEVELS;
use crate::scheduler::Scheduler;
use crate::settings::{DUE_TIME_FACTOR, Rules};
use crate::state::{DemandTerms, Phase, Rank, Subscription, Want};
use crate::strategy::Strategy;

/// Work with a deadline in danger is due this long ago: before all other work, and among itself by deadline.
const EXPEDITED_LEAD: Duration = Duration::from_secs(20 * 365 * 86_400);

/// When something is due that so many wait for.
fn shared_due(rank: Rank, by: usize) -> Timestamp {
    if rank.due <= rank.created {
        return rank.due; // It is in danger, which is no patience to be shared.
    }
    rank.created + rank.due.since(rank.created) / by.max(1) as u32
}

impl Scheduler {
    /// Expedites a subscription whose deadline is in danger: the highest priority and the first position
    /// within
    /// its own activity. Shares of communities and activities stay, and so does the relief of lower
    /// priorities;
    /// agents begin it first.
    pub(crate) fn set_expedited(&mut self, id: SubscriptionId, hurry: bool, now: Timestamp) {
        let Some(row) = self.subscriptions.get_mut(&id) else { return };
        if std::mem::replace(&mut row.expedited, hurry) != hurry {
            row.arrivals.restart();
            let wants: Vec<u32> = row.wants.iter().copied().collect();
            wants.into_iter().for_each(|index| self.rerank(index, now));
        }
    }

    /// Whether a demand is expedited because its deadline is in danger.
    pub(crate) fn is_expedited(&self, wish: &DemandTerms, subscription: &Subscription) -> bool {
        subscription.expedited && wish.deadline.is_some() && self.settings.rules == Rules::Ours
    }

    /// Due time of a demand: see [`crate::settings::DUE_TIME_FACTOR`]. A deadline only makes it earlier.
    pub(crate) fn due(&self, wish: &DemandTerms, subscription: &Subscription) -> Timestamp {
        if self.settings.rules == Rules::Fts3 {
            return wish.created;
        }
        if let Some(deadline) = wish.deadline.filter(|_| subscription.expedited) {
            return deadline - EXPEDITED_LEAD;
        }
        let bytes = subscription.bytes_ranked as f64;
        let own = bytes / self.settings.nominal_bytes_per_s.max(1.0);
        let most = self.settings.due_delay_max.as_secs_f64();
        let due = wish.created + Duration::from_secs_f64((DUE_TIME_FACTOR * own).clamp(0.0, most));
        wish.deadline
            .map_or(due, |deadline| due.min(deadline - Duration::from_secs_f64(own.clamp(0.0, most))))
    }

    /// Reranks all wants of a subscription when its size has doubled, since the due time follows from it.
    pub(crate) fn rank_subscription(&mut self, id: SubscriptionId, now: Timestamp) {
        let Some(row) = self.subscriptions.get_mut(&id) else { return };
        if row.bytes_left / 2 < row.bytes_ranked && row.bytes_ranked > 0 {
            return;
        }
        row.bytes_ranked = row.bytes_left;
        let wants: Vec<u32> = row.wants.iter().copied().collect();
        wants.into_iter().for_each(|index| self.rerank(index, now));
    }

    /// Ranks a want by the best of its demands; waiting files move along with it.
    pub(crate) fn rerank(&mut self, index: u32, now: Timestamp) {
        let want = &self.wants[index];
        let mut best: Option<(usize, Rank, DemandTerms)> = None;
        for (subscription, wish) in want.demands.iter() {
            let Some(row) = self.subscriptions.get(&subscription) else { continue };
            let due = self.due(wish, row);
            let rank = Rank { due, created: wish.created, subscription, block: want.block };
            let level = if self.is_expedited(wish, row) { LEVELS - 1 } else { wish.level };
            if best.is_none_or(|(than, known, _)| (LEVELS - level, rank) < (LEVELS - than, known)) {
                best = Some((level, rank, *wish));
            }
        }
        let Some((level, mut rank, wish)) = best else { return self.rank_relay(index) };
        rank.due = shared_due(rank, 1 + self.onward_wants(want).count());
        let target = want.target;
        let lane = self.storages[target].target.lanes.lane(wish.party, level, &self.parties);
        let strategy = wish.strategy.unwrap_or(self.settings.strategy);
        if strategy != want.strategy || wish.party != want.party {
            self.requeue_waiting(index, wish.party, strategy, now);
        }
        let want = &self.wants[index];
        if lane != want.lane || rank != want.rank {
            self.move_want(index, lane, rank);
            self.wake(target);
        }
    }

    /// Wants that get their files by way of a relay want.
    fn onward_wants<'a>(&'a self, want: &'a Want) -> impl Iterator<Item = &'a u32> {
        want.onward_targets.iter().filter_map(|&target| self.want_of.get(&(want.block, target)))
    }

    /// Ranks a relay want as the first of the wants that it serves.
    fn rank_relay(&mut self, index: u32) {
        let want = &self.wants[index];
        let Some(mut rank) = self.onward_wants(want).map(|&want| self.wants[want].rank).min() else { return };
        rank.due = shared_due(rank, self.onward_wants(want).count());
        if want.relay && rank != want.rank {
            let (lane, target) = (want.lane, want.target);
            self.move_want(index, lane, rank);
            self.wake(target);
        }
    }

    /// Another party, or another way to choose sources: what waits is queued anew.
    fn requeue_waiting(&mut self, index: u32, party: u32, strategy: Strategy, now: Timestamp) {
        let waits = |transfer: &u32| self.transfers[*transfer].phase == Phase::Queued;
        let queued: Vec<u32> = self.wants[index].transfers.iter().copied().filter(waits).collect();
        queued.iter().for_each(|&transfer| self.dequeue(transfer));
        let want = &mut self.wants[index];
        want.party = party;
        want.strategy = strategy;
        queued.into_iter().for_each(|transfer| self.enqueue(transfer, now));
    }

    fn move_want(&mut self, index: u32, to: usize, rank: Rank) {
        let want = &mut self.wants[index];
        let from = std::mem::replace(&mut want.lane, to);
        let rank_before = std::mem::replace(&mut want.rank, rank);
        let asked = want.expanding.map_or(0, |(_, limit)| limit);
        let sources: Vec<u32> = want.queues.iter().map(|(source, _)| *source).collect();
        let target = &mut self.storages[want.target].target;
        let lanes = &mut target.lanes;
        lanes.move_queued(from, to, want.queued);
        lanes.count_in_memory(from, asked + want.live, false);
        lanes.count_in_memory(to, asked + want.live, true);
        if lanes.unlist_open(from, rank_before, index) {
            lanes.list_open(to, rank, index);
        }
        let class = lanes.class_mut(from);
        let left: Vec<u32> = sources
            .iter()
            .copied()
            .filter(|&source| class.remove_want(source, rank_before, index, true))
            .collect();
        class.live -= want.live;
        class.queued_bytes -= want.queued_bytes;
        class.bytes_left = class.bytes_left.saturating_sub(want.bytes_left);
        let class = lanes.class_mut(to);
        let entered: Vec<u32> =
            sources.iter().copied().filter(|&source| class.add_want(source, rank, index)).collect();
        class.live += want.live;
        class.queued_bytes += want.queued_bytes;
        class.bytes_left = class.bytes_left.saturating_add(want.bytes_left);
        // In this order, or else each would seem to have been away.
        entered.into_iter().for_each(|source| target.exclusive.add_waiting_lane(source));
        left.into_iter().for_each(|source| target.exclusive.remove_waiting_lane(source));
    }
}
