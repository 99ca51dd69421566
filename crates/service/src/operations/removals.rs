//! Storages that are to be no more.

use std::sync::mpsc::channel;

use longhaul_api::Problem;
use longhaul_api::native::{RemovedReplicas, StorageRemoval, StorageRemoved};
use longhaul_control::commit_loop::{CommitWork, RemoveStorage};
use longhaul_identity::Caller;
use longhaul_model::{FaultCode, StorageName};

use super::{Operations, busy, problem};

impl Operations {
    /// Tells what the removal of a storage means; removes it if it is no dry run and nothing forbids it.
    pub fn storage_remove(
        &self,
        caller: &Caller,
        name: &StorageName,
        request: &StorageRemoval,
    ) -> Result<StorageRemoved, Problem> {
        let row = self.storage_row(name)?;
        let control = &self.shared.control;
        let concerns =
            self.shared.kernel.catalog.storage_concerns(name, &control.copy_terms()).map_err(problem)?;
        let held = concerns.datasets.iter().map(|held| RemovedReplicas {
            dataset: held.dataset.clone(),
            files: held.files,
            bytes: held.bytes,
            last_replicas: held.last_replicas,
        });
        let reply = StorageRemoved {
            storage: name.clone(),
            site: row.site_name,
            removed: !request.dry_run,
            served_by: control.agents.holder(row.id, row.agent, self.now()).map(|holder| holder.id),
            datasets: held.collect(),
            files: concerns.files(),
            bytes: concerns.bytes(),
            last_replicas: concerns.last_replicas(),
            leases_in: concerns.leases_in,
            leases_out: concerns.leases_out,
            tasks: concerns.tasks,
            subscriptions: concerns.subscriptions,
        };
        if request.dry_run {
            return Ok(reply);
        }
        let (sender, done) = channel();
        let order = RemoveStorage {
            storage: name.clone(),
            force: request.force,
            who: caller.principal.name.clone(),
            reply: sender,
        };
        self.shared.kernel.writer.send(CommitWork::RemoveStorage(order))?;
        let done = done.recv().map_err(|_| busy("the service stops"))?;
        done.map_err(|error| removal_problem(problem(error), &reply))?;
        Ok(reply)
    }
}

/// Why a storage stays, with the command that changes it.
fn removal_problem(problem: Problem, reply: &StorageRemoved) -> Problem {
    if problem.code != FaultCode::Conflict {
        return problem;
    }
    match reply.subscriptions.first() {
        Some(first) => problem.with_remedy(format!("end it: longhaul subscription cancel {first}")),
        None => problem.with_remedy(format!("see its agents: longhaul site show {}", reply.site)),
    }
}
