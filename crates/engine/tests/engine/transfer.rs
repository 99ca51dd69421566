//! Files arrive whole, verified and once, for all sizes, digests and batch compositions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use longhaul_engine::{AttemptOutcome, FetchFile};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Algorithm, Blame, DataSecurity, DigestSet, Fault, FaultCode, Retry, Verification};
use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::memory::FaultyStore;
use longhaul_testkit::wait_until;

use crate::common::{Agent, Deployment, assert_moved, content, digests, resent_max, store, wish};

const CHUNK: usize = CHUNK_BYTES as usize;

/// Puts a file with content of its own into a store.
fn put(store: &FaultyStore, number: u64, len: usize) -> FetchFile {
    let bytes = content(number, len);
    let lfn = format!("dir{}/file {number}\nü", number % 5);
    store.put(&lfn, &bytes);
    wish(number, &lfn, &bytes)
}

fn all_good(ends: &[AttemptOutcome]) {
    for end in ends {
        assert!(end.result.is_ok(), "{}: {:?}", end.attempt, end.result);
        let times = end.times;
        assert!(times.started.is_some() && times.committed.is_some(), "{times:?}");
        assert!(times.received <= times.started.unwrap() && times.started <= times.committed, "{times:?}");
    }
}

fn same_content(source: &FaultyStore, target: &FaultyStore, files: &[FetchFile]) {
    for file in files {
        let name = file.lfn.as_str();
        assert!(source.contents(name) == target.contents(name), "{}", file.lfn.shown());
    }
}

/// The source counts these bytes as sent, and no more than were lawfully sent again.
fn assert_sent(source: &Agent, bytes: u64, again: u64) {
    let sent = || source.engine.snapshot().bytes_out;
    wait_until(|| sent() >= bytes, || format!("{} of {bytes} bytes are sent", sent()));
    assert!(sent() <= bytes + again, "{} bytes for {bytes} are sent", sent());
}

/// Promises 1, 2 and 7.
#[test]
fn files_of_all_sizes_arrive() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let mut sizes = vec![0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 40 * CHUNK + 17];
    sizes.extend((0..700).map(|n| n * 97 % 70_000));
    let files: Vec<FetchFile> =
        sizes.iter().zip(1..).map(|(&len, number)| put(&alpha, number, len)).collect();
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    let total: u64 = files.iter().map(|file| file.size).sum();
    // In several batches, as leases come.
    for part in files.chunks(90) {
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", part.to_vec()));
    }
    let ends = target.finished(files.len());
    all_good(&ends);
    same_content(&alpha, &beta, &files);
    assert_eq!(beta.names().len(), files.len(), "nothing but what was asked for");
    for (end, file) in ends.iter().zip(&files) {
        let success = end.result.as_ref().unwrap();
        assert_eq!(success.verification, Verification::EndToEnd);
        assert!(
            success.digests.comparable(&file.digests)
                && success.digests.contradiction(&file.digests).is_none()
        );
        assert_moved(end, file.size as usize);
        assert_eq!((end.bytes_resent, success.already_there), (end.bytes_moved - file.size, false));
    }
    let again = ends.iter().map(resent_max).max().unwrap_or(0);
    let snapshot = || target.engine.snapshot();
    let is_settled = || snapshot().bytes_in >= total && snapshot().buffers_used == 0;
    wait_until(is_settled, || format!("{total} bytes: {:?}", snapshot()));
    let snapshot = snapshot();
    assert!(snapshot.bytes_in <= total + again, "{total} bytes: {snapshot:?}");
    assert!(snapshot.running.is_empty() && snapshot.waiting == 0);
    assert!(snapshot.buffers_peak <= 24, "{snapshot:?}");
    assert_sent(&source, total, again);
}

/// In both record layers, without a lost stream or a byte sent twice; 20 MB are 1,280 TLS records, or about
/// 120 authenticated ones.
#[test]
fn keys_are_updated_in_mid_transfer() {
    for security in [DataSecurity::Tls, DataSecurity::Authenticated] {
        let deployment = Deployment::new();
        let (alpha, beta) = (store("alpha"), store("beta"));
        let with = |config: &mut longhaul_engine::Config| {
            config.data_security = security;
            config.path.records_per_key = Some(16);
        };
        let source = deployment.agent_with(1, vec![Arc::new(alpha.clone())], with);
        let target = deployment.agent_with(2, vec![Arc::new(beta.clone())], with);
        let mut files = vec![put(&alpha, 1, 20 * CHUNK)];
        files.extend((2..300).map(|number| put(&alpha, number, 9_000)));
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
        let ends = target.finished(files.len());
        all_good(&ends);
        same_content(&alpha, &beta, &files);
        assert!(ends.iter().all(|end| end.bytes_resent <= resent_max(end)), "{security:?}");
    }
}

