//! Leases: which file of which priority a target gets next, and from which source.
//!
//! Order. The highest priority that waits goes first; of every [`crate::Settings::relief`] bytes of a target one goes
//! to the lower priorities by turns, so that none starves. Within a priority: age, then block by block. A file that
//! cannot be had now (its source has enough to do, is away, or is full) does not hold up those behind it.
//!
//! Source. For each source with something in the queue: when would the file be there, behind what this source was
//! given already? The earliest wins, and of its queue first what only it has.
//!
//! Late choice. A target is given work for [`crate::Settings::lease_window`]; but a file that another target is
//! fetching just now, and will soon offer, is only taken when less than [`crate::Settings::lease_window_low`] is
//! left: so targets help each other, and none ever idles for it.

use std::time::Duration;

use longhaul_model::{AttemptId, Epoch, Timestamp};
use longhaul_network::Link;

use crate::decision::{Candidate, Choice, Decision, Lease, Unusable};
use crate::event::SiteState;
use crate::scheduler::Scheduler;
use crate::settings::CANDIDATES_MAX;
use crate::state::{CLASSES, Leased, Phase, Rank, Remembered};

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

/// How much more work a target may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    pub files: u32,
    pub bytes: u128,
    pub files_held: u32,
    pub bytes_held: u128,
}

impl Window {
    pub(crate) fn is_full(&self, always: u32) -> bool {
        self.files_held >= always && (self.files_held >= self.files || self.bytes_held >= self.bytes)
    }
}

/// A rate asked of `network` is good for this long.
const REMEMBERED: Duration = Duration::from_millis(100);
/// What a failed attempt costs beside its time: the pause before the next.
const FAILURE_COST_S: f64 = 5.0;
/// Counted for each file when priorities take turns, so that empty files are not free.
const FILE_COST_BYTES: f64 = 1e6;

