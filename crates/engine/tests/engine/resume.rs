//! Promise 4: progress survives. A child process of this test binary is killed at chosen writes, and the next
//! one resumes.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use longhaul_engine::{AttemptOutcome, FetchFile};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AttemptId, FaultCode};
use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::memory::{FaultyStore, UnflushedNames};

use crate::common::{Agent, Deployment, assert_moved, content, killed_child, resent_max, wish};

const CHUNK: usize = CHUNK_BYTES as usize;
const SMALL: u64 = 60;

/// The directory of the killed process, and the write at which it dies.
const HOME: &str = "LONGHAUL_TEST_HOME";
const DIES_AT: &str = "LONGHAUL_TEST_DIES_AT";

fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("large".to_owned(), content(1, 30 * CHUNK + 7))];
    files.extend(
        (2..2 + SMALL).map(|number| (format!("small/{number}"), content(number, 40_000 + number as usize))),
    );
    files
}

fn wishes(first: u64) -> Vec<FetchFile> {
    files().iter().zip(first..).map(|((lfn, bytes), number)| wish(number, lfn, bytes)).collect()
}

fn make_source(home: &Path) {
    for (lfn, bytes) in files() {
        let path = home.join("alpha").join(lfn);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

fn is_right(home: &Path) {
    for (lfn, bytes) in files() {
        assert!(std::fs::read(home.join("beta").join(&lfn)).unwrap() == bytes, "{lfn}");
    }
}

/// The body of the child process that is killed; not a test of its own.
#[test]
#[ignore = "run by the other tests of this file, as a process"]
fn child() {
    let home = std::env::var(HOME).expect("run by the other tests");
    let dies_at: u64 = std::env::var(DIES_AT).unwrap().parse().unwrap();
    let deployment = Deployment::at(Path::new(&home));
    let beta = HookedStorage::killed_at(deployment.posix("beta"), dies_at);
    let source = deployment.agent(1, deployment.posix("alpha"));
    let target = deployment.agent(2, beta);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", wishes(1)));
    let ends = target.finished(files().len());
    panic!("it was to die at write {dies_at}, and finished {} files", ends.len());
}

fn killed_at(home: &Path, write: u64) {
    killed_child("resume::child", &[(HOME, home.as_os_str()), (DIES_AT, OsStr::new(&write.to_string()))]);
}

fn moved(ends: &[AttemptOutcome]) -> u64 {
    ends.iter().map(|end| end.bytes_moved).sum()
}

fn all_fetched(deployment: &Deployment, source: &Agent, target: &Agent, first: u64) -> Vec<AttemptOutcome> {
    target.engine.fetch(deployment.batch(source, "alpha", target, "beta", wishes(first)));
    let ends = target.finished(files().len());
    for end in &ends {
        assert!(end.result.is_ok(), "{:?}", end.result);
    }
    ends
}

/// Promises 1 and 4: wherever the target is killed, only what was in flight is fetched again.
#[test]
fn a_killed_target_resumes() {
    let total: u64 = wishes(1).iter().map(|file| file.size).sum();
    for dies_at in [1, 5, 20, 50, 85] {
        let home = tempfile::tempdir().unwrap();
        make_source(home.path());
        killed_at(home.path(), dies_at);
        let deployment = Deployment::at(home.path());
        let source = deployment.agent(1, deployment.posix("alpha"));
        let target = deployment.agent(2, deployment.posix("beta"));
        let ends = all_fetched(&deployment, &source, &target, 1_000);
        is_right(home.path());
        // Writes completed before the kill are not fetched again, except for those of two writers in the
        // middle of one. A pack is journalled as a whole, so that a kill in the middle of one costs all its
        // files.
        let pack = CHUNK as u64;
        let least_kept = dies_at.saturating_sub(2) * 40_000;
        let again = ends.iter().map(resent_max).max().unwrap_or(0);
        assert!(
            moved(&ends) <= total - least_kept + 2 * pack + again,
            "killed at {dies_at}: {} of {total}",
            moved(&ends)
        );
        target.engine.stop();
        assert_eq!(deployment.posix("beta").temps().unwrap(), vec![], "no temporary file stays");
    }
}

/// After many kills, the total transferred bytes stay close to the file sizes.
#[test]
fn many_kills_refetch_little() {
    let home = tempfile::tempdir().unwrap();
    make_source(home.path());
    for _ in 0..12 {
        // Most of these writes may belong to a pack, which is journalled as a whole, so that none of them
        // counts.
        killed_at(home.path(), 12);
    }
    let deployment = Deployment::at(home.path());
    let source = deployment.agent(1, deployment.posix("alpha"));
    let target = deployment.agent(2, deployment.posix("beta"));
    let ends = all_fetched(&deployment, &source, &target, 1_000);
    is_right(home.path());
    let total: u64 = wishes(1).iter().map(|file| file.size).sum();
    assert!(moved(&ends) < total / 2, "{} of {total} were still to move after twelve rounds", moved(&ends));
}

/// Parts of a source file that has changed since are not mixed with the new version.
#[test]
fn a_source_changed_between_attempts_starts_from_scratch() {
    let home = tempfile::tempdir().unwrap();
    make_source(home.path());
    killed_at(home.path(), 10);
    // The same content with another modification time: not known to be the same file.
    std::fs::remove_file(home.path().join("alpha/large")).unwrap();
    std::fs::write(home.path().join("alpha/large"), &files()[0].1).unwrap();
    let deployment = Deployment::at(home.path());
    let source = deployment.agent(1, deployment.posix("alpha"));
    let target = deployment.agent(2, deployment.posix("beta"));
    let ends = all_fetched(&deployment, &source, &target, 1_000);
    assert_moved(&ends[0], files()[0].1.len());
    is_right(home.path());
}

/// The content of a temporary file is verified before it is trusted.
#[test]
fn damaged_leftovers_are_fetched_again() {
    let home = tempfile::tempdir().unwrap();
    make_source(home.path());
    killed_at(home.path(), 20);
    let deployment = Deployment::at(home.path());
    let beta = deployment.posix("beta");
    for temp in beta.temps().unwrap() {
        let size = 64 << 20;
        let file = beta.reopen(&temp, size).unwrap().unwrap();
        let mut byte = [0];
        for offset in (0..size).step_by(5_000) {
            if file.read_at(&mut byte, offset).unwrap() == 1 {
                file.write_at(&[!byte[0]], offset).unwrap();
            }
        }
    }
    let source = deployment.agent(1, deployment.posix("alpha"));
    let target = deployment.agent(2, deployment.posix("beta"));
    all_fetched(&deployment, &source, &target, 1_000);
    is_right(home.path());
}

/// A stop in the middle leaves what a kill leaves, and does not touch temporary files of others.
#[test]
fn a_stopped_engine_resumes_and_leaves_others_alone() {
    let deployment = Deployment::new();
    let (alpha, beta) =
        (FaultyStore::new("alpha".parse().unwrap()), FaultyStore::new("beta".parse().unwrap()));
    // More than is there at the stop and in flight.
    let bytes = content(1, 40 * CHUNK);
    alpha.put("f", &bytes);
    let others = longhaul_storage::TempName::from_bytes([0xab; 16]);
    longhaul_storage::Storage::create(&beta, &others, None, 3).unwrap();
    let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), &[10]);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, hooked);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![wish(1, "f", &bytes)]));
    gate.wait();
    target.engine.set_limits(Some(1), None);
    gate.open();
    target.engine.stop();
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![wish(2, "f", &bytes)]));
    let end = &target.finished(1)[0];
    assert!(end.result.is_ok() && end.bytes_moved <= 32 * CHUNK as u64 + resent_max(end), "{end:?}");
    assert!(beta.contents("f").unwrap() == bytes);
    assert_eq!(longhaul_storage::Storage::temps(&beta).unwrap(), vec![others]);
}

