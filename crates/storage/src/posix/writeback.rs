//! The one system call that `rustix` lacks: `sync_file_range`.
#![allow(unsafe_code, reason = "sync_file_range has no safe wrapper in the crates we use")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Asks the kernel to start writing an extent to disk; a hint, so errors are ignored.
pub(super) fn begin(file: BorrowedFd<'_>, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: the descriptor is open for as long as it is borrowed, and the call takes numbers only: it
    // neither reads nor writes memory of this process.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}
