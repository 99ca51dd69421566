//! Transactional outbox and lease store: which leases and tasks the agent holds, and which facts the service
//! has not acknowledged yet (Promises 3, 5).
//!
//! One write-ahead log, the file `ledger`, of checksummed JSON lines (`record_log`; kinds in
//! [`record::Record`]):
//!
//! * received leases and tasks are flushed before the next request acknowledges them to the service;
//! * a fact is flushed before it is reported, and kept until the service has acknowledged its number; an
//!   outcome and the end of its lease are one line, so that no crash can come between them;
//! * *begun*, *acknowledged* and the clock's offset are not flushed: losing them repeats what is harmless.
//!
//! Facts and leases share the file so that they share flushes and cannot contradict each other. When most of
//! the file is history, it is compacted to the live state; it is bounded by what the service leases at once,
//! plus [`HISTORY_BYTES_MAX`].

mod record;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::time::Duration;

use longhaul_api::agent::{AgentSettings, Entry, Fact, LeaseBatch, Outcome, Task, Work};
use longhaul_model::{AttemptId, CircuitUse, Epoch, Fault, FaultCode, Lfn, StorageName, TaskId, TransferId};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::record_log::RecordLog;
use crate::stop::StopFlag;
pub(crate) use record::HeldCopy;
use record::{ReceivedWork, Record};
use state::LogState;
pub(crate) use state::ResumedBatch;

/// History in the file before it is compacted; twice the live state, if that is more.
const HISTORY_BYTES_MAX: u64 = 4 << 20;
/// Unacknowledged facts of tasks: each may hold a thousand files.
pub(crate) const TASK_FACTS_MAX: usize = 16;
/// Unacknowledged facts with decisions of doors; further decisions are aggregated meanwhile.
const DECISION_FACTS_MAX: usize = 16;
/// How often a waiting task checks whether it is to stop; only a lost wake-up would need it.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) struct OutboxLog {
    /// Locked before `state` where both are needed.
    file: Mutex<LogFile>,
    state: Mutex<LogState>,
    task_facts_acknowledged: Condvar,
    /// Notified when there is a fact to report.
    fact_added: Notify,
}

struct LogFile {
    log: RecordLog,
    /// Size after the last compaction.
    alive_bytes: u64,
}

/// The work of a reply that was not known before.
#[derive(Debug, Default)]
pub(crate) struct NewWork {
    pub batches: Vec<LeaseBatch>,
    pub tasks: Vec<Task>,
    pub cancel: Vec<AttemptId>,
    pub cancel_tasks: Vec<TaskId>,
    pub copies: Vec<HeldCopy>,
}

impl OutboxLog {
    /// Opens or creates the log in `directory`.
    pub(crate) fn open(directory: &Path) -> Result<OutboxLog, Fault> {
        let mut state = LogState::default();
        let replay = |_, payload: &[u8]| {
            state.apply(Record::decode(payload)?, payload.len());
            Ok(())
        };
        let opened =
            RecordLog::open(&directory.join("ledger"), replay).map_err(|error| log_fault("open", error))?;
        if opened.cut_bytes > 0 {
            tracing::warn!(bytes = opened.cut_bytes, "the torn end of the outbox log was cut off");
        }
        let file = LogFile { log: opened.log, alive_bytes: 0 };
        Ok(OutboxLog {
            file: Mutex::new(file),
            state: Mutex::new(state),
            task_facts_acknowledged: Condvar::new(),
            fact_added: Notify::new(),
        })
    }

    /// Makes a reply's work durable and returns what of it is new.
    pub(crate) fn receive(&self, work: &Work) -> Result<NewWork, Fault> {
        let mut news = NewWork::default();
        self.write(true, |state| {
            let parcel = state.new_work(ReceivedWork {
                number: work.number,
                batches: work.batches.clone(),
                tasks: work.tasks.clone(),
                cancel: work.cancel.clone(),
                cancel_tasks: work.cancel_tasks.clone(),
                // Credentials of foreign storages stay in memory.
                copies: work
                    .copies
                    .iter()
                    .map(|copy| HeldCopy { attempt: copy.attempt, epoch: copy.epoch })
                    .collect(),
            });
            if parcel.is_empty() && parcel.number == state.received {
                return Vec::new();
            }
            news = NewWork {
                batches: parcel.batches.clone(),
                tasks: parcel.tasks.clone(),
                cancel: parcel.cancel.clone(),
                cancel_tasks: parcel.cancel_tasks.clone(),
                copies: parcel.copies.clone(),
            };
            vec![Record::ReceivedWork(parcel)]
        })?;
        Ok(news)
    }