/// Promise 4 after a power failure: unflushed data is not trusted, and reported files are there.
#[test]
fn nothing_is_reported_before_it_is_durable() {
    let deployment = Deployment::new();
    let (alpha, beta) =
        (FaultyStore::new("alpha".parse().unwrap()), FaultyStore::new("beta".parse().unwrap()));
    let files: Vec<FetchFile> = (0..200u64)
        .map(|number| {
            let bytes = content(number, if number % 50 == 0 { 3 * CHUNK } else { 1_000 });
            alpha.put(&format!("f{number}"), &bytes);
            wish(number, &format!("f{number}"), &bytes)
        })
        .collect();
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    for part in files.chunks(20) {
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", part.to_vec()));
    }
    for _ in &files {
        let end = &target.finished(1)[0];
        assert!(end.result.is_ok(), "{:?}", end.result);
        for names in [UnflushedNames::Kept, UnflushedNames::Lost] {
            let name = format!("f{}", end.attempt.0);
            assert!(beta.after_power_cut(names).contents(&name) == alpha.contents(&name), "{name}");
        }
    }
}

/// The source is killed and restarted: the session continues with it.
#[test]
fn a_session_survives_a_restart_of_the_source() {
    let deployment = Deployment::new();
    let (alpha, beta) =
        (FaultyStore::new("alpha".parse().unwrap()), FaultyStore::new("beta".parse().unwrap()));
    let bytes = content(1, 40 * CHUNK);
    alpha.put("f", &bytes);
    alpha.put("g", b"small");
    let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), &[10]);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, hooked);
    let listen = source.engine.data_addresses()[0];
    let files = vec![wish(1, "f", &bytes), wish(2, "g", b"small")];
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files));
    gate.wait();
    source.engine.stop();
    gate.open();
    let source = deployment.agent_with(1, vec![Arc::new(alpha)], |config| config.listen = vec![listen]);
    let ends = target.finished(2);
    assert!(ends.iter().all(|end| end.result.is_ok()), "{ends:?}");
    assert!(beta.contents("f").unwrap() == bytes);
    assert!(ends[0].bytes_resent <= 24 * CHUNK as u64);
    source.engine.stop();
}

/// A source that stays away is a network fault, and what has arrived is kept for the next attempt.
#[test]
fn partial_files_survive_an_absent_source() {
    let deployment = Deployment::new();
    let (alpha, beta) =
        (FaultyStore::new("alpha".parse().unwrap()), FaultyStore::new("beta".parse().unwrap()));
    let bytes = content(1, 40 * CHUNK);
    alpha.put("f", &bytes);
    let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), &[10]);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, hooked);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![wish(1, "f", &bytes)]));
    gate.wait();
    source.engine.stop();
    gate.open();
    let end = &target.finished(1)[0];
    assert_eq!(end.result.as_ref().unwrap_err().code, FaultCode::ConnectionLost);
    let source = deployment.agent(1, Arc::new(alpha));
    let again = FetchFile { attempt: AttemptId(2), ..wish(1, "f", &bytes) };
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![again]));
    let end = &target.finished(1)[0];
    assert!(end.result.is_ok() && end.bytes_moved <= 32 * CHUNK as u64 + resent_max(end), "{end:?}");
}
