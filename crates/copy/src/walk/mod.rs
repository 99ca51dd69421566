//! Walks a local directory (or a single file), depth first, in the order of names, component by component.
//!
//! Names follow the rules for LFNs. A link to a file inside the tree counts as that file; links that lead
//! out, links to directories, devices, sockets, pipes, names that are not UTF-8 and unreadable entries are
//! reported as left out, with the reason. A directory without anything to copy is reported too, since a copy
//! creates it, unless filters left it empty. The start itself is not reported.
//!
//! Memory holds the names of one directory per level, at most [`NAMES_PER_PAGE_MAX`] of them; a larger
//! directory is read several times. `storage` has a similar walk; this one exists because filters prune whole
//! directories, modes and empty directories matter, and the caller pulls.
//!
//! Start with [`Walk::open`].

pub(crate) mod beneath;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::Path;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Lfn, Pfn, StorageName};
use longhaul_storage::{FlushPolicy, Identity, NamePage, NoLinks, Posix, PosixOptions, SkipReason, Storage};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, Access, AtFlags, FileType, OFlags};
use rustix::io::{self, Errno};

use crate::filter::Filters;
use beneath::{join, split};

/// Names read per level at once: about 5 MB.
pub const NAMES_PER_PAGE_MAX: usize = 65_536;
/// Where storages keep temporary files. Skipped in the root, reported as left out elsewhere.
pub const WORK_DIRECTORY: &str = ".longhaul";
/// Permission bits that are copied: read, write and execute, never set-user-id and the like.
pub const MODE_BITS: u32 = 0o777;

#[derive(Clone, Debug, Default)]
pub struct WalkOptions {
    pub filters: Filters,
    /// Prefix of each path when filters see it: the name of the start in the transfer, or empty if its
    /// contents are copied.
    pub prefix: String,
}

/// One entry found by a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkEntry {
    File(FileEntry),
    EmptyDirectory(DirectoryEntry),
    LeftOut(LeftOutEntry),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the start; for a single file its name.
    pub path: Lfn,
    pub size: u64,
    pub mtime_ns: i64,
    pub inode: u64,
    /// See [`MODE_BITS`].
    pub mode: u32,
}

