//! The agent's state directory: locked by one owner, holds its identity and counts its starts.
//!
//! ```text
//! lock           held (flock) by the running agent
//! identity.json  certificate, key, CA and permit key (mode 0600)
//! incarnation    number and nonce of the last start
//! ledger         the outbox log: leases held, facts not yet acknowledged (`outbox_log`)
//! tape/          requests to the tape systems behind storages (`tape`)
//! roots.json     marks of the storages' roots (`root_marks`)
//! scans/         digests of running scans (`tasks::cache`)
//! engine/        journals of the engine
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use longhaul_api::agent::Incarnation;
use longhaul_model::{AgentId, Fault, FaultCode, SiteName, json};
use longhaul_security::{Credentials, LockFile, read_private, restrict_to_owner, write_private};
use serde::{Deserialize, Serialize};

use crate::root_marks::KnownMarks;

/// An open state directory, locked against other processes until it is dropped.
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: LockFile,
}

/// The identity that joining gave. One file, so that a certificate never stands beside another's key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub service_url: String,
    pub deployment: String,
    pub site: SiteName,
    pub agent: AgentId,
    /// PEM, like the following.
    pub certificate: String,
    pub key: String,
    pub ca: String,
    pub permit_key: String,
}

impl StateDir {
    /// Creates the directory if needed and locks it.
    pub(crate) fn open(path: &Path) -> Result<StateDir, Fault> {
        let open = || -> io::Result<File> {
            for directory in [path, &path.join("scans"), &path.join("engine")] {
                DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            }
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.join("lock"))
        };
        let lock = open().map_err(|error| state_fault(path, &error.to_string()).with_source(error))?;
        if restrict_to_owner(path)? {
            tracing::warn!(directory = %path.display(), "others could enter the state directory; now nobody \
                else can (mode 700), since it holds keys");
        }
        match LockFile::acquire(lock) {
            Ok(Some(lock)) => Ok(StateDir { path: path.into(), _lock: lock }),
            Ok(None) => {
                Err(state_fault(path, "another agent runs on it; each agent needs a directory of its own"))
            }
            Err(error) => Err(state_fault(path, &format!("cannot lock it: {error}")).with_source(error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn scans(&self) -> PathBuf {
        self.path.join("scans")
    }

    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join("engine")
    }

    /// Spool of the site's mover commands.
    pub(crate) fn movers(&self) -> PathBuf {
        self.path.join("movers")
    }

    /// Properties that clients of the doors set on files.
    pub(crate) fn doors(&self) -> PathBuf {
        self.path.join("doors")
    }

    /// Logs of the tape drivers; created on demand.
    pub(crate) fn tapes(&self) -> PathBuf {
        self.path.join("tape")
    }

    /// Records of circuits; created on demand.
    pub(crate) fn circuits(&self) -> Result<PathBuf, Fault> {
        let path = self.path.join("circuits");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|error| state_fault(&path, &error.to_string()).with_source(error))?;
        Ok(path)
    }

    /// The identity; none before joining.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, Fault> {
        let path = self.path.join("identity.json");
        if !path
            .try_exists()
            .map_err(|error| state_fault(&self.path, &error.to_string()).with_source(error))?
        {
            return Ok(None);
        }
        let text = read_private(&path)?;
        json::from_str(&text)
            .map(Some)
            .map_err(|error| state_fault(&path, &error.to_string()).with_source(error))
    }

    /// Stores the identity durably.
    pub(crate) fn save_identity(&self, identity: &Identity) -> Result<(), Fault> {
        let text = serde_json::to_vec_pretty(identity)
            .map_err(|error| state_fault(&self.path, &error.to_string()).with_source(error))?;
        Ok(write_private(&self.path.join("identity.json"), &text)?)
    }

    /// The marks that the storages' roots had; none before the first start with marks.
    pub(crate) fn known_marks(&self) -> Result<KnownMarks, Fault> {
        let path = self.path.join("roots.json");
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| state_fault(&path, &error.to_string()).with_source(error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(KnownMarks::new()),
            Err(error) => Err(state_fault(&path, &error.to_string()).with_source(error)),
        }
    }

