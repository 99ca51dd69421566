//! Rates of sites, divided among the agents of each, which enforce them byte by byte. Those that have work in
//! a direction get equal parts of the limit. One without gets the part that it will have when it begins, so
//! that it does not begin with all of it. Pure but for [`Control::divide_site_rates`].

use std::collections::BTreeSet;

use longhaul_api::agent::AgentSettings;
use longhaul_catalog::SiteRow;
use longhaul_model::{AgentId, SiteId, Timestamp};

use crate::Control;

/// The agents that have work: files to bring, and files to send.
#[derive(Debug, Default)]
pub(crate) struct WorkingAgents {
    pub targets: BTreeSet<AgentId>,
    pub sources: BTreeSet<AgentId>,
}

impl Control {
    /// Tells agents of a site, or of all, what part of the site's rates is theirs, where that has changed.
    pub fn divide_site_rates(&self, of: Option<SiteId>, now: Timestamp) {
        let directory = self.kernel.directory();
        let sites = directory.sites.values().filter(|site| of.is_none_or(|of| site.id == of));
        let mut working = None;
        for site in sites {
            let agents = self.agents.connected_of_site(site.id, now);
            // A single agent has all of it, whatever it does.
            let is_divided = agents.len() > 1 && has_rate(site);
            let working = is_divided.then(|| &*working.get_or_insert_with(|| self.live.working_agents()));
            for &agent in &agents {
                let settings = self.settings_of(site, agent, &agents, working);
                self.agents.change_settings(agent, settings);
            }
        }
    }

    fn settings_of(
        &self,
        site: &SiteRow,
        agent: AgentId,
        agents: &BTreeSet<AgentId>,
        working: Option<&WorkingAgents>,
    ) -> AgentSettings {
        let part = |limit: Option<u64>, of: fn(&WorkingAgents) -> &BTreeSet<AgentId>| {
            let others = working
                .map_or(0, |all| of(all).intersection(agents).filter(|other| **other != agent).count());
            limit.map(|limit| part_of(limit, others))
        };
        AgentSettings {
            report_every_ms: self.report_interval_ms,
            in_bytes_per_s: part(site.limits.in_bytes_per_s, |all| &all.targets),
            out_bytes_per_s: part(site.limits.out_bytes_per_s, |all| &all.sources),
        }
    }
}

fn has_rate(site: &SiteRow) -> bool {
    site.limits.in_bytes_per_s.is_some() || site.limits.out_bytes_per_s.is_some()
}

/// An agent's part of a limit beside so many others that have work; never nothing, which would be no limit or
/// no progress.
fn part_of(limit: u64, others: usize) -> u64 {
    let agents = u64::try_from(others).unwrap_or(u64::MAX).saturating_add(1);
    (limit / agents).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_together_are_the_limit_at_the_most() {
        assert_eq!([0, 1, 2].map(|others| part_of(100, others)), [100, 50, 33]);
        assert_eq!((part_of(2, 7), part_of(u64::MAX, usize::MAX)), (1, 1));
    }
}
