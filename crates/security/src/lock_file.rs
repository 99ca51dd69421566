//! A file that one process holds at a time, so that a directory has one owner.

use std::fs::{File, TryLockError};
use std::io;
use std::time::Duration;

/// A process that was killed holds its locks a moment longer through a child that has not come to its own
/// program yet: between fork and exec it shares all open files.
const TRIES: u32 = 50;
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// An exclusive lock (flock) on an open file, until it is dropped or the process ends.
#[derive(Debug)]
pub struct LockFile(File);

impl LockFile {
    /// Locks the file; none if another process holds it, also after a second.
    ///
    /// # Errors
    /// The file system knows no locks, or has trouble.
    pub fn acquire(file: File) -> io::Result<Option<LockFile>> {
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Some(LockFile(file))),
                Err(TryLockError::WouldBlock) => std::thread::sleep(RETRY_INTERVAL),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing alone would leave it to such a child of ours; flock(2) unlocks for all who share the file.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_and_ends_with_it_whoever_shares_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            File::options().create(true).truncate(false).write(true).open(folder.path().join("lock")).unwrap()
        };
        let file = open();
        // As a child between fork and exec has it.
        let shared = file.try_clone().unwrap();
        let held = LockFile::acquire(file).unwrap().unwrap();
        assert!(LockFile::acquire(open()).unwrap().is_none(), "it is held");
        drop(held);
        assert!(open().try_lock().is_ok(), "at once, though the file is open still");
        drop(shared);
    }
}
