//! Which agents carry out a lease, where several serve its storages.

use std::collections::BTreeMap;

use longhaul_model::{AgentId, StorageId, Timestamp};
use longhaul_scheduler::Lease;

use crate::Control;
use crate::agent_backlogs::AgentBacklogs;

/// Deals the leases of one round.
pub(super) struct Dealer<'a> {
    control: &'a Control,
    now: Timestamp,
    /// The agents that serve a storage in this round.
    serving: BTreeMap<StorageId, Vec<AgentId>>,
    /// Counted only if a storage has several agents.
    backlogs: Option<AgentBacklogs>,
}

impl<'a> Dealer<'a> {
    pub(super) fn new(control: &'a Control, now: Timestamp) -> Dealer<'a> {
        Dealer { control, now, serving: BTreeMap::new(), backlogs: None }
    }

    /// The agent that brings the file; none if the target's agents are others than the decision assumed.
    pub(super) fn target_agent(&mut self, lease: &Lease) -> Option<AgentId> {
        if self.control.agents.known_as(lease.target) != Some(lease.agent) {
            return None;
        }
        self.choose(lease.target, |backlogs, agents| {
            let agent = backlogs.least_busy_target(agents)?;
            backlogs.count_target(agent, lease.size);
            Some(agent)
        })
    }

    /// The agent that sends files of these sizes; none if nobody serves the source.
    pub(super) fn source_agent(
        &mut self,
        source: StorageId,
        sizes: impl Iterator<Item = u64>,
    ) -> Option<AgentId> {
        self.choose(source, |backlogs, agents| {
            let agent = backlogs.least_busy_source(agents)?;
            sizes.for_each(|bytes| backlogs.count_source(agent, bytes));
            Some(agent)
        })
    }

    /// The agent of a storage; `pick` decides among several.
    fn choose(
        &mut self,
        storage: StorageId,
        pick: impl FnOnce(&mut AgentBacklogs, &[AgentId]) -> Option<AgentId>,
    ) -> Option<AgentId> {
        let Dealer { control, now, serving, backlogs } = self;
        let serving = serving.entry(storage).or_insert_with(|| control.agents.serving(storage, *now));
        match serving.as_slice() {
            // Its last word is some seconds ago: the lease waits for it, as ever.
            [] => control.agents.of_storage(storage),
            [agent] => Some(*agent),
            several => pick(backlogs.get_or_insert_with(|| control.live.backlogs()), several),
        }
    }
}
