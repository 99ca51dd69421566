//! Several sources of the same files over real sockets: one sends wrong data, one dies, one never had the
//! files.

use std::sync::Arc;

use longhaul_engine::{FetchBatch, FetchFile, Replica};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AttemptId, DigestSet, FaultCode, Verification};
use longhaul_storage::Storage;
use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::memory::FaultyStore;

use crate::common::{Agent, Deployment, assert_moved, content, resent_max, store, tree, wish};

const CHUNK: usize = CHUNK_BYTES as usize;

/// A file of several sources, verified by its hash tree.
fn checked(number: u64, lfn: &str, bytes: &[u8]) -> FetchFile {
    let tree = tree(bytes);
    let digests: DigestSet = [tree.root()].into_iter().collect();
    FetchFile { digests, tree: Some(tree), ..wish(number, lfn, bytes) }
}

fn replica(
    deployment: &Deployment,
    batch: &FetchBatch,
    source: &Agent,
    from: &str,
    target: &Agent,
) -> Replica {
    let there =
        FetchBatch { source_agent: source.agent, source_storage: from.parse().unwrap(), ..batch.clone() };
    Replica {
        foreign: None,
        agent: source.agent,
        storage: there.source_storage.clone(),
        addresses: source.addresses(),
        permit: deployment.permit(&there, target.agent, |_| {}),
        names: batch.files.iter().map(|file| file.lfn.clone()).collect(),
    }
}

/// Two sources and a target.
struct Three {
    deployment: Deployment,
    stores: [FaultyStore; 2],
    sources: Vec<Agent>,
    target: Agent,
}

impl Three {
    fn new(at: impl FnOnce(&Deployment) -> Arc<dyn Storage>) -> Three {
        let deployment = Deployment::new();
        let stores = [store("alpha"), store("beta")];
        let sources =
            (1..).zip(&stores).map(|(number, store)| deployment.agent(number, Arc::new(store.clone())));
        let sources = sources.collect();
        let target = deployment.agent(3, at(&deployment));
        Three { deployment, stores, sources, target }
    }

    fn batch(&self, files: Vec<FetchFile>) -> FetchBatch {
        let mut batch = self.deployment.batch(&self.sources[0], "alpha", &self.target, "gamma", files);
        batch.replicas = vec![replica(&self.deployment, &batch, &self.sources[1], "beta", &self.target)];
        batch
    }
}

/// Fetches a batch, of which nothing is requested before there is a stream to each of its sources: none
/// brings the whole file while another one shakes hands.
fn fetch_from_all(target: &Agent, batch: FetchBatch) {
    let sources = 1 + batch.replicas.len();
    target.fetch_when(batch, |now| now.streams_in >= sources);
}

fn on_disk(deployment: &Deployment, lfn: &str) -> Vec<u8> {
    std::fs::read(deployment.directory.join("gamma").join(lfn)).unwrap()
}

#[test]
fn both_sources_send_a_share_of_one_file() {
    let three = Three::new(|deployment| deployment.posix("gamma"));
    let bytes = content(1, 90 * CHUNK + 77);
    let small = content(2, 900);
    for store in &three.stores {
        store.put("large", &bytes);
        store.put("small", &small);
    }
    let files = vec![checked(1, "large", &bytes), checked(2, "small", &small)];
    // Slow enough that both are needed.
    three.sources.iter().for_each(|source| source.engine.set_limits(None, Some(60 << 20)));
    fetch_from_all(&three.target, three.batch(files));
    let ends = three.target.finished(2);
    let success = ends[0].result.as_ref().unwrap();
    assert_eq!(success.verification, Verification::EndToEnd);
    assert_eq!(success.digests.get(longhaul_model::Algorithm::Blake3), Some(tree(&bytes).root()));
    let brought: Vec<u64> = ends[0].shares.iter().map(|share| share.bytes).collect();
    assert_eq!(brought.iter().sum::<u64>(), bytes.len() as u64);
    assert!(brought.len() == 2 && brought.iter().all(|bytes| *bytes > 0), "{brought:?}");
    assert_moved(&ends[0], bytes.len());
    assert_eq!(ends[0].bytes_resent, ends[0].bytes_moved - bytes.len() as u64);
    assert!(ends[1].result.is_ok());
    assert_eq!((on_disk(&three.deployment, "large"), on_disk(&three.deployment, "small")), (bytes, small));
}

