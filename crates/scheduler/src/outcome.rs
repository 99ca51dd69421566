//! What attempts come to, and what follows: retry by blame, and where files are now.
//!
//! | blame | what rests | for how long |
//! | --- | --- | --- |
//! | source, for good | that replica is suspect: nobody takes the file from there | until it is a replica again |
//! | target full or read-only | the whole target, but for single probes | until it says so, or 30 s, 1 min, … 1 h |
//! | target or request, for good | the transfer has failed | until it is asked for again |
//! | target, else | the transfer | 30 s, 1 min, … 1 h |
//! | all others | that source for this file; other sources are used at once | by `model::fault::retry_delay` |
//!
//! A source that cannot be reached several times in a row is only probed, over that link or altogether.

use std::time::Duration;

use longhaul_model::fault::retry_delay;
use longhaul_model::{AttemptId, Blame, BlockId, Fault, FaultCode, FileId, Retry, StorageId, Timestamp};
use longhaul_network::{AttemptEnd, Link};

use crate::decision::Decision;
use crate::event::Outcome;
use crate::keyed::jitter;
use crate::scheduler::{Scheduler, Timer};
use crate::settings::{Backoff, Rules};
use crate::state::Leased;

/// From this try on `retry_delay` for [`Retry::Later`] is at its longest.
const SLOWEST_TRY: u32 = 8;
/// The least that a failed file rests under [`Backoff::Legacy`]; the most is twice that.
const LEGACY_REST: Duration = Duration::from_secs(45 * 60);

impl Scheduler {
    pub(crate) fn progress(&mut self, attempt: AttemptId, bytes_done: u64, now: Timestamp) {
        let Some(&place) = self.by_attempt.get(attempt.0) else { return };
        let transfer = &mut self.transfers[place];
        let Some(mut lease) = transfer.lease() else { return };
        let new = !lease.started;
        if new {
            lease.started = true;
            lease.began = now;
        }
        let done = bytes_done.min(transfer.size).max(lease.bytes_done);
        let more = done - lease.bytes_done;
        lease.bytes_done = done;
        transfer.phase = crate::state::Phase::Leased(lease);
        let (target, want) = (transfer.target, transfer.want);
        self.wants[want].bytes_arrived += u128::from(more);
        let row = &mut self.storages[target].target;
        row.started += u32::from(new);
        row.leased_bytes -= u128::from(more);
        if let Some(link) = row.links.get_mut(lease.source) {
            link.bytes -= u128::from(more);
            if more > 0 {
                link.heard = now;
            }
        }
        self.storages[lease.source].bytes_ahead -= u128::from(more);
        if more > 0 {
            self.came(target, lease.source, more, true, now);
            if done == more
                && let Some(link) = self.storages[target].target.links.get_mut(lease.source)
            {
                link.moving += 1;
                link.opening.first_came(lease.began, now);
            }
            let link = Link { source: self.storages[lease.source].id, target: self.storages[target].id };
            self.knowledge.bytes_arrived(link, more, now);
            if let Some(optimizer) = self.optimizer(target, lease.source, now) {
                optimizer.arrived(more);
            }
            self.wake(target);
        }
    }

