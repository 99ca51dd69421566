//! Opening and making directories beneath one directory, following no link (promise 9).
//!
//! The same first layer as in `storage`, for what its interface has no word for: directories and their modes, and
//! the descriptors that the kernel wants for copying by itself. Links are resolved by `storage` alone.

use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{self, Errno};

/// The kernel says "again" when a directory is moved during the look-up.
const MOVED_TRIES: usize = 16;

pub(crate) struct Beneath {
    root: OwnedFd,
    /// `openat2` is absent before Linux 5.6, and forbidden by some containers.
    by_kernel: bool,
}

impl Beneath {
    /// `root` itself may be reached by links: whoever names it may say so.
    pub(crate) fn open_root(root: &Path) -> io::Result<Beneath> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(root, flags, Mode::empty())?;
        let by_kernel = fs::openat2(&root, ".", flags, Mode::empty(), ResolveFlags::BENEATH).is_ok();
        Ok(Beneath { root, by_kernel })
    }

    /// Opens `path` (empty: the root), whose components are checked names; `ELOOP` or `ENOTDIR` if one is a link,
    /// unless it is the last and `flags` have `PATH`.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if path.is_empty() {
            return fs::openat(&self.root, ".", flags, Mode::empty());
        }
        if !self.by_kernel {
            return self.open_by_components(path, flags);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..MOVED_TRIES {
            match fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    fn open_by_components(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let (parent, last) = split(path);
        let mut at: Option<OwnedFd> = None;
        for name in parent.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let here = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = Some(fs::openat(here, checked(name)?, step, Mode::empty())?);
        }
        let here = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
        fs::openat(here, checked(last)?, flags, Mode::empty())
    }

    pub(crate) fn stat(&self, path: &[u8]) -> io::Result<fs::Stat> {
        fs::fstat(self.open(path, OFlags::PATH)?)
    }

    /// Makes what is missing of a directory and of those above it. What is there stays as it is; a file in the way
    /// is `EEXIST`, a link `ELOOP`. Says whether the last one is new.
    pub(crate) fn make_directories(&self, path: &[u8]) -> io::Result<bool> {
        let mut at = self.open(b"", OFlags::PATH | OFlags::DIRECTORY)?;
        let mut is_new = false;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            is_new = match fs::mkdirat(&at, checked(name)?, Mode::from_raw_mode(0o777)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(errno),
            };
            let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = match fs::openat(&at, name, step, Mode::empty()) {
                Err(Errno::NOTDIR) => return Err(what_is_in_the_way(&at, name)),
                entered => entered?,
            };
        }
        Ok(is_new)
    }
}

fn what_is_in_the_way(directory: &OwnedFd, name: &[u8]) -> Errno {
    match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => Errno::LOOP,
        _ => Errno::EXIST,
    }
}

/// Names come from directories and checked paths; `..` would leave the root all the same.
fn checked(name: &[u8]) -> io::Result<&[u8]> {
    if matches!(name, b"" | b"." | b"..") { Err(Errno::INVAL) } else { Ok(name) }
}

/// A path's directory (empty: the root) and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Promise 9, with and without the kernel's help.
    #[test]
    fn no_link_and_no_dots_lead_out() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/f"), "x").unwrap();
        std::fs::create_dir(place.path().join("outside")).unwrap();
        symlink("../outside", root.join("out")).unwrap();
        symlink("a", root.join("in")).unwrap();
        for by_kernel in [true, false] {
            let mut beneath = Beneath::open_root(&root).unwrap();
            beneath.by_kernel &= by_kernel;
            assert!(beneath.open(b"a/b/f", OFlags::RDONLY).is_ok());
            assert!(beneath.open(b"", OFlags::RDONLY | OFlags::DIRECTORY).is_ok());
            for path in ["out/x", "in/b/f", "../outside", "a/../../outside", "out"] {
                assert!(beneath.open(path.as_bytes(), OFlags::RDONLY).is_err(), "{path}");
            }
            for path in ["out/new", "in/new", "../new", "a/b/f/new"] {
                assert!(beneath.make_directories(path.as_bytes()).is_err(), "{path}");
            }
            assert_eq!(beneath.make_directories(b"a/b/f"), Err(Errno::EXIST));
            assert_eq!(beneath.make_directories(b"out"), Err(Errno::LOOP));
            let name = format!("a/new/{by_kernel}");
            assert_eq!(beneath.make_directories(name.as_bytes()), Ok(true));
            assert_eq!(beneath.make_directories(name.as_bytes()), Ok(false));
            assert!(root.join(name).is_dir());
        }
        assert_eq!(std::fs::read_dir(place.path().join("outside")).unwrap().count(), 0);
    }
}
