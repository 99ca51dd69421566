//! Which of several agents of a storage gets a lease: the one with the least left to do (least outstanding
//! work first). Pure.

use std::collections::BTreeMap;

use longhaul_model::AgentId;

/// What a file costs beside its bytes: many small ones are as much work as a few large ones.
const FILE_COST_BYTES: u64 = 1 << 20;

/// Bytes that agents have still to bring to their storages, and to send from them.
#[derive(Debug, Default)]
pub(crate) struct AgentBacklogs {
    targets: BTreeMap<AgentId, u64>,
    sources: BTreeMap<AgentId, u64>,
}

impl AgentBacklogs {
    /// Counts a file of which so many bytes are missing at its target.
    pub(crate) fn count_target(&mut self, agent: AgentId, bytes: u64) {
        count(&mut self.targets, agent, bytes);
    }

    /// Counts a file of which so many bytes are to be sent by its source.
    pub(crate) fn count_source(&mut self, agent: AgentId, bytes: u64) {
        count(&mut self.sources, agent, bytes);
    }

    /// The one with the least to bring; of equals the first.
    pub(crate) fn least_busy_target(&self, agents: &[AgentId]) -> Option<AgentId> {
        least_busy(&self.targets, agents)
    }

    /// The one with the least to send; of equals the first.
    pub(crate) fn least_busy_source(&self, agents: &[AgentId]) -> Option<AgentId> {
        least_busy(&self.sources, agents)
    }
}

fn count(backlogs: &mut BTreeMap<AgentId, u64>, agent: AgentId, bytes: u64) {
    let backlog = backlogs.entry(agent).or_default();
    *backlog = backlog.saturating_add(bytes).saturating_add(FILE_COST_BYTES);
}

fn least_busy(backlogs: &BTreeMap<AgentId, u64>, agents: &[AgentId]) -> Option<AgentId> {
    agents.iter().copied().min_by_key(|agent| backlogs.get(agent).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGENTS: [AgentId; 3] = [AgentId(1), AgentId(2), AgentId(3)];

    #[test]
    fn what_an_agent_brings_says_nothing_of_what_it_sends() {
        let mut backlogs = AgentBacklogs::default();
        backlogs.count_target(AGENTS[0], 10);
        backlogs.count_source(AGENTS[1], 10);
        assert_eq!(backlogs.least_busy_target(&AGENTS), Some(AGENTS[1]));
        assert_eq!(backlogs.least_busy_source(&AGENTS), Some(AGENTS[0]));
        assert_eq!(backlogs.least_busy_source(&[]), None);
        backlogs.count_target(AGENTS[1], u64::MAX);
        backlogs.count_target(AGENTS[1], u64::MAX);
        assert_eq!(backlogs.least_busy_target(&AGENTS[..2]), Some(AGENTS[0]));
    }

    proptest! {
        /// No agent has more than the others and the largest file above that.
        #[test]
        fn files_of_any_size_are_dealt_evenly(sizes in proptest::collection::vec(0u64..1 << 40, 1..200)) {
            let mut backlogs = AgentBacklogs::default();
            let largest = sizes.iter().max().copied().unwrap_or(0) + FILE_COST_BYTES;
            for size in sizes {
                let agent = backlogs.least_busy_target(&AGENTS).unwrap();
                backlogs.count_target(agent, size);
            }
            let dealt: Vec<u64> =
                AGENTS.iter().map(|agent| backlogs.targets.get(agent).copied().unwrap_or(0)).collect();
            prop_assert!(dealt.iter().max().unwrap() - dealt.iter().min().unwrap() <= largest);
        }
    }
}
