//! State of the outbox log: what its records add up to.
//!
//! Knows no file: replay and normal operation apply the same records in the same way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_api::agent::{AgentSettings, Entry, Fact, Lease, LeaseBatch, Task};
use longhaul_model::digest::PartDigest;
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::{AttemptId, Epoch, StorageName, TaskId};

use super::record::{HeldCopy, ReceivedWork, Record, items};

/// JSON bytes of the facts in one report: half of what the service accepts as a body.
const REPORT_BYTES_MAX: usize = longhaul_model::limits::BODY_BYTES_MAX / 2;
/// First protocol version in which the service understands decisions of doors.
const DECISIONS_VERSION_MIN: u16 = 3;
/// Ended attempts that are remembered, so that work that comes twice starts nothing again.
const ENDED_ATTEMPTS_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct LogState {
    pub received: u64,
    pub acknowledged: u64,
    /// Number of the last fact.
    pub sequence: u64,
    pub clock_offset_us: i64,
    pub settings: Option<AgentSettings>,
    batches: BTreeMap<u64, HeldBatch>,
    batch_last: u64,
    leases: BTreeMap<AttemptId, LeaseSlot>,
    pub tasks: BTreeMap<TaskId, Task>,
    /// Held copies between foreign storages.
    copies: BTreeMap<AttemptId, Epoch>,
    /// Facts that the service has not acknowledged, in order.
    pending: VecDeque<PendingFact>,
    /// How many pending facts are of tasks, which may be large.
    task_facts: usize,
    /// How many pending facts are decisions of doors.
    decision_facts: usize,
    /// The service's protocol version, once it has answered.
    version: Option<u16>,
    ended: BTreeSet<AttemptId>,
    ended_order: VecDeque<AttemptId>,
    /// Ended tasks with a digest of their content: a long task comes a page at a time under one id.
    ended_tasks: VecDeque<(TaskId, PartDigest)>,
}

/// A batch with leases that are held. It stays whole until the last one has ended, since its permit covers
/// the whole list.
#[derive(Debug)]
struct HeldBatch {
    batch: LeaseBatch,
    held: usize,
}

#[derive(Clone, Copy, Debug)]
struct LeaseSlot {
    batch: u64,
    index: usize,
    begun: bool,
}

#[derive(Debug)]
struct PendingFact {
    entry: Entry,
    bytes: usize,
}

/// A batch to resume after a restart.
#[derive(Clone, Debug)]
pub(crate) struct ResumedBatch {
    /// As it was leased, including ended leases.
    pub batch: LeaseBatch,
    pub ended: Vec<AttemptId>,
    pub begun: Vec<AttemptId>,
}

impl LogState {
    /// Applies a record; `bytes` is its size as written.
    pub(crate) fn apply(&mut self, record: Record, bytes: usize) {
        match record {
            Record::Head { received, acknowledged, sequence, clock_offset_us } => {
                self.received = received;
                self.acknowledged = acknowledged;
                self.sequence = sequence;
                self.clock_offset_us = clock_offset_us;
            }
            Record::ReceivedWork(parcel) => self.apply_parcel(parcel),
            Record::Begun(attempts) => {
                for attempt in attempts {
                    if let Some(place) = self.leases.get_mut(&attempt) {
                        place.begun = true;
                    }
                }
            }
            Record::Ended(attempts) => attempts.into_iter().for_each(|attempt| self.end(attempt)),
            Record::Fact(entry) => self.apply_fact(entry, bytes),
            Record::Acknowledged(sequence) => self.apply_acknowledged(sequence),
            Record::Settings(settings) => self.settings = Some(settings),
            Record::ClockOffsetUs(offset) => self.clock_offset_us = offset,
        }
    }

    fn apply_parcel(&mut self, parcel: ReceivedWork) {
        self.received = parcel.number;
        for batch in parcel.batches {
            self.batch_last += 1;
            let mut held = 0;
            for (index, lease) in batch.leases.iter().enumerate() {
                let place = LeaseSlot { batch: self.batch_last, index, begun: false };
                if self.leases.insert(lease.attempt, place).is_none() {
                    held += 1;
                }
            }
            if held > 0 {
                self.batches.insert(self.batch_last, HeldBatch { batch, held });
            }
        }
        for task in parcel.tasks {
            self.tasks.insert(task.id, task);
        }
        self.copies.extend(parcel.copies.iter().map(|copy| (copy.attempt, copy.epoch)));
        parcel.cancel.into_iter().for_each(|attempt| self.end(attempt));
        parcel.cancel_tasks.into_iter().for_each(|task| self.end_task(task));
    }

