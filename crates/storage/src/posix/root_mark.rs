//! The mark in the root, a small file that tells this directory from any other. It is reached through the
//! open root, as every file is: what is mounted over the root's path later is another directory.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::{self, Errno};

use super::rooted_tree::RootedTree;
use super::work::WORK_DIRECTORY;

const MARK: &str = "root.json";
/// What the name of a mark begins with that is not in its place yet.
const MARK_NEW: &str = "root.json.new-";
/// A longer file is no mark.
const MARK_BYTES_MAX: u64 = 4 << 10;

/// None if there is no mark.
pub(super) fn read(tree: &RootedTree) -> io::Result<Option<String>> {
    let read = || -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = fs::openat(directory(tree)?, MARK, flags, Mode::empty())?;
        let mut text = String::new();
        File::from(file).take(MARK_BYTES_MAX).read_to_string(&mut text).map_err(errno)?;
        Ok(text)
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Writes the mark durably; an older one is replaced.
pub(super) fn write(tree: &RootedTree, text: &str) -> io::Result<()> {
    let (directory, new) = write_new(tree, text)?;
    fs::renameat(&directory, &new, &directory, MARK)?;
    fs::fsync(&directory)
}

/// Writes the mark durably, unless there is one: agents on several hosts may find a new root at one time, and
/// the first one marks it.
pub(super) fn write_first(tree: &RootedTree, text: &str) -> io::Result<()> {
    let (directory, new) = write_new(tree, text)?;
    match fs::renameat_with(&directory, &new, &directory, MARK, RenameFlags::NOREPLACE) {
        Ok(()) => return fs::fsync(&directory),
        Err(Errno::EXIST) => {}
        // File systems without such a rename have links, which replace nothing either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            match fs::linkat(&directory, &new, &directory, MARK, AtFlags::empty()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(errno) => return Err(errno),
    }
    fs::unlinkat(&directory, &new, AtFlags::empty())?;
    fs::fsync(&directory)
}

/// Writes a file of its own beside the mark; its directory and name.
fn write_new(tree: &RootedTree, text: &str) -> io::Result<(OwnedFd, String)> {
    let bits = Mode::from_raw_mode(0o755);
    match fs::mkdirat(tree.root(), WORK_DIRECTORY, bits) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let directory = directory(tree)?;
    // Marks differ, so that each writer has a file of its own.
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let new = format!("{MARK_NEW}{:016x}", hasher.finish());
    match fs::unlinkat(&directory, &new, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    // Append-only file systems accept no other mode for writing.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(fs::openat(&directory, &new, flags, Mode::from_raw_mode(0o644))?);
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(errno)?;
    Ok((directory, new))
}

fn directory(tree: &RootedTree) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(tree.root(), WORK_DIRECTORY, flags, Mode::empty())
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
