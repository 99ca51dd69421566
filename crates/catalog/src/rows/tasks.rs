//! Tasks: work of an agent other than transfers.

use longhaul_model::{
    Algorithm, DatasetId, DatasetName, DigestOrigin, DigestSet, Fault, FileId, Lfn, StorageId, StorageName,
    SubscriptionId, TaskId, Timestamp,
};

use crate::{CopyDefect, VerificationState};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Walk a directory and register the files in it. `path` is relative to the storage's root.
    Scan { path: String, algorithms: Vec<Algorithm>, digests: DigestOrigin },
    /// Read each file again and compare its digests.
    Verify,
    /// Delete each file; with `force` even a last good replica.
    Delete { force: bool },
    /// Remove files that passed through a relay and are not needed there any more.
    Clear,
}

#[derive(Clone, Debug)]
pub struct NewTask {
    pub id: TaskId,
    pub kind: TaskKind,
    pub dataset: DatasetId,
    pub storage: StorageId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRow {
    pub id: TaskId,
    pub kind: TaskKind,
    pub dataset: DatasetId,
    pub dataset_name: DatasetName,
    pub storage: StorageId,
    pub storage_name: StorageName,
    pub done: bool,
    /// Files of the task as known at its creation; 0 for a scan.
    pub files_total: u64,
    pub bytes_total: u64,
    pub files_done: u64,
    pub bytes_done: u64,
    pub files_bad: u64,
    /// Files that a verification did not read, since they are on tape only.
    pub files_on_tape: u64,
    /// The first [`crate::TASK_PROBLEMS_MAX`] problems.
    pub problems: Vec<TaskProblemRow>,
    /// Why it ended early, if so.
    pub fault: Option<Fault>,
    pub created: Timestamp,
    pub finished: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProblemRow {
    pub lfn: Lfn,
    pub fault: Fault,
}

/// One page of the files that a verify or delete task is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFiles {
    pub files: Vec<ExpectedFileRow>,
    /// Where the next page begins; none after the last.
    pub next: Option<FileId>,
    /// Files left out of an unforced deletion, since no other good replica exists by now.
    pub kept_as_last: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedFileRow {
    pub file: FileId,
    pub lfn: Lfn,
    pub size: u64,
    pub digests: DigestSet,
}

/// Copies of some files at one storage that are verified alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyGroup {
    pub storage: StorageId,
    pub storage_name: StorageName,
    /// The copies that the deletion is about.
    pub is_here: bool,
    pub files: u64,
    pub how: VerificationState,
    /// None of them was verified before, as far as it was. None: not known.
    pub verified: Option<Timestamp>,
    /// Why they do not count as good copies.
    pub defect: Option<CopyDefect>,
}

/// A preview of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionPreview {
    pub files: u64,
    pub bytes: u64,
    /// Files with no other good copy.
    pub last_replicas: u64,
    /// The copies of the files, here and elsewhere, by storage, verification and defect.
    pub copies: Vec<CopyGroup>,
    /// Active or suspended subscriptions that would bring the files back, and so forbid the deletion;
    /// custodial ones first.
    pub subscriptions: Vec<SubscriptionId>,
    /// The first of them keeps the files on purpose: two people have to end it.
    pub custodial: bool,
}
