//! Leases: whether a target gets more work, from which source a file would arrive first, and the lease
//! itself. Which file is next is decided in `pick`.
//!
//! Source selection: the earliest expected finish wins, behind what the source was given already.
//!
//! Late binding: a target is given work for [`crate::Settings::lease_window`]. A file that another target is
//! fetching right now, and will soon offer, is taken only when less than
//! [`crate::Settings::lease_window_low`] of work is left. So targets help each other, and none idles for it.

use std::cell::OnceCell;
use std::time::Duration;

use longhaul_model::{AttemptId, Epoch, Timestamp};
use longhaul_network::{Basis, IntakeRate, Link};

use crate::decision::{Candidate, Choice, Decision, Lease, Unusable};
use crate::event::SiteState;
use crate::fts3::{self, Optimizer};
use crate::scheduler::{Scheduler, Timer};
use crate::settings::{CANDIDATES_MAX, Rules};
use crate::state::{ActiveLease, CachedRate, LinkState, Phase, to_f64, to_u128};
use crate::strategy::{Strategy, rank_source};

/// Why nothing can be leased to a target at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TargetUnusable {
    Unknown,
    NotWritable,
    InTrouble,
    NotConnected,
    SiteDraining,
    SitePaused,
    AttemptsInFull {
        limit: u32,
    },
    /// It was full or read-only; tried again, once, at that time.
    NoRoom {
        until: Timestamp,
    },
}

/// A target's intake rate, and whether its work runs low, cached for one dispatch.
pub(crate) struct TargetBacklog {
    /// Rate at which the target took files recently.
    pub pace: IntakeRate,
    /// Whether little work is left; computed on first use, since that visits all links.
    is_low: OnceCell<bool>,
}

/// A target without any news for this long is checked again, since nothing else would.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes may have arrived for this long without being reported yet.
const REPORT_DELAY_S: f64 = 1.0;
/// Cost of a failed attempt besides its time: the pause before the next.
const FAILURE_COST_S: f64 = 5.0;

impl Scheduler {
    pub(crate) fn dispatch(&mut self, target: u32, now: Timestamp) -> Option<Decision> {
        self.storages[target].target.starved = false;
        if self.target_unusable(target, now).is_some() {
            return None;
        }
        let backlog = TargetBacklog {
            pace: self.knowledge.intake_rate(self.storages[target].id),
            is_low: OnceCell::new(),
        };
        if self.has_enough(target, backlog.pace, now) || self.is_saturated(target, backlog.pace, now) {
            self.arm_silence_timer(target, now);
            return None;
        }
        self.note_full_links(target, now);
        let Some((index, lane)) = self.pick(target, &backlog, now) else {
            if self.is_held_back(target, now) {
                return None; // Neither is there too little in memory.
            }
            let starved = self.runs_low(&backlog, target, now);
            let row = &mut self.storages[target].target;
            (row.samples_subscriptions, row.starved) = (true, starved);
            self.refill.insert(target);
            return None;
        };
        if !self.link_shares.is_empty() {
            return self.dispatch_by_link_shares(target, (index, lane), &backlog, now);
        }
        self.pay(target, lane, lane, self.transfers[index].size, backlog.pace);
        self.lease(index, now)
    }

    /// Arms a check for a target with enough work: should nothing arrive any more, no event would wake it.
    fn arm_silence_timer(&mut self, target: u32, now: Timestamp) {
        let row = &mut self.storages[target].target;
        let next = now + SILENCE_CHECK_INTERVAL;
        if !row.silence_timer_set && next > now {
            row.silence_timer_set = true;
            self.set_timer(next, Timer::Silence(target));
        }
    }

    /// Wakes a target from which nothing has arrived for a while; otherwise checks again later.
    pub(crate) fn check_silence(&mut self, target: u32, now: Timestamp) {
        let row = &mut self.storages[target].target;
        row.silence_timer_set = false;
        let at_work = row.links.values().filter(|link| link.files > 0);
        let Some(heard) = at_work.map(|link| link.last_arrival).max() else { return };
        match now.since(heard) >= SILENCE_CHECK_INTERVAL {
            true => self.wake(target),
            false => self.arm_silence_timer(target, now),
        }
    }

