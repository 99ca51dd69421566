//! How the copies of jobs did on each circuit.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{AgentId, StorageName, Timestamp};
use longhaul_netops::circuits::LinkKey;
use parking_lot::Mutex;

/// A circuit is given up after this many copies in a row failed on it and succeeded without it.
const FAILURES_MAX: u32 = 3;
/// Circuits in memory; beyond this, those without running copies are forgotten.
const CIRCUITS_MAX: usize = 1_000;

/// How copies did on each circuit, by its name.
#[derive(Default)]
pub(crate) struct CircuitUsage(Mutex<BTreeMap<String, Usage>>);

#[derive(Default)]
struct Usage {
    link: Option<LinkKey>,
    running: u32,
    /// Since when copies have run without a pause.
    since: Option<Timestamp>,
    failed: u32,
}

impl CircuitUsage {
    pub(super) fn begin(&self, link: &LinkKey, circuit: &str, now: Timestamp) {
        let mut all = self.0.lock();
        if all.len() >= CIRCUITS_MAX {
            all.retain(|_, used| used.running > 0);
        }
        let used = all.entry(circuit.to_owned()).or_default();
        used.link.get_or_insert_with(|| link.clone());
        used.running += 1;
        used.since.get_or_insert(now);
    }

    /// Ends one copy, and returns for how long the circuit was used since the end of the one before.
    pub(super) fn end(&self, circuit: &str, now: Timestamp) -> Duration {
        let mut all = self.0.lock();
        let Some(used) = all.get_mut(circuit) else { return Duration::ZERO };
        used.running = used.running.saturating_sub(1);
        let since = if used.running > 0 { used.since.replace(now) } else { used.since.take() };
        now.since(since.unwrap_or(now))
    }

    /// Copies that go by circuits of this agent, by the link's source.
    pub(super) fn under_way(&self, agent: AgentId) -> BTreeMap<StorageName, u32> {
        let mut copies = BTreeMap::new();
        for used in self.0.lock().values().filter(|used| used.running > 0) {
            if let Some((_, source)) = used.link.as_ref().filter(|link| link.0 == agent) {
                *copies.entry(source.clone()).or_default() += used.running;
            }
        }
        copies
    }

    pub(super) fn record_result(&self, circuit: &str, good: bool) {
        if let Some(used) = self.0.lock().get_mut(circuit) {
            used.failed = if good { 0 } else { used.failed.saturating_add(1) };
        }
    }

    pub(super) fn is_given_up(&self, circuit: &str) -> bool {
        self.0.lock().get(circuit).is_some_and(|used| used.failed >= FAILURES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_is_left_after_failures_in_a_row() {
        let used = CircuitUsage::default();
        used.begin(&(AgentId(1), "beta".parse().unwrap()), "one", Timestamp(0));
        for good in [false, false, true, false, false] {
            used.record_result("one", good);
            assert!(!used.is_given_up("one"));
        }
        used.record_result("one", false);
        assert!(used.is_given_up("one") && !used.is_given_up("another"));
    }

    #[test]
    fn an_agent_hears_of_the_copies_on_its_own_circuits() {
        let used = CircuitUsage::default();
        let link = |agent, source: &str| (AgentId(agent), source.parse().unwrap());
        let (beta, gamma): (StorageName, StorageName) = ("beta".parse().unwrap(), "gamma".parse().unwrap());
        used.begin(&link(1, "beta"), "one", Timestamp(0));
        used.begin(&link(1, "beta"), "one", Timestamp(0));
        // The next one of the same link, and those of others.
        used.begin(&link(1, "beta"), "two", Timestamp(0));
        used.begin(&link(1, "gamma"), "three", Timestamp(0));
        used.begin(&link(2, "beta"), "four", Timestamp(0));
        assert_eq!(used.under_way(AgentId(1)), BTreeMap::from([(beta.clone(), 3), (gamma.clone(), 1)]));
        assert_eq!(used.under_way(AgentId(2)), BTreeMap::from([(beta.clone(), 1)]));
        used.end("three", Timestamp(1));
        assert_eq!(used.under_way(AgentId(1)), BTreeMap::from([(beta, 3)]));
        assert!(used.under_way(AgentId(3)).is_empty());
    }
}
