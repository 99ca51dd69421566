//! Jobs: their settings, work for the job loop, and the handle by which others give it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use longhaul_api::fts::PairMinute;
use longhaul_catalog::{
    JobCancelResult, JobChanges, JobFileTransition, NewJob, StorageStep, SubmitResult, TapeStep,
};
use longhaul_model::{AttemptId, CommunityName, Fault, FaultCode, JobId, JobState};
use longhaul_scheduler::{CancelWhy, Lease};
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, oneshot};

use crate::agent_streams::Handed;
use crate::by_circuit::ByCircuit;
use crate::copies::{Moving, Progress};
use crate::executor::JobExecutor;
use crate::mover::Standing;
use crate::names::NamesConfig;
use crate::pairs::{Minute, Pairs};
use crate::remote;
use crate::s3::S3Config;
use crate::tape::TapeConfig;

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
    pub fn files_of_user(&self, community: &str) -> Option<u64> {
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

/// Work for the job loop.
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
    pub fn told(self, waiting: Option<(u64, u64)>) -> PairMinute {
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

/// Gives work to the job loop: everything is durable when it is answered.
pub struct Jobs {
    pub(crate) desk: Sender<Work>,
    pub(crate) news: broadcast::Sender<JobNews>,
    pub(crate) moving: Moving,
    pub(crate) pairs: Pairs,
    pub(crate) by_circuit: ByCircuit,
    /// What agents stream.
    pub handed: Arc<Handed>,
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
    pub async fn tape(&self, steps: Vec<TapeStep>) -> Result<(), Fault> {
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
    pub fn executor(&self) -> Box<JobExecutor> {
        Box::new(JobExecutor(self.desk.clone()))
    }

    pub fn tell(&self, work: Work) {
        // The desk is gone only when the service stops.
        let _ = self.desk.send(work);
    }

    pub(crate) fn wait<T>(&self, work: impl FnOnce(Reply<T>) -> Work) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.tell(work(reply));
        answer.blocking_recv().unwrap_or_else(|_| Err(stopping()))
    }

    pub(crate) async fn ask<T>(&self, work: impl FnOnce(Reply<T>) -> Work) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.tell(work(reply));
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

fn stopping() -> Fault {
    Fault::new(FaultCode::Busy, "the service is stopping")
}
