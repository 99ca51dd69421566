//! Large files past the page cache, where the file system can: writing as long as the disk is a fast one,
//! since the copy into the cache costs several times the CPU of the write and its pages are dropped soon
//! after; reading only where the site asks for it, since the cache reads ahead and may hold the file.
//!
//! What is aligned (memory, offset, length) goes straight to the disk; the rest of a call, such as the last
//! bytes of a file, goes the ordinary way. A file system that refuses is told of once, and is used the
//! ordinary way from then on.
//!
//! A slow disk (one that rotates, or an array of those, which wants to write whole stripes) is better off
//! with the cache, where writes are merged. What the kernel says of a disk does not tell which it is (a
//! virtual one always rotates), so the time of the writes does.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_model::StorageName;
use rustix::fs::{self, OFlags};
use rustix::io::{self, Errno};

use super::seam::{Call, Seam};
use crate::Identity;

/// Every disk in use takes this; many take less.
const ALIGNMENT: usize = 4096;

/// When files of more than a megabyte go past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// What is written, on ext4 and XFS, as long as the disk is fast.
    #[default]
    FastWrites,
    Always,
    Never,
}

/// Local file systems that write past the page cache as one expects: ext2 to ext4 and XFS. Those that compute
/// checksums of what they write (Btrfs, ZFS) copy it anyway, and network file systems wait for each write.
const WRITES_DIRECTLY: [fs::FsWord; 2] = [0xef53, 0x5846_5342];
/// A disk that takes longer for a mebibyte is slow: all that rotate do, none that does not.
const SLOW_PER_MIB: Duration = Duration::from_millis(5);
/// Judged over so many bytes at a time.
const JUDGED_BYTES: u64 = 32 << 20;
/// A slow disk is tried again after this: others may have kept it busy.
const TRIED_AGAIN: Duration = Duration::from_secs(600);
const MIB: f64 = 1_048_576.0;

/// Whether a storage goes past the page cache.
pub(super) struct Switch {
    storage: StorageName,
    on: AtomicBool,
    /// None: whatever it takes.
    pace: Option<Pace>,
}

/// How fast a disk takes what goes past the cache.
#[derive(Default)]
struct Pace {
    under_way: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    bytes: u64,
    /// The time of one write counts for as many as were under way with it.
    took: Duration,
    slow_since: Option<Instant>,
}

impl Switch {
    fn new(storage: &StorageName, on: bool, pace: Option<Pace>) -> Arc<Switch> {
        Arc::new(Switch { storage: storage.clone(), on: AtomicBool::new(on), pace })
    }

