use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::conformance;
use crate::hooked::HookedStorage;
use crate::{FlushPolicy, Posix, PosixOptions};

const NAME: &str = "alpha";

/// Directories that stand for disks.
struct Disks(TempDir, usize);

impl Disks {
    fn new(count: usize) -> Disks {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..count {
            fs::create_dir(folder.path().join(format!("disk{number}"))).unwrap();
        }
        Disks(folder, count)
    }

    fn path(&self, number: usize) -> PathBuf {
        self.0.path().join(format!("disk{number}"))
    }

    fn pool(&self, number: usize, state: PoolState) -> PoolOptions {
        let root = self.path(number);
        let open = move || Ok(Arc::new(posix(&root)?) as Arc<dyn Storage>);
        PoolOptions { name: format!("disk{number}"), open: Box::new(open), state }
    }

    fn open(&self) -> PooledStorage {
        self.open_in(&vec![PoolState::Open; self.1])
    }

    fn open_in(&self, states: &[PoolState]) -> PooledStorage {
        let pools = states.iter().enumerate().map(|(number, state)| self.pool(number, *state)).collect();
        PooledStorage::open(NAME.parse().unwrap(), pools, clock()).unwrap()
    }

    /// Which of them have a file.
    fn having(&self, path: &str) -> Vec<usize> {
        (0..self.1).filter(|number| self.path(*number).join(path).is_file()).collect()
    }
}

fn posix(root: &Path) -> Result<Posix, Fault> {
    let (name, root) = (NAME.parse().unwrap(), root.to_owned());
    Posix::open(PosixOptions { name, root, work: None, writable: true, flush: FlushPolicy::None })
}

/// A second passes with each look.
fn clock() -> PoolClock {
    let seconds = AtomicU64::new(0);
    Arc::new(move || Duration::from_secs(seconds.fetch_add(1, Ordering::Relaxed)))
}

fn at(path: &str) -> Pfn {
    Pfn::new(NAME.parse().unwrap(), path).unwrap()
}

fn temp(number: u8) -> TempName {
    TempName::from_bytes([number; 16])
}

fn put(storage: &dyn Storage, path: &str, bytes: &[u8]) -> Result<(), Fault> {
    let item = Commit::new(temp(1), at(path), bytes.len() as u64);
    storage.put(&item, bytes)?;
    storage.commit(&[item]).remove(0)
}

