//! A POSIX directory tree as a storage.
//!
//! Reads follow links that stay beneath the root, writes follow none. Temporary files lie in a work directory
//! on the same file system, which is created on first use: a storage that cannot be written at the moment
//! (full, read-only) opens all the same, and reports it whenever a write is tried.

mod commit;
mod delete;
mod direct;
mod directories;
mod directory_cache;
mod fault;
mod fault_injector;
mod fencing;
mod file;
mod flush;
mod names;
mod put;
mod root_mark;
mod rooted_tree;
#[cfg(test)]
mod tests;
mod walk;
mod work;
mod writeback;

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use longhaul_model::limits::SMALL_FILE_BYTES;
use longhaul_model::{Fault, FaultCode, Pfn, StorageName};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{self, Advice, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::{self, Errno};

use crate::{
    Capabilities, Commit, Directories, DirectoryCache, Identity, SourceFile, Space, Storage, TargetFile,
    TempName, Visit, WriterId,
};
pub use direct::DirectIo;
use direct::{Direct, DirectIoSwitch};
use fault::{Role, fault};
use fault_injector::{FaultInjector, Syscall};
use fencing::WriterLock;
use flush::Flusher;
pub use names::NamePage;
pub use rooted_tree::NoLinks;
use rooted_tree::{ResolveError, Resolver, RootedTree};
use work::{OpenMode, TEMPS, WORK_DIRECTORY, WorkDirectory};

/// When a commit waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// File and directory are on disk before a commit succeeds.
    #[default]
    FileAndDirectory,
    /// Never: for storages that do not survive a power failure anyway, such as tmpfs.
    None,
}

/// How to open a POSIX directory tree as a storage.
#[derive(Clone, Debug)]
pub struct PosixOptions {
    /// Name of the storage in the catalog.
    pub name: StorageName,
    /// Must exist: creating it would hide a disk that is not mounted.
    pub root: PathBuf,
    /// The directory of temporary files, on the same file system; none means `.longhaul` in the root.
    pub work: Option<PathBuf>,
    /// If false, nothing is ever created or changed, and there is no work directory.
    pub writable: bool,
    /// When data is flushed.
    pub flush: FlushPolicy,
}

/// Tuning of the file system, where the defaults are not the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PosixTuning {
    /// The file system only appends to files.
    pub append_only: bool,
    /// Which large files use direct I/O.
    pub direct_io: DirectIo,
    /// Concurrent reads, and concurrent writes, of the disk.
    pub parallel: Option<u16>,
}

/// A POSIX directory tree as a storage.
pub struct Posix {
    name: StorageName,
    writable: bool,
    tuning: PosixTuning,
    direct_reads: Arc<DirectIoSwitch>,
    direct_writes: Arc<DirectIoSwitch>,
    device: u64,
    rooted_tree: RootedTree,
    root_path: PathBuf,
    work_elsewhere: Option<PathBuf>,
    /// This one of several programs that write here; none if it is the only one.
    writer: Option<WriterId>,
    writer_lock: Mutex<Option<WriterLock>>,
    work: Mutex<Option<Arc<WorkDirectory>>>,
    flusher: Arc<Flusher>,
    fault_injector: FaultInjector,
    /// See `walk`; smaller in tests.
    names_at_once: usize,
}

impl Posix {
    /// Opens a storage with default tuning.
    ///
    /// # Errors
    /// `StateDirectory` if the root is not a directory, or if the work directory lies on another file system.
    pub fn open(options: PosixOptions) -> Result<Posix, Fault> {
        Posix::open_in(options, PosixTuning::default())
    }

    /// As [`Posix::open`], with tuning for the file system.
    ///
    /// # Errors
    /// As [`Posix::open`].
    pub fn open_in(options: PosixOptions, tuning: PosixTuning) -> Result<Posix, Fault> {
        Posix::open_with(options, tuning, None, FaultInjector::default())
    }

    /// As [`Posix::open_in`], for one of several writers of the root, which can fence each other. Nothing can
    /// be written before [`rejoin`](crate::WriterFencing::rejoin) was called once. Its temporary files always
    /// lie in `.longhaul` in the root, where the others find them.
    ///
    /// # Errors
    /// As [`Posix::open`].
    pub fn open_shared(options: PosixOptions, tuning: PosixTuning, writer: WriterId) -> Result<Posix, Fault> {
        let options = PosixOptions { work: None, ..options };
        Posix::open_as(Some(writer), options, tuning, None, FaultInjector::default())
    }

