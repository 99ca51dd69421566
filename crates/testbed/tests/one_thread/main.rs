//! A whole deployment in one thread on a simulated clock: a service with its catalog in memory, two agents
//! with virtual storages, and the network between them. What a run comes to follows from its seed.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod deployment;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_api::agent::{Fact, Work};
use longhaul_model::{AttemptId, FaultCode};

use deployment::{Deployment, HistoryEntry};

const FILES: usize = 100;
const HOUR: Duration = Duration::from_secs(3_600);

/// What the agents were told and said of leases.
#[derive(Default)]
pub struct LeaseAudit {
    /// The file of each attempt that an agent was given.
    leased: BTreeMap<AttemptId, String>,
    /// Attempts that the service took back.
    cancelled: BTreeSet<AttemptId>,
    /// The outcome of each attempt, with the number of its entry: a repetition has the same.
    outcomes: BTreeMap<AttemptId, (u64, bool)>,
}

impl LeaseAudit {
    pub fn on_work(&mut self, work: &Work) {
        for lease in work.batches.iter().flat_map(|batch| &batch.leases) {
            let file = lease.lfn.shown().to_string();
            let before = self.leased.insert(lease.attempt, file.clone());
            assert!(before.is_none_or(|before| before == file), "attempt {} of two files", lease.attempt);
        }
        self.cancelled.extend(&work.cancel);
    }

    pub fn on_entry(&mut self, sequence: u64, fact: &Fact) {
        let Fact::Outcome(outcome) = fact else { return };
        let this = (sequence, outcome.fault.is_none());
        let first = *self.outcomes.entry(outcome.attempt).or_insert(this);
        assert_eq!(first, this, "attempt {} ends once", outcome.attempt);
    }

    /// Promises 3 and 5: every lease that was given ended once, and every file arrived once.
    fn check(&self) {
        for attempt in self.leased.keys() {
            let has_ended = self.outcomes.contains_key(attempt) || self.cancelled.contains(attempt);
            assert!(has_ended, "the lease of attempt {attempt} is lost");
        }
        let mut arrived: Vec<&String> = Vec::new();
        for (attempt, (_, is_success)) in &self.outcomes {
            let file = self.leased.get(attempt).expect("only what was leased ends");
            arrived.extend(is_success.then_some(file));
        }
        arrived.sort();
        assert_eq!(arrived.len(), FILES);
        arrived.dedup();
        assert_eq!(arrived.len(), FILES, "a file arrived twice");
    }
}

/// A subscription, a kill of each process, and an hour; the history of messages and changes.
fn run(seed: u64) -> Vec<HistoryEntry> {
    let s = Duration::from_secs;
    let mut deployment = Deployment::new(seed);
    deployment.join_agents();
    deployment.run_until(s(10));
    deployment.register(FILES, Some("alpha"));
    let subscription = deployment.subscribe();
    deployment.run_until(s(60));
    assert!(deployment.files_present(subscription) > 0, "it has begun");
    deployment.kill_service();
    deployment.run_until(s(70));
    deployment.start_service();
    deployment.run_until(s(100));
    deployment.kill_agent("alpha");
    deployment.run_until(s(110));
    deployment.start_agent("alpha");
    deployment.run_until(s(140));
    assert!(deployment.files_present(subscription) < FILES as u64, "it is still under way");
    deployment.kill_agent("beta");
    deployment.run_until(s(150));
    deployment.start_agent("beta");
    deployment.run_until(HOUR);
    deployment.check_complete(subscription, FILES);
    deployment.audit.check();
    deployment.history
}

#[test]
fn a_deployment_survives_a_kill_of_each_in_one_thread_and_always_in_the_same_way() {
    let history = run(1);
    assert!(history.len() > 2_000, "{} messages and changes", history.len());
    let again = run(1);
    let differs = history.iter().zip(&again).find(|(one, other)| one != other);
    assert_eq!(differs, None, "the same seed is the same history");
    assert_eq!(history.len(), again.len());
    assert!(history != run(2), "another seed is another history");
}

/// Nothing is decided and nothing acknowledged meanwhile, whoever asks is told why, and what agents hold
/// waits for its record.
#[test]
fn a_database_that_is_read_only_for_a_minute_loses_and_doubles_nothing() {
    let s = Duration::from_secs;
    let mut deployment = Deployment::new(4);
    deployment.join_agents();
    deployment.run_until(s(10));
    deployment.register(FILES, Some("alpha"));
    let subscription = deployment.subscribe();
    deployment.run_until(s(60));
    let before = deployment.files_present(subscription);
    assert!(before > 0 && before < FILES as u64, "{before} files after a minute");
    deployment.set_read_only(true);
    deployment.run_until(s(120));
    assert_eq!(deployment.files_present(subscription), before, "reading goes on, and nothing is recorded");
    assert_eq!(deployment.create_dataset("late"), Err(FaultCode::StateDirectory));
    let readiness = deployment.readiness();
    let catalog = readiness.reasons.iter().find(|reason| reason.part == "catalog").unwrap();
    assert!(!readiness.ok && !catalog.ok && catalog.detail.contains("readonly"), "{readiness:?}");
    deployment.set_read_only(false);
    deployment.run_until(s(300));
    let readiness = deployment.readiness();
    let catalog = readiness.reasons.iter().find(|reason| reason.part == "catalog").unwrap();
    assert!(catalog.ok, "{readiness:?}");
    assert!(deployment.files_present(subscription) > before, "by itself");
    assert_eq!(deployment.create_dataset("late"), Ok(()));
    deployment.run_until(HOUR);
    deployment.check_complete(subscription, FILES);
    deployment.audit.check();
}

/// From the first search on, which is due every half a minute.
#[test]
fn files_without_any_copy_are_a_standing_problem() {
    let mut deployment = Deployment::new(3);
    deployment.register(FILES, None);
    deployment.run_until(Duration::from_secs(60));
    let problems = deployment.problems();
    let lost = problems.iter().find(|problem| problem.fault.code == FaultCode::NoSource);
    let lost = lost.unwrap_or_else(|| panic!("{problems:?}"));
    assert_eq!((lost.count, lost.open), (FILES as u64, true), "{lost:?}");
    assert!(lost.fault.detail.contains("no storage holds them"), "{lost:?}");
    assert!(!lost.examples.is_empty() && lost.remedy.contains("longhaul dataset add run7"), "{lost:?}");
}
