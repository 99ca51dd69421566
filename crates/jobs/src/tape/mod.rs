//! Files that come from tape before they are copied, and files that are watched until they are on tape: two
//! phases beside the copy, with their own limits and time-outs, by the WLCG Tape REST API.
//!
//! What waits at one storage for the same user is asked for together, in *bulks*. A bulk is a row of the
//! catalog before the tape system hears of it, and until nothing is held there for us any more; so a restart
//! goes on where it was. The one gap: if the service dies between the tape system's answer and the row that
//! has its id, the files are asked for again, and what was promised for the first request ends with its pin.
//!
//! Not here: the protocol (`storage-remote`), states (`model::job`), rows (`catalog`). What becomes of files
//! goes by the job loop, like all else of jobs. Start with [`run`]; then `gather` → `staging`, and `archiving`.

mod archiving;
mod gather;
mod staging;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_catalog::{Catalog, CatalogError, TapeStep};
use longhaul_model::job::storage_element;
use longhaul_model::{Fault, FaultCode, Locality, Timestamp};
use longhaul_storage_remote::Remote;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::JobControl;
use crate::mover;
use gather::Gather;

/// Between two looks at what there is to do.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After something that could not be written.
const PAUSE: Duration = Duration::from_secs(1);
/// Questions under way at a time.
const QUESTIONS_MAX: usize = 32;
/// Those that are under way when the service stops have so long to end.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// What an administrator can set about tape systems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TapeConfig {
    /// Files that are asked for, or asked about, at once.
    pub bulk_files: u32,
    /// Seconds that a file waits for others before it is asked for without them.
    pub bulk_wait_s: u32,
    /// Requests at all tape systems together.
    pub requests: u32,
    /// Seconds until a request is looked at for the first time; then ever more seldom …
    pub poll_first_s: u32,
    /// … until it is looked at so often.
    pub poll_last_s: u32,
    /// Storages (`https://tape.example.org`) whose files are taken to be on tape where they do not say where
    /// they are.
    pub storages: Vec<String>,
}

impl Default for TapeConfig {
    fn default() -> Self {
        TapeConfig {
            bulk_files: 200,
            bulk_wait_s: 30,
            requests: 1_000,
            poll_first_s: 30,
            poll_last_s: 600,
            storages: Vec::new(),
        }
    }
}

impl TapeConfig {
    pub fn check(&self) -> Result<(), Fault> {
        let wrong = |text: &str| Err(Fault::new(FaultCode::BadRequest, format!("service.jobs.tape.{text}")));
        if !(1..=10_000).contains(&self.bulk_files) {
            return wrong("bulk_files: 1 to 10000 are possible");
        }
        if self.requests == 0 {
            return wrong("requests is 0: it must be positive");
        }
        if self.poll_first_s == 0 || self.poll_first_s > self.poll_last_s {
            return wrong("poll_first_s must be positive, and no more than poll_last_s");
        }
        if let Some(odd) = self.storages.iter().find(|one| storage_element(one).as_ref() != Some(*one)) {
            return wrong(&format!("storages: {odd:?} is no storage: write scheme://host, without a port"));
        }
        Ok(())
    }

    /// When to look again at what has been going on since then: what took long takes longer.
    fn next_look(&self, since: Timestamp, now: Timestamp) -> Timestamp {
        let [first, last] = [self.poll_first_s, self.poll_last_s].map(|s| Duration::from_secs(u64::from(s)));
        now + (now.since(since) / 4).clamp(first, last)
    }
}

/// What the questions share.
#[derive(Clone)]
struct Tape {
    job_control: Arc<JobControl>,
    remote: Arc<Remote>,
}

/// Brings and watches files until told to stop; nothing where nothing could ask.
pub async fn run(job_control: Arc<JobControl>, remote: Option<Arc<Remote>>, mut stop: watch::Receiver<bool>) {
    let Some(remote) = remote else { return };
    let tape = Tape { job_control, remote };
    let mut gather = Gather::default();
    let mut at_work = AtWork::default();
    loop {
        let pause = match tape.look(&mut gather, &mut at_work).await {
            Ok(()) => LOOK_EVERY,
            Err(fault) => {
                tracing::error!(fault = %fault.chain(), "tape systems cannot be looked after");
                PAUSE
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    // A request that a tape system has taken meanwhile shall be known by its id.
    let _ =
        tokio::time::timeout(STOP_WITHIN, async { while at_work.tasks.join_next().await.is_some() {} }).await;
}

/// What is being asked now; none of it twice.
#[derive(Default)]
struct AtWork {
    tasks: JoinSet<Done>,
    bulks: BTreeSet<u64>,
    archives: bool,
}

enum Done {
    Bulk(u64),
    Archives,
}

impl AtWork {
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

/// Why a file is not to be read from there: it is on tape only. None where it is on disk, or nothing says
/// otherwise.
pub(crate) async fn lies_there(
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
    async fn look(&self, gather: &mut Gather, at_work: &mut AtWork) -> Result<(), Fault> {
        at_work.done();
        let now = self.job_control.kernel.now();
        let (job_control, mut gathering) = (self.job_control.clone(), std::mem::take(gather));
        let (steps, gathering) = blocking(move || {
            let steps = gathering.look(&job_control, now)?;
            Ok((steps, gathering))
        })
        .await?;
        *gather = gathering;
        self.tell(steps).await?;
        let room = QUESTIONS_MAX.saturating_sub(at_work.bulks.len());
        let due = self.read(move |catalog| catalog.due_tape_requests(now, QUESTIONS_MAX * 2)).await?;
        let next: Vec<u64> =
            due.into_iter().filter(|bulk| !at_work.bulks.contains(bulk)).take(room).collect();
        for bulk in next {
            at_work.bulks.insert(bulk);
            let tape = self.clone();
            at_work.tasks.spawn(async move {
                if let Err(fault) = tape.look_after(bulk).await {
                    tracing::error!(fault = %fault.chain(), bulk, "files from tape cannot be looked after");
                    tokio::time::sleep(PAUSE).await;
                }
                Done::Bulk(bulk)
            });
        }
        if !at_work.archives {
            at_work.archives = true;
            let tape = self.clone();
            at_work.tasks.spawn(async move {
                if let Err(fault) = tape.watch_archives().await {
                    tracing::error!(fault = %fault.chain(),
                        "files on their way to tape cannot be looked after");
                    tokio::time::sleep(PAUSE).await;
                }
                Done::Archives
            });
        }
        Ok(())
    }

    /// Passes steps to the job loop; durable when it returns.
    async fn tell(&self, steps: Vec<TapeStep>) -> Result<(), Fault> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_seldom() {
        let config = TapeConfig::default();
        let at = |seconds: i64| Timestamp(seconds * 1_000_000);
        for (waited, next) in [(0, 30), (100, 30), (400, 100), (10_000, 600)] {
            assert_eq!(config.next_look(at(0), at(waited)), at(waited + next), "after {waited} s");
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        assert!(TapeConfig::default().check().is_ok());
        for wrong in [
            TapeConfig { bulk_files: 0, ..TapeConfig::default() },
            TapeConfig { requests: 0, ..TapeConfig::default() },
            TapeConfig { poll_first_s: 700, ..TapeConfig::default() },
        ] {
            assert!(wrong.check().unwrap_err().detail.starts_with("service.jobs.tape."));
        }
    }
}