fn read(storage: &dyn Storage, path: &str) -> Result<Vec<u8>, Fault> {
    let file = storage.open(&at(path))?;
    let mut bytes = vec![0; file.identity().size as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn walked(storage: &dyn Storage) -> Result<Vec<String>, Fault> {
    let mut names = Vec::new();
    storage.walk("", &mut |visit| {
        names.push(match visit {
            Visit::File { at, .. } => at.path().to_owned(),
            Visit::Skipped { path, reason, .. } => format!("{reason:?} {path}"),
        });
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

fn code<T>(result: Result<T, Fault>) -> Option<FaultCode> {
    result.err().map(|fault| fault.code)
}

#[test]
fn it_conforms() {
    for count in [1, 3] {
        let disks = std::cell::RefCell::new(Vec::new());
        conformance::check(&|| {
            let new = Disks::new(count);
            let storage = new.open();
            disks.borrow_mut().push(new);
            Box::new(storage)
        });
    }
}

/// The other checks of the suite begin with an empty storage, where all files may come to one pool.
#[test]
fn it_conforms_where_names_lie_in_different_pools() {
    let disks = Disks::new(3);
    let storage = disks.open();
    for number in 0..30 {
        put(&storage, &format!("d/{}/f{number}", number % 3), b"some bytes").unwrap();
    }
    let counts: Vec<usize> = (0..3)
        .map(|disk| (0..30).filter(|n| disks.having(&format!("d/{}/f{n}", n % 3)) == [disk]).count())
        .collect();
    assert!(counts.iter().all(|count| *count > 0) && counts.iter().sum::<usize>() == 30, "{counts:?}");
    let mut expected: Vec<String> = (0..30).map(|number| format!("d/{}/f{number}", number % 3)).collect();
    expected.sort();
    assert_eq!(walked(&storage).unwrap(), expected);
    let tree = storage.directories().unwrap();
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = tree.list("d/1", after.as_deref(), 3).unwrap();
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        after = page.more_after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, ["f1", "f10", "f13", "f16", "f19", "f22", "f25", "f28", "f4", "f7"]);

    // A directory changes its name in all pools, and a file where it is is no directory in any.
    tree.rename(&at("d/1"), &at("e"), None).unwrap();
    assert_eq!(read(&storage, "e/f28").unwrap(), b"some bytes");
    for (path, refusal) in [("d", "directory"), ("e/f1", "file"), ("e/f1/below", "below a file")] {
        assert_eq!(code(put(&storage, path, b"x")), Some(FaultCode::NameClash), "{refusal}");
    }
    for number in (1..30).step_by(3) {
        let file = at(&format!("e/f{number}"));
        storage.delete(&file, &storage.stat(&file).unwrap().unwrap()).unwrap();
    }
    assert_eq!(tree.stat_entry("e").unwrap(), None, "its last file was deleted");
    assert!((0..3).all(|disk| !disks.path(disk).join("e").exists()));
}

#[test]
fn what_replaces_a_file_goes_to_its_pool() {
    let disks = Disks::new(3);
    let storage = disks.open();
    for number in 0..12 {
        put(&storage, &format!("f{number}"), b"damaged").unwrap();
    }
    for number in 0..12 {
        let path = format!("f{number}");
        let (before, replaces) = (disks.having(&path), storage.stat(&at(&path)).unwrap());
        let item = Commit { replaces, ..Commit::new(temp(2), at(&path), 5) };
        storage.put(&item, b"whole").unwrap();
        assert_eq!(storage.commit(&[item]), [Ok(())]);
        assert_eq!((disks.having(&path), read(&storage, &path).unwrap()), (before, b"whole".to_vec()));
    }
}

#[test]
fn temporary_files_are_found_after_a_restart() {
    let disks = Disks::new(3);
    let item = |number| Commit::new(temp(number), at(&format!("f{number}")), 4);
    let first = disks.open();
    for number in 0..6 {
        let file = first.create(&temp(number), Some(&at("f")), 4).unwrap();
        file.write_at(b"ab", 0).unwrap();
    }
    drop(first);
    let again = disks.open();
    for number in 0..6 {
        again.reopen(&temp(number), 4).unwrap().unwrap().write_at(b"cd", 2).unwrap();
    }
    let batch: Vec<Commit> = (0..6).map(item).collect();
    assert!(again.commit(&batch).iter().all(Result::is_ok));
    assert!((0..6).all(|number| read(&again, &format!("f{number}")).unwrap() == b"abcd"));
    assert_eq!(again.temps().unwrap(), []);
}

#[test]
fn read_only_and_draining_pools_take_no_new_files() {
    let disks = Disks::new(3);
    let before = disks.open();
    (0..12).for_each(|number| put(&before, &format!("f{number}"), b"x").unwrap());
    let storage = disks.open_in(&[PoolState::ReadOnly, PoolState::Open, PoolState::Draining]);
    for number in 12..24 {
        put(&storage, &format!("f{number}"), b"x").unwrap();
        assert_eq!(disks.having(&format!("f{number}")), [1]);
    }
    assert_eq!(walked(&storage).unwrap().len(), 24, "their files are there");
    let total = storage.space().unwrap();
    assert!(total.free_bytes <= total.total_bytes / 2, "free is what takes files: {total:?}");
    let nothing = disks.open_in(&[PoolState::ReadOnly, PoolState::ReadOnly, PoolState::Draining]);
    assert_eq!(code(put(&nothing, "f99", b"x")), Some(FaultCode::TargetReadOnly));
}

#[test]
fn nothing_is_concluded_about_a_pool_that_is_not_mounted() {
    let disks = Disks::new(3);
    let storage = disks.open();
    storage.put_root_mark("the mark").unwrap();
    assert_eq!(storage.root_mark().unwrap().as_deref(), Some("the mark"));
    (0..12).for_each(|number| put(&storage, &format!("f{number}"), b"x").unwrap());
    let away = (0..12).map(|number| format!("f{number}")).find(|path| disks.having(path) == [1]).unwrap();
    let there = (0..12).map(|number| format!("f{number}")).find(|path| disks.having(path) == [2]).unwrap();
    let identity = storage.stat(&at(&away)).unwrap().unwrap();

    // An empty directory is where the disk should be mounted.
    let aside = disks.0.path().join("aside");
    fs::rename(disks.path(1), &aside).unwrap();
    fs::create_dir(disks.path(1)).unwrap();
    for storage in [disks.open(), disks.open()] {
        assert_eq!(storage.root_mark().unwrap().as_deref(), Some("the mark"), "the others are there");
        assert!(!disks.path(1).join(".longhaul/root.json").exists(), "and it gets no mark");
        let faults: Vec<bool> = storage.pools().iter().map(|pool| pool.fault.is_some()).collect();
        assert_eq!(faults, [false, true, false]);
        assert_eq!(code(storage.stat(&at(&away))), Some(FaultCode::SourceUnreadable), "it is not missing");
        assert_eq!(storage.stat_target(&at(&away)), Ok(None), "nothing keeps a new file from being brought");
        assert!(storage.stat_target(&at(&there)).unwrap().is_some());
        assert_eq!(code(read(&storage, &away)), Some(FaultCode::SourceUnreadable));
        assert_eq!(code(storage.delete(&at(&away), &identity)), Some(FaultCode::SourceUnreadable));
        assert_eq!(code(walked(&storage)), Some(FaultCode::SourceUnreadable));
        assert_eq!(code(storage.directories().unwrap().list("", None, 9)), Some(FaultCode::SourceUnreadable));
        assert_eq!(read(&storage, &there).unwrap(), b"x", "what the others have is read");
    }
    let running = disks.open();
    put(&running, "new", b"x").unwrap();
    assert_ne!(disks.having("new"), [1], "it takes nothing");
    fs::remove_dir_all(disks.path(1)).unwrap();
    let without = disks.open();
    for (storage, what) in [(running, "an empty directory"), (without, "no directory")] {
        assert!(storage.root_mark().is_ok() && storage.pools()[1].fault.is_some(), "{what}");
        fs::rename(&aside, disks.path(1)).unwrap();
        assert_eq!(code(read(&storage, &away)), Some(FaultCode::SourceUnreadable), "until the next check");
        assert!(storage.root_mark().is_ok());
        assert_eq!(read(&storage, &away).unwrap(), b"x", "without a restart");
        fs::rename(disks.path(1), &aside).unwrap();
    }
}

#[test]
fn new_pools_are_marked_and_those_of_others_are_not_taken() {
    let disks = Disks::new(4);
    let mark = |number: usize| fs::read_to_string(disks.path(number).join(".longhaul/root.json"));
    // The storage had one root, and gets three more.
    posix(&disks.path(0)).unwrap().put_root_mark("the mark").unwrap();
    posix(&disks.path(3)).unwrap().put_root_mark("another mark").unwrap();
    let storage = disks.open();
    assert_eq!(storage.root_mark().unwrap().as_deref(), Some("the mark"));
    for number in 0..3 {
        assert_eq!(mark(number).unwrap(), "the mark\npools: disk0 disk1 disk2\n");
    }
    assert_eq!(mark(3).unwrap(), "another mark");
    let why = storage.pools()[3].fault.clone().unwrap().to_string();
    assert!(why.contains("mark of another storage: another mark"), "{why}");
    (0..8).for_each(|number| put(&storage, &format!("f{number}"), b"x").unwrap());
    assert!((0..8).all(|number| disks.having(&format!("f{number}")) != [3]));
}

#[test]
fn a_pool_that_fails_leaves_files_to_the_others() {
    let disks = Disks::new(2);
    let failing = HookedStorage::new(Arc::new(posix(&disks.path(0)).unwrap()), |_| ());
    let first: Arc<dyn Storage> = failing.clone();
    let pools = vec![
        PoolOptions { open: Box::new(move || Ok(first.clone())), ..disks.pool(0, PoolState::Open) },
        disks.pool(1, PoolState::Open),
    ];
    let storage = PooledStorage::open(NAME.parse().unwrap(), pools, clock()).unwrap();
    let fault = Fault::new(FaultCode::TargetReadOnly, "read-only file system");
    failing.set_create_fault(Some(fault.clone()));
    for number in 0..10 {
        let file = storage.create(&temp(number), Some(&at("f")), 1).unwrap();
        file.write_at(b"x", 0).unwrap();
    }
    assert_eq!(storage.pools()[0].fault, Some(fault));
    assert_eq!(failing.temps().unwrap(), [], "none of them lies there");
    failing.set_create_fault(None);
    // A minute later it is asked first again.
    let taken = (10..200).find(|number| {
        storage.create(&temp(*number), Some(&at("f")), 1).unwrap();
        !failing.temps().unwrap().is_empty()
    });
    assert!(taken.is_some_and(|number| number > 12), "{taken:?}");
    assert_eq!(storage.pools()[0].fault, None);

    // A request that is wrong is not tried elsewhere, and where none can the last says why.
    failing.set_create_fault(Some(Fault::new(FaultCode::TargetWrite, "an error of the disk")));
    fs::remove_dir_all(disks.path(1)).unwrap();
    assert_eq!(code(storage.create(&temp(201), None, 1)), Some(FaultCode::TargetWrite));
}

fn drain(storage: &PooledStorage, pool: &str) -> Vec<Relocation> {
    let files = storage.files_in(pool, |_| false).unwrap();
    files.iter().map(|at| storage.relocate(pool, at, &temp(99)).unwrap()).collect()
}

#[test]
fn the_files_of_a_drained_pool_go_to_the_others() {
    let disks = Disks::new(3);
    let before = disks.open();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for number in 0..12_usize {
        put(&before, &format!("d/f{number}"), &bytes[number..number * 250_000]).unwrap();
    }
    let identity = |storage: &PooledStorage| storage.stat(&at("d/f11")).unwrap().unwrap();
    let mtime_ns = identity(&before).mtime_ns;
    let storage = disks.open_in(&[PoolState::Draining, PoolState::Open, PoolState::Open]);
    assert_eq!(storage.draining(), ["disk0"]);
    let there = (1..12).filter(|number| disks.having(&format!("d/f{number}")) == [0]).count();
    let moved = drain(&storage, "disk0");
    assert!(
        there > 0 && moved.len() >= there && moved.iter().all(|end| *end == Relocation::Moved),
        "{moved:?}"
    );
    assert!(!disks.path(0).join("d").exists() && disks.having("d/f3").len() == 1);
    for number in 1..12_usize {
        assert!(read(&storage, &format!("d/f{number}")).unwrap() == bytes[number..number * 250_000]);
    }
    assert_eq!(identity(&storage).mtime_ns, mtime_ns);
    assert_eq!(storage.temps().unwrap(), []);
    assert!(drain(&storage, "disk0").is_empty());
    assert_eq!(storage.relocate("disk0", &at("d/f3"), &temp(99)), Ok(Relocation::Gone));
}

/// As an agent that ended between the two steps leaves it.
#[test]
fn of_two_equal_copies_one_goes_and_different_files_stay() {
    let disks = Disks::new(2);
    for (name, bytes) in [("same", ["x", "x"]), ("other", ["x", "y"]), ("longer", ["x", "xx"])] {
        (0..2).for_each(|disk| fs::write(disks.path(disk).join(name), bytes[disk]).unwrap());
    }
    let storage = disks.open_in(&[PoolState::Draining, PoolState::Open]);
    assert_eq!(walked(&storage).unwrap(), ["longer", "other", "same"], "each once");
    let relocate = |name: &str| storage.relocate("disk0", &at(name), &temp(99));
    assert_eq!(relocate("same"), Ok(Relocation::Moved));
    assert_eq!(disks.having("same"), [1]);
    for name in ["other", "longer"] {
        assert_eq!(code(relocate(name)), Some(FaultCode::NameClash));
        assert_eq!(disks.having(name), [0, 1]);
    }
    // Both go with the name.
    storage.delete(&at("longer"), &storage.stat(&at("longer")).unwrap().unwrap()).unwrap();
    assert!(disks.having("longer").is_empty());
}

#[test]
fn what_is_deleted_while_it_changes_its_pool_is_gone() {
    let disks = Disks::new(2);
    fs::write(disks.path(0).join("f"), vec![7; 8 << 20]).unwrap();
    let source = HookedStorage::new(Arc::new(posix(&disks.path(0)).unwrap()), |_| ());
    let drained: Arc<dyn Storage> = source.clone();
    let pools = vec![
        PoolOptions { open: Box::new(move || Ok(drained.clone())), ..disks.pool(0, PoolState::Draining) },
        disks.pool(1, PoolState::Open),
    ];
    let storage = PooledStorage::open(NAME.parse().unwrap(), pools, clock()).unwrap();
    let identity = storage.stat(&at("f")).unwrap().unwrap();
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let goes_on = Mutex::new(goes_on);
        source.set_read_hook(move |_, offset| {
            if offset == 1 << 20 {
                begun.send(()).unwrap();
                goes_on.lock().recv().unwrap();
            }
            Ok(())
        });
        let moving = scope.spawn(|| storage.relocate("disk0", &at("f"), &temp(99)));
        begins.recv().unwrap();
        let deleting = scope.spawn(|| storage.delete(&at("f"), &identity));
        while !storage.reserved.is_wanted("f") {
            std::thread::yield_now();
        }
        go_on.send(()).unwrap();
        assert_eq!(moving.join().unwrap(), Ok(Relocation::Busy));
        assert_eq!(deleting.join().unwrap(), Ok(()));
    });
    assert_eq!((disks.having("f"), storage.temps().unwrap()), (vec![], vec![]));
}
