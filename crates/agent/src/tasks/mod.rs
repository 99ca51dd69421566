//! Tasks that move no bytes between sites: scan, verify, delete.
//!
//! A task stays in the outbox log until its last fact is there, so a killed agent starts it again; tasks are
//! idempotent. A few threads run them in order of arrival.

mod cache;
mod check;
pub(crate) mod digest;
mod parallel;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use longhaul_api::agent::{Fact, Task, TaskKind};
use longhaul_engine::Export;
use longhaul_model::{Fault, FaultCode, NameRules, TaskId};
use longhaul_storage::Storage;
use longhaul_threads::spawn_core;
use parking_lot::{Condvar, Mutex};

use crate::hooks::Hooks;
use crate::outbox_log::OutboxLog;
use crate::root_marks::{RootGuard, RootMarks};
use crate::stop::StopFlag;
use crate::threads::guarded;
use scan::ScanDigests;

/// Tasks that run at once: a long scan must not delay a deletion.
const TASKS_RUNNING_MAX: usize = 4;
/// Delay between attempts to write to a state directory that refuses writes.
const STATE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What tasks need from the agent.
pub(crate) struct TaskContext {
    pub exports: Vec<Export>,
    pub hooks: Option<Arc<Hooks>>,
    pub log: Arc<OutboxLog>,
    pub roots: Arc<RootMarks>,
    pub scans: PathBuf,
    pub digest_threads: usize,
    pub stop: StopFlag,
}

/// The queue of tasks and the threads that run them.
pub(crate) struct Tasks {
    context: TaskContext,
    queue: Mutex<TaskQueue>,
    wake: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct TaskQueue {
    waiting: VecDeque<Task>,
    running: BTreeMap<TaskId, StopFlag>,
}

/// One running task with what it works on.
pub(crate) struct TaskRun<'a> {
    pub task: TaskId,
    pub storage: &'a dyn Storage,
    pub rules: &'a NameRules,
    pub hooks: Option<&'a Hooks>,
    pub log: &'a OutboxLog,
    pub root: RootGuard<'a>,
    pub scans: PathBuf,
    pub threads: usize,
    pub stop: &'a StopFlag,
}

impl Tasks {
    /// Queues the tasks that an earlier run left. Nothing runs before [`Tasks::spawn`].
    pub(crate) fn new(room: TaskContext, left: Vec<Task>) -> Arc<Tasks> {
        let wanted: Vec<TaskId> = left.iter().map(|task| task.id).collect();
        if let Err(error) = cache::remove_stale_caches(&room.scans, &wanted) {
            tracing::warn!(%error, "cannot tidy the caches of ended scans");
        }
        let queue = TaskQueue { waiting: left.into(), running: BTreeMap::new() };
        Arc::new(Tasks {
            context: room,
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            threads: Mutex::new(Vec::new()),
        })
    }

    /// Starts the threads.
    pub(crate) fn spawn(self: &Arc<Self>) -> Result<(), Fault> {
        for _ in 0..TASKS_RUNNING_MAX {
            let (runner, stop) = (self.clone(), self.context.stop.clone());
            let thread = spawn_core("task", move || stop.is_set(), move || runner.work());
            let thread = thread
                .map_err(|error| Fault::new(FaultCode::Busy, format!("cannot start a thread: {error}")))?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    pub(crate) fn add(&self, tasks: Vec<Task>) {
        self.queue.lock().waiting.extend(tasks);
        self.wake.notify_all();
    }

    /// Cancels tasks, which the log has dropped already.
    pub(crate) fn cancel(&self, tasks: &[TaskId]) {
        let mut queue = self.queue.lock();
        queue.waiting.retain(|task| !tasks.contains(&task.id));
        for task in tasks {
            match queue.running.get(task) {
                Some(stop) => stop.set(),
                None => scan::remove_cache(&self.context.scans, *task),
            }
        }
        drop(queue);
        self.context.log.wake_tasks();
    }

    /// Waits until all threads have ended. `TaskContext::stop` must be set.
    pub(crate) fn join(&self) {
        assert!(self.context.stop.is_set(), "threads end when they are told to");
        self.wake.notify_all();
        self.context.log.wake_tasks();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // `work` catches panics; there is nothing more to report here.
            let _ = thread.join();
        }
    }

    fn work(&self) {
        while let Some((task, stop)) = self.next() {
            self.carry_out(&task, &stop);
        }
    }

    /// Runs the next queued task in the caller's thread; false if there is none. Would block for ever on a
    /// task with more facts than may be unacknowledged.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn run_next(&self) -> bool {
        let next = self.take_next(&mut self.queue.lock());
        next.inspect(|(task, stop)| self.carry_out(task, stop)).is_some()
    }

