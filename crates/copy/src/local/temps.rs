//! Names of temporary files, and recognition of those that a killed copy left behind.
//!
//! A name identifies the process that made the file: two bytes of mark, six of the host (hash of its name and
//! process namespace), four of the process, four of a counter. So two copies into one directory never share a
//! file, and the next copy can remove abandoned ones. If two hosts of the same name share a file system, one
//! may remove a file that the other is writing; that copy then fails to commit it, since `storage` checks
//! before it renames.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use longhaul_storage::TempName;

const MARK: [u8; 2] = *b"lc";

/// Makes a name that no other process uses.
pub(super) fn new_name() -> TempName {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    name_for(std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether the process that made this file has ended.
pub(super) fn is_abandoned(temp: &TempName) -> bool {
    process_of(temp).is_some_and(|process| {
        process != std::process::id() && !Path::new("/proc").join(process.to_string()).exists()
    })
}

fn name_for(process: u32, count: u32) -> TempName {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&MARK);
    bytes[2..8].copy_from_slice(&host());
    bytes[8..12].copy_from_slice(&process.to_be_bytes());
    bytes[12..].copy_from_slice(&count.to_be_bytes());
    TempName::from_bytes(bytes)
}

/// The process that made the file, if that was a local copy on this host.
fn process_of(temp: &TempName) -> Option<u32> {
    let made_here = name_for(0, 0);
    let (ours, rest) = (&made_here.as_str()[..16], temp.as_str().get(16..24)?);
    if temp.as_str().starts_with(ours) { u32::from_str_radix(rest, 16).ok() } else { None }
}

fn host() -> [u8; 6] {
    static HOST: OnceLock<[u8; 6]> = OnceLock::new();
    *HOST.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default().hash(&mut hasher);
        // Process ids are meaningful only within their namespace.
        std::fs::read_link("/proc/self/ns/pid").unwrap_or_default().hash(&mut hasher);
        let [.., a, b, c, d, e, f] = hasher.finish().to_be_bytes();
        [a, b, c, d, e, f]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_process() {
        let (one, other) = (new_name(), new_name());
        assert_ne!(one, other);
        assert_eq!(process_of(&one), Some(std::process::id()));
        assert!(!is_abandoned(&one), "our own process");
        assert!(!is_abandoned(&name_for(1, 0)), "it runs");
        // Larger than any process id of Linux.
        assert!(is_abandoned(&name_for(1 << 30, 0)));
        assert!(!is_abandoned(&TempName::from_bytes([7; 16])), "not a local copy's file");
    }
}