    /// Records that these attempts have begun, so that after a restart an expired lease does not stop them.
    pub(crate) fn note_begun(&self, attempts: &[AttemptId]) -> Result<(), Fault> {
        self.write(false, |state| {
            let held: Vec<_> = attempts.iter().copied().filter(|&attempt| state.holds(attempt)).collect();
            if held.is_empty() { Vec::new() } else { vec![Record::Begun(held)] }
        })
    }

    /// Makes outcomes durable and ends their leases. Outcomes of leases that are not held any more
    /// (cancelled, or ended already) are ignored. Returns how many were recorded.
    pub(crate) fn finish(&self, outcomes: &[Outcome]) -> Result<usize, Fault> {
        let mut kept = 0;
        self.write(true, |state| {
            let held = outcomes.iter().filter(|outcome| state.holds(outcome.attempt));
            let facts = held.map(|outcome| Fact::Outcome(outcome.clone()));
            let records = numbered_facts(state.sequence, facts);
            kept = records.len();
            records
        })?;
        self.fact_added.notify_one();
        Ok(kept)
    }

    /// Makes a fact of a task durable. Blocks while too many are unacknowledged (backpressure); false if told
    /// to stop meanwhile.
    pub(crate) fn add_task_fact(&self, fact: &Fact, stop: &StopFlag) -> Result<bool, Fault> {
        let mut state = self.state.lock();
        while state.task_facts_pending() >= TASK_FACTS_MAX {
            if stop.is_set() {
                return Ok(false);
            }
            self.task_facts_acknowledged.wait_for(&mut state, STOP_CHECK_INTERVAL);
        }
        drop(state);
        if stop.is_set() {
            return Ok(false);
        }
        self.write(true, |state| numbered_facts(state.sequence, [fact.clone()].into_iter()))?;
        self.fact_added.notify_one();
        Ok(true)
    }

    /// Whether another fact with door decisions may be added now.
    pub(crate) fn has_room_for_decisions(&self) -> bool {
        self.state.lock().decision_facts_pending() < DECISION_FACTS_MAX
    }

    /// Makes decisions of doors durable.
    pub(crate) fn add_decisions(&self, fact: Fact) -> Result<(), Fault> {
        self.write(true, |state| numbered_facts(state.sequence, std::iter::once(fact)))?;
        self.fact_added.notify_one();
        Ok(())
    }

    /// Sets the protocol version that the service answered with.
    pub(crate) fn set_service_version(&self, version: u16) {
        self.state.lock().set_service_version(version);
    }

    /// Notes that the service has all facts up to this number.
    pub(crate) fn acknowledge(&self, sequence: u64) -> Result<(), Fault> {
        if sequence > self.state.lock().sequence {
            self.skip_to(sequence)?;
        } else {
            self.write(false, |state| {
                if sequence > state.acknowledged { vec![Record::Acknowledged(sequence)] } else { Vec::new() }
            })?;
        }
        self.task_facts_acknowledged.notify_all();
        Ok(())
    }

    /// Notes a restart of the service: see [`LogState::forget_ended_tasks`].
    pub(crate) fn service_restarted(&self) {
        self.state.lock().forget_ended_tasks();
    }

    fn skip_to(&self, sequence: u64) -> Result<(), Fault> {
        tracing::warn!(
            sequence,
            "the service has facts of this agent that its log does not: was the state directory restored \
                from a copy?"
        );
        let mut file = self.file.lock();
        self.state.lock().renumber_after(sequence);
        self.compact(&mut file).map_err(|error| log_fault("write", error))
    }

    pub(crate) fn set_clock_offset(&self, offset_us: i64) -> Result<(), Fault> {
        self.write(false, |_| vec![Record::ClockOffsetUs(offset_us)])
    }

    pub(crate) fn set_settings(&self, settings: &AgentSettings) -> Result<(), Fault> {
        self.write(true, |state| {
            let new = state.settings.as_ref() != Some(settings);
            if new { vec![Record::Settings(settings.clone())] } else { Vec::new() }
        })
    }

    /// The settings that the service sent last.
    pub(crate) fn settings(&self) -> Option<AgentSettings> {
        self.state.lock().settings.clone()
    }

    pub(crate) fn clock_offset(&self) -> i64 {
        self.state.lock().clock_offset_us
    }

    /// Number of the last reply whose work is durable here.
    pub(crate) fn received(&self) -> u64 {
        self.state.lock().received
    }

