//! Work of an agent that moves no bytes between sites.

use longhaul_model::{
    Algorithm, DatasetId, DatasetName, DigestSet, Fault, FileId, Lfn, StorageId, StorageName, SubscriptionId,
    TaskId, Timestamp,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Walk a directory and register what is found. `path` is relative to the storage's root.
    Scan { path: String, algorithms: Vec<Algorithm> },
    /// Read each file again and compare.
    Verify,
    /// Remove each file. `force` takes the last good replica too.
    Delete { force: bool },
    /// Remove files that came to a relay on their way and are needed there no more.
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
    /// To do, as known when the task was made; 0 for a scan.
    pub files_total: u64,
    pub bytes_total: u64,
    pub files_done: u64,
    pub bytes_done: u64,
    pub files_bad: u64,
    /// The first [`crate::TASK_PROBLEMS_MAX`].
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

/// Files that a verify or delete task is about, one page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFiles {
    pub files: Vec<ExpectedFileRow>,
    /// Where the next page begins; none after the last.
    pub next: Option<FileId>,
    /// Left out of a deletion that is not forced, since by now no other good replica exists.
    pub kept_as_last: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedFileRow {
    pub file: FileId,
    pub lfn: Lfn,
    pub size: u64,
    pub digests: DigestSet,
}

/// What a deletion would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionPreview {
    pub files: u64,
    pub bytes: u64,
    /// Of these, files with no other good replica.
    pub last_replicas: u64,
    /// Active or suspended subscriptions that would bring them back, and so forbid it.
    pub subscriptions: Vec<SubscriptionId>,
}
