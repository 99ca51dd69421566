//! Turns the engine's events into durable outcomes, and leases into the engine's batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use longhaul_api::agent::{AskedBack, AttemptTimes, LeaseBatch, Outcome};
use longhaul_engine::{AttemptOutcome, AttemptTimeline, Event, FetchBatch, FetchFile};
use longhaul_model::{AttemptId, DigestSet, Epoch, Fault, FaultCode, Lfn, StorageName, Verification};

use crate::circuits::Circuits;
use crate::outbox_log::OutboxLog;
use crate::stop::StopFlag;
use crate::storage_health::StorageHealth;
use crate::tape::Tapes;

/// Delay between attempts to write to a state directory that refuses writes.
const STATE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Records the engine's events in the outbox log, from where they are reported.
pub(crate) struct OutcomeRecorder {
    pub log: Arc<OutboxLog>,
    pub circuits: Arc<Circuits>,
    pub storage_health: Arc<StorageHealth>,
    pub tapes: Arc<Tapes>,
    pub stop: StopFlag,
}

#[cfg(test)]
impl OutcomeRecorder {
    pub(crate) fn for_test(log: Arc<OutboxLog>) -> Self {
        OutcomeRecorder {
            log,
            circuits: Arc::default(),
            storage_health: StorageHealth::new(&[], Duration::from_secs(1)).0,
            tapes: Arc::default(),
            stop: StopFlag::default(),
        }
    }
}

impl OutcomeRecorder {
    /// Called by the engine. Blocks until the events are durable; later events gather meanwhile and share the
    /// next flush (group commit), so the number of flushes does not grow with the number of files.
    pub(crate) fn record_events(&self, events: Vec<Event>) {
        // Most files are small: they begin and end within one group and need no record of having begun.
        let mut begun = BTreeSet::new();
        let mut outcomes = Vec::new();
        let mut brought: BTreeMap<StorageName, Vec<Lfn>> = BTreeMap::new();
        for event in events {
            match event {
                Event::Started { attempt, .. } => {
                    begun.insert(attempt);
                }
                Event::Finished(finished) => {
                    begun.remove(&finished.attempt);
                    self.log_end(&finished);
                    if finished.result.is_ok()
                        && !self.tapes.is_empty()
                        && let Some((storage, lfn)) = self.log.target_file_of(finished.attempt)
                    {
                        brought.entry(storage).or_default().push(lfn);
                    }
                    outcomes.push(to_outcome(finished));
                }
            }
        }
        let begun: Vec<AttemptId> = begun.into_iter().collect();
        for attempt in &begun {
            if let Some((transfer, size)) = self.log.lease_of(*attempt) {
                tracing::debug!(%transfer, %attempt, size, "attempt begins");
            }
        }
        if let Err(fault) = self.log.note_begun(&begun) {
            // Losing this record costs one more lease after a restart, no more.
            tracing::warn!(fault = %fault.chain(), "begun attempts cannot be recorded");
        }
        if self.queue_for_tape(&brought) {
            self.record_outcomes(&outcomes);
        }
    }

    /// Queues files that arrived at a tape-backed storage for migration, before they count as transferred.
    /// False if the agent shuts down before that is durable.
    fn queue_for_tape(&self, brought: &BTreeMap<StorageName, Vec<Lfn>>) -> bool {
        while let Err(fault) = self.tapes.queue_migration(brought) {
            tracing::error!(fault = %fault.chain(), "files for migration cannot be recorded; trying again");
            if self.stop.is_set() {
                return false;
            }
            thread::sleep(STATE_RETRY_INTERVAL);
        }
        true
    }

    /// Writes outcomes to the log, retrying until it succeeds or the agent shuts down: an outcome that is not
    /// durable must not be reported. After a shutdown the attempt is resumed and found to be done.
    pub(crate) fn record_outcomes(&self, outcomes: &[Outcome]) {
        while !outcomes.is_empty() {
            match self.log.finish(outcomes) {
                Ok(_) => return,
                Err(fault) => {
                    tracing::error!(fault = %fault.chain(), outcomes = outcomes.len(),
                        "outcomes not recorded; trying again")
                }
            }
            if self.stop.is_set() {
                return;
            }
            thread::sleep(STATE_RETRY_INTERVAL);
        }
    }

