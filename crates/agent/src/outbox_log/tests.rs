//! Crash-point sweeps and random histories of the outbox log.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use longhaul_api::agent::{AttemptTimes, ExpectedFile, Lease, SourcePeer, TaskKind};
use longhaul_model::{AgentId, DigestSet, Timestamp, Verification};
use proptest::prelude::*;

use super::*;

fn lease(attempt: u64) -> Lease {
    Lease {
        attempt: AttemptId(attempt),
        transfer: TransferId(attempt + 1_000),
        epoch: Epoch(1),
        lfn: format!("file/{attempt}").parse().unwrap(),
        size: attempt,
        digests: DigestSet::default(),
        verification: Verification::EndToEnd,
        priority: 3,
        replaces_damaged: false,
    }
}

fn batch(attempts: &[u64]) -> LeaseBatch {
    LeaseBatch {
        source: SourcePeer {
            agent: AgentId(7),
            storage: "alpha".parse().unwrap(),
            addresses: vec!["[::1]:1".into()],
        },
        target_storage: "beta".parse().unwrap(),
        permit: "permit".into(),
        start_by: Timestamp::from_seconds(100),
        leases: attempts.iter().map(|&attempt| lease(attempt)).collect(),
        class: longhaul_model::TrafficClass::default(),
        circuits: Default::default(),
        mark: longhaul_model::Mark::default(),
    }
}

fn task(id: u64) -> Task {
    Task { id: TaskId(id), storage: "beta".parse().unwrap(), kind: TaskKind::Verify { files: Vec::new() } }
}

fn work(number: u64, batches: Vec<LeaseBatch>) -> Work {
    Work { number, batches, ..Work::default() }
}

fn outcome(attempt: u64) -> Outcome {
    Outcome {
        attempt: AttemptId(attempt),
        epoch: Epoch(1),
        fault: None,
        digests: DigestSet::default(),
        verification: Verification::EndToEnd,
        already_there: false,
        bytes_moved: attempt,
        bytes_resent: 0,
        executor: None,
        times: AttemptTimes::default(),
    }
}

fn done(task: u64) -> Fact {
    Fact::TaskDone { task: TaskId(task), fault: None }
}

/// Everything that must survive, as text.
fn durable_state(log: &OutboxLog) -> String {
    let (batches, tasks) = log.resumed();
    let entries: Vec<_> = log.state.lock().pending_entries();
    format!("{} {} {batches:?} {tasks:?} {entries:?}", log.received(), log.clock_offset())
}

fn open(directory: &Path) -> OutboxLog {
    OutboxLog::open(directory).unwrap()
}

#[test]
fn a_lease_lives_until_its_outcome_and_the_outcome_until_it_is_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    assert_eq!(log.receive(&work(1, vec![batch(&[1, 2, 3])])).unwrap().batches.len(), 1);
    log.note_begun(&[AttemptId(1), AttemptId(3)]).unwrap();
    assert_eq!(log.finish(&[outcome(1), outcome(99)]).unwrap(), 1, "99 was never leased");
    drop(log);

    let log = open(directory.path());
    let (resumed, _) = log.resumed();
    assert_eq!(resumed[0].batch.leases.len(), 3, "the permit is for the whole list");
    assert_eq!(resumed[0].ended, [AttemptId(1)]);
    assert_eq!(resumed[0].begun, [AttemptId(3)]);
    assert_eq!(
        log.claimed_attempts(),
        [AttemptId(2), AttemptId(3), AttemptId(1)],
        "1 has an outcome that is not told"
    );
    assert_eq!(log.entries().len(), 1);
    assert_eq!(log.finish(&[outcome(1)]).unwrap(), 0, "one outcome each");

    log.acknowledge(1).unwrap();
    assert_eq!(log.facts_pending(), 0);
    assert_eq!(log.finish(&[outcome(2), outcome(3)]).unwrap(), 2);
    drop(log);
    let log = open(directory.path());
    assert_eq!(log.leases_held(), 0);
    assert_eq!(log.entries().iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn duplicates_start_once_and_cancelled_leases_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let parcel = Work { tasks: vec![task(5)], ..work(1, vec![batch(&[1, 2]), batch(&[2, 3])]) };
    let news = log.receive(&parcel).unwrap();
    let counts: Vec<usize> = news.batches.iter().map(|batch| batch.leases.len()).collect();
    assert_eq!((counts, news.tasks.len()), (vec![2, 1], 1));
    log.finish(&[outcome(1)]).unwrap();
    let stop = StopFlag::default();
    assert!(log.add_task_fact(&done(5), &stop).unwrap());
    let again = log.receive(&parcel).unwrap();
    assert!(again.batches.is_empty() && again.tasks.is_empty());

    let cancel = Work { cancel: vec![AttemptId(2), AttemptId(77)], ..work(2, vec![]) };
    assert_eq!(log.receive(&cancel).unwrap().cancel, [AttemptId(2)]);
    assert_eq!(log.finish(&[outcome(2)]).unwrap(), 0, "no outcome is needed");
    assert_eq!(log.received(), 2);
    drop(log);
    let log = open(directory.path());
    assert!(log.receive(&parcel).unwrap().batches.is_empty());
    assert_eq!(log.leases_held(), 1);
}

