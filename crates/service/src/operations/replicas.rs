//! Where files are, and what deleting or verifying them there means.

use longhaul_api::Problem;
use longhaul_api::native::{
    ChangeKind, DeletionReply, DeletionRequest, FileReplica, FileReplicas, TaskView, VerificationRequest,
};
use longhaul_api::rights;
use longhaul_catalog::{NewTask, TaskKind, TaskRow};
use longhaul_control::brain::Input;
use longhaul_control::commit_loop::{CommitWork, replica_events};
use longhaul_identity::{Belonging, Caller};
use longhaul_model::{DatasetId, DatasetName, Fault, FaultCode, Lfn, StorageId, StorageName};

use super::{Operations, end_subscription, not_found, problem};
use crate::views;
use longhaul_scheduler::DemandId;

impl Operations {
    pub fn replica_of_file(&self, lfn: &Lfn) -> Result<FileReplicas, Problem> {
        let found = self.shared.kernel.catalog.replicas_of_file(lfn).map_err(problem)?;
        let (file, replicas) =
            found.ok_or_else(|| not_found("file", lfn.shown(), "longhaul dataset show NAME --files"))?;
        let digest = file.digests.iter().next().copied();
        Ok(FileReplicas {
            lfn: file.lfn,
            size: file.size,
            replicas: replicas
                .into_iter()
                .map(|row| FileReplica {
                    storage: row.storage_name,
                    suspect: row.suspect.is_some(),
                    verified: views::how(row.how),
                    digest,
                })
                .collect(),
        })
    }

    /// Tells what a deletion would do; does it if it is no dry run and nothing forbids it.
    pub fn deletion_create(
        &self,
        caller: &Caller,
        request: &DeletionRequest,
    ) -> Result<DeletionReply, Problem> {
        let dataset = self.dataset_row(&request.dataset)?;
        let storage = self.storage_row(&request.storage)?;
        let of = [Belonging::Data(&dataset.community), Belonging::Site(&storage.site_name)];
        caller.check(&rights::DELETION_CREATE, &of)?;
        if request.force {
            caller.check(&rights::DELETION_FORCE, &of)?;
        }
        let terms = self.shared.control.copy_terms();
        let catalog = &self.shared.kernel.catalog;
        let preview = catalog.deletion_preview(dataset.id, storage.id, &terms).map_err(problem)?;
        let mut reply = DeletionReply {
            files: preview.files,
            bytes: preview.bytes,
            last_replicas: preview.last_replicas,
            copies: views::copies(preview.copies, &terms.unreachable),
            subscriptions: preview.subscriptions,
            task: None,
        };
        if request.dry_run {
            return Ok(reply);
        }
        if preview.files == 0 {
            return Err(no_replica(&request.storage, &request.dataset));
        }
        let kind = TaskKind::Delete { force: request.force };
        let added = self.add_task(kind, dataset.id, storage.id);
        reply.task = Some(added.map_err(|problem| deletion_problem(problem, &reply))?.id);
        Ok(reply)
    }

    pub fn verification_create(
        &self,
        caller: &Caller,
        request: &VerificationRequest,
    ) -> Result<TaskView, Problem> {
        self.check_storage(caller, &rights::VERIFICATION_CREATE, &request.storage)?;
        let dataset = self.dataset_row(&request.dataset)?;
        let storage = self.storage_row(&request.storage)?;
        let held = self.shared.kernel.catalog.replicas_of_dataset(dataset.id).map_err(problem)?;
        if !held.iter().any(|row| row.storage == storage.id && row.files > 0) {
            return Err(no_replica(&request.storage, &request.dataset));
        }
        let task = self.add_task(TaskKind::Verify, dataset.id, storage.id)?;
        Ok(self.task_view(task))
    }

    /// Makes a task durable and hands it to the storage's agent.
    pub(crate) fn add_task(
        &self,
        kind: TaskKind,
        dataset: DatasetId,
        storage: StorageId,
    ) -> Result<TaskRow, Problem> {
        let terms = self.shared.control.copy_terms();
        let now = terms.now;
        let new = NewTask { id: self.shared.kernel.new_id(), kind, dataset, storage };
        let added = self.shared.kernel.catalog.add_task(&new, &terms).map_err(problem)?;
        let (task, made) = (&added.task, added.made);
        let (dataset, storage) = (&task.dataset_name, &task.storage_name);
        tracing::info!(task = %task.id, %dataset, %storage, made, "task");
        self.replicas_changed(added.replicas);
        self.shared.kernel.changes.touch(ChangeKind::Task, added.task.id, now);
        let _ = self.shared.kernel.writer.send(CommitWork::Task(added.task.id));
        Ok(added.task)
    }

    pub(crate) fn replicas_changed(&self, change: longhaul_catalog::ReplicaChange) {
        self.shared.kernel.notify_scheduler(Input::Events(replica_events(&change)));
        let gone = change
            .demands_gone
            .iter()
            .map(|&(subscription, block)| DemandId { subscription, block })
            .collect();
        self.shared.kernel.announce_demands(&change.demands);
        self.shared.kernel.notify_scheduler(Input::Demands { now: change.demands, gone });
    }
}

/// The storage and the dataset exist, but nothing of the one is at the other.
fn no_replica(storage: &StorageName, dataset: &DatasetName) -> Problem {
    let fault = Fault::new(FaultCode::NotFound, format!("{storage} holds no file of {dataset}"));
    Problem::from(fault).with_remedy(format!("see who does: longhaul replica list {dataset}"))
}

/// Why replicas stay, with the command that changes it.
fn deletion_problem(problem: Problem, reply: &DeletionReply) -> Problem {
    match reply.subscriptions.first() {
        Some(first) if problem.code == FaultCode::Conflict => problem.with_remedy(end_subscription(*first)),
        _ => problem,
    }
}
