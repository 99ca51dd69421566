//! Fencing of writers by their work directories: `.longhaul/temps-ID` holds the temporary files of a writer,
//! `.longhaul/temps-ID.lock` is locked (flock) while it runs. What the interface promises follows from three
//! properties of directories: a commit names its temporary file in the writer's directory; a directory that
//! was removed takes no new names, though it is still open somewhere; and only an empty one can be removed.

use std::os::fd::OwnedFd;

use longhaul_model::{Fault, FaultCode};
use rustix::fs::{self, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{self, Errno};

use super::Posix;
use super::fault::{Role, fault};
use super::work::{TEMPS, make_inside};
use crate::{FenceResult, WriterFencing, WriterId};

/// How often a directory is emptied that its writer goes on filling.
const EMPTY_TRIES_MAX: usize = 1_000;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Private to this program.
const PRIVATE_DIRECTORY: Mode = Mode::from_raw_mode(0o700);
const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);

/// A writer's lock, until it is dropped or the process ends.
pub(super) struct WriterLock(OwnedFd);

impl WriterLock {
    /// None if another program holds it.
    fn acquire(work: &OwnedFd, writer: WriterId) -> io::Result<Option<WriterLock>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(work, format!("{}.lock", temps_of(writer)), flags, PRIVATE_FILE)?;
        match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(WriterLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        // Closing alone would leave it to a child between fork and exec, which shares all open files.
        let _ = fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// The name of a writer's directory of temporary files.
pub(super) fn temps_of(writer: WriterId) -> String {
    format!("{TEMPS}-{writer}")
}

/// Opens the directory of temporary files of a writer that is not fenced.
pub(super) fn open_temps(work: &OwnedFd, writer: WriterId) -> Result<OwnedFd, Fault> {
    let name = temps_of(writer);
    match fs::openat(work, name.as_str(), DIRECTORY, Mode::empty()) {
        Ok(temps) => Ok(temps),
        Err(Errno::NOENT) => {
            let detail = format!("{name} is gone: another agent of this root has taken over what was begun");
            Err(Fault::new(FaultCode::TargetWrite, detail))
        }
        Err(errno) => Err(fault(Role::Write, errno, format_args!("the work directory {name}"))),
    }
}

fn is_running(writer: WriterId) -> Fault {
    let detail = format!("another program writes to this root as agent {writer}, or is just being fenced");
    Fault::new(FaultCode::Conflict, detail)
}

impl WriterFencing for Posix {
    fn is_fenced(&self) -> Result<bool, Fault> {
        let Some(writer) = self.writer else { return Ok(false) };
        let failed = |errno| fault(Role::Write, errno, format_args!("the work directory of {}", self.name));
        let work = make_inside(&self.rooted_tree).map_err(failed)?;
        let found = match fs::statat(&work, temps_of(writer), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => stat,
            Ok(_) | Err(Errno::NOENT) => return Ok(true),
            Err(errno) => return Err(failed(errno)),
        };
        // One that was made anew since is not the one that is open here.
        let Some(open) = self.existing_work_directory() else { return Ok(false) };
        let open = fs::fstat(open.temps_directory()).map_err(failed)?;
        Ok((open.st_dev, open.st_ino) != (found.st_dev, found.st_ino))
    }

    fn rejoin(&self) -> Result<(), Fault> {
        let Some(writer) = self.writer else { return Ok(()) };
        if !self.is_fenced()? {
            return self.work().map(drop);
        }
        let failed = |errno| fault(Role::Write, errno, format_args!("the work directory of {}", self.name));
        *self.work.lock() = None;
        let work = make_inside(&self.rooted_tree).map_err(failed)?;
        match fs::mkdirat(&work, temps_of(writer), PRIVATE_DIRECTORY) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        fs::fsync(&work).map_err(failed)?;
        self.work().map(drop)
    }

    fn fence(&self, writer: WriterId, even_if_locked: bool) -> Result<FenceResult, Fault> {
        if self.writer == Some(writer) {
            return Err(Fault::new(FaultCode::BadRequest, format!("agent {writer} cannot fence itself")));
        }
        let failed =
            |errno| fault(Role::Write, errno, format_args!("fencing agent {writer} in {}", self.name));
        let work = make_inside(&self.rooted_tree).map_err(failed)?;
        let lock = WriterLock::acquire(&work, writer).map_err(failed)?;
        if lock.is_none() && !even_if_locked {
            return Ok(FenceResult::Locked);
        }
        remove_temps(&work, &temps_of(writer)).map_err(failed)?;
        // Durable before anybody relies on it.
        fs::fsync(&work).map_err(failed)?;
        Ok(FenceResult::Fenced)
    }
}

impl Posix {
    /// Takes the lock of this writer, unless it holds it. It is held until the storage is dropped.
    pub(super) fn lock_writer(&self) -> Result<(), Fault> {
        let mut held = self.writer_lock.lock();
        let Some(writer) = self.writer.filter(|_| held.is_none()) else { return Ok(()) };
        let failed = |errno| fault(Role::Write, errno, format_args!("the lock in the root of {}", self.name));
        let work = make_inside(&self.rooted_tree).map_err(failed)?;
        *held = Some(WriterLock::acquire(&work, writer).map_err(failed)?.ok_or_else(|| is_running(writer))?);
        Ok(())
    }

    /// A deletion needs no temporary file that a fence would take away.
    pub(super) fn refuse_if_fenced(&self) -> Result<(), Fault> {
        match self.is_fenced()? {
            false => Ok(()),
            true => {
                let detail =
                    format!("{} is written by another agent now, which has fenced this one", self.name);
                Err(Fault::new(FaultCode::TargetWrite, detail))
            }
        }
    }
}

/// Removes a writer's directory with all that is in it.
fn remove_temps(work: &OwnedFd, name: &str) -> io::Result<()> {
    let temps = match fs::openat(work, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    for _ in 0..EMPTY_TRIES_MAX {
        for entry in Dir::read_from(&temps)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            match fs::unlinkat(&temps, entry.file_name(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        match fs::unlinkat(work, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Its writer runs, and has made another file.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOTEMPTY)
}