/// Promises 3, 5: cut at any byte, the file is the log after some complete step.
#[test]
fn every_cut_is_the_state_after_a_whole_step() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let path = directory.path().join("ledger");
    let stop = StopFlag::default();
    let steps: [&dyn Fn(); 8] = [
        &|| drop(log.receive(&Work { tasks: vec![task(1)], ..work(1, vec![batch(&[1, 2])]) }).unwrap()),
        &|| log.note_begun(&[AttemptId(2)]).unwrap(),
        &|| assert_eq!(log.finish(&[outcome(2)]).unwrap(), 1),
        &|| drop(log.receive(&work(2, vec![batch(&[3])])).unwrap()),
        &|| log.acknowledge(1).unwrap(),
        &|| assert!(log.add_task_fact(&done(1), &stop).unwrap()),
        &|| log.set_clock_offset(-3_600_000_000).unwrap(),
        &|| drop(log.receive(&Work { cancel: vec![AttemptId(1)], ..work(3, vec![]) }).unwrap()),
    ];
    let mut states = vec![(0, durable_state(&log))];
    for step in steps {
        step();
        states.push((fs::metadata(&path).unwrap().len(), durable_state(&log)));
    }
    let whole = fs::read(&path).unwrap();
    let copy = tempfile::tempdir().unwrap();
    for cut in 0..=whole.len() {
        fs::write(copy.path().join("ledger"), &whole[..cut]).unwrap();
        let expected = states.iter().rev().find(|(end, _)| *end <= cut as u64).unwrap();
        assert_eq!(durable_state(&open(copy.path())), expected.1, "cut at {cut}");
    }
}

#[test]
fn one_report_holds_a_bounded_number_of_items() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let attempts: Vec<u64> = (1..=6_000).collect();
    log.receive(&work(1, vec![batch(&attempts)])).unwrap();
    let outcomes: Vec<_> = attempts.iter().map(|&attempt| outcome(attempt)).collect();
    log.finish(&outcomes).unwrap();
    let first = log.entries();
    assert_eq!(first.len(), longhaul_model::limits::BATCH_ITEMS_MAX);
    log.acknowledge(first.last().unwrap().sequence).unwrap();
    assert_eq!(log.entries().len(), 1_000);
}

#[test]
fn tasks_wait_for_room_and_go_on_when_there_is_some() {
    let directory = tempfile::tempdir().unwrap();
    let log = Arc::new(open(directory.path()));
    let stop = StopFlag::default();
    let fact = Fact::Checked { task: TaskId(1), files: Vec::new() };
    for _ in 0..TASK_FACTS_MAX {
        assert!(log.add_task_fact(&fact, &stop).unwrap());
    }
    let waiting = {
        let (log, stop, fact) = (log.clone(), stop.clone(), fact.clone());
        std::thread::spawn(move || log.add_task_fact(&fact, &stop).unwrap())
    };
    log.acknowledge(1).unwrap();
    assert!(waiting.join().unwrap());
    assert_eq!(log.facts_pending(), TASK_FACTS_MAX, "one was acknowledged, one added");
    stop.set();
    assert!(!log.add_task_fact(&fact, &stop).unwrap());
}

