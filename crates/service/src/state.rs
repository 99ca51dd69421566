//! The state directory: one service at a time, one authority, and the database unless a server keeps it.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use longhaul_catalog::{Catalog, NewApiToken};
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::{Authority, LockFile, Vault, check_private_directory, hash_secret, new_secret};

use crate::{Config, database};

/// A state directory that this process holds alone, as long as this lives.
pub struct State {
    pub catalog: Catalog,
    pub authority: Authority,
    /// Opens what users lent us.
    pub vault: Vault,
    /// The lock goes with the file handle, at any death of the process.
    pub lock: LockFile,
}

/// What `longhaul service init` prints, once.
#[derive(Clone)]
pub struct InitReply {
    /// Token of the first administrator. Secret; only its hash is stored.
    pub admin_token: String,
    pub deployment: String,
    pub ca_pem: String,
    /// SHA-256 of the CA certificate, hex.
    pub ca_fingerprint: String,
}

/// Makes a new deployment in `config.state_dir`: CA, permit key, database, first administrator.
pub fn init(config: &Config, now: Timestamp) -> Result<InitReply, Fault> {
    init_with(config, || database::open(config, now), now)
}

/// As [`init`], with a catalog from elsewhere.
pub(crate) fn init_with(
    config: &Config,
    open_catalog: impl FnOnce() -> Result<Catalog, Fault>,
    now: Timestamp,
) -> Result<InitReply, Fault> {
    config.check()?;
    let directory = &config.state_dir;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| trouble(directory, error))?;
    check_private_directory(directory)?;
    let _lock = lock(directory)?;
    if authority_path(directory).exists() {
        return Err(Fault::new(
            FaultCode::AlreadyExists,
            format!(
                "{} holds a deployment already: start it with `longhaul service run`",
                directory.display()
            ),
        ));
    }
    let catalog = open_catalog()?;
    let admin_token = new_secret("lht_");
    let token = NewApiToken {
        hash: hash_secret(&admin_token),
        name: "admin".into(),
        role: "admin".into(),
        expires: None,
        scopes: None,
        community: None,
        sites: None,
    };
    catalog.add_api_token(&token, now)?;
    // Last, since its presence says that the directory is complete.
    let authority = Authority::create(&authority_path(directory), &config.deployment, now)?;
    Ok(InitReply {
        admin_token,
        deployment: authority.deployment().to_owned(),
        ca_pem: authority.ca_pem().to_owned(),
        ca_fingerprint: authority.ca_fingerprint(),
    })
}

impl State {
    pub fn open(config: &Config, now: Timestamp) -> Result<State, Fault> {
        State::open_with(config, || database::open(config, now))
    }

    /// As [`State::open`], with a catalog from elsewhere.
    pub(crate) fn open_with(
        config: &Config,
        open_catalog: impl FnOnce() -> Result<Catalog, Fault>,
    ) -> Result<State, Fault> {
        let directory = config.state_dir.as_path();
        if !authority_path(directory).exists() {
            return Err(Fault::new(
                FaultCode::StateDirectory,
                format!("{} holds no deployment: make one with `longhaul service init`", directory.display()),
            ));
        }
        check_private_directory(directory)?;
        let lock = lock(directory)?;
        let catalog = open_catalog()?;
        let authority = Authority::open(&authority_path(directory))?;
        let vault = Vault::open(&authority_path(directory).join("credentials.key"))?;
        Ok(State { catalog, authority, vault, lock })
    }
}

fn authority_path(directory: &Path) -> PathBuf {
    directory.join("authority")
}

fn lock(directory: &Path) -> Result<LockFile, Fault> {
    let path = directory.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| trouble(directory, error))?;
    match LockFile::acquire(file) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(Fault::new(
            FaultCode::StateDirectory,
            format!(
                "another service runs on {}: stop it first, or give this one a directory of its own",
                directory.display()
            ),
        )),
        Err(error) => Err(trouble(directory, error)),
    }
}

fn trouble(directory: &Path, error: std::io::Error) -> Fault {
    Fault::new(FaultCode::StateDirectory, format!("{}: {error}", directory.display())).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, read_dir, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What the start would refuse is refused before anything is made.
    #[test]
    fn a_directory_that_others_can_enter_is_neither_set_up_nor_opened() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { state_dir: directory.path().into(), ..Config::default() };
        let now = Timestamp(1_780_000_000_000_000);
        let set_mode = |mode| set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        for mode in [0o755, 0o750, 0o701] {
            set_mode(mode);
            let fault = init(&config, now).err().unwrap();
            assert!(fault.detail.contains("chmod 700"), "{mode:o}: {fault}");
        }
        assert_eq!(read_dir(directory.path()).unwrap().count(), 0, "nothing was made");
        set_mode(0o700);
        init(&config, now).unwrap();
        set_mode(0o755);
        let fault = State::open(&config, now).err().unwrap();
        assert!(fault.detail.contains("chmod 700"), "{fault}");
        set_mode(0o700);
        assert!(State::open(&config, now).is_ok());
    }
}
