//! Sites, storages and agents that are to be no more.

use longhaul_api::Problem;
use longhaul_api::native::{
    AgentRemoval, AgentRemoved, RemovedReplicas, SiteRemoval, SiteRemoved, StorageRemoval, StorageRemoved,
};
use longhaul_catalog::StorageConcerns;
use longhaul_control::commit_loop::{CommitWork, RemoveAgent, RemoveSite, RemoveStorage};
use longhaul_identity::Caller;
use longhaul_model::{AgentId, FaultCode, SiteName, StorageName};

use super::{Operations, end_subscription, not_found, problem};

impl Operations {
    /// Tells what the removal of a storage means; removes it if it is no dry run and nothing forbids it.
    pub fn storage_remove(
        &self,
        caller: &Caller,
        name: &StorageName,
        request: &StorageRemoval,
    ) -> Result<StorageRemoved, Problem> {
        self.storage_row(name)?;
        let terms = self.shared.control.copy_terms();
        let concerns = self.shared.kernel.catalog.storage_concerns(name, &terms).map_err(problem)?;
        let reply = self.storage_removed(concerns, !request.dry_run)?;
        if request.dry_run {
            return Ok(reply);
        }
        let (storage, force, who) = (name.clone(), request.force, caller.principal.name.clone());
        let done =
            self.commit(|reply| CommitWork::RemoveStorage(RemoveStorage { storage, force, who, reply }));
        done.map_err(|problem| removal_problem(problem, &reply))?;
        Ok(reply)
    }

    fn storage_removed(&self, concerns: StorageConcerns, removed: bool) -> Result<StorageRemoved, Problem> {
        let row = self.storage_row(&concerns.name)?;
        let held = concerns.datasets.iter().map(|held| RemovedReplicas {
            dataset: held.dataset.clone(),
            files: held.files,
            bytes: held.bytes,
            last_replicas: held.last_replicas,
        });
        let holder = self.shared.control.agents.holder(row.id, row.agent, self.now());
        Ok(StorageRemoved {
            storage: concerns.name.clone(),
            site: row.site_name,
            removed,
            served_by: holder.map(|holder| holder.id),
            datasets: held.collect(),
            files: concerns.files(),
            bytes: concerns.bytes(),
            last_replicas: concerns.last_replicas(),
            leases_in: concerns.leases_in,
            leases_out: concerns.leases_out,
            tasks: concerns.tasks,
            subscriptions: concerns.subscriptions,
        })
    }

    /// Tells what the removal of a site means; removes it with all that belongs to it if it is no dry run and
    /// nothing forbids it.
    pub fn site_remove(
        &self,
        caller: &Caller,
        name: &SiteName,
        request: &SiteRemoval,
    ) -> Result<SiteRemoved, Problem> {
        self.site_row(name)?;
        let (catalog, control) = (&self.shared.kernel.catalog, &self.shared.control);
        let concerns = catalog.site_concerns(name, &control.copy_terms()).map_err(problem)?;
        let connected =
            concerns.agents.iter().filter(|agent| control.agents.is_in_contact(**agent, self.now()));
        let connected = connected.copied().collect();
        let storages =
            concerns.storages.into_iter().map(|concerns| self.storage_removed(concerns, !request.dry_run));
        let reply = SiteRemoved {
            site: name.clone(),
            removed: !request.dry_run,
            agents: concerns.agents,
            connected,
            storages: storages.collect::<Result<_, _>>()?,
        };
        if request.dry_run {
            return Ok(reply);
        }
        let changing = self.shared.identity.logins().lock_accounts();
        let managers = catalog.managers_of_site(name).map_err(problem)?;
        let (site, force, who) = (name.clone(), request.force, caller.principal.name.clone());
        let done = self.commit(|reply| CommitWork::RemoveSite(RemoveSite { site, force, who, reply }));
        done.map_err(|problem| site_removal_problem(problem, &reply))?;
        // By what they are now.
        for manager in managers {
            self.shared.identity.end_sessions_of_account(&manager);
        }
        self.shared.identity.owner_cache().invalidate();
        drop(changing);
        self.withdraw_movers(name, &caller.principal.name)?;
        self.forget_commissioning(name)?;
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
            problem if problem.code == FaultCode::Conflict => problem.with_remedy(stop_agent(agent)),
            problem => problem,
        })?;
        Ok(reply)
    }
}

/// Why a site stays, with the command that changes it.
fn site_removal_problem(problem: Problem, reply: &SiteRemoved) -> Problem {
    if problem.code != FaultCode::Conflict {
        return problem;
    }
    let wanted = reply.storages.iter().find_map(|storage| storage.subscriptions.first());
    match (reply.connected.first(), wanted) {
        (Some(agent), _) => problem.with_remedy(stop_agent(*agent)),
        (None, Some(first)) => problem.with_remedy(end_subscription(*first)),
        (None, None) => problem.with_remedy(format!("see what it has: longhaul site show {}", reply.site)),
    }
}

/// Why a storage stays, with the command that changes it.
fn removal_problem(problem: Problem, reply: &StorageRemoved) -> Problem {
    if problem.code != FaultCode::Conflict {
        return problem;
    }
    match reply.subscriptions.first() {
        Some(first) => problem.with_remedy(end_subscription(*first)),
        None => problem.with_remedy(format!("see its agents: longhaul site show {}", reply.site)),
    }
}

/// The next step where a connected agent is in the way.
fn stop_agent(agent: AgentId) -> String {
    format!("stop it on its host; if that cannot be done: longhaul agent refuse {agent} --yes")
}
