//! What of a file is in the page cache: a system call that `rustix` does not offer.
#![allow(unsafe_code, reason = "cachestat has no safe wrapper in the crates we use")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// The same number on every architecture.
const CACHESTAT: libc::c_long = 451;

/// As `linux/mman.h` has them.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    in_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether none of these bytes is in the page cache. Where the kernel does not tell (before Linux 6.5, or of files of
/// others), they may be there.
pub(super) fn has_nothing_of(file: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    let range = Range { offset, len };
    let mut pages = Pages::default();
    // SAFETY: the descriptor is open for as long as it is borrowed; the kernel reads one `Range` and writes one `Pages`,
    // both of which live through the call and have the layout that it expects.
    let result =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0_u32) };
    result == 0 && pages.cached == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice, fadvise};
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn what_was_just_written_is_there() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        assert!(!has_nothing_of(file.as_fd(), 0, 100_000));
        file.sync_all().unwrap();
        // Whether it is gone after this is the file system's business; that it does not fail is ours.
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let _ = has_nothing_of(file.as_fd(), 0, 100_000);
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(!has_nothing_of(reader.as_fd(), 0, 1), "of what has no pages nothing is known");
    }
}
