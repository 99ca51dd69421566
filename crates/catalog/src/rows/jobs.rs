//! Copy jobs between URLs, as users of FTS submit them.

use longhaul_model::{AttemptId, JobFileState, JobId, JobKind, JobState, Timestamp};

#[derive(Clone, Debug)]
pub struct NewJob {
    pub id: JobId,
    pub kind: JobKind,
    pub vo: String,
    /// The subject of the user's certificate or token.
    pub user: String,
    /// The id of the delegated credential.
    pub credential: String,
    /// 1 (lowest) to 5 (most urgent).
    pub priority: u8,
    /// The strategy by which a source is chosen.
    pub strategy: String,
    pub submitted: Timestamp,
    pub expires: Option<Timestamp>,
    /// Everything else about the job, as a JSON object.
    pub details: String,
    /// Refuse the job if a file of another job is on its way to one of its targets.
    pub refuse_duplicates: bool,
    pub files: Vec<NewJobFile>,
}

#[derive(Clone, Debug)]
pub struct NewJobFile {
    pub index: u32,
    pub source: String,
    pub target: String,
    pub size: Option<u64>,
    /// `ALGORITHM:value`, or the algorithm alone.
    pub checksum: Option<String>,
    pub activity: String,
    pub state: JobFileState,
    /// Everything else about the file, as a JSON object.
    pub details: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    Created,
    /// A job with this id exists.
    DuplicateId,
    /// Another file is on its way to this target.
    DuplicateTarget(String),
    /// This is not a URL with a host.
    BadUrl(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobRow {
    pub id: JobId,
    pub kind: JobKind,
    pub state: JobState,
    pub vo: String,
    pub user: String,
    pub credential: String,
    pub priority: u8,
    pub strategy: String,
    /// `scheme://host`; none if the files differ.
    pub source_se: Option<String>,
    pub target_se: Option<String>,
    pub submitted: Timestamp,
    pub expires: Option<Timestamp>,
    pub finished: Option<Timestamp>,
    pub canceled: bool,
    pub reason: String,
    pub files: u64,
    /// Files that finished; none for a job whose alternatives count as one.
    pub files_finished: Option<u64>,
    pub files_failed: Option<u64>,
    pub details: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobFileRow {
    pub id: u64,
    pub job: JobId,
    pub index: u32,
    pub state: JobFileState,
    pub source: String,
    pub target: String,
    pub size: Option<u64>,
    pub checksum: Option<String>,
    pub activity: String,
    pub vo: String,
    pub priority: u8,
    pub retries: u32,
    /// The last attempt; none before the first.
    pub attempt: Option<AttemptId>,
    /// It is not tried again before this time.
    pub not_before: Timestamp,
    pub reason: String,
    pub recoverable: bool,
    pub started: Option<Timestamp>,
    pub finished: Option<Timestamp>,
    /// Bytes that arrived, or were there already.
    pub bytes: Option<u64>,
    /// How it was copied: pull, push, streamed.
    pub mode: Option<String>,
    pub details: String,
    /// The queue in which it waits, or waited last.
    pub queue: u64,
    pub tape: TapeTimes,
}

/// When a file was staged from tape, and when it was archived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapeTimes {
    pub staging_began: Option<Timestamp>,
    pub staging_ended: Option<Timestamp>,
    /// The id of its bulk request at the tape system.
    pub staging_request: Option<String>,
    pub archiving_began: Option<Timestamp>,
    pub archiving_ended: Option<Timestamp>,
}

/// A filter for jobs. Give at least one condition or `unfinished_only`.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    pub vo: Option<String>,
    pub user: Option<String>,
    pub credential: Option<String>,
    /// One of these storage elements; empty: any.
    pub source_se: Vec<String>,
    pub target_se: Vec<String>,
    /// States to include; empty: all.
    pub states: Vec<JobState>,
    pub unfinished_only: bool,
    pub finished_since: Option<Timestamp>,
    pub submitted_since: Option<Timestamp>,
    /// Only jobs after this one in the list; none if there is no such job.
    pub after: Option<JobId>,
    /// The largest number of jobs; 0: a page.
    pub limit: usize,
}

#[derive(Clone, Debug, Default)]
pub struct JobFileQuery {
    pub vo: Option<String>,
    pub source_se: Option<String>,
    pub target_se: Option<String>,
    pub target: Option<String>,
    /// Empty: all.
    pub states: Vec<JobFileState>,
    pub unfinished_only: bool,
    pub finished_since: Option<Timestamp>,
    pub limit: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobAttemptRow {
    pub file: u64,
    pub attempt: AttemptId,
    /// The number of this attempt of the file, from 1.
    pub number: u32,
    pub began: Timestamp,
    pub ended: Option<Timestamp>,
    pub reason: Option<String>,
    pub bytes: Option<u64>,
    /// JSON: why it began then, and why from this source.
    pub choice: String,
}

/// A queue: files for one end point with the same community, activity, priority and strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobQueueRow {
    pub id: u64,
    /// The id of the end point.
    pub target: u64,
    pub vo: String,
    pub activity: String,
    /// As of jobs; 6 for files that an administrator forced to the front.
    pub priority: u8,
    pub strategy: String,
    /// Files that wait or run at present.
    pub files: u64,
    pub bytes: u64,
}

/// Waiting files between two end points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingPair {
    pub source: u64,
    pub target: u64,
    pub files: u64,
    /// Earlier attempts of these files, in total.
    pub retries: u64,
}