    fn carry_out(&self, task: &Task, stop: &StopFlag) {
        let outcome = guarded("a task", || self.run(task, stop)).and_then(|result| result);
        if !stop.is_set() {
            self.finish(task.id, outcome, stop);
        }
        self.queue.lock().running.remove(&task.id);
        if stop.is_set() && !self.context.stop.is_set() {
            tracing::info!(task = %task.id, "task cancelled");
            scan::remove_cache(&self.context.scans, task.id);
        }
    }

    fn take_next(&self, queue: &mut TaskQueue) -> Option<(Task, StopFlag)> {
        let task = queue.waiting.pop_front()?;
        let stop = self.context.stop.child();
        queue.running.insert(task.id, stop.clone());
        Some((task, stop))
    }

    fn next(&self) -> Option<(Task, StopFlag)> {
        let mut queue = self.queue.lock();
        loop {
            if self.context.stop.is_set() {
                return None;
            }
            if let Some(next) = self.take_next(&mut queue) {
                return Some(next);
            }
            // The timeout covers a wake-up between the check and the wait.
            self.wake.wait_for(&mut queue, STATE_RETRY_INTERVAL);
        }
    }

    fn run(&self, task: &Task, stop: &StopFlag) -> Result<(), Fault> {
        let export = self.context.exports.iter().find(|export| export.storage.name() == &task.storage);
        let export = export.ok_or_else(|| {
            Fault::new(FaultCode::NotFound, format!("this agent has no storage {}", task.storage))
        })?;
        let bench = TaskRun {
            task: task.id,
            storage: export.storage.as_ref(),
            rules: &export.rules,
            hooks: self.context.hooks.as_deref(),
            log: &self.context.log,
            root: RootGuard::new(&self.context.roots, &task.storage),
            scans: self.context.scans.clone(),
            threads: self.context.digest_threads,
            stop,
        };
        bench.root.check()?;
        let done = match &task.kind {
            TaskKind::Scan { dataset, path, algorithms, digests } => {
                tracing::info!(task = %task.id, storage = %task.storage, %dataset, "scan begins");
                scan::run(&bench, path, &ScanDigests { algorithms, origin: *digests })
            }
            TaskKind::Verify { files } => {
                tracing::info!(task = %task.id, storage = %task.storage, files = files.len(), "verification \
                    begins");
                check::verify(&bench, files)
            }
            TaskKind::Delete { files } => {
                tracing::info!(task = %task.id, storage = %task.storage, files = files.len(), "deletion \
                    begins");
                check::delete(&bench, files)
            }
        };
        bench.root.check().and(done)
    }

    fn finish(&self, task: TaskId, outcome: Result<(), Fault>, stop: &StopFlag) {
        match &outcome {
            Ok(()) => tracing::info!(%task, "task done"),
            Err(fault) => tracing::warn!(%task, fault = %fault.chain(), "task failed"),
        }
        let fact = Fact::TaskDone { task, fault: outcome.err() };
        if persist(&self.context.log, &fact, stop) {
            scan::remove_cache(&self.context.scans, task);
        }
    }
}

impl TaskRun<'_> {
    /// Makes a fact durable; blocks while the service has too many to take. Breaks when told to stop, and
    /// when the root is not the storage's: what was found there says nothing about its files.
    pub(crate) fn emit(&self, fact: &Fact) -> ControlFlow<()> {
        if self.root.check().is_err() {
            return ControlFlow::Break(());
        }
        if persist(self.log, fact, self.stop) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Retries until the log takes the fact; false if told to stop.
fn persist(log: &OutboxLog, fact: &Fact, stop: &StopFlag) -> bool {
    loop {
        match log.add_task_fact(fact, stop) {
            Ok(added) => return added,
            Err(fault) => {
                tracing::error!(fault = %fault.chain(), "results of a task cannot be recorded; trying again")
            }
        }
        thread::sleep(STATE_RETRY_INTERVAL);
    }
}
