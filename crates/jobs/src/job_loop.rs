//! The job loop: one thread through which all that happens to jobs becomes durable, many things in one
//! transaction, before it is told to anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use longhaul_catalog::{CatalogError, JobChanges, JobFileTransition, NewJob, SubmitResult};
use longhaul_control::brain::Input;
use longhaul_control::event_loop::{EventLoop, InputQueue, LoopStep};
use longhaul_control::limits;
use longhaul_model::job::TRANSFER_CANCELED;
use longhaul_model::{
    AttemptId, Epoch, Fault, FaultCode, FileId, JobFileState, JobKind, Retry, StorageId, Timestamp,
};
use longhaul_scheduler::{Event, Lease};

use crate::JobControl;
use crate::config_store::Objects;
use crate::copies::Copies;
use crate::job_options::Terms;
use crate::mover::ForeignMover;
use crate::queues::{Queues, counts, withdrawn};
use crate::{JobNews, Moved, Reply, Unmoved, Work, ids};

/// Taken up at once: one transaction of each kind.
const WORK_BATCH_MAX: usize = 1_000;
/// What waits for a time is looked at so often.
const DUE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Jobs that waited too long are looked for so often.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// After a failed write: until the next.
pub(crate) const WRITE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// One copy that was given out.
pub(crate) struct Running {
    /// As the scheduler knows it; a replica of it may be the one that is copied.
    pub asked: FileId,
    pub file: u64,
    pub target: StorageId,
    pub epoch: Epoch,
    /// The queue by which the scheduler gave it out.
    pub queue: u64,
    pub kind: JobKind,
    pub retries: u32,
    pub terms: Terms,
    /// It was brought from tape for this.
    pub staged: bool,
    /// It is watched afterwards until it is on tape.
    pub archives: bool,
}

pub struct JobLoop {
    inputs: InputQueue<Work>,
    pub(crate) job_control: Arc<JobControl>,
    pub(crate) copies: Copies,
    pub(crate) queues: Queues,
    pub(crate) running: BTreeMap<AttemptId, Running>,
    /// Queues in which something may be tried again, from then on.
    pub(crate) resting: BTreeSet<(Timestamp, u64)>,
    expired: Timestamp,
    /// When the next of the numbers ends that were set by hand for pairs of storages.
    by_hand: Option<Timestamp>,
    /// What copies came to while it could not be written down.
    pub(crate) held: Vec<(AttemptId, Result<Moved, Unmoved>)>,
    recovery: Recovery,
}

/// How far the jobs of an earlier start have been taken up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recovery {
    Due,
    /// It failed, and is due again after a pause or an input.
    Failed,
    Done,
}

impl EventLoop for JobLoop {
    type Input = Work;
    const BATCH_MAX: usize = WORK_BATCH_MAX;
    const WAIT_MAX: Duration = WRITE_RETRY_DELAY;

    fn inputs(&mut self) -> &mut InputQueue<Work> {
        &mut self.inputs
    }

    fn first_wake(&self) -> Option<Timestamp> {
        Some(Timestamp::ZERO)
    }

    fn step(&mut self, now: Timestamp) -> LoopStep {
        let recovered = self.recovery == Recovery::Done;
        if let Some(failed) = self.recover(now) {
            return failed;
        }
        if !recovered {
            return LoopStep::Wait { until: Some(now.plus(DUE_CHECK_INTERVAL)) };
        }
        let batch = Batch::from_work(self.inputs.drain());
        let stop = batch.stop;
        self.handle(batch, now);
        if stop { LoopStep::Stop } else { LoopStep::Wait { until: Some(now.plus(DUE_CHECK_INTERVAL)) } }
    }
}

/// What came about the same time, by kind. The order between kinds does not matter: who needs one waits for
/// its answer.
#[derive(Default)]
struct Batch {
    submissions: Vec<(Vec<NewJob>, Reply<Vec<SubmitResult>>)>,
    asked: Vec<Work>,
    carried: Vec<(AttemptId, String, Reply<()>)>,
    leases: Vec<(Box<Lease>, String)>,
    taken_back: Vec<AttemptId>,
    ended: Vec<(AttemptId, Result<Moved, Unmoved>)>,
    stop: bool,
}