    /// For reading, and for writing.
    pub(super) fn pair(storage: &StorageName, wish: DirectIo, root: &OwnedFd) -> (Arc<Switch>, Arc<Switch>) {
        let both = |on| {
            let switch = Switch::new(storage, on, None);
            (switch.clone(), switch)
        };
        match wish {
            DirectIo::Always => both(true),
            DirectIo::Never => both(false),
            DirectIo::FastWrites => {
                let can = fs::fstatfs(root).is_ok_and(|found| WRITES_DIRECTLY.contains(&found.f_type));
                (Switch::new(storage, false, None), Switch::new(storage, can, can.then(Pace::default)))
            }
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether the next file goes past the cache.
    fn begins(&self, now: Instant) -> bool {
        if let Some(pace) = self.pace.as_ref().filter(|_| !self.is_on()) {
            let mut seen = pace.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.slow_since.is_some_and(|since| now.saturating_duration_since(since) >= TRIED_AGAIN) {
                *seen = Seen::default();
                self.on.store(true, Ordering::Relaxed);
            }
        }
        self.is_on()
    }

    fn refused(&self, errno: Errno) {
        if !self.on.swap(false, Ordering::Relaxed) {
            return;
        }
        let why = std::io::Error::from(errno);
        if self.pace.is_none() {
            tracing::warn!(
                storage = %self.storage, %why,
                "the file system refuses direct I/O: files go through the page cache, as without `direct_io`"
            );
        } else {
            tracing::debug!(storage = %self.storage, %why, "the file system refuses direct I/O");
        }
    }

    fn timed<T>(&self, bytes: usize, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Some(pace) = &self.pace else { return operation() };
        let at_once = pace.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        let began = Instant::now();
        let done = operation();
        pace.under_way.fetch_sub(1, Ordering::Relaxed);
        let now = Instant::now();
        self.took(pace, bytes as u64, now.saturating_duration_since(began) / at_once as u32, now);
        done
    }

    fn took(&self, pace: &Pace, bytes: u64, took: Duration, now: Instant) {
        let mut seen = pace.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.bytes += bytes;
        seen.took += took;
        if seen.bytes < JUDGED_BYTES {
            return;
        }
        let per_mib = seen.took.div_f64(seen.bytes as f64 / MIB);
        *seen = Seen { slow_since: (per_mib > SLOW_PER_MIB).then_some(now), ..Seen::default() };
        if seen.slow_since.is_some() && self.on.swap(false, Ordering::Relaxed) {
            tracing::info!(storage = %self.storage, ?per_mib, "the disk is slow: files go through the page \
                cache");
        }
    }
}

/// A second descriptor of an open file.
pub(super) struct Direct {
    file: OwnedFd,
    switch: Arc<Switch>,
}

impl Direct {
    /// `open` opens, with these flags besides its own, what `file` is; none if that is another file by now,
    /// or if the file system refuses.
    pub(super) fn of(
        file: &OwnedFd,
        switch: &Arc<Switch>,
        seam: &Seam,
        open: impl FnOnce(OFlags) -> io::Result<OwnedFd>,
    ) -> Option<Direct> {
        if !switch.begins(Instant::now()) {
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

    pub(super) fn is_on(&self) -> bool {
        self.switch.is_on()
    }

    /// Reads the aligned part of what is asked for; the caller reads on from there.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let most = self.aligned(buffer, offset);
        self.each(most, |done| io::pread(&self.file, &mut buffer[done..most], offset + done as u64))
    }

    /// Writes the aligned part; the caller writes on from there.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let most = self.aligned(bytes, offset);
        if most == 0 {
            return Ok(0);
        }
        let write = |done: usize| io::pwrite(&self.file, &bytes[done..most], offset + done as u64);
        self.switch.timed(most, || self.each(most, write))
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
        // After an odd number of bytes (the end of the file, a full disk) the ordinary way finds out what is
        // the matter.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn on_ext4() -> Switch {
        Switch { storage: "disk".parse().unwrap(), on: AtomicBool::new(true), pace: Some(Pace::default()) }
    }

    #[test]
    fn a_slow_disk_is_left_to_the_cache_for_a_while() {
        let switch = on_ext4();
        let pace = switch.pace.as_ref().unwrap();
        let now = Instant::now();
        let write = |millis| switch.took(pace, 1 << 20, Duration::from_millis(millis), now);
        // One slow write among fast ones is nothing.
        (0..63).for_each(|_| write(1));
        write(100);
        assert!(switch.begins(now));
        (0..31).for_each(|_| write(6));
        assert!(switch.begins(now), "not judged yet");
        write(6);
        assert!(!switch.is_on() && !switch.begins(now + TRIED_AGAIN / 2));
        assert!(switch.begins(now + TRIED_AGAIN) && switch.is_on());
    }

    #[test]
    fn a_refusal_is_for_good() {
        let switch = on_ext4();
        switch.refused(Errno::INVAL);
        assert!(!switch.begins(Instant::now() + 2 * TRIED_AGAIN));
    }

    #[test]
    fn who_shares_the_disk_shares_the_time() {
        let switch = on_ext4();
        let pace = switch.pace.as_ref().unwrap();
        pace.under_way.store(3, Ordering::Relaxed);
        let slept = || {
            std::thread::sleep(Duration::from_millis(8));
            Ok(())
        };
        switch.timed(1 << 20, slept).unwrap();
        let seen = pace.seen.lock().unwrap();
        assert!(seen.took >= Duration::from_millis(2) && seen.bytes == 1 << 20);
        assert_eq!(pace.under_way.load(Ordering::Relaxed), 3);
    }
}
