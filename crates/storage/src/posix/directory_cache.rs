//! Opens small files one after the other with a cached directory descriptor: as few system calls as the
//! promises allow.
//!
//! Each file is checked by its name in the open directory, so that no device or pipe is ever opened, then
//! opened and read, and checked once more through its descriptor: if both checks agree, what was read is one
//! version of the file of that name. Anything else (links, missing names) takes the general path of
//! [`Posix`].

use std::os::fd::OwnedFd;

use longhaul_model::Pfn;
use longhaul_model::limits::SMALL_FILE_BYTES;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Posix;
use super::file::Source;
use super::rooted_tree::split;
use crate::{DirectoryCache, Identity};

/// None if the file has to be opened in the general way.
pub(super) fn open(posix: &Posix, at: &Pfn, directory_cache: &mut DirectoryCache) -> Option<Source> {
    posix.refuse_reserved(at).ok()?;
    let (parent, name) = split(at.path().as_bytes());
    if directory_cache.directory.as_ref().is_none_or(|(path, _)| path != parent) {
        // No link on the way, and nothing outside the root.
        let directory = posix.rooted_tree.open(parent, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        directory_cache.directory = Some((parent.to_vec(), directory));
    }
    let (_, directory) = directory_cache.directory.as_ref()?;
    let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let identity = Identity::from(&stat);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || identity.size > SMALL_FILE_BYTES {
        return None;
    }
    let file = open_in(directory, name)?;
    Some(Source { file, direct: None, identity, shown: at.to_string() })
}

fn open_in(directory: &OwnedFd, name: &[u8]) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match fs::openat(directory, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => fs::openat(directory, name, flags, Mode::empty()).ok(),
        done => done.ok(),
    }
}
