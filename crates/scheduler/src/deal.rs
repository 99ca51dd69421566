//! Leases: whether a target gets more work, from which source a file would come first, and the lease itself.
//! Which file is next is found in `pick`.
//!
//! Source. When would the file be there, behind what this source was given already? The earliest wins.
//!
//! Late choice. A target is given work for [`crate::Settings::lease_window`]; but a file that another target
//! is fetching just now, and will soon offer, is only taken when less than
//! [`crate::Settings::lease_window_low`] is left: so targets help each other, and none ever idles for it.

use std::cell::OnceCell;
use std::time::Duration;

use longhaul_model::{AttemptId, Epoch, Timestamp};
use longhaul_network::{Basis, IntakeRate, Link};

use crate::decision::{Candidate, Choice, Decision, Lease, Unusable};
use crate::event::SiteState;
use crate::fts3::{self, Optimizer};
use crate::scheduler::{Scheduler, Timer};
use crate::settings::{CANDIDATES_MAX, Rules};
use crate::state::{Leased, LinkState, Phase, Remembered, float, whole};
use crate::strategy::{Strategy, rank};

/// Why nothing can be leased to a target at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Barred {
    Unknown,
    NotWritable,
    Trouble,
    NotConnected,
    SiteDraining,
    SitePaused,
    ActiveIn {
        limit: u32,
    },
    /// It was full or read-only; tried again, once, at that time.
    NoRoom {
        until: Timestamp,
    },
}

/// What is known of a target while it is dealt to.
pub(crate) struct Low {
    /// What it took lately: asked for once.
    pub pace: IntakeRate,
    /// Whether little is left of what it holds: found out when it matters first, since that looks at all its
    /// links.
    runs: OnceCell<bool>,
}

/// A target without any news for so long is looked at again.
const LOOK_SILENT: Duration = Duration::from_secs(5);
/// What counts as held may have arrived so long ago and not be reported yet.
const REPORTED_S: f64 = 1.0;
/// What a failed attempt costs beside its time: the pause before the next.
const FAILURE_COST_S: f64 = 5.0;

impl Scheduler {
    pub(crate) fn deal(&mut self, target: u32, now: Timestamp) -> Option<Decision> {
        self.storages[target].target.starved = false;
        if self.barred(target, now).is_some() {
            return None;
        }
        let low = Low { pace: self.knowledge.intake_rate(self.storages[target].id), runs: OnceCell::new() };
        if self.has_enough(target, low.pace, now) || self.is_wide(target, low.pace, now) {
            self.look_when_silent(target, now);
            return None;
        }
        self.note_full_links(target, now);
        let Some((place, lane)) = self.pick(target, &low, now) else {
            if self.is_held_back(target, now) {
                return None; // Neither is there too little in memory.
            }
            let starved = self.runs_low(&low, target, now);
            let row = &mut self.storages[target].target;
            (row.looks_aside, row.starved) = (true, starved);
            self.refill.insert(target);
            return None;
        };
        if !self.link_shares.is_empty() {
            return self.deal_by_link(target, (place, lane), &low, now);
        }
        self.pay(target, lane, lane, self.transfers[place].size, low.pace);
        self.lease(place, now)
    }

    /// A target has enough as long as it comes: where nothing comes any more there is no news either, and
    /// nothing else would look again.
    fn look_when_silent(&mut self, target: u32, now: Timestamp) {
        let row = &mut self.storages[target].target;
        let next = now + LOOK_SILENT;
        if !row.looks_when_silent && next > now {
            row.looks_when_silent = true;
            self.set_timer(next, Timer::Silent(target));
        }
    }

    /// Whether a target is silent, and is looked at: else it is when it may be.
    pub(crate) fn look_at_silent(&mut self, target: u32, now: Timestamp) {
        let row = &mut self.storages[target].target;
        row.looks_when_silent = false;
        let at_work = row.links.values().filter(|link| link.files > 0);
        let Some(heard) = at_work.map(|link| link.heard).max() else { return };
        match now.since(heard) >= LOOK_SILENT {
            true => self.wake(target),
            false => self.look_when_silent(target, now),
        }
    }

    /// Whether a target gets no more work now.
    fn has_enough(&self, target: u32, pace: IntakeRate, now: Timestamp) -> bool {
        let leased = self.storages[target].target.leased.len() as u32;
        if self.settings.rules == Rules::Fts3 {
            return leased >= fts3::STORAGE_ACTIVE;
        }
        leased >= self.settings.lease_files_max || self.is_full(target, pace, self.settings.lease_window, now)
    }

    /// Whether a target takes even what others are fetching just now.
    pub(crate) fn runs_low(&self, low: &Low, target: u32, now: Timestamp) -> bool {
        *low.runs.get_or_init(|| {
            self.settings.rules == Rules::Fts3
                || !self.is_full(target, low.pace, self.settings.lease_window_low, now)
        })
    }

