//! Scans, verifications, deletions.
use crate::*;
use longhaul_model::*;
/// Problems kept of one task.
pub const TASK_PROBLEMS_MAX: usize = 100;
impl Catalog {
    /// A deletion is refused with `LastReplica` or `Conflict` as its preview says; a second open task of the
    /// same kind for the same dataset and storage is not made: the open one is returned.
    pub fn add_task(&self, _new: &NewTask, _now: Timestamp) -> Result<TaskAdded, CatalogError> {
        todo!()
    }
    /// Open tasks, oldest first.
    pub fn tasks_for(&self, _storage: StorageId) -> Result<Vec<TaskRow>, CatalogError> {
        todo!()
    }
    pub fn task(&self, _id: TaskId) -> Result<Option<TaskRow>, CatalogError> {
        todo!()
    }
    /// Newest first.
    pub fn tasks(&self, _dataset: DatasetId) -> Result<Vec<TaskRow>, CatalogError> {
        todo!()
    }
    /// What a verify or delete task is to do, by file id.
    pub fn task_files(
        &self,
        _id: TaskId,
        _after: Option<FileId>,
        _limit: usize,
    ) -> Result<TaskFiles, CatalogError> {
        todo!()
    }
    /// Ends a task before it is done.
    pub fn cancel_task(
        &self,
        _id: TaskId,
        _fault: &Fault,
        _now: Timestamp,
    ) -> Result<(TaskRow, ReplicaChange), CatalogError> {
        todo!()
    }
}
/// What adding a task did.
#[derive(Clone, Debug)]
pub struct TaskAdded {
    pub task: TaskRow,
    /// False if it existed.
    pub made: bool,
    /// Replicas that are no sources any more, since they are being deleted.
    pub replicas: ReplicaChange,
}