/// A state directory restored from a backup: the service ignores numbers it has seen, so new ones are given.
#[test]
fn facts_the_service_would_ignore_get_new_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    log.receive(&work(1, vec![batch(&[1])])).unwrap();
    log.finish(&[outcome(1)]).unwrap();
    log.acknowledge(500).unwrap();
    drop(log);
    assert_eq!(open(directory.path()).entries()[0].sequence, 501);
}

#[test]
fn a_ledger_of_another_version_is_refused_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let payload = br#"{"from-the-future":1}"#;
    fs::write(&path, [format!("{:08x} ", crc32c::crc32c(payload)).as_bytes(), payload, b"\n"].concat())
        .unwrap();
    let before = fs::read(&path).unwrap();
    let fault = OutboxLog::open(directory.path()).err().unwrap();
    assert_eq!(fault.code, FaultCode::StateDirectory);
    assert!(fault.detail.contains("from-the-future"), "{fault}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// Promise 8: what the site allows holds before the service has answered.
#[test]
fn settings_outlive_restarts_and_compaction() {
    let directory = tempfile::tempdir().unwrap();
    let settings =
        AgentSettings { report_every_ms: 1_000, in_bytes_per_s: Some(40_000_000), out_bytes_per_s: None };
    let log = open(directory.path());
    log.set_settings(&settings).unwrap();
    drop(log);
    let log = open(directory.path());
    assert_eq!(log.settings().as_ref(), Some(&settings));
    log.compact(&mut log.file.lock()).unwrap();
    drop(log);
    assert_eq!(open(directory.path()).settings(), Some(settings));
}

/// A long verification comes a page at a time under one id: the next page is news, the same page again is
/// not.
#[test]
fn the_next_page_of_a_task_is_news() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let page = |lfn: &str| {
        let file = ExpectedFile { lfn: lfn.parse().unwrap(), size: 1, digests: DigestSet::default() };
        Task { kind: TaskKind::Verify { files: vec![file] }, ..task(1) }
    };
    let receive = |number, page| {
        let work = Work { tasks: vec![page], ..work(number, Vec::new()) };
        log.receive(&work).unwrap().tasks.len()
    };
    assert_eq!(receive(1, page("first")), 1);
    assert_eq!(receive(2, page("first")), 0, "held");
    log.add_task_fact(&done(1), &StopFlag::default()).unwrap();
    assert_eq!(receive(3, page("first")), 0, "ended");
    assert_eq!(receive(4, page("second")), 1);
    log.add_task_fact(&done(1), &StopFlag::default()).unwrap();
    log.service_restarted();
    assert_eq!(receive(5, page("second")), 1, "the service may not have heard of its end");
}