    /// Takes a lease out of all sums. Its transfer is in no queue afterwards.
    pub(crate) fn unlease(
        &mut self,
        place: u32,
        end: AttemptEnd,
        bytes: u64,
        now: Timestamp,
    ) -> Option<Leased> {
        let lease = self.transfers[place].lease()?;
        self.take_out(place);
        self.by_attempt.remove(lease.attempt.0);
        if end != AttemptEnd::Arrived {
            self.forecasts.remove(&lease.attempt);
        }
        let transfer = &self.transfers[place];
        let target = transfer.target;
        self.came(target, lease.source, bytes, false, now);
        let transfer = &self.transfers[place];
        let rest = u128::from(transfer.size - lease.bytes_done);
        let want = &mut self.wants[transfer.want];
        want.bytes_arrived -= u128::from(lease.bytes_done);
        let row = &mut self.storages[target];
        row.target.leased.remove(&place);
        row.target.leased_bytes -= rest;
        row.target.started -= u32::from(lease.started);
        row.target.room.forget(lease.attempt);
        if let Some(link) = row.target.links.get_mut(lease.source) {
            link.files -= 1;
            link.bytes -= rest;
            link.moving -= u32::from(lease.bytes_done > 0);
            if end == AttemptEnd::Arrived {
                link.heard = now;
            }
            link.reach.forget(lease.attempt);
        }
        let site_in = row.site;
        self.sites[site_in].active_in -= 1;
        let source = &mut self.storages[lease.source];
        source.bytes_ahead -= rest;
        source.files_ahead -= 1;
        let untold = source.reach.forget(lease.attempt);
        let site_out = source.site;
        self.sites[site_out].active_out -= 1;
        let link = Link { source: self.storages[lease.source].id, target: self.storages[target].id };
        self.knowledge.attempt_ended(link, bytes.min(self.transfers[place].size), end, now);
        let missing = if end == AttemptEnd::Arrived { 0 } else { self.transfers[place].size };
        let came = lease.bytes_done.saturating_add(bytes);
        self.uncount_limits(&lease, target, missing.saturating_sub(came), now);
        self.await_others(place, false, now);
        if !self.sites[site_out].wait_out.is_empty() {
            self.relieved.insert(site_out);
        }
        if untold || self.settings.rules == Rules::Fts3 {
            // Another may be sent now; by FTS3's rules, a slot of the source is free for every target.
            self.wake_around(lease.source);
        }
        self.wake_site(site_in);
        Some(lease)
    }

    /// All targets of a site share its slots in.
    fn wake_site(&mut self, site: u32) {
        let mut after = None;
        loop {
            let from = after.map_or(0, |place: u32| place.saturating_add(1));
            let Some(&place) = self.sites[site].storages.range(from..).next() else { return };
            self.wake(place);
            after = Some(place);
        }
    }

    /// A lease is over before its agent told how it ended.
    pub(crate) fn take_lease_back(&mut self, place: u32, now: Timestamp) -> bool {
        let Some(lease) = self.unlease(place, AttemptEnd::Void, 0, now) else { return false };
        self.limits_believe_lost(&lease, self.transfers[place].target);
        true
    }

    /// A lease without an outcome.
    pub(crate) fn back_to_queue(&mut self, place: u32, now: Timestamp) {
        if self.take_lease_back(place, now) {
            self.queue_again(place, now);
        }
    }

    pub(crate) fn lease_released(&mut self, attempt: AttemptId, now: Timestamp) {
        if let Some(&place) = self.by_attempt.get(attempt.0) {
            self.back_to_queue(place, now);
        }
    }

    fn queue_again(&mut self, place: u32, now: Timestamp) {
        let dealt = self.storages[self.transfers[place].target].target.dealt;
        let transfer = &mut self.transfers[place];
        transfer.since = now;
        transfer.dealt_before = dealt;
        self.place(place, now);
    }

    pub(crate) fn outcome(&mut self, outcome: Outcome, now: Timestamp) {
        let Some(&place) = self.by_attempt.get(outcome.attempt.0) else {
            return self.came_after_all(outcome.attempt, outcome.bytes_moved, now);
        };
        if self.transfers[place].epoch != outcome.epoch.0 {
            return;
        }
        match outcome.fault {
            None => self.arrived(place, outcome.bytes_moved, now),
            Some(fault) if fault.code == FaultCode::GivenBack => self.given_back(place, now),
            Some(fault) => self.failed(place, fault, outcome.bytes_moved, now),
        }
    }

    fn arrived(&mut self, place: u32, bytes_moved: u64, now: Timestamp) {
        let done = self.transfers[place].lease().map_or(0, |lease| lease.bytes_done);
        let bytes = bytes_moved.saturating_sub(done);
        let Some(lease) = self.unlease(place, AttemptEnd::Arrived, bytes, now) else { return };
        let (file, target) = (self.transfers[place].file, self.transfers[place].target);
        self.file_rate(target, lease.source, bytes_moved, lease.began, now);
        if let Some(link) = self.storages[target].target.links.get_mut(lease.source) {
            if done == 0 {
                link.opening.first_came(lease.began, now);
            }
            link.opening.arrived(lease.began, now);
        }
        if let Some(optimizer) = self.optimizer(target, lease.source, now) {
            optimizer.arrived(bytes);
            optimizer.finished(bytes_moved, now.since(lease.began));
        }
        self.reached(target, lease.source);
        self.storages[target].target.room.succeeded();
        self.score(place, &lease, bytes_moved, now);
        self.complete(place);
        self.ease(target, lease.source, now);
        self.replica_added(file, target, now);
    }