    fn open_with(
        options: PosixOptions,
        tuning: PosixTuning,
        resolver: Option<Resolver>,
        fault_injector: FaultInjector,
    ) -> Result<Posix, Fault> {
        Posix::open_as(None, options, tuning, resolver, fault_injector)
    }

    fn open_as(
        writer: Option<WriterId>,
        options: PosixOptions,
        tuning: PosixTuning,
        resolver: Option<Resolver>,
        fault_injector: FaultInjector,
    ) -> Result<Posix, Fault> {
        let shown = options.root.display();
        let failed = |errno| {
            let error = std::io::Error::from(errno);
            Fault::new(FaultCode::StateDirectory, format!("the storage's root {shown}: {error}"))
        };
        let canonical = |path: &Path| {
            path.canonicalize().map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
        };
        let root_path = canonical(&options.root)?;
        let root = fs::open(&root_path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        let mut reserved = vec![WORK_DIRECTORY.as_bytes().to_vec()];
        if let Some(inside) = options.work.as_deref().and_then(|work| path_beneath(work, &root_path)) {
            if inside.is_empty() {
                let detail = format!("the storage's root {shown} cannot be its work directory as well");
                return Err(Fault::new(FaultCode::StateDirectory, detail));
            }
            reserved.push(inside);
        }
        let device = fs::fstat(&root).map_err(failed)?.st_dev;
        let (direct_reads, direct_writes) = DirectIoSwitch::pair(&options.name, tuning.direct_io, &root);
        let posix = Posix {
            direct_reads,
            direct_writes,
            name: options.name,
            writable: options.writable,
            tuning,
            device,
            rooted_tree: RootedTree::new(root, root_path.as_os_str().as_bytes(), resolver, reserved),
            root_path,
            work_elsewhere: options.work,
            writer,
            writer_lock: Mutex::new(None),
            work: Mutex::new(None),
            flusher: Arc::new(Flusher::new(options.flush, fault_injector.clone())),
            fault_injector,
            names_at_once: walk::NAMES_PER_PAGE_MAX,
        };
        // One of several writers begins with `rejoin`.
        if posix.writable && writer.is_none() {
            match posix.work() {
                // A configuration error, as opposed to a full or read-only disk.
                Err(fault) if fault.code == FaultCode::StateDirectory => return Err(fault),
                Err(fault) => {
                    tracing::warn!(storage = %posix.name, fault = %fault.chain(),
                        "the storage cannot be written now")
                }
                Ok(_) => {}
            }
        }
        Ok(posix)
    }

    /// The work directory, created if it is missing.
    fn work(&self) -> Result<Arc<WorkDirectory>, Fault> {
        if !self.writable {
            let detail = format!("{} is configured read-only", self.name);
            return Err(Fault::new(FaultCode::TargetReadOnly, detail));
        }
        let mut work = self.work.lock();
        if let Some(work) = &*work {
            return Ok(Arc::clone(work));
        }
        // First the lock: whoever fences this writer holds it meanwhile.
        self.lock_writer()?;
        let elsewhere = self.work_elsewhere.as_deref();
        let policy = self.flusher.policy();
        let prepared = WorkDirectory::prepare(&self.rooted_tree, elsewhere, self.writer, policy)?;
        let prepared = Arc::new(prepared);
        *work = Some(Arc::clone(&prepared));
        Ok(prepared)
    }

    /// None if it does not exist yet, or on a storage without one.
    fn existing_work_directory(&self) -> Option<Arc<WorkDirectory>> {
        self.work.lock().clone()
    }

    fn case_insensitive(&self) -> bool {
        self.existing_work_directory().is_some_and(|work| work.case_insensitive)
    }

    /// Refuses names of another storage and names in the work directory.
    fn refuse_reserved(&self, at: &Pfn) -> Result<(), Fault> {
        if at.storage != self.name {
            return Err(Fault::new(FaultCode::NotFound, format!("{at} is not in the storage {}", self.name)));
        }
        let path = at.path().as_bytes();
        let reserved = self.rooted_tree.is_reserved(path)
            || self.case_insensitive() && self.rooted_tree.is_reserved_in_any_case(path);
        if reserved {
            return Err(Fault::new(FaultCode::BadName, format!("{at} lies in the work directory")));
        }
        Ok(())
    }

    fn path_for_writing<'a>(&self, at: &'a Pfn) -> Result<&'a [u8], Fault> {
        self.refuse_reserved(at)?;
        Ok(at.path().as_bytes())
    }

    /// Resolves `at`, following links that stay beneath the root.
    fn find(&self, at: &Pfn) -> Result<Option<(Vec<u8>, fs::Stat)>, Fault> {
        self.refuse_reserved(at)?;
        let failed = |errno| fault(Role::Read, errno, at);
        let path = at.path().as_bytes();
        match self.rooted_tree.stat(path) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink => {
                return Ok(Some((path.to_vec(), stat)));
            }
            Ok(_) | Err(Errno::LOOP) => {}
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        let why = match self.rooted_tree.resolve(path) {
            Ok(path) => {
                let stat = self.rooted_tree.stat(&path).map_err(failed)?;
                return Ok(Some((path, stat)));
            }
            Err(ResolveError::Errno(Errno::NOENT | Errno::NOTDIR)) => return Ok(None),
            Err(ResolveError::Errno(errno)) => return Err(failed(errno)),
            Err(ResolveError::Out) => "leads out of the storage",
            Err(ResolveError::WorkDirectory) => "leads into the work directory",
            Err(ResolveError::Broken) => "leads to nothing",
            Err(ResolveError::Loop) => "leads in a circle",
        };
        Err(Fault::new(FaultCode::SourceUnreadable, format!("{at} is or contains a link that {why}")))
    }

    /// The same for a regular file.
    fn find_file(&self, at: &Pfn) -> Result<Option<(Vec<u8>, fs::Stat)>, Fault> {
        let Some((path, stat)) = self.find(at)? else { return Ok(None) };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some((path, stat))),
            kind => {
                let what =
                    if kind == FileType::Directory { "a directory" } else { "a device, pipe or socket" };
                Err(Fault::new(FaultCode::SourceUnreadable, format!("{at} is {what}, not a file")))
            }
        }
    }

    /// Opens a regular file for reading, without changing its access time where that is permitted. `NONBLOCK`
    /// is for a pipe that takes the file's place between the check and the open.
    fn open_for_reading(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match self.rooted_tree.open(path, flags | OFlags::NOATIME) {
            Err(Errno::PERM) => self.rooted_tree.open(path, flags),
            done => done,
        }
    }

    /// Reserves space, so that a full disk is detected before the first byte is sent. Not for a small file:
    /// it is complete in memory before it is written, and its write is its reservation.
    fn reserve(&self, file: &OwnedFd, size: u64) -> io::Result<()> {
        if size <= SMALL_FILE_BYTES {
            return Ok(());
        }
        let allocate = || match in_memory(file)? {
            // There it would fill every page with zeros, which costs as much as the write itself.
            true => Err(Errno::OPNOTSUPP),
            false => io::retry_on_intr(|| fs::fallocate(file, FallocateFlags::empty(), 0, size)),
        };
        let reserved = match self.tuning.append_only {
            true => Err(Errno::OPNOTSUPP),
            false => self.fault_injector.before(Syscall::Reserve, "").and_then(|()| allocate()),
        };
        match reserved {
            // Not `posix_fallocate`, which then writes every block.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                if free_bytes(file)? < size {
                    return Err(Errno::NOSPC);
                }
                // An append-only file would start behind the hole.
                if self.tuning.append_only { Ok(()) } else { fs::ftruncate(file, size) }
            }
            done => done,
        }
    }

    /// Creates an empty temporary file and reserves its space.
    fn new_temporary(&self, temp: &TempName, size: u64) -> Result<(Arc<WorkDirectory>, OwnedFd), Fault> {
        let failed = |errno| {
            fault(
                Role::Write,
                errno,
                format_args!("making a temporary file of {size} bytes in {}", self.name),
            )
        };
        let mut work = self.work()?;
        let mut made = work.create(temp, self.opening());
        if matches!(made, Err(Errno::NOENT)) {
            // The work directory was removed.
            *self.work.lock() = None;
            work = self.work()?;
            made = work.create(temp, self.opening());
        }
        let file = made.map_err(failed)?;
        if let Err(errno) = self.reserve(&file, size) {
            // The reservation is released at once; if that fails too, the next `create` or `temps` finds the
            // file.
            let _ = work.remove(temp);
            return Err(failed(errno));
        }
        Ok((work, file))
    }

    fn opening(&self) -> OpenMode {
        if self.tuning.append_only { OpenMode::Append } else { OpenMode::Write }
    }

    /// `size` is the final size of the file, `len` the current one.
    fn target(
        &self,
        work: Arc<WorkDirectory>,
        file: OwnedFd,
        temp: &TempName,
        size: u64,
        len: u64,
    ) -> Box<dyn TargetFile> {
        self.flusher.begin(temp);
        let is_direct = size > SMALL_FILE_BYTES && !self.tuning.append_only;
        let second = |flags| work.open(temp, OFlags::RDWR | flags);
        let direct = is_direct
            .then(|| Direct::open(&file, &self.direct_writes, &self.fault_injector, second))
            .flatten();
        Box::new(file::Target {
            file,
            direct,
            end: self.tuning.append_only.then(|| Mutex::new(len)),
            reader: OnceLock::new(),
            temp: temp.clone(),
            shown: format!("the temporary file {temp} in {}", self.name),
            work,
            flusher: Arc::clone(&self.flusher),
            name_flushed: AtomicBool::new(false),
            hinted: Mutex::new(None),
        })
    }
}

