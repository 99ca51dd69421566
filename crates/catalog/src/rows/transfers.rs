//! Transfers and attempts, reports of agents, and their results.

use longhaul_model::{
    AgentId, AttemptId, BlockId, DatasetId, DatasetName, DigestOrigin, DigestSet, Epoch, Executor, Fault,
    FileId, Lfn, StorageId, StorageName, SubscriptionId, TaskId, Timestamp, TransferId, TransferState,
    Verification,
};

use super::datasets::{BlockTotals, LeftOutRow, ReplicaChange};
use super::decisions::NewDecision;

/// One page of the files of a block that a target lacks and no live transfer brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expansion {
    pub files: Vec<MissingFile>,
    /// Where the next page begins; none at the end. A page may be short, even empty, and yet not the last.
    pub next: Option<FileId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingFile {
    pub file: FileId,
    pub lfn: Lfn,
    pub size: u64,
    pub digests: DigestSet,
    /// Storages with a good replica that is not being deleted; may be empty.
    pub sources: Vec<StorageId>,
}

/// A lease that the scheduler decided on. It must be durable before it leaves the process.
#[derive(Clone, Debug)]
pub struct NewAttempt {
    pub transfer: TransferId,
    pub attempt: AttemptId,
    /// Greater than that of every earlier lease of the transfer.
    pub epoch: Epoch,
    pub file: FileId,
    pub source: StorageId,
    pub target: StorageId,
    /// The agent at the target.
    pub agent: AgentId,
    /// The subscription whose share it is charged to.
    pub subscription: SubscriptionId,
    pub start_by: Timestamp,
    /// JSON: why this source was chosen, with inputs and runners-up.
    pub choice: String,
}

/// The result of one [`NewAttempt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseResult {
    Leased,
    /// Leased as well; the target's replica is damaged, and the attempt replaces it.
    LeasedToReplace,
    Refused(LeaseRefusal),
}

/// Why a lease was refused: the state changed between decision and transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    #[error("there is no such file")]
    NoSuchFile,
    #[error("the target has the file already")]
    AlreadyThere,
    #[error("no active subscription wants the file there")]
    NotWanted,
    #[error("the source has no usable replica any more")]
    SourceGone,
    #[error("another transfer brings the file there, or this one is leased")]
    Live,
    #[error("an earlier copy of the file is just being removed there")]
    Clearing,
    #[error("the replica there was repaired and damaged again several times: it rests for a day")]
    Worn,
    #[error("the epoch is not newer than that of the last lease")]
    StaleEpoch,
}

/// A transfer that is waiting or leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTransferRow {
    pub transfer: TransferId,
    pub file: FileId,
    pub lfn: Lfn,
    pub size: u64,
    pub digests: DigestSet,
    pub block: BlockId,
    pub dataset: DatasetId,
    pub target: StorageId,
    /// The community whose share is charged.
    pub subscription: SubscriptionId,
    pub state: TransferState,
    /// Attempts begun so far.
    pub attempts: u32,
    /// The attempt of the present or last lease.
    pub attempt: AttemptId,
    pub epoch: Epoch,
    pub source: StorageId,
    pub agent: AgentId,
    pub start_by: Timestamp,
    /// A waiting transfer is not tried before this time.
    pub not_before: Timestamp,
    pub created: Timestamp,
    pub changed: Timestamp,
    /// How the last attempt failed, if it did.
    pub fault: Option<Fault>,
}

/// When an attempt passed its phases, on the service's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptTimes {
    pub received: Timestamp,
    pub started: Option<Timestamp>,
    pub first_byte: Option<Timestamp>,
    pub last_byte: Option<Timestamp>,
    pub committed: Option<Timestamp>,
}

/// One fact of an agent, applied exactly once, in order.
#[derive(Clone, Debug)]
pub struct ReportItem {
    pub sequence: u64,
    pub fact: ReportedFact,
}

#[derive(Clone, Debug)]
pub enum ReportedFact {
    /// Access decisions at doors of the agent.
    DoorDecisions(Vec<NewDecision>),
    Outcome(ReportedOutcome),
    Scanned {
        task: TaskId,
        found: Vec<ReportedFile>,
        left_out: Vec<LeftOutRow>,
    },
    Checked {
        task: TaskId,
        files: Vec<ReportedCheck>,
    },
    TaskDone {
        task: TaskId,
        fault: Option<Fault>,
    },
}

/// The end of an attempt.
#[derive(Clone, Debug)]
pub struct ReportedOutcome {
    pub attempt: AttemptId,
    pub epoch: Epoch,
    /// None if the attempt succeeded.
    pub fault: Option<Fault>,
    pub digests: DigestSet,
    pub verification: Verification,
    pub already_there: bool,
    pub bytes_moved: u64,
    pub bytes_resent: u64,
    /// The party that moved the bytes, as the target's agent says.
    pub executor: Option<Executor>,
    pub times: AttemptTimes,
}