    /// Whether anything may be leased to a target at all.
    pub(crate) fn barred(&self, target: u32, now: Timestamp) -> Option<Barred> {
        let row = &self.storages[target];
        let site = &self.sites[row.site];
        if row.name.is_none() || site.info.is_none() {
            return Some(Barred::Unknown);
        }
        match site.state() {
            SiteState::Open => {}
            SiteState::Draining => return Some(Barred::SiteDraining),
            SiteState::Paused => return Some(Barred::SitePaused),
        }
        if row.trouble.is_some() {
            return Some(Barred::Trouble);
        }
        if !row.writable {
            return Some(Barred::NotWritable);
        }
        if !row.connected {
            return Some(Barred::NotConnected);
        }
        if !site.has_slot(true) {
            return Some(Barred::ActiveIn { limit: site.limit(true) });
        }
        row.target.room.allows(now).err().map(|until| Barred::NoRoom { until })
    }

    /// Whether a target holds work for so long.
    fn is_full(&self, target: u32, pace: IntakeRate, length: Duration, now: Timestamp) -> bool {
        let row = &self.storages[target];
        let seconds = length.as_secs_f64();
        let part = seconds / self.settings.lease_window.as_secs_f64().max(1e-3);
        let files = (pace.files_per_s * seconds).max(f64::from(self.settings.lease_files_min) * part);
        let files = (files as u32).min(self.settings.lease_files_max);
        let bytes = whole((pace.bytes_per_s * seconds).max(self.settings.lease_bytes_min as f64 * part));
        // What comes in time is a part of what is held: mostly that is too little already.
        let leased = row.target.leased.len() as u32;
        if leased < files && row.target.leased_bytes < bytes {
            return false;
        }
        let (files_held, bytes_held) = self.coming(target, seconds, now);
        let (files_held, bytes_held) = (files_held as u32, whole(bytes_held));
        files_held >= self.settings.lease_files_coming && (files_held >= files || bytes_held >= bytes)
    }

