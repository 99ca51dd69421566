//! The desk: one thread through which all that happens to jobs becomes durable, many things in one transaction, before
//! it is told to anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use longhaul_catalog::{
    CatalogError, JobFileChange, JobFileChanged, JobFileNews, JobFileStep, JobsChanged, NewJob, Submitted,
};
use longhaul_model::job::{TRANSFER_CANCELED, reason, retries_of};
use longhaul_model::{
    AttemptId, Epoch, Fault, FaultCode, FileId, JobFileState, JobKind, Retry, StorageId, Timestamp,
};
use longhaul_scheduler::{Event, Lease, Outcome};

use super::copies::Copies;
use super::mover::ForeignMover;
use super::queues::{Queues, counts, withdrawn};
use super::terms::Terms;
use super::{JobNews, Moved, Reply, Work, ids, order};
use crate::brain::Input;
use crate::shared::Shared;

/// Taken up at once: one transaction of each kind.
const WORK_AT_ONCE: usize = 1_000;
/// What waits for a time is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Jobs that waited too long are looked for so often.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
/// After a failed write: until the next.
const PAUSE: Duration = Duration::from_secs(1);

/// One copy that was given out.
struct Running {
    /// As the scheduler knows it; a replica of it may be the one that is copied.
    asked: FileId,
    file: u64,
    target: StorageId,
    epoch: Epoch,
    /// The queue by which the scheduler gave it out.
    queue: u64,
    kind: JobKind,
    retries: u32,
    terms: Terms,
}

struct Desk {
    shared: Arc<Shared>,
    copies: Copies,
    queues: Queues,
    running: BTreeMap<AttemptId, Running>,
    /// Queues in which something may be tried again, from then on.
    resting: BTreeSet<(Timestamp, u64)>,
    expired: Timestamp,
    /// What copies came to while it could not be written down.
    held: Vec<(AttemptId, Result<Moved, Fault>)>,
}

/// Works until told to stop. Copies that run then are stopped, and taken up at the next start.
pub fn run(
    shared: Arc<Shared>,
    work: &Receiver<Work>,
    mover: Option<Arc<dyn ForeignMover>>,
    runtime: tokio::runtime::Handle,
) {
    let copies = Copies::new(shared.clone(), mover, runtime);
    let mut desk = Desk {
        shared,
        copies,
        queues: Queues::default(),
        running: BTreeMap::new(),
        resting: BTreeSet::new(),
        expired: Timestamp::ZERO,
        held: Vec::new(),
    };
    while let Err(error) = desk.take_up() {
        tracing::error!(%error, "jobs cannot be taken up");
        if matches!(work.recv_timeout(PAUSE), Ok(Work::Stop) | Err(RecvTimeoutError::Disconnected)) {
            return;
        }
    }
    loop {
        let first = match work.recv_timeout(LOOK_EVERY) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let batch = Batch::of(first.into_iter().chain(work.try_iter().take(WORK_AT_ONCE)));
        let stop = batch.stop;
        desk.handle(batch);
        if stop {
            break;
        }
    }
    desk.copies.stop_all();
}

/// What came about the same time, by kind. The order between kinds does not matter: who needs one waits for its answer.
#[derive(Default)]
struct Batch {
    submissions: Vec<(Vec<NewJob>, Reply<Vec<Submitted>>)>,
    asked: Vec<Work>,
    leases: Vec<(Box<Lease>, String)>,
    taken_back: Vec<AttemptId>,
    ended: Vec<(AttemptId, Result<Moved, Fault>)>,
    stop: bool,
}

impl Batch {
    fn of(work: impl Iterator<Item = Work>) -> Batch {
        let mut batch = Batch::default();
        for one in work {
            match one {
                Work::Submit(jobs, reply) => batch.submissions.push((jobs, reply)),
                Work::Lease(lease, choice) => batch.leases.push((lease, choice)),
                Work::TakeBack(attempt, _) => batch.taken_back.push(attempt),
                Work::Ended(attempt, result) => batch.ended.push((attempt, result)),
                asked @ (Work::Cancel(..) | Work::Priority(..) | Work::Force(..) | Work::Changed(..) | Work::Storage(..)) => {
                    batch.asked.push(asked)
                }
                Work::Stop => batch.stop = true,
            }
        }
        batch
    }
}

