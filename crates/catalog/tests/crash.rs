//! Crash recovery: a process that dies leaves the database file and its write-ahead log as they are. Copies
//! of both, taken at arbitrary moments of running work, stand for that. Each must open, be sound, and contain
//! everything that was acknowledged before the copy began.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longhaul_catalog::conformance::{ALPHA, BETA, NOW, World, agent, new_file};
use longhaul_catalog::{Catalog, ManifestError};
use longhaul_model::{Fault, FaultCode};

const FILES: u64 = 600;
const COPIES: usize = 15;

/// Promise 3: an accepted request is never forgotten, and results are applied exactly once.
#[test]
fn a_copy_at_any_moment_is_sound_and_has_what_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.db");
    let catalog = Catalog::open(&path, NOW).unwrap();
    let mut world = World::new(catalog.clone());
    let dataset = world.dataset("a");
    world.register(dataset, 0..FILES, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    let (acknowledged, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mover = &mut world;
            for number in 0..FILES {
                let file = mover.file(dataset, number).id;
                let applied = mover.bring(file, ALPHA, BETA);
                acknowledged.store(applied.acknowledged, Ordering::SeqCst);
            }
            over.store(true, Ordering::SeqCst);
        });
        let mut copies = 0;
        while copies < COPIES && !over.load(Ordering::SeqCst) {
            let known = acknowledged.load(Ordering::SeqCst);
            let copy = directory.path().join(format!("copy-{copies}.db"));
            snapshot(&path, &copy);
            let revived = Catalog::open(&copy, NOW).unwrap();
            let broken: Vec<_> =
                revived.check().unwrap().into_iter().filter(|result| result.violations > 0).collect();
            assert!(broken.is_empty(), "{broken:#?}");
            let stored = revived.acknowledged(agent(BETA)).unwrap();
            assert!(stored >= known, "acknowledged {known}, but only {stored} survived");
            let at_beta = revived.replicas_of_dataset(dataset).unwrap();
            let files =
                at_beta.iter().find(|row| row.storage_name.as_str() == "beta").map_or(0, |row| row.files);
            assert_eq!(files, stored, "each result is recorded once");
            copies += 1;
        }
        assert!(copies > 0, "the campaign was over before the first copy");
    });
    assert_eq!(catalog.replicas_of_dataset(dataset).unwrap()[1].files, FILES);
}

/// Copies the file and its log, again until neither changed in between: a checkpoint writes newer pages into
/// the file and may restart the log.
fn snapshot(from: &Path, to: &Path) {
    let log = |path: &Path| path.with_extension("db-wal");
    loop {
        let salt_before = head(&log(from));
        let file = std::fs::read(from).unwrap();
        let wal = std::fs::read(log(from)).unwrap();
        if head(&log(from)) == salt_before && std::fs::read(from).unwrap() == file {
            std::fs::write(to, file).unwrap();
            std::fs::write(log(to), wal).unwrap();
            return;
        }
    }
}

/// The log's header holds a salt that changes whenever the log restarts.
fn head(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap().into_iter().take(32).collect()
}

/// An uncommitted transaction leaves nothing: the registration stops in the middle, after thousands of rows.
#[test]
fn an_unfinished_registration_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.db");
    let catalog = Catalog::open(&path, NOW).unwrap();
    let world = World::new(catalog.clone());
    let dataset = world.dataset("a");
    let mut broken_off = (0..20_000).map(|number| {
        if number < 19_999 {
            return Ok(new_file(dataset, number, None, number + 1));
        }
        // Copies what is on disk in the middle of the transaction.
        snapshot(&path, &directory.path().join("copy.db"));
        Err(ManifestError {
            line: number + 1,
            fault: Fault::new(FaultCode::ConnectionLost, "the upload broke off"),
        })
    });
    let refused = catalog.add_files(dataset, &mut broken_off, Some(world.storages[ALPHA]), NOW);
    assert!(refused.unwrap_err().to_string().contains("line 20000"));
    for database in [path.clone(), directory.path().join("copy.db")] {
        let revived = Catalog::open(&database, NOW).unwrap();
        assert_eq!(revived.totals().unwrap().files, 0);
        assert!(revived.check().unwrap().iter().all(|result| result.violations == 0));
    }
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.assert_sound();
}
