//! Creates directories beneath a root without following links (promise 9), which the storage interface does
//! not offer.

use longhaul_storage::NoLinks;
use rustix::fd::OwnedFd;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::{self, Errno};

/// Creates a directory and its parents as far as they are missing. Existing ones stay as they are; a file in
/// the way is `EEXIST`, a link `ELOOP`. Returns whether the last one is new.
pub(crate) fn make_directories(beneath: &NoLinks, path: &[u8]) -> io::Result<bool> {
    let mut at = beneath.open(b"", OFlags::PATH | OFlags::DIRECTORY)?;
    let mut is_new = false;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        is_new = match fs::mkdirat(&at, check_component(name)?, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno),
        };
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = match fs::openat(&at, name, step, Mode::empty()) {
            Err(Errno::NOTDIR) => return Err(obstacle(&at, name)),
            entered => entered?,
        };
    }
    Ok(is_new)
}

fn obstacle(directory: &OwnedFd, name: &[u8]) -> Errno {
    match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => Errno::LOOP,
        _ => Errno::EXIST,
    }
}

/// Names come from directories and checked paths, but `..` would leave the root.
fn check_component(name: &[u8]) -> io::Result<&[u8]> {
    if matches!(name, b"" | b"." | b"..") { Err(Errno::INVAL) } else { Ok(name) }
}

/// Splits a path into its directory (empty: the root) and last component.
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

    /// Promise 9, with and without the kernel's help (openat2).
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
            let beneath = NoLinks::open_root(&root).unwrap();
            let beneath = if by_kernel { beneath } else { beneath.by_components() };
            assert!(beneath.open(b"a/b/f", OFlags::RDONLY).is_ok());
            assert!(beneath.open(b"", OFlags::RDONLY | OFlags::DIRECTORY).is_ok());
            for path in ["out/x", "in/b/f", "../outside", "a/../../outside", "out"] {
                assert!(beneath.open(path.as_bytes(), OFlags::RDONLY).is_err(), "{path}");
            }
            for path in ["out/new", "in/new", "../new", "a/b/f/new"] {
                assert!(make_directories(&beneath, path.as_bytes()).is_err(), "{path}");
            }
            assert_eq!(make_directories(&beneath, b"a/b/f"), Err(Errno::EXIST));
            assert_eq!(make_directories(&beneath, b"out"), Err(Errno::LOOP));
            let name = format!("a/new/{by_kernel}");
            assert_eq!(make_directories(&beneath, name.as_bytes()), Ok(true));
            assert_eq!(make_directories(&beneath, name.as_bytes()), Ok(false));
            assert!(root.join(name).is_dir());
        }
        assert_eq!(std::fs::read_dir(place.path().join("outside")).unwrap().count(), 0);
    }
}
