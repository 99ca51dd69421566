//! Audit trail of the agent's doors, aggregated and forwarded to the service.
//!
//! A request only increments a counter in memory: equal decisions are merged, and the number of distinct ones
//! is bounded. Every few seconds they become facts of the outbox log, a bounded number of them, and are
//! reported exactly once like all facts. While that number is reached (the service is away), decisions keep
//! gathering in memory; beyond the bound only their number is kept. A killed agent loses the decisions of the
//! last seconds, one that shuts down loses none.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{DoorDecision, Fact};
use longhaul_doors::AuditSink;
use longhaul_model::{Fault, StorageName};
use longhaul_security::{AggregatedDecision, AuditAggregator, AuditBounds, Decision};
use parking_lot::Mutex;

use crate::clock::ServiceClock;
use crate::outbox_log::OutboxLog;
use crate::step::{AgentTime, PeriodicLoop, Ticker};
use crate::threads::guarded;

/// Bounds of the aggregation: of tens of thousands of uploads a second, a hundred are listed and the rest
/// counted.
const AUDIT_BOUNDS: AuditBounds =
    AuditBounds { entries_max: 1_000, refused_per_subject_max: 20, allowed_per_subject_max: 100 };
/// Decisions in one fact.
const DECISIONS_PER_FACT_MAX: usize = 200;
/// How long decisions gather before they are written.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) struct DoorAudit {
    aggregator: Mutex<AuditAggregator>,
    clock: ServiceClock,
}

/// Receives the decisions of one storage's door.
pub(crate) struct DoorAuditSink(pub(crate) Arc<DoorAudit>);

impl AuditSink for DoorAuditSink {
    fn record(&self, decision: Decision) {
        self.0.aggregator.lock().record(decision, self.0.clock.now());
    }
}

impl DoorAudit {
    pub(crate) fn new(clock: ServiceClock) -> DoorAudit {
        DoorAudit { aggregator: Mutex::new(AuditAggregator::new(AUDIT_BOUNDS)), clock }
    }

    /// Writes gathered decisions to the log, as far as it has room for them. On an error they stay here.
    pub(crate) fn flush(&self, log: &OutboxLog) -> Result<(), Fault> {
        while log.has_room_for_decisions() {
            let list = self.aggregator.lock().drain(DECISIONS_PER_FACT_MAX);
            if list.is_empty() {
                return Ok(());
            }
            let fact = Fact::Decided { decisions: list.iter().filter_map(to_wire).collect() };
            if let Err(fault) = log.add_decisions(fact) {
                self.aggregator.lock().restore(list);
                return Err(fault);
            }
        }
        Ok(())
    }
}

/// None for a decision that no door made.
fn to_wire(counted: &AggregatedDecision) -> Option<DoorDecision> {
    let AggregatedDecision { decision, since, at, times } = counted.clone();
    let storage: StorageName = decision.storage?;
    Some(DoorDecision {
        storage,
        allowed: decision.allowed,
        since,
        at,
        times,
        who: decision.who,
        credential: decision.credential,
        origin: decision.origin,
        operation: decision.operation,
        object: decision.object,
        why: decision.why,
    })
}

/// Flushes the audit trail periodically.
pub(crate) struct AuditFlusher {
    audit: Arc<DoorAudit>,
    log: Arc<OutboxLog>,
    ticker: Ticker,
}

impl AuditFlusher {
    pub(crate) fn new(audit: Arc<DoorAudit>, log: Arc<OutboxLog>) -> Self {
        AuditFlusher { audit, log, ticker: Ticker::new(FLUSH_INTERVAL) }
    }
}

