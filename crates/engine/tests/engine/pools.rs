//! A target of several disks: what comes for one of them waits for it and for no other.

use std::sync::Arc;
use std::time::Duration;

use longhaul_engine::FetchFile;
use longhaul_model::PoolState;
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_storage::hooked::{HookedStorage, WriteGate};
use longhaul_storage::memory::FaultyStore;
use longhaul_storage::{PoolOptions, PooledStorage, Storage};

use crate::common::{Deployment, content, store, wish};

const CHUNK: usize = CHUNK_BYTES as usize;
const FILES: u64 = 24;
/// Files that come before the pool is known to do nothing, and those that were under way then.
const HELD_FILES_MAX: u64 = 8;

/// Two pools, of which one writes nothing before its gate is open.
fn pools() -> (Arc<PooledStorage>, WriteGate, [FaultyStore; 2]) {
    let stores = [store("beta"), store("beta")];
    let (held, gate) = HookedStorage::gated(Arc::new(stores[0].clone()), &[0]);
    let storages: [Arc<dyn Storage>; 2] = [held, Arc::new(stores[1].clone())];
    let pool = |(number, storage): (usize, Arc<dyn Storage>)| PoolOptions {
        name: format!("disk{number}"),
        open: Box::new(move || Ok(storage.clone())),
        state: PoolState::Open,
    };
    let pools = storages.into_iter().enumerate().map(pool).collect();
    let clock = Arc::new(|| Duration::ZERO);
    (Arc::new(PooledStorage::open("beta".parse().unwrap(), pools, clock).unwrap()), gate, stores)
}

/// Files of these sizes are brought, all but a few of them while one of the disks does nothing.
fn bring(len: impl Fn(u64) -> usize) {
    let deployment = Deployment::new();
    let alpha = store("alpha");
    let files: Vec<FetchFile> = (1..=FILES)
        .map(|number| {
            let (name, bytes) = (format!("f{number}"), content(number, len(number)));
            alpha.put(&name, &bytes);
            wish(number, &name, &bytes)
        })
        .collect();
    let (beta, gate, stores) = pools();
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent(2, beta.clone());
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", files.clone()));
    let without = target.finished((FILES - HELD_FILES_MAX) as usize);
    assert!(without.iter().all(|end| end.result.is_ok()), "{without:?}");
    assert!(files.iter().all(|file| stores[0].contents(file.lfn.as_str()).is_none()), "the disk is held");
    gate.open();
    let rest = target.finished(HELD_FILES_MAX as usize);
    assert!(rest.iter().all(|end| end.result.is_ok()), "{rest:?}");
    let mut by_disk = [0; 2];
    for file in &files {
        let name = file.lfn.as_str();
        let copies = [0, 1].map(|disk| stores[disk].contents(name));
        let disk = copies.iter().position(Option::is_some).expect("it is there");
        assert!(copies[disk] == alpha.contents(name) && copies[1 - disk].is_none(), "{name}");
        by_disk[disk] += 1;
    }
    assert!(by_disk[0] > 0 && by_disk[1] > by_disk[0], "{by_disk:?}");
    assert!(beta.pools().iter().all(|pool| pool.waiting_bytes == 0), "{:?}", beta.pools());
    source.engine.stop();
    target.engine.stop();
}

#[test]
fn large_files_do_not_wait_for_the_disks_of_others() {
    bring(|number| 10 * CHUNK + number as usize);
}

#[test]
fn small_files_do_not_wait_for_the_disks_of_others() {
    bring(|number| CHUNK - 1_000 * number as usize);
}
