//! Jobs: copies between URLs of storages that need not know us, as users of FTS submit them.
//!
//! One thread, the *desk*, through which all that happens to jobs becomes durable, many things in one
//! transaction, and only then is told: to who asked, to the scheduler, to the movers. The scheduler is the
//! same as that of subscriptions (`docs/decisions/0017`): end points are storages of it, and what waits for
//! one end point under the same terms is one demand, of whose files it asks a window at a time.
//!
//! Not here: the states (`model::job`), rows (`catalog`), how bytes move ([`ForeignMover`]), FTS's own paths
//! and texts (`fts`). Who may ask for what is in `asked`; FTS's API and ours both come that way. Start with
//! [`Jobs`], then follow a file: `desk` → `queues` → `brain` → `desk` → `copies` → `desk`.

mod asked;
mod attempts;
pub(crate) mod by_circuit;
mod copies;
mod desk;
mod executor;
pub(crate) mod handed;
pub(crate) mod ids;
mod mover;
mod names;
mod order;
mod pairs;
mod queued;
mod queues;
mod remote;
mod s3;
pub(crate) mod shown;
mod submission;
pub(crate) mod tape;
mod terms;
mod tokens;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use longhaul_api::fts::PairMinute;
use longhaul_catalog::{
    JobAttemptRow, JobCancelResult, JobChanges, JobFileRow, JobFileTransition, JobRow, NewJob, StorageStep,
    SubmitResult, TapeStep,
};
use longhaul_model::{AttemptId, CommunityName, Fault, FaultCode, JobId, JobState};
use longhaul_scheduler::{CancelWhy, Lease};
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, oneshot};

use crate::operations::Operations;

use by_circuit::ByCircuit;
use executor::JobExecutor;

pub use copies::{Moving, Progress};
pub use desk::run;
pub use executor::QueuedFilesSource;
pub use mover::{Begun, CopyOrder, Credential, End, ForeignMover, Standing, Stop, Verify};
pub use names::NamesConfig;
pub(crate) use names::url_names;
pub(crate) use order::delegated;
pub use pairs::{Minute, Pairs};
pub use queued::QueuedFiles;
pub use remote::{end as remote_end, mover};
pub use s3::S3Config;
pub(crate) use submission::TOO_MANY;
pub use submission::{FileDetails, OWN_TOKEN};
pub use tape::TapeConfig;
pub use tokens::{Tokens, run as run_tokens};

/// What an administrator can set about jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobsConfig {
    /// Copies at a time, over all end points; further ones wait until one ends.
    pub copies: u32,
    /// Copies at a time from one host, and to one host.
    pub host_copies: u32,
    /// Files of one user that wait and run at a time, in all jobs. 0: no limit.
    pub user_files: u64,
    /// The same where they work for this community.
    pub user_files_of: Vec<UserFiles>,
    /// How often a file is tried again where its job does not say.
    pub retries: u32,
    /// Seconds between two tries where its job does not say.
    pub retry_delay_s: u32,
    /// Loopback, link-local and private networks whose storages may be used; all public ones may.
    pub allow_networks: Vec<String>,
    /// PEM files with the authorities that storages are believed by; none: those of the system.
    pub authorities: Vec<PathBuf>,
    /// Keys of storages that speak S3.
    pub s3: Vec<S3Config>,
    /// Parts of files on their way to S3 that are in memory, of all copies together.
    pub s3_memory_mib: u32,
    /// Name rules of hosts whose files jobs may name by schemes that are not served.
    pub names: Vec<NamesConfig>,
    pub tape: TapeConfig,
}

impl Default for JobsConfig {
    fn default() -> Self {
        JobsConfig {
            copies: 400,
            host_copies: 60,
            user_files: 2_000_000,
            user_files_of: Vec::new(),
            retries: 0,
            retry_delay_s: 120,
            allow_networks: Vec::new(),
            authorities: Vec::new(),
            s3: Vec::new(),
            s3_memory_mib: 512,
            names: Vec::new(),
            tape: TapeConfig::default(),
        }
    }
}

/// Another number of files for each user of a community.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserFiles {
    pub community: CommunityName,
    /// 0: no limit.
    pub files: u64,
}

impl JobsConfig {
    /// How many files a user of that community may have under way; none: no limit.
    pub(crate) fn files_of_user(&self, community: &str) -> Option<u64> {
        let own = self.user_files_of.iter().find(|own| own.community.as_str() == community);
        Some(own.map_or(self.user_files, |own| own.files)).filter(|most| *most > 0)
    }