/// Data threads run on the configured cores; a core that does not exist is harmless.
#[test]
fn data_threads_are_pinned_if_configured() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let source =
        deployment.agent_with(1, vec![Arc::new(alpha.clone())], |config| config.cores = vec![100_000]);
    let target = deployment.agent_with(2, vec![Arc::new(beta)], |config| config.cores = vec![0]);
    let file = put(&alpha, 1, 3 * CHUNK);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file]));
    all_good(&target.finished(1));
    let is_pinned = |status: &str| {
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().nth(1).unwrap_or_default().to_owned()
        };
        field("Name:").starts_with("data-") && field("Cpus_allowed_list:") == "0"
    };
    let pinned = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let status = |thread: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default()
        };
        threads.map(status).filter(|status| is_pinned(status)).count()
    };
    // One network thread, two writers and two readers, each of which pins itself when it begins to run. With
    // one core nothing can be observed.
    let many = std::thread::available_parallelism().unwrap().get() > 1;
    wait_until(|| pinned() == 5 || !many && pinned() > 5, || format!("{} threads are pinned", pinned()));
}

/// Promise 2: each kind of digest is verified, and the outcome says how.
#[test]
fn every_digest_and_verification_works() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let mut files = Vec::new();
    let mut expected = Vec::new();
    for len in [0, 1_000, 3 * CHUNK + 5] {
        for algorithm in Algorithm::ALL.iter().map(|&algorithm| vec![algorithm]).chain([vec![]]) {
            for asked in [Verification::Wire, Verification::EndToEnd, Verification::Readback] {
                let number = files.len() as u64;
                let mut file = put(&alpha, number, len);
                file.digests = digests(&content(number, len), &algorithm);
                file.verification = asked;
                files.push(file);
                expected.push(match (algorithm.is_empty(), asked) {
                    (true, Verification::Wire) => Verification::Wire,
                    (_, Verification::Readback) => Verification::Readback,
                    _ => Verification::EndToEnd,
                });
            }
        }
    }
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
    let ends = target.finished(files.len());
    all_good(&ends);
    same_content(&alpha, &beta, &files);
    for ((end, expected), file) in ends.iter().zip(expected).zip(&files) {
        assert_eq!(end.result.as_ref().unwrap().verification, expected, "{file:?}");
    }
}

#[test]
fn concurrent_fetches_in_both_directions_do_not_deadlock() {
    let deployment = Deployment::new();
    let (alpha, beta, gamma) = (store("alpha"), store("beta"), store("gamma"));
    let from = |store: &FaultyStore, first: u64| -> Vec<FetchFile> {
        (first..first + 40)
            .map(|number| put(store, number, (number as usize * 131_071) % (5 * CHUNK)))
            .collect()
    };
    let (from_alpha, from_beta, from_gamma) = (from(&alpha, 1), from(&beta, 101), from(&gamma, 201));
    // Little memory: two engines that fetch from each other must not deadlock on each other's buffers.
    let small = |config: &mut longhaul_engine::Config| config.memory_bytes = 1;
    let a = deployment.agent_with(1, vec![Arc::new(alpha.clone())], small);
    let b = deployment.agent_with(2, vec![Arc::new(beta.clone())], small);
    let c = deployment.agent_with(3, vec![Arc::new(gamma.clone())], small);
    b.engine.fetch(deployment.batch(&a, "alpha", &b, "beta", from_alpha.clone()));
    b.engine.fetch(deployment.batch(&c, "gamma", &b, "beta", from_gamma.clone()));
    a.engine.fetch(deployment.batch(&b, "beta", &a, "alpha", from_beta.clone()));
    all_good(&b.finished(80));
    all_good(&a.finished(40));
    same_content(&alpha, &beta, &from_alpha);
    same_content(&gamma, &beta, &from_gamma);
    same_content(&beta, &alpha, &from_beta);
    for agent in [&a, &b, &c] {
        let snapshot = agent.engine.snapshot();
        assert!(snapshot.buffers_peak <= 8 && snapshot.buffers_total == 8, "{snapshot:?}");
    }
}

/// Promise 1: a good replica is never touched, and a different file of that name is never replaced.
#[test]
fn existing_files_are_compared_and_never_replaced() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let files: Vec<FetchFile> =
        [100, 200, 3 * CHUNK, 0].iter().zip(1..).map(|(&len, number)| put(&alpha, number, len)).collect();
    let names: Vec<&str> = files.iter().map(|file| file.lfn.as_str()).collect();
    beta.put(names[0], &alpha.contents(names[0]).unwrap());
    beta.put(names[1], &content(99, 200));
    beta.put(names[2], b"short");
    beta.put(names[3], b"");
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
    let ends = target.finished(4);
    for there in [0, 3] {
        let success = ends[there].result.as_ref().unwrap();
        assert!(success.already_there && ends[there].bytes_moved == 0);
    }
    assert_eq!(ends[1].result.as_ref().unwrap_err().code, FaultCode::NameClash);
    assert_eq!(ends[2].result.as_ref().unwrap_err().code, FaultCode::NameClash);
    assert_eq!(beta.contents(names[1]).unwrap(), content(99, 200));
    assert_eq!(beta.contents(names[2]).unwrap(), b"short");
    assert_eq!(source.engine.snapshot().bytes_out, 0);
}

