//! State directory of a copy, from which it resumes after an interruption: in the target's work directory,
//! under a name derived from the command, so that the same command finds it; locked, so that two copies do
//! not share it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::{digest, rand};
use longhaul_model::hex;
use longhaul_model::units::printable;
use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_security::LockFile;

use crate::rename_on_commit::remove_work_directory;
use crate::walk::WORK_DIRECTORY;

const LOCK_FILE: &str = "lock";
const MODE_PRIVATE: u32 = 0o700;

/// The work directory of this account beneath a root: its own one if root has made it ([`crate::accounts`]),
/// since nobody can write into that of another account.
pub(crate) fn work_directory(root: &Path) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let own = format!("{WORK_DIRECTORY}/{}", crate::accounts::work_name(uid));
    match fs::symlink_metadata(root.join(&own)) {
        Ok(found) if found.is_dir() && found.uid() == uid => own,
        _ => WORK_DIRECTORY.to_owned(),
    }
}

/// Identifies a copy by what it copies, independent of who runs it and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyKey([u8; 8]);

impl CopyKey {
    /// Hashes the texts that say what is copied where.
    pub(crate) fn from_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> CopyKey {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"longhaul copy\0");
        context.update(machine_id().as_bytes());
        for part in parts {
            // Length-prefixed, so that no two lists hash the same bytes.
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part.as_bytes());
        }
        let mut short = [0; 8];
        short.copy_from_slice(&context.finish().as_ref()[..8]);
        CopyKey(short)
    }

    /// The agent id of this copy: the same each time, since partial files in the target are marked with it.
    pub(crate) fn agent(&self) -> AgentId {
        // Ids are positive signed 64-bit numbers.
        AgentId((u64::from_le_bytes(self.0) & i64::MAX as u64).max(1))
    }

    fn name(&self) -> String {
        hex::encode(&self.0)
    }
}

/// Distinguishes hosts that share a file system.
fn machine_id() -> String {
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    format!("{} {}", id.trim(), rustix::system::uname().nodename().to_string_lossy())
}

/// The state directory of one copy in its target.
#[derive(Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
    path: PathBuf,
    _lock: LockFile,
}

impl StateDir {
    /// Opens the directory named by `kind` and the key. A second copy with the same name is refused
    /// within a second.
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
            Fault::new(code, format!("{shown}: {error}")).with_source(error)
        };
        let locked = || loop {
            fs::DirBuilder::new().recursive(true).mode(MODE_PRIVATE).create(&path)?;
            let file =
                OpenOptions::new().create(true).write(true).truncate(false).open(path.join(LOCK_FILE))?;
            match LockFile::acquire(file)? {
                // A copy that has just ended may have removed the directory before we got the lock.
                Some(lock) if path.join(LOCK_FILE).exists() => return Ok(Some(lock)),
                Some(_) => continue,
                None => return Ok(None),
            }
        };
        match locked().map_err(failed)? {
            Some(lock) => Ok(StateDir { root: root.to_owned(), path, _lock: lock }),
            None => {
                let detail = format!("another process is running the same copy ({shown} is locked)");
                Err(Fault::new(FaultCode::Busy, detail))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory when nothing is left to resume, and the work directory if nobody else uses it.
    pub(crate) fn remove(self) {
        let _ = fs::remove_dir_all(&self.path);
        remove_work_directory(&self.root);
    }
}

/// A private temporary directory for state that nobody resumes. Removed when dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> Result<ScratchDir, Fault> {
        let mut random = [0; 8];
        assert!(rand::fill(&mut random).is_ok(), "the system's random number generator failed");
        let name = hex::encode(&random);
        let path = std::env::temp_dir().join(format!("longhaul-{name}"));
        // Not recursive: an existing directory is not ours.
        fs::DirBuilder::new().mode(MODE_PRIVATE).create(&path).map_err(|error| {
            Fault::new(FaultCode::StateDirectory, format!("{}: {error}", printable(&path.to_string_lossy())))
                .with_source(error)
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
