//! Open files.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_model::{Fault, FaultCode};
use rustix::fs::{self, Advice};
use rustix::io::{self, Errno};

use super::FlushPolicy;
use super::fault::{Role, fault};
use super::flush::Flusher;
use super::work::Work;
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

pub(super) struct Source {
    pub(super) file: OwnedFd,
    pub(super) identity: Identity,
    /// For messages.
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
        read_full(&self.file, buffer, offset)
            .map_err(|errno| fault(Role::Read, errno, format_args!("{} at byte {offset}", self.shown)))
    }
}

pub(super) struct Target {
    pub(super) file: OwnedFd,
    pub(super) temp: TempName,
    pub(super) shown: String,
    pub(super) work: Arc<Work>,
    pub(super) flusher: Arc<Flusher>,
    /// Whether a flush has covered the temporary name as well.
    pub(super) name_flushed: AtomicBool,
    /// The extent of the last hint.
    pub(super) hinted: Mutex<Option<(u64, u64)>>,
}

impl TargetFile for Target {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match io::pwrite(&self.file, &bytes[done..], at) {
                Ok(0) => {
                    let detail = format!("{} at byte {at}: the disk takes nothing", self.shown);
                    return Err(Fault::new(FaultCode::TargetWrite, detail));
                }
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(fault(Role::Write, errno, format_args!("{} at byte {at}", self.shown)));
                }
            }
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        // What we wrote ourselves and cannot read back is a fault of this storage as a target.
        read_full(&self.file, buffer, offset).map_err(|errno| {
            fault(Role::Write, errno, format_args!("reading back {} at byte {offset}", self.shown))
        })
    }

    fn begin_writeback(&self, offset: u64, len: u64) {
        if self.flusher.policy() == FlushPolicy::None || len == 0 {
            return;
        }
        writeback::begin(self.file.as_fd(), offset, len);
        let before = {
            let mut hinted = self.hinted.lock().unwrap_or_else(PoisonError::into_inner);
            hinted.replace((offset, len))
        };
        // One extent later its pages are likely to be clean, and only clean ones are dropped.
        if let Some((offset, len)) = before {
            let _ = fs::fadvise(&self.file, offset, std::num::NonZeroU64::new(len), Advice::DontNeed);
        }
    }

    fn flush(&self) -> Result<(), Fault> {
        if self.flusher.policy() == FlushPolicy::None {
            return Ok(());
        }
        let flushed = self.flusher.flush_open(&self.file, &self.temp).and_then(|()| {
            // Once: progress is lost with the name as well as with the bytes.
            if !self.name_flushed.load(Ordering::Acquire) {
                io::retry_on_intr(|| fs::fsync(self.work.temps_directory()))?;
                self.name_flushed.store(true, Ordering::Release);
            }
            Ok(())
        });
        flushed.map_err(|errno| fault(Role::Write, errno, format_args!("flushing {}", self.shown)))
    }
}
