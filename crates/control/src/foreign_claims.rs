//! Claims of agents about things of other sites: counted, and a problem of the site that makes them. In
//! memory only: whoever goes on is noticed again.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_catalog::Claim;
use longhaul_model::{AgentId, SiteName, Timestamp};
use parking_lot::Mutex;

/// Claims of one agent before they are shown as a problem.
const CLAIMS_SHOWN_MIN: u64 = 3;
/// An agent that has made no such claim for this long is a problem no more.
const CLAIM_TTL: Duration = Duration::from_secs(24 * 3_600);

/// Bounded by the agents that have joined.
#[derive(Default)]
pub struct ForeignClaims {
    agents: Mutex<BTreeMap<AgentId, ForeignClaimCount>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignClaimCount {
    pub site: SiteName,
    pub host: String,
    pub first: Timestamp,
    pub last: Timestamp,
    pub by_claim: BTreeMap<Claim, u64>,
}

impl ForeignClaimCount {
    pub fn total(&self) -> u64 {
        self.by_claim.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

impl ForeignClaims {
    /// Returns whether the agent becomes a problem with these.
    pub fn record(
        &self,
        agent: AgentId,
        (site, host): (&SiteName, &str),
        claim: Claim,
        times: u64,
        now: Timestamp,
    ) -> bool {
        let mut agents = self.agents.lock();
        agents.retain(|_, row| now.since(row.last) < CLAIM_TTL);
        let row = agents.entry(agent).or_insert_with(|| ForeignClaimCount {
            site: site.clone(),
            host: host.to_owned(),
            first: now,
            last: now,
            by_claim: BTreeMap::new(),
        });
        let before = row.total();
        row.last = now;
        let count = row.by_claim.entry(claim).or_default();
        *count = count.saturating_add(times);
        before < CLAIMS_SHOWN_MIN && row.total() >= CLAIMS_SHOWN_MIN
    }

    /// Agents whose claims are a problem now.
    pub fn problems(&self, now: Timestamp) -> Vec<(AgentId, ForeignClaimCount)> {
        let agents = self.agents.lock();
        let shown =
            |row: &ForeignClaimCount| row.total() >= CLAIMS_SHOWN_MIN && now.since(row.last) < CLAIM_TTL;
        agents.iter().filter(|(_, row)| shown(row)).map(|(&agent, row)| (agent, row.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_claims_are_a_problem_until_they_cease() {
        let claims = ForeignClaims::default();
        let site: SiteName = "gamma".parse().unwrap();
        let at = Timestamp::from_seconds;
        let record =
            |agent, claim, times, now| claims.record(AgentId(agent), (&site, "host"), claim, times, at(now));
        assert!(!record(1, Claim::Checked, 2, 10) && claims.problems(at(10)).is_empty());
        assert!(record(1, Claim::Progress, 1, 20), "the third");
        assert!(!record(1, Claim::Progress, u64::MAX, 30), "it is one already");
        assert!(!record(2, Claim::Checked, 1, 30), "each agent by itself");
        let shown = claims.problems(at(40));
        assert_eq!((shown.len(), shown[0].0, shown[0].1.total()), (1, AgentId(1), u64::MAX));
        assert_eq!((shown[0].1.first, shown[0].1.last), (at(10), at(30)));
        let later = 30 + CLAIM_TTL.as_secs() as i64;
        assert!(claims.problems(at(later)).is_empty());
        assert!(!record(1, Claim::Checked, 1, later), "counted from the beginning");
    }
}
