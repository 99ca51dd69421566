//! The copies that run now, no more than configured, and those that wait for one to end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use longhaul_model::job::storage_element;
use longhaul_model::{AttemptId, Fault, FaultCode};
use tokio::sync::watch;

use crate::job_control::JobControl;
use crate::jobs::Jobs;
use crate::mover::{CopyOrder, End, ForeignMover, Unmoved};
use crate::pairs::Pair;
use crate::work::Work;
use crate::{by_circuit, tape, token_renewal};

/// A copy that waits for a free slot.
struct Ready {
    attempt: AttemptId,
    file: u64,
    order: CopyOrder,
}

pub struct Copies {
    job_control: Arc<JobControl>,
    mover: Option<Arc<dyn ForeignMover>>,
    runtime: tokio::runtime::Handle,
    most: usize,
    running: BTreeMap<AttemptId, watch::Sender<bool>>,
    ready: VecDeque<Ready>,
}

impl Copies {
    pub fn new(
        job_control: Arc<JobControl>,
        mover: Option<Arc<dyn ForeignMover>>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let most = job_control.settings.jobs.copies as usize;
        Copies { job_control, mover, runtime, most, running: BTreeMap::new(), ready: VecDeque::new() }
    }

    pub fn can_move(&self) -> bool {
        self.mover.is_some()
    }

    /// Free slots.
    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.running.len() + self.ready.len())
    }

    /// Starts a copy, or queues it.
    pub fn add(&mut self, attempt: AttemptId, file: u64, order: CopyOrder, started: bool) {
        let ready = Ready { attempt, file, order };
        if started { self.start(ready) } else { self.ready.push_back(ready) }
    }

    /// Queued copies that may run now: start them once that is durable.
    pub fn next(&self) -> Vec<(u64, AttemptId)> {
        let room = self.most.saturating_sub(self.running.len()).min(self.ready.len());
        self.ready.iter().take(room).map(|ready| (ready.file, ready.attempt)).collect()
    }

    /// Starts a copy that [`Copies::next`] returned.
    pub fn go(&mut self, attempt: AttemptId) {
        if let Some(at) = self.ready.iter().position(|ready| ready.attempt == attempt)
            && let Some(ready) = self.ready.remove(at)
        {
            self.start(ready);
        }
    }

    /// Forgets a copy that has ended, or is not to begin.
    pub fn forget(&mut self, attempt: AttemptId) {
        self.running.remove(&attempt);
        self.ready.retain(|ready| ready.attempt != attempt);
    }

    /// Asks a copy to end; its end is reported as usual.
    pub fn stop(&mut self, attempt: AttemptId) {
        self.ready.retain(|ready| ready.attempt != attempt);
        if let Some(stop) = self.running.get(&attempt) {
            stop.send_replace(true);
        }
    }

    pub fn stop_all(&mut self) {
        self.ready.clear();
        for stop in self.running.values() {
            stop.send_replace(true);
        }
    }

    fn start(&mut self, ready: Ready) {
        let Some(mover) = self.mover.clone() else { return };
        let (stop, stopped) = watch::channel(false);
        self.running.insert(ready.attempt, stop);
        let job_control = self.job_control.clone();
        self.runtime.spawn(run(job_control, mover, ready, stopped));
    }
}

async fn run(
    job_control: Arc<JobControl>,
    mover: Arc<dyn ForeignMover>,
    ready: Ready,
    stop: watch::Receiver<bool>,
) {
    let Ready { attempt, file, order } = ready;
    // Checked now, since the file may have waited long after it was queued and leased.
    if let Err(fault) = may_begin(&job_control, &order, file).await {
        return job_control.jobs.send(Work::Ended(attempt, Err(fault.into())));
    }
    let now = job_control.kernel.now();
    let jobs: &Jobs = &job_control.jobs;
    let pair = pair(&order);
    jobs.pairs.begin(&pair, now);
    let counter = jobs.moving.begin(file, now);
    let (clock, scheduler, renewing) =
        (job_control.kernel.clock.clone(), job_control.kernel.scheduler.clone(), job_control.clone());
    // In its own task, so that a panic of a mover ends one copy only.
    let copying = tokio::spawn(async move {
        let progress = |bytes: u64| counter.advance(bytes, attempt, clock(), &scheduler);
        let order = token_renewal::with_renewed_tokens(&renewing, order).await?;
        let expiry = token_renewal::CredentialExpiry::new(&renewing, &order);
        if order.asks_tape
            && let Some(remote) = mover.remote()
            && let Some(fault) = tape::on_tape_fault(&renewing, &remote, &order.source).await
        {
            return Err(Unmoved { fault, standing: None, on_tape: true });
        }
        let reported = order.reports_standing.then(|| order.clone());
        let copied = by_circuit::copy(&renewing, &*mover, order, &progress, stop).await;
        match (copied, reported) {
            (Err(fault), Some(order)) if fault.code == FaultCode::NameClash => {
                Err(Unmoved { fault, standing: mover.existing_file(&order).await, on_tape: false })
            }
            (copied, _) => copied.map_err(|fault| expiry.explain(fault, renewing.kernel.now()).into()),
        }
    });
    let result = copying.await.unwrap_or_else(|error| {
        let text = format!("the copy ended abnormally: {error}");
        Err(Fault::new(FaultCode::Internal, text).into())
    });
    jobs.moving.end(file);
    let ended = job_control.kernel.now();
    jobs.pairs.end(&pair, result.as_ref().ok().map(|moved| moved.bytes), ended.since(now), ended);
    jobs.send(Work::Ended(attempt, result));
}

/// Checks the owner's rights once more. Costs no query; on its own thread because the command that maps users
/// may be slow.
async fn may_begin(job_control: &Arc<JobControl>, order: &CopyOrder, file: u64) -> Result<(), Fault> {
    let (job_control, job) = (job_control.clone(), order.job.clone());
    let asked =
        tokio::task::spawn_blocking(move || job_control.identity.may_still_transfer(&job, file)).await;
    asked.unwrap_or_else(|error| {
        Err(Fault::new(FaultCode::Internal, format!("cannot check the permissions: {error}"))
            .with_source(error))
    })
}

fn pair(order: &CopyOrder) -> Pair {
    let storage = |end: &End| storage_element(&end.url).unwrap_or_default();
    Pair {
        community: order.community.clone(),
        source: storage(&order.source),
        target: storage(&order.target),
    }
}