impl Desk {
    /// After a start: what there is, and what ran before.
    fn take_up(&mut self) -> Result<(), CatalogError> {
        let (catalog, now) = (self.shared.catalog.clone(), self.shared.now());
        catalog.release_running_jobs(now)?;
        let ends = catalog.job_ends()?;
        let queues = catalog.job_queues()?;
        self.resting.extend(catalog.resting_job_files(now)?);
        tracing::info!(ends = ends.len(), queues = queues.len(), "taking up jobs");
        let mut events = self.queues.ends(&ends, self.shared.config.jobs.host_copies, self.copies.can_move());
        self.queues.add(queues, now);
        events.extend(self.queues.events());
        self.shared.tell(Input::Events(events));
        Ok(())
    }

    fn handle(&mut self, batch: Batch) {
        let now = self.shared.now();
        let mut events = Vec::new();
        self.ended(batch.ended, now, &mut events);
        self.taken_back(batch.taken_back, now, &mut events);
        self.submissions(batch.submissions, now, &mut events);
        batch.asked.into_iter().for_each(|asked| self.asked(asked, now, &mut events));
        self.leases(batch.leases, now, &mut events);
        self.start_ready(now, &mut events);
        self.look(now, &mut events);
        events.extend(self.queues.events());
        if !events.is_empty() {
            self.shared.tell(Input::Events(events));
        }
    }

    // ---- what people ask ------------------------------------------------------------------------------

    fn submissions(
        &mut self,
        submissions: Vec<(Vec<NewJob>, Reply<Vec<Submitted>>)>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        if submissions.is_empty() {
            return;
        }
        let counts: Vec<usize> = submissions.iter().map(|(jobs, _)| jobs.len()).collect();
        let (jobs, replies): (Vec<_>, Vec<_>) = submissions.into_iter().unzip();
        let jobs: Vec<NewJob> = jobs.into_iter().flatten().collect();
        match self.shared.catalog.submit_jobs(&jobs) {
            Ok((answers, changed)) => {
                self.changed(changed, now, events);
                let mut answers = answers.into_iter();
                for (count, reply) in counts.into_iter().zip(replies) {
                    // Who asked may have given up.
                    let _ = reply.send(Ok(answers.by_ref().take(count).collect()));
                }
            }
            Err(error) => {
                let fault = Fault::from(error);
                tracing::error!(%fault, "jobs could not be taken in");
                replies.into_iter().for_each(|reply| drop(reply.send(Err(fault.clone()))));
            }
        }
    }

    fn asked(&mut self, asked: Work, now: Timestamp, events: &mut Vec<Event>) {
        let catalog = self.shared.catalog.clone();
        match asked {
            Work::Cancel(wanted, why, reply) => {
                self.answer(catalog.cancel_job_files(&wanted, &why, now), reply, now, events)
            }
            Work::Priority(jobs, priority, reply) => {
                self.answer(catalog.set_job_priority(&jobs, priority), reply, now, events)
            }
            Work::Force(files, reply) => {
                self.answer(catalog.force_job_files(&files, now), reply, now, events)
            }
            Work::Changed(changed) => self.changed(*changed, now, events),
            Work::Storage(storage, vo, step, reply) => {
                let done = catalog.step_storage_files(&storage, vo.as_deref(), step, now);
                self.answer(done, reply, now, events)
            }
            _ => {}
        }
    }

    fn answer<T>(
        &mut self,
        done: Result<(T, JobsChanged), CatalogError>,
        reply: Reply<T>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let answer = done.map_err(Fault::from).map(|(value, changed)| {
            self.changed(changed, now, events);
            value
        });
        let _ = reply.send(answer);
    }

    // ---- copies --------------------------------------------------------------------------------------

