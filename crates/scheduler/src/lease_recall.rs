//! Lease recall (straggler mitigation): leases that wait at an agent behind a link that became slow, and
//! would arrive much sooner from another source, are recalled. The agent finishes what it has begun and
//! returns the rest, which is dispatched again. Compare speculative execution of stragglers in MapReduce
//! (Dean, Ghemawat, OSDI 2004); here nothing runs twice.
//!
//! No oscillation: the link has to be slow both by its recent rate and by its estimate; the gain has to be
//! large, in seconds and as a factor; recalled leases count as load of the sources they would go to; what
//! those have no room for is recalled only as far as the slow link would not be given it now; and no file is
//! recalled again for a while.

use std::cmp::Reverse;
use std::time::Duration;

use longhaul_model::{AttemptId, Timestamp, TransferId};
use longhaul_network::Link;

use crate::decision::{Decision, LeaseRecall, Unusable};
use crate::scheduler::{Scheduler, Timer};
use crate::settings::Rules;
use crate::state::to_f64;
use crate::strategy::Strategy;

/// Links are checked this often while something is leased: the time of a few reports, and short beside the
/// gain.
const RECALL_CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// Another source must deliver the file within this share of the time.
const RECALL_TIME_SHARE_MAX: f64 = 0.5;
/// Another source must deliver the file at least this many seconds sooner.
const RECALL_GAIN_S_MIN: f64 = 5.0;
/// A file is not recalled again within this: by then the estimates of its sources have changed, or it is on
/// its way.
const RECALL_AGAIN_INTERVAL: Duration = Duration::from_secs(300);
/// Leases recalled from one link per check: an agent holds seconds of work, and the next check is near.
const RECALLS_PER_LINK_MAX: usize = 200;

/// Leases recalled from one link in one check.
struct LinkRecalls {
    /// Bytes that stay on the link.
    left: u128,
    /// Bytes that each other source would get in addition.
    added: Vec<(u32, u128)>,
}

impl LinkRecalls {
    fn added_bytes(&mut self, source: u32) -> &mut u128 {
        let at = self.added.iter().position(|(known, _)| *known == source).unwrap_or_else(|| {
            self.added.push((source, 0));
            self.added.len() - 1
        });
        &mut self.added[at].1
    }
}

impl Scheduler {
    /// Arms the recall timer, as something is leased.
    pub(crate) fn arm_recall_timer(&mut self, now: Timestamp) {
        let next = now + RECALL_CHECK_INTERVAL;
        let wished = self.settings.lease_recall && self.settings.rules == Rules::Ours;
        // At the maximum of the clock there is no next time.
        if wished && !self.recall_timer_set && next > now {
            self.recall_timer_set = true;
            self.set_timer(next, Timer::LeaseRecall);
        }
    }

    pub(crate) fn recall_slow_leases(&mut self, now: Timestamp) {
        self.recall_timer_set = false;
        let targets: Vec<u32> = self.storage_of.values().copied().collect();
        let mut any = false;
        for target in targets {
            if !self.storages[target].target.leased.is_empty() {
                any = true;
                self.recall_at_target(target, now);
            }
        }
        if any {
            self.arm_recall_timer(now);
        }
    }

    fn recall_at_target(&mut self, target: u32, now: Timestamp) {
        self.update_recent_rates(target, now);
        let links = self.storages[target].target.links.iter();
        let waiting: Vec<u32> =
            links.filter(|(_, link)| link.files > link.moving).map(|(source, _)| source).collect();
        let mut slow = Vec::new();
        for source in waiting {
            self.link_rate(source, target, now);
            let link = self.storages[target].target.links.row(source);
            if to_f64(link.bytes) > RECALL_GAIN_S_MIN * link.plausible_rate(now) {
                slow.push(source);
            }
        }
        if slow.is_empty() || self.target_unusable(target, now).is_some() {
            return;
        }
        for source in slow {
            self.recall_on_link(source, target, now);
        }
    }

    /// Updates the recent rates of links with work.
    fn update_recent_rates(&mut self, target: u32, now: Timestamp) {
        let to = self.storages[target].id;
        // The links are taken out meanwhile, since their sources lie in the same table.
        let mut links = std::mem::take(&mut self.storages[target].target.links);
        for (source, link) in links.iter_mut().filter(|(_, link)| link.files > 0) {
            let from = self.storages[source].id;
            let believed = self.knowledge.rate(Link { source: from, target: to }, now).bytes_per_s;
            link.recent_rate.update(link.mark(now), believed);
        }
        self.storages[target].target.links = links;
    }

