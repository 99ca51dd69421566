//! Disk that staged files take up, against a limit: what is brought and not yet read never fills the disk in
//! front of the tape. Once it is full, nothing is brought until a quarter is free (hysteresis): a cartridge
//! would be read file by file otherwise. Pure.

use std::collections::BTreeMap;

use super::state::Path;

/// Part of the limit that is free again before more is brought: one in so many.
const REOPEN_PART: u64 = 4;

#[derive(Debug)]
pub(super) struct DiskBudget {
    limit_bytes: u64,
    held_bytes: u64,
    is_full: bool,
    files: BTreeMap<Path, u64>,
}

impl DiskBudget {
    pub(super) fn new(limit_bytes: u64) -> DiskBudget {
        DiskBudget { limit_bytes, held_bytes: 0, is_full: false, files: BTreeMap::new() }
    }

    /// Reserves room for a file, if there is any. One that is larger than the limit has room when nothing
    /// else is held.
    pub(super) fn reserve(&mut self, path: &Path, bytes: u64) -> bool {
        if self.files.contains_key(path) {
            return true;
        }
        let has_room = !self.is_full && self.held_bytes.saturating_add(bytes) <= self.limit_bytes;
        let is_taken = has_room || self.files.is_empty();
        if is_taken {
            self.hold(path, bytes);
        }
        self.is_full = !is_taken;
        is_taken
    }

    /// Counts a file that is on disk already.
    pub(super) fn hold(&mut self, path: &Path, bytes: u64) {
        if self.files.insert(path.clone(), bytes).is_none() {
            self.held_bytes = self.held_bytes.saturating_add(bytes);
        }
    }

    /// Keeps what is still there.
    pub(super) fn retain(&mut self, is_there: impl Fn(&Path) -> bool) {
        self.files.retain(|path, _| is_there(path));
        self.held_bytes = self.files.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        self.is_full &= self.held_bytes > self.limit_bytes - self.limit_bytes / REOPEN_PART;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_until_a_file_has_gone() {
        let path = |name: &str| Path::from(name);
        let mut budget = DiskBudget::new(100);
        assert!(budget.reserve(&path("a"), 20) && budget.reserve(&path("a"), 20), "once");
        assert!(budget.reserve(&path("b"), 60) && !budget.reserve(&path("c"), 21));
        assert!(!budget.reserve(&path("d"), 1), "full until a quarter is free");
        budget.retain(|kept| **kept != *"a");
        assert!(budget.reserve(&path("c"), 21) && !budget.reserve(&path("d"), 20));
        budget.retain(|_| false);
        assert!(budget.reserve(&path("large"), 500), "alone");
        assert!(!budget.reserve(&path("a"), 1));
        budget.hold(&path("here"), u64::MAX);
        assert_eq!(budget.held_bytes, u64::MAX);
    }
}