/// A file that the catalog knows to be damaged gives way to a verified one; a right file of that name stays
/// as it is, and so does a damaged one for which nothing right arrives.
#[test]
fn a_damaged_file_is_replaced_by_a_verified_one() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let lengths = [200, 3 * CHUNK, 3 * CHUNK, 300, 400, 500];
    let mut files: Vec<FetchFile> =
        lengths.iter().zip(1..).map(|(&len, number)| put(&alpha, number, len)).collect();
    files.iter_mut().for_each(|file| file.replaces_damaged = true);
    files[4].digests = DigestSet::default();
    let names: Vec<String> = files.iter().map(|file| file.lfn.as_str().to_owned()).collect();
    let right: Vec<Vec<u8>> = names.iter().map(|name| alpha.contents(name).unwrap()).collect();
    beta.put(&names[0], &content(99, 200));
    beta.put(&names[1], b"truncated");
    beta.put(&names[2], &content(99, 3 * CHUNK));
    beta.put(&names[3], &right[3]);
    beta.put(&names[4], &content(99, 400));
    beta.put(&names[5], &content(99, 500));
    alpha.put(&names[5], &content(98, 500));
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files));
    let ends = target.finished(6);
    for damaged in [0, 1, 2] {
        let success = ends[damaged].result.as_ref().unwrap();
        assert!(!success.already_there, "{damaged}");
        assert_eq!(beta.contents(&names[damaged]).unwrap(), right[damaged], "{damaged}");
    }
    assert!(ends[3].result.as_ref().unwrap().already_there && ends[3].bytes_moved == 0);
    assert_eq!(ends[4].result.as_ref().unwrap_err().code, FaultCode::NameClash, "nothing proves it right");
    assert_eq!(beta.contents(&names[4]).unwrap(), content(99, 400));
    assert_eq!(ends[5].result.as_ref().unwrap_err().code, FaultCode::WrongDigest, "the source is bad too");
    assert_eq!(beta.contents(&names[5]).unwrap(), content(99, 500), "the damaged file stays until then");
}

/// Only those chunks of a damaged copy that differ are sent, whatever digest the catalog has.
#[test]
fn a_repair_costs_the_damaged_chunks() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let len = 20 * CHUNK + 5;
    let mut files: Vec<FetchFile> = (1..=5).map(|number| put(&alpha, number, len)).collect();
    let right: Vec<Vec<u8>> = files.iter().map(|file| alpha.contents(file.lfn.as_str()).unwrap()).collect();
    for (file, algorithm) in
        files.iter_mut().zip([Algorithm::Adler32, Algorithm::Crc32c, Algorithm::Md5, Algorithm::Blake3])
    {
        file.digests = digests(&right[file.attempt.0 as usize - 1], &[algorithm]);
    }
    for (file, bytes) in files.iter_mut().zip(&right) {
        file.replaces_damaged = true;
        let mut damaged = bytes.clone();
        damaged[3 * CHUNK + 7] ^= 1;
        damaged[len - 1] ^= 0x80;
        beta.put(file.lfn.as_str(), &damaged);
    }
    // A copy may also be too short: what lies beyond its end is missing.
    beta.put(files[4].lfn.as_str(), &right[4][..10 * CHUNK + CHUNK / 2]);
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
    let ends = target.finished(5);
    for (end, file) in ends.iter().zip(&files) {
        let success = end.result.as_ref().unwrap();
        assert!(!success.already_there && file.digests.contradiction(&success.digests).is_none(), "{end:?}");
        let there = beta.contents(file.lfn.as_str()).unwrap();
        assert!(there == right[end.attempt.0 as usize - 1], "{}", file.lfn);
    }
    // One chunk, and the last of 5 bytes.
    let spoilt = [CHUNK + 5, CHUNK + 5, CHUNK + 5, CHUNK + 5, 10 * CHUNK + 5];
    ends.iter().zip(spoilt).for_each(|(end, bytes)| assert_moved(end, bytes));
    let again = ends.iter().map(resent_max).max().unwrap_or(0);
    assert_sent(&source, spoilt.iter().sum::<usize>() as u64, again);
}

