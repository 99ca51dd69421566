//! Storages and agents that are to be no more.

use longhaul_api::Problem;
use longhaul_api::native::{AgentRemoval, AgentRemoved, RemovedReplicas, StorageRemoval, StorageRemoved};
use longhaul_control::commit_loop::{CommitWork, RemoveAgent, RemoveStorage};
use longhaul_identity::Caller;
use longhaul_model::{AgentId, FaultCode, StorageName};

use super::{Operations, not_found, problem};

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
        let (storage, force, who) = (name.clone(), request.force, caller.principal.name.clone());
        let done =
            self.commit(|reply| CommitWork::RemoveStorage(RemoveStorage { storage, force, who, reply }));
        done.map_err(|problem| removal_problem(problem, &reply))?;
        Ok(reply)
    }

    /// Tells what the removal of an agent means; removes it if it is no dry run and nothing forbids it.
    pub fn agent_remove(
        &self,
        caller: &Caller,
        agent: AgentId,
        request: &AgentRemoval,
    ) -> Result<AgentRemoved, Problem> {
        let (catalog, control) = (&self.shared.kernel.catalog, &self.shared.control);
        let row = catalog.agent(agent).map_err(problem)?;
        let row = row.ok_or_else(|| not_found("agent", agent, "longhaul site show SITE"))?;
        let concerns = catalog.agent_concerns(agent).map_err(problem)?;
        let storages_removed = catalog.idle_storages(agent, &control.copy_terms()).map_err(problem)?;
        let mut storages = concerns.storages;
        storages.retain(|name| !storages_removed.contains(name));
        let reply = AgentRemoved {
            agent,
            site: row.site_name,
            removed: !request.dry_run,
            connected: control.agents.is_in_contact(agent, self.now()),
            storages,
            storages_removed,
            files: concerns.files,
            bytes: concerns.bytes,
            leases_in: concerns.leases_in,
            leases_out: concerns.leases_out,
            tasks: concerns.tasks,
            subscriptions: concerns.subscriptions,
        };
        if request.dry_run {
            return Ok(reply);
        }
        let who = caller.principal.name.clone();
        let done = self.commit(|reply| CommitWork::RemoveAgent(RemoveAgent { agent, who, reply }));
        done.map_err(|problem| match problem {
            problem if problem.code == FaultCode::Conflict => problem.with_remedy(format!(
                "stop it on its host; if that cannot be done: longhaul agent refuse {agent} --yes"
            )),
            problem => problem,
        })?;
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
