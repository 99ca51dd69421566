//! Second thoughts: a link became slow, and leases wait at their agent behind it. Those that would come much
//! sooner from elsewhere are asked back; what the agent has begun meanwhile it finishes, the rest it gives
//! back, and it is dealt again.
//!
//! No oscillation. The link has to be slow by what it shows just now and by what is believed of it; the gain
//! has to be large, in seconds and as a factor; what was asked back counts with the sources that it would go
//! to; what they have no room for now is asked back only as far as the slow link would not be given it now;
//! and no file is asked back again for a while.

use std::cmp::Reverse;
use std::time::Duration;

use longhaul_model::{AttemptId, Timestamp, TransferId};
use longhaul_network::Link;

use crate::decision::{Decision, GiveBack, Unusable};
use crate::scheduler::{Scheduler, Timer};
use crate::settings::Rules;
use crate::state::float;
use crate::strategy::Strategy;

/// How often links are looked at while something is leased: some reports' time, and short beside what is to
/// be gained.
const EVERY: Duration = Duration::from_secs(3);
/// From elsewhere it must come in this part of the time, and by so many seconds sooner.
const MUCH_SOONER: f64 = 0.5;
const SOONER_S: f64 = 5.0;
/// A file is not asked back again within this: by then what is believed of its sources has changed, or it is
/// on its way.
const AGAIN: Duration = Duration::from_secs(300);
/// Leases asked back of one link at a time: an agent holds seconds of work, and the next look is near.
const ASKED_MAX: usize = 200;

/// What a look at one link has asked back so far.
struct Asked {
    /// Bytes that are left on the link, without what is asked back.
    left: u128,
    /// By source: what it would get besides.
    added: Vec<(u32, u128)>,
}

impl Asked {
    fn added_to(&mut self, source: u32) -> &mut u128 {
        let at = self.added.iter().position(|(known, _)| *known == source).unwrap_or_else(|| {
            self.added.push((source, 0));
            self.added.len() - 1
        });
        &mut self.added[at].1
    }
}

impl Scheduler {
    /// Something is leased: from now on there may be second thoughts.
    pub(crate) fn begin_thinking(&mut self, now: Timestamp) {
        let next = now + EVERY;
        let wished = self.settings.second_thoughts && self.settings.rules == Rules::Ours;
        // At the end of time there is no next.
        if wished && !self.thinking && next > now {
            self.thinking = true;
            self.set_timer(next, Timer::SecondThoughts);
        }
    }

    pub(crate) fn think_again(&mut self, now: Timestamp) {
        self.thinking = false;
        let targets: Vec<u32> = self.storage_of.values().copied().collect();
        let mut any = false;
        for target in targets {
            if !self.storages[target].target.leased.is_empty() {
                any = true;
                self.think_of_target(target, now);
            }
        }
        if any {
            self.begin_thinking(now);
        }
    }

    fn think_of_target(&mut self, target: u32, now: Timestamp) {
        self.listen(target, now);
        let links = self.storages[target].target.links.iter();
        let waiting: Vec<u32> =
            links.filter(|(_, link)| link.files > link.moving).map(|(source, _)| source).collect();
        let mut slow = Vec::new();
        for source in waiting {
            self.link_rate(source, target, now);
            let link = self.storages[target].target.links.row(source);
            if float(link.bytes) > SOONER_S * link.rate_heard(now) {
                slow.push(source);
            }
        }
        if slow.is_empty() || self.barred(target, now).is_some() {
            return;
        }
        for source in slow {
            self.think_of_link(source, target, now);
        }
    }

    /// What the links with work have shown since the last time.
    fn listen(&mut self, target: u32, now: Timestamp) {
        let to = self.storages[target].id;
        // The links are taken out meanwhile, since their sources lie in the same table.
        let mut links = std::mem::take(&mut self.storages[target].target.links);
        for (source, link) in links.iter_mut().filter(|(_, link)| link.files > 0) {
            let from = self.storages[source].id;
            let believed = self.knowledge.rate(Link { source: from, target: to }, now).bytes_per_s;
            link.lately.look(link.mark(now), believed);
        }
        self.storages[target].target.links = links;
    }