/// The digest of a damaged copy and the checksums of its chunks come of one read. A chunk that cannot be read
/// is fetched, and those behind it are compared as well.
#[test]
fn a_damaged_copy_is_read_once_before_it_is_repaired() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let mut file = put(&alpha, 1, 20 * CHUNK);
    file.replaces_damaged = true;
    let right = alpha.contents(file.lfn.as_str()).unwrap();
    let mut damaged = right.clone();
    [3, 7].into_iter().for_each(|chunk| damaged[chunk * CHUNK + 7] ^= 1);
    beta.put(file.lfn.as_str(), &damaged);
    let reads: Arc<Mutex<BTreeMap<u64, usize>>> = Arc::default();
    let counted = reads.clone();
    let hooked = HookedStorage::new(Arc::new(beta.clone()), |_| ());
    hooked.set_read_hook(move |_, offset| {
        let chunk = offset / CHUNK as u64;
        *counted.lock().unwrap().entry(chunk).or_default() += 1;
        if chunk == 5 { Err(Fault::new(FaultCode::SourceUnreadable, "a bad sector")) } else { Ok(()) }
    });
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, hooked);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file.clone()]));
    let end = target.finished(1).remove(0);
    assert!(end.result.is_ok(), "{end:?}");
    assert_moved(&end, 3 * CHUNK);
    assert!(beta.contents(file.lfn.as_str()).unwrap() == right);
    let reads = reads.lock().unwrap();
    assert_eq!((reads.get(&3), reads.get(&7)), (Some(&1), Some(&1)), "{reads:?}");
}

/// A damage that the checksum of its chunk does not show is found by the digest of the file; the next attempt
/// takes nothing from the damaged copy.
#[test]
fn a_copy_that_misled_once_is_fetched_whole() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let mut file = put(&alpha, 1, 4 * CHUNK);
    let right = alpha.contents(file.lfn.as_str()).unwrap();
    file.digests = digests(&right, &[Algorithm::Sha256]);
    file.replaces_damaged = true;
    let mut damaged = right.clone();
    // A multiple of the generator polynomial (0x1EDC6F41, bit-reflected) leaves a CRC-32C as it is.
    for (place, byte) in [0xf1_u8, 0x76, 0xec, 0x05, 0x01].into_iter().enumerate() {
        damaged[2 * CHUNK + 100 + place] ^= byte;
    }
    assert_eq!(digests(&damaged, &[Algorithm::Crc32c]), digests(&right, &[Algorithm::Crc32c]));
    beta.put(file.lfn.as_str(), &damaged);
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file.clone()]));
    let first = target.finished(1).remove(0);
    let fault = first.result.unwrap_err();
    let expected = (FaultCode::WrongDigest, Blame::Target, Retry::Now);
    assert_eq!((fault.code, fault.blame, fault.retry), expected, "the source is not to blame");
    assert_eq!(first.bytes_moved, 0);
    assert!(beta.contents(file.lfn.as_str()).unwrap() == damaged, "nothing wrong replaces it");
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file.clone()]));
    let second = target.finished(1).remove(0);
    assert!(second.result.is_ok(), "{second:?}");
    assert_moved(&second, 4 * CHUNK);
    assert!(beta.contents(file.lfn.as_str()).unwrap() == right);
}

#[test]
fn transfers_work_with_the_posix_adapter() {
    let deployment = Deployment::new();
    let storage = deployment.posix("alpha");
    let make = |number: u64, len: usize| {
        let bytes = content(number, len);
        let lfn = format!("deep/{number}/er/file");
        let path = deployment.directory.join("alpha").join(&lfn);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        wish(number, &lfn, &bytes)
    };
    let files: Vec<FetchFile> =
        (1..300).map(|number| make(number, (number as usize * 7_919) % (2 * CHUNK))).collect();
    let source = deployment.agent(1, storage);
    let target = deployment.agent(2, deployment.posix("beta"));
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
    all_good(&target.finished(files.len()));
    for file in &files {
        let read =
            |side: &str| std::fs::read(deployment.directory.join(side).join(file.lfn.as_str())).unwrap();
        assert!(read("alpha") == read("beta"), "{}", file.lfn);
    }
    assert_eq!(deployment.posix("beta").temps().unwrap(), vec![], "no temporary file stays");
}

/// An idle session is reused, and stopping an engine releases every waiter.
#[test]
fn idle_sessions_are_reused() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    for round in 0..20 {
        let file = put(&alpha, round, 1 + round as usize * 100_000);
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file]));
        all_good(&target.finished(1));
    }
    // After certificate renewal, new fetches use new streams of the same session.
    for agent in [&source, &target] {
        agent.engine.renew_credentials(&deployment.credentials(agent.agent)).unwrap();
    }
    stop(source);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let file = put(&alpha, 50, 3 * CHUNK);
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file]));
    all_good(&target.finished(1));
    stop(source);
    stop(target);
    assert_eq!(beta.names().len(), 21);
}

fn stop(agent: Agent) {
    agent.engine.stop();
}
