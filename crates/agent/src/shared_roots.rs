//! Roots that this agent shares with others of its site. Each agent brings files to their final names through
//! a work directory of its own; while one is silent, another one fences it on the service's order (decision
//! 0037), and what it held is leased to others. An agent that finds itself fenced ends all that it had begun
//! there before it writes again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{FenceOrder, FenceReport, Outcome};
use longhaul_model::{AttemptId, Epoch, Fault, FaultCode, StorageName};
use longhaul_storage::{FenceResult, WriterFencing, WriterId};
use parking_lot::Mutex;

use crate::context::AgentContext;
use crate::outbox_log::OutboxLog;
use crate::outcomes::never_started;
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// How often an agent looks whether it was fenced. Until it has seen it, all that it writes there fails.
const CHECK_PERIOD: Duration = Duration::from_secs(10);

/// The shared roots of one agent.
#[derive(Default)]
pub(crate) struct SharedRoots {
    roots: BTreeMap<StorageName, SharedRoot>,
    /// What became of orders, until it is reported.
    reports: Mutex<Vec<FenceReport>>,
}

struct SharedRoot {
    fencing: Arc<dyn WriterFencing>,
    /// Attempts of before a fence that may still run.
    ending: Mutex<BTreeSet<AttemptId>>,
}

impl SharedRoots {
    pub(crate) fn add(&mut self, storage: StorageName, fencing: Arc<dyn WriterFencing>) {
        self.roots.insert(storage, SharedRoot { fencing, ending: Mutex::default() });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// Ends what was begun before a fence. Nothing runs yet, so that the agent may write at once. A root that
    /// cannot be read now is looked at again later.
    pub(crate) fn recover_at_start(&self, log: &OutboxLog) -> Result<(), Fault> {
        for (storage, root) in &self.roots {
            let entered = match root.fencing.is_fenced() {
                Ok(true) => end_leases(log, storage).map(drop).and_then(|()| root.fencing.rejoin()),
                Ok(false) => root.fencing.rejoin(),
                Err(fault) => Err(fault),
            };
            match entered {
                // Another program has this agent's state: none of the two may go on.
                Err(fault) if fault.code == FaultCode::Conflict => return Err(fault),
                Err(fault) => tracing::warn!(%storage, fault = %fault.chain(),
                    "the storage cannot be written now"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Ends what was begun before a fence, and writes again once nothing of it runs. Returns attempts to be
    /// cancelled.
    fn recover(&self, log: &OutboxLog, running: &BTreeSet<AttemptId>) -> Vec<AttemptId> {
        let mut cancelled = Vec::new();
        for (storage, root) in &self.roots {
            match root.recover(storage, log, running) {
                Ok(attempts) => cancelled.extend(attempts),
                Err(fault) => {
                    tracing::warn!(%storage, fault = %fault.chain(), "the shared root cannot be checked")
                }
            }
        }
        cancelled
    }

    /// Carries out orders of the service. Blocks on the disk.
    pub(crate) fn fence(&self, orders: &[FenceOrder]) {
        for order in orders {
            let why_not = self.fence_one(order).err().map(|fault| fault.detail.to_string());
            match &why_not {
                None => tracing::warn!(storage = %order.storage, agent = %order.agent, "fenced"),
                Some(why) => {
                    tracing::info!(storage = %order.storage, agent = %order.agent, why, "not fenced")
                }
            }
            let (storage, agent) = (order.storage.clone(), order.agent);
            self.reports.lock().push(FenceReport { storage, agent, why_not });
        }
    }

    fn fence_one(&self, order: &FenceOrder) -> Result<(), Fault> {
        let root = self.roots.get(&order.storage).ok_or_else(|| {
            let detail = format!("{} is no shared storage of this agent", order.storage);
            Fault::new(FaultCode::NotFound, detail)
        })?;
        // An agent that was fenced itself has to end its own work first.
        if root.fencing.is_fenced()? {
            let detail = format!("this agent cannot write to {} itself now", order.storage);
            return Err(Fault::new(FaultCode::Conflict, detail));
        }
        match root.fencing.fence(WriterId(order.agent.0), order.even_if_locked)? {
            FenceResult::Fenced => Ok(()),
            FenceResult::Locked => {
                let detail = format!("agent {} holds its lock in the root: it runs", order.agent);
                Err(Fault::new(FaultCode::Conflict, detail))
            }
        }
    }

    pub(crate) fn take_reports(&self) -> Vec<FenceReport> {
        std::mem::take(&mut *self.reports.lock())
    }
}

impl SharedRoot {
    fn recover(
        &self,
        storage: &StorageName,
        log: &OutboxLog,
        running: &BTreeSet<AttemptId>,
    ) -> Result<Vec<AttemptId>, Fault> {
        if !self.fencing.is_fenced()? {
            return Ok(Vec::new());
        }
        let mut ending = self.ending.lock();
        // Also what was leased since the last look: it was not begun, or it has failed.
        let ended = end_leases(log, storage)?;
        ending.extend(&ended);
        ending.retain(|attempt| running.contains(attempt));
        if ended.is_empty() && ending.is_empty() {
            self.fencing.rejoin()?;
            tracing::info!(%storage, "writes to the shared root again");
        } else {
            tracing::warn!(%storage, attempts = ended.len(), "another agent has taken over what was begun");
        }
        Ok(ended)
    }
}

/// Ends all leases for files of the storage; returns their attempts.
fn end_leases(log: &OutboxLog, storage: &StorageName) -> Result<Vec<AttemptId>, Fault> {
    let leases: Vec<(AttemptId, Epoch)> = log.leases_into(storage);
    let outcome = |&(attempt, epoch): &(AttemptId, Epoch)| -> Outcome {
        let detail = format!("another agent of {storage} has taken over");
        never_started(attempt, epoch, Fault::new(FaultCode::Interrupted, detail))
    };
    log.finish(&leases.iter().map(outcome).collect::<Vec<_>>())?;
    Ok(leases.into_iter().map(|(attempt, _)| attempt).collect())
}

/// Looks from time to time whether the agent was fenced.
pub(crate) struct SharedRootCheck {
    context: Arc<AgentContext>,
    ticker: Ticker,
}

impl SharedRootCheck {
    pub(crate) fn new(context: Arc<AgentContext>) -> SharedRootCheck {
        SharedRootCheck { context, ticker: Ticker::new(CHECK_PERIOD) }
    }
}

impl PeriodicLoop for SharedRootCheck {
    /// Blocks on the disk.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        if self.ticker.tick(now).is_some() {
            let context = &self.context;
            let running = context.engine.snapshot().running.into_iter().map(|(attempt, _)| attempt).collect();
            let cancelled = context.shared_roots.recover(&context.log, &running);
            if !cancelled.is_empty() {
                context.engine.cancel(&cancelled);
            }
        }
        self.ticker.due()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longhaul_api::agent::{Fact, Lease, LeaseBatch, SourcePeer, Work};
    use longhaul_model::{AgentId, Timestamp};
    use longhaul_storage::{FlushPolicy, Posix, PosixOptions, PosixTuning};

    use super::*;

    const OWN_AGENT: AgentId = AgentId(1);
    const OTHER_AGENT: AgentId = AgentId(2);

    fn open(root: &Path, agent: AgentId) -> Arc<Posix> {
        let options = PosixOptions {
            name: "alpha".parse().unwrap(),
            root: root.to_owned(),
            work: None,
            writable: true,
            flush: FlushPolicy::None,
        };
        Arc::new(Posix::open_shared(options, PosixTuning::default(), WriterId(agent.0)).unwrap())
    }

    /// The shared roots of an agent that starts.
    fn start(root: &Path, agent: AgentId, log: &OutboxLog) -> SharedRoots {
        let mut roots = SharedRoots::default();
        roots.add("alpha".parse().unwrap(), open(root, agent));
        roots.recover_at_start(log).unwrap();
        roots
    }

    fn batch(target: &str, attempts: &[u64]) -> LeaseBatch {
        let lease = |&attempt: &u64| Lease {
            epoch: Epoch(3),
            ..crate::tests::lease(attempt, &format!("f{attempt}"), b"bytes")
        };
        LeaseBatch {
            source: SourcePeer { agent: AgentId(9), storage: "omega".parse().unwrap(), addresses: vec![] },
            target_storage: target.parse().unwrap(),
            permit: "".into(),
            start_by: Timestamp::MAX,
            leases: attempts.iter().map(lease).collect(),
            class: Default::default(),
            circuits: Default::default(),
            mark: Default::default(),
        }
    }

    fn order(agent: AgentId, even_if_locked: bool) -> FenceOrder {
        FenceOrder { storage: "alpha".parse().unwrap(), agent, even_if_locked }
    }

    /// What the log says of attempts that ended.
    fn interrupted(log: &OutboxLog) -> Vec<AttemptId> {
        let ended = log.entries().into_iter().map(|entry| match entry.fact {
            Fact::Outcome(outcome) => {
                assert_eq!(outcome.fault.unwrap().code, FaultCode::Interrupted);
                assert_eq!(outcome.epoch, Epoch(3));
                outcome.attempt
            }
            other => panic!("{other:?}"),
        });
        ended.collect()
    }

    /// The logs of two agents, and a root.
    fn world() -> (tempfile::TempDir, [OutboxLog; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let logs = ["own", "other"].map(|name| {
            let state = directory.path().join(name);
            std::fs::create_dir(&state).unwrap();
            OutboxLog::open(&state).unwrap()
        });
        std::fs::create_dir(directory.path().join("root")).unwrap();
        (directory, logs)
    }

    /// It was stopped, or cut off, and wakes up: it ends what it held, and writes when nothing of it runs.
    #[test]
    fn an_agent_that_was_fenced_while_it_ran_ends_what_it_held_and_goes_on() {
        let (directory, [log, other_log]) = world();
        let root = directory.path().join("root");
        let (own, other) = (start(&root, OWN_AGENT, &log), start(&root, OTHER_AGENT, &other_log));
        let batches = vec![batch("alpha", &[1, 2]), batch("gamma", &[3])];
        log.receive(&Work { number: 1, batches, ..Work::default() }).unwrap();
        log.note_begun(&[AttemptId(1)]).unwrap();
        assert_eq!(own.recover(&log, &BTreeSet::from([AttemptId(1)])), [], "nobody fenced it");

        other.fence(&[order(OWN_AGENT, false), order(OWN_AGENT, true)]);
        let reports = other.take_reports();
        assert!(reports[0].why_not.as_ref().is_some_and(|why| why.contains("lock")), "{reports:?}");
        assert_eq!((reports.len(), &reports[1].why_not), (2, &None));
        assert!(other.take_reports().is_empty(), "each is told once");
        own.fence(&[order(OTHER_AGENT, true)]);
        let why_not = own.take_reports().remove(0).why_not.unwrap();
        assert!(why_not.contains("cannot write to alpha itself"), "{why_not}");

        let fencing = &own.roots.values().next().unwrap().fencing;
        let running = BTreeSet::from([AttemptId(1), AttemptId(3)]);
        assert_eq!(own.recover(&log, &running), [AttemptId(1), AttemptId(2)]);
        assert_eq!(interrupted(&log), [AttemptId(1), AttemptId(2)], "and nothing of another storage");
        assert_eq!(own.recover(&log, &running), []);
        assert!(fencing.is_fenced().unwrap(), "the first attempt still runs");
        assert_eq!(own.recover(&log, &BTreeSet::from([AttemptId(3)])), []);
        assert!(!fencing.is_fenced().unwrap());
    }

    #[test]
    fn an_agent_that_was_fenced_while_it_was_away_resumes_nothing_there() {
        let (directory, [log, other_log]) = world();
        let root = directory.path().join("root");
        let own = start(&root, OWN_AGENT, &log);
        log.receive(&Work { number: 1, batches: vec![batch("alpha", &[1])], ..Work::default() }).unwrap();
        drop(own);
        drop(start(&root, OWN_AGENT, &log));
        assert_eq!(log.leases_held(), 1, "a restart alone ends nothing");
        let other = start(&root, OTHER_AGENT, &other_log);
        other.fence(&[order(OWN_AGENT, false)]);
        assert_eq!(other.take_reports().remove(0).why_not, None);
        let own = start(&root, OWN_AGENT, &log);
        assert_eq!((interrupted(&log), log.leases_held()), (vec![AttemptId(1)], 0));
        assert!(!own.roots.values().next().unwrap().fencing.is_fenced().unwrap(), "and it writes again");
        let unknown = FenceOrder { storage: "gamma".parse().unwrap(), ..order(OTHER_AGENT, false) };
        own.fence(&[unknown]);
        assert!(own.take_reports().remove(0).why_not.unwrap().contains("no shared storage"));
    }
}
