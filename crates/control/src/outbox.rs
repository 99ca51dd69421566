//! Outbox of one agent: numbered parcels of work, repeated until acknowledged (at-least-once delivery). Pure.
//!
//! At most one parcel is under way; what comes meanwhile gathers for the next one, so a slow agent
//! gets few large parcels and a quick one many small ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use longhaul_api::agent::{
    AgentSettings, AskedBack, FenceOrder, LeaseBatch, StageOrder, StageRelease, Task, TaskKind, Work,
};
use longhaul_api::foreign::ForeignCopy;
use longhaul_model::{AttemptId, TaskId, Timestamp};

/// Leases of one parcel.
pub const PARCEL_LEASES_MAX: usize = 2_000;
/// Files in the tasks of one parcel: a task is never split, so one may exceed it.
pub const PARCEL_TASK_FILES_MAX: usize = 5_000;
/// The highest number of a parcel that an agent is believed to have: up to there numbers are exact in every
/// reader of JSON, and no service sends so many.
const PARCEL_NUMBER_MAX: u64 = 1 << 53;

/// From this version of the protocol on agents know what to give back.
const GIVES_BACK: u16 = 2;
/// From this version of the protocol on agents fence each other in shared storages.
const FENCES: u16 = 4;
/// From this version of the protocol on agents bring files from tape.
const STAGES: u16 = 5;

#[derive(Default)]
pub struct Outbox {
    last_number: u64,
    sent: Option<Arc<Work>>,
    batches: VecDeque<LeaseBatch>,
    tasks: VecDeque<Task>,
    copies: Vec<ForeignCopy>,
    cancel: BTreeSet<AttemptId>,
    give_back: BTreeMap<AttemptId, String>,
    cancel_tasks: BTreeSet<TaskId>,
    fences: BTreeSet<FenceOrder>,
    stages: Vec<StageOrder>,
    releases: Vec<StageRelease>,
    settings: Option<AgentSettings>,
}

impl Outbox {
    pub fn put_leases(&mut self, batch: LeaseBatch) {
        self.batches.push_back(batch);
    }

    pub fn put_task(&mut self, task: Task) {
        let known = self.tasks.iter().any(|known| known.id == task.id);
        if !known {
            self.tasks.push_back(task);
        }
    }

    pub fn put_copy(&mut self, copy: ForeignCopy) {
        self.copies.push(copy);
    }

    pub fn put_fence(&mut self, order: FenceOrder) {
        self.fences.insert(order);
    }

    pub fn put_stage(&mut self, order: StageOrder) {
        self.stages.push(order);
    }

    /// Delivered after all orders that are here already.
    pub fn put_release(&mut self, release: StageRelease) {
        self.releases.push(release);
    }

    pub fn put_settings(&mut self, settings: AgentSettings) {
        self.settings = Some(settings);
    }

    /// Takes a lease back. The lease itself is still delivered if it has not been, since the permit covers
    /// its batch as a whole; the cancellation follows in a later parcel. A copy that has not left yet need
    /// not leave.
    pub fn cancel(&mut self, attempt: AttemptId) {
        if let Some(at) = self.copies.iter().position(|copy| copy.attempt == attempt) {
            self.copies.swap_remove(at);
            return;
        }
        self.cancel.insert(attempt);
    }

    /// Drops a copy that has ended, wherever it still is: the credentials in it leave with it.
    pub fn drop_copy(&mut self, attempt: AttemptId) {
        self.copies.retain(|copy| copy.attempt != attempt);
        if let Some(sent) = &mut self.sent
            && sent.copies.iter().any(|copy| copy.attempt == attempt)
        {
            Arc::make_mut(sent).copies.retain(|copy| copy.attempt != attempt);
        }
    }

    /// Asks for a lease. Like a cancellation it follows its lease.
    pub fn ask_back(&mut self, asked: AskedBack) {
        self.give_back.insert(asked.attempt, asked.why);
    }

    pub fn cancel_task(&mut self, task: TaskId) {
        self.tasks.retain(|waiting| waiting.id != task);
        self.cancel_tasks.insert(task);
    }

    /// The next parcel, given that everything up to number `received` is safe at the agent; none if there is
    /// nothing to say. Until acknowledged, the same parcel comes again.
    pub fn poll(&mut self, received: u64, version: u16, now: Timestamp) -> Option<Arc<Work>> {
        if version < GIVES_BACK {
            self.give_back.clear();
        }
        if version < FENCES {
            self.fences.clear();
        }
        if version < STAGES {
            self.stages.clear();
            self.releases.clear();
        }
        let received = received.min(PARCEL_NUMBER_MAX);
        if self.sent.as_ref().is_some_and(|sent| sent.number <= received) {
            self.sent = None;
        }
        // After a restart of the service its numbers continue where the agent's memory ends.
        self.last_number = self.last_number.max(received);
        if self.sent.is_none() && !self.is_idle() {
            self.sent = Some(Arc::new(self.pack(now)));
        }
        self.sent.clone()
    }

