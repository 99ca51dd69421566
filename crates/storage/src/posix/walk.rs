//! An iterative tree walk: every file once per name, and every other entry with the reason why it is skipped.
//!
//! Without recursion, and with a bounded number of names in memory per level: a directory with more than
//! [`NAMES_PER_PAGE_MAX`] names is read several times, each time for the next names in order.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Pfn};
use rustix::fs::{self, Access, AtFlags, FileType, OFlags};
use rustix::io::{self, Errno};

use super::Posix;
use super::fault::{Role, fault};
use super::fault_injector::Syscall;
use super::names::NamePage;
use super::rooted_tree::ResolveError;
use crate::{Identity, SkipReason, Visit};

/// About 5 MB of names per level.
pub(super) const NAMES_PER_PAGE_MAX: usize = 65_536;

type Visitor<'a> = &'a mut dyn FnMut(Visit) -> ControlFlow<()>;

pub(super) fn walk(posix: &Posix, path: &str, visit: Visitor<'_>) -> Result<(), Fault> {
    let shown = if path.is_empty() { "the root" } else { path };
    let failed =
        |errno| fault(Role::Read, errno, format_args!("walking {}:{}", posix.name, printable(shown)));
    if !path.is_empty() {
        let start = Pfn::new(posix.name.clone(), path)?;
        posix.refuse_reserved(&start)?;
    }
    let stat = posix.rooted_tree.stat(path.as_bytes()).map_err(failed)?;
    let mut walk = Walk { posix, visit };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            // The caller named it, so failing to read it is an error and not a skipped entry.
            posix.rooted_tree.open(path.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
            let _ = walk.tree(path.as_bytes());
            Ok(())
        }
        FileType::RegularFile => {
            let _ = walk.file(path.as_bytes(), &stat);
            Ok(())
        }
        _ => {
            let detail = format!("{}:{} is neither a directory nor a file", posix.name, printable(path));
            Err(Fault::new(FaultCode::SourceUnreadable, detail))
        }
    }
}

/// An open level of the walk.
struct Level {
    path: Vec<u8>,
    /// Names still to be visited, in reverse order.
    names: Vec<Vec<u8>>,
    /// The last name of this page, if more follow it.
    more_after: Option<Vec<u8>>,
    /// Closed while a subdirectory is walked, so that depth costs no descriptors.
    directory: Option<OwnedFd>,
}

struct Walk<'a> {
    posix: &'a Posix,
    visit: Visitor<'a>,
}