/// An end point: a server by scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEndpointRow {
    pub id: u64,
    pub url: String,
}

/// A file that may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJobFile {
    pub file: u64,
    pub size: Option<u64>,
    /// End points of its source and of its untried replicas.
    pub sources: Vec<u64>,
}

/// A state change of a file.
#[derive(Clone, Debug)]
pub struct JobFileChange {
    pub file: u64,
    /// The attempt that this is about. A change about another attempt is refused.
    pub attempt: AttemptId,
    pub step: JobFileStep,
}

#[derive(Clone, Debug)]
pub enum JobFileStep {
    /// The file, or its replica at this end point, begins to be copied: at once if `started`. The change's
    /// attempt is the new one.
    Begin { source: u64, choice: String, started: bool },
    /// The transfer of bytes starts.
    Started,
    /// A mover carries it; why, for the attempt's explanation.
    MoverAssigned { mover: String },
    /// The file is complete at its target. With `archive`, it must still reach tape there.
    Arrived { bytes: u64, mode: String, archive: bool },
    /// Another attempt follows, not before this time; with `stage`, after another staging from tape.
    Retry { reason: String, not_before: Timestamp, stage: bool },
    Failed {
        reason: String,
        recoverable: bool,
        /// What exists under the target's name, as a JSON object for the file's metadata.
        existing_target: Option<String>,
    },
    /// This replica is on tape: replicas on disk are tried first, and if none is left, this one is staged.
    OnTape { reason: String },
    /// The attempt did not begin: back to the queue as if nothing had been.
    Released,
}

/// The result of one change.
#[derive(Clone, Debug)]
pub enum JobFileResult {
    /// The result of `Begin`: what to copy.
    Begun(Box<JobWork>),
    Done,
    /// The state has changed meanwhile, or the attempt is another.
    Refused,
}

/// All that a mover needs.
#[derive(Clone, Debug, PartialEq)]
pub struct JobWork {
    pub job: JobRow,
    pub file: JobFileRow,
    /// Whether there was an earlier attempt.
    pub tried_before: bool,
}

/// A transition of a file from one state to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFileTransition {
    pub job: JobId,
    pub file: u64,
    pub from: JobFileState,
    pub to: JobFileState,
    /// The queue before the transition.
    pub queue_before: u64,
    pub queue: u64,
    pub size: Option<u64>,
    /// The last attempt, 0 before the first.
    pub attempt: AttemptId,
}

/// A state change of a file that is still to be published. Fields of `job` and `file` that may change later
/// are as of then.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEventRow {
    /// Increasing, never reused.
    pub sequence: u64,
    pub at: Timestamp,
    /// The former state; none if the file was submitted.
    pub from: Option<JobFileState>,
    /// When the attempt began; none if it was withdrawn.
    pub began: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// The target of the last hop of a multi-hop job.
    pub final_target: Option<String>,
    pub job: JobRow,
    pub file: JobFileRow,
}

/// What a transaction changed.
#[derive(Clone, Debug, Default)]
pub struct JobChanges {
    pub files: Vec<JobFileTransition>,
    /// Jobs whose state changed, and their new state.
    pub jobs: Vec<(JobId, JobState)>,
    /// Queues that did not exist before.
    pub new_queues: Vec<JobQueueRow>,
    pub new_endpoints: Vec<JobEndpointRow>,
}

/// The result of one entry of a cancellation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobCancelResult {
    Unknown,
    /// The job had ended already.
    AlreadyEnded,
    /// The state of each requested file; none for an id that is no file of the job.
    Done(Vec<Option<JobFileState>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegationRow {
    pub id: String,
    pub user: String,
    /// The private key of a request that was not answered yet, sealed.
    pub request: Option<Vec<u8>>,
    /// The proxy, sealed.
    pub proxy: Option<Vec<u8>>,
    pub expires: Option<Timestamp>,
    /// JSON: VOMS attributes and the like.
    pub details: String,
    pub changed: Timestamp,
}