    /// Whether a target gets no more work now.
    fn has_enough(&self, target: u32, pace: IntakeRate, now: Timestamp) -> bool {
        let leased = self.storages[target].target.leased.len() as u32;
        if self.settings.rules == Rules::Fts3 {
            return leased >= fts3::STORAGE_ACTIVE_MAX;
        }
        leased >= self.settings.lease_files_max
            || self.holds_work_for(target, pace, self.settings.lease_window, now)
    }

    /// Whether a target is so low on work that it takes even files that others are fetching.
    pub(crate) fn runs_low(&self, backlog: &TargetBacklog, target: u32, now: Timestamp) -> bool {
        *backlog.is_low.get_or_init(|| {
            self.settings.rules == Rules::Fts3
                || !self.holds_work_for(target, backlog.pace, self.settings.lease_window_low, now)
        })
    }

    /// Why nothing may be leased to a target at all, if so.
    pub(crate) fn target_unusable(&self, target: u32, now: Timestamp) -> Option<TargetUnusable> {
        let row = &self.storages[target];
        let site = &self.sites[row.site];
        if row.name.is_none() || site.info.is_none() {
            return Some(TargetUnusable::Unknown);
        }
        match site.state() {
            SiteState::Open => {}
            SiteState::Draining => return Some(TargetUnusable::SiteDraining),
            SiteState::Paused => return Some(TargetUnusable::SitePaused),
        }
        if row.trouble.is_some() {
            return Some(TargetUnusable::InTrouble);
        }
        if !row.writable {
            return Some(TargetUnusable::NotWritable);
        }
        if !row.connected {
            return Some(TargetUnusable::NotConnected);
        }
        if !site.has_slot(true) {
            return Some(TargetUnusable::AttemptsInFull { limit: site.limit(true) });
        }
        row.target.room_breaker.allows(now).err().map(|until| TargetUnusable::NoRoom { until })
    }

    /// Whether a target holds work for this length of time.
    fn holds_work_for(&self, target: u32, pace: IntakeRate, length: Duration, now: Timestamp) -> bool {
        let row = &self.storages[target];
        let seconds = length.as_secs_f64();
        let part = seconds / self.settings.lease_window.as_secs_f64().max(1e-3);
        let files = (pace.files_per_s * seconds).max(f64::from(self.settings.lease_files_min) * part);
        let files = (files as u32).min(self.settings.lease_files_max);
        let bytes = to_u128((pace.bytes_per_s * seconds).max(self.settings.lease_bytes_min as f64 * part));
        // What comes in time is a part of what is held: mostly that is too little already.
        let leased = row.target.leased.len() as u32;
        if leased < files && row.target.leased_bytes < bytes {
            return false;
        }
        let (files_held, bytes_held) = self.arriving_within(target, seconds, now);
        let (files_held, bytes_held) = (files_held as u32, to_u128(bytes_held));
        files_held >= self.settings.lease_files_coming && (files_held >= files || bytes_held >= bytes)
    }

    /// Leased files and bytes that can arrive within `seconds`: a slow source with much work must not keep
    /// the target from using the others.
    fn arriving_within(&self, target: u32, seconds: f64, now: Timestamp) -> (f64, f64) {
        let least = self.settings.lease_files_always;
        let (mut files, mut bytes) = (0.0, 0.0);
        for link in self.storages[target].target.links.values() {
            if link.files == 0 {
                continue;
            }
            let given = to_f64(link.bytes);
            // Where many files are needed for that rate, fewer bring less of it.
            let number = link.concurrency_limit(least);
            let many = (number > least).then(|| (f64::from(link.files) / f64::from(number)).min(1.0));
            let reach = many.map_or(seconds + REPORT_DELAY_S, |part| seconds * part);
            let soon = (link.plausible_rate(now) * reach).min(given);
            files += f64::from(link.files) * if given > 0.0 { soon / given } else { 1.0 };
            bytes += soon;
        }
        (files, bytes)
    }

    // ---- source --------------------------------------------------------------------------------------

    /// Whether a storage could be read from for a while to come.
    pub(crate) fn may_serve(&self, source: u32) -> bool {
        let row = &self.storages[source];
        row.name.is_some() && row.connected && self.sites[row.site].state() == SiteState::Open
    }

