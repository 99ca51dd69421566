//! Names of temporary files of movers that are not the engine: one for each attempt, told apart from those of
//! the engine, of other movers and of other agents of the storage.

use longhaul_model::{AgentId, AttemptId, hex};
use longhaul_storage::TempName;

/// The names that one mover of an agent uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptTemps {
    prefix: [u8; 8],
    /// Differs between runs where a file of an earlier one may still be written to.
    run: u64,
}

impl AttemptTemps {
    /// Names of files that a site's command writes.
    pub(crate) fn of_commands(agent: AgentId) -> AttemptTemps {
        AttemptTemps::new(agent, 0x6d6f_7665_725f_6f75, 0)
    }

    /// Names of files that a storage's server copies: it may not have noticed that an earlier run of the
    /// agent has ended, and still write. `run` is random.
    pub(crate) fn of_servers(agent: AgentId, run: u64) -> AttemptTemps {
        AttemptTemps::new(agent, 0x7365_7276_6572_5f63, run)
    }

    /// Names of copies from one pool of a storage to another one.
    pub(crate) fn of_pools(agent: AgentId) -> AttemptTemps {
        AttemptTemps::new(agent, 0x706f_6f6c_5f64_7261, 0)
    }

    fn new(agent: AgentId, mark: u64, run: u64) -> AttemptTemps {
        AttemptTemps { prefix: (agent.0.rotate_left(17) ^ mark).to_be_bytes(), run }
    }

    /// The name for an attempt; never used for another file.
    pub(crate) fn name(&self, attempt: AttemptId) -> TempName {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.prefix);
        name[8..].copy_from_slice(&(attempt.0 ^ self.run).to_be_bytes());
        TempName::from_bytes(name)
    }

    /// Whether the name is one of these, or of an earlier run.
    pub(crate) fn contains(&self, temp: &TempName) -> bool {
        temp.as_str().starts_with(&hex::encode(&self.prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_agents_movers_and_attempts_are_their_own() {
        let agents = [AgentId(1), AgentId(2)];
        let movers: Vec<AttemptTemps> = agents
            .iter()
            .flat_map(|&id| [AttemptTemps::of_commands(id), AttemptTemps::of_servers(id, 7)])
            .collect();
        let mut names: Vec<TempName> =
            movers.iter().flat_map(|mover| [1, 2].map(|attempt| mover.name(AttemptId(attempt)))).collect();
        let own = movers[0];
        assert_eq!(names.iter().filter(|name| own.contains(name)).count(), 2);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
        let (earlier, later) = (movers[1], AttemptTemps::of_servers(agents[0], 8));
        let name = earlier.name(AttemptId(1));
        assert!(later.contains(&name) && later.name(AttemptId(1)) != name);
    }
}