    fn pack(&mut self, now: Timestamp) -> Work {
        self.last_number += 1;
        let mut work = Work {
            number: self.last_number,
            now,
            cancel_tasks: std::mem::take(&mut self.cancel_tasks).into_iter().collect(),
            copies: std::mem::take(&mut self.copies),
            fences: std::mem::take(&mut self.fences).into_iter().collect(),
            stages: std::mem::take(&mut self.stages),
            releases: std::mem::take(&mut self.releases),
            settings: self.settings.take(),
            ..Work::default()
        };
        let mut leases = 0;
        while let Some(batch) = self.batches.front() {
            leases += batch.leases.len();
            if leases > PARCEL_LEASES_MAX && !work.batches.is_empty() {
                break;
            }
            work.batches.extend(self.batches.pop_front());
        }
        let undelivered: BTreeSet<AttemptId> =
            work.batches.iter().chain(&self.batches).flat_map(attempts).chain(copies(&work.copies)).collect();
        let (later, now): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.cancel).into_iter().partition(|attempt| undelivered.contains(attempt));
        self.cancel = later;
        work.cancel = now.into_iter().collect();
        let (later, now): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.give_back)
            .into_iter()
            .partition(|(attempt, _)| undelivered.contains(attempt));
        self.give_back = later;
        work.give_back = now.into_iter().map(|(attempt, why)| AskedBack { attempt, why }).collect();
        let mut files = 0;
        while let Some(task) = self.tasks.front() {
            files += task_files(task);
            if files > PARCEL_TASK_FILES_MAX && !work.tasks.is_empty() {
                break;
            }
            work.tasks.extend(self.tasks.pop_front());
        }
        work
    }

    fn is_idle(&self) -> bool {
        self.batches.is_empty()
            && self.tasks.is_empty()
            && self.copies.is_empty()
            && self.cancel.is_empty()
            && self.give_back.is_empty()
            && self.cancel_tasks.is_empty()
            && self.fences.is_empty()
            && self.stages.is_empty()
            && self.releases.is_empty()
            && self.settings.is_none()
    }

    /// Leases that the agent may not have got yet.
    pub fn leases(&self) -> impl Iterator<Item = AttemptId> + '_ {
        let sent = self.sent.iter().flat_map(|sent| sent.batches.iter());
        let sent_copies = self.sent.iter().flat_map(|sent| copies(&sent.copies));
        sent.chain(&self.batches).flat_map(attempts).chain(sent_copies).chain(copies(&self.copies))
    }
}

fn attempts(batch: &LeaseBatch) -> impl Iterator<Item = AttemptId> + '_ {
    batch.leases.iter().map(|lease| lease.attempt)
}

fn copies(copies: &[ForeignCopy]) -> impl Iterator<Item = AttemptId> + '_ {
    copies.iter().map(|copy| copy.attempt)
}