/// One source has flipped bits in the middle: those ranges come from the other, and the report names the bad
/// source.
#[test]
fn a_bad_range_is_fetched_from_another_source() {
    let three = Three::new(|deployment| deployment.posix("gamma"));
    let bytes = content(1, 60 * CHUNK);
    let mut flipped = bytes.clone();
    let bad: Vec<u64> =
        [10, 16, 23, 31, 38, 45, 52].iter().map(|place| place * u64::from(CHUNK_BYTES)).collect();
    bad.iter().for_each(|&at| flipped[at as usize + 7_777] ^= 0x10);
    three.stores[0].put("f", &flipped);
    three.stores[1].put("f", &bytes);
    // So most of it is requested from the bad source.
    three.sources[1].engine.set_limits(None, Some(30 << 20));
    let small = content(2, 5_000);
    three.stores[0].put("s", &content(3, 5_000));
    three.stores[1].put("s", &small);
    fetch_from_all(&three.target, three.batch(vec![checked(1, "f", &bytes), checked(2, "s", &small)]));
    let ends = three.target.finished(2);
    assert!(ends[0].result.is_ok() && ends[1].result.is_ok(), "{ends:?}");
    assert_eq!((on_disk(&three.deployment, "f"), on_disk(&three.deployment, "s")), (bytes, small));
    let [first, second] = &ends[0].shares[..] else { panic!("{:?}", ends[0].shares) };
    assert!(
        !first.wrong.is_empty()
            && first.wrong.iter().all(|(at, len)| bad.contains(at) && *len == u64::from(CHUNK_BYTES))
    );
    assert!(second.wrong.is_empty() && second.excluded.is_none());
    let again = first.wrong.len() * CHUNK;
    let whole = 60 * CHUNK;
    // Nothing else came twice.
    assert_moved(&ends[0], whole + again);
    assert_eq!(ends[0].bytes_resent, ends[0].bytes_moved - whole as u64);
}

/// A single source has one bad range: it is requested once more, and then the file fails as a whole.
#[test]
fn without_another_source_a_bad_range_fails_the_file() {
    let three = Three::new(|deployment| deployment.posix("gamma"));
    let bytes = content(1, 6 * CHUNK);
    let mut flipped = bytes.clone();
    flipped[3 * CHUNK] ^= 1;
    three.stores[0].put("f", &flipped);
    let batch = FetchBatch { replicas: Vec::new(), ..three.batch(vec![checked(1, "f", &bytes)]) };
    three.target.engine.fetch(batch);
    let end = three.target.finished(1).remove(0);
    let most_again = resent_max(&end);
    let fault = end.result.unwrap_err();
    assert_eq!(fault.code, FaultCode::WrongDigest, "{fault}");
    assert!(fault.detail.contains("bytes 3145728 to 4194304"), "{fault}");
    let again = 2 * u64::from(CHUNK_BYTES);
    assert!((again..=again + most_again).contains(&end.bytes_resent), "{}", end.bytes_resent);
    assert!(!three.deployment.directory.join("gamma/f").exists());
}

#[test]
fn sources_without_the_file_are_excluded_with_a_reason() {
    let three = Three::new(|deployment| deployment.posix("gamma"));
    let bytes = content(1, 40 * CHUNK);
    for name in ["missing", "short", "other"] {
        three.stores[0].put(name, &bytes);
    }
    // Slow enough that the other is asked for more than its share.
    three.sources[0].engine.set_limits(None, Some(30 << 20));
    three.stores[1].put("short", &bytes[1..]);
    three.stores[1].put("other", &content(9, bytes.len()));
    let mut number = 0;
    for (name, code) in [
        ("missing", FaultCode::SourceMissing),
        ("short", FaultCode::SourceTruncated),
        ("other", FaultCode::WrongDigest),
    ] {
        number += 1;
        fetch_from_all(&three.target, three.batch(vec![checked(number, name, &bytes)]));
        let end = three.target.finished(1).remove(0);
        assert!(end.result.is_ok(), "{name}: {:?}", end.result);
        assert_eq!(end.shares[1].excluded.as_ref().map(|fault| fault.code), Some(code), "{name}");
        assert_eq!((end.shares[1].bytes, end.shares[0].bytes), (0, bytes.len() as u64));
        assert_eq!(on_disk(&three.deployment, name), bytes);
    }
}