    fn log_end(&self, finished: &AttemptOutcome) {
        let AttemptOutcome { transfer, attempt, bytes_moved, bytes_resent, .. } = finished;
        if !self.circuits.is_empty()
            && let Some((source, circuits)) = self.log.source_of(*attempt)
        {
            self.circuits.note_attempt_end(&source, circuits, finished.result.as_ref().err());
        }
        match &finished.result {
            Ok(success) => tracing::info!(
                %transfer, %attempt, bytes_moved, bytes_resent,
                already_there = success.already_there, verification = %success.verification, "attempt \
                    succeeded"
            ),
            Err(fault) => {
                let (code, blame) = (fault.code, fault.blame);
                tracing::warn!(%transfer, %attempt, bytes_moved, %code, %blame, fault = %fault.chain(),
                    "attempt failed");
                if let Some(storage) = self.log.target_of(*attempt) {
                    let size = self.log.lease_of(*attempt).map_or(0, |(_, size)| size);
                    self.storage_health.note_write_failure(&storage, fault, size);
                }
            }
        }
    }
}

/// Outcomes for recalled leases that have not begun: they end untried. An attempt that began so recently that
/// the log does not know it yet is stopped with them; its partial file stays and is found when the file is
/// leased again.
pub(crate) fn give_back_unbegun(asked: &[AskedBack], log: &OutboxLog) -> Vec<Outcome> {
    let waiting = asked.iter().filter_map(|asked| Some((asked, log.epoch_of_waiting(asked.attempt)?)));
    waiting
        .map(|(asked, epoch)| {
            never_started(asked.attempt, epoch, Fault::new(FaultCode::GivenBack, asked.why.clone()))
        })
        .collect()
}

/// The outcome of a lease that never began.
pub(crate) fn never_started(attempt: AttemptId, epoch: Epoch, fault: Fault) -> Outcome {
    Outcome {
        attempt,
        epoch,
        fault: Some(fault),
        digests: DigestSet::default(),
        verification: Verification::Wire,
        already_there: false,
        bytes_moved: 0,
        bytes_resent: 0,
        times: AttemptTimes::default(),
        executor: None,
    }
}

fn to_outcome(finished: AttemptOutcome) -> Outcome {
    let (fault, digests, verification, already_there) = match finished.result {
        Ok(success) => (None, success.digests, success.verification, success.already_there),
        // A failed attempt proves nothing: the weakest verification.
        Err(fault) => (Some(fault), DigestSet::default(), Verification::Wire, false),
    };
    Outcome {
        attempt: finished.attempt,
        epoch: finished.epoch,
        fault,
        digests,
        verification,
        already_there,
        bytes_moved: finished.bytes_moved,
        bytes_resent: finished.bytes_resent,
        times: to_attempt_times(finished.times),
        executor: finished.executor.filter(|_| finished.bytes_moved > 0),
    }
}

fn to_attempt_times(times: AttemptTimeline) -> AttemptTimes {
    AttemptTimes {
        received: times.received,
        started: times.started,
        first_byte: times.first_byte,
        last_byte: times.last_byte,
        committed: times.committed,
    }
}

/// Converts a batch of leases into the engine's form.
pub(crate) fn to_fetch_batch(batch: LeaseBatch) -> FetchBatch {
    let file = |lease: longhaul_api::agent::Lease| FetchFile {
        attempt: lease.attempt,
        transfer: lease.transfer,
        epoch: lease.epoch,
        lfn: lease.lfn,
        size: lease.size,
        // Without a digest in the catalog only the source vouches for the bytes; the record must not claim
        // more.
        verification: if lease.digests.is_empty() { Verification::Wire } else { lease.verification },
        digests: lease.digests,
        priority: lease.priority,
        replaces_damaged: lease.replaces_damaged,
        tree: None,
    };
    FetchBatch {
        foreign: None,
        source_agent: batch.source.agent,
        source_storage: batch.source.storage,
        addresses: batch.source.addresses,
        spread: false,
        class: batch.class,
        mark: batch.mark,
        circuits: batch.circuits,
        target_storage: batch.target_storage,
        permit: batch.permit,
        start_by: batch.start_by,
        files: batch.leases.into_iter().map(file).collect(),
        withheld: BTreeSet::new(),
        replicas: Vec::new(),
    }
}
