//! Direct I/O (`O_DIRECT`) for large files, where the file system supports it: writing as long as the disk is
//! fast, since the copy into the page cache costs several times the CPU of the write and its pages are
//! evicted soon after; reading only where configured, since the cache reads ahead and may hold the file.
//!
//! Aligned parts (memory, offset, length) go directly to the disk; the rest of a call, such as the end of a
//! file, uses buffered I/O. A file system that refuses is reported once, and uses buffered I/O from then on.
//!
//! A slow disk (rotating, or an array of those that prefers whole stripes) is faster through the cache, where
//! writes are merged. The kernel does not tell which kind a disk is (a virtual one always claims to rotate),
//! so the measured write latency decides.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longhaul_model::StorageName;
use parking_lot::Mutex;
use rustix::fs::{self, OFlags};
use rustix::io::{self, Errno};

use super::fault_injector::{FaultInjector, Syscall};
use crate::Identity;

/// Accepted by every disk in use; many accept less.
const ALIGNMENT: usize = 4096;

/// When files of more than a megabyte use direct I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Writes on ext4 and XFS, as long as the disk is fast.
    #[default]
    FastWrites,
    /// Reads and writes, however slow the disk is.
    Always,
    /// Buffered I/O only.
    Never,
}

/// Local file systems with useful direct writes: ext2 to ext4, and XFS. File systems that checksum their data
/// (Btrfs, ZFS) copy it anyway, and network file systems wait for each write.
const DIRECT_WRITE_FILE_SYSTEMS: [fs::FsWord; 2] = [0xef53, 0x5846_5342];
/// The latency per mebibyte above which a disk is slow: rotating disks exceed it, others do not.
const SLOW_LATENCY_PER_MIB: Duration = Duration::from_millis(5);
/// Bytes per latency sample.
const SAMPLE_BYTES: u64 = 32 << 20;
/// A slow disk is tried again after this time: other load may have slowed it down.
const RETRY_AFTER: Duration = Duration::from_secs(600);
const MIB: f64 = 1_048_576.0;

/// Whether a storage uses direct I/O.
pub(super) struct DirectIoSwitch {
    storage: StorageName,
    on: AtomicBool,
    /// None: independent of the latency.
    pace: Option<WriteLatency>,
}

/// The latency of direct writes.
#[derive(Default)]
struct WriteLatency {
    under_way: AtomicUsize,
    seen: Mutex<LatencySample>,
}

#[derive(Default)]
struct LatencySample {
    bytes: u64,
    /// Total write time; concurrent writes each count their share.
    took: Duration,
    slow_since: Option<Instant>,
}

impl DirectIoSwitch {
    fn new(storage: &StorageName, on: bool, pace: Option<WriteLatency>) -> Arc<DirectIoSwitch> {
        Arc::new(DirectIoSwitch { storage: storage.clone(), on: AtomicBool::new(on), pace })
    }

