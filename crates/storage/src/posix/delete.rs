//! Deletes a file, and prunes the directories that become empty.

use longhaul_model::{Fault, FaultCode, Pfn};
use rustix::fs::{self, AtFlags, OFlags};
use rustix::io::{self, Errno};

use super::Posix;
use super::fault::{Role, fault};
use super::rooted_tree::{ResolveError, split};
use crate::Identity;

/// Not flushed: after a power failure a deleted file may reappear, complete.
pub(super) fn delete(posix: &Posix, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
    if let Some(parent) = delete_file(posix, at, expected)? {
        prune(posix, &parent);
    }
    Ok(())
}

/// Deletes the file alone; returns its directory, unless that was gone already.
fn delete_file(posix: &Posix, at: &Pfn, expected: &Identity) -> Result<Option<Vec<u8>>, Fault> {
    let failed = |errno| fault(Role::Write, errno, format_args!("deleting {at}"));
    let Some((_, stat)) =
        posix.find_file(at).map_err(|fault| fault.blaming(longhaul_model::Blame::Target))?
    else {
        return Ok(None);
    };
    let found = Identity::from(&stat);
    if found != *expected {
        let detail = format!("{at} is {found}, not {expected} (size:mtime:inode), and stays");
        return Err(Fault::new(FaultCode::Conflict, detail));
    }
    // The directory may be reached through links; the last component is the name to delete, link or not.
    let (parent, name) = split(at.path().as_bytes());
    let parent = posix.rooted_tree.resolve(parent).map_err(|astray| match astray {
        ResolveError::Errno(errno) => failed(errno),
        _ => failed(Errno::LOOP),
    })?;
    match unlink(posix, &parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(errno)),
    }
    Ok(Some(parent))
}

/// Removes `directory` and its parents as long as they are empty. Errors (another file, missing permission)
/// do not fail the deletion.
fn prune(posix: &Posix, mut directory: &[u8]) {
    while !directory.is_empty() {
        let (parent, name) = split(directory);
        if unlink(posix, parent, name, AtFlags::REMOVEDIR).is_err() {
            return;
        }
        directory = parent;
    }
}

fn unlink(posix: &Posix, directory: &[u8], name: &[u8], flags: AtFlags) -> io::Result<()> {
    let directory = posix.rooted_tree.open(directory, OFlags::PATH | OFlags::DIRECTORY)?;
    fs::unlinkat(&directory, name, flags)
}