    fn recall_on_link(&mut self, source: u32, target: u32, now: Timestamp) {
        let (_, failures) = self.link_rate(source, target, now);
        let Some(link) = self.storages[target].target.links.get(source) else { return };
        let rate = (link.plausible_rate(now) * (1.0 - failures.clamp(0.0, 0.95))).max(1.0);
        let own = self.link_bytes(link);
        let mut asked = LinkRecalls { left: link.bytes, added: Vec::new() };
        let waiting = self.unstarted_leases(source, target);
        let mut count = 0;
        for index in waiting {
            let transfer = &self.transfers[index];
            let size = u128::from(transfer.size);
            let known = self.recalled.get(&transfer.id).copied();
            if known.is_some_and(|(attempt, _)| Some(attempt) == transfer.lease().map(|lease| lease.attempt))
            {
                // The answer is on its way.
                asked.left = asked.left.saturating_sub(size);
                continue;
            }
            let here = to_f64(asked.left) / rate;
            if here < RECALL_GAIN_S_MIN || count >= RECALLS_PER_LINK_MAX {
                return;
            }
            if known.is_some_and(|(_, at)| now.since(at) < RECALL_AGAIN_INTERVAL) {
                continue;
            }
            let beyond = asked.left.saturating_sub(size) >= own;
            let Some((other, there)) = self.faster_source(index, source, here, beyond, &mut asked, now)
            else {
                continue;
            };
            asked.left = asked.left.saturating_sub(size);
            *asked.added_bytes(other) += size;
            count += 1;
            self.recall_lease(index, rate, here, (other, there), now);
        }
    }

    /// Leases that wait at the agent, last in its order first.
    fn unstarted_leases(&self, source: u32, target: u32) -> Vec<u32> {
        let row = &self.storages[target].target;
        let mut waiting: Vec<(usize, Reverse<AttemptId>, u32)> = Vec::new();
        for &index in &row.leased {
            let Some(lease) = self.transfers[index].lease() else { continue };
            let want = &self.wants[self.transfers[index].want];
            if lease.source == source && !lease.started && want.strategy == Strategy::Best {
                waiting.push((row.lanes.level(want.lane), Reverse(lease.attempt), index));
            }
        }
        waiting.sort_unstable();
        waiting.into_iter().map(|(.., index)| index).collect()
    }

    /// A source that would deliver a file much sooner than in `here` seconds, and when. `beyond`: the slow
    /// link
    /// has more than it would be given now, so that it gets nothing in place of the file.
    fn faster_source(
        &mut self,
        index: u32,
        source: u32,
        here: f64,
        beyond: bool,
        asked: &mut LinkRecalls,
        now: Timestamp,
    ) -> Option<(u32, f64)> {
        let transfer = &self.transfers[index];
        let (target, size) = (transfer.target, transfer.size);
        let party = self.wants[transfer.want].party;
        let mut best: Option<(u32, f64)> = None;
        for at in 0..self.transfers[index].sources.len() {
            let other = self.transfers[index].sources[at];
            if other.storage == source || other.backoff_until > now {
                continue;
            }
            let more = *asked.added_bytes(other.storage);
            match self.unusable(other.storage, target, party, now) {
                None if more == 0 || beyond => {}
                Some(Unusable::WindowFull { .. }) if beyond => {}
                None if self.has_room_for(other.storage, target, more) => {}
                _ => continue,
            }
            let with = size.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
            let (there, ..) = self.expected_finish(other.storage, target, with, now);
            let much = there < RECALL_TIME_SHARE_MAX * here && here - there >= RECALL_GAIN_S_MIN;
            if much && best.is_none_or(|(_, time)| there < time) {
                best = Some((other.storage, there));
            }
        }
        best
    }

    /// Whether a usable link stays usable with this much more work.
    fn has_room_for(&self, source: u32, target: u32, more: u128) -> bool {
        let link = self.storages[target].target.links.get(source);
        link.is_none_or(|link| link.bytes + more < self.link_bytes(link))
    }

    fn recall_lease(&mut self, index: u32, rate: f64, here: f64, (other, there): (u32, f64), now: Timestamp) {
        let transfer = &self.transfers[index];
        let Some(lease) = transfer.lease() else { return };
        let seconds = |value: f64| Duration::from_secs_f64(value.clamp(0.0, 1e9));
        self.recalled.insert(transfer.id, (lease.attempt, now));
        self.out.push_back(Decision::Recall(LeaseRecall {
            transfer: transfer.id,
            attempt: lease.attempt,
            agent: lease.agent,
            source: self.storages[lease.source].id,
            rate_bytes_per_s: rate,
            finish: seconds(here),
            other: self.storages[other].id,
            other_finish: seconds(there),
        }));
    }

    /// The agent has returned a lease: nothing was tried, and the cost of its turn is refunded.
    pub(crate) fn lease_returned(&mut self, index: u32, now: Timestamp) {
        let Some(lease) = self.transfers[index].lease() else { return };
        self.requeue_leased(index, now);
        self.refund(index, &lease, 0);
    }

    pub(crate) fn forget_recall(&mut self, transfer: TransferId) {
        self.recalled.remove(&transfer);
    }
}
