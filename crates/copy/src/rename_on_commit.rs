//! Target storage of a copy: maps the engine's file names to their destinations and sets mode, time and what
//! may be replaced when a file is committed (temporary file, then rename).
//!
//! The engine uses one name for a file at both ends and replaces nothing; a copy writes where the user says
//! and replaces what differs. So the storage is wrapped: names are mapped, and commits carry the attributes
//! and the identity that they may replace. The storage itself does the rename.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, FlushPolicy, Identity, NoLinks, Posix, PosixOptions, SourceFile, Space, Storage,
    TargetFile, TempName, Visit,
};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::state::work_directory;
use crate::walk::beneath::{make_directories, split};
use crate::walk::{MODE_BITS, WORK_DIRECTORY};

const TEMPS_DIR: &str = "temps";
/// Committed files remembered for fetches that wait for the same name.
const COMMITTED_REMEMBERED_MAX: usize = 20_000;

/// Where a file goes, with its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Path beneath the root.
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) mtime_ns: i64,
    pub(crate) replace: bool,
}

pub(crate) struct MappedStorage {
    inner: Posix,
    name: StorageName,
    root: NoLinks,
    reservations: Mutex<Reservations>,
}

/// Reservations by the names that the engine uses.
#[derive(Default)]
struct Reservations {
    active: HashMap<String, Arc<Reservation>>,
    /// Files committed while another fetch waited for their name.
    committed: HashMap<String, Arc<Reservation>>,
}

struct Reservation {
    destination: Destination,
    /// Another fetch waits for this name.
    waited_for: AtomicBool,
    /// Identity of the file found at the destination when this one was reserved; only that may be replaced.
    replaces: Option<Identity>,
}