impl Storage for Posix {
    fn name(&self) -> &StorageName {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            writable: self.writable,
            case_insensitive: self.case_insensitive(),
            random_write: !self.tuning.append_only,
            device: Some(self.device),
            parallel: self.tuning.parallel,
            discards: false,
            resumes: true,
            reads_temps: true,
            sets_attributes: true,
            keeps_any_name: true,
            always_tells_space: true,
            has_directories: true,
            removes_empty_directories: true,
        }
    }

    fn space(&self) -> Result<Space, Fault> {
        let failed = |errno| fault(Role::Read, errno, format_args!("the space of {}", self.name));
        let status = fs::fstatvfs(self.rooted_tree.root()).map_err(failed)?;
        Ok(Space {
            total_bytes: status.f_blocks.saturating_mul(status.f_frsize),
            free_bytes: status.f_bavail.saturating_mul(status.f_frsize),
        })
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        let Some((path, stat)) = self.find_file(at)? else { return Ok(None) };
        if self.case_insensitive() {
            self.refuse_other_spelling(at, &path)?;
        }
        Ok(Some(Identity::from(&stat)))
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        let failed = |errno| fault(Role::Read, errno, at);
        let (path, _) = self.find_file(at)?.ok_or_else(|| failed(Errno::NOENT))?;
        let file = self.open_for_reading(&path).map_err(failed)?;
        let stat = fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Fault::new(FaultCode::SourceUnreadable, format!("{at} is no longer a file")));
        }
        let identity = Identity::from(&stat);
        let mut direct = None;
        if identity.size > SMALL_FILE_BYTES {
            let second = |flags| self.rooted_tree.open(&path, OFlags::RDONLY | OFlags::NONBLOCK | flags);
            direct = Direct::open(&file, &self.direct_reads, &self.fault_injector, second);
            // A hint for larger read-ahead.
            let _ = fs::fadvise(&file, 0, None, Advice::Sequential);
        }
        Ok(Box::new(file::Source { file, direct, identity, shown: at.to_string() }))
    }

    fn open_with_cache(
        &self,
        at: &Pfn,
        directory_cache: &mut DirectoryCache,
    ) -> Result<Box<dyn SourceFile>, Fault> {
        match directory_cache::open(self, at, directory_cache) {
            Some(file) => Ok(Box::new(file)),
            None => self.open(at),
        }
    }

    fn create(
        &self,
        temp: &TempName,
        _target: Option<&Pfn>,
        size: u64,
    ) -> Result<Box<dyn TargetFile>, Fault> {
        let (work, file) = self.new_temporary(temp, size)?;
        Ok(self.target(work, file, temp, size, 0))
    }

    fn put(&self, item: &Commit, bytes: &[u8]) -> Result<(), Fault> {
        put::put(self, item, bytes)
    }

    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        let failed = |errno| {
            fault(Role::Write, errno, format_args!("opening the temporary file {temp} in {}", self.name))
        };
        let work = self.work()?;
        let Some(file) = work.reopen(temp, self.opening()).map_err(failed)? else { return Ok(None) };
        let stat = fs::fstat(&file).map_err(failed)?;
        // Larger than expected: another file. Two names: a crash in the middle of a commit left it linked to
        // its final name, whose content must not change any more. Lost: see `flush`.
        let len = Identity::from(&stat).size;
        let foreign = len > size || stat.st_nlink != 1;
        if foreign || self.flusher.is_lost(temp) {
            work.remove(temp).map_err(failed)?;
            return Ok(None);
        }
        Ok(Some(self.target(work, file, temp, size, len)))
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        match self.work() {
            Ok(work) => commit::commit(self, &work, batch),
            Err(fault) => batch.iter().map(|_| Err(fault.clone())).collect(),
        }
    }

    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        let work = self.work()?;
        let mut paths = Vec::with_capacity(at.len());
        for at in at {
            let (path, _) = self.find_file(at)?.ok_or_else(|| fault(Role::Write, Errno::NOENT, at))?;
            paths.push(path);
        }
        self.flusher.flush_present(&work, &self.rooted_tree, &paths)
    }

    fn temp_path(&self, temp: &TempName) -> Option<PathBuf> {
        let inside = || self.root_path.join(WORK_DIRECTORY);
        let work = self.work_elsewhere.clone().unwrap_or_else(inside);
        let temps = self.writer.map_or_else(|| TEMPS.to_owned(), fencing::temps_of);
        self.writable.then(|| work.join(temps).join(temp.as_str()))
    }

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        if !self.writable {
            return Ok(Vec::new());
        }
        let failed =
            |errno| fault(Role::Write, errno, format_args!("listing temporary files in {}", self.name));
        self.work()?.list().map_err(failed)
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        let failed = |errno| {
            fault(Role::Write, errno, format_args!("removing the temporary file {temp} in {}", self.name))
        };
        self.work()?.remove(temp).map_err(failed)?;
        self.flusher.end(temp);
        Ok(())
    }

    fn root_mark(&self) -> Result<Option<String>, Fault> {
        let failed = |errno| fault(Role::Read, errno, format_args!("the mark in the root of {}", self.name));
        root_mark::read(&self.rooted_tree).map_err(failed)
    }

    fn put_root_mark(&self, text: &str) -> Result<(), Fault> {
        self.work()?;
        let failed = |errno| fault(Role::Write, errno, format_args!("the mark in the root of {}", self.name));
        root_mark::write(&self.rooted_tree, text).map_err(failed)
    }

    fn claim_root_mark(&self, text: &str) -> Result<String, Fault> {
        self.work()?;
        let failed = |errno| fault(Role::Write, errno, format_args!("the mark in the root of {}", self.name));
        root_mark::write_first(&self.rooted_tree, text).map_err(failed)?;
        Ok(self.root_mark()?.unwrap_or_else(|| text.to_owned()))
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.work()?;
        self.refuse_if_fenced()?;
        delete::delete(self, at, expected)
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        walk::walk(self, path, visit)
    }

    fn directories(&self) -> Option<&dyn Directories> {
        Some(self)
    }
}

