//! Replicas of datasets and files, their deletion and verification, and the tasks that do it.

use longhaul_model::{DatasetName, Digest, Fault, Lfn, StorageName, SubscriptionId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// What one storage holds of a dataset or block.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    /// Storage that holds the files.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Number of files present.
    pub files: u64,
    /// Size of the files present, in bytes.
    pub bytes: u64,
    /// True if every file is present.
    pub complete: bool,
    /// Files present that were found bad and are not good again yet: they do not count as present for a
    /// subscription.
    pub suspect_files: u64,
    /// Size of those, in bytes.
    #[serde(default)]
    pub suspect_bytes: u64,
    /// Files counted by how they were verified; files registered in place count as `registered`.
    pub verified: Vec<VerifiedCount>,
}

impl ReplicaView {
    /// Files that count: the same as a subscription at the storage has present.
    pub fn good_files(&self) -> u64 {
        self.files.saturating_sub(self.suspect_files)
    }

    /// Bytes that count.
    pub fn good_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.suspect_bytes)
    }
}

/// Number of files verified in one way.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VerifiedCount {
    /// How they were verified: `registered`, `wire`, `end-to-end` or `readback`.
    pub how: String,
    /// Number of files.
    pub files: u64,
}

/// `POST /api/v1/deletions`: deletes replicas. With `dry_run`, the default, it only shows what would be
/// deleted.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeletionRequest {
    /// Dataset to delete.
    #[schema(value_type = formats::DatasetName)]
    pub dataset: DatasetName,
    /// Storage to delete it from.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// True, the default: delete nothing, only preview.
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// True: delete files even if no other good replica exists.
    #[serde(default)]
    pub force: bool,
}

fn yes() -> bool {
    true
}

/// What a deletion does, or would do.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletionReply {
    /// Files to delete.
    pub files: u64,
    /// Size of these files together, in bytes.
    pub bytes: u64,
    /// Those of the files that have no other good copy.
    pub last_replicas: u64,
    /// All copies of the files, those to delete too, and whether each counts as a good one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyView>,
    /// Subscriptions that would bring the files back, and therefore forbid the deletion.
    #[schema(value_type = Vec<formats::SubscriptionId>)]
    pub subscriptions: Vec<SubscriptionId>,
    /// Task that deletes the files; absent for a dry run.
    #[schema(value_type = Option<formats::TaskId>)]
    pub task: Option<TaskId>,
}

/// Copies at one storage that are verified alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CopyView {
    /// Storage that holds them.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// True for the copies that would be deleted.
    pub to_delete: bool,
    /// Number of files.
    pub files: u64,
    /// True if the agent of the storage is connected.
    pub connected: bool,
    /// How they were verified: `registered` (never), `wire`, `end-to-end` or `readback`.
    pub verified: String,
    /// None of them was verified before this time; absent if they never were, or if it is not known when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub verified_at: Option<Timestamp>,
    /// True if each of them counts as a good copy.
    pub counts: bool,
    /// Why they do not count; absent if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /api/v1/verifications`: the storage's agent reads every file of the dataset again and compares it
/// with the catalog.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerificationRequest {
    /// Dataset to verify.
    #[schema(value_type = formats::DatasetName)]
    pub dataset: DatasetName,
    /// Storage to read it from.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
}

/// A scan, verification or deletion with its progress.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Id of the task.
    #[schema(value_type = formats::TaskId)]
    pub id: TaskId,
    /// Kind of task: `scan`, `verify`, `delete`, or `clear`, which removes files that a relay no longer
    /// needs.
    pub kind: String,
    /// Dataset that the task works on.
    #[schema(value_type = formats::DatasetName)]
    pub dataset: DatasetName,
    /// Storage that the task works at.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// True once the task has ended, well or not.
    pub done: bool,
    /// Files handled so far.
    pub files_done: u64,
    /// Bytes of the files handled so far.
    pub bytes_done: u64,
    /// Those of the files with a problem.
    pub files_bad: u64,
    /// Files that a verification did not read, since they are on tape only: no problem of the copy, and
    /// nothing that it proves.
    #[serde(default)]
    pub files_on_tape: u64,
    /// The first hundred problems.
    pub problems: Vec<TaskProblem>,
    /// Why the task as a whole failed; absent if it did not.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    /// Time when the task was created.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Why the task has not begun or does not go on; absent if it runs or has ended.
    pub waits_for: Option<String>,
}

/// A file with a problem that a task found.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskProblem {
    /// Logical name of the file.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// The problem.
    #[schema(value_type = Object)]
    pub fault: Fault,
}

/// `GET /api/v1/replicas`: all replicas of one file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileReplicas {
    /// Logical name of the file.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Size in bytes.
    pub size: u64,
    /// One entry for each storage that holds the file.
    pub replicas: Vec<FileReplica>,
}

/// A replica of one file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileReplica {
    /// Storage that holds the replica.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// True if the replica has an unconfirmed problem.
    pub suspect: bool,
    /// How the replica was verified: `registered`, `wire`, `end-to-end` or `readback`.
    pub verified: String,
    /// Digest of the file in the catalog.
    #[schema(value_type = Option<String>)]
    pub digest: Option<Digest>,
}