    /// Why nothing of a party can be leased over a link now.
    pub(crate) fn unusable(&self, source: u32, target: u32, party: u32, now: Timestamp) -> Option<Unusable> {
        let row = &self.storages[source];
        if row.name.is_none() {
            return Some(Unusable::Unknown);
        }
        if !self.is_link(source, target) {
            return Some(Unusable::NoLink);
        }
        if !self.commissioned(source, target, party) {
            return Some(Unusable::NotCommissioned);
        }
        if self.lacks_circuit(source, target, party) {
            return Some(Unusable::NoCircuit);
        }
        let site = &self.sites[row.site];
        match site.state() {
            SiteState::Open => {}
            SiteState::Draining => return Some(Unusable::SiteDraining),
            SiteState::Paused => return Some(Unusable::SitePaused),
        }
        if !row.connected {
            return Some(Unusable::NotConnected);
        }
        if let Err(until) = row.reach_breaker.allows(now) {
            return Some(Unusable::Unreachable { until });
        }
        if let Some(limited) = self.limited(source, target, party, now) {
            return Some(limited);
        }
        if let Some(link) = self.storages[target].target.links.get(source) {
            if let Err(until) = link.reach_breaker.allows(now) {
                return Some(Unusable::Unreachable { until });
            }
            if self.link_full(source, target, link) {
                let bytes = u64::try_from(link.bytes).unwrap_or(u64::MAX);
                return Some(Unusable::WindowFull { files: link.files, bytes });
            }
        }
        // Last: who is told this waits for a slot and for nothing else.
        let others_wait = !site.slot_waiters.is_empty() && site.next_waiter != Some(target);
        let limited = site.limit(false) != u32::MAX;
        (!site.has_slot(false) || limited && others_wait)
            .then(|| Unusable::ActiveOut { limit: site.limit(false) })
    }

    pub(crate) fn link_full(&self, source: u32, target: u32, link: &LinkState) -> bool {
        if self.settings.rules == Rules::Fts3 {
            let optimizer = self.optimizers.get(&(target, source));
            let slots = optimizer.map_or(fts3::SLOTS_INITIAL, Optimizer::slots);
            return link.files >= slots || self.storages[source].files_ahead >= fts3::STORAGE_ACTIVE_MAX;
        }
        let most = self.settings.lease_files_max / 4 * 3;
        let at_once = link.concurrency_limit(self.settings.lease_files_always);
        let enough = link.files >= at_once && link.bytes >= self.link_bytes(link);
        link.files >= most || enough
    }

    /// The work that a link is given, if that is enough files. What was never measured gets little.
    pub(crate) fn link_bytes(&self, link: &LinkState) -> u128 {
        let rate = if link.rate.rate_max.is_finite() { link.rate.rate } else { 0.0 };
        let bytes = rate * self.settings.lease_window.as_secs_f64();
        to_u128(bytes.max(self.settings.lease_bytes_min as f64))
    }

    /// Seconds until a file of `size` would be at the target, and the rate and failure share that this rests
    /// on.
    pub(crate) fn expected_finish(
        &mut self,
        source: u32,
        target: u32,
        size: u64,
        now: Timestamp,
    ) -> (f64, f64, f64) {
        let (rate, failures, given) = match self.storages[target].target.links.get(source) {
            Some(link) if link.rate.is_fresh(now) => (link.rate.rate, link.rate.failure_share, link.bytes),
            known => {
                let given = known.map_or(0, |link| link.bytes);
                let (rate, failures) = self.refresh_link_rate(source, target, now);
                (rate, failures, given)
            }
        };
        let total = self.source_rate(source, now).max(rate);
        let own = (to_f64(given) + size as f64) / rate;
        let shared = (to_f64(self.storages[source].bytes_ahead) + size as f64) / total;
        let once = own.max(shared);
        let failures = failures.clamp(0.0, 0.95);
        (once / (1.0 - failures) + failures * FAILURE_COST_S, rate, failures)
    }

    pub(crate) fn link_rate(&mut self, source: u32, target: u32, now: Timestamp) -> (f64, f64) {
        match self.storages[target].target.links.get(source) {
            Some(link) if link.rate.is_fresh(now) => (link.rate.rate, link.rate.failure_share),
            _ => self.refresh_link_rate(source, target, now),
        }
    }