    fn leases(&mut self, leases: Vec<(Box<Lease>, String)>, now: Timestamp, events: &mut Vec<Event>) {
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
        let (answers, changed) = match self.shared.catalog.change_job_files(&changes, now) {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "copies cannot begin");
                events
                    .extend(leases.iter().map(|(lease, _)| Event::LeaseReleased { attempt: lease.attempt }));
                // Else the same would be decided at once.
                std::thread::sleep(PAUSE);
                return;
            }
        };
        for (at, ((lease, _), answer)) in leases.iter().zip(answers).enumerate() {
            let JobFileChanged::Begun(work) = answer else {
                // It was cancelled, say, between the decision and here.
                events.push(Event::LeaseReleased { attempt: lease.attempt });
                events.push(Event::ReplicaAdded { file: lease.file, storage: lease.target });
                self.queues.touch(ids::queue(lease.block));
                continue;
            };
            let terms = Terms::of(&work.job);
            let order = order::order(&self.shared.catalog, &work, &terms, lease.attempt);
            let running = Running {
                asked: lease.file,
                file: work.file.id,
                target: lease.target,
                epoch: lease.epoch,
                queue: ids::queue(lease.block),
                kind: work.job.kind,
                retries: work.file.retries,
                terms,
            };
            self.running.insert(lease.attempt, running);
            match order {
                Ok(order) => self.copies.add(lease.attempt, work.file.id, order, at < room),
                Err(fault) => self.shared.jobs.tell(Work::Ended(lease.attempt, Err(fault))),
            }
            if at < room {
                events.push(Event::Started { attempt: lease.attempt });
            }
        }
        self.changed(changed, now, events);
    }

    /// Room has come for some that were given out before.
    fn start_ready(&mut self, now: Timestamp, events: &mut Vec<Event>) {
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
    fn ended(
        &mut self,
        ended: Vec<(AttemptId, Result<Moved, Fault>)>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let mut changes = Vec::new();
        let mut told = Vec::new();
        for (attempt, result) in std::mem::take(&mut self.held).into_iter().chain(ended) {
            self.copies.forget(attempt);
            // Those that were cancelled are nobody's business any more.
            let Some(running) = self.running.get(&attempt) else { continue };
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
            std::thread::sleep(PAUSE);
            return;
        };
        for (attempt, result) in told {
            self.tell_outcome(attempt, result, events);
        }
        for change in &changes {
            if let JobFileStep::Again { not_before, .. } = &change.step
                && let Some(news) = changed.files.iter().find(|news| news.file == change.file)
            {
                self.resting.insert((*not_before, news.queue));
            }
        }
        self.changed(changed, now, events);
        changes.iter().for_each(|change| drop(self.running.remove(&change.attempt)));
    }

    fn step(&self, running: &Running, result: &Result<Moved, Fault>, now: Timestamp) -> JobFileStep {
        let fault = match result {
            Ok(moved) => return JobFileStep::Arrived { bytes: moved.bytes, mode: moved.mode.clone() },
            Err(fault) => fault,
        };
        let config = &self.shared.config.jobs;
        let recoverable = fault.retry != Retry::Never;
        let reason = reason(fault);
        if recoverable && running.retries < retries_of(running.kind, running.terms.retry, config.retries) {
            let usual = Duration::from_secs(u64::from(config.retry_delay_s));
            let not_before = now + running.terms.retry_delay.unwrap_or(usual);
            return JobFileStep::Again { reason, not_before };
        }
        JobFileStep::Failed { reason, recoverable }
    }

    /// The scheduler hears how it went, and that it has no more to do with this file: whether it is tried again is
    /// its job's to say.
    fn tell_outcome(&self, attempt: AttemptId, result: Result<Moved, Fault>, events: &mut Vec<Event>) {
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

    fn taken_back(&mut self, attempts: Vec<AttemptId>, now: Timestamp, events: &mut Vec<Event>) {
        let mut changes = Vec::new();
        for attempt in attempts {
            self.copies.stop(attempt);
            if let Some(running) = self.running.get(&attempt) {
                changes.push(JobFileChange { file: running.file, attempt, step: JobFileStep::Released });
            }
        }
        if let Some(changed) = self.change(&changes, now) {
            self.changed(changed, now, events);
            changes.iter().for_each(|change| drop(self.running.remove(&change.attempt)));
        }
    }

    /// None if there was nothing, or it could not be written.
    fn change(&self, changes: &[JobFileChange], now: Timestamp) -> Option<JobsChanged> {
        if changes.is_empty() {
            return None;
        }
        match self.shared.catalog.change_job_files(changes, now) {
            Ok((_, changed)) => Some(changed),
            Err(error) => {
                tracing::error!(%error, "files of jobs cannot be changed");
                None
            }
        }
    }

    // ---- what follows --------------------------------------------------------------------------------

    /// What a transaction changed: counts, the scheduler's view, copies that shall end, and who listens.
    fn changed(&mut self, changed: JobsChanged, now: Timestamp, events: &mut Vec<Event>) {
        let can_move = self.copies.can_move();
        let host_copies = self.shared.config.jobs.host_copies;
        events.extend(self.queues.ends(&changed.new_ends, host_copies, can_move));
        self.queues.add(changed.new_queues, now);
        for news in changed.files {
            self.count(&news, now);
            if news.to == JobFileState::Canceled && news.from.is_running() {
                self.cancelled(news.attempt, events);
            } else if withdrawn(&news)
                && let Some(target) = self.queues.target(news.queue_before)
            {
                let storage = ids::target(target);
                events.push(Event::ReplicaAdded { file: ids::file(news.file), storage });
            }
            // Nobody may listen.
            let _ = self.shared.jobs.news.send(JobNews::File(news));
        }
        for (job, state) in changed.jobs {
            let _ = self.shared.jobs.news.send(JobNews::Job(job, state));
        }
    }

    /// A user ended it in the midst of its copy.
    fn cancelled(&mut self, attempt: AttemptId, events: &mut Vec<Event>) {
        self.copies.stop(attempt);
        let fault = Fault::new(FaultCode::Cancelled, TRANSFER_CANCELED).retrying(Retry::Now);
        self.tell_outcome(attempt, Err(fault), events);
        self.running.remove(&attempt);
    }

    fn count(&mut self, news: &JobFileNews, now: Timestamp) {
        // What runs is counted where the scheduler gave it out, whatever its priority has become.
        let given_by = self.running.get(&news.attempt).map_or(news.queue_before, |running| running.queue);
        let before = match news.from {
            from if from.is_running() => Some(given_by),
            from if from.is_queued() => Some(news.queue_before),
            _ => None,
        };
        let after = match news.to {
            to if to.is_running() => Some(given_by),
            to if to.is_queued() => Some(news.queue),
            _ => None,
        };
        debug_assert!(before.is_some() == counts(news.from) && after.is_some() == counts(news.to));
        // A file that is new has no state before: it comes from NOT_USED.
        if before == after {
            after.into_iter().for_each(|queue| self.queues.touch(queue));
            return;
        }
        if let Some(queue) = before {
            self.queues.count(queue, news.size, false, now);
        }
        if let Some(queue) = after {
            self.know(queue, now);
            self.queues.count(queue, news.size, true, now);
        }
    }

    /// A queue that was empty for a while is read again.
    fn know(&mut self, queue: u64, now: Timestamp) {
        if self.queues.knows(queue) {
            return;
        }
        match self.shared.catalog.job_queue(queue) {
            Ok(row) => self.queues.add(row.into_iter().collect(), now),
            Err(error) => tracing::error!(%error, queue, "a queue of jobs cannot be read"),
        }
    }

    /// What waits for a time.
    fn look(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        while let Some(&(at, queue)) = self.resting.first()
            && at <= now
        {
            self.resting.pop_first();
            self.queues.touch(queue);
        }
        if now.since(self.expired) < EXPIRE_EVERY {
            return;
        }
        self.expired = now;
        match self.shared.catalog.expire_jobs(now) {
            Ok(changed) => self.changed(changed, now, events),
            Err(error) => tracing::error!(%error, "jobs that waited too long cannot be ended"),
        }
    }
}