impl Batch {
    fn from_work(work: impl Iterator<Item = Work>) -> Batch {
        let mut batch = Batch::default();
        for one in work {
            match one {
                Work::Submit(jobs, reply) => batch.submissions.push((jobs, reply)),
                Work::Lease(lease, choice) => batch.leases.push((lease, choice)),
                Work::TakeBack(attempt, _) => batch.taken_back.push(attempt),
                Work::Ended(attempt, result) => batch.ended.push((attempt, result)),
                Work::Carried(attempt, mover, reply) => batch.carried.push((attempt, mover, reply)),
                asked @ (Work::Cancel(..)
                | Work::Priority(..)
                | Work::Force(..)
                | Work::Changed(..)
                | Work::Tape(..)
                | Work::Configured
                | Work::Storage(..)) => batch.asked.push(asked),
                Work::Stop => batch.stop = true,
            }
        }
        batch
    }
}

impl JobLoop {
    /// `runtime` is where copies run.
    pub fn new(
        job_control: Arc<JobControl>,
        work: Receiver<Work>,
        mover: Option<Arc<dyn ForeignMover>>,
        runtime: tokio::runtime::Handle,
    ) -> JobLoop {
        let copies = Copies::new(job_control.clone(), mover, runtime);
        let queues = Queues::new(job_control.settings.jobs.host_copies);
        JobLoop {
            inputs: InputQueue::new(work),
            job_control,
            copies,
            queues,
            running: BTreeMap::new(),
            resting: BTreeSet::new(),
            expired: Timestamp::ZERO,
            by_hand: None,
            held: Vec::new(),
            recovery: Recovery::Due,
        }
    }

    /// Stops the copies that run: they are taken up at the next start.
    pub fn stop(mut self) {
        self.copies.stop_all();
    }

    /// Takes up the jobs of an earlier start, unless that has been done; what follows if it could not.
    fn recover(&mut self, now: Timestamp) -> Option<LoopStep> {
        if self.recovery == Recovery::Failed && matches!(self.inputs.pop(), Some(Work::Stop)) {
            return Some(LoopStep::Stop);
        }
        if self.recovery != Recovery::Done
            && let Err(error) = self.take_up()
        {
            tracing::error!(%error, "jobs cannot be taken up");
            self.recovery = Recovery::Failed;
            return Some(LoopStep::Wait { until: Some(now.plus(WRITE_RETRY_DELAY)) });
        }
        self.recovery = Recovery::Done;
        None
    }

    /// After a start: what there is, and what ran before.
    fn take_up(&mut self) -> Result<(), CatalogError> {
        let (catalog, now) = (self.job_control.kernel.catalog.clone(), self.job_control.kernel.now());
        catalog.index_open_targets(self.job_control.settings.fts.check_duplicates)?;
        catalog.release_running_jobs(now)?;
        self.job_control.listener.jobs_changed();
        let ends = catalog.job_endpoints()?;
        let queues = catalog.job_queues()?;
        self.resting.extend(catalog.backed_off_job_files(now)?);
        tracing::info!(ends = ends.len(), queues = queues.len(), "taking up jobs");
        let mut events = self.queues.ends(&ends, &self.configured(), self.may_begin());
        events.push(limits::event(
            &catalog,
            &self.job_control.control.marks,
            &*self.job_control.config_store,
            now,
        )?);
        events.push(limits::link_shares_event(&*self.job_control.config_store)?);
        self.queues.add(queues, now);
        events.extend(self.queues.events());
        self.job_control.kernel.notify_scheduler(Input::Events(events));
        Ok(())
    }

    fn handle(&mut self, batch: Batch, now: Timestamp) {
        let mut events = Vec::new();
        self.ended(batch.ended, now, &mut events);
        self.taken_back(batch.taken_back, now, &mut events);
        self.submissions(batch.submissions, now, &mut events);
        batch.asked.into_iter().for_each(|asked| self.asked(asked, now, &mut events));
        self.carried(batch.carried, now, &mut events);
        self.leases(batch.leases, now, &mut events);
        self.start_ready(now, &mut events);
        self.run_due(now, &mut events);
        events.extend(self.queues.events());
        if !events.is_empty() {
            self.job_control.kernel.notify_scheduler(Input::Events(events));
        }
    }

    // ---- what people ask ------------------------------------------------------------------------------

