//! Faults of sources, targets and leases end in exactly one clear error with the right blame, and affect
//! nothing else.

use std::sync::Arc;
use std::sync::mpsc::channel;

use longhaul_engine::{AttemptOutcome, FetchBatch, FetchFile};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Blame, FaultCode, Timestamp};
use longhaul_storage::Storage;
use longhaul_storage::hooked::HookedStorage;

use crate::common::{Agent, Deployment, content, now, put, store};

const CHUNK: usize = CHUNK_BYTES as usize;

fn fault(end: &AttemptOutcome) -> (FaultCode, Blame) {
    let fault = end.result.as_ref().expect_err("a fault");
    (fault.code, fault.blame)
}

/// Promises 1 and 2: one bad file is one fault; its neighbours arrive, and nothing of it is left.
#[test]
fn faults_at_the_source_blame_the_source() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    for size in [2_000, 5 * CHUNK] {
        let first = size as u64 * 100;
        let files: Vec<FetchFile> = (first..first + 7).map(|number| put(&alpha, number, size)).collect();
        let name = |place: usize| format!("f{}", first + place as u64);
        alpha.flip_byte(&name(1), 1_234);
        alpha.truncate(&name(2), 1_000);
        alpha.remove(&name(3));
        alpha.put(&name(4), &content(1, size + 1));
        alpha.fail_reading(&name(5), Some(size as u64 - 10));
        alpha.change_while_reading(&name(6), size as u64 - 1);
        let source = deployment.agent(first + 1, Arc::new(alpha.clone()));
        let target = deployment.agent(first + 2, Arc::new(beta.clone()));
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files));
        let ends = target.finished(7);
        assert!(ends[0].result.is_ok(), "{:?}", ends[0].result);
        assert_eq!(fault(&ends[1]), (FaultCode::WrongDigest, Blame::Source));
        assert_eq!(fault(&ends[2]), (FaultCode::SourceTruncated, Blame::Source));
        assert_eq!(fault(&ends[3]), (FaultCode::SourceMissing, Blame::Source));
        assert_eq!(fault(&ends[4]), (FaultCode::SourceChanged, Blame::Source));
        assert_eq!(fault(&ends[5]), (FaultCode::SourceUnreadable, Blame::Source));
        assert_eq!(fault(&ends[6]), (FaultCode::SourceChanged, Blame::Source));
        target.engine.stop();
        assert_eq!(beta.temps().unwrap(), vec![], "nothing is left of failed files");
    }
    assert_eq!(beta.names().len(), 2);
}

/// Promise 10: the fault names the target, and the files that fit arrive.
#[test]
fn a_full_target_fails_only_files_that_do_not_fit() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let large = put(&alpha, 1, 10 * CHUNK);
    let small = put(&alpha, 2, 500);
    let also_small = put(&alpha, 3, 600);
    beta.set_capacity(4 * CHUNK as u64);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(
        &source,
        "alpha",
        &target,
        "beta",
        vec![large.clone(), small, also_small],
    ));
    let ends = target.finished(3);
    assert_eq!(fault(&ends[0]), (FaultCode::TargetFull, Blame::Target));
    assert!(ends[1].result.is_ok() && ends[2].result.is_ok());
    // Full in the middle of a file, in spite of the reservation.
    beta.set_capacity(1 << 40);
    beta.run_full_after(Some(3 * CHUNK as u64));
    target.engine.fetch(deployment.batch(
        &source,
        "alpha",
        &target,
        "beta",
        vec![FetchFile { attempt: longhaul_model::AttemptId(4), ..large.clone() }],
    ));
    assert_eq!(fault(&target.finished(1)[0]), (FaultCode::TargetFull, Blame::Target));
    // There is room again: the next attempt succeeds.
    beta.run_full_after(None);
    retried(&deployment, &source, &target, &large);
    assert!(beta.contents("f1") == alpha.contents("f1"));
    target.engine.stop();
    assert_eq!(beta.temps().unwrap(), vec![]);
}

/// The next attempt on a file, right after the end of the previous one.
fn retried(deployment: &Deployment, source: &Agent, target: &Agent, file: &FetchFile) {
    let again = FetchFile { attempt: longhaul_model::AttemptId(file.attempt.0 + 1_000), ..file.clone() };
    target.engine.fetch(deployment.batch(source, "alpha", target, "beta", vec![again]));
    let end = &target.finished(1)[0];
    assert!(end.result.is_ok(), "{:?}", end.result);
}

#[test]
fn write_failures_blame_the_target() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let files = vec![put(&alpha, 1, 100), put(&alpha, 2, 3 * CHUNK)];
    beta.set_read_only(true);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
    let ends = target.finished(2);
    assert!(ends.iter().all(|end| fault(end) == (FaultCode::TargetReadOnly, Blame::Target)));
    beta.set_read_only(false);
    // A failed flush loses the bytes: the file starts from scratch and is never reported.
    beta.fail_flushes(1);
    let again = FetchFile { attempt: longhaul_model::AttemptId(3), ..files[0].clone() };
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![again]));
    assert_eq!(fault(&target.finished(1)[0]), (FaultCode::TargetWrite, Blame::Target));
    assert_eq!(beta.names(), Vec::<String>::new());
    retried(&deployment, &source, &target, &files[0]);
    retried(&deployment, &source, &target, &files[1]);
}

#[test]
fn an_expired_lease_does_not_start() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let file = put(&alpha, 1, 100);
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    let mut batch = deployment.batch(&source, "alpha", &target, "beta", vec![file]);
    batch.start_by = Timestamp(now().0 - 1);
    target.engine.fetch(batch);
    let end = &target.finished(1)[0];
    assert_eq!(fault(end).0, FaultCode::LeaseExpired);
    assert_eq!((end.times.started, beta.names().len()), (None, 0));
}