    fn refresh_link_rate(&mut self, source: u32, target: u32, now: Timestamp) -> (f64, f64) {
        let link = Link { source: self.storages[source].id, target: self.storages[target].id };
        let known = self.knowledge.rate_summary(link, now);
        let most = self.link_rate_limit(source, target).map_or(f64::INFINITY, |limit| limit as f64);
        let rate = known.bytes_per_s.min(most).max(1.0);
        let failure_share = known.failure_share;
        let measured = matches!(known.basis, Basis::Measured | Basis::Reserved);
        let shown = if measured { rate.max(known.rate_now) } else { f64::INFINITY };
        let row = self.storages[target].target.links.row(source);
        let lately = row.recent_rate.upper_bound(now).max(1.0);
        let (rate, shown) = (rate.min(lately), shown.min(lately));
        row.rate = CachedRate { rate, rate_max: shown, failure_share, at: Some(now) };
        (rate, failure_share)
    }

    fn source_rate(&mut self, source: u32, now: Timestamp) -> f64 {
        let row = &self.storages[source];
        if row.total.is_fresh(now) {
            return row.total.rate;
        }
        let mut rate = self.knowledge.end_rate(row.id, false, now).map_or(0.0, |total| total.bytes_per_s);
        if let Some(limit) = self.source_rate_limit(source) {
            rate = rate.min(limit as f64);
        }
        self.storages[source].total = CachedRate { rate, rate_max: rate, failure_share: 0.0, at: Some(now) };
        rate
    }

    /// Every source of a transfer with what it would take from there, the best usable one first.
    pub(crate) fn candidates(&mut self, index: u32, now: Timestamp) -> Vec<(Candidate, u32)> {
        let transfer = &self.transfers[index];
        let (target, size) = (transfer.target, transfer.size);
        let party = self.wants[transfer.want].party;
        let count = transfer.sources.len().min(CANDIDATES_MAX);
        let mut list = std::mem::take(&mut self.candidates);
        list.clear();
        for at in 0..count {
            let source = self.transfers[index].sources[at];
            let unusable = if source.backoff_until > now {
                Some(Unusable::InBackoff { until: self.clock.caller_time(source.backoff_until) })
            } else {
                self.unusable(source.storage, target, party, now).map(|why| self.to_caller_times(why))
            };
            let (finish, rate, failure_share) = self.expected_finish(source.storage, target, size, now);
            let row = &self.storages[source.storage];
            let candidate = Candidate {
                storage: row.id,
                finish: Duration::from_secs_f64(finish.clamp(0.0, 1e9)),
                rate_bytes_per_s: rate,
                bytes_ahead: u64::try_from(row.bytes_ahead).unwrap_or(u64::MAX),
                failure_share,
                rank: self.rank_by_strategy(index, at, now),
                by_circuit: self.goes_by_circuit(source.storage, target),
                unusable,
            };
            list.push((candidate, source.storage));
        }
        list.sort_by_key(|(one, _)| (one.unusable.is_some(), one.finish, one.bytes_ahead, one.storage));
        list
    }

    fn rank_by_strategy(&self, index: u32, at: usize, now: Timestamp) -> f64 {
        let transfer = &self.transfers[index];
        match self.strategy_of(transfer) {
            Strategy::Best => 0.0,
            strategy => rank_source(strategy, &self.source_stats(transfer, at, now), transfer.size),
        }
    }

    /// Converts the times in a reason to the caller's clock.
    pub(crate) fn to_caller_times(&self, why: Unusable) -> Unusable {
        match why {
            Unusable::Unreachable { until } => Unusable::Unreachable { until: self.clock.caller_time(until) },
            Unusable::LimitRate { of, bytes_per_s, until } => {
                Unusable::LimitRate { of, bytes_per_s, until: self.clock.caller_time(until) }
            }
            other => other,
        }
    }

    // ---- the lease itself ----------------------------------------------------------------------------