    /// The file is at the target: the transfer is over.
    fn complete(&mut self, place: u32) {
        let transfer = &self.transfers[place];
        let (want, size) = (transfer.want, u128::from(transfer.size));
        let row = &mut self.wants[want];
        row.sweeps = 0;
        let (files, bytes) = (row.files_left.saturating_sub(1), row.bytes_left.saturating_sub(size));
        self.set_left(want, files, bytes);
        self.forget(place);
    }

    // ---- faults --------------------------------------------------------------------------------------

    fn failed(&mut self, place: u32, fault: Fault, bytes_moved: u64, now: Timestamp) {
        let Some(lease) = self.transfers[place].lease() else { return };
        let target = self.transfers[place].target;
        self.breakers(target, &lease, &fault, now);
        let end = match fault.blame {
            // Somebody changed their mind: no attempt of the future fails for that.
            Blame::Request => AttemptEnd::Void,
            blame => AttemptEnd::Failed(blame),
        };
        self.unlease(place, end, bytes_moved.saturating_sub(lease.bytes_done), now);
        self.refund(place, &lease, bytes_moved);
        if let Some(optimizer) = self.optimizer(target, lease.source, now) {
            optimizer.failed();
        }
        let transfer = &mut self.transfers[place];
        transfer.tries = transfer.tries.saturating_add(1);
        transfer.fault = Some(Box::new(fault.clone()));
        self.wants[transfer.want].last_failure = Some(fault.clone());
        let for_good = fault.retry == Retry::Never;
        if !for_good {
            self.troubled(target, lease.source);
        }
        match (fault.blame, fault.code) {
            (Blame::Target, FaultCode::TargetFull | FaultCode::TargetReadOnly) => {}
            (Blame::Request, FaultCode::Cancelled) => self.rest(place, Retry::Now, now),
            (Blame::Target | Blame::Request, _) if for_good => return self.give_up(place, fault),
            (Blame::Target | Blame::Request, _) => self.rest(place, fault.retry, now),
            (Blame::Source, _) if for_good => return self.suspect(place, lease.source, fault, now),
            _ => self.rest_source(place, lease.source, fault.retry, now),
        }
        self.queue_again(place, now);
    }

    /// What a fault says about the target as a whole, and about the way to the source.
    fn breakers(&mut self, target: u32, lease: &Leased, fault: &Fault, now: Timestamp) {
        let (attempt, source) = (lease.attempt, lease.source);
        match (fault.blame, fault.code) {
            (Blame::Target, FaultCode::TargetFull | FaultCode::TargetReadOnly) => {
                let until = self.storages[target].target.room.failed(attempt, 1, Retry::Later, now);
                if let Some(until) = until {
                    self.set_timer(until, Timer::Storage(target));
                }
            }
            (_, FaultCode::Unreachable) => {
                let (most_link, most) = (self.settings.unreachable_link, self.settings.unreachable_source);
                let until = self.storages[source].reach.failed(attempt, most, Retry::Now, now);
                if let Some(until) = until {
                    self.set_timer(until, Timer::Storage(source));
                }
                let link = self.storages[target].target.links.row(source);
                if let Some(until) = link.reach.failed(attempt, most_link, Retry::Now, now) {
                    self.set_timer(until, Timer::Storage(target));
                }
            }
            (Blame::Source, _) => self.reached(target, source),
            _ => {}
        }
    }

    fn reached(&mut self, target: u32, source: u32) {
        if self.storages[source].reach.succeeded() {
            self.wake_around(source);
        }
        if let Some(link) = self.storages[target].target.links.get_mut(source)
            && link.reach.succeeded()
        {
            self.wake(target);
        }
    }

