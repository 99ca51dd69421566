//! Append-only storages: files arrive over several streams and are written strictly in order. Such a storage
//! refuses every other write, so each file that arrives proves the order.

use std::path::Path;
use std::sync::Arc;

use longhaul_engine::{AttemptOutcome, FetchFile};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::memory::{FaultyStore, UnflushedNames};
use longhaul_storage::{PosixTuning, Storage, TempName};
use longhaul_testkit::wait_until;

use crate::common::{Deployment, assert_moved, content, killed_child, resent_max, wish};

const CHUNK: usize = CHUNK_BYTES as usize;

fn stores() -> (FaultyStore, FaultyStore) {
    let beta = FaultyStore::new("beta".parse().unwrap());
    beta.set_append_only(true);
    (FaultyStore::new("alpha".parse().unwrap()), beta)
}

fn all_good(ends: &[AttemptOutcome]) {
    ends.iter().for_each(|end| assert!(end.result.is_ok(), "{:?}", end.result));
}

/// Promise 7: early chunks wait in a share of the receive buffers, and never for a chunk that finds no
/// buffer.
#[test]
fn files_arrive_in_order_over_several_streams() {
    for memory_bytes in [16 << 20, 64 << 20] {
        let deployment = Deployment::new();
        let (alpha, beta) = stores();
        let mut sizes = vec![0, 1, CHUNK, CHUNK + 1, 12 * CHUNK, 9 * CHUNK + 17, 40 * CHUNK + 1];
        sizes.extend((0..200).map(|number| number * 331 % 70_000));
        let files: Vec<FetchFile> = (1..)
            .zip(sizes)
            .map(|(number, len)| {
                let (name, bytes) = (format!("f{number}"), content(number, len));
                alpha.put(&name, &bytes);
                wish(number, &name, &bytes)
            })
            .collect();
        let source = deployment.agent(1, Arc::new(alpha.clone()));
        let target = deployment.agent_with(2, vec![Arc::new(beta.clone())], |config| {
            (config.streams_per_session, config.fixed_streams) = (4, true);
            config.memory_bytes = memory_bytes;
        });
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
        all_good(&target.finished(files.len()));
        for file in &files {
            let name = file.lfn.as_str();
            assert!(alpha.contents(name) == beta.contents(name), "{name}");
        }
        let snapshot = || target.engine.snapshot();
        wait_until(|| snapshot().buffers_used == 0, || format!("{:?}", snapshot()));
        let snapshot = snapshot();
        assert!((1..=snapshot.reorder_total).contains(&snapshot.reorder_peak), "{snapshot:?}");
        source.engine.stop();
    }
}

/// Fetches one file of far more chunks than can be in flight and stops at the tenth write; the partial file
/// stays in the store.
fn begun(deployment: &Deployment) -> (FaultyStore, FaultyStore, Vec<u8>) {
    let (alpha, beta) = stores();
    let bytes = content(1, 90 * CHUNK + 5);
    alpha.put("f", &bytes);
    let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), &[10]);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, hooked);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![wish(1, "f", &bytes)]));
    gate.wait();
    // So that no more is requested than is in flight.
    target.engine.set_limits(Some(1), None);
    gate.open();
    target.engine.stop();
    source.engine.stop();
    (alpha, beta, bytes)
}

fn resumed(deployment: &Deployment, alpha: &FaultyStore, beta: &FaultyStore, bytes: &[u8]) -> AttemptOutcome {
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![wish(2, "f", bytes)]));
    let mut ends = target.finished(1);
    all_good(&ends);
    assert!(beta.contents("f").unwrap() == bytes);
    assert_eq!(beta.temps().unwrap(), vec![]);
    ends.remove(0)
}

fn temp(beta: &FaultyStore) -> TempName {
    beta.temps().unwrap().remove(0)
}

/// Promise 4: progress survives.
#[test]
fn an_append_only_file_is_resumed_at_its_end() {
    let deployment = Deployment::new();
    let (alpha, beta, bytes) = begun(&deployment);
    let there = beta.temp_contents(&temp(&beta)).unwrap().len();
    assert!(there >= 9 * CHUNK);
    assert_moved(&resumed(&deployment, &alpha, &beta, &bytes), bytes.len() - there);
}

/// A kill in the middle of a write leaves bytes that no journal mark covers and that cannot be overwritten.
#[test]
fn bytes_beyond_the_journal_are_discarded() {
    let deployment = Deployment::new();
    let (alpha, beta, bytes) = begun(&deployment);
    let there = beta.temp_contents(&temp(&beta)).unwrap().len();
    let file = beta.reopen(&temp(&beta), bytes.len() as u64).unwrap().unwrap();
    file.write_at(b"half a chunk", there as u64).unwrap();
    assert_moved(&resumed(&deployment, &alpha, &beta, &bytes), bytes.len() - there);
}

/// After a power failure the file may be shorter than what was written, or hold zeros.
#[test]
fn damaged_leftovers_are_not_resumed() {
    for names in [UnflushedNames::Kept, UnflushedNames::Lost] {
        let deployment = Deployment::new();
        let (alpha, beta, bytes) = begun(&deployment);
        resumed(&deployment, &alpha, &beta.after_power_cut(names), &bytes);
    }
    let deployment = Deployment::new();
    let (alpha, beta, bytes) = begun(&deployment);
    let short = beta.create(&temp(&beta), None, 3).unwrap();
    short.write_at(b"abc", 0).unwrap();
    assert_moved(&resumed(&deployment, &alpha, &beta, &bytes), bytes.len());
}

const HOME: &str = "LONGHAUL_TEST_IN_ORDER_HOME";

fn appending() -> PosixTuning {
    PosixTuning { append_only: true, ..PosixTuning::default() }
}

/// The body of the child process that is killed; not a test of its own.
#[test]
#[ignore = "run by the other tests of this file, as a process"]
fn child() {
    let home = std::env::var(HOME).expect("run by the other tests");
    let deployment = Deployment::at(Path::new(&home));
    let beta = HookedStorage::killed_at(deployment.posix_in("beta", appending()), 8);
    let source = deployment.agent(1, deployment.posix("alpha"));
    let target = deployment.agent(2, beta);
    let bytes = content(1, 30 * CHUNK + 7);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![wish(1, "f", &bytes)]));
    panic!("it was to die, and finished {:?}", target.finished(1));
}

/// The same with files: each process resumes where the killed one stopped.
#[test]
fn killed_processes_resume() {
    let home = tempfile::tempdir().unwrap();
    let bytes = content(1, 30 * CHUNK + 7);
    std::fs::create_dir(home.path().join("alpha")).unwrap();
    std::fs::write(home.path().join("alpha/f"), &bytes).unwrap();
    for _ in 0..3 {
        killed_child("in_order::child", &[(HOME, home.path().as_os_str())]);
    }
    let deployment = Deployment::at(home.path());
    let source = deployment.agent(1, deployment.posix("alpha"));
    let target = deployment.agent(2, deployment.posix_in("beta", appending()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![wish(9, "f", &bytes)]));
    let ends = target.finished(1);
    all_good(&ends);
    assert!(std::fs::read(home.path().join("beta/f")).unwrap() == bytes);
    // Each process completed seven writes, and no chunk had two writers at once.
    let most = (bytes.len() - 21 * CHUNK) as u64 + resent_max(&ends[0]);
    assert!(ends[0].bytes_moved <= most, "{}", ends[0].bytes_moved);
}