impl Scheduler {
    pub(crate) fn deal(&mut self, target: u32, now: Timestamp) -> Option<Decision> {
        self.storages[target].target.starved = false;
        if self.barred(target, now).is_some() {
            return None;
        }
        let window = self.window(target, self.settings.lease_window);
        let always = self.settings.lease_files_always;
        if window.is_full(always) {
            return None;
        }
        let low = !self.window(target, self.settings.lease_window_low).is_full(always);
        let Some((place, class)) = self.pick(target, low, now) else {
            if low && !self.storages[target].target.starved {
                self.storages[target].target.starved = true;
                self.refill.insert(target);
            }
            return None;
        };
        self.pay(target, class, self.transfers[place].size);
        self.lease(place, now)
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

    pub(crate) fn window(&self, target: u32, length: Duration) -> Window {
        let row = &self.storages[target];
        let pace = self.knowledge.pace(row.id);
        let part = length.as_secs_f64() / self.settings.lease_window.as_secs_f64().max(1e-3);
        let seconds = length.as_secs_f64();
        let files = (pace.files_per_s * seconds).max(f64::from(self.settings.lease_files_min) * part);
        let bytes = (pace.bytes_per_s * seconds).max(self.settings.lease_bytes_min as f64 * part);
        Window {
            files: (files as u32).min(self.settings.lease_files_max),
            bytes: bytes as u128,
            files_held: row.target.leased.len() as u32,
            bytes_held: row.target.leased_bytes,
        }
    }

    // ---- order ---------------------------------------------------------------------------------------

    fn pick(&mut self, target: u32, low: bool, now: Timestamp) -> Option<(u32, usize)> {
        let row = &self.storages[target].target;
        let highest = (0..CLASSES).rev().find(|&class| row.classes[class].queued > 0)?;
        if row.relief_debt <= 0.0 && highest > 0 {
            let turn = row.relief_turn;
            let lower = (0..highest).map(|step| (turn + step) % highest);
            let lower: Vec<usize> = lower.filter(|&class| row.classes[class].queued > 0).collect();
            for class in lower {
                if let Some(place) = self.pick_in(target, class, low, now) {
                    self.storages[target].target.relief_turn = class + 1;
                    return Some((place, class));
                }
            }
        }
        (0..=highest)
            .rev()
            .find_map(|class| self.pick_in(target, class, low, now).map(|place| (place, class)))
    }

    /// Keeps account of what higher and lower priorities got.
    fn pay(&mut self, target: u32, class: usize, size: u64) {
        let relief = f64::from(self.settings.relief.max(2));
        let cost = size as f64 + FILE_COST_BYTES;
        let row = &mut self.storages[target].target;
        let higher_waits = row.classes[class + 1..].iter().any(|higher| higher.queued > 0);
        let lower_waits = row.classes[..class].iter().any(|lower| lower.queued > 0);
        if higher_waits {
            row.relief_debt = cost * (relief - 1.0);
        } else if lower_waits {
            row.relief_debt = (row.relief_debt - cost).max(0.0);
        }
    }

    /// The best file of one priority: over the heads of its sources' queues, by age, and then by when it would
    /// be there.
    fn pick_in(&mut self, target: u32, class: usize, low: bool, now: Timestamp) -> Option<u32> {
        let mut best: Option<((Rank, bool), f64, u32)> = None;
        for at in 0..self.storages[target].target.classes[class].sources.len() {
            let (source, wants) = &self.storages[target].target.classes[class].sources[at];
            let source = *source;
            let Some(&(rank, want)) = wants.first() else { continue };
            let Some(head) = self.wants[want].head(source) else { continue };
            if head.awaited() && !low {
                continue;
            }
            match self.unusable(source, target, now) {
                None => {}
                Some(Unusable::ActiveOut { .. }) => {
                    let site = self.storages[source].site;
                    self.sites[site].wait_out.add(target, class as u8 + 1);
                    if self.sites[site].has_slot(false) {
                        self.relieved.insert(site);
                    }
                    continue;
                }
                Some(_) => continue,
            }
            let size = self.transfers[head.transfer()].size;
            let (finish, ..) = self.finish(source, target, size, now);
            let order = (rank, head.awaited());
            let better = best
                .as_ref()
                .is_none_or(|(known, time, _)| order.cmp(known).then(finish.total_cmp(time)).is_lt());
            if better {
                best = Some((order, finish, head.transfer()));
            }
        }
        best.map(|(.., transfer)| transfer)
    }

    // ---- source --------------------------------------------------------------------------------------

    /// Whether a storage could be read from for a while to come.
    pub(crate) fn may_serve(&self, source: u32) -> bool {
        let row = &self.storages[source];
        row.name.is_some() && row.connected && self.sites[row.site].state() == SiteState::Open
    }

    /// Why nothing can be leased over a link now.
    pub(crate) fn unusable(&self, source: u32, target: u32, now: Timestamp) -> Option<Unusable> {
        let row = &self.storages[source];
        if row.name.is_none() {
            return Some(Unusable::Unknown);
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
        if let Some(link) = self.storages[target].target.links.get(&source) {
            if let Err(until) = link.reach.allows(now) {
                return Some(Unusable::Unreachable { until });
            }
            let bytes = link.rate.rate * self.settings.lease_window.as_secs_f64();
            let bytes = bytes.max(self.settings.lease_bytes_min as f64) as u128;
            if link.files >= self.settings.lease_files_always && link.bytes >= bytes {
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

    /// Seconds until a file of `size` would be at the target, and the rate and failure share that this rests on.
    fn finish(&mut self, source: u32, target: u32, size: u64, now: Timestamp) -> (f64, f64, f64) {
        let (rate, failures) = self.link_rate(source, target, now);
        let total = self.source_total(source, now).max(rate);
        let link = self.storages[target].target.links.get(&source).map_or(0, |link| link.bytes);
        let own = (link as f64 + size as f64) / rate;
        let shared = (self.storages[source].bytes_ahead as f64 + size as f64) / total;
        let once = own.max(shared);
        let failures = failures.clamp(0.0, 0.95);
        (once / (1.0 - failures) + failures * FAILURE_COST_S, rate, failures)
    }

    fn link_rate(&mut self, source: u32, target: u32, now: Timestamp) -> (f64, f64) {
        let known = self.storages[target].target.links.get(&source).map(|link| link.rate).unwrap_or_default();
        if known.at.is_some_and(|at| now.since(at) < REMEMBERED) {
            return (known.rate, known.failure_share);
        }
        let link = Link { source: self.storages[source].id, target: self.storages[target].id };
        let rate = self.knowledge.rate(link, now).bytes_per_s.max(1.0);
        let failure_share = self.knowledge.failure_share(link, now);
        let row = self.storages[target].target.links.entry(source).or_default();
        row.rate = Remembered { rate, failure_share, at: Some(now) };
        (rate, failure_share)
    }

    fn source_total(&mut self, source: u32, now: Timestamp) -> f64 {
        let known = self.storages[source].total;
        if known.at.is_some_and(|at| now.since(at) < REMEMBERED) {
            return known.rate;
        }
        let row = &self.storages[source];
        let mut rate = self.knowledge.total(row.id, false, now).map_or(0.0, |total| total.bytes_per_s);
        let limit = self.sites[row.site].info.as_ref().and_then(|info| info.limits.out_bytes_per_s);
        if let Some(limit) = limit {
            rate = rate.min(limit as f64);
        }
        self.storages[source].total = Remembered { rate, failure_share: 0.0, at: Some(now) };
        rate
    }

    /// Every source of a transfer with what it would take from there, the best usable one first.
    fn candidates(&mut self, place: u32, now: Timestamp) -> Vec<(Candidate, u32)> {
        let transfer = &self.transfers[place];
        let (target, size) = (transfer.target, transfer.size);
        let count = transfer.sources.len().min(CANDIDATES_MAX);
        let mut list: Vec<(Candidate, u32)> = Vec::with_capacity(count);
        for at in 0..count {
            let source = self.transfers[place].sources[at];
            let unusable = if source.rest_until > now {
                Some(Unusable::Resting { until: self.clock.outer(source.rest_until) })
            } else {
                self.unusable(source.storage, target, now).map(|why| self.outward(why))
            };
            let (finish, rate, failure_share) = self.finish(source.storage, target, size, now);
            let row = &self.storages[source.storage];
            let candidate = Candidate {
                storage: row.id,
                finish: Duration::from_secs_f64(finish.clamp(0.0, 1e9)),
                rate_bytes_per_s: rate,
                bytes_ahead: u64::try_from(row.bytes_ahead).unwrap_or(u64::MAX),
                failure_share,
                unusable,
            };
            list.push((candidate, source.storage));
        }
        list.sort_by_key(|(one, _)| (one.unusable.is_some(), one.finish, one.bytes_ahead, one.storage));
        list
    }

    /// Times as the caller counts them.
    fn outward(&self, why: Unusable) -> Unusable {
        match why {
            Unusable::Unreachable { until } => Unusable::Unreachable { until: self.clock.outer(until) },
            other => other,
        }
    }

    // ---- the lease itself ----------------------------------------------------------------------------

    fn lease(&mut self, place: u32, now: Timestamp) -> Option<Decision> {
        let candidates = self.candidates(place, now);
        let &(best, source) = candidates.first()?;
        let target = self.transfers[place].target;
        let agent = self.storages[target].agent?;
        let source_agent = self.storages[source].agent?;
        if best.unusable.is_some() {
            return None;
        }
        self.take_out(place);
        let attempt = AttemptId(self.next_id(now));
        let transfer = &mut self.transfers[place];
        transfer.epoch += 1;
        let waited = now.since(transfer.since);
        let leased_before = self.storages[target].target.dealt - transfer.dealt_before;
        self.storages[target].target.dealt += 1;
        self.enter_lease(place, Leased { attempt, agent, source, started: false, bytes_done: 0 }, now);
        self.storages[source].reach.started(attempt);
        let row = &mut self.storages[target].target;
        row.room.started(attempt);
        if let Some(link) = row.links.get_mut(&source) {
            link.reach.started(attempt);
        }
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
            priority: want.class as u8 + 1,
            try_number: transfer.tries.saturating_add(1),
            chosen,
            start_by: chosen + self.settings.lease_length,
            choice: Choice {
                candidates: candidates.into_iter().map(|(candidate, _)| candidate).collect(),
                waited,
                leased_before,
            },
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
        let row = &mut self.storages[target];
        row.target.leased.insert(place);
        row.target.leased_bytes += size;
        let link = row.target.links.entry(lease.source).or_default();
        link.files += 1;
        link.bytes += size;
        self.sites[row.site].active_in += 1;
        let source = &mut self.storages[lease.source];
        source.bytes_ahead += size;
        source.files_ahead += 1;
        self.sites[source.site].active_out += 1;
        let link = Link { source: self.storages[lease.source].id, target: self.storages[target].id };
        self.knowledge.began(link, now);
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
