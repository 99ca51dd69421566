//! What limits allow: counted here once more, from what is leased and what came of it, without the
//! scheduler's own counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{AttemptId, CommunityName, StorageId, Timestamp};
use longhaul_scheduler::{Lease, Limit, Limits};

/// What may be leased before its time, as the documentation of limits has it.
const AHEAD: Duration = Duration::from_secs(1);
/// A rate and a time are rounded to whole nanoseconds.
const ROUNDING_BYTES: f64 = 1_000.0;

/// What a limit is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gate {
    Link(StorageId, StorageId),
    Into(StorageId),
    Out(StorageId),
    Community(CommunityName),
}

struct Charged {
    gates: Vec<Gate>,
    size: u64,
    /// The limits it was leased under are those that hold now.
    under_these: bool,
}

/// The limits in force, with what is used of them.
#[derive(Default)]
pub struct Allowed {
    limits: Limits,
    since: Timestamp,
    /// Leased since then, less what of it did not come.
    spent: BTreeMap<Gate, f64>,
    leased: BTreeMap<AttemptId, Charged>,
}

impl Allowed {
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What was leased under former rates is paid for; its files are still leased.
    pub fn set(&mut self, limits: Limits, now: Timestamp) {
        self.limits = limits;
        self.since = now;
        self.spent.clear();
        self.leased.values_mut().for_each(|charged| charged.under_these = false);
    }

    /// Panics if no limit had room for it. `communities` are those of all who want it: where there are
    /// several, the one that it is charged to is not known here.
    pub fn lease(&mut self, lease: &Lease, communities: &BTreeSet<CommunityName>, now: Timestamp) {
        let pair = (lease.source, lease.target);
        let tests = |tester: &CommunityName| communities.contains(tester);
        assert!(
            !self.limits.uncommissioned.contains(&pair) || self.limits.testers.as_ref().is_some_and(tests),
            "leased over a link that is not commissioned"
        );
        let mut gates =
            vec![Gate::Link(lease.source, lease.target), Gate::Into(lease.target), Gate::Out(lease.source)];
        if let (1, Some(community)) = (communities.len(), communities.first()) {
            gates.push(Gate::Community(community.clone()));
        }
        for gate in &gates {
            self.check(gate, now);
            *self.spent.entry(gate.clone()).or_default() += lease.size as f64;
        }
        self.leased.insert(lease.attempt, Charged { gates, size: lease.size, under_these: true });
    }

    /// It is leased no more, and so much of it came.
    pub fn end(&mut self, attempt: AttemptId, came: u64) {
        let Some(charged) = self.leased.remove(&attempt) else { return };
        if !charged.under_these {
            return;
        }
        for gate in charged.gates {
            *self.spent.entry(gate).or_default() -= charged.size.saturating_sub(came) as f64;
        }
    }

    fn check(&self, gate: &Gate, now: Timestamp) {
        let limit = self.limit(gate);
        if let Some(most) = limit.active {
            let held = self.leased.values().filter(|charged| charged.gates.contains(gate)).count();
            assert!((held as u32) < most, "{held} files of {gate:?} are leased, its limit is {most}");
        }
        if let Some(rate) = limit.bytes_per_s {
            let spent = self.spent.get(gate).copied().unwrap_or(0.0);
            let earned = rate as f64 * (now.since(self.since) + AHEAD).as_secs_f64();
            assert!(
                spent <= earned + ROUNDING_BYTES,
                "{spent} bytes of {gate:?} were leased before this, and {earned} are allowed by now"
            );
        }
    }

    fn limit(&self, gate: &Gate) -> Limit {
        let limits = &self.limits;
        let found = match gate {
            Gate::Link(source, target) => {
                limits.links.iter().find(|(pair, _)| *pair == (*source, *target)).map(|row| row.1)
            }
            Gate::Into(storage) => limits.into.iter().find(|row| row.0 == *storage).map(|row| row.1),
            Gate::Out(storage) => limits.out.iter().find(|row| row.0 == *storage).map(|row| row.1),
            Gate::Community(name) => limits.communities.iter().find(|row| row.0 == *name).map(|row| row.1),
        };
        found.unwrap_or_default()
    }
}
