//! Replicas of datasets and files, their deletion and verification, and the tasks that do it.

use longhaul_model::{DatasetName, Digest, Fault, Lfn, StorageName, SubscriptionId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub files: u64,
    pub bytes: u64,
    pub complete: bool,
    pub suspect_files: u64,
    /// How many were verified how; files registered in place count as registered.
    pub verified: Vec<VerifiedCount>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VerifiedCount {
    /// `registered`, `wire`, `end-to-end` or `readback`.
    pub how: String,
    pub files: u64,
}

/// `POST /api/v1/deletions`: removes replicas; `dry_run` (the default) only tells.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletionRequest {
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = String)]
    pub storage: StorageName,
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// Delete even the last good replica.
    #[serde(default)]
    pub force: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletionReply {
    pub files: u64,
    pub bytes: u64,
    /// Files among these that have no other good replica.
    pub last_replicas: u64,
    /// Subscriptions that would bring them back, and so forbid it.
    #[schema(value_type = Vec<String>)]
    pub subscriptions: Vec<SubscriptionId>,
    /// Absent for a dry run.
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskId>,
}

/// `POST /api/v1/verifications`: the storage's agent reads every file of the dataset again and compares.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VerificationRequest {
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = String)]
    pub storage: StorageName,
}

/// A scan, verification or deletion as it goes on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    #[schema(value_type = String)]
    pub id: TaskId,
    /// `scan`, `verify`, `delete`, or `clear` (a relay's copies that nobody waits for any more).
    pub kind: String,
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub done: bool,
    pub files_done: u64,
    pub bytes_done: u64,
    pub files_bad: u64,
    /// The first hundred.
    pub problems: Vec<TaskProblem>,
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Why it has not begun or does not go on, if so.
    pub waits_for: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskProblem {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    #[schema(value_type = Object)]
    pub fault: Fault,
}

/// A file's replicas, for `replica list --file`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileReplicas {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    pub replicas: Vec<FileReplica>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileReplica {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub suspect: bool,
    /// `registered`, `wire`, `end-to-end` or `readback`.
    pub verified: String,
    #[schema(value_type = Option<String>)]
    pub digest: Option<Digest>,
}
