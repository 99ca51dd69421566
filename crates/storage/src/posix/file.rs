//! Open files.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use longhaul_model::{Fault, FaultCode};
use parking_lot::Mutex;
use rustix::fs::{self, Advice};
use rustix::io::{self, Errno};

use super::FlushPolicy;
use super::direct::Direct;
use super::fault::{Role, fault};
use super::flush::Flusher;
use super::work::{OpenMode, WorkDirectory};
use super::writeback;
use crate::{Identity, SourceFile, TargetFile, TempName};

impl From<&fs::Stat> for Identity {
    fn from(stat: &fs::Stat) -> Identity {
        let nanoseconds = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        let mtime_ns = nanoseconds.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        Identity { size: stat.st_size.max(0) as u64, mtime_ns, inode: stat.st_ino }
    }
}

/// Reads until `buffer` is full or the file ends.
fn read_full(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match io::pread(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Reads the aligned part with direct I/O and the rest through the cache.
fn read_both_ways(
    direct: Option<&Direct>,
    file: &OwnedFd,
    buffer: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let done = direct.map_or(Ok(0), |direct| direct.read(buffer, offset))?;
    Ok(done + read_full(file, &mut buffer[done..], offset + done as u64)?)
}

/// Writes the rest behind `done`, and updates `done` even if it fails.
pub(super) fn write_all(
    file: &OwnedFd,
    bytes: &[u8],
    offset: u64,
    done: &mut usize,
    shown: &dyn Fn() -> String,
) -> Result<(), Fault> {
    while *done < bytes.len() {
        let at = offset + *done as u64;
        match io::pwrite(file, &bytes[*done..], at) {
            Ok(0) => {
                let detail = format!("{} at byte {at}: the disk takes nothing", shown());
                return Err(Fault::new(FaultCode::TargetWrite, detail));
            }
            Ok(written) => *done += written,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(fault(Role::Write, errno, format_args!("{} at byte {at}", shown()))),
        }
    }
    Ok(())
}

pub(super) struct Source {
    pub(super) file: OwnedFd,
    pub(super) direct: Option<Direct>,
    pub(super) identity: Identity,
    /// The name in messages.
    pub(super) shown: String,
}

impl SourceFile for Source {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn identity_now(&self) -> Result<Identity, Fault> {
        let stat = fs::fstat(&self.file).map_err(|errno| fault(Role::Read, errno, &self.shown))?;
        Ok(Identity::from(&stat))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        read_both_ways(self.direct.as_ref(), &self.file, buffer, offset)
            .map_err(|errno| fault(Role::Read, errno, format_args!("{} at byte {offset}", self.shown)))
    }
}

pub(super) struct Target {
    pub(super) file: OwnedFd,
    pub(super) direct: Option<Direct>,
    /// The end of the file, on an append-only storage.
    pub(super) end: Option<Mutex<u64>>,
    /// For reading back there, where `file` is write-only.
    pub(super) reader: OnceLock<OwnedFd>,
    pub(super) temp: TempName,
    pub(super) shown: String,
    pub(super) work: Arc<WorkDirectory>,
    pub(super) flusher: Arc<Flusher>,
    /// Whether a flush has covered the temporary name as well.
    pub(super) name_flushed: AtomicBool,
    /// The extent of the previous hint.
    pub(super) hinted: Mutex<Option<(u64, u64)>>,
}

impl Target {
    /// Writes from `offset` on, and updates `done` even if it fails.
    fn write_from(&self, bytes: &[u8], offset: u64, done: &mut usize) -> Result<(), Fault> {
        if let Some(direct) = &self.direct {
            *done += direct.write(bytes, offset).map_err(|errno| self.not_written(errno, offset))?;
        }
        write_all(&self.file, bytes, offset, done, &|| self.shown.clone())
    }

    fn not_written(&self, errno: Errno, at: u64) -> Fault {
        fault(Role::Write, errno, format_args!("{} at byte {at}", self.shown))
    }

    fn for_reading(&self) -> io::Result<&OwnedFd> {
        if self.end.is_none() {
            return Ok(&self.file);
        }
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let opened = self.work.reopen(&self.temp, OpenMode::Read)?.ok_or(Errno::NOENT)?;
        Ok(self.reader.get_or_init(|| opened))
    }
}

impl TargetFile for Target {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let mut done = 0;
        let Some(end) = &self.end else { return self.write_from(bytes, offset, &mut done) };
        let mut end = end.lock();
        if *end != offset {
            let detail =
                format!("{}: byte {offset} came when byte {end} was due; it only appends", self.shown);
            return Err(Fault::new(FaultCode::Internal, detail));
        }
        let written = self.write_from(bytes, offset, &mut done);
        *end += done as u64;
        written
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        // Failing to read back our own write is a fault of this storage as a target.
        let mut read = || read_both_ways(self.direct.as_ref(), self.for_reading()?, buffer, offset);
        read().map_err(|errno| {
            fault(Role::Write, errno, format_args!("reading back {} at byte {offset}", self.shown))
        })
    }

    fn begin_writeback(&self, offset: u64, len: u64) {
        // Direct writes are not in the cache.
        let is_direct = self.direct.as_ref().is_some_and(Direct::is_on);
        if self.flusher.policy() == FlushPolicy::None || len == 0 || is_direct {
            return;
        }
        writeback::begin(self.file.as_fd(), offset, len);
        let before = {
            let mut hinted = self.hinted.lock();
            hinted.replace((offset, len))
        };
        // One extent later its pages are likely to be clean, and only clean pages are evicted.
        if let Some((offset, len)) = before {
            let _ = fs::fadvise(&self.file, offset, std::num::NonZeroU64::new(len), Advice::DontNeed);
        }
    }

    fn flush(&self) -> Result<(), Fault> {
        if self.flusher.policy() == FlushPolicy::None {
            return Ok(());
        }
        let flushed = self.flusher.flush_open(&self.file, &self.temp).and_then(|()| {
            // Only once: progress is lost with the name as well as with the bytes.
            if !self.name_flushed.load(Ordering::Acquire) {
                io::retry_on_intr(|| fs::fsync(self.work.temps_directory()))?;
                self.name_flushed.store(true, Ordering::Release);
            }
            Ok(())
        });
        flushed.map_err(|errno| fault(Role::Write, errno, format_args!("flushing {}", self.shown)))
    }
}
