//! The removal of a storage, an agent or a site: durable, then true for this process, then told to the
//! scheduler and to the agents that read from it or send to it.

use longhaul_api::native::ChangeKind;
use longhaul_catalog::{CatalogError, StorageRemoval};
use longhaul_model::{AgentId, Fault, FaultCode, SiteName, StorageName, Timestamp};
use longhaul_scheduler::{Event, StorageInfo};

use super::{CommitLoop, RemoveAgent, RemoveSite, RemoveStorage};
use crate::brain::Input;

impl CommitLoop {
    pub(super) fn remove_storage(&self, order: RemoveStorage) {
        self.reply(&order.reply, self.remove(&order));
    }

    fn remove(&self, order: &RemoveStorage) -> Result<(), CatalogError> {
        let terms = self.control.copy_terms();
        self.check_unserved(&order.storage, terms.now)?;
        let removal = self.kernel.catalog.remove_storage(&order.storage, order.force, &order.who, &terms)?;
        self.announce_removal(&removal, terms.now)?;
        let files = removal.concerns.files();
        tracing::warn!(storage = %order.storage, by = %order.who, files, "removed");
        Ok(())
    }

    pub(super) fn remove_agent(&self, order: RemoveAgent) {
        self.reply(&order.reply, self.remove_silent_agent(order.agent, &order.who));
    }

    fn remove_silent_agent(&self, agent: AgentId, who: &str) -> Result<(), CatalogError> {
        let terms = self.control.copy_terms();
        let now = terms.now;
        if self.control.agents.is_in_contact(agent, now) {
            let detail = format!("agent {agent} is connected: stop it, or refuse it");
            return Err(CatalogError::Refused(Fault::new(FaultCode::Conflict, detail)));
        }
        let removal = self.kernel.catalog.remove_agent(agent, who, &terms)?;
        self.announce_refusal(agent, removal.refused, now);
        for storage in &removal.storages {
            self.announce_removal(storage, now)?;
        }
        self.control.agents.remove(agent);
        tracing::warn!(%agent, by = who, storages = removal.storages.len(), "removed");
        Ok(())
    }

    pub(super) fn remove_site(&self, order: RemoveSite) {
        self.reply(&order.reply, self.remove_silent_site(&order));
    }

    fn remove_silent_site(&self, order: &RemoveSite) -> Result<(), CatalogError> {
        let terms = self.control.copy_terms();
        let now = terms.now;
        self.check_silent(&order.site, now)?;
        let removal = self.kernel.catalog.remove_site(&order.site, order.force, &order.who, &terms)?;
        let agents: Vec<AgentId> = removal.agents.iter().map(|(agent, _)| *agent).collect();
        for (agent, refused) in removal.agents {
            self.announce_refusal(agent, refused, now);
        }
        for storage in &removal.storages {
            self.announce_removal(storage, now)?;
        }
        for &agent in &agents {
            self.control.agents.remove(agent);
        }
        tracing::warn!(site = %order.site, by = %order.who, agents = agents.len(),
            storages = removal.storages.len(), "removed");
        self.kernel.changes.touch(ChangeKind::Site, &order.site, now);
        self.kernel.refresh_directory()
    }

    /// A connected agent may be receiving: whoever wants the site away stops it, or has it refused.
    fn check_silent(&self, site: &SiteName, now: Timestamp) -> Result<(), CatalogError> {
        let Some(row) = self.kernel.catalog.site(site)? else { return Ok(()) };
        let mut agents = self.control.agents.of_site(row.id).into_iter();
        let Some(agent) = agents.find(|agent| self.control.agents.is_in_contact(*agent, now)) else {
            return Ok(());
        };
        let detail = format!("agent {agent} of {site} is connected: stop it, or refuse it");
        Err(CatalogError::Refused(Fault::new(FaultCode::Conflict, detail)))
    }

    /// An agent would offer the storage again with its next hello, as a new one without files.
    fn check_unserved(&self, name: &StorageName, now: Timestamp) -> Result<(), CatalogError> {
        let Some(row) = self.kernel.catalog.storage(name)? else { return Ok(()) };
        let agents = &self.control.agents;
        let joined = || agents.joined_agent(row.id, now).and_then(|agent| agents.agent(agent));
        let Some(holder) = agents.holder(row.id, row.agent, now).or_else(joined) else { return Ok(()) };
        let detail = format!(
            "storage {name} is served by agent {} on {}, which is connected: stop that agent, or take the \
                storage out of its configuration and restart it",
            holder.id, holder.host
        );
        Err(CatalogError::Refused(Fault::new(FaultCode::Conflict, detail)))
    }

    fn announce_removal(&self, removal: &StorageRemoval, now: Timestamp) -> Result<(), CatalogError> {
        let storage = removal.concerns.id;
        let control = &self.control;
        control.agents.forget_storage(storage);
        let mut events = vec![
            Event::Agent { storage, agent: None, connected: false },
            // The scheduler keeps its number, as history does; nothing goes there or through it any more.
            Event::Storage(StorageInfo {
                id: storage,
                name: removal.concerns.name.clone(),
                site: removal.concerns.site,
                writable: false,
                relay: false,
                trouble: None,
            }),
        ];
        events.extend(removal.blocks.iter().map(|&block| Event::BlockLost { block, storage }));
        for row in &removal.released {
            control.live.ended(row.attempt, false, 0, now);
            control.agents.cancel(row.agent, [row.attempt]);
            self.kernel.changes.touch(ChangeKind::Transfer, row.transfer, now);
            events.push(Event::LeaseReleased { attempt: row.attempt });
        }
        for ended in &removal.cancelled {
            if let Some((attempt, agent)) = ended.lease {
                self.taken_back(ended.transfer, attempt, agent, now);
                events.push(Event::LeaseReleased { attempt });
            } else {
                control.live.settled(ended.transfer);
                self.kernel.changes.touch(ChangeKind::Transfer, ended.transfer, now);
            }
        }
        for &task in &removal.tasks {
            self.forget_task(task);
            self.kernel.changes.touch(ChangeKind::Task, task, now);
        }
        self.kernel.notify_scheduler(Input::Events(events));
        self.kernel.changes.touch(ChangeKind::Site, &removal.concerns.site_name, now);
        self.kernel.refresh_directory()
    }
}
