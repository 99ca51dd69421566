//! Which agents carry out a lease, where several serve its storages.

use longhaul_model::{AgentId, StorageId, Timestamp};
use longhaul_scheduler::Lease;

use crate::Control;
use crate::agent_backlogs::AgentBacklogs;

/// Deals the leases of one round.
pub(super) struct Dealer<'a> {
    control: &'a Control,
    /// Counted only if a storage has several agents.
    backlogs: Option<AgentBacklogs>,
}

impl<'a> Dealer<'a> {
    pub(super) fn new(control: &'a Control) -> Dealer<'a> {
        Dealer { control, backlogs: None }
    }

    /// The agent that brings the file; none if the target's agents are others than the decision assumed.
    pub(super) fn target_agent(&mut self, lease: &Lease, now: Timestamp) -> Option<AgentId> {
        let agents = &self.control.agents;
        if agents.known_as(lease.target) != Some(lease.agent) {
            return None;
        }
        let serving = match agents.serving(lease.target, now) {
            // Its last word is some seconds ago: the lease waits for it, as ever.
            none if none.is_empty() => return agents.of_storage(lease.target),
            one if one.len() == 1 => return one.first().copied(),
            several => several,
        };
        let backlogs = self.backlogs();
        let agent = backlogs.least_busy_target(&serving)?;
        backlogs.count_target(agent, lease.size);
        Some(agent)
    }

    /// The agent that sends files of these sizes; none if nobody serves the source.
    pub(super) fn source_agent(
        &mut self,
        source: StorageId,
        sizes: impl Iterator<Item = u64>,
        now: Timestamp,
    ) -> Option<AgentId> {
        let agents = &self.control.agents;
        let serving = match agents.serving(source, now) {
            none if none.is_empty() => return agents.of_storage(source),
            one if one.len() == 1 => return one.first().copied(),
            several => several,
        };
        let backlogs = self.backlogs();
        let agent = backlogs.least_busy_source(&serving)?;
        sizes.for_each(|bytes| backlogs.count_source(agent, bytes));
        Some(agent)
    }

    fn backlogs(&mut self) -> &mut AgentBacklogs {
        self.backlogs.get_or_insert_with(|| self.control.live.backlogs())
    }
}