    /// The next unacknowledged facts, as many as one report may hold.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.state.lock().entries()
    }

    pub(crate) fn facts_pending(&self) -> usize {
        self.state.lock().facts_pending()
    }

    /// Completes when a fact was added since it completed last.
    pub(crate) async fn fact_added(&self) {
        self.fact_added.notified().await;
    }

    pub(crate) fn claimed_attempts(&self) -> Vec<AttemptId> {
        self.state.lock().claimed_attempts()
    }

    /// Copies between foreign storages that have not ended.
    pub(crate) fn copies_held(&self) -> Vec<HeldCopy> {
        self.state.lock().copies_held()
    }

    pub(crate) fn leases_held(&self) -> usize {
        self.state.lock().leases_held()
    }

    /// The epoch of a lease that is held and has not begun.
    pub(crate) fn epoch_of_waiting(&self, attempt: AttemptId) -> Option<Epoch> {
        let state = self.state.lock();
        if state.has_begun(attempt) {
            return None;
        }
        state.lease(attempt).map(|(_, lease)| lease.epoch)
    }

    /// The target storage of an attempt.
    pub(crate) fn target_of(&self, attempt: AttemptId) -> Option<StorageName> {
        self.state.lock().lease(attempt).map(|(batch, _)| batch.target_storage.clone())
    }

    /// The target storage and file of an attempt.
    pub(crate) fn target_file_of(&self, attempt: AttemptId) -> Option<(StorageName, Lfn)> {
        let state = self.state.lock();
        state.lease(attempt).map(|(batch, lease)| (batch.target_storage.clone(), lease.lfn.clone()))
    }

    /// Leases for files of a storage that have not ended.
    pub(crate) fn leases_into(&self, target: &StorageName) -> Vec<(AttemptId, Epoch)> {
        self.state.lock().leases_into(target)
    }

    /// Bytes leased from a source that have not ended.
    pub(crate) fn bytes_from(&self, source: &StorageName) -> u64 {
        self.state.lock().bytes_from(source)
    }

    /// The source storage of an attempt, and whether it uses circuits.
    pub(crate) fn source_of(&self, attempt: AttemptId) -> Option<(StorageName, CircuitUse)> {
        self.state.lock().lease(attempt).map(|(batch, _)| (batch.source.storage.clone(), batch.circuits))
    }

    /// The transfer that an attempt serves, and the file's size.
    pub(crate) fn lease_of(&self, attempt: AttemptId) -> Option<(TransferId, u64)> {
        self.state.lock().lease(attempt).map(|(_, lease)| (lease.transfer, lease.size))
    }

    /// Batches and tasks that a restarted agent resumes.
    pub(crate) fn resumed(&self) -> (Vec<ResumedBatch>, Vec<Task>) {
        let state = self.state.lock();
        (state.resumed(), state.tasks.values().cloned().collect())
    }

    /// Wakes tasks that wait for room, so that they see that they are to stop.
    pub(crate) fn wake_tasks(&self) {
        self.task_facts_acknowledged.notify_all();
    }

    /// Appends the records that `make` returns and applies them. With `flush` they are durable on return.
    /// After an error nothing has changed, and the next write starts a new file from the known state.
    fn write(&self, flush: bool, make: impl FnOnce(&LogState) -> Vec<Record>) -> Result<(), Fault> {
        let mut file = self.file.lock();
        let records = make(&self.state.lock());
        if records.is_empty() {
            return Ok(());
        }
        self.append(&mut file, records, flush).map_err(|error| log_fault("write", error))
    }

    fn append(&self, file: &mut LogFile, records: Vec<Record>, flush: bool) -> io::Result<()> {
        if file.log.is_broken()
            || file.log.bytes() > HISTORY_BYTES_MAX.max(2 * file.alive_bytes) + file.alive_bytes
        {
            self.compact(file)?;
        }
        let payloads = records.iter().map(Record::encode).collect::<io::Result<Vec<_>>>()?;
        file.log.append(&payloads, flush)?;
        let mut state = self.state.lock();
        for (record, payload) in records.into_iter().zip(payloads) {
            state.apply(record, payload.len());
        }
        Ok(())
    }

    fn compact(&self, file: &mut LogFile) -> io::Result<()> {
        let records = self.state.lock().compacted();
        let payloads = records.iter().map(Record::encode).collect::<io::Result<Vec<_>>>()?;
        file.log.replace(payloads.iter())?;
        file.alive_bytes = file.log.bytes();
        Ok(())
    }
}

fn numbered_facts(last: u64, facts: impl Iterator<Item = Fact>) -> Vec<Record> {
    facts.zip(last + 1..).map(|(fact, sequence)| Record::Fact(Entry { sequence, fact })).collect()
}

fn log_fault(what: &str, error: io::Error) -> Fault {
    Fault::new(FaultCode::StateDirectory, format!("cannot {what} the outbox log: {error}")).with_source(error)
}