    /// Stores the marks of the storages' roots durably.
    pub(crate) fn save_known_marks(&self, known: &KnownMarks) -> Result<(), Fault> {
        let path = self.path.join("roots.json");
        let text = serde_json::to_vec_pretty(known)
            .map_err(|error| state_fault(&path, &error.to_string()).with_source(error))?;
        Ok(write_private(&path, &text)?)
    }

    /// Counts this start durably, so that no two starts have the same number and nonce.
    pub(crate) fn next_incarnation(&self) -> Result<Incarnation, Fault> {
        let path = self.path.join("incarnation");
        let last = match fs::read_to_string(&path) {
            Ok(text) => {
                json::from_str::<Incarnation>(&text)
                    .map_err(|error| state_fault(&path, &error.to_string()).with_source(error))?
                    .number
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(state_fault(&path, &error.to_string())),
        };
        let nonce = random_u64()
            .map_err(|error| state_fault(Path::new("/dev/urandom"), &error.to_string()).with_source(error))?;
        let next = Incarnation { number: last + 1, nonce };
        let text = serde_json::to_vec(&next)
            .map_err(|error| state_fault(&path, &error.to_string()).with_source(error))?;
        write_private(&path, &text)?;
        Ok(next)
    }
}

impl Identity {
    pub(crate) fn credentials(&self) -> Credentials {
        Credentials {
            certificate_pem: self.certificate.clone(),
            key_pem: self.key.clone(),
            ca_pem: self.ca.clone(),
        }
    }
}

/// A random number from the system, for nonces and jitter.
pub(crate) fn random_u64() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn state_fault(path: &Path, why: &str) -> Fault {
    Fault::new(FaultCode::StateDirectory, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn identity() -> Identity {
        Identity {
            service_url: "https://127.0.0.1:1".into(),
            deployment: "d".into(),
            site: "alpha".parse().unwrap(),
            agent: AgentId(7),
            certificate: "c".into(),
            key: "k".into(),
            ca: "a".into(),
            permit_key: "p".into(),
        }
    }

    #[test]
    fn one_owner_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/state");
        let first = StateDir::open(&path).unwrap();
        let refused = StateDir::open(&path).err().unwrap();
        assert_eq!(refused.code, FaultCode::StateDirectory);
        assert!(refused.detail.contains("another agent"), "{refused}");
        drop(first);
        StateDir::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_that_others_could_enter_is_closed_to_them() {
        let directory = tempfile::tempdir().unwrap();
        for open in [0o755, 0o770, 0o701] {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(open)).unwrap();
            drop(StateDir::open(directory.path()).unwrap());
            let mode = fs::metadata(directory.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{open:o}");
        }
    }

    #[test]
    fn keeps_the_identity_private_and_counts_starts() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        assert!(state.identity().unwrap().is_none());
        state.save_identity(&identity()).unwrap();
        assert!(state.identity().unwrap() == Some(identity()));
        let mode = fs::metadata(directory.path().join("identity.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (one, two) = (state.next_incarnation().unwrap(), state.next_incarnation().unwrap());
        assert_eq!((one.number, two.number), (1, 2));
        assert_ne!(one.nonce, two.nonce);
    }

    /// A copied directory continues under another nonce, so that the service can tell the two apart.
    #[test]
    fn a_copy_is_another_incarnation() {
        let directory = tempfile::tempdir().unwrap();
        let copy = tempfile::tempdir().unwrap();
        let original = StateDir::open(directory.path()).unwrap();
        original.next_incarnation().unwrap();
        fs::copy(directory.path().join("incarnation"), copy.path().join("incarnation")).unwrap();
        let copied = StateDir::open(copy.path()).unwrap();
        let (one, other) = (original.next_incarnation().unwrap(), copied.next_incarnation().unwrap());
        assert_eq!(one.number, other.number);
        assert_ne!(one.nonce, other.nonce);
    }
}