#[derive(Clone, Debug)]
enum Step {
    Receive(Vec<u64>, Vec<u64>),
    Begin(u64),
    Finish(Vec<u64>),
    TaskDone(u64),
    Acknowledge(u64),
    Compact,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = || proptest::collection::vec(1u64..30, 0..6);
    let step = prop_oneof![
        (ids(), ids()).prop_map(|(lease, cancel)| Step::Receive(lease, cancel)),
        (1u64..30).prop_map(Step::Begin),
        ids().prop_map(Step::Finish),
        (1u64..30).prop_map(Step::TaskDone),
        (0u64..20).prop_map(Step::Acknowledge),
        Just(Step::Compact),
        Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64 * ProptestConfig::default().cases / 256))]
    /// Promises 3, 5: neither restarts nor compaction change what is held and what is pending; numbers never
    /// repeat or skip; nothing is both held and reported.
    #[test]
    fn restarts_and_compaction_change_nothing(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let mut log = open(directory.path());
        let mut number = 0;
        for step in steps {
            match step {
                Step::Receive(leases, cancel) => {
                    number += 1;
                    let cancel = cancel.into_iter().map(AttemptId).collect();
                    let work = work(number, vec![batch(&leases)]);
                    log.receive(&Work { cancel, tasks: vec![task(number)], ..work }).unwrap();
                }
                Step::Begin(attempt) => log.note_begun(&[AttemptId(attempt)]).unwrap(),
                Step::Finish(mut attempts) => {
                    attempts.sort_unstable();
                    attempts.dedup();
                    log.finish(&attempts.into_iter().map(outcome).collect::<Vec<_>>()).unwrap();
                }
                Step::TaskDone(id) => {
                    let is_held = log.resumed().1.iter().any(|task| task.id == TaskId(id));
                    if is_held && log.state.lock().task_facts_pending() < TASK_FACTS_MAX {
                        log.add_task_fact(&done(id), &StopFlag::default()).unwrap();
                    }
                }
                Step::Acknowledge(back) => {
                    let last = log.state.lock().sequence;
                    log.acknowledge(last.saturating_sub(back)).unwrap();
                }
                Step::Compact => log.compact(&mut log.file.lock()).unwrap(),
                Step::Restart => {
                    let before = durable_state(&log);
                    drop(log);
                    log = open(directory.path());
                    prop_assert_eq!(durable_state(&log), before);
                }
            }
            let entries = log.state.lock().pending_entries();
            prop_assert!(entries.windows(2).all(|pair| pair[1].sequence == pair[0].sequence + 1));
            for entry in &entries {
                if let Fact::Outcome(outcome) = &entry.fact {
                    prop_assert!(log.lease_of(outcome.attempt).is_none());
                }
            }
        }
    }

    #[test]
    fn no_line_panics(text in ".{0,80}", wrapped in any::<bool>()) {
        let line = if wrapped { format!("{{\"parcel\":{{\"number\":{text}}}}}") } else { text };
        let _ = Record::decode(line.as_bytes());
    }
}

/// They are held like leases, with nothing in the file that opens a storage.
#[test]
fn copies_are_held_without_their_credentials_and_end_once() {
    use longhaul_api::foreign::{CompareWith, ForeignCopy, ForeignCredential, ForeignEnd, Replace, Secret};
    let end = || ForeignEnd {
        url: Secret::new("https://storage.example/f?authz=canary".to_owned()),
        credential: ForeignCredential::Bearer { token: Secret::new("canary".to_owned()) },
    };
    let copy = |attempt| ForeignCopy {
        attempt: AttemptId(attempt),
        epoch: Epoch(attempt + 1),
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
    };
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    let parcel = Work { copies: vec![copy(1), copy(2), copy(3)], ..work(1, Vec::new()) };
    assert_eq!(log.receive(&parcel).unwrap().copies.len(), 3);
    assert!(log.receive(&parcel).unwrap().copies.is_empty(), "they are known");
    assert_eq!(log.finish(&[outcome(1)]).unwrap(), 1);
    assert_eq!(log.finish(&[outcome(1)]).unwrap(), 0);
    let cancel = Work { cancel: vec![AttemptId(3)], ..work(2, Vec::new()) };
    assert_eq!(log.receive(&cancel).unwrap().cancel, [AttemptId(3)]);
    assert_eq!(log.finish(&[outcome(3)]).unwrap(), 0, "nobody waits for it");
    drop(log);
    let written = fs::read(directory.path().join("ledger")).unwrap();
    assert!(!String::from_utf8_lossy(&written).contains("canary"));
    let log = open(directory.path());
    let held = [HeldCopy { attempt: AttemptId(2), epoch: Epoch(3) }];
    assert_eq!(log.copies_held(), held);
    assert_eq!(log.claimed_attempts(), [AttemptId(2), AttemptId(1)]);
    log.compact(&mut log.file.lock()).unwrap();
    drop(log);
    assert_eq!(open(directory.path()).copies_held(), held, "also in the shortest form");
}