impl FileEntry {
    pub fn identity(&self) -> Identity {
        Identity { size: self.size, mtime_ns: self.mtime_ns, inode: self.inode }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    pub path: Lfn,
    pub mtime_ns: i64,
    pub mode: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutEntry {
    /// Relative to the start, escaped for display; ends in `/` for a directory with all its contents.
    pub path: String,
    pub reason: SkipReason,
    pub detail: String,
}

/// Iterator over [`WalkEntry`].
pub struct Walk {
    root: NoLinks,
    /// Resolves links.
    storage: Posix,
    options: WalkOptions,
    /// What paths are relative to, from the root, with a trailing `/` unless it is empty.
    base: Vec<u8>,
    is_directory: bool,
    levels: Vec<Level>,
    /// Entries found and not yet returned.
    ready: VecDeque<WalkEntry>,
    excluded: u64,
    names_per_page: usize,
}

/// A directory that is being walked.
struct Level {
    /// Its path from the root.
    path: Vec<u8>,
    /// Names still to visit, the next one last.
    names: Vec<Vec<u8>>,
    /// The last name of this page, if more follow.
    more_after: Option<Vec<u8>>,
    /// Closed while a subdirectory is walked, so that depth costs no descriptors.
    directory: Option<OwnedFd>,
    /// Something in it is copied, or was excluded.
    is_used: bool,
    mode: u32,
    mtime_ns: i64,
}

impl Walk {
    /// Starts a walk at `start` (empty: the root), a path beneath `root` without links.
    ///
    /// Fails only if the root or the start is unreadable; anything deeper is reported as left out.
    pub fn open(root: &Path, start: &str, options: WalkOptions) -> Result<Walk, Fault> {
        // A peer that asks for a path must not learn where the root is.
        let shown = if start.is_empty() { "the directory".to_owned() } else { printable(start) };
        let failed = |errno: Errno| {
            let code = match errno {
                Errno::NOENT | Errno::NOTDIR => FaultCode::SourceMissing,
                _ => FaultCode::SourceUnreadable,
            };
            let why = std::io::Error::from(errno);
            Fault::new(code, format!("{shown}: {why}"))
        };
        if !start.is_empty() {
            Lfn::parse(start)?;
        }
        let beneath = NoLinks::open_root(root).map_err(failed)?;
        let stat = beneath.stat(start.as_bytes()).map_err(failed)?;
        let mut walk = Walk {
            root: beneath,
            storage: read_only(root)?,
            options,
            base: Vec::new(),
            is_directory: false,
            levels: Vec::new(),
            ready: VecDeque::new(),
            excluded: 0,
            names_per_page: NAMES_PER_PAGE_MAX,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => walk.begin_directory(start, &stat).map_err(failed)?,
            FileType::RegularFile => walk.begin_file(start, &stat),
            _ => {
                let detail = format!("{shown} is neither a file nor a directory");
                return Err(Fault::new(FaultCode::SourceUnreadable, detail));
            }
        }
        Ok(walk)
    }

    /// Whether the start is a directory and not a single file.
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// The directory that paths are relative to, beneath the root.
    pub fn base(&self) -> &str {
        // Valid, since it is part of `start`.
        std::str::from_utf8(&self.base).unwrap_or_default().trim_end_matches('/')
    }

    /// Entries excluded by filters so far; a directory counts as one.
    pub fn excluded(&self) -> u64 {
        self.excluded
    }

    fn begin_directory(&mut self, start: &str, stat: &fs::Stat) -> io::Result<()> {
        self.is_directory = true;
        if !start.is_empty() {
            self.base = [start.as_bytes(), b"/"].concat();
        }
        if !self.options.prefix.is_empty() && !self.options.filters.includes_path(&self.options.prefix, true)
        {
            self.excluded += 1;
            return Ok(());
        }
        let mut level = Level::new(start.as_bytes().to_vec(), stat);
        self.read_page(&mut level, None)?;
        self.levels.push(level);
        Ok(())
    }

    fn begin_file(&mut self, start: &str, stat: &fs::Stat) {
        let (parent, _) = split(start.as_bytes());
        if !parent.is_empty() {
            self.base = [parent, b"/"].concat();
        }
        let path = start.as_bytes().to_vec();
        if self.is_included(&path, false) {
            self.file(&path, None, stat);
        }
    }

    /// Does one step: visits an entry, reads the next page, or leaves a directory.
    fn step(&mut self) {
        let Some(mut level) = self.levels.pop() else { return };
        if let Some(name) = level.names.pop() {
            let entered = self.entry(&mut level, &name);
            if entered.is_some() {
                level.directory = None;
            }
            self.levels.push(level);
            self.levels.extend(entered);
        } else if let Some(last) = level.more_after.take() {
            if let Err(errno) = self.read_page(&mut level, Some(&last)) {
                self.unreadable(&level.path, true, errno);
            }
            self.levels.push(level);
        } else {
            self.leave(&level);
        }
    }

    /// Leaves a directory; reports it if it is empty.
    fn leave(&mut self, level: &Level) {
        let Some(parent) = self.levels.last_mut() else { return };
        parent.is_used = true;
        if level.is_used {
            return;
        }
        if let Some(path) = self.name(&level.path, true) {
            let entry = DirectoryEntry { path, mode: level.mode, mtime_ns: level.mtime_ns };
            self.ready.push_back(WalkEntry::EmptyDirectory(entry));
        }
    }

    /// Reads the smallest names after `after`.
    fn read_page(&self, level: &mut Level, after: Option<&[u8]>) -> io::Result<()> {
        let directory = self.root.open(&level.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let is_ours = |name: &[u8]| level.path.is_empty() && name == WORK_DIRECTORY.as_bytes();
        let page = NamePage::read(&directory, after, self.names_per_page, is_ours)?;
        (level.names, level.more_after) = (page.names, page.more_after);
        level.directory = Some(directory);
        Ok(())
    }

    /// Visits one entry; returns a directory to enter.
    fn entry(&mut self, level: &mut Level, name: &[u8]) -> Option<Level> {
        let path = join(&level.path, name);
        let stat = match self.stat(level, name) {
            Ok(stat) => stat,
            Err(errno) => {
                self.unreadable(&path, false, errno);
                return None;
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !self.is_included(&path, kind == FileType::Directory) {
            level.is_used = true;
            return None;
        }
        match kind {
            FileType::Directory => return self.enter(path, name, &stat),
            FileType::RegularFile => {
                let directory = level.directory.as_ref().map(OwnedFd::as_fd);
                level.is_used |= self.file(&path, directory, &stat);
            }
            FileType::Symlink => level.is_used |= self.link(level, &path, name),
            FileType::Socket => self.left_out(&path, false, SkipReason::Socket, "a socket"),
            FileType::Fifo => self.left_out(&path, false, SkipReason::Fifo, "a named pipe"),
            _ => self.left_out(&path, false, SkipReason::Device, "a device"),
        }
        None
    }

    fn enter(&mut self, path: Vec<u8>, name: &[u8], stat: &fs::Stat) -> Option<Level> {
        if name == WORK_DIRECTORY.as_bytes() {
            self.left_out(
                &path,
                true,
                SkipReason::NameRules,
                "temporary files of transfers into this directory",
            );
            return None;
        }
        self.name(&path, true)?;
        let mut level = Level::new(path, stat);
        match self.read_page(&mut level, None) {
            Ok(()) => Some(level),
            Err(errno) => {
                self.unreadable(&level.path, true, errno);
                None
            }
        }
    }

    fn stat(&self, level: &mut Level, name: &[u8]) -> io::Result<fs::Stat> {
        let directory = match level.directory.take() {
            Some(directory) => directory,
            None => self.root.open(&level.path, OFlags::RDONLY | OFlags::DIRECTORY)?,
        };
        let stat = fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
        level.directory = Some(directory);
        stat
    }

    /// Reports a regular file, whose directory may be open. Returns whether it counts as a file.
    fn file(&mut self, path: &[u8], directory: Option<BorrowedFd<'_>>, stat: &fs::Stat) -> bool {
        let Some(name) = self.name(path, false) else { return false };
        if let Err(errno) = self.may_read(path, directory) {
            self.unreadable(path, false, errno);
            return false;
        }
        let identity = Identity::from(stat);
        self.push_file(name, identity, stat.st_mode);
        true
    }

    fn push_file(&mut self, path: Lfn, identity: Identity, mode: u32) {
        let Identity { size, mtime_ns, inode } = identity;
        self.ready.push_back(WalkEntry::File(FileEntry {
            path,
            size,
            mtime_ns,
            inode,
            mode: mode & MODE_BITS,
        }));
    }

    fn may_read(&self, path: &[u8], directory: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let (parent, name) = split(path);
        let opened;
        let directory = match directory {
            Some(directory) => directory,
            None => {
                opened = self.root.open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
                opened.as_fd()
            }
        };
        match fs::accessat(directory, name, Access::READ_OK, AtFlags::EACCESS) {
            // An old kernel does not support this check; reading will tell.
            Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
            done => done,
        }
    }

    /// Reports a link as the file it leads to. Returns whether it counts as a file.
    fn link(&mut self, level: &Level, path: &[u8], name: &[u8]) -> bool {
        let Some(told) = self.name(path, false) else { return false };
        let text = String::from_utf8_lossy(path).into_owned();
        let Ok(at) = Pfn::new(self.storage.name().clone(), &text) else {
            self.left_out(path, false, SkipReason::NameRules, "a link with too long a path");
            return false;
        };
        match self.storage.open(&at) {
            Ok(file) => {
                let identity = file.identity();
                let mode = self.mode_behind(level, name, &identity);
                self.push_file(told, identity, mode);
                true
            }
            Err(fault) => {
                let (reason, detail) = link_fault_reason(&fault);
                self.left_out(path, false, reason, detail);
                false
            }
        }
    }

    /// The mode of the file behind a link, which `storage` does not return: looked up by following the link
    /// and used only if it is the file that `storage` found.
    fn mode_behind(&self, level: &Level, name: &[u8], found: &Identity) -> u32 {
        let followed = level.directory.as_ref().and_then(|at| fs::statat(at, name, AtFlags::empty()).ok());
        followed.filter(|stat| Identity::from(stat) == *found).map_or(0o644, |stat| stat.st_mode)
    }

    fn is_included(&mut self, path: &[u8], is_directory: bool) -> bool {
        if self.options.filters.is_empty() {
            return true;
        }
        let relative = String::from_utf8_lossy(&path[self.base.len()..]);
        let included = if self.options.prefix.is_empty() || !self.is_directory {
            self.options.filters.includes(&relative, is_directory)
        } else {
            self.options.filters.includes(&format!("{}/{relative}", self.options.prefix), is_directory)
        };
        self.excluded += u64::from(!included);
        included
    }

    /// The LFN of `path`; none, after reporting why, if it cannot have one.
    fn name(&mut self, path: &[u8], directory: bool) -> Option<Lfn> {
        let Ok(text) = std::str::from_utf8(&path[self.base.len()..]) else {
            self.left_out(path, directory, SkipReason::NotUtf8, "the name is not UTF-8");
            return None;
        };
        match Lfn::parse(text) {
            Ok(name) => Some(name),
            Err(error) => {
                self.left_out(path, directory, SkipReason::NameRules, &format!("the name {}", error.why));
                None
            }
        }
    }

    fn unreadable(&mut self, path: &[u8], directory: bool, errno: Errno) {
        // Otherwise it was removed or replaced since its directory was read.
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            let why = std::io::Error::from(errno).to_string();
            self.left_out(path, directory, SkipReason::Unreadable, &why);
        }
    }

    fn left_out(&mut self, path: &[u8], directory: bool, reason: SkipReason, detail: &str) {
        let path = &path[self.base.len()..];
        let mut shown = match std::str::from_utf8(path) {
            Ok(text) => printable(text),
            Err(_) => path.escape_ascii().to_string(),
        };
        if directory {
            shown.push('/');
        }
        self.ready.push_back(WalkEntry::LeftOut(LeftOutEntry {
            path: shown,
            reason,
            detail: detail.to_owned(),
        }));
    }
}

impl Iterator for Walk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        while self.ready.is_empty() && !self.levels.is_empty() {
            self.step();
        }
        self.ready.pop_front()
    }
}

impl Level {
    fn new(path: Vec<u8>, stat: &fs::Stat) -> Level {
        Level {
            path,
            names: Vec::new(),
            more_after: None,
            directory: None,
            is_used: false,
            mode: stat.st_mode & MODE_BITS,
            mtime_ns: Identity::from(stat).mtime_ns,
        }
    }
}

/// Opens a tree as a read-only storage.
fn read_only(root: &Path) -> Result<Posix, Fault> {
    Posix::open(PosixOptions {
        name: StorageName::parse("source")
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()))?,
        root: root.to_owned(),
        work: None,
        writable: false,
        flush: FlushPolicy::None,
    })
}

/// Why a link does not count as a file, from the storage's fault.
fn link_fault_reason(fault: &Fault) -> (SkipReason, &str) {
    let text = fault.detail.as_str();
    let after = |mark: &str| text.find(mark).map(|at| &text[at..]);
    if let Some(detail) = after("leads out").or(after("leads into")) {
        (SkipReason::LinkLeadsOut, detail)
    } else if after("is a directory").is_some() {
        (SkipReason::LinkLeadsOut, "a link to a directory of this tree")
    } else if let Some(detail) = after("leads to nothing").or(after("leads in a circle")) {
        (SkipReason::BrokenLink, detail)
    } else if fault.code == FaultCode::SourceMissing {
        (SkipReason::BrokenLink, "leads to nothing")
    } else if after("device, pipe or socket").is_some() {
        (SkipReason::Device, "a link to a device, pipe or socket")
    } else {
        (SkipReason::Unreadable, text)
    }
}
