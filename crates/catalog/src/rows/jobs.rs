//! Copies between URLs, as users of FTS submit them.

use longhaul_model::{AttemptId, JobFileState, JobId, JobKind, JobState, Timestamp};

#[derive(Clone, Debug)]
pub struct NewJob {
    pub id: JobId,
    pub kind: JobKind,
    pub vo: String,
    /// The subject of a certificate, or of a token.
    pub user: String,
    /// Of the delegated credential.
    pub credential: String,
    /// 1 to 5, 5 the most urgent.
    pub priority: u8,
    /// By which rule a source is chosen.
    pub strategy: String,
    pub submitted: Timestamp,
    pub expires: Option<Timestamp>,
    /// A JSON object: all else that is said of the job.
    pub details: String,
    /// Refuse it if a file of another job is on its way to one of its targets.
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
    /// A JSON object.
    pub details: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    Created,
    /// There is a job of that id.
    DuplicateId,
    /// Another file is on its way to this target.
    DuplicateTarget(String),
    /// This is no URL with a host.
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
    /// Of these, where files that belong together are not counted as one.
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
    /// The last one; none before the first.
    pub attempt: Option<AttemptId>,
    /// Not tried again before.
    pub not_before: Timestamp,
    pub reason: String,
    pub recoverable: bool,
    pub started: Option<Timestamp>,
    pub finished: Option<Timestamp>,
    /// That arrived, or were found to be there.
    pub bytes: Option<u64>,
    /// By which way: pull, push, streamed.
    pub mode: Option<String>,
    pub details: String,
    /// In which it waits, or last did.
    pub queue: u64,
    pub tape: TapeTimes,
}

/// When a file was brought from tape, and when it went there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapeTimes {
    pub staging_began: Option<Timestamp>,
    pub staging_ended: Option<Timestamp>,
    /// The id of its request at the tape system.
    pub staging_request: Option<String>,
    pub archiving_began: Option<Timestamp>,
    pub archiving_ended: Option<Timestamp>,
}

/// Which jobs; each thing said narrows it. At least one should be, or `unfinished_only`.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    pub vo: Option<String>,
    pub user: Option<String>,
    pub credential: Option<String>,
    /// One of these; empty: any.
    pub source_se: Vec<String>,
    pub target_se: Vec<String>,
    /// Empty: all.
    pub states: Vec<JobState>,
    pub unfinished_only: bool,
    pub finished_since: Option<Timestamp>,
    pub submitted_since: Option<Timestamp>,
    /// Only what a list has behind this job; nothing if there is no such job.
    pub after: Option<JobId>,
    /// 0: a page.
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
    /// Of this file, from 1.
    pub number: u32,
    pub began: Timestamp,
    pub ended: Option<Timestamp>,
    pub reason: Option<String>,
    pub bytes: Option<u64>,
    /// JSON: why then, and why from there.
    pub choice: String,
}

/// What waits for one end point under the same terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobQueueRow {
    pub id: u64,
    /// Of the end point.
    pub target: u64,
    pub vo: String,
    pub activity: String,
    /// As of jobs; 6 for what an administrator put before all others.
    pub priority: u8,
    pub strategy: String,
    /// Waiting or running, as of now.
    pub files: u64,
    pub bytes: u64,
}

/// Files that wait for their turn between two end points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingPair {
    pub source: u64,
    pub target: u64,
    pub files: u64,
    /// How often these were tried before, all together.
    pub retries: u64,
}

/// A server by scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEndpointRow {
    pub id: u64,
    pub url: String,
}

/// A file whose turn it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJobFile {
    pub file: u64,
    pub size: Option<u64>,
    /// End points of it and of the replicas that were not tried.
    pub sources: Vec<u64>,
}

/// What happened to a file.
#[derive(Clone, Debug)]
pub struct JobFileChange {
    pub file: u64,
    /// Of the attempt that this is about; what is told of another one changes nothing.
    pub attempt: AttemptId,
    pub step: JobFileStep,
}

#[derive(Clone, Debug)]
pub enum JobFileStep {
    /// It, or its replica at this end point, is about to be copied: at once if `started`. The change's
    /// attempt is the new one.
    Begin { source: u64, choice: String, started: bool },
    /// Bytes are about to flow.
    Started,
    /// Somebody else than usual moves it, for that reason: a part of the attempt's explanation.
    MoverAssigned { mover: String },
    /// It is whole at its target; it has yet to go to tape there if its job wants to see that.
    Arrived { bytes: u64, mode: String, archive: bool },
    /// Another attempt follows, not before then; once it was brought from tape again, if so.
    Retry { reason: String, not_before: Timestamp, stage: bool },
    Failed {
        reason: String,
        recoverable: bool,
        /// What stands under the target's name, as a JSON object: for the file's metadata.
        existing_target: Option<String>,
    },
    /// This replica is on tape: one on disk has the turn, and if there is none left, this one is brought from
    /// there.
    OnTape { reason: String },
    /// It did not come about: back to the queue, as if nothing had been.
    Released,
}

/// What became of one change.
#[derive(Clone, Debug)]
pub enum JobFileResult {
    /// Of `Begin`: what is to be copied.
    Begun(Box<JobWork>),
    Done,
    /// The state moved on, or the attempt is another.
    Refused,
}

/// All that a mover must know.
#[derive(Clone, Debug, PartialEq)]
pub struct JobWork {
    pub job: JobRow,
    pub file: JobFileRow,
    /// There was an attempt before this one.
    pub tried_before: bool,
}

/// A file was in one state and is in another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFileTransition {
    pub job: JobId,
    pub file: u64,
    pub from: JobFileState,
    pub to: JobFileState,
    /// Queues before and now.
    pub queue_before: u64,
    pub queue: u64,
    pub size: Option<u64>,
    /// The last one, 0 before the first.
    pub attempt: AttemptId,
}

/// A change of a file that is still to be told. What may change later in `job` and `file` is as it was then.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEventRow {
    /// Grows, and is never used twice.
    pub sequence: u64,
    pub at: Timestamp,
    /// None: it was submitted.
    pub from: Option<JobFileState>,
    /// Of the attempt; none of one that was taken back.
    pub began: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// Where the last of several hops leads.
    pub final_target: Option<String>,
    pub job: JobRow,
    pub file: JobFileRow,
}

/// What a transaction changed beside what was asked.
#[derive(Clone, Debug, Default)]
pub struct JobChanges {
    pub files: Vec<JobFileTransition>,
    /// Jobs that are in another state now.
    pub jobs: Vec<(JobId, JobState)>,
    /// Queues and end points that did not exist before.
    pub new_queues: Vec<JobQueueRow>,
    pub new_endpoints: Vec<JobEndpointRow>,
}

/// For one entry of a cancellation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobCancelResult {
    Unknown,
    /// It had ended already.
    AlreadyEnded,
    /// The state of each file that was asked for; none: it belongs to no file of the job.
    Done(Vec<Option<JobFileState>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegationRow {
    pub id: String,
    pub user: String,
    /// The key of a request that was not answered yet; sealed.
    pub request: Option<Vec<u8>>,
    /// Sealed.
    pub proxy: Option<Vec<u8>>,
    pub expires: Option<Timestamp>,
    /// JSON: attributes and the like.
    pub details: String,
    pub changed: Timestamp,
}