    pub(crate) fn lease(&mut self, index: u32, now: Timestamp) -> Option<Decision> {
        let mut candidates = self.candidates(index, now);
        let strategy = self.strategy_of(&self.transfers[index]);
        if strategy != Strategy::Best {
            let transfer = &self.transfers[index];
            let assigned = transfer.assigned()?;
            let at = candidates.iter().position(|(_, source)| *source == assigned)?;
            candidates[..=at].rotate_right(1);
        }
        let &(best, source) = candidates.first()?;
        let target = self.transfers[index].target;
        let agent = self.storages[target].agent?;
        let source_agent = self.storages[source].agent?;
        if best.unusable.is_some() {
            return None;
        }
        self.dequeue(index);
        let _ = self.optimizer(target, source, now);
        let attempt = AttemptId(self.next_id(now));
        self.record_forecast(attempt, index, source, now);
        let party = self.wants[self.transfers[index].want].party;
        let transfer = &mut self.transfers[index];
        transfer.epoch += 1;
        let waited = now.since(transfer.since);
        let leased_before = self.storages[target].target.leases_issued - transfer.leases_issued_before;
        self.storages[target].target.leases_issued += 1;
        self.record_lease(
            index,
            ActiveLease {
                attempt,
                agent,
                source,
                party,
                limits: self.limits.version(),
                charged_lane: None,
                started: false,
                leased: Some(now),
                began: now,
                bytes_done: 0,
            },
            now,
        );
        self.end_unneeded_hops(index);
        self.storages[source].reach_breaker.record_start(attempt);
        let row = &mut self.storages[target].target;
        row.room_breaker.record_start(attempt);
        if let Some(link) = row.links.get_mut(source) {
            link.reach_breaker.record_start(attempt);
        }
        let in_order = candidates.iter().map(|(candidate, _)| *candidate).collect();
        self.candidates = candidates;
        let transfer = &self.transfers[index];
        let want = &self.wants[transfer.want];
        let chosen = self.clock.caller_time(now);
        Some(Decision::Lease(Lease {
            transfer: transfer.id,
            attempt,
            epoch: Epoch(transfer.epoch),
            file: transfer.file,
            block: want.block,
            size: transfer.size,
            source: self.storages[source].id,
            source_agent,
            target: self.storages[target].id,
            agent,
            priority: self.storages[target].target.lanes.agent_level(want.lane) as u8 + 1,
            try_number: transfer.tries.saturating_add(1),
            chosen,
            start_by: chosen + self.settings.lease_length,
            choice: Choice { strategy, candidates: in_order, waited, leased_before, link_weight: None },
        }))
    }

    /// Counts a lease everywhere; the transfer is in no queue.
    pub(crate) fn record_lease(&mut self, index: u32, lease: ActiveLease, now: Timestamp) {
        let transfer = &mut self.transfers[index];
        assert!(transfer.phase == Phase::New, "only what was taken out is leased");
        transfer.phase = Phase::Leased(lease);
        let (size, target) = (u128::from(transfer.size), transfer.target);
        self.count(index, true);
        let want = &mut self.wants[self.transfers[index].want];
        want.leased += 1;
        want.attempts_since.get_or_insert(now);
        self.by_attempt.insert(lease.attempt.0, index);
        let sent = self.storages[lease.source].bytes_sent;
        let row = &mut self.storages[target];
        if row.target.leased.is_empty() {
            row.target.concurrency.work_begins(now);
        }
        row.target.leased.insert(index);
        row.target.leased_bytes += size;
        let link = row.target.links.row(lease.source);
        if link.files == 0 {
            link.last_arrival = now;
            link.source_bytes_sent = sent;
            link.recent_rate.restart(link.mark(now));
            link.concurrency.work_begins(now);
        }
        link.files += 1;
        link.bytes += size;
        self.sites[row.site].active_in += 1;
        let source = &mut self.storages[lease.source];
        source.bytes_ahead += size;
        source.files_ahead += 1;
        self.sites[source.site].active_out += 1;
        let link = Link { source: self.storages[lease.source].id, target: self.storages[target].id };
        self.knowledge.attempt_began(link, now);
        self.arm_recall_timer(now);
        self.arm_detour_timer(now);
        self.count_limits(lease.source, target, lease.party, self.transfers[index].size, now);
        self.update_awaited(index, true, now);
    }

    /// Tells other targets that want the same file that it is, or no longer is, on its way to one of them.
    pub(crate) fn update_awaited(&mut self, index: u32, more: bool, now: Timestamp) {
        let row = self.transfers[index].file_row;
        for at in 0..self.files[row].transfers.len() {
            let other = self.files[row].transfers.get(at);
            if other == index {
                continue;
            }
            let awaited = self.transfers[other].awaited;
            let next = if more { awaited + 1 } else { awaited - 1 };
            let moves = (awaited == 0) != (next == 0) && self.transfers[other].phase == Phase::Queued;
            if moves {
                self.dequeue(other);
            }
            self.transfers[other].awaited = next;
            if moves {
                self.enqueue(other, now);
            }
        }
    }
}