    fn submissions(
        &mut self,
        submissions: Vec<(Vec<NewJob>, Reply<Vec<SubmitResult>>)>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        if submissions.is_empty() {
            return;
        }
        let counts: Vec<usize> = submissions.iter().map(|(jobs, _)| jobs.len()).collect();
        let (jobs, replies): (Vec<_>, Vec<_>) = submissions.into_iter().unzip();
        let jobs: Vec<NewJob> = jobs.into_iter().flatten().collect();
        match self.job_control.kernel.catalog.submit_jobs(&jobs) {
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
                tracing::error!(fault = %fault.chain(), "jobs could not be taken in");
                replies.into_iter().for_each(|reply| drop(reply.send(Err(fault.clone()))));
            }
        }
    }

    fn asked(&mut self, asked: Work, now: Timestamp, events: &mut Vec<Event>) {
        let catalog = self.job_control.kernel.catalog.clone();
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
            Work::Tape(steps, reply) => {
                let done = catalog.step_tape(&steps, now).map(|changed| ((), changed));
                self.answer(done, reply, now, events)
            }
            Work::Configured => {
                events.extend(self.queues.hosts(&self.configured()));
                events.extend(self.queues.movers(self.may_begin()));
                self.limits(events);
                self.link_shares(events);
            }
            Work::Storage(storage, vo, step, reply) => {
                let done = catalog.step_storage_files(&storage, vo.as_deref(), step, now);
                self.answer(done, reply, now, events)
            }
            _ => {}
        }
    }

    fn answer<T>(
        &mut self,
        done: Result<(T, JobChanges), CatalogError>,
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

    /// What administrators set by FTS's API.
    pub(crate) fn configured(&self) -> Arc<Objects> {
        self.job_control.config_store.get().unwrap_or_else(|refusal| {
            tracing::error!(%refusal, "nothing of FTS's configuration counts");
            Arc::default()
        })
    }

    fn may_begin(&self) -> bool {
        self.copies.can_move() && !self.job_control.drains()
    }

    /// Storages that the scheduler is told of just before have their limits.
    fn limits(&self, events: &mut Vec<Event>) {
        match limits::event(
            &self.job_control.kernel.catalog,
            &self.job_control.control.marks,
            &*self.job_control.config_store,
            self.job_control.kernel.now(),
        ) {
            Ok(event) => events.push(event),
            Err(error) => tracing::error!(%error, "limits cannot be read"),
        }
    }

    fn link_shares(&self, events: &mut Vec<Event>) {
        match limits::link_shares_event(&*self.job_control.config_store) {
            Ok(event) => events.push(event),
            Err(error) => tracing::error!(%error, "the weights of links cannot be read"),
        }
    }

    // ---- what follows --------------------------------------------------------------------------------

    /// What a transaction changed: counts, the scheduler's view, copies that shall end, and who listens.
    pub(crate) fn changed(&mut self, changed: JobChanges, now: Timestamp, events: &mut Vec<Event>) {
        if !changed.files.is_empty() {
            self.job_control.listener.jobs_changed();
        }
        if !changed.new_endpoints.is_empty() {
            let (configured, may_begin) = (self.configured(), self.may_begin());
            events.extend(self.queues.ends(&changed.new_endpoints, &configured, may_begin));
            if configured.limit_something() {
                self.limits(events);
            }
            if !configured.shares.is_empty() {
                self.link_shares(events);
            }
        }
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
            let _ = self.job_control.jobs.news.send(JobNews::File(news));
        }
        for (job, state) in changed.jobs {
            let _ = self.job_control.jobs.news.send(JobNews::Job(job, state));
        }
    }

    /// A user ended it in the midst of its copy.
    fn cancelled(&mut self, attempt: AttemptId, events: &mut Vec<Event>) {
        self.copies.stop(attempt);
        let fault = Fault::new(FaultCode::Cancelled, TRANSFER_CANCELED).retrying(Retry::Now);
        self.tell_outcome(attempt, Err(fault), events);
        self.running.remove(&attempt);
    }

    fn count(&mut self, news: &JobFileTransition, now: Timestamp) {
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
        match self.job_control.kernel.catalog.job_queue(queue) {
            Ok(row) => self.queues.add(row.into_iter().collect(), now),
            Err(error) => tracing::error!(%error, queue, "a queue of jobs cannot be read"),
        }
    }

    /// Does what was waiting for its time.
    fn run_due(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        while let Some(&(at, queue)) = self.resting.first()
            && at <= now
        {
            self.resting.pop_first();
            self.queues.touch(queue);
        }
        if self.by_hand.is_some_and(|until| until <= now) {
            self.limits(events);
        }
        self.by_hand = self.configured().next_by_hand(now);
        if now.since(self.expired) < EXPIRY_CHECK_INTERVAL {
            return;
        }
        self.expired = now;
        match self.job_control.kernel.catalog.expire_jobs(now) {
            Ok(changed) => self.changed(changed, now, events),
            Err(error) => tracing::error!(%error, "jobs that waited too long cannot be ended"),
        }
    }
}