    fn apply_fact(&mut self, entry: Entry, bytes: usize) {
        self.sequence = entry.sequence;
        match &entry.fact {
            Fact::Outcome(outcome) => self.end(outcome.attempt),
            Fact::TaskDone { task, .. } => self.end_task(*task),
            Fact::Scanned { .. } | Fact::Checked { .. } | Fact::Decided { .. } => {}
        }
        self.decision_facts += usize::from(is_door_decision(&entry.fact));
        self.task_facts += usize::from(is_of_task(&entry.fact));
        self.pending.push_back(PendingFact { entry, bytes });
    }

    fn apply_acknowledged(&mut self, sequence: u64) {
        self.acknowledged = self.acknowledged.max(sequence);
        while self.pending.front().is_some_and(|pending| pending.entry.sequence <= self.acknowledged) {
            let Some(told) = self.pending.pop_front() else { return };
            self.task_facts -= usize::from(is_of_task(&told.entry.fact));
            self.decision_facts -= usize::from(is_door_decision(&told.entry.fact));
        }
    }

    fn end(&mut self, attempt: AttemptId) {
        if let Some(place) = self.leases.remove(&attempt)
            && let Some(batch) = self.batches.get_mut(&place.batch)
        {
            batch.held -= 1;
            if batch.held == 0 {
                self.batches.remove(&place.batch);
            }
        }
        self.copies.remove(&attempt);
        if self.ended.insert(attempt) {
            self.ended_order.push_back(attempt);
        }
        if self.ended_order.len() > ENDED_ATTEMPTS_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    fn end_task(&mut self, task: TaskId) {
        if let Some(ended) = self.tasks.remove(&task) {
            self.ended_tasks.push_back((task, content_of(&ended)));
        }
        if self.ended_tasks.len() > ENDED_ATTEMPTS_MAX / 64 {
            self.ended_tasks.pop_front();
        }
    }

    /// Forgets which tasks have ended: a restarted service may have lost their results, and what it asks for
    /// again is done again.
    pub(crate) fn forget_ended_tasks(&mut self) {
        self.ended_tasks.clear();
    }

    /// Filters a reply's work to what is new. Leases and tasks that are held or have ended are left out.
    pub(crate) fn new_work(&self, mut parcel: ReceivedWork) -> ReceivedWork {
        let mut seen = BTreeSet::new();
        let known = |attempt: &AttemptId| self.holds(*attempt) || self.ended.contains(attempt);
        for batch in &mut parcel.batches {
            batch.leases.retain(|lease| !known(&lease.attempt) && seen.insert(lease.attempt));
        }
        parcel.copies.retain(|copy| !known(&copy.attempt) && seen.insert(copy.attempt));
        parcel.batches.retain(|batch| !batch.leases.is_empty());
        parcel.tasks.retain(|task| {
            !self.tasks.contains_key(&task.id) && !self.ended_tasks.contains(&(task.id, content_of(task)))
        });
        parcel.cancel.retain(|attempt| self.holds(*attempt) || seen.contains(attempt));
        let new_tasks: Vec<TaskId> = parcel.tasks.iter().map(|task| task.id).collect();
        parcel.cancel_tasks.retain(|task| self.tasks.contains_key(task) || new_tasks.contains(task));
        parcel
    }

    pub(crate) fn lease(&self, attempt: AttemptId) -> Option<(&LeaseBatch, &Lease)> {
        let place = self.leases.get(&attempt)?;
        let batch = &self.batches.get(&place.batch)?.batch;
        Some((batch, batch.leases.get(place.index)?))
    }

    pub(crate) fn bytes_from(&self, source: &StorageName) -> u64 {
        let leases = self.leases.values().filter_map(|place| {
            let batch = &self.batches.get(&place.batch)?.batch;
            batch.leases.get(place.index).filter(|_| batch.source.storage == *source)
        });
        leases.fold(0, |sum, lease| sum.saturating_add(lease.size))
    }

    pub(crate) fn leases_into(&self, target: &StorageName) -> Vec<(AttemptId, Epoch)> {
        let leases = self.leases.iter().filter_map(|(&attempt, place)| {
            let batch = &self.batches.get(&place.batch)?.batch;
            let lease = batch.leases.get(place.index).filter(|_| batch.target_storage == *target)?;
            Some((attempt, lease.epoch))
        });
        leases.collect()
    }

    pub(crate) fn has_begun(&self, attempt: AttemptId) -> bool {
        self.leases.get(&attempt).is_some_and(|place| place.begun)
    }

    pub(crate) fn holds(&self, attempt: AttemptId) -> bool {
        self.leases.contains_key(&attempt) || self.copies.contains_key(&attempt)
    }

    /// Held copies between foreign storages.
    pub(crate) fn copies_held(&self) -> Vec<HeldCopy> {
        self.copies.iter().map(|(&attempt, &epoch)| HeldCopy { attempt, epoch }).collect()
    }

    pub(crate) fn leases_held(&self) -> usize {
        self.leases.len()
    }

    /// Attempts that the service must not give to anybody else: those that are held, and those whose outcome
    /// it may not know yet.
    pub(crate) fn claimed_attempts(&self) -> Vec<AttemptId> {
        let untold = self.pending.iter().filter_map(|pending| match &pending.entry.fact {
            Fact::Outcome(outcome) => Some(outcome.attempt),
            _ => None,
        });
        self.leases.keys().chain(self.copies.keys()).copied().chain(untold).collect()
    }

    pub(crate) fn resumed(&self) -> Vec<ResumedBatch> {
        let resume = |held: &HeldBatch| {
            let attempts = || held.batch.leases.iter().map(|lease| lease.attempt);
            ResumedBatch {
                batch: held.batch.clone(),
                ended: attempts().filter(|&attempt| !self.holds(attempt)).collect(),
                begun: attempts().filter(|&attempt| self.has_begun(attempt)).collect(),
            }
        };
        self.batches.values().map(resume).collect()
    }

    pub(crate) fn set_service_version(&mut self, version: u16) {
        self.version = Some(version);
    }

    /// The next unacknowledged facts, as many as one report may hold. What the service would not understand
    /// is skipped; until its version is known, later facts wait as well.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let (mut count, mut bytes) = (0, 0);
        self.pending
            .iter()
            .take_while(|pending| self.version.is_some() || !is_door_decision(&pending.entry.fact))
            .filter(|pending| {
                self.version >= Some(DECISIONS_VERSION_MIN) || !is_door_decision(&pending.entry.fact)
            })
            .take_while(|pending| {
                let first = count == 0;
                count += items(&pending.entry.fact);
                bytes += pending.bytes;
                first || (count <= BATCH_ITEMS_MAX && bytes <= REPORT_BYTES_MAX)
            })
            .map(|pending| pending.entry.clone())
            .collect()
    }

