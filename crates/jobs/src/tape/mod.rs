//! Files that come from tape before they are copied, and files that are watched until they are on tape: two
//! phases beside the copy, with their own limits and time-outs, by the WLCG Tape REST API.
//!
//! What waits at one storage for the same user is asked for together, in *bulks*. A bulk is a row of the
//! catalog before the tape system hears of it, and until nothing is held there for us any more; so a restart
//! goes on where it was. The one gap: if the service dies between the tape system's answer and the row that
//! has its id, the files are asked for again, and what was promised for the first request ends with its pin.
//!
//! Not here: the protocol (`storage-remote`), states (`model::job`), rows (`catalog`). What becomes of files
//! goes by the job loop, like all else of jobs. Start with [`run`]; then `gather` → `staging`, and
//! `archiving`.

mod archiving;
mod config;
mod gather;
mod staging;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_catalog::{Catalog, CatalogError, TapeStep};
use longhaul_model::job::storage_element;
use longhaul_model::{Fault, FaultCode, Locality};
use longhaul_storage_remote::Remote;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::job_control::JobControl;
use crate::mover;
pub use config::TapeConfig;
use gather::Gather;

/// Interval between two polls for due work.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after a failed write to the catalog.
const ERROR_BACKOFF: Duration = Duration::from_secs(1);
/// Concurrent requests to tape systems.
const TASKS_MAX: usize = 32;
/// When the service stops, requests in flight have this long to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What all requests to tape systems share.
#[derive(Clone)]
struct Tape {
    job_control: Arc<JobControl>,
    remote: Arc<Remote>,
}

/// Stages and archives files until told to stop. Does nothing without a client for tape systems.
pub async fn run(job_control: Arc<JobControl>, remote: Option<Arc<Remote>>, mut stop: watch::Receiver<bool>) {
    let Some(remote) = remote else { return };
    let tape = Tape { job_control, remote };
    let mut gather = Gather::default();
    let mut at_work = InFlight::default();
    loop {
        let pause = match tape.poll(&mut gather, &mut at_work).await {
            Ok(()) => POLL_INTERVAL,
            Err(fault) => {
                tracing::error!(%fault, "tape systems cannot be looked after");
                ERROR_BACKOFF
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    // A request that a tape system has taken meanwhile shall be known by its id.
    let _ = tokio::time::timeout(STOP_TIMEOUT, async { while at_work.tasks.join_next().await.is_some() {} })
        .await;
}

/// Requests in flight, so that none is made twice.
#[derive(Default)]
struct InFlight {
    tasks: JoinSet<Done>,
    bulks: BTreeSet<u64>,
    archives: bool,
}

enum Done {
    Bulk(u64),
    Archives,
}

impl InFlight {
    fn done(&mut self) {
        while let Some(done) = self.tasks.try_join_next() {
            match done {
                Ok(Done::Bulk(bulk)) => drop(self.bulks.remove(&bulk)),
                Ok(Done::Archives) => self.archives = false,
                // Nobody knows which it was: all that have ended are free again.
                Err(error) => {
                    tracing::error!(%error, "a question to a tape system ended abnormally");
                    if self.tasks.is_empty() {
                        self.bulks.clear();
                        self.archives = false;
                    }
                }
            }
        }
    }
}

/// The fault of a source file that is on tape only; none if it is on disk, or nothing says otherwise.
pub(crate) async fn on_tape_fault(
    job_control: &JobControl,
    remote: &Remote,
    source: &mover::End,
) -> Option<Fault> {
    let listed = || {
        let element = storage_element(&source.url);
        element.is_some_and(|element| job_control.settings.jobs.tape.storages.contains(&element))
    };
    let why = match remote.lies(&crate::remote::end(source)).await {
        Ok(Some(Locality::Tape)) => "its tape system says so",
        Ok(Some(_)) => return None,
        Ok(None) if listed() => {
            "service.jobs.tape.storages says so of its storage, which has no Tape REST API"
        }
        Err(fault) if listed() => {
            tracing::info!(fault = %fault.chain(), "a tape system does not say where a file lies");
            "service.jobs.tape.storages says so of its storage, which does not answer"
        }
        Ok(None) | Err(_) => return None,
    };
    let text = format!(
        "SOURCE [61] it is on tape only ({why}): replicas on disk are tried before it is brought from there"
    );
    Some(Fault::new(FaultCode::SourceUnreadable, text))
}

impl Tape {
    async fn poll(&self, gather: &mut Gather, at_work: &mut InFlight) -> Result<(), Fault> {
        at_work.done();
        let now = self.job_control.kernel.now();
        let (job_control, mut gathering) = (self.job_control.clone(), std::mem::take(gather));
        let (steps, gathering) = blocking(move || {
            let steps = gathering.next_bulks(&job_control, now)?;
            Ok((steps, gathering))
        })
        .await?;
        *gather = gathering;
        self.apply_steps(steps).await?;
        let room = TASKS_MAX.saturating_sub(at_work.bulks.len());
        let due = self.read(move |catalog| catalog.due_tape_requests(now, TASKS_MAX * 2)).await?;
        let next: Vec<u64> =
            due.into_iter().filter(|bulk| !at_work.bulks.contains(bulk)).take(room).collect();
        for bulk in next {
            at_work.bulks.insert(bulk);
            let tape = self.clone();
            at_work.tasks.spawn(async move {
                if let Err(fault) = tape.poll_bulk(bulk).await {
                    tracing::error!(%fault, bulk, "files from tape cannot be looked after");
                    tokio::time::sleep(ERROR_BACKOFF).await;
                }
                Done::Bulk(bulk)
            });
        }
        if !at_work.archives {
            at_work.archives = true;
            let tape = self.clone();
            at_work.tasks.spawn(async move {
                if let Err(fault) = tape.watch_archives().await {
                    tracing::error!(%fault, "files on their way to tape cannot be looked after");
                    tokio::time::sleep(ERROR_BACKOFF).await;
                }
                Done::Archives
            });
        }
        Ok(())
    }

    /// Has the job loop apply these steps; they are durable when this returns.
    async fn apply_steps(&self, steps: Vec<TapeStep>) -> Result<(), Fault> {
        if steps.is_empty() { Ok(()) } else { self.job_control.jobs.tape(steps).await }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Catalog) -> Result<T, CatalogError> + Send + 'static,
    ) -> Result<T, Fault> {
        let catalog = self.job_control.kernel.catalog.clone();
        blocking(move || Ok(read(&catalog)?)).await
    }

    fn config(&self) -> &TapeConfig {
        &self.job_control.settings.jobs.tape
    }
}

async fn blocking<T: Send + 'static>(
    body: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(body).await;
    done.unwrap_or_else(|error| Err(Fault::new(FaultCode::Internal, error.to_string()).with_source(error)))
}