impl MappedStorage {
    /// Opens the storage at `root`, which must exist.
    pub(crate) fn open(name: StorageName, root: PathBuf, flush: FlushPolicy) -> Result<MappedStorage, Fault> {
        let beneath = NoLinks::open_root(&root).map_err(|errno| {
            let why = std::io::Error::from(errno);
            Fault::new(FaultCode::TargetWrite, format!("{}: {why}", printable(&root.to_string_lossy())))
        })?;
        let work = work_directory(&root);
        let work = (work != WORK_DIRECTORY).then(|| root.join(work));
        let options = PosixOptions { name: name.clone(), root, work, writable: true, flush };
        Ok(MappedStorage {
            inner: Posix::open(options)?,
            name,
            root: beneath,
            reservations: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Reservations> {
        self.reservations.lock()
    }

    /// Reserves a destination before the engine hears of the file. False if a file of that name is running
    /// already.
    ///
    /// Only what exists at the destination now may be replaced: a file that appears there later stays.
    pub(crate) fn reserve(&self, name: &str, spot: Destination) -> bool {
        let replaces = if spot.replace { self.existing_identity(&spot.path) } else { None };
        let mut spots = self.lock();
        if let Some(held) = spots.active.get(name) {
            held.waited_for.store(true, Ordering::Relaxed);
            return false;
        }
        let waited_for = AtomicBool::new(false);
        spots
            .active
            .insert(name.to_owned(), Arc::new(Reservation { destination: spot, waited_for, replaces }));
        true
    }

    /// Identity of the file at `path`, or of the link itself, which is replaced and not followed.
    fn existing_identity(&self, path: &str) -> Option<Identity> {
        let stat = self.root.stat(path.as_bytes()).ok()?;
        (FileType::from_raw_mode(stat.st_mode) != FileType::Directory).then(|| Identity::from(&stat))
    }

    /// Records that the file was committed with every chunk verified.
    pub(crate) fn mark_committed(&self, name: &str) {
        let mut spots = self.lock();
        let Some(held) = spots.active.remove(name).filter(|held| held.waited_for.load(Ordering::Relaxed))
        else {
            return;
        };
        if spots.committed.len() >= COMMITTED_REMEMBERED_MAX {
            // Fetches that still wait fail because the name exists.
            spots.committed.clear();
        }
        spots.committed.insert(name.to_owned(), held);
    }

    /// Drops the reservation of a file that will not be committed.
    pub(crate) fn release(&self, name: &str) {
        self.lock().active.remove(name);
    }

    fn reservation(&self, at: &Pfn) -> Option<Arc<Reservation>> {
        self.lock().active.get(at.path()).cloned()
    }

    /// Maps the engine's commit to the destination, its attributes and what it may replace.
    fn map_commit(&self, item: &Commit) -> Result<Commit, Fault> {
        let Some(held) = self.reservation(&item.target) else { return Ok(item.clone()) };
        Ok(Commit {
            target: self.map_path(&item.target)?,
            mode: Some(held.destination.mode),
            mtime_ns: Some(held.destination.mtime_ns),
            replaces: held.replaces.clone(),
            ..item.clone()
        })
    }

    /// The path in the storage behind a name of the engine.
    fn map_path(&self, at: &Pfn) -> Result<Pfn, Fault> {
        let Some(held) = self.reservation(at) else { return Ok(at.clone()) };
        Pfn::new(self.name.clone(), &held.destination.path).map_err(Fault::from)
    }

    /// Whether the previous holder of the name committed this very file and it is unchanged. Existence alone
    /// proves nothing: anybody can make a file of this size and time.
    pub(crate) fn is_committed(&self, name: &str, spot: &Destination, size: u64) -> bool {
        let of_spot = |held: &Arc<Reservation>| {
            held.destination.path == spot.path && held.destination.mtime_ns == spot.mtime_ns
        };
        if !self.lock().committed.get(name).is_some_and(of_spot) {
            return false;
        }
        let at = Pfn::new(self.name.clone(), &spot.path).ok();
        let there = at.and_then(|at| self.inner.stat(&at).ok().flatten());
        there.is_some_and(|there| there.size == size && there.mtime_ns == spot.mtime_ns)
    }

    /// Whether no temporary files are left from which a copy could resume.
    pub(crate) fn is_clean(&self) -> bool {
        self.inner.temps().is_ok_and(|temps| temps.is_empty())
    }

    pub(crate) fn make_directory(&self, path: &str, mode: Option<u32>) -> Result<bool, Fault> {
        let failed = |errno: Errno| {
            let why = match errno {
                Errno::EXIST => "a file has this name".to_owned(),
                Errno::LOOP => "a link has this name".to_owned(),
                errno => std::io::Error::from(errno).to_string(),
            };
            Fault::new(
                FaultCode::TargetWrite,
                format!("cannot create the directory {}: {why}", printable(path)),
            )
        };
        refuse_work_directory(path)?;
        let is_new = make_directories(&self.root, path.as_bytes()).map_err(failed)?;
        if let Some(mode) = mode.filter(|_| is_new) {
            let (parent, name) = split(path.as_bytes());
            let directory = self.root.open(parent, OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
            fs::chmodat(&directory, name, Mode::from_raw_mode(mode & MODE_BITS), AtFlags::empty())
                .map_err(failed)?;
        }
        Ok(is_new)
    }
}

/// Refuses paths inside our own work directory.
pub(crate) fn refuse_work_directory(path: &str) -> Result<(), Fault> {
    let first = path.split('/').next().unwrap_or_default();
    if first.eq_ignore_ascii_case(WORK_DIRECTORY) {
        let detail = format!("{} is inside the work directory", printable(path));
        return Err(Fault::new(FaultCode::BadName, detail));
    }
    Ok(())
}

/// Removes the target's work directory as far as it is empty.
pub(crate) fn remove_work_directory(root: &Path) {
    let work = root.join(work_directory(root));
    // Only empty directories are removed: temporary files of other copies stay.
    let _ = std::fs::remove_dir(work.join(TEMPS_DIR));
    let _ = std::fs::remove_dir(work);
}

impl Storage for MappedStorage {
    fn name(&self) -> &StorageName {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn space(&self) -> Result<Space, Fault> {
        self.inner.space()
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        match self.reservation(at) {
            // The destination was checked when the copy of this file was decided; a file that appears
            // meanwhile is noticed at commit.
            Some(_) => Ok(None),
            None => self.inner.stat(at),
        }
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        self.inner.open(&self.map_path(at)?)
    }

    fn create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        self.inner.create(temp, target, size)
    }

    fn put(&self, item: &Commit, bytes: &[u8]) -> Result<(), Fault> {
        self.inner.put(&self.map_commit(item)?, bytes)
    }

    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.inner.reopen(temp, size)
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        let mut results: Vec<Result<(), Fault>> = batch.iter().map(|_| Ok(())).collect();
        let (mut items, mut places) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for (place, item) in batch.iter().enumerate() {
            match self.map_commit(item) {
                Ok(item) => {
                    items.push(item);
                    places.push(place);
                }
                Err(fault) => results[place] = Err(fault),
            }
        }
        for (place, result) in places.into_iter().zip(self.inner.commit(&items)) {
            results[place] = result;
        }
        results
    }

    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        let real: Result<Vec<Pfn>, Fault> = at.iter().map(|at| self.map_path(at)).collect();
        self.inner.flush_present(&real?)
    }

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        self.inner.temps()
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        self.inner.remove_temp(temp)
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.inner.delete(&self.map_path(at)?, expected)
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        self.inner.walk(path, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn landing(root: &Path) -> MappedStorage {
        MappedStorage::open("target".parse().unwrap(), root.to_owned(), FlushPolicy::FileAndDirectory)
            .unwrap()
    }

    fn put(landing: &MappedStorage, name: &str, number: u8, bytes: &[u8]) -> Result<(), Fault> {
        let temp = TempName::from_bytes([number; 16]);
        landing.create(&temp, None, bytes.len() as u64).unwrap().write_at(bytes, 0).unwrap();
        let target = Pfn::new("target".parse().unwrap(), name).unwrap();
        landing.commit(&[Commit::new(temp, target, bytes.len() as u64)]).remove(0)
    }

    fn spot(path: &str, replace: bool) -> Destination {
        Destination { path: path.into(), mode: 0o100640, mtime_ns: -1_500_000_000, replace }
    }

    #[test]
    fn lands_under_another_name_with_its_attributes() {
        let place = tempfile::tempdir().unwrap();
        let landing = landing(place.path());
        assert!(landing.reserve("theirs/a", spot("ours/b", false)));
        assert!(!landing.reserve("theirs/a", spot("ours/c", false)), "one at a time");
        put(&landing, "theirs/a", 1, b"bytes").unwrap();
        let landed = std::fs::metadata(place.path().join("ours/b")).unwrap();
        assert_eq!(landed.permissions().mode() & 0o7777, 0o640);
        assert_eq!((landed.mtime(), landed.mtime_nsec()), (-2, 500_000_000));
        assert!(!place.path().join("theirs").exists());
    }

    /// Promise 2: a file counts as committed by another fetch only if it was verified, not because of its
    /// size and time.
    #[test]
    fn what_only_looks_like_the_file_has_not_landed() {
        let place = tempfile::tempdir().unwrap();
        let landing = landing(place.path());
        let has_landed = || landing.is_committed("a", &spot("a", false), 5);
        landing.reserve("a", spot("a", false));
        assert!(!landing.reserve("a", spot("a", false)), "somebody waits");
        put(&landing, "a", 1, b"bytes").unwrap();
        landing.release("a");
        assert!(!has_landed(), "it exists with its size and time, but was never verified");
        landing.reserve("a", spot("a", false));
        landing.reserve("a", spot("a", false));
        landing.mark_committed("a");
        assert!(has_landed() && !landing.is_committed("a", &spot("b", false), 5));
        std::fs::write(place.path().join("a"), "other").unwrap();
        assert!(!has_landed(), "it was changed meanwhile");
    }

    #[test]
    fn replaces_only_what_it_was_told_to() {
        let place = tempfile::tempdir().unwrap();
        let landing = landing(place.path());
        std::fs::write(place.path().join("f"), "old").unwrap();
        landing.reserve("f", spot("f", false));
        assert_eq!(put(&landing, "f", 1, b"new").unwrap_err().code, FaultCode::NameClash);
        assert_eq!(std::fs::read(place.path().join("f")).unwrap(), b"old");
        landing.release("f");
        landing.reserve("f", spot("f", true));
        let at = Pfn::new("target".parse().unwrap(), "f").unwrap();
        assert_eq!(
            landing.stat(&at).unwrap(),
            None,
            "the engine must not compare with what will be replaced"
        );
        put(&landing, "f", 2, b"new").unwrap();
        assert_eq!(std::fs::read(place.path().join("f")).unwrap(), b"new");
        landing.release("f");
        landing.reserve("f", spot("f", true));
        std::fs::write(place.path().join("f"), "somebody's, later").unwrap();
        assert_eq!(put(&landing, "f", 5, b"newer").unwrap_err().code, FaultCode::NameClash);
        assert_eq!(std::fs::read(place.path().join("f")).unwrap(), b"somebody's, later");
        landing.reserve("gone/f", spot("gone/f", true));
        put(&landing, "gone/f", 3, b"new").unwrap();
        assert!(place.path().join("gone/f").exists());
        std::fs::create_dir(place.path().join("d")).unwrap();
        landing.reserve("d", spot("d", true));
        assert_eq!(put(&landing, "d", 4, b"new").unwrap_err().code, FaultCode::NameClash);
    }

    /// Promise 9: a link at the target is replaced or refused, never followed.
    #[test]
    fn writes_through_no_link() {
        let place = tempfile::tempdir().unwrap();
        let (root, outside) = (place.path().join("root"), place.path().join("outside"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("f"), "theirs").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("out")).unwrap();
        std::os::unix::fs::symlink(outside.join("f"), root.join("link")).unwrap();
        let landing = landing(&root);
        landing.reserve("out/f", spot("out/f", true));
        assert!(put(&landing, "out/f", 1, b"x").is_err());
        assert!(landing.make_directory("out/new", None).is_err());
        landing.reserve("link", spot("link", true));
        put(&landing, "link", 2, b"x").unwrap();
        assert!(root.join("link").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        assert!(landing.make_directory(".Longhaul/x", None).is_err());
    }

    #[test]
    fn leaves_nothing_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let landing = landing(place.path());
        put(&landing, "f", 1, b"x").unwrap();
        assert!(landing.make_directory("empty", Some(0o750)).unwrap());
        let mode = std::fs::metadata(place.path().join("empty")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
        drop(landing);
        remove_work_directory(place.path());
        assert!(!place.path().join(WORK_DIRECTORY).exists());
    }
}
