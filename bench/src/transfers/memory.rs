//! The file system in memory on which files lie, and memory that is lent to this machine for as long as it
//! lasts.
//!
//! A virtual machine may give free memory back to its host after some seconds; the next program to touch it
//! then waits for the host, and a receiver of new files would measure that. Only whole blocks of 2 MB go
//! back. So at the beginning a file of the size that the runs need is written, and all of it but one page in
//! 256 is freed again: what is freed is in pieces too small to go back.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use tempfile::TempDir;

const NAME: &str = "longhaul-bench";
const PAGE: u64 = 4096;
const KEPT_ONE_IN: u64 = 256;
const PIECE: usize = 1 << 20;

pub(crate) struct Memory {
    folder: TempDir,
}

impl Memory {
    pub(crate) fn new() -> Result<Memory, String> {
        remove_stale();
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        let memory = Memory { folder };
        let source = format!("{NAME}-{}", std::process::id());
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "mode=0755,size=90%", &source])
            .arg(memory.path())
            .status()
            .map_err(|error| format!("mount: {error}"))?;
        if !mounted.success() {
            return Err("cannot mount a file system in memory (it needs root)".into());
        }
        Ok(memory)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Touches so many bytes, frees most of them. The file left behind keeps one page in 256.
    pub(crate) fn warm(&self, bytes: u64) -> Result<(), String> {
        let path = self.path().join("warm");
        let work = || {
            let mut file = File::create(&path)?;
            let piece = vec![1u8; PIECE];
            for _ in 0..bytes / PIECE as u64 {
                file.write_all(&piece)?;
            }
            let step = PAGE * KEPT_ONE_IN;
            for start in (0..bytes / step).map(|number| number * step) {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, hole, start + PAGE, step - PAGE)?;
            }
            Ok::<_, std::io::Error>(())
        };
        work().map_err(|error| format!("touching {bytes} bytes of memory: {error}"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unmount(self.path());
    }
}

/// What this machine can give without swapping.
pub(crate) fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    available_in(&text)
}

fn available_in(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn unmount(path: &Path) {
    let _ = Command::new("umount").arg("--lazy").arg(path).status();
}

/// Unmounts what killed benchmarks have left.
fn remove_stale() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for path in stale(&mounts, |pid| Path::new(&format!("/proc/{pid}")).exists()) {
        unmount(&path);
        let _ = fs::remove_dir(&path);
    }
}

fn stale(mounts: &str, lives: impl Fn(u32) -> bool) -> Vec<PathBuf> {
    let ours = mounts.lines().filter_map(|line| line.strip_prefix(NAME)?.strip_prefix('-'));
    let words = ours.filter_map(|rest| rest.split_once(' '));
    words
        .filter(|(pid, _)| pid.parse().is_ok_and(|pid| !lives(pid)))
        .filter_map(|(_, rest)| rest.split_whitespace().next().map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_benchmarks_left_is_stale() {
        let mounts =
            "longhaul-bench-1 /a tmpfs rw 0 0\nlonghaul-bench-2 /b tmpfs rw 0 0\nother-2 /c tmpfs rw 0 0\n";
        assert_eq!(stale(mounts, |pid| pid == 1), [PathBuf::from("/b")]);
    }

    #[test]
    fn memory_is_read() {
        assert_eq!(available_in("MemFree: 1 kB\nMemAvailable:   24 kB\n"), 24 << 10);
        assert!(available() > 0);
    }
}
