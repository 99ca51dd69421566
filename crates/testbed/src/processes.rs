//! Processes of a test that are still alive, found by a mark in their environment, which children inherit.

use std::fs;
use std::time::{Duration, Instant};

use crate::process::wait_for_exit;

/// Name of the variable that marks a family of processes.
pub const MARK: &str = "TESTBED_MARK";

#[derive(Clone, Debug)]
pub struct MarkedProcess {
    pub pid: u32,
    pub command: Vec<String>,
}

/// All processes with `MARK=mark`, except this one.
pub fn marked(mark: &str) -> Vec<MarkedProcess> {
    let wanted = format!("{MARK}={mark}");
    let own = std::process::id();
    let ids = fs::read_dir("/proc")
        .expect("/proc is there")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|&pid| pid != own)
        .filter(|pid| words(&format!("/proc/{pid}/environ")).contains(&wanted))
        .map(|pid| MarkedProcess { pid, command: words(&format!("/proc/{pid}/cmdline")) })
        // One that has ended and is not yet waited for has no command line.
        .filter(|found| !found.command.is_empty())
        .collect()
}

/// Waits until none is left; returns those that live on.
pub fn outlive(mark: &str, within: Duration) -> Vec<MarkedProcess> {
    let until = Instant::now() + within;
    loop {
        let found = marked(mark);
        let left = until.saturating_duration_since(Instant::now());
        match found.first() {
            None => return found,
            Some(first) if !wait_for_exit(first.pid, left) => return found,
            Some(_) => {}
        }
    }
}

/// Processes that a process has started and that have not been waited for.
pub fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Bytes that a process has read from files so far, as the kernel counts them.
pub fn bytes_read(pid: u32) -> u64 {
    counter(pid, "rchar")
}

/// Bytes that a process has written to files so far.
pub fn bytes_written(pid: u32) -> u64 {
    counter(pid, "wchar")
}

/// Resident memory.
pub fn memory_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// The most memory that was ever resident.
pub fn peak_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmHWM:")
}

/// The same without the pages of files that are resident now: those of the executable and its libraries.
pub fn peak_bytes_beside_files(pid: u32) -> u64 {
    // Both are of one moment: of a process that ends in between, the whole executable would count.
    let status = status(pid);
    field_bytes(&status, "VmHWM:").saturating_sub(field_bytes(&status, "RssFile:"))
}

fn status_bytes(pid: u32, field: &str) -> u64 {
    field_bytes(&status(pid), field)
}

/// What the kernel says of a process; nothing of one that has ended.
fn status(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn field_bytes(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn counter(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn words(path: &str) -> Vec<String> {
    let bytes = fs::read(path).unwrap_or_default();
    let words = bytes.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_family_is_found_with_its_grandchildren() {
        let mark = format!("processes-{}", std::process::id());
        let mut child = Command::new("sh")
            .args(["-c", "cat; true"])
            .env(MARK, &mark)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // Both are there once the grandchild waits for its input; while it becomes `cat` it has no
        // environment for a moment.
        while outlive(&mark, Duration::from_millis(1)).len() < 2 {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        assert_eq!(marked(&mark).len(), 2);
        assert!(bytes_read(child.id()) > 0 && memory_bytes(child.id()) > 0);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(outlive(&mark, Duration::from_secs(60)).is_empty());
    }

    #[test]
    fn memory_beside_files_is_what_a_process_allocated() {
        let own = std::process::id();
        let allocated = std::hint::black_box(vec![1u8; 64 << 20]);
        let beside_files = peak_bytes_beside_files(own);
        assert!(beside_files >= allocated.len() as u64, "{beside_files}");
        assert!(beside_files < peak_bytes(own));
    }

    #[test]
    fn a_process_that_has_ended_has_no_memory() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!((peak_bytes(pid), peak_bytes_beside_files(pid), memory_bytes(pid)), (0, 0, 0));
    }
}
