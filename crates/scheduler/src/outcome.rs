//! Outcomes of attempts and what follows: retry with backoff by blame, and where replicas are now.
//!
//! | blame | what backs off | for how long |
//! | --- | --- | --- |
//! | source, permanent | that replica is suspect and not used | until it is a replica again |
//! | target full or read-only | the target, except probes | until it says so, or 30 s, 1 min, … 1 h |
//! | target or request, permanent | the transfer has failed | until it is requested again |
//! | target, otherwise | the transfer | 30 s, 1 min, … 1 h |
//! | all others | that source for this file; others are used at once | by `model::fault::retry_delay` |
//!
//! A source that cannot be reached several times in a row is only probed, over that link or altogether
//! (circuit breaker, see `breaker`).

use std::time::Duration;

use longhaul_model::fault::retry_delay;
use longhaul_model::{AttemptId, Blame, BlockId, Fault, FaultCode, FileId, Retry, StorageId, Timestamp};
use longhaul_network::{AttemptEnd, Link};

use crate::decision::Decision;
use crate::event::Outcome;
use crate::id_map::jitter;
use crate::scheduler::{Scheduler, Timer};
use crate::settings::{Backoff, Rules};
use crate::state::ActiveLease;

/// From this try on `retry_delay` for [`Retry::Later`] is at its longest.
const SLOWEST_TRY_NUMBER: u32 = 8;
/// The least that a failed file rests under [`Backoff::Legacy`]; the most is twice that.
const LEGACY_BACKOFF_MIN: Duration = Duration::from_secs(45 * 60);