#[derive(Clone, Debug)]
pub struct ReportedFile {
    pub lfn: Lfn,
    pub size: u64,
    pub digests: DigestSet,
    pub origin: DigestOrigin,
}

#[derive(Clone, Debug)]
pub struct ReportedCheck {
    pub lfn: Lfn,
    /// None if the file is there and equal, or was deleted.
    pub fault: Option<Fault>,
}

/// The result of a report.
#[derive(Clone, Debug, Default)]
pub struct ReportResult {
    /// Everything up to this sequence number is durable.
    pub acknowledged: u64,
    /// One for each outcome among the items, in order.
    pub outcomes: Vec<OutcomeResult>,
    /// Blocks that a target now has completely, with their totals.
    pub complete: Vec<(BlockTotals, StorageId)>,
    /// Subscriptions that this report completed.
    pub subscriptions_complete: Vec<SubscriptionId>,
    /// Totals of the blocks that scans extended or that got replicas.
    pub blocks: Vec<BlockTotals>,
    /// Replicas that appeared or were lost by other means than a transfer (scan, verify, delete, a source
    /// found bad), and the demands of the affected blocks.
    pub replicas: ReplicaChange,
    /// Tasks that made progress, as they are now.
    pub tasks: Vec<super::TaskRow>,
    /// Replicas were found bad by agents of their targets: see [`crate::Catalog::order_verifications`].
    pub accused: bool,
    /// Claims about things of other sites, by kind, each with how many there were.
    pub foreign: std::collections::BTreeMap<crate::Claim, u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeResult {
    pub attempt: AttemptId,
    /// None: the attempt or epoch is no longer live (a repetition, a revoked lease), and nothing changed.
    pub applied: Option<TransferUpdate>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TransferUpdate {
    pub transfer: TransferId,
    pub file: FileId,
    pub block: BlockId,
    pub dataset: DatasetId,
    pub source: StorageId,
    pub target: StorageId,
    pub size: u64,
    pub subscription: SubscriptionId,
    /// Done, or waiting for the next attempt.
    pub state: TransferState,
    pub attempts: u32,
    pub fault: Option<Fault>,
    /// How the new replica was verified, as far as the agent has shown it.
    pub verification: Option<Verification>,
    /// As reported, and never more than one attempt can move.
    pub bytes_moved: u64,
    pub bytes_resent: u64,
    /// A waiting transfer is not tried before this time.
    pub not_before: Timestamp,
}

/// A filter for transfers; None matches everything.
#[derive(Clone, Debug, Default)]
pub struct TransferFilter {
    pub dataset: Option<DatasetId>,
    pub source: Option<StorageId>,
    pub target: Option<StorageId>,
    pub state: Option<TransferState>,
    /// Only transfers with an id below this.
    pub before: Option<TransferId>,
    /// Bounded by [`crate::PAGE_ROWS_MAX`].
    pub limit: usize,
}

#[derive(Clone, Debug, Default)]
pub struct TransferPage {
    pub items: Vec<TransferRow>,
    /// Where the next page begins; none at the end. A page may be short, even empty, and yet not the last: it
    /// examines a bounded number of rows.
    pub next: Option<TransferId>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TransferRow {
    pub id: TransferId,
    pub file: FileId,
    pub dataset: DatasetId,
    pub dataset_name: DatasetName,
    pub lfn: Lfn,
    pub size: u64,
    pub target: StorageId,
    pub target_name: StorageName,
    /// The source of the present or last attempt.
    pub source: StorageId,
    pub source_name: StorageName,
    pub state: TransferState,
    pub attempts: u32,
    /// The present or last attempt.
    pub attempt: AttemptId,
    pub not_before: Option<Timestamp>,
    pub created: Timestamp,
    pub changed: Timestamp,
    pub fault: Option<Fault>,
    pub verification: Option<Verification>,
}

#[derive(Clone, Debug)]
pub struct TransferDetail {
    pub transfer: TransferRow,
    /// Oldest first; the last one may still be running.
    pub attempts: Vec<AttemptRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AttemptRow {
    pub id: AttemptId,
    pub epoch: Epoch,
    pub source: StorageId,
    pub source_name: StorageName,
    pub agent: AgentId,
    /// When the lease was created.
    pub chosen: Timestamp,
    /// JSON as given to [`crate::Catalog::begin_attempts`]; empty if pruned.
    pub choice: String,
    /// None while it runs.
    pub finished: Option<FinishedAttempt>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FinishedAttempt {
    pub at: Timestamp,
    pub times: AttemptTimes,
    pub bytes_moved: u64,
    pub bytes_resent: u64,
    pub executor: Option<Executor>,
    pub fault: Option<Fault>,
    pub verification: Option<Verification>,
    pub digests: DigestSet,
    pub already_there: bool,
}

/// One invariant of the state, and its violations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    pub name: &'static str,
    pub violations: u64,
    /// The first few violations.
    pub examples: Vec<String>,
}