/// Promise 4: what one source had not sent when it died comes from the other.
#[test]
fn a_source_dies_in_mid_file() {
    let deployment = Deployment::new();
    let (target_store, gate) = HookedStorage::gated(deployment.posix("gamma"), &[30]);
    let bytes = content(1, 120 * CHUNK);
    let stores = [store("alpha"), store("beta")];
    stores.iter().for_each(|store| store.put("f", &bytes));
    let first = deployment.agent(1, Arc::new(stores[0].clone()));
    let second = deployment.agent(2, Arc::new(stores[1].clone()));
    let target = deployment.agent(3, target_store);
    let mut batch = deployment.batch(&first, "alpha", &target, "gamma", vec![checked(1, "f", &bytes)]);
    batch.replicas = vec![replica(&deployment, &batch, &second, "beta", &target)];
    target.engine.fetch(batch);
    gate.wait();
    first.engine.stop();
    gate.open();
    let end = target.finished(1).remove(0);
    assert!(end.result.is_ok(), "{end:?}");
    assert_eq!(on_disk(&deployment, "f"), bytes);
    assert_eq!(end.shares.iter().map(|share| share.bytes).sum::<u64>(), bytes.len() as u64);
    let in_flight = 64 << 20;
    assert!(end.bytes_resent <= in_flight, "{}", end.bytes_resent);
}

/// Parts verified with the hash tree stay valid, whoever sent them: another attempt continues with another
/// set of sources.
#[test]
fn a_transfer_continues_with_other_sources() {
    let deployment = Deployment::new();
    let (target_store, gate) = HookedStorage::gated(deployment.posix("gamma"), &[25]);
    let bytes = content(1, 60 * CHUNK);
    let stores = [store("alpha"), store("beta"), store("delta")];
    stores.iter().for_each(|store| store.put("f", &bytes));
    let sources: Vec<Agent> =
        (1..).zip(&stores).map(|(number, store)| deployment.agent(number, Arc::new(store.clone()))).collect();
    let target = deployment.agent(9, target_store);
    let mut batch = deployment.batch(&sources[0], "alpha", &target, "gamma", vec![checked(1, "f", &bytes)]);
    batch.replicas = vec![replica(&deployment, &batch, &sources[1], "beta", &target)];
    target.engine.fetch(batch);
    gate.wait();
    // So that no more is requested than is in flight.
    target.engine.set_limits(Some(1), None);
    gate.open();
    target.engine.stop();
    let target = deployment.agent(9, deployment.posix("gamma"));
    let again = FetchFile { attempt: AttemptId(2), ..checked(1, "f", &bytes) };
    let mut batch = deployment.batch(&sources[2], "delta", &target, "gamma", vec![again]);
    batch.replicas = vec![replica(&deployment, &batch, &sources[1], "beta", &target)];
    target.engine.fetch(batch);
    let end = target.finished(1).remove(0);
    assert!(end.result.is_ok(), "{end:?}");
    assert!(end.bytes_moved <= (37 << 20) + resent_max(&end), "{} moved of 60 MiB", end.bytes_moved);
    assert_eq!(on_disk(&deployment, "f"), bytes);
}

/// A source of another deployment is dialled with credentials of that deployment, and no other agent can
/// impersonate it.
#[test]
fn sources_of_two_deployments_are_used() {
    let (ours, theirs) = (Deployment::new(), Deployment::new());
    let bytes = content(1, 50 * CHUNK);
    let stores = [store("alpha"), store("beta")];
    stores.iter().for_each(|store| store.put("f", &bytes));
    let first = ours.agent(1, Arc::new(stores[0].clone()));
    // The same number as the other agent: deployments number their agents independently.
    let second = theirs.agent(1, Arc::new(stores[1].clone()));
    let target = ours.agent(3, ours.posix("gamma"));
    let batch = ours.batch(&first, "alpha", &target, "gamma", vec![checked(1, "f", &bytes)]);
    let there = replica(&theirs, &batch, &second, "beta", &target);
    let membership = target.engine.join_deployment("test", &theirs.credentials(target.agent)).unwrap();
    let joined = Replica { foreign: Some(membership), ..there.clone() };
    fetch_from_all(&target, FetchBatch { replicas: vec![joined], ..batch });
    let end = target.finished(1).remove(0);
    assert!(end.result.is_ok() && end.shares.iter().all(|share| share.bytes > 0), "{end:?}");
    // Without the credentials the other source is refused: the first one sends everything.
    let lone = FetchFile { attempt: AttemptId(2), ..checked(2, "f2", &bytes) };
    stores.iter().for_each(|store| store.put("f2", &bytes));
    let batch = ours.batch(&first, "alpha", &target, "gamma", vec![lone]);
    target.engine.fetch(FetchBatch { replicas: vec![there], ..batch });
    let end = target.finished(1).remove(0);
    assert!(end.result.is_ok() && end.shares[0].bytes == bytes.len() as u64, "{end:?}");
}