    pub(crate) fn facts_pending(&self) -> usize {
        self.pending.len()
    }

    /// Tasks wait while there are too many of these.
    pub(crate) fn task_facts_pending(&self) -> usize {
        self.task_facts
    }

    /// Further decisions wait while there are too many of these.
    pub(crate) fn decision_facts_pending(&self) -> usize {
        self.decision_facts
    }

    /// Renumbers pending facts: the service has seen numbers that this log has not assigned, since the state
    /// directory was restored from an older copy.
    pub(crate) fn renumber_after(&mut self, sequence: u64) {
        self.acknowledged = sequence;
        self.sequence = sequence;
        for pending in &mut self.pending {
            self.sequence += 1;
            pending.entry.sequence = self.sequence;
        }
    }

    /// The shortest list of records that produces this state.
    pub(crate) fn compacted(&self) -> Vec<Record> {
        let first_pending = self.pending.front().map(|pending| pending.entry.sequence);
        let mut records = vec![Record::Head {
            received: self.received,
            acknowledged: self.acknowledged,
            sequence: first_pending.map_or(self.sequence, |first| first - 1),
            clock_offset_us: self.clock_offset_us,
        }];
        records.extend(self.settings.clone().map(Record::Settings));
        let number = self.received;
        for resumed in self.resumed() {
            records.push(Record::ReceivedWork(ReceivedWork {
                number,
                batches: vec![resumed.batch],
                ..ReceivedWork::default()
            }));
            records.push(Record::Ended(resumed.ended));
            records.push(Record::Begun(resumed.begun));
        }
        for task in self.tasks.values() {
            records.push(Record::ReceivedWork(ReceivedWork {
                number,
                tasks: vec![task.clone()],
                ..ReceivedWork::default()
            }));
        }
        if !self.copies.is_empty() {
            records.push(Record::ReceivedWork(ReceivedWork {
                number,
                copies: self.copies_held(),
                ..ReceivedWork::default()
            }));
        }
        records.extend(self.pending.iter().map(|pending| Record::Fact(pending.entry.clone())));
        records
    }
}

/// Distinguishes one page of a task from another.
fn content_of(task: &Task) -> PartDigest {
    PartDigest::compute(&serde_json::to_vec(&task.kind).unwrap_or_default())
}

fn is_of_task(fact: &Fact) -> bool {
    !matches!(fact, Fact::Outcome(_) | Fact::Decided { .. })
}

fn is_door_decision(fact: &Fact) -> bool {
    matches!(fact, Fact::Decided { .. })
}

#[cfg(test)]
impl LogState {
    pub(crate) fn pending_entries(&self) -> Vec<Entry> {
        self.pending.iter().map(|pending| pending.entry.clone()).collect()
    }
}
