//! Silent agents of shared storages: another agent fences them, and what they held is leased anew (decision
//! 0037).

use std::collections::BTreeMap;

use longhaul_api::agent::{FenceOrder, FenceReport};
use longhaul_api::native::ChangeKind;
use longhaul_catalog::CatalogError;
use longhaul_model::{AgentId, Fault, FaultCode, StorageId};
use longhaul_scheduler::Event;

use super::CommitLoop;
use crate::brain::Input;

impl CommitLoop {
    pub(super) fn fence_silent_agents(&self) {
        let directory = self.kernel.directory();
        let shared: BTreeMap<StorageId, AgentId> = directory
            .storages
            .values()
            .filter(|row| row.shared_root.is_some())
            .map(|row| (row.id, row.agent))
            .collect();
        if shared.is_empty() {
            return;
        }
        let (now, after) = (self.kernel.now(), self.control.fence_after);
        let mut holders = self.control.live.holders(|target| shared.contains_key(&target));
        holders.extend(shared.into_iter().map(|(storage, lead)| (lead, storage)));
        for silent in self.control.agents.silent_agents(&holders, after, now) {
            let Some(storage) = self.storage_name(silent.storage) else { continue };
            tracing::warn!(agent = %silent.agent, %storage, by = %silent.by,
                even_if_locked = silent.even_if_locked,
                "silent: another agent of the storage is to fence it");
            let order = FenceOrder { storage, agent: silent.agent, even_if_locked: silent.even_if_locked };
            self.control.agents.order_fence(silent.by, order);
        }
    }

    /// An agent says that it has fenced another one of a storage that both serve: what that one held there is
    /// leased anew. Its late word changes nothing, since its epochs are over.
    pub(super) fn take_over(&self, by: AgentId, report: &FenceReport) -> Result<(), CatalogError> {
        let (now, from) = (self.kernel.now(), report.agent);
        if let Some(why) = &report.why_not {
            tracing::info!(agent = %from, storage = %report.storage, %by, %why, "not fenced");
            return Ok(());
        }
        let directory = self.kernel.directory();
        let row = directory.storage(report.storage.as_str()).filter(|row| row.shared_root.is_some());
        let Some((storage, led)) = row.map(|row| (row.id, row.agent == from)) else { return Ok(()) };
        if !self.control.agents.may_take_over(by, from, storage, now) {
            tracing::info!(agent = %from, storage = %report.storage, %by, "fenced, and back already");
            return Ok(());
        }
        let fault = Fault::new(FaultCode::Interrupted, format!("agent {from} is silent, and was fenced"));
        let revoked = self.revoke(|row| row.agent == from && row.target == storage, &fault, now)?;
        let mut events = Vec::with_capacity(revoked.len());
        for row in &revoked {
            self.kernel.changes.touch(ChangeKind::Transfer, row.transfer, now);
            events.push(Event::LeaseReleased { attempt: row.attempt });
        }
        self.control.agents.note_fenced(from, by, storage, led);
        tracing::warn!(agent = %from, storage = %report.storage, %by, leases = revoked.len(), "fenced");
        events.extend(self.control.agents.connection_events(from, vec![storage], now));
        self.kernel.notify_scheduler(Input::Events(events));
        Ok(())
    }
}
