//! The refusal of an agent: durable, then true for this process, then told to the scheduler and to the agents
//! that read from its storages.

use std::collections::BTreeSet;

use longhaul_api::native::ChangeKind;
use longhaul_catalog::{CatalogError, RefusalResult};
use longhaul_model::{AgentId, Timestamp};
use longhaul_scheduler::Event;

use super::{CommitLoop, RefuseAgent};
use crate::brain::Input;

impl CommitLoop {
    pub(super) fn refuse_agent(&self, order: RefuseAgent) {
        self.reply(&order.reply, self.refuse(order.agent, &order.reason));
    }

    fn refuse(&self, agent: AgentId, reason: &str) -> Result<(), CatalogError> {
        let now = self.kernel.now();
        let result = self.kernel.catalog.refuse_agent(agent, reason, now)?;
        let site = self.control.agents.agent(agent).map(|info| info.site_name);
        tracing::warn!(%agent, ?site, reason, released = result.released.len(), "refused");
        self.announce_refusal(agent, result, now);
        Ok(())
    }

    pub(super) fn announce_refusal(&self, agent: AgentId, result: RefusalResult, now: Timestamp) {
        self.control.agents.refuse(result.refusal);
        self.control.streams.reconcile(agent, &BTreeSet::new());
        let mut events = self.control.agents.transition_events(now);
        for row in &result.released {
            self.control.live.ended(row.attempt, false, 0, now);
            if row.agent != agent {
                self.control.agents.cancel(row.agent, [row.attempt]);
            }
            self.kernel.changes.touch(ChangeKind::Transfer, row.transfer, now);
            events.push(Event::LeaseReleased { attempt: row.attempt });
        }
        self.kernel.notify_scheduler(Input::Events(events));
        if let Some(info) = self.control.agents.agent(agent) {
            self.kernel.changes.touch(ChangeKind::Site, info.site_name, now);
        }
    }
}