    /// Of what a target holds, files and bytes that can be there within so many seconds: a slow source that
    /// was given much must not keep the target from using the others.
    fn coming(&self, target: u32, seconds: f64, now: Timestamp) -> (f64, f64) {
        let least = self.settings.lease_files_always;
        let (mut files, mut bytes) = (0.0, 0.0);
        for link in self.storages[target].target.links.values() {
            if link.files == 0 {
                continue;
            }
            let given = float(link.bytes);
            // Where many files are needed for that rate, fewer bring less of it.
            let number = link.files_at_once(least);
            let many = (number > least).then(|| (f64::from(link.files) / f64::from(number)).min(1.0));
            let reach = many.map_or(seconds + REPORTED_S, |part| seconds * part);
            let soon = (link.rate_heard(now) * reach).min(given);
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
        if let Err(until) = row.reach.allows(now) {
            return Some(Unusable::Unreachable { until });
        }
        if let Some(limited) = self.limited(source, target, party, now) {
            return Some(limited);
        }
        if let Some(link) = self.storages[target].target.links.get(source) {
            if let Err(until) = link.reach.allows(now) {
                return Some(Unusable::Unreachable { until });
            }
            if self.link_full(source, target, link) {
                let bytes = u64::try_from(link.bytes).unwrap_or(u64::MAX);
                return Some(Unusable::WindowFull { files: link.files, bytes });
            }
        }
        // Last: who is told this waits for a slot and for nothing else.
        let others_wait = !site.wait_out.is_empty() && site.turn_out != Some(target);
        let limited = site.limit(false) != u32::MAX;
        (!site.has_slot(false) || limited && others_wait)
            .then(|| Unusable::ActiveOut { limit: site.limit(false) })
    }

    pub(crate) fn link_full(&self, source: u32, target: u32, link: &LinkState) -> bool {
        if self.settings.rules == Rules::Fts3 {
            let optimizer = self.optimizers.get(&(target, source));
            let slots = optimizer.map_or(fts3::UNDECIDED, Optimizer::slots);
            return link.files >= slots || self.storages[source].files_ahead >= fts3::STORAGE_ACTIVE;
        }
        let most = self.settings.lease_files_max / 4 * 3;
        let at_once = link.files_at_once(self.settings.lease_files_always);
        let enough = link.files >= at_once && link.bytes >= self.link_bytes(link);
        link.files >= most || enough
    }

    /// The work that a link is given, if that is enough files. What was never measured gets little.
    pub(crate) fn link_bytes(&self, link: &LinkState) -> u128 {
        let rate = if link.rate.shown.is_finite() { link.rate.rate } else { 0.0 };
        let bytes = rate * self.settings.lease_window.as_secs_f64();
        whole(bytes.max(self.settings.lease_bytes_min as f64))
    }

    /// Seconds until a file of `size` would be at the target, and the rate and failure share that this rests
    /// on.
    pub(crate) fn finish(&mut self, source: u32, target: u32, size: u64, now: Timestamp) -> (f64, f64, f64) {
        let (rate, failures, given) = match self.storages[target].target.links.get(source) {
            Some(link) if link.rate.is_fresh(now) => (link.rate.rate, link.rate.failure_share, link.bytes),
            known => {
                let given = known.map_or(0, |link| link.bytes);
                let (rate, failures) = self.ask_link_rate(source, target, now);
                (rate, failures, given)
            }
        };
        let total = self.source_total(source, now).max(rate);
        let own = (float(given) + size as f64) / rate;
        let shared = (float(self.storages[source].bytes_ahead) + size as f64) / total;
        let once = own.max(shared);
        let failures = failures.clamp(0.0, 0.95);
        (once / (1.0 - failures) + failures * FAILURE_COST_S, rate, failures)
    }

    pub(crate) fn link_rate(&mut self, source: u32, target: u32, now: Timestamp) -> (f64, f64) {
        match self.storages[target].target.links.get(source) {
            Some(link) if link.rate.is_fresh(now) => (link.rate.rate, link.rate.failure_share),
            _ => self.ask_link_rate(source, target, now),
        }
    }

    fn ask_link_rate(&mut self, source: u32, target: u32, now: Timestamp) -> (f64, f64) {
        let link = Link { source: self.storages[source].id, target: self.storages[target].id };
        let known = self.knowledge.rate_summary(link, now);
        let most = self.link_rate_limit(source, target).map_or(f64::INFINITY, |limit| limit as f64);
        let rate = known.bytes_per_s.min(most).max(1.0);
        let failure_share = known.failure_share;
        let measured = matches!(known.basis, Basis::Measured | Basis::Reserved);
        let shown = if measured { rate.max(known.rate_now) } else { f64::INFINITY };
        let row = self.storages[target].target.links.row(source);
        let lately = row.lately.at_most(now).max(1.0);
        let (rate, shown) = (rate.min(lately), shown.min(lately));
        row.rate = Remembered { rate, shown, failure_share, at: Some(now) };
        (rate, failure_share)
    }

    fn source_total(&mut self, source: u32, now: Timestamp) -> f64 {
        let row = &self.storages[source];
        if row.total.is_fresh(now) {
            return row.total.rate;
        }
        let mut rate = self.knowledge.end_rate(row.id, false, now).map_or(0.0, |total| total.bytes_per_s);
        let limit = self.sites[row.site].info.as_ref().and_then(|info| info.limits.out_bytes_per_s);
        for limit in [limit, self.source_rate_limit(source)].into_iter().flatten() {
            rate = rate.min(limit as f64);
        }
        self.storages[source].total = Remembered { rate, shown: rate, failure_share: 0.0, at: Some(now) };
        rate
    }

    /// Every source of a transfer with what it would take from there, the best usable one first.
    pub(crate) fn candidates(&mut self, place: u32, now: Timestamp) -> Vec<(Candidate, u32)> {
        let transfer = &self.transfers[place];
        let (target, size) = (transfer.target, transfer.size);
        let party = self.wants[transfer.want].party;
        let count = transfer.sources.len().min(CANDIDATES_MAX);
        let mut list = std::mem::take(&mut self.candidates);
        list.clear();
        for at in 0..count {
            let source = self.transfers[place].sources[at];
            let unusable = if source.rest_until > now {
                Some(Unusable::Resting { until: self.clock.outer(source.rest_until) })
            } else {
                self.unusable(source.storage, target, party, now).map(|why| self.outward(why))
            };
            let (finish, rate, failure_share) = self.finish(source.storage, target, size, now);
            let row = &self.storages[source.storage];
            let candidate = Candidate {
                storage: row.id,
                finish: Duration::from_secs_f64(finish.clamp(0.0, 1e9)),
                rate_bytes_per_s: rate,
                bytes_ahead: u64::try_from(row.bytes_ahead).unwrap_or(u64::MAX),
                failure_share,
                rank: self.rank_by_strategy(place, at, now),
                by_circuit: self.goes_by_circuit(source.storage, target),
                unusable,
            };
            list.push((candidate, source.storage));
        }
        list.sort_by_key(|(one, _)| (one.unusable.is_some(), one.finish, one.bytes_ahead, one.storage));
        list
    }

    fn rank_by_strategy(&self, place: u32, at: usize, now: Timestamp) -> f64 {
        let transfer = &self.transfers[place];
        match self.strategy_of(transfer) {
            Strategy::Best => 0.0,
            strategy => rank(strategy, &self.standing_of_source(transfer, at, now), transfer.size),
        }
    }

    /// Times as the caller counts them.
    pub(crate) fn outward(&self, why: Unusable) -> Unusable {
        match why {
            Unusable::Unreachable { until } => Unusable::Unreachable { until: self.clock.outer(until) },
            Unusable::LimitRate { of, bytes_per_s, until } => {
                Unusable::LimitRate { of, bytes_per_s, until: self.clock.outer(until) }
            }
            other => other,
        }
    }

    // ---- the lease itself ----------------------------------------------------------------------------

    pub(crate) fn lease(&mut self, place: u32, now: Timestamp) -> Option<Decision> {
        let mut candidates = self.candidates(place, now);
        let strategy = self.strategy_of(&self.transfers[place]);
        if strategy != Strategy::Best {
            let transfer = &self.transfers[place];
            let assigned = transfer.assigned()?;
            let at = candidates.iter().position(|(_, source)| *source == assigned)?;
            candidates[..=at].rotate_right(1);
        }
        let &(best, source) = candidates.first()?;
        let target = self.transfers[place].target;
        let agent = self.storages[target].agent?;
        let source_agent = self.storages[source].agent?;
        if best.unusable.is_some() {
            return None;
        }
        self.take_out(place);
        let _ = self.optimizer(target, source, now);
        let attempt = AttemptId(self.next_id(now));
        self.foresee(attempt, place, source, now);
        let party = self.wants[self.transfers[place].want].party;
        let transfer = &mut self.transfers[place];
        transfer.epoch += 1;
        let waited = now.since(transfer.since);
        let leased_before = self.storages[target].target.dealt - transfer.dealt_before;
        self.storages[target].target.dealt += 1;
        self.enter_lease(
            place,
            Leased {
                attempt,
                agent,
                source,
                party,
                limits: self.limits.edition(),
                turn: None,
                started: false,
                leased: Some(now),
                began: now,
                bytes_done: 0,
            },
            now,
        );
        self.end_needless_hops(place);
        self.storages[source].reach.started(attempt);
        let row = &mut self.storages[target].target;
        row.room.started(attempt);
        if let Some(link) = row.links.get_mut(source) {
            link.reach.started(attempt);
        }
        let in_order = candidates.iter().map(|(candidate, _)| *candidate).collect();
        self.candidates = candidates;
        let transfer = &self.transfers[place];
        let want = &self.wants[transfer.want];
        let chosen = self.clock.outer(now);
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
            priority: self.storages[target].target.lanes.level_of_turn(want.lane) as u8 + 1,
            try_number: transfer.tries.saturating_add(1),
            chosen,
            start_by: chosen + self.settings.lease_length,
            choice: Choice { strategy, candidates: in_order, waited, leased_before, link_weight: None },
        }))
    }

    /// Counts a lease everywhere; the transfer is in no queue.
    pub(crate) fn enter_lease(&mut self, place: u32, lease: Leased, now: Timestamp) {
        let transfer = &mut self.transfers[place];
        assert!(transfer.phase == Phase::New, "only what was taken out is leased");
        transfer.phase = Phase::Leased(lease);
        let (size, target) = (u128::from(transfer.size), transfer.target);
        self.count(place, true);
        self.by_attempt.insert(lease.attempt.0, place);
        let sent = self.storages[lease.source].sent;
        let row = &mut self.storages[target];
        if row.target.leased.is_empty() {
            row.target.at_once.begins(now);
        }
        row.target.leased.insert(place);
        row.target.leased_bytes += size;
        let link = row.target.links.row(lease.source);
        if link.files == 0 {
            link.heard = now;
            link.source_sent = sent;
            link.lately.begin(link.mark(now));
            link.at_once.begins(now);
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
        self.begin_thinking(now);
        self.begin_detours(now);
        self.count_limits(lease.source, target, lease.party, self.transfers[place].size, now);
        self.await_others(place, true, now);
    }

    /// Other targets that want the same file learn that it is (no longer) on its way to one of them.
    pub(crate) fn await_others(&mut self, place: u32, more: bool, now: Timestamp) {
        let row = self.transfers[place].file_row;
        for at in 0..self.files[row].transfers.len() {
            let other = self.files[row].transfers.get(at);
            if other == place {
                continue;
            }
            let awaited = self.transfers[other].awaited;
            let next = if more { awaited + 1 } else { awaited - 1 };
            let moves = (awaited == 0) != (next == 0) && self.transfers[other].phase == Phase::Queued;
            if moves {
                self.take_out(other);
            }
            self.transfers[other].awaited = next;
            if moves {
                self.place(other, now);
            }
        }
    }
}
