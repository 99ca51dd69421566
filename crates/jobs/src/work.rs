//! Messages of the job loop: the work that it takes in, and what it publishes once that is durable.

use longhaul_catalog::{
    JobCancelResult, JobChanges, JobFileTransition, NewJob, StorageStep, SubmitResult, TapeStep,
};
use longhaul_model::{AttemptId, Fault, JobId, JobState};
use longhaul_scheduler::{CancelWhy, Lease};
use tokio::sync::oneshot;

use crate::mover::{Moved, Unmoved};

/// Work for the job loop.
pub enum Work {
    Submit(Vec<NewJob>, Reply<Vec<SubmitResult>>),
    Cancel(Vec<(JobId, Option<Vec<u64>>)>, String, Reply<Vec<JobCancelResult>>),
    Priority(Vec<JobId>, u8, Reply<Vec<Option<bool>>>),
    Force(Vec<u64>, Reply<usize>),
    /// An attempt has an unusual mover, for the given reason.
    Carried(AttemptId, String, Reply<()>),
    /// Changes that were made durable elsewhere.
    Changed(Box<JobChanges>),
    /// The configuration of storages or links has changed.
    Configured,
    /// Files that wait for a storage (`scheme://host`), of one community or of all; some jobs at a time.
    Storage(String, Option<String>, StorageStep<'static>, Reply<Vec<JobId>>),
    /// Answers of tape systems.
    Tape(Vec<TapeStep>, Reply<()>),
    /// A lease of the scheduler, with the reasons for its choice.
    Lease(Box<Lease>, String),
    TakeBack(AttemptId, CancelWhy),
    /// A mover has ended an attempt.
    Ended(AttemptId, Result<Moved, Unmoved>),
    Stop,
}

pub type Reply<T> = oneshot::Sender<Result<T, Fault>>;

/// A durable change of a job or file. A slow listener misses some.
#[derive(Clone, Debug)]
pub enum JobNews {
    File(JobFileTransition),
    Job(JobId, JobState),
}
