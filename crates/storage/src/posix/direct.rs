//! Large files past the page cache, where the site asks for it and the file system can.
//!
//! What is aligned (memory, offset, length) goes straight to the disk; the rest of a call, such as the last bytes of a
//! file, goes the ordinary way. A file system that refuses is told of once, and is used the ordinary way from then on.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_model::StorageName;
use rustix::fs::{self, OFlags};
use rustix::io::{self, Errno};

use super::seam::{Call, Seam};
use crate::Identity;

/// Every disk in use takes this; many take less.
const ALIGNMENT: usize = 4096;

/// Whether a storage goes past the page cache.
pub(super) struct Switch {
    storage: StorageName,
    on: AtomicBool,
}

impl Switch {
    pub(super) fn new(storage: StorageName, on: bool) -> Arc<Switch> {
        Arc::new(Switch { storage, on: AtomicBool::new(on) })
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn refused(&self, errno: Errno) {
        if self.on.swap(false, Ordering::Relaxed) {
            let why = std::io::Error::from(errno);
            tracing::warn!(
                storage = %self.storage, %why,
                "the file system refuses direct I/O: files go through the page cache, as without `direct_io`"
            );
        }
    }
}

/// A second descriptor of an open file.
pub(super) struct Direct {
    file: OwnedFd,
    switch: Arc<Switch>,
}

impl Direct {
    /// `open` opens, with these flags besides its own, what `file` is; none if that is another file by now, or if the
    /// file system refuses.
    pub(super) fn of(
        file: &OwnedFd,
        switch: &Arc<Switch>,
        seam: &Seam,
        open: impl FnOnce(OFlags) -> io::Result<OwnedFd>,
    ) -> Option<Direct> {
        if !switch.is_on() {
            return None;
        }
        let second = seam.before(Call::OpenDirect, "").and_then(|()| open(OFlags::DIRECT));
        match second {
            Ok(second) => {
                let (one, other) = (fs::fstat(file).ok()?, fs::fstat(&second).ok()?);
                let same =
                    one.st_dev == other.st_dev && Identity::from(&one).inode == Identity::from(&other).inode;
                same.then(|| Direct { file: second, switch: switch.clone() })
            }
            Err(errno) => {
                if is_refusal(errno) {
                    switch.refused(errno);
                }
                None
            }
        }
    }

    /// Reads the aligned part of what is asked for; the caller reads on from there.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let most = self.aligned(buffer, offset);
        self.each(most, |done| io::pread(&self.file, &mut buffer[done..most], offset + done as u64))
    }

    /// Writes the aligned part; the caller writes on from there.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let most = self.aligned(bytes, offset);
        self.each(most, |done| io::pwrite(&self.file, &bytes[done..most], offset + done as u64))
    }

    /// How much of the front can go.
    fn aligned(&self, bytes: &[u8], offset: u64) -> usize {
        let fits = self.switch.is_on()
            && (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT)
            && offset.is_multiple_of(ALIGNMENT as u64);
        if fits { bytes.len() / ALIGNMENT * ALIGNMENT } else { 0 }
    }

    fn each(&self, most: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> io::Result<usize> {
        let mut done = 0;
        // After an odd number of bytes (the end of the file, a full disk) the ordinary way finds out what is the matter.
        while done < most && done.is_multiple_of(ALIGNMENT) {
            match step(done) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) if is_refusal(errno) => {
                    self.switch.refused(errno);
                    break;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)
}
