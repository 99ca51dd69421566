//! Reads a directory's names page by page in order, so that a directory of any size uses bounded memory.

use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;

use rustix::fs::Dir;
use rustix::io;

/// One page of a directory's names.
pub struct NamePage {
    /// In reverse order, to be popped from the end.
    pub names: Vec<Vec<u8>>,
    /// More names follow after this one.
    pub more_after: Option<Vec<u8>>,
    /// Whether the directory holds anything at all, skipped or not.
    pub any: bool,
}

impl NamePage {
    /// Reads the smallest `limit` names after `after`, without those for which `passed_over` returns true.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read(
        directory: &OwnedFd,
        after: Option<&[u8]>,
        limit: usize,
        passed_over: impl Fn(&[u8]) -> bool,
    ) -> io::Result<NamePage> {
        let mut page: BinaryHeap<Vec<u8>> = BinaryHeap::new();
        let (mut any, mut more) = (false, false);
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            any = true;
            if after.is_some_and(|after| name <= after) || passed_over(name) {
                continue;
            }
            if page.len() < limit {
                page.push(name.to_vec());
                continue;
            }
            more = true;
            if page.peek().is_some_and(|largest| name < largest.as_slice()) {
                page.pop();
                page.push(name.to_vec());
            }
        }
        let mut names = page.into_sorted_vec();
        // A directory that changes while it is read may return a name twice.
        names.dedup();
        let more_after = names.last().filter(|_| more).cloned();
        names.reverse();
        Ok(NamePage { names, more_after, any })
    }
}