    /// One switch for reading, one for writing.
    pub(super) fn pair(
        storage: &StorageName,
        wish: DirectIo,
        root: &OwnedFd,
    ) -> (Arc<DirectIoSwitch>, Arc<DirectIoSwitch>) {
        let both = |on| {
            let switch = DirectIoSwitch::new(storage, on, None);
            (switch.clone(), switch)
        };
        match wish {
            DirectIo::Always => both(true),
            DirectIo::Never => both(false),
            DirectIo::FastWrites => {
                let can =
                    fs::fstatfs(root).is_ok_and(|found| DIRECT_WRITE_FILE_SYSTEMS.contains(&found.f_type));
                (
                    DirectIoSwitch::new(storage, false, None),
                    DirectIoSwitch::new(storage, can, can.then(WriteLatency::default)),
                )
            }
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether the next file uses direct I/O.
    fn enabled_for_next_file(&self, now: Instant) -> bool {
        if let Some(pace) = self.pace.as_ref().filter(|_| !self.is_on()) {
            let mut seen = pace.seen.lock();
            if seen.slow_since.is_some_and(|since| now.saturating_duration_since(since) >= RETRY_AFTER) {
                *seen = LatencySample::default();
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
        self.add_sample(pace, bytes as u64, now.saturating_duration_since(began) / at_once as u32, now);
        done
    }

    fn add_sample(&self, pace: &WriteLatency, bytes: u64, took: Duration, now: Instant) {
        let mut seen = pace.seen.lock();
        seen.bytes += bytes;
        seen.took += took;
        if seen.bytes < SAMPLE_BYTES {
            return;
        }
        let per_mib = seen.took.div_f64(seen.bytes as f64 / MIB);
        *seen = LatencySample {
            slow_since: (per_mib > SLOW_LATENCY_PER_MIB).then_some(now),
            ..LatencySample::default()
        };
        if seen.slow_since.is_some() && self.on.swap(false, Ordering::Relaxed) {
            tracing::info!(storage = %self.storage, ?per_mib, "the disk is slow: files go through the page \
                cache");
        }
    }
}

/// A second descriptor of an open file, with `O_DIRECT`.
pub(super) struct Direct {
    file: OwnedFd,
    switch: Arc<DirectIoSwitch>,
}

impl Direct {
    /// `open` opens the file that `file` refers to, with additional flags; none if the name refers to another
    /// file by now, or if the file system refuses.
    pub(super) fn open(
        file: &OwnedFd,
        switch: &Arc<DirectIoSwitch>,
        fault_injector: &FaultInjector,
        open: impl FnOnce(OFlags) -> io::Result<OwnedFd>,
    ) -> Option<Direct> {
        if !switch.enabled_for_next_file(Instant::now()) {
            return None;
        }
        let second = fault_injector.before(Syscall::OpenDirect, "").and_then(|()| open(OFlags::DIRECT));
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

    /// Reads the aligned part of the request; the caller reads the rest.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let most = self.aligned(buffer, offset);
        self.each(most, |done| io::pread(&self.file, &mut buffer[done..most], offset + done as u64))
    }

    /// Writes the aligned part; the caller writes the rest.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let most = self.aligned(bytes, offset);
        if most == 0 {
            return Ok(0);
        }
        let write = |done: usize| io::pwrite(&self.file, &bytes[done..most], offset + done as u64);
        self.switch.timed(most, || self.each(most, write))
    }

    /// Length of the aligned prefix.
    fn aligned(&self, bytes: &[u8], offset: u64) -> usize {
        let fits = self.switch.is_on()
            && (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT)
            && offset.is_multiple_of(ALIGNMENT as u64);
        if fits { bytes.len() / ALIGNMENT * ALIGNMENT } else { 0 }
    }

    fn each(&self, most: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> io::Result<usize> {
        let mut done = 0;
        // After an unaligned count (end of file, full disk) buffered I/O determines the cause.
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

    fn on_ext4() -> DirectIoSwitch {
        DirectIoSwitch {
            storage: "disk".parse().unwrap(),
            on: AtomicBool::new(true),
            pace: Some(WriteLatency::default()),
        }
    }

    #[test]
    fn a_slow_disk_suspends_direct_io() {
        let switch = on_ext4();
        let pace = switch.pace.as_ref().unwrap();
        let now = Instant::now();
        let write = |millis| switch.add_sample(pace, 1 << 20, Duration::from_millis(millis), now);
        // One slow write among fast ones changes nothing.
        (0..63).for_each(|_| write(1));
        write(100);
        assert!(switch.enabled_for_next_file(now));
        (0..31).for_each(|_| write(6));
        assert!(switch.enabled_for_next_file(now), "not judged yet");
        write(6);
        assert!(!switch.is_on() && !switch.enabled_for_next_file(now + RETRY_AFTER / 2));
        assert!(switch.enabled_for_next_file(now + RETRY_AFTER) && switch.is_on());
    }

    #[test]
    fn a_refusal_disables_direct_io_permanently() {
        let switch = on_ext4();
        switch.refused(Errno::INVAL);
        assert!(!switch.enabled_for_next_file(Instant::now() + 2 * RETRY_AFTER));
    }

    #[test]
    fn concurrent_writes_share_the_latency() {
        let switch = on_ext4();
        let pace = switch.pace.as_ref().unwrap();
        pace.under_way.store(3, Ordering::Relaxed);
        let slept = || {
            std::thread::sleep(Duration::from_millis(8));
            Ok(())
        };
        switch.timed(1 << 20, slept).unwrap();
        let seen = pace.seen.lock();
        assert!(seen.took >= Duration::from_millis(2) && seen.bytes == 1 << 20);
        assert_eq!(pace.under_way.load(Ordering::Relaxed), 3);
    }
}