impl PeriodicLoop for AuditFlusher {
    /// Blocks on the disk.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        if self.ticker.tick(now).is_some() {
            let flushed = guarded("the audit of doors", || self.audit.flush(&self.log));
            if let Err(fault) = flushed.and_then(|flushed| flushed) {
                tracing::warn!(fault = %fault.chain(),
                    "decisions of doors are not written yet; trying again");
            }
        }
        self.ticker.due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::drive;
    use longhaul_model::Timestamp;

    fn gathering() -> Arc<DoorAudit> {
        Arc::new(DoorAudit::new(ServiceClock::new(Arc::new(|| Timestamp::from_seconds(7)), 0)))
    }

    fn refused(object: &str) -> Decision {
        Decision {
            allowed: false,
            who: "/CN=mallory".into(),
            credential: "certificate".into(),
            origin: "192.0.2.7".into(),
            operation: "door PUT".into(),
            object: object.into(),
            why: "not allowed".into(),
            storage: Some("disk".parse().unwrap()),
        }
    }

    fn decisions(log: &OutboxLog) -> Vec<DoorDecision> {
        let of = |fact| match fact {
            Fact::Decided { decisions } => decisions,
            other => panic!("{other:?}"),
        };
        log.entries().into_iter().flat_map(|entry| of(entry.fact)).collect()
    }

    #[test]
    fn decisions_are_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let decided = gathering();
        let door = DoorAuditSink(decided.clone());
        for _ in 0..3 {
            door.record(refused("/x"));
        }
        let log = OutboxLog::open(directory.path()).unwrap();
        log.set_service_version(3);
        decided.flush(&log).unwrap();
        decided.flush(&log).unwrap();
        let list = decisions(&log);
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].times, list[0].storage.as_str(), list[0].object.as_str()), (3, "disk", "/x"));
        assert_eq!(list[0].at, Timestamp::from_seconds(7));
        drop(log);
        let again = OutboxLog::open(directory.path()).unwrap();
        again.set_service_version(3);
        assert_eq!(decisions(&again), list, "it outlives the agent");
        again.acknowledge(1).unwrap();
        assert!(again.entries().is_empty());
    }

    #[test]
    fn the_flusher_writes_every_two_seconds() {
        let directory = tempfile::tempdir().unwrap();
        let (audit, log) = (gathering(), Arc::new(OutboxLog::open(directory.path()).unwrap()));
        log.set_service_version(3);
        let mut flusher = AuditFlusher::new(audit.clone(), log.clone());
        DoorAuditSink(audit).record(refused("/x"));
        let s = Duration::from_secs;
        assert_eq!(drive(&mut flusher, s(10), s(12)), [s(10)]);
        assert!(log.entries().is_empty(), "it gathers");
        assert_eq!(drive(&mut flusher, s(12), s(17)), [s(12), s(14), s(16)]);
        assert_eq!(decisions(&log).len(), 1);
    }

    /// Promise 7, while the service is away.
    #[test]
    fn a_door_that_refuses_constantly_stays_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let decided = gathering();
        let door = DoorAuditSink(decided.clone());
        let log = OutboxLog::open(directory.path()).unwrap();
        log.set_service_version(3);
        let mut noted = 0;
        for round in 0..200 {
            for number in 0..300 {
                let who = format!("/CN={}", number % 60);
                door.record(Decision { who, ..refused(&format!("/{round}/{number}")) });
                noted += 1;
            }
            decided.flush(&log).unwrap();
        }
        assert!(!log.has_room_for_decisions());
        assert!(decided.aggregator.lock().len() <= AUDIT_BOUNDS.entries_max + 1);
        let (mut told, mut sequence) = (0, 0);
        while !log.entries().is_empty() {
            told += decisions(&log).iter().map(|one| one.times).sum::<u64>();
            sequence = log.entries().last().map_or(sequence, |entry| entry.sequence);
            log.acknowledge(sequence).unwrap();
            decided.flush(&log).unwrap();
        }
        assert_eq!(told, noted, "none is lost");
    }

    /// A service of an older release would not understand the report.
    #[test]
    fn an_older_service_gets_no_decisions() {
        let directory = tempfile::tempdir().unwrap();
        let decided = gathering();
        let log = OutboxLog::open(directory.path()).unwrap();
        DoorAuditSink(decided.clone()).record(refused("/x"));
        decided.flush(&log).unwrap();
        log.add_task_fact(&task_done(), &crate::stop::StopFlag::default()).unwrap();
        assert!(log.entries().is_empty(), "until it is known what it speaks");
        log.set_service_version(2);
        let entries = log.entries();
        assert!(matches!(entries.as_slice(), [entry] if entry.sequence == 2), "{entries:?}");
        log.set_service_version(3);
        assert_eq!(log.entries().len(), 2);
    }

    fn task_done() -> Fact {
        Fact::TaskDone { task: longhaul_model::TaskId(1), fault: None }
    }
}