    fn give_up(&mut self, place: u32, fault: Fault) {
        let transfer = &self.transfers[place];
        let target = self.storages[transfer.target].id;
        self.wants[transfer.want].failed.insert(transfer.file);
        self.out.push_back(Decision::Fail { transfer: transfer.id, file: transfer.file, target, fault });
        self.forget(place);
    }

    /// The source's bytes are wrong: nobody takes this file from there any more.
    fn suspect(&mut self, place: u32, source: u32, fault: Fault, now: Timestamp) {
        let transfer = &self.transfers[place];
        let (file, id) = (transfer.file, transfer.id);
        let storage = self.storages[source].id;
        self.out.push_back(Decision::Suspect { transfer: id, file, source: storage, fault });
        self.queue_again(place, now);
        self.replica_lost(file, source, now);
    }

    /// When try `tries` + 1 may follow.
    fn pause(&self, place: u32, retry: Retry, tries: u32, now: Timestamp) -> Timestamp {
        let transfer = &self.transfers[place];
        let spread = jitter(transfer.id.0, u64::from(transfer.tries));
        if self.settings.backoff == Backoff::Legacy {
            return now + LEGACY_REST.mul_f64(1.0 + spread);
        }
        let slow = tries >= self.settings.tries_until_slow;
        let delay = match retry {
            Retry::Now if !slow => retry_delay(Retry::Now, tries, spread),
            Retry::Later if !slow => retry_delay(Retry::Later, tries, spread),
            // What will never do by itself may do after somebody acted; it costs one attempt an hour.
            _ => retry_delay(Retry::Later, SLOWEST_TRY, spread),
        };
        now + delay
    }

    fn rest(&mut self, place: u32, retry: Retry, now: Timestamp) {
        let tries = self.transfers[place].tries;
        self.transfers[place].rest_until = self.pause(place, retry, tries, now);
    }

    fn rest_source(&mut self, place: u32, source: u32, retry: Retry, now: Timestamp) {
        let Some(at) = self.transfers[place].sources.iter().position(|one| one.storage == source) else {
            return;
        };
        let tries = self.transfers[place].sources[at].tries.saturating_add(1);
        let until = self.pause(place, retry, tries, now);
        let row = &mut self.transfers[place].sources[at];
        row.tries = tries;
        row.rest_until = until;
    }

    // ---- replicas ------------------------------------------------------------------------------------

    pub(crate) fn replica_added(&mut self, file: FileId, storage: u32, now: Timestamp) {
        self.news.replica(file, storage);
        let places = self.transfers_of_file(file);
        let came = places.iter().copied().find(|&place| self.transfers[place].target == storage);
        for place in places {
            if Some(place) != came {
                self.add_source(place, storage, now);
            }
        }
        // Last: with it what only brought the file nearer may end.
        if let Some(place) = came.filter(|&place| self.transfers[place].lease().is_none()) {
            self.complete(place); // It came there by another way.
        }
    }

    pub(crate) fn replica_lost(&mut self, file: FileId, storage: u32, now: Timestamp) {
        let places = self.transfers_of_file(file);
        for place in places {
            if self.transfers[place].sources.iter().any(|source| source.storage == storage) {
                self.remove_source(place, storage, now);
            }
        }
    }

    pub(crate) fn block_complete(&mut self, block: BlockId, storage: StorageId, now: Timestamp) {
        let storage = self.storage_place(storage);
        for place in self.transfers_of_block(block) {
            let transfer = &self.transfers[place];
            if transfer.target != storage {
                self.add_source(place, storage, now);
            }
        }
    }

    pub(crate) fn block_lost(&mut self, block: BlockId, storage: StorageId, now: Timestamp) {
        let storage = self.storage_place(storage);
        for place in self.transfers_of_block(block) {
            self.remove_source(place, storage, now);
        }
    }

    fn transfers_of_file(&self, file: FileId) -> Vec<u32> {
        let row = self.by_file.get(file.0);
        row.map(|&row| self.files[row].transfers.iter().collect()).unwrap_or_default()
    }

    fn transfers_of_block(&self, block: BlockId) -> Vec<u32> {
        let wants = self.want_of.range((block, 0)..=(block, u32::MAX));
        wants.flat_map(|(_, &want)| self.wants[want].transfers.iter().copied()).collect()
    }
}
