//! The handle of the job loop: gives it work, and listens to what it publishes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use longhaul_catalog::{JobCancelResult, JobChanges, NewJob, StorageStep, SubmitResult, TapeStep};
use longhaul_model::{Fault, FaultCode, JobId};
use tokio::sync::{broadcast, oneshot};

use crate::agent_streams::StreamLedger;
use crate::by_circuit::CircuitUsage;
use crate::executor::JobExecutor;
use crate::pairs::Pairs;
use crate::progress::{Progress, RunningCopies};
use crate::work::{JobNews, Reply, Work};

/// Capacity of the news channel: a listener that is further behind misses some.
const NEWS_MAX: usize = 4_096;

/// Gives work to the job loop: everything is durable when it is answered.
pub struct Jobs {
    pub(crate) work_sender: Sender<Work>,
    pub(crate) news: broadcast::Sender<JobNews>,
    pub(crate) moving: RunningCopies,
    pub(crate) pairs: Pairs,
    pub(crate) circuit_usage: CircuitUsage,
    /// Copies that agents stream.
    pub stream_ledger: Arc<StreamLedger>,
}

impl Jobs {
    pub fn new() -> (Jobs, Receiver<Work>) {
        let (desk, work) = channel();
        (
            Jobs {
                work_sender: desk,
                news: broadcast::Sender::new(NEWS_MAX),
                moving: RunningCopies::default(),
                pairs: Pairs::default(),
                circuit_usage: CircuitUsage::default(),
                stream_ledger: Arc::default(),
            },
            work,
        )
    }

    /// History of pairs of storages.
    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// Submits jobs, each independent of the others.
    pub async fn submit(&self, jobs: Vec<NewJob>) -> Result<Vec<SubmitResult>, Fault> {
        self.request(|reply| Work::Submit(jobs, reply)).await
    }

    /// Cancels jobs, or some of their files, for a reason.
    pub async fn cancel(
        &self,
        wanted: Vec<(JobId, Option<Vec<u64>>)>,
        reason: &str,
    ) -> Result<Vec<JobCancelResult>, Fault> {
        self.request(|reply| Work::Cancel(wanted, reason.to_owned(), reply)).await
    }

    /// Sets the priority of jobs. None: there is no such job; false: it has ended.
    pub async fn priority(&self, jobs: Vec<JobId>, priority: u8) -> Result<Vec<Option<bool>>, Fault> {
        self.request(|reply| Work::Priority(jobs, priority.clamp(1, 5), reply)).await
    }

    /// Moves waiting files before all others; returns how many were waiting.
    pub async fn force_start(&self, files: Vec<u64>) -> Result<usize, Fault> {
        self.request(|reply| Work::Force(files, reply)).await
    }

    /// As [`Jobs::submit`], where the caller may block.
    pub fn submit_blocking(&self, jobs: Vec<NewJob>) -> Result<Vec<SubmitResult>, Fault> {
        self.request_blocking(|reply| Work::Submit(jobs, reply))
    }

    pub fn cancel_blocking(
        &self,
        wanted: Vec<(JobId, Option<Vec<u64>>)>,
        reason: &str,
    ) -> Result<Vec<JobCancelResult>, Fault> {
        self.request_blocking(|reply| Work::Cancel(wanted, reason.to_owned(), reply))
    }

    pub fn priority_blocking(&self, jobs: Vec<JobId>, priority: u8) -> Result<Vec<Option<bool>>, Fault> {
        self.request_blocking(|reply| Work::Priority(jobs, priority.clamp(1, 5), reply))
    }

    pub fn force_start_blocking(&self, files: Vec<u64>) -> Result<usize, Fault> {
        self.request_blocking(|reply| Work::Force(files, reply))
    }

    /// Reports changes of jobs that somebody else made in the catalog, so that running files are stopped.
    pub fn changed(&self, changed: JobChanges) {
        self.send(Work::Changed(Box::new(changed)));
    }

    /// Applies a step to files that come from or go to a storage, some jobs at a time: repeat until none is
    /// returned.
    pub async fn storage(
        &self,
        storage: &str,
        vo: Option<&str>,
        step: StorageStep<'static>,
    ) -> Result<Vec<JobId>, Fault> {
        self.request(|reply| Work::Storage(storage.to_owned(), vo.map(str::to_owned), step, reply)).await
    }

    /// Applies the answers of tape systems.
    pub async fn tape(&self, steps: Vec<TapeStep>) -> Result<(), Fault> {
        self.request(|reply| Work::Tape(steps, reply)).await
    }

    /// Reports that limits of storages or links have changed.
    pub fn configured(&self) {
        self.send(Work::Configured);
    }

    pub fn news(&self) -> broadcast::Receiver<JobNews> {
        self.news.subscribe()
    }

    /// Progress of a file that is being copied.
    pub fn progress(&self, file: u64) -> Option<Progress> {
        self.moving.progress(file)
    }

    /// The executor that passes the scheduler's leases to the job loop.
    pub fn executor(&self) -> Box<JobExecutor> {
        Box::new(JobExecutor(self.work_sender.clone()))
    }

    pub fn send(&self, work: Work) {
        // The job loop is gone only when the service stops.
        let _ = self.work_sender.send(work);
    }

    pub(crate) fn request_blocking<T>(&self, work: impl FnOnce(Reply<T>) -> Work) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(work(reply));
        answer.blocking_recv().unwrap_or_else(|_| Err(stopping()))
    }

    pub(crate) async fn request<T>(&self, work: impl FnOnce(Reply<T>) -> Work) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(work(reply));
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

fn stopping() -> Fault {
    Fault::new(FaultCode::Busy, "the service is stopping")
}