    pub fn check(&self) -> Result<(), Fault> {
        for (name, value) in [
            ("copies", self.copies),
            ("host_copies", self.host_copies),
            ("s3_memory_mib", self.s3_memory_mib),
        ] {
            if value == 0 {
                let text = format!("service.jobs.{name} is 0: it must be positive");
                return Err(Fault::new(FaultCode::BadRequest, text));
            }
        }
        for (place, own) in self.user_files_of.iter().enumerate() {
            if self.user_files_of[..place].iter().any(|other| other.community == own.community) {
                let text = format!("service.jobs.user_files_of names {} twice", own.community);
                return Err(Fault::new(FaultCode::BadRequest, text));
            }
        }
        self.s3.iter().try_for_each(S3Config::check)?;
        NamesConfig::check_all(&self.names)?;
        self.tape.check()?;
        remote::networks(self).map(drop)
    }
}

/// What the desk is told.
pub enum Work {
    Submit(Vec<NewJob>, Reply<Vec<SubmitResult>>),
    Cancel(Vec<(JobId, Option<Vec<u64>>)>, String, Reply<Vec<JobCancelResult>>),
    Priority(Vec<JobId>, u8, Reply<Vec<Option<bool>>>),
    Force(Vec<u64>, Reply<usize>),
    /// An attempt is moved by somebody else than usual, for that reason.
    Carried(AttemptId, String, Reply<()>),
    /// A transaction that was made elsewhere.
    Changed(Box<JobChanges>),
    /// What is configured of storages and links has changed.
    Configured,
    /// Files that wait for a storage (`scheme://host`), of one community or of all; some jobs at a time.
    Storage(String, Option<String>, StorageStep<'static>, Reply<Vec<JobId>>),
    /// What tape systems say of files.
    Tape(Vec<TapeStep>, Reply<()>),
    /// The scheduler decided, with its reasons.
    Lease(Box<Lease>, String),
    TakeBack(AttemptId, CancelWhy),
    /// A mover is done.
    Ended(AttemptId, Result<Moved, Unmoved>),
    Stop,
}

pub type Reply<T> = oneshot::Sender<Result<T, Fault>>;

/// A file that is whole at its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub bytes: u64,
    /// By which way: `pull`, `push`, `stream`; `there` if it was already; with `by circuit` after it if it
    /// went by one, and `by the agent … of …` if one streamed it.
    pub mode: String,
}

/// A copy that came to nothing.
#[derive(Clone, Debug)]
pub struct Unmoved {
    pub fault: Fault,
    /// In the way of it, for a job that wants to hear of that.
    pub standing: Option<Standing>,
    /// Its source has it on tape only, and was not read.
    pub on_tape: bool,
}

impl From<Fault> for Unmoved {
    fn from(fault: Fault) -> Unmoved {
        Unmoved { fault, standing: None, on_tape: false }
    }
}

impl Minute {
    /// As FTS tells it, with what waits on the pair.
    pub(crate) fn told(self, waiting: Option<(u64, u64)>) -> PairMinute {
        PairMinute {
            at: self.at,
            source: self.pair.source,
            target: self.pair.target,
            active: self.active,
            more: self.more,
            done: self.done,
            failed: self.failed,
            rate: self.rate,
            smoothed_rate: self.smoothed_rate,
            duration_mean: self.duration_mean,
            size_mean: self.size_mean,
            size_deviation: self.size_deviation,
            waiting,
        }
    }
}

/// What changed, told after it is durable; who is slow misses some.
#[derive(Clone, Debug)]
pub enum JobNews {
    File(JobFileTransition),
    Job(JobId, JobState),
}

/// News that wait for the slowest listener.
const NEWS_MAX: usize = 4_096;

/// The desk's counter: everything is durable when it is answered.
pub struct Jobs {
    desk: Sender<Work>,
    news: broadcast::Sender<JobNews>,
    moving: Moving,
    pairs: Pairs,
    by_circuit: ByCircuit,
    /// What agents stream.
    pub(crate) handed: Arc<handed::Handed>,
}

impl Jobs {
    pub fn new() -> (Jobs, Receiver<Work>) {
        let (desk, work) = channel();
        (
            Jobs {
                desk,
                news: broadcast::Sender::new(NEWS_MAX),
                moving: Moving::default(),
                pairs: Pairs::default(),
                by_circuit: ByCircuit::default(),
                handed: Arc::default(),
            },
            work,
        )
    }

    /// What pairs of storages did.
    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// Each job for itself.
    pub async fn submit(&self, jobs: Vec<NewJob>) -> Result<Vec<SubmitResult>, Fault> {
        self.ask(|reply| Work::Submit(jobs, reply)).await
    }

