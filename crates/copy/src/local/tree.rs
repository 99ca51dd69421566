//! The two ends of a local copy: a directory that is read and one that is written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_model::units::{bytes, printable};
use longhaul_model::{Fault, FaultCode, Lfn, Pfn, StorageName};
use longhaul_storage::{FlushPolicy, Identity, NoLinks, Posix, PosixOptions, SourceFile, Storage, TempName};
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use rustix::fs::{self, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::{self, Errno};

use super::temps;
use crate::rules::{FileMeta, TargetEntry};
use crate::walk::WORK_DIRECTORY;
use crate::walk::beneath::{make_directories, split};

/// Where `storage` keeps temporary files in its work directory. Its interface does not expose descriptors of
/// temporary files, which cloning and reading back need; a test of this module fails if the location changes.
const TEMPS_DIR: &str = "temps";

pub(super) fn fault(code: FaultCode, doing: impl std::fmt::Display, errno: Errno) -> Fault {
    let error = std::io::Error::from(errno);
    Fault::new(code, format!("{doing}: {error}")).with_source(error)
}

/// Maps an errno of a write operation to a fault.
fn write_fault(doing: impl std::fmt::Display, errno: Errno) -> Fault {
    let code = match errno {
        Errno::NOSPC | Errno::DQUOT => FaultCode::TargetFull,
        Errno::ROFS | Errno::ACCESS | Errno::PERM => FaultCode::TargetReadOnly,
        Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP => FaultCode::NameClash,
        Errno::NAMETOOLONG => FaultCode::NameTooLong,
        _ => FaultCode::TargetWrite,
    };
    fault(code, doing, errno)
}

fn storage(name: &str, root: &Path, writable: bool, flush: FlushPolicy) -> Result<Posix, Fault> {
    let name = StorageName::parse(name)
        .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
    Posix::open(PosixOptions { name, root: root.to_owned(), work: None, writable, flush })
}

/// The full path as users know it, for messages.
fn shown(root: &Path, path: &str) -> String {
    printable(&root.join(path).to_string_lossy())
}

/// A directory that is read.
pub struct SourceTree {
    root: PathBuf,
    beneath: NoLinks,
    storage: Posix,
    device: u64,
}

impl SourceTree {
    pub fn open(root: &Path) -> Result<SourceTree, Fault> {
        let failed = |errno| fault(FaultCode::SourceUnreadable, printable(&root.to_string_lossy()), errno);
        let beneath = NoLinks::open_root(root).map_err(failed)?;
        let device = beneath.stat(b"").map_err(failed)?.st_dev;
        let storage = storage("source", root, false, FlushPolicy::None)?;
        Ok(SourceTree { root: root.to_owned(), beneath, storage, device })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn shown(&self, path: &Lfn) -> String {
        shown(&self.root, path.as_str())
    }

    pub(super) fn device(&self) -> u64 {
        self.device
    }

    pub(super) fn storage(&self) -> &Posix {
        &self.storage
    }

    pub(super) fn pfn(&self, path: &Lfn) -> Result<Pfn, Fault> {
        pfn(&self.storage, path)
    }

    /// Opens a file, which must still be the one that was planned.
    pub(super) fn open_file(&self, path: &Lfn, planned: &Identity) -> Result<Box<dyn SourceFile>, Fault> {
        let file = self.storage.open(&self.pfn(path)?)?;
        if file.identity() == *planned {
            return Ok(file);
        }
        let text = format!("{} changed after it was listed", self.shown(path));
        Err(Fault::new(FaultCode::SourceChanged, text))
    }

    /// A descriptor for the kernel to copy from; none behind a link, or if it is another file by now.
    pub(super) fn descriptor(&self, path: &Lfn, planned: &Identity) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.beneath.open(path.as_str().as_bytes(), flags).ok()?;
        let stat = fs::fstat(&file).ok()?;
        (Identity::from(&stat) == *planned).then_some(file)
    }
}

/// A directory that is written.
pub struct TargetTree {
    root: PathBuf,
    beneath: NoLinks,
    storage: Posix,
    flush: FlushPolicy,
    /// We created the work directory and remove it at the end.
    made_work: bool,
    /// Whether files can be cloned here, by source device.
    clones_from: Mutex<BTreeMap<u64, bool>>,
}

impl TargetTree {
    /// Opens a target; `root` must exist.
    pub fn open(root: &Path, flush: FlushPolicy) -> Result<TargetTree, Fault> {
        let failed = |errno| write_fault(printable(&root.to_string_lossy()), errno);
        let beneath = NoLinks::open_root(root).map_err(failed)?;
        let made_work = matches!(beneath.stat(WORK_DIRECTORY.as_bytes()), Err(Errno::NOENT));
        let storage = storage("target", root, true, flush)?;
        let tree = TargetTree {
            root: root.to_owned(),
            beneath,
            storage,
            flush,
            made_work,
            clones_from: Mutex::default(),
        };
        // Fails here, and not at the first of a million files, if the directory is not writable.
        for temp in tree.storage.temps()?.iter().filter(|temp| temps::is_abandoned(temp)) {
            tree.storage.remove_temp(temp)?;
        }
        Ok(tree)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn flush(&self) -> FlushPolicy {
        self.flush
    }

    pub fn shown(&self, path: &Lfn) -> String {
        shown(&self.root, path.as_str())
    }

    /// Refuses in advance what does not fit. Cloned files take no space; `clones` says that cloning is
    /// likely.
    pub fn check_space(&self, needed_bytes: u64, clones: bool) -> Result<(), Fault> {
        let free = self.storage.space()?.free_bytes;
        if needed_bytes <= free || clones {
            return Ok(());
        }
        let text = format!(
            "{} has {} free, {} are needed",
            printable(&self.root.to_string_lossy()),
            bytes(free),
            bytes(needed_bytes)
        );
        Err(Fault::new(FaultCode::NoSpaceForRequest, text))
    }

    pub(super) fn storage(&self) -> &Posix {
        &self.storage
    }

    pub(super) fn pfn(&self, path: &Lfn) -> Result<Pfn, Fault> {
        pfn(&self.storage, path)
    }

    /// Whether files of `source` can be cloned here: tried once per device, with two empty temporary files.
    pub(super) fn clones_from(&self, source: &SourceTree) -> bool {
        let known = self.clones().get(&source.device()).copied();
        if let Some(can) = known {
            return can;
        }
        let here = self.beneath.stat(b"").map(|stat| stat.st_dev);
        let (one, other) = (temps::new_name(), temps::new_name());
        let try_it = || -> Result<bool, Fault> {
            let (_one, _other) = (self.storage.create(&one, None, 0)?, self.storage.create(&other, None, 0)?);
            let (from, to) = (self.descriptor(&one)?, self.descriptor(&other)?);
            Ok(fs::ioctl_ficlone(&to, &from).is_ok())
        };
        let can = here == Ok(source.device()) && try_it().unwrap_or(false);
        if here == Ok(source.device()) {
            for temp in [&one, &other] {
                let _ = self.storage.remove_temp(temp);
            }
        }
        self.clones().insert(source.device(), can);
        can
    }

    pub(super) fn cannot_clone_from(&self, source: &SourceTree) {
        self.clones().insert(source.device(), false);
    }

    fn clones(&self) -> MutexGuard<'_, BTreeMap<u64, bool>> {
        self.clones_from.lock()
    }

    /// Opens a temporary file.
    pub(super) fn descriptor(&self, temp: &TempName) -> Result<OwnedFd, Fault> {
        let path = format!("{WORK_DIRECTORY}/{TEMPS_DIR}/{temp}");
        self.beneath
            .open(path.as_bytes(), OFlags::RDWR)
            .map_err(|errno| write_fault(format_args!("opening the temporary file {temp}"), errno))
    }

    /// Creates a directory and its parents. A new one gets this mode and time.
    pub(super) fn make_directory(&self, path: &Lfn, mode: u32, mtime_ns: i64) -> Result<(), Fault> {
        let failed = |errno| write_fault(format_args!("creating the directory {}", self.shown(path)), errno);
        let path = path.as_str().as_bytes();
        if !make_directories(&self.beneath, path).map_err(failed)? {
            return Ok(());
        }
        let directory = self.beneath.open(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        set_mode_and_mtime(&directory, mode, mtime_ns).map_err(failed)?;
        if self.flush == FlushPolicy::FileAndDirectory {
            io::retry_on_intr(|| fs::fsync(&directory)).map_err(failed)?;
            let parent = self.beneath.open(split(path).0, OFlags::RDONLY | OFlags::DIRECTORY);
            parent.and_then(|parent| io::retry_on_intr(|| fs::fsync(&parent))).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for TargetTree {
    fn drop(&mut self) {
        if self.made_work {
            // Fails if it is not empty: another copy uses it, or a file could not be removed.
            let work = self.root.join(WORK_DIRECTORY);
            let _ = std::fs::remove_dir(work.join(TEMPS_DIR));
            let _ = std::fs::remove_dir(work);
        }
    }
}

/// What exists at `path`, without following links.
pub(super) fn stat_existing(beneath: &NoLinks, path: &Lfn) -> io::Result<(TargetEntry, Option<Identity>)> {
    let stat = match beneath.stat(path.as_str().as_bytes()) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok((TargetEntry::Missing, None)),
        // A file or link where a directory should be.
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok((TargetEntry::Other, None)),
        Err(errno) => return Err(errno),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let identity = Identity::from(&stat);
            let meta = FileMeta { size: identity.size, mtime_ns: identity.mtime_ns, digest: None };
            (TargetEntry::File(meta), Some(identity))
        }
        FileType::Directory => (TargetEntry::Directory, None),
        _ => (TargetEntry::Other, None),
    })
}

/// Sets mode and modification time.
pub(super) fn set_mode_and_mtime(file: &OwnedFd, mode: u32, mtime_ns: i64) -> io::Result<()> {
    fs::fchmod(file, Mode::from_raw_mode(mode))?;
    let second = 1_000_000_000;
    let mtime = Timespec { tv_sec: mtime_ns.div_euclid(second), tv_nsec: mtime_ns.rem_euclid(second) };
    let unchanged = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
    fs::futimens(file, &Timestamps { last_access: unchanged, last_modification: mtime })
}

fn pfn(storage: &Posix, path: &Lfn) -> Result<Pfn, Fault> {
    Pfn::new(storage.name().clone(), path.as_str()).map_err(Fault::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins down what this module assumes about `storage`'s work directory.
    #[test]
    fn temporary_files_lie_where_we_look() {
        let place = tempfile::tempdir().unwrap();
        let tree = TargetTree::open(place.path(), FlushPolicy::None).unwrap();
        let temp = temps::new_name();
        let file = tree.storage().create(&temp, None, 3).unwrap();
        file.write_at(b"abc", 0).unwrap();
        let descriptor = tree.descriptor(&temp).unwrap();
        assert_eq!(fs::fstat(&descriptor).unwrap().st_size, 3);
        tree.storage().remove_temp(&temp).unwrap();
        drop(tree);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn what_a_killed_copy_left_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let temps = place.path().join(".longhaul/temps");
        std::fs::create_dir_all(&temps).unwrap();
        let name = temps::new_name().to_string();
        let dead = format!("{}{:08x}{}", &name[..16], 1u32 << 30, &name[24..]);
        let foreign = "07".repeat(16);
        for name in [&dead, &foreign] {
            std::fs::write(temps.join(name), "x").unwrap();
        }
        drop(TargetTree::open(place.path(), FlushPolicy::None).unwrap());
        let left: Vec<_> =
            std::fs::read_dir(&temps).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [foreign.as_str()], "files of other programs stay");
    }
}