impl Walk<'_> {
    fn tree(&mut self, start: &[u8]) -> ControlFlow<()> {
        let mut levels = Vec::new();
        levels.extend(self.enter(start.to_vec())?);
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                match level.more_after.take() {
                    Some(last) => self.turn_page(level, &last)?,
                    None => {
                        levels.pop();
                    }
                }
                continue;
            };
            if let Some(path) = self.entry(level, &name)? {
                level.directory = None;
                levels.extend(self.enter(path)?);
            }
        }
        ControlFlow::Continue(())
    }

    /// Opens a directory and reads its first names.
    fn enter(&mut self, path: Vec<u8>) -> ControlFlow<(), Option<Level>> {
        let mut level = Level { path, names: Vec::new(), more_after: None, directory: None };
        match self.read_page(&mut level, None) {
            Ok(true) => {}
            Ok(false) if level.path.is_empty() => {}
            Ok(false) => self.left_out(&level.path, true, SkipReason::EmptyDirectory, "nothing is in it")?,
            Err(errno) => {
                self.unreadable(&level.path, true, errno)?;
                return ControlFlow::Continue(None);
            }
        }
        ControlFlow::Continue(Some(level))
    }

    fn turn_page(&mut self, level: &mut Level, last: &[u8]) -> ControlFlow<()> {
        match self.read_page(level, Some(last)) {
            Ok(_) => ControlFlow::Continue(()),
            Err(errno) => self.unreadable(&level.path, true, errno),
        }
    }

    /// Reads the smallest names after `after`; returns whether the directory holds anything at all.
    fn read_page(&self, level: &mut Level, after: Option<&[u8]>) -> io::Result<bool> {
        self.posix.fault_injector.before(Syscall::ReadDirectory, &String::from_utf8_lossy(&level.path))?;
        let directory = self.posix.rooted_tree.open(&level.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let is_ours = |name: &[u8]| self.posix.rooted_tree.is_reserved(&join(&level.path, name));
        let page = NamePage::read(&directory, after, self.posix.names_at_once, is_ours)?;
        (level.names, level.more_after) = (page.names, page.more_after);
        level.directory = Some(directory);
        Ok(page.any)
    }

    /// Visits one entry; returns the path of a directory to enter.
    fn entry(&mut self, level: &mut Level, name: &[u8]) -> ControlFlow<(), Option<Vec<u8>>> {
        let path = join(&level.path, name);
        let stat = match self.stat(level, name) {
            Ok(stat) => stat,
            Err(errno) => {
                self.unreadable(&path, false, errno)?;
                return ControlFlow::Continue(None);
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return match self.pfn(&path, true)? {
                Some(_) => ControlFlow::Continue(Some(path)),
                None => ControlFlow::Continue(None),
            };
        }
        match kind {
            FileType::RegularFile => self.file(&path, &stat)?,
            FileType::Symlink => self.link(&path)?,
            FileType::Socket => self.left_out(&path, false, SkipReason::Socket, "a socket")?,
            FileType::Fifo => self.left_out(&path, false, SkipReason::Fifo, "a named pipe")?,
            _ => self.left_out(&path, false, SkipReason::Device, "a device")?,
        }
        ControlFlow::Continue(None)
    }

    fn stat(&self, level: &mut Level, name: &[u8]) -> io::Result<fs::Stat> {
        let directory = match level.directory.take() {
            Some(directory) => directory,
            None => self.posix.rooted_tree.open(&level.path, OFlags::RDONLY | OFlags::DIRECTORY)?,
        };
        let stat = fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
        level.directory = Some(directory);
        stat
    }

    fn file(&mut self, path: &[u8], stat: &fs::Stat) -> ControlFlow<()> {
        self.regular(path, path, stat)
    }

    /// Visits a regular file named `path` whose real path is `real`.
    fn regular(&mut self, path: &[u8], real: &[u8], stat: &fs::Stat) -> ControlFlow<()> {
        let Some(at) = self.pfn(path, false)? else { return ControlFlow::Continue(()) };
        match self.may_read(real) {
            Ok(()) => (self.visit)(Visit::File { at, identity: Identity::from(stat) }),
            Err(errno) => self.unreadable(path, false, errno),
        }
    }

    fn may_read(&self, path: &[u8]) -> io::Result<()> {
        self.posix.fault_injector.before(Syscall::MayRead, &String::from_utf8_lossy(path))?;
        let (parent, name) = super::rooted_tree::split(path);
        let directory = self.posix.rooted_tree.open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        match fs::accessat(&directory, name, Access::READ_OK, AtFlags::EACCESS) {
            // An old kernel cannot tell; the read will.
            Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
            done => done,
        }
    }

    fn link(&mut self, path: &[u8]) -> ControlFlow<()> {
        let real = match self.posix.rooted_tree.resolve(path) {
            Ok(real) => real,
            Err(astray) => {
                let (reason, detail) = match astray {
                    ResolveError::Out => (SkipReason::LinkLeadsOut, "a link that leads out of the storage"),
                    ResolveError::WorkDirectory => {
                        (SkipReason::LinkLeadsOut, "a link into the work directory")
                    }
                    ResolveError::Broken => (SkipReason::BrokenLink, "a link to nothing"),
                    ResolveError::Loop => (SkipReason::BrokenLink, "a link that leads in a circle"),
                    ResolveError::Errno(errno) => return self.unreadable(path, false, errno),
                };
                return self.left_out(path, false, reason, detail);
            }
        };
        let stat = match self.posix.rooted_tree.stat(&real) {
            Ok(stat) => stat,
            Err(errno) => return self.unreadable(path, false, errno),
        };
        let (reason, detail) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return self.regular(path, &real, &stat),
            FileType::Directory => (
                SkipReason::LinkLeadsOut,
                "a link to a directory of this storage, whose files have names of their own there",
            ),
            FileType::Socket => (SkipReason::Socket, "a link to a socket"),
            FileType::Fifo => (SkipReason::Fifo, "a link to a named pipe"),
            _ => (SkipReason::Device, "a link to a device"),
        };
        self.left_out(path, false, reason, detail)
    }

    /// The name of `path`, or a report of why it cannot have one.
    fn pfn(&mut self, path: &[u8], directory: bool) -> ControlFlow<(), Option<Pfn>> {
        let Ok(text) = std::str::from_utf8(path) else {
            self.left_out(path, directory, SkipReason::NotUtf8, "the name is not UTF-8")?;
            return ControlFlow::Continue(None);
        };
        match Pfn::new(self.posix.name.clone(), text) {
            Ok(at) => ControlFlow::Continue(Some(at)),
            Err(error) => {
                self.left_out(path, directory, SkipReason::NameRules, &format!("the name {}", error.why))?;
                ControlFlow::Continue(None)
            }
        }
    }

    fn unreadable(&mut self, path: &[u8], directory: bool, errno: Errno) -> ControlFlow<()> {
        // Gone or replaced since its directory was read.
        if matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            return ControlFlow::Continue(());
        }
        self.left_out(path, directory, SkipReason::Unreadable, &std::io::Error::from(errno).to_string())
    }

    fn left_out(
        &mut self,
        path: &[u8],
        directory: bool,
        reason: SkipReason,
        detail: &str,
    ) -> ControlFlow<()> {
        let mut shown = match std::str::from_utf8(path) {
            Ok(text) => printable(text),
            Err(_) => path.escape_ascii().to_string(),
        };
        if directory {
            shown.push('/');
        }
        (self.visit)(Visit::Skipped { path: shown, reason, detail: detail.to_owned() })
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}