    /// Ends jobs, or some of their files, for that reason.
    pub async fn cancel(
        &self,
        wanted: Vec<(JobId, Option<Vec<u64>>)>,
        reason: &str,
    ) -> Result<Vec<JobCancelResult>, Fault> {
        self.ask(|reply| Work::Cancel(wanted, reason.to_owned(), reply)).await
    }

    /// None: there is no such job; false: it has ended.
    pub async fn priority(&self, jobs: Vec<JobId>, priority: u8) -> Result<Vec<Option<bool>>, Fault> {
        self.ask(|reply| Work::Priority(jobs, priority.clamp(1, 5), reply)).await
    }

    /// Puts waiting files before all others; says how many were waiting.
    pub async fn force_start(&self, files: Vec<u64>) -> Result<usize, Fault> {
        self.ask(|reply| Work::Force(files, reply)).await
    }

    /// As [`Jobs::submit`], where the caller may block.
    pub fn submit_blocking(&self, jobs: Vec<NewJob>) -> Result<Vec<SubmitResult>, Fault> {
        self.wait(|reply| Work::Submit(jobs, reply))
    }

    pub fn cancel_blocking(
        &self,
        wanted: Vec<(JobId, Option<Vec<u64>>)>,
        reason: &str,
    ) -> Result<Vec<JobCancelResult>, Fault> {
        self.wait(|reply| Work::Cancel(wanted, reason.to_owned(), reply))
    }

    pub fn priority_blocking(&self, jobs: Vec<JobId>, priority: u8) -> Result<Vec<Option<bool>>, Fault> {
        self.wait(|reply| Work::Priority(jobs, priority.clamp(1, 5), reply))
    }

    pub fn force_start_blocking(&self, files: Vec<u64>) -> Result<usize, Fault> {
        self.wait(|reply| Work::Force(files, reply))
    }

    /// Jobs were changed in the catalog by somebody else: what runs of them is stopped, what waits is known.
    pub fn changed(&self, changed: JobChanges) {
        self.tell(Work::Changed(Box::new(changed)));
    }

    /// Does that to files that come from or go to a storage. Some jobs at a time: to be asked again until
    /// there is none.
    pub async fn storage(
        &self,
        storage: &str,
        vo: Option<&str>,
        step: StorageStep<'static>,
    ) -> Result<Vec<JobId>, Fault> {
        self.ask(|reply| Work::Storage(storage.to_owned(), vo.map(str::to_owned), step, reply)).await
    }

    /// What tape systems say of files.
    pub(crate) async fn tape(&self, steps: Vec<TapeStep>) -> Result<(), Fault> {
        self.ask(|reply| Work::Tape(steps, reply)).await
    }

    /// The limits of storages and links were changed.
    pub fn configured(&self) {
        self.tell(Work::Configured);
    }

    pub fn news(&self) -> broadcast::Receiver<JobNews> {
        self.news.subscribe()
    }

    /// How far a file is that is being copied.
    pub fn progress(&self, file: u64) -> Option<Progress> {
        self.moving.progress(file)
    }

    /// Takes leases for this queue of work.
    pub(crate) fn executor(&self) -> Box<JobExecutor> {
        Box::new(JobExecutor(self.desk.clone()))
    }

    pub(crate) fn tell(&self, work: Work) {
        // The desk is gone only when the service stops.
        let _ = self.desk.send(work);
    }

    fn wait<T>(&self, work: impl FnOnce(Reply<T>) -> Work) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.tell(work(reply));
        answer.blocking_recv().unwrap_or_else(|_| Err(stopping()))
    }

    async fn ask<T>(&self, work: impl FnOnce(Reply<T>) -> Work) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.tell(work(reply));
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

fn stopping() -> Fault {
    Fault::new(FaultCode::Busy, "the service is stopping")
}

impl Operations {
    pub fn jobs(&self) -> &Jobs {
        &self.shared.jobs
    }

    /// A job with its files; none if there is no such job.
    pub fn job(&self, id: JobId) -> Result<Option<(JobRow, Vec<JobFileRow>)>, Fault> {
        let Some(job) = self.shared.kernel.catalog.jobs(&[id])?.into_iter().next().flatten() else {
            return Ok(None);
        };
        let files = self.shared.kernel.catalog.job_files(&[id])?.into_iter().next().unwrap_or_default();
        Ok(Some((job, files)))
    }

    /// Why each attempt of a file was made, and what it came to.
    pub fn job_file_attempts(&self, file: u64) -> Result<Vec<JobAttemptRow>, Fault> {
        Ok(self.shared.kernel.catalog.job_file_attempts(file)?)
    }
}