impl Scheduler {
    pub(crate) fn progress(&mut self, attempt: AttemptId, bytes_done: u64, now: Timestamp) {
        let Some(&index) = self.by_attempt.get(attempt.0) else { return };
        let transfer = &mut self.transfers[index];
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
                link.last_arrival = now;
            }
        }
        self.storages[lease.source].bytes_ahead -= u128::from(more);
        if more > 0 {
            self.count_arrival(target, lease.source, more, true, now);
            self.record_arrival(want, more, now);
            if done == more
                && let Some(link) = self.storages[target].target.links.get_mut(lease.source)
            {
                link.moving += 1;
                link.source_latency.record_first_byte(lease.began, now);
            }
            let link = Link { source: self.storages[lease.source].id, target: self.storages[target].id };
            self.knowledge.bytes_arrived(link, more, now);
            if let Some(optimizer) = self.optimizer(target, lease.source, now) {
                optimizer.record_bytes(more);
            }
            self.wake(target);
        }
    }

    /// Takes a lease out of all sums. Its transfer is in no queue afterwards.
    pub(crate) fn end_lease(
        &mut self,
        index: u32,
        end: AttemptEnd,
        bytes: u64,
        now: Timestamp,
    ) -> Option<ActiveLease> {
        let lease = self.transfers[index].lease()?;
        self.dequeue(index);
        self.by_attempt.remove(lease.attempt.0);
        if end != AttemptEnd::Arrived {
            self.forecasts.remove(&lease.attempt);
        }
        let transfer = &self.transfers[index];
        let target = transfer.target;
        self.count_arrival(target, lease.source, bytes, false, now);
        let transfer = &self.transfers[index];
        let rest = u128::from(transfer.size - lease.bytes_done);
        let want_index = transfer.want;
        let want = &mut self.wants[want_index];
        want.bytes_arrived -= u128::from(lease.bytes_done);
        want.leased -= 1;
        want.last_attempt_failed = end != AttemptEnd::Arrived;
        if want.leased == 0 && end == AttemptEnd::Arrived {
            want.attempts_since = None;
        }
        if end == AttemptEnd::Arrived {
            self.record_arrival(want_index, bytes, now);
        }
        let row = &mut self.storages[target];
        row.target.leased.remove(&index);
        row.target.leased_bytes -= rest;
        row.target.started -= u32::from(lease.started);
        row.target.room_breaker.forget(lease.attempt);
        if let Some(link) = row.target.links.get_mut(lease.source) {
            link.files -= 1;
            link.bytes -= rest;
            link.moving -= u32::from(lease.bytes_done > 0);
            if end == AttemptEnd::Arrived {
                link.last_arrival = now;
            }
            link.reach_breaker.forget(lease.attempt);
        }
        let site_in = row.site;
        self.sites[site_in].active_in -= 1;
        let source = &mut self.storages[lease.source];
        source.bytes_ahead -= rest;
        source.files_ahead -= 1;
        let untold = source.reach_breaker.forget(lease.attempt);
        let site_out = source.site;
        self.sites[site_out].active_out -= 1;
        let link = Link { source: self.storages[lease.source].id, target: self.storages[target].id };
        self.knowledge.attempt_ended(link, bytes.min(self.transfers[index].size), end, now);
        let missing = if end == AttemptEnd::Arrived { 0 } else { self.transfers[index].size };
        let came = lease.bytes_done.saturating_add(bytes);
        self.uncount_limits(&lease, target, missing.saturating_sub(came), now);
        self.update_awaited(index, false, now);
        if !self.sites[site_out].slot_waiters.is_empty() {
            self.sites_with_free_slots.insert(site_out);
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
            let from = after.map_or(0, |index: u32| index.saturating_add(1));
            let Some(&index) = self.sites[site].storages.range(from..).next() else { return };
            self.wake(index);
            after = Some(index);
        }
    }

    /// A lease is over before its agent told how it ended.
    pub(crate) fn revoke_lease(&mut self, index: u32, now: Timestamp) -> bool {
        let Some(lease) = self.end_lease(index, AttemptEnd::Void, 0, now) else { return false };
        self.note_revoked(&lease, self.transfers[index].target);
        true
    }

    /// A lease without an outcome.
    pub(crate) fn requeue_leased(&mut self, index: u32, now: Timestamp) {
        if self.revoke_lease(index, now) {
            self.requeue(index, now);
        }
    }

    pub(crate) fn lease_released(&mut self, attempt: AttemptId, now: Timestamp) {
        if let Some(&index) = self.by_attempt.get(attempt.0) {
            self.requeue_leased(index, now);
        }
    }

    fn requeue(&mut self, index: u32, now: Timestamp) {
        let dealt = self.storages[self.transfers[index].target].target.leases_issued;
        let transfer = &mut self.transfers[index];
        transfer.since = now;
        transfer.leases_issued_before = dealt;
        self.enqueue(index, now);
    }

    pub(crate) fn handle_outcome(&mut self, outcome: Outcome, now: Timestamp) {
        let Some(&index) = self.by_attempt.get(outcome.attempt.0) else {
            return self.count_late_arrival(outcome.attempt, outcome.bytes_moved, now);
        };
        if self.transfers[index].epoch != outcome.epoch.0 {
            return;
        }
        match outcome.fault {
            None => self.handle_arrival(index, outcome.bytes_moved, now),
            Some(fault) if fault.code == FaultCode::GivenBack => self.lease_returned(index, now),
            Some(fault) => self.handle_failure(index, fault, outcome.bytes_moved, now),
        }
    }

    fn handle_arrival(&mut self, index: u32, bytes_moved: u64, now: Timestamp) {
        let done = self.transfers[index].lease().map_or(0, |lease| lease.bytes_done);
        let bytes = bytes_moved.saturating_sub(done);
        let Some(lease) = self.end_lease(index, AttemptEnd::Arrived, bytes, now) else { return };
        let (file, target) = (self.transfers[index].file, self.transfers[index].target);
        self.record_file_rate(target, lease.source, bytes_moved, lease.began, now);
        if let Some(link) = self.storages[target].target.links.get_mut(lease.source) {
            if done == 0 {
                link.source_latency.record_first_byte(lease.began, now);
            }
            link.source_latency.record_file(lease.began, now);
        }
        if let Some(optimizer) = self.optimizer(target, lease.source, now) {
            optimizer.record_bytes(bytes);
            optimizer.record_file(bytes_moved, now.since(lease.began));
        }
        self.record_reached(target, lease.source);
        self.storages[target].target.room_breaker.record_success();
        self.score_forecast(index, &lease, bytes_moved, now);
        self.complete(index);
        self.reset_backoff(target, lease.source, now);
        self.replica_added(file, target, now);
    }

    /// The file is at the target: the transfer is over.
    fn complete(&mut self, index: u32) {
        let transfer = &self.transfers[index];
        let (want, size) = (transfer.want, u128::from(transfer.size));
        let row = &mut self.wants[want];
        row.sweeps = 0;
        let (files, bytes) = (row.files_left.saturating_sub(1), row.bytes_left.saturating_sub(size));
        self.set_left(want, files, bytes);
        self.forget(index);
    }

    // ---- faults --------------------------------------------------------------------------------------

    fn handle_failure(&mut self, index: u32, fault: Fault, bytes_moved: u64, now: Timestamp) {
        let Some(lease) = self.transfers[index].lease() else { return };
        let target = self.transfers[index].target;
        self.update_breakers(target, &lease, &fault, now);
        let end = match fault.blame {
            // Somebody changed their mind: no attempt of the future fails for that.
            Blame::Request => AttemptEnd::Void,
            blame => AttemptEnd::Failed(blame),
        };
        self.end_lease(index, end, bytes_moved.saturating_sub(lease.bytes_done), now);
        self.refund(index, &lease, bytes_moved);
        if let Some(optimizer) = self.optimizer(target, lease.source, now) {
            optimizer.record_failure();
        }
        let transfer = &mut self.transfers[index];
        transfer.tries = transfer.tries.saturating_add(1);
        transfer.fault = Some(Box::new(fault.clone()));
        self.wants[transfer.want].last_failure = Some(fault.clone());
        let for_good = fault.retry == Retry::Never;
        if !for_good {
            self.note_failure(target, lease.source);
        }
        match (fault.blame, fault.code) {
            (Blame::Target, FaultCode::TargetFull | FaultCode::TargetReadOnly) => {}
            (Blame::Request, FaultCode::Cancelled) => self.back_off(index, Retry::Now, now),
            (Blame::Target | Blame::Request, _) if for_good => return self.give_up(index, fault),
            (Blame::Target | Blame::Request, _) => self.back_off(index, fault.retry, now),
            (Blame::Source, _) if for_good => return self.suspect(index, lease.source, fault, now),
            _ => self.back_off_source(index, lease.source, fault.retry, now),
        }
        self.requeue(index, now);
    }

    /// What a fault says about the target as a whole, and about the way to the source.
    fn update_breakers(&mut self, target: u32, lease: &ActiveLease, fault: &Fault, now: Timestamp) {
        let (attempt, source) = (lease.attempt, lease.source);
        match (fault.blame, fault.code) {
            (Blame::Target, FaultCode::TargetFull | FaultCode::TargetReadOnly) => {
                let until =
                    self.storages[target].target.room_breaker.record_failure(attempt, 1, Retry::Later, now);
                if let Some(until) = until {
                    self.set_timer(until, Timer::Storage(target));
                }
            }
            (_, FaultCode::Unreachable) => {
                let (most_link, most) = match fault.blame {
                    // The source's host itself said that nobody listens: all targets would hear the same.
                    Blame::Source => (1, 1),
                    _ => (self.settings.unreachable_link, self.settings.unreachable_source),
                };
                let until =
                    self.storages[source].reach_breaker.record_failure(attempt, most, Retry::Now, now);
                if let Some(until) = until {
                    self.set_timer(until, Timer::Storage(source));
                }
                let link = self.storages[target].target.links.row(source);
                if let Some(until) = link.reach_breaker.record_failure(attempt, most_link, Retry::Now, now) {
                    self.set_timer(until, Timer::Storage(target));
                }
            }
            (Blame::Source, _) => self.record_reached(target, source),
            _ => {}
        }
    }

    fn record_reached(&mut self, target: u32, source: u32) {
        if self.storages[source].reach_breaker.record_success() {
            self.wake_around(source);
        }
        if let Some(link) = self.storages[target].target.links.get_mut(source)
            && link.reach_breaker.record_success()
        {
            self.wake(target);
        }
    }

    fn give_up(&mut self, index: u32, fault: Fault) {
        let transfer = &self.transfers[index];
        let target = self.storages[transfer.target].id;
        self.wants[transfer.want].failed.insert(transfer.file);
        self.out.push_back(Decision::Fail { transfer: transfer.id, file: transfer.file, target, fault });
        self.forget(index);
    }

    /// The source's bytes are wrong: nobody takes this file from there any more.
    fn suspect(&mut self, index: u32, source: u32, fault: Fault, now: Timestamp) {
        let transfer = &self.transfers[index];
        let (file, id) = (transfer.file, transfer.id);
        let storage = self.storages[source].id;
        self.out.push_back(Decision::Suspect { transfer: id, file, source: storage, fault });
        self.requeue(index, now);
        self.replica_lost(file, source, now);
    }

    /// When try `tries` + 1 may follow.
    fn next_try_at(&self, index: u32, retry: Retry, tries: u32, now: Timestamp) -> Timestamp {
        let transfer = &self.transfers[index];
        let spread = jitter(transfer.id.0, u64::from(transfer.tries));
        if self.settings.backoff == Backoff::Legacy {
            return now + LEGACY_BACKOFF_MIN.mul_f64(1.0 + spread);
        }
        let slow = tries >= self.settings.tries_until_slow;
        let delay = match retry {
            Retry::Now if !slow => retry_delay(Retry::Now, tries, spread),
            Retry::Later if !slow => retry_delay(Retry::Later, tries, spread),
            // What will never do by itself may do after somebody acted; it costs one attempt an hour.
            _ => retry_delay(Retry::Later, SLOWEST_TRY_NUMBER, spread),
        };
        now + delay
    }

    fn back_off(&mut self, index: u32, retry: Retry, now: Timestamp) {
        let tries = self.transfers[index].tries;
        self.transfers[index].backoff_until = self.next_try_at(index, retry, tries, now);
    }

    fn back_off_source(&mut self, index: u32, source: u32, retry: Retry, now: Timestamp) {
        let Some(at) = self.transfers[index].sources.iter().position(|one| one.storage == source) else {
            return;
        };
        let tries = self.transfers[index].sources[at].tries.saturating_add(1);
        let until = self.next_try_at(index, retry, tries, now);
        let row = &mut self.transfers[index].sources[at];
        row.tries = tries;
        row.backoff_until = until;
    }

    // ---- replicas ------------------------------------------------------------------------------------

    pub(crate) fn replica_added(&mut self, file: FileId, storage: u32, now: Timestamp) {
        self.replica_races.record_replica(file, storage);
        let indexes = self.transfers_of_file(file);
        let came = indexes.iter().copied().find(|&index| self.transfers[index].target == storage);
        for index in indexes {
            if Some(index) != came {
                self.add_source(index, storage, now);
            }
        }
        // Last: with it what only brought the file nearer may end.
        if let Some(index) = came.filter(|&index| self.transfers[index].lease().is_none()) {
            self.complete(index); // It came there by another way.
        }
    }

    pub(crate) fn replica_lost(&mut self, file: FileId, storage: u32, now: Timestamp) {
        let indexes = self.transfers_of_file(file);
        for index in indexes {
            if self.transfers[index].sources.iter().any(|source| source.storage == storage) {
                self.remove_source(index, storage, now);
            }
        }
    }

    pub(crate) fn block_complete(&mut self, block: BlockId, storage: StorageId, now: Timestamp) {
        let storage = self.storage_index(storage);
        for index in self.transfers_of_block(block) {
            let transfer = &self.transfers[index];
            if transfer.target != storage {
                self.add_source(index, storage, now);
            }
        }
    }

    pub(crate) fn block_lost(&mut self, block: BlockId, storage: StorageId, now: Timestamp) {
        let storage = self.storage_index(storage);
        for index in self.transfers_of_block(block) {
            self.remove_source(index, storage, now);
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