#[test]
fn unknown_storages_and_peers_end_with_a_reason() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let files = vec![put(&alpha, 1, 100), put(&alpha, 2, 3 * CHUNK)];
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta));
    let mut batch = deployment.batch(&source, "alpha", &target, "nowhere", files.clone());
    target.engine.fetch(batch.clone());
    assert!(target.finished(2).iter().all(|end| fault(end).0 == FaultCode::NotFound));
    // Nobody listens there. The first failure is retried for some seconds, then it is final.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    batch.target_storage = "beta".parse().unwrap();
    batch.source_agent = longhaul_model::AgentId(77);
    batch.addresses = vec![unused.to_string()];
    target.engine.fetch(batch);
    assert!(target.finished(2).iter().all(|end| fault(end) == (FaultCode::Unreachable, Blame::Source)));
    // Another address of the peer is tried when the first fails.
    let mut batch = deployment.batch(&source, "alpha", &target, "beta", files);
    batch.addresses.insert(0, unused.to_string());
    target.engine.fetch(batch);
    assert!(target.finished(2).iter().all(|end| end.result.is_ok()));
}

/// Promise 8: a cancelled attempt stops in any state and emits no further event.
#[test]
fn cancelled_attempts_stop_silently() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let files: Vec<FetchFile> = [30 * CHUNK, 100, 20 * CHUNK]
        .iter()
        .zip(1..)
        .map(|(&len, number)| put(&alpha, number, len))
        .collect();
    let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), &[5]);
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, hooked);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files));
    gate.wait();
    target.engine.cancel(&[
        longhaul_model::AttemptId(1),
        longhaul_model::AttemptId(3),
        longhaul_model::AttemptId(99),
    ]);
    gate.open();
    let ends = target.finished(1);
    assert!(ends[0].attempt.0 == 2 && ends[0].result.is_ok(), "{ends:?}");
    let snapshot = target.engine.snapshot();
    assert!(snapshot.running.is_empty() && snapshot.waiting == 0);
    // Removal runs on a thread of its own; whatever is left when the engine stops is removed then.
    target.engine.stop();
    assert_eq!(beta.temps().unwrap(), [], "temporary files of cancelled attempts stay");
    assert_eq!(beta.names(), vec!["f2".to_owned()]);
}

/// A permit covers a whole list, though not all of it is fetched.
#[test]
fn withheld_files_are_listed_and_never_fetched() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let mut files: Vec<FetchFile> = (1..=3).map(|number| put(&alpha, number, 100)).collect();
    files[2].priority = 0;
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    let mut batch = deployment.batch(&source, "alpha", &target, "beta", files);
    batch.withheld.extend([1, 2].map(longhaul_model::AttemptId));
    // Nor do they end when the whole batch is refused.
    target.engine.fetch(FetchBatch { target_storage: "nowhere".parse().unwrap(), ..batch.clone() });
    let refused = target.finished(1);
    assert_eq!((refused[0].attempt.0, refused[0].result.is_err()), (3, true), "{refused:?}");
    target.engine.fetch(batch);
    let ends = target.finished(1);
    assert!(ends[0].attempt.0 == 3 && ends[0].result.is_ok(), "{ends:?}");
    let snapshot = target.engine.snapshot();
    assert!(snapshot.running.is_empty() && snapshot.waiting == 0);
    target.engine.stop();
    assert_eq!(beta.names(), vec!["f3".to_owned()]);
}

/// A panic in a storage fails that file, and the engine continues.
#[test]
fn a_panic_fails_only_one_file() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let files = vec![put(&alpha, 1, 3 * CHUNK), put(&alpha, 2, 4 * CHUNK)];
    let hooked =
        HookedStorage::new(Arc::new(beta.clone()), |write| assert!(write != 1, "the disk driver has a bug"));
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, hooked);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files));
    let ends = target.finished(2);
    let failed: Vec<FaultCode> =
        ends.iter().filter_map(|end| end.result.as_ref().err()).map(|fault| fault.code).collect();
    assert_eq!(failed, vec![FaultCode::Internal]);
}

/// Promise 8: the rate limits hold in both directions, and can be lifted while files move.
#[test]
fn rate_limits_hold_and_can_be_lifted() {
    for inward in [false, true] {
        let deployment = Deployment::new();
        let (alpha, beta) = (store("alpha"), store("beta"));
        let file = put(&alpha, 1, 8 * CHUNK);
        let source = deployment.agent(1, Arc::new(alpha));
        let (reached, at_write) = channel();
        let reached = std::sync::Mutex::new(reached);
        let hooked = HookedStorage::new(Arc::new(beta), move |write| {
            let _ = reached.lock().unwrap().send((write, std::time::Instant::now()));
        });
        let target = deployment.agent(2, hooked);
        let limit = Some(4 << 20);
        if inward {
            target.engine.set_limits(limit, None)
        } else {
            source.engine.set_limits(None, limit)
        };
        let begun = std::time::Instant::now();
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file]));
        let writes: Vec<_> = (0..8).map(|_| at_write.recv().unwrap()).collect();
        // Four chunks a second, and at first a tenth of that: the eighth is asked for once seven are paid
        // for, however busy the machine is.
        assert!(writes[7].1 - begun >= std::time::Duration::from_millis(1_500), "{inward}: {writes:?}");
        source.engine.set_limits(None, None);
        target.engine.set_limits(None, None);
        assert!(target.finished(1)[0].result.is_ok());
    }
}