impl Posix {
    /// On a case-insensitive storage a file may answer to another spelling of its name.
    fn refuse_other_spelling(&self, at: &Pfn, path: &[u8]) -> Result<(), Fault> {
        let failed = |errno| fault(Role::Read, errno, at);
        let (parent, name) = rooted_tree::split(path);
        let directory = self.rooted_tree.open(parent, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        match work::case_variant_of(&directory, name).map_err(failed)? {
            None => Ok(()),
            Some(twin) => {
                let detail = format!("{at} meets {:?}", String::from_utf8_lossy(&twin));
                Err(Fault::new(FaultCode::CaseTwin, detail))
            }
        }
    }
}

/// Whether a file lies in an in-memory file system (tmpfs, ramfs).
fn in_memory(file: &OwnedFd) -> io::Result<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let kind = fs::fstatfs(file)?.f_type as u64;
    Ok(matches!(kind, TMPFS_MAGIC | RAMFS_MAGIC))
}

fn free_bytes(file: &OwnedFd) -> io::Result<u64> {
    let status = fs::fstatvfs(file)?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// `path` relative to `root`, if it lies in it. A component that does not exist yet counts by its name.
fn path_beneath(path: &Path, root: &Path) -> Option<Vec<u8>> {
    let path = std::path::absolute(path).ok()?;
    let real = path.ancestors().find_map(|there| {
        let missing = path.strip_prefix(there).ok()?;
        Some(there.canonicalize().ok()?.join(missing))
    })?;
    // Joining nothing leaves a trailing slash, which is not a component.
    Some(real.strip_prefix(root).ok()?.as_os_str().as_bytes().to_vec())
}
