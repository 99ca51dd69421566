//! Expires leases of an earlier run that were not begun in time.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::Outcome;
use longhaul_model::{AttemptId, Fault, FaultCode, Timestamp};

use crate::circuits::Circuits;
use crate::clock::ServiceClock;
use crate::mover::{Mover, MoverHandle};
use crate::outbox_log::{OutboxLog, ResumedBatch};
use crate::outcomes::{never_started, to_fetch_batch};
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// How often leases of an earlier run are checked for expiry.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Unbegun leases of resumed batches of which other leases have begun. The engine knows one `start_by` per
/// batch and would not resume what had begun before it; so it gets such a batch without one, and the time is
/// kept here.
#[derive(Debug, Default)]
pub(crate) struct LeaseExpiry {
    leases: Vec<(AttemptId, Timestamp)>,
}

impl LeaseExpiry {
    /// Hands the leases of an earlier run to the engine. Batches go in whole, since a permit covers the whole
    /// list; attempts that have ended are cancelled at once (repeating one would find the file in place).
    pub(crate) fn resume(engine: &dyn Mover, circuits: &Circuits, resumed: Vec<ResumedBatch>) -> LeaseExpiry {
        let mut expiring = LeaseExpiry::default();
        for ResumedBatch { mut batch, ended, begun } in resumed {
            if !begun.is_empty() {
                let waiting = batch.leases.iter().map(|lease| lease.attempt);
                let waiting = waiting.filter(|attempt| !ended.contains(attempt) && !begun.contains(attempt));
                expiring.leases.extend(waiting.map(|attempt| (attempt, batch.start_by)));
                batch.start_by = Timestamp::MAX;
            }
            tracing::info!(
                leases = batch.leases.len() - ended.len(), begun = begun.len(),
                source = %batch.source.storage, target = %batch.target_storage,
                "resuming leases of an earlier run"
            );
            circuits.set_source_peer(&batch.source);
            engine.fetch(to_fetch_batch(batch));
            engine.cancel(&ended);
        }
        expiring
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Removes and returns what has expired by `now` without having begun. Attempts that have begun or ended
    /// leave the list.
    pub(crate) fn take_expired(&mut self, now: Timestamp, log: &OutboxLog) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        self.leases.retain(|&(attempt, start_by)| {
            let Some(epoch) = log.epoch_of_waiting(attempt) else { return false };
            if now <= start_by {
                return true;
            }
            let fault = Fault::new(FaultCode::LeaseExpired, format!("it had to begin by {start_by}"));
            outcomes.push(never_started(attempt, epoch, fault));
            false
        });
        outcomes
    }
}

/// Expires leases when their time comes; done once all of them have begun or ended.
pub(crate) struct ExpiryLoop {
    expiry: LeaseExpiry,
    engine: MoverHandle,
    log: Arc<OutboxLog>,
    clock: ServiceClock,
    /// Expired, not yet written to the log.
    unwritten: Vec<Outcome>,
    ticker: Ticker,
}

impl ExpiryLoop {
    pub(crate) fn new(
        expiry: LeaseExpiry,
        engine: MoverHandle,
        log: Arc<OutboxLog>,
        clock: ServiceClock,
    ) -> Self {
        let ticker = Ticker::immediate(CHECK_INTERVAL);
        ExpiryLoop { expiry, engine, log, clock, unwritten: Vec::new(), ticker }
    }
}

impl PeriodicLoop for ExpiryLoop {
    /// Blocks on the disk.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        if self.ticker.tick(now).is_some() {
            let expired = self.expiry.take_expired(self.clock.now(), &self.log);
            if !expired.is_empty() {
                self.engine.cancel(&expired.iter().map(|outcome| outcome.attempt).collect::<Vec<_>>());
            }
            self.unwritten.extend(expired);
            match self.log.finish(&self.unwritten) {
                Ok(_) => self.unwritten.clear(),
                // What is not durable is not reported either: the next check tries again.
                Err(fault) => {
                    let outcomes = self.unwritten.len();
                    tracing::error!(fault = %fault.chain(), outcomes,
                        "outcomes of expired leases are not written");
                }
            }
        }
        let is_done = self.expiry.is_empty() && self.unwritten.is_empty();
        self.ticker.due().filter(|_| !is_done)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use longhaul_api::agent::{Fact, Lease, LeaseBatch, SourcePeer, Work};
    use longhaul_model::AgentId;

    use super::*;
    use crate::step::tests::drive;
    use crate::tests::fake_engine::FakeEngine;

    fn lease(attempt: u64) -> Lease {
        crate::tests::lease(attempt, &format!("f{attempt}"), b"bytes")
    }

    /// One of two leases has begun and goes on; the other expires in time, once.
    #[test]
    fn a_lease_expires_unless_it_has_begun() {
        let directory = tempfile::tempdir().unwrap();
        let log = Arc::new(OutboxLog::open(directory.path()).unwrap());
        let source =
            SourcePeer { agent: AgentId(1), storage: "alpha".parse().unwrap(), addresses: Vec::new() };
        let batch = LeaseBatch {
            source,
            target_storage: "beta".parse().unwrap(),
            permit: "".into(),
            start_by: Timestamp::from_seconds(103),
            leases: vec![lease(1), lease(2)],
            class: Default::default(),
            circuits: Default::default(),
            mark: Default::default(),
        };
        log.receive(&Work { number: 1, batches: vec![batch], ..Work::default() }).unwrap();
        log.note_begun(&[AttemptId(1)]).unwrap();
        let fake = FakeEngine::silent();
        let engine: MoverHandle = Arc::new(Box::new(fake.clone()));
        let expiry = LeaseExpiry::resume(engine.as_ref().as_ref(), &Circuits::default(), log.resumed().0);
        let seconds = Arc::new(AtomicI64::new(100));
        let wall = seconds.clone();
        let local = Arc::new(move || Timestamp::from_seconds(wall.load(Ordering::SeqCst)));
        let mut steps = ExpiryLoop::new(expiry, engine, log.clone(), ServiceClock::new(local, 0));
        let s = Duration::from_secs;
        assert_eq!(drive(&mut steps, s(0), s(3)), [0, 1, 2].map(s));
        assert_eq!(fake.calls().cancelled, []);
        seconds.store(104, Ordering::SeqCst);
        assert_eq!(drive(&mut steps, s(3), s(9)), [s(3)], "then there is nothing to do any more");
        assert_eq!(fake.calls().cancelled, [AttemptId(2)]);
        let entries = log.entries();
        let [Fact::Outcome(outcome)] = [&entries[0].fact] else { panic!("{entries:?}") };
        assert_eq!(outcome.fault.as_ref().unwrap().code, FaultCode::LeaseExpired);
        assert_eq!((entries.len(), log.leases_held()), (1, 1));
    }
}