    fn think_of_link(&mut self, source: u32, target: u32, now: Timestamp) {
        let (_, failures) = self.link_rate(source, target, now);
        let Some(link) = self.storages[target].target.links.get(source) else { return };
        let rate = (link.rate_heard(now) * (1.0 - failures.clamp(0.0, 0.95))).max(1.0);
        let own = self.link_bytes(link);
        let mut asked = Asked { left: link.bytes, added: Vec::new() };
        let waiting = self.waiting_at_agent(source, target);
        let mut count = 0;
        for place in waiting {
            let transfer = &self.transfers[place];
            let size = u128::from(transfer.size);
            let known = self.asked_back.get(&transfer.id).copied();
            if known.is_some_and(|(attempt, _)| Some(attempt) == transfer.lease().map(|lease| lease.attempt))
            {
                // The answer is on its way.
                asked.left = asked.left.saturating_sub(size);
                continue;
            }
            let here = float(asked.left) / rate;
            if here < SOONER_S || count >= ASKED_MAX {
                return;
            }
            if known.is_some_and(|(_, at)| now.since(at) < AGAIN) {
                continue;
            }
            let beyond = asked.left.saturating_sub(size) >= own;
            let Some((other, there)) = self.sooner(place, source, here, beyond, &mut asked, now) else {
                continue;
            };
            asked.left = asked.left.saturating_sub(size);
            *asked.added_to(other) += size;
            count += 1;
            self.ask_back(place, rate, here, (other, there), now);
        }
    }

    /// What waits at the agent, the last to begin first.
    fn waiting_at_agent(&self, source: u32, target: u32) -> Vec<u32> {
        let row = &self.storages[target].target;
        let mut waiting: Vec<(usize, Reverse<AttemptId>, u32)> = Vec::new();
        for &place in &row.leased {
            let Some(lease) = self.transfers[place].lease() else { continue };
            let want = &self.wants[self.transfers[place].want];
            if lease.source == source && !lease.started && want.strategy == Strategy::Best {
                waiting.push((row.lanes.level(want.lane), Reverse(lease.attempt), place));
            }
        }
        waiting.sort_unstable();
        waiting.into_iter().map(|(.., place)| place).collect()
    }

    /// The source from which a file would come much sooner than in `here` seconds, and when. `beyond`: the
    /// slow link has more than it would be given now, so that it gets nothing else in its place.
    fn sooner(
        &mut self,
        place: u32,
        source: u32,
        here: f64,
        beyond: bool,
        asked: &mut Asked,
        now: Timestamp,
    ) -> Option<(u32, f64)> {
        let transfer = &self.transfers[place];
        let (target, size) = (transfer.target, transfer.size);
        let party = self.wants[transfer.want].party;
        let mut best: Option<(u32, f64)> = None;
        for at in 0..self.transfers[place].sources.len() {
            let other = self.transfers[place].sources[at];
            if other.storage == source || other.rest_until > now {
                continue;
            }
            let more = *asked.added_to(other.storage);
            match self.unusable(other.storage, target, party, now) {
                None if more == 0 || beyond => {}
                Some(Unusable::WindowFull { .. }) if beyond => {}
                None if self.has_room_for(other.storage, target, more) => {}
                _ => continue,
            }
            let with = size.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
            let (there, ..) = self.finish(other.storage, target, with, now);
            let much = there < MUCH_SOONER * here && here - there >= SOONER_S;
            if much && best.is_none_or(|(_, time)| there < time) {
                best = Some((other.storage, there));
            }
        }
        best
    }

    /// Whether a link that can be used now still can with so much more.
    fn has_room_for(&self, source: u32, target: u32, more: u128) -> bool {
        let link = self.storages[target].target.links.get(source);
        link.is_none_or(|link| link.bytes + more < self.link_bytes(link))
    }

    fn ask_back(&mut self, place: u32, rate: f64, here: f64, (other, there): (u32, f64), now: Timestamp) {
        let transfer = &self.transfers[place];
        let Some(lease) = transfer.lease() else { return };
        let seconds = |value: f64| Duration::from_secs_f64(value.clamp(0.0, 1e9));
        self.asked_back.insert(transfer.id, (lease.attempt, now));
        self.out.push_back(Decision::GiveBack(GiveBack {
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

    /// The agent has given a lease back: nothing was tried, and what its turn cost is returned.
    pub(crate) fn given_back(&mut self, place: u32, now: Timestamp) {
        let Some(lease) = self.transfers[place].lease() else { return };
        self.back_to_queue(place, now);
        self.refund(place, &lease, 0);
    }

    pub(crate) fn forget_thoughts(&mut self, transfer: TransferId) {
        self.asked_back.remove(&transfer);
    }
}
