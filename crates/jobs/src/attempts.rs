//! Attempts: begun when the scheduler has decided, ended when a mover says how it went. Durable before
//! anybody hears of it.

use std::time::Duration;

use longhaul_catalog::{JobChanges, JobFileChange, JobFileResult, JobFileStep};
use longhaul_model::job::{errno, is_recoverable, parse_reason, reason, retries_of};
use longhaul_model::{AttemptId, Fault, FaultCode, Retry, Timestamp};
use longhaul_scheduler::{Event, Lease, Outcome};

use crate::job_loop::{JobLoop, Running, WRITE_RETRY_DELAY};
use crate::job_options::Terms;
use crate::mover::{Moved, Unmoved};
use crate::work::{Reply, Work};
use crate::{ids, order};

impl JobLoop {
    pub(crate) fn leases(
        &mut self,
        leases: Vec<(Box<Lease>, String)>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        if leases.is_empty() {
            return;
        }
        let room = self.copies.room();
        let begin = |(at, (lease, choice)): (usize, &(Box<Lease>, String))| JobFileChange {
            file: ids::file_number(lease.file),
            attempt: lease.attempt,
            step: JobFileStep::Begin {
                source: ids::end(lease.source),
                choice: choice.clone(),
                started: at < room,
            },
        };
        let changes: Vec<JobFileChange> = leases.iter().enumerate().map(begin).collect();
        let (answers, changed) = match self.job_control.kernel.catalog.change_job_files(&changes, now) {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "copies cannot begin");
                events
                    .extend(leases.iter().map(|(lease, _)| Event::LeaseReleased { attempt: lease.attempt }));
                // Else the same would be decided at once.
                std::thread::sleep(WRITE_RETRY_DELAY);
                return;
            }
        };
        let configured = self.configured();
        for (at, ((lease, _), answer)) in leases.iter().zip(answers).enumerate() {
            let JobFileResult::Begun(work) = answer else {
                // It was cancelled, say, between the decision and here.
                events.push(Event::LeaseReleased { attempt: lease.attempt });
                events.push(Event::ReplicaAdded { file: lease.file, storage: lease.target });
                self.queues.touch(ids::queue(lease.block));
                continue;
            };
            let terms = Terms::for_file(&work.job, &work.file, &configured, now);
            let order = order::order(&self.job_control, &work, &terms, lease);
            let order = order.map(|order| order.marked(&self.job_control.control.marks, &work.file));
            let running = Running {
                asked: lease.file,
                file: work.file.id,
                target: lease.target,
                epoch: lease.epoch,
                queue: ids::queue(lease.block),
                kind: work.job.kind,
                retries: work.file.retries,
                staged: work.file.tape.staging_began.is_some(),
                archives: terms.archive_timeout.is_some() && order::is_last_hop(&work),
                terms,
            };
            self.running.insert(lease.attempt, running);
            match order {
                Ok(order) => self.copies.add(lease.attempt, work.file.id, order, at < room),
                Err(fault) => self.job_control.jobs.send(Work::Ended(lease.attempt, Err(fault.into()))),
            }
            if at < room {
                events.push(Event::Started { attempt: lease.attempt });
            }
        }
        self.changed(changed, now, events);
    }

    /// Room has come for some that were given out before.
    pub(crate) fn start_ready(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        let next = self.copies.next();
        let change = |&(file, attempt)| JobFileChange { file, attempt, step: JobFileStep::Started };
        let Some(changed) = self.change(&next.iter().map(change).collect::<Vec<_>>(), now) else { return };
        for (_, attempt) in next {
            self.copies.go(attempt);
            events.push(Event::Started { attempt });
        }
        self.changed(changed, now, events);
    }

    /// What copies came to. What cannot be written down is held until it can.
    pub(crate) fn ended(
        &mut self,
        ended: Vec<(AttemptId, Result<Moved, Unmoved>)>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let mut changes = Vec::new();
        let mut told = Vec::new();
        for (attempt, result) in std::mem::take(&mut self.held).into_iter().chain(ended) {
            self.copies.forget(attempt);
            // Those that were cancelled are nobody's business any more.
            let Some(running) = self.running.get(&attempt) else {
                self.job_control.jobs.stream_ledger.settle(attempt);
                continue;
            };
            changes.push(JobFileChange {
                file: running.file,
                attempt,
                step: self.step(running, &result, now),
            });
            told.push((attempt, result));
        }
        if changes.is_empty() {
            return;
        }
        let Some(changed) = self.change(&changes, now) else {
            self.held = told;
            std::thread::sleep(WRITE_RETRY_DELAY);
            return;
        };
        for (attempt, result) in told {
            self.tell_outcome(attempt, result.map_err(|unmoved| unmoved.fault), events);
        }
        for change in &changes {
            if let JobFileStep::Retry { not_before, .. } = &change.step
                && let Some(news) = changed.files.iter().find(|news| news.file == change.file)
            {
                self.resting.insert((*not_before, news.queue));
            }
        }
        self.changed(changed, now, events);
        for change in &changes {
            self.running.remove(&change.attempt);
            self.job_control.jobs.stream_ledger.settle(change.attempt);
        }
    }

    fn step(&self, running: &Running, result: &Result<Moved, Unmoved>, now: Timestamp) -> JobFileStep {
        let Unmoved { fault, standing, on_tape } = match result {
            Ok(moved) => {
                return JobFileStep::Arrived {
                    bytes: moved.bytes,
                    mode: moved.mode.clone(),
                    archive: running.archives,
                };
            }
            Err(unmoved) => unmoved,
        };
        let config = &self.job_control.settings.jobs;
        let reason = reason(fault);
        if fault.code == FaultCode::GivenBack {
            // An administrator paused the site of the agent that had it: that is no failure of the file's.
            return JobFileStep::Released;
        }
        if *on_tape {
            // Of replicas another one has its turn; the last one on disk decides whether this one is brought
            // from there.
            return JobFileStep::OnTape { reason };
        }
        let recoverable = fault.retry != Retry::Never && is_recoverable(&reason);
        let usual = running.terms.usual_retries.unwrap_or(config.retries);
        if recoverable && running.retries < retries_of(running.kind, running.terms.retry, usual) {
            let usual = Duration::from_secs(u64::from(config.retry_delay_s));
            let not_before = now + running.terms.retry_delay.unwrap_or(usual);
            // What was too slow may have lost its place on disk meanwhile.
            let late =
                parse_reason(&reason).is_some_and(|(_, number, _)| number == errno(FaultCode::Stalled));
            return JobFileStep::Retry { reason, not_before, stage: running.staged && late };
        }
        let standing = standing.as_ref().and_then(|standing| serde_json::to_string(standing).ok());
        JobFileStep::Failed { reason, recoverable, existing_target: standing }
    }

    /// The scheduler hears how it went, and that it has no more to do with this file: whether it is tried
    /// again is its job's to say.
    pub(crate) fn tell_outcome(
        &self,
        attempt: AttemptId,
        result: Result<Moved, Fault>,
        events: &mut Vec<Event>,
    ) {
        let Some(running) = self.running.get(&attempt) else { return };
        let (fault, bytes_moved) = match result {
            Ok(moved) => (None, moved.bytes),
            Err(fault) if fault.retry == Retry::Never => (Some(fault.retrying(Retry::Later)), 0),
            Err(fault) => (Some(fault), 0),
        };
        let failed = fault.is_some();
        events.push(Event::Outcome(Outcome { attempt, epoch: running.epoch, fault, bytes_moved }));
        if failed {
            events.push(Event::ReplicaAdded { file: running.asked, storage: running.target });
        }
    }

    /// Writes the unusual movers of copies into their attempts' explanation.
    pub(crate) fn carried(
        &mut self,
        carried: Vec<(AttemptId, String, Reply<()>)>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let (mut changes, mut replies) = (Vec::new(), Vec::new());
        for (attempt, mover, reply) in carried {
            if let Some(running) = self.running.get(&attempt) {
                let step = JobFileStep::MoverAssigned { mover };
                changes.push(JobFileChange { file: running.file, attempt, step });
            }
            replies.push(reply);
        }
        let done = match changes.is_empty() {
            true => Ok(()),
            false => {
                self.job_control.kernel.catalog.change_job_files(&changes, now).map_err(Fault::from).map(
                    |(_, changed)| {
                        self.changed(changed, now, events);
                    },
                )
            }
        };
        replies.into_iter().for_each(|reply| drop(reply.send(done.clone())));
    }

    pub(crate) fn taken_back(&mut self, attempts: Vec<AttemptId>, now: Timestamp, events: &mut Vec<Event>) {
        let mut changes = Vec::new();
        for attempt in attempts {
            self.copies.stop(attempt);
            if let Some(running) = self.running.get(&attempt) {
                changes.push(JobFileChange { file: running.file, attempt, step: JobFileStep::Released });
            }
        }
        if let Some(changed) = self.change(&changes, now) {
            self.changed(changed, now, events);
            for change in &changes {
                self.running.remove(&change.attempt);
            }
        }
    }

    /// None if there was nothing, or it could not be written.
    fn change(&self, changes: &[JobFileChange], now: Timestamp) -> Option<JobChanges> {
        if changes.is_empty() {
            return None;
        }
        match self.job_control.kernel.catalog.change_job_files(changes, now) {
            Ok((_, changed)) => Some(changed),
            Err(error) => {
                tracing::error!(%error, "files of jobs cannot be changed");
                None
            }
        }
    }
}
