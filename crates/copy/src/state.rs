//! Where a copy keeps what lets it go on after an interruption: in the target's own work directory, under a
//! name that follows from the command, so that the same command finds it again; locked, so that two do not
//! share it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::{digest, rand};
use longhaul_model::hex;
use longhaul_model::units::printable;
use longhaul_model::{AgentId, Fault, FaultCode};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::rename_on_commit::remove_work_directory;
use crate::walk::WORK_DIRECTORY;

const LOCK_FILE: &str = "lock";
const MODE_PRIVATE: u32 = 0o700;

/// Where work in progress of this account lies beneath a root: in a directory of its own if root has made one
/// ([`crate::accounts`]), since nobody can write into that of another.
pub(crate) fn work_directory(root: &Path) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let own = format!("{WORK_DIRECTORY}/{}", crate::accounts::work_name(uid));
    match fs::symlink_metadata(root.join(&own)) {
        Ok(found) if found.is_dir() && found.uid() == uid => own,
        _ => WORK_DIRECTORY.to_owned(),
    }
}

/// What identifies a copy, whoever runs it and however often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyKey([u8; 8]);

impl CopyKey {
    /// Of texts that say what is copied where.
    pub(crate) fn from_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> CopyKey {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"longhaul copy\0");
        context.update(machine_id().as_bytes());
        for part in parts {
            // Its length first: no two lists spell the same bytes.
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part.as_bytes());
        }
        let mut short = [0; 8];
        short.copy_from_slice(&context.finish().as_ref()[..8]);
        CopyKey(short)
    }

    /// The agent that this copy runs as: the same each time, since what it left in the target is marked with
    /// it.
    pub(crate) fn agent(&self) -> AgentId {
        // Ids are positive numbers of 64 bits with a sign; none is 0.
        AgentId((u64::from_le_bytes(self.0) & i64::MAX as u64).max(1))
    }

    fn name(&self) -> String {
        hex::encode(&self.0)
    }
}

/// Tells hosts apart that share a file system.
fn machine_id() -> String {
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    format!("{} {}", id.trim(), rustix::system::uname().nodename().to_string_lossy())
}

/// The directory of one copy in its target.
#[derive(Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// `kind` and the key make the name. A second copy of the same kind into this target waits for nobody: it
    /// is refused.
    pub(crate) fn open(root: &Path, kind: &str, key: &CopyKey) -> Result<StateDir, Fault> {
        let path = root.join(work_directory(root)).join(format!("{kind}-{}", key.name()));
        let shown = printable(&path.to_string_lossy());
        let failed = |error: io::Error| {
            let code = match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    FaultCode::TargetReadOnly
                }
                _ => FaultCode::StateDirectory,
            };
            Fault::new(code, format!("{shown}: {error}"))
        };
        let locked = || loop {
            fs::DirBuilder::new().recursive(true).mode(MODE_PRIVATE).create(&path)?;
            let file =
                OpenOptions::new().create(true).write(true).truncate(false).open(path.join(LOCK_FILE))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // A copy that has just ended may have removed the directory before we had the lock.
                Ok(()) if path.join(LOCK_FILE).exists() => return Ok(Some(file)),
                Ok(()) => continue,
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        match locked().map_err(failed)? {
            Some(lock) => Ok(StateDir { root: root.to_owned(), path, _lock: lock }),
            None => {
                let detail = format!("another process is at the same copy now ({shown} is locked)");
                Err(Fault::new(FaultCode::Busy, detail))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Nothing is left to resume: removes it, and the work directory if nobody else uses it.
    pub(crate) fn remove(self) {
        let _ = fs::remove_dir_all(&self.path);
        remove_work_directory(&self.root);
    }
}

/// A private directory for a process that writes nothing anybody would resume. Removed when dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> Result<ScratchDir, Fault> {
        let mut random = [0; 8];
        assert!(rand::fill(&mut random).is_ok(), "no random numbers from the system");
        let name = hex::encode(&random);
        let path = std::env::temp_dir().join(format!("longhaul-{name}"));
        // Not recursive: what is there already is not ours.
        fs::DirBuilder::new().mode(MODE_PRIVATE).create(&path).map_err(|error| {
            Fault::new(FaultCode::StateDirectory, format!("{}: {error}", printable(&path.to_string_lossy())))
        })?;
        Ok(ScratchDir(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_copy_finds_its_directory_and_never_shares_it() {
        let place = tempfile::tempdir().unwrap();
        let key = CopyKey::from_parts(["far.example", "run7"]);
        assert_eq!(key, CopyKey::from_parts(["far.example", "run7"]));
        assert_ne!(key, CopyKey::from_parts(["far.example", "run", "7"]));
        assert_ne!(key, CopyKey::from_parts(["far.examplerun7", ""]));
        let first = StateDir::open(place.path(), "copy", &key).unwrap();
        assert_eq!(StateDir::open(place.path(), "copy", &key).unwrap_err().code, FaultCode::Busy);
        let other = StateDir::open(place.path(), "copy", &CopyKey::from_parts(["x"])).unwrap();
        let path = first.path().to_owned();
        drop(first);
        assert_eq!(StateDir::open(place.path(), "copy", &key).unwrap().path(), path);
        StateDir::open(place.path(), "copy", &key).unwrap().remove();
        assert!(!path.exists() && other.path().exists());
        other.remove();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn scratch_goes_when_it_is_dropped() {
        let scratch = ScratchDir::new().unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("x"), "y").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