fn task_files(task: &Task) -> usize {
    match &task.kind {
        TaskKind::Scan { .. } => 1,
        TaskKind::Verify { files } | TaskKind::Delete { files } => files.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::agent::{Lease, SourcePeer};
    use longhaul_api::foreign::{CompareWith, ForeignCredential, ForeignEnd, Replace, Secret};
    use longhaul_model::{AgentId, DigestSet, Epoch, TransferId, Verification};
    use proptest::prelude::*;

    fn batch(attempts: impl IntoIterator<Item = u64>) -> LeaseBatch {
        LeaseBatch {
            source: SourcePeer { agent: AgentId(1), storage: "alpha".parse().unwrap(), addresses: vec![] },
            target_storage: "beta".parse().unwrap(),
            permit: "".into(),
            start_by: Timestamp::MAX,
            leases: attempts
                .into_iter()
                .map(|n| Lease {
                    attempt: AttemptId(n),
                    transfer: TransferId(n),
                    epoch: Epoch(1),
                    lfn: format!("f{n}").parse().unwrap(),
                    size: 1,
                    digests: DigestSet::default(),
                    verification: Verification::EndToEnd,
                    priority: 5,
                    replaces_damaged: false,
                })
                .collect(),
            class: longhaul_model::TrafficClass::default(),
            circuits: Default::default(),
            mark: longhaul_model::Mark::default(),
        }
    }

    fn copy(attempt: u64) -> ForeignCopy {
        let end = || ForeignEnd {
            url: Secret::new("https://storage.example/f".to_owned()),
            credential: ForeignCredential::None,
        };
        ForeignCopy {
            attempt: AttemptId(attempt),
            epoch: Epoch(1),
            source: end(),
            target: end(),
            size: None,
            checksum: None,
            compare: CompareWith::None,
            replace: Replace::Never,
            unchecked: false,
            keeps_partial: false,
            timeout_ms: None,
            streams: 1,
            family: None,
            scitag: None,
        }
    }

    fn numbers(work: &Work) -> Vec<u64> {
        work.batches.iter().flat_map(attempts).map(|attempt| attempt.0).collect()
    }

    #[test]
    fn a_parcel_is_repeated_until_acknowledged() {
        let mut outbox = Outbox::default();
        assert!(outbox.poll(0, GIVES_BACK, Timestamp::ZERO).is_none());
        outbox.put_leases(batch([1, 2]));
        let first = outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap();
        outbox.put_leases(batch([3]));
        let again = outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!((first.number, numbers(&first)), (again.number, numbers(&again)));
        assert_eq!(outbox.leases().count(), 3);
        let next = outbox.poll(first.number, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!(numbers(&next), vec![3]);
        assert!(outbox.poll(next.number, GIVES_BACK, Timestamp::ZERO).is_none());
        assert_eq!(outbox.leases().count(), 0);
    }

    #[test]
    fn numbers_go_on_after_a_restart_of_the_service() {
        let mut outbox = Outbox::default();
        outbox.put_leases(batch([1]));
        assert_eq!(outbox.poll(57, GIVES_BACK, Timestamp::ZERO).unwrap().number, 58);
    }

    #[test]
    fn no_number_that_an_agent_says_is_too_large() {
        let mut outbox = Outbox::default();
        outbox.put_leases(batch([1]));
        let first = outbox.poll(u64::MAX, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!((first.number, numbers(&first)), (PARCEL_NUMBER_MAX + 1, vec![1]));
        let next = outbox.poll(u64::MAX - 1, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!(next.number, first.number, "it does not know the first parcel: it comes again");
    }

    #[test]
    fn a_cancellation_comes_after_its_lease() {
        let mut outbox = Outbox::default();
        outbox.put_leases(batch([1, 2]));
        outbox.cancel(AttemptId(2));
        let first = outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!((numbers(&first), first.cancel.len()), (vec![1, 2], 0));
        assert_eq!(
            outbox.poll(first.number, GIVES_BACK, Timestamp::ZERO).unwrap().cancel,
            vec![AttemptId(2)]
        );
    }

    /// Copies leave once, and what was cancelled before it left never does: nothing that opens storages goes
    /// about for nothing.
    #[test]
    fn copies_leave_once_and_cancelled_ones_not_at_all() {
        let mut outbox = Outbox::default();
        outbox.put_copy(copy(1));
        outbox.put_copy(copy(2));
        outbox.cancel(AttemptId(2));
        let first = outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!(first.copies, [copy(1)]);
        outbox.put_copy(copy(3));
        outbox.cancel(AttemptId(1));
        assert_eq!(outbox.leases().collect::<Vec<_>>(), [AttemptId(1), AttemptId(3)]);
        let next = outbox.poll(first.number, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!((&next.copies[..], &next.cancel[..]), (&[copy(3)][..], &[AttemptId(1)][..]));
        assert_eq!(outbox.leases().collect::<Vec<_>>(), [AttemptId(3)]);
        assert!(outbox.poll(next.number, GIVES_BACK, Timestamp::ZERO).is_none());
    }

    #[test]
    fn a_copy_that_has_ended_is_in_no_parcel() {
        let mut outbox = Outbox::default();
        outbox.put_copy(copy(1));
        outbox.put_copy(copy(2));
        let first = outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!(first.copies.len(), 2);
        outbox.put_copy(copy(3));
        outbox.drop_copy(AttemptId(1));
        outbox.drop_copy(AttemptId(3));
        let again = outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!((again.number, &again.copies[..]), (first.number, &[copy(2)][..]));
        assert!(outbox.poll(again.number, GIVES_BACK, Timestamp::ZERO).is_none(), "the third never leaves");
    }

    #[test]
    fn what_is_asked_back_comes_after_its_lease_and_only_to_who_understands() {
        let asked = || AskedBack { attempt: AttemptId(1), why: "alpha is slow".into() };
        let mut outbox = Outbox::default();
        outbox.put_leases(batch([1]));
        outbox.ask_back(asked());
        let first = outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap();
        assert_eq!((numbers(&first), first.give_back.len()), (vec![1], 0));
        assert_eq!(outbox.poll(first.number, GIVES_BACK, Timestamp::ZERO).unwrap().give_back, vec![asked()]);
        let mut old = Outbox::default();
        old.ask_back(asked());
        assert!(old.poll(0, GIVES_BACK - 1, Timestamp::ZERO).is_none(), "it would ask for it for ever");
    }

    #[test]
    fn parcels_are_bounded() {
        let mut outbox = Outbox::default();
        for start in 0..3 {
            outbox.put_leases(batch((0..1_500).map(|n| start * 10_000 + n)));
        }
        assert_eq!(numbers(&outbox.poll(0, GIVES_BACK, Timestamp::ZERO).unwrap()).len(), 1_500);
    }

    proptest! {
        /// Promise 3: whatever replies are lost, an agent that stores parcels in order gets every lease once.
        #[test]
        fn every_lease_arrives_once(lost in proptest::collection::vec(any::<bool>(), 1..60)) {
            let mut outbox = Outbox::default();
            let (mut received, mut got) = (0, Vec::new());
            for (step, lost) in lost.iter().chain(&[false, false]).enumerate() {
                outbox.put_leases(batch([step as u64]));
                if let Some(work) = outbox.poll(received, GIVES_BACK, Timestamp::ZERO)
                    && !lost && work.number > received
                {
                    received = work.number;
                    got.extend(numbers(&work));
                }
            }
            prop_assert_eq!(got, (0..lost.len() as u64 + 2).collect::<Vec<_>>());
        }
    }
}
