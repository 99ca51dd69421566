//! Retains a server's key across a crash, so that the jobs of its clients survive: the next server has the
//! same URL, and clients resume.
//!
//! The key file is as secret as the URL: readable by its owner only, and used only if that is so. It exists
//! while the server runs; a clean shutdown removes it, which makes the URL worthless.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use longhaul_model::Fault;
use longhaul_security::SharedSecret;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Suffix of the key file, after the name of the URL file.
const KEY_FILE_SUFFIX: &str = ".key";

/// The key of an earlier server on the same URL file.
#[derive(Debug)]
pub struct RetainedKey {
    pub secret: SharedSecret,
    /// Addresses on which it listened.
    pub listen: Vec<SocketAddr>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    secret: String,
    /// The exported directory; the key is valid for no other.
    directory: String,
    listen: Vec<SocketAddr>,
}

impl RetainedKey {
    pub fn path(url_file: &Path) -> PathBuf {
        let mut name = OsString::from(url_file);
        name.push(KEY_FILE_SUFFIX);
        PathBuf::from(name)
    }

    /// Loads the retained key; none if there is none. The error says why an existing one is not used.
    pub fn load(url_file: &Path, root: &Path) -> Result<Option<RetainedKey>, String> {
        let path = RetainedKey::path(url_file);
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0
        {
            return Err("it must be a file that belongs to us and that only its owner can read".into());
        }
        let text = Zeroizing::new(longhaul_security::read_private(&path).map_err(|error| error.to_string())?);
        let document: Document = serde_json::from_str(&text).map_err(|_| "it is damaged".to_owned())?;
        let written = Zeroizing::new(document.secret);
        if Some(document.directory.as_str()) != canonical(root).as_deref() {
            return Err("it belongs to another directory".into());
        }
        let secret = written.parse().map_err(|_| "it is damaged".to_owned())?;
        Ok(Some(RetainedKey { secret, listen: document.listen }))
    }

    pub fn store(&self, url_file: &Path, root: &Path) -> Result<(), Fault> {
        let document = Document {
            secret: self.secret.reveal().to_string(),
            directory: canonical(root).unwrap_or_default(),
            listen: self.listen.clone(),
        };
        let text = Zeroizing::new(crate::protocol::write(&document));
        drop(Zeroizing::new(document.secret));
        Ok(longhaul_security::write_private(&RetainedKey::path(url_file), &text)?)
    }

    pub fn remove(url_file: &Path) {
        let _ = fs::remove_file(RetainedKey::path(url_file));
    }
}

fn canonical(root: &Path) -> Option<String> {
    Some(root.canonicalize().ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn comes_back_for_its_owner_and_its_directory_only() {
        let place = tempfile::tempdir().unwrap();
        let (file, other) = (place.path().join("far.url"), place.path().join("other"));
        fs::create_dir(&other).unwrap();
        assert!(RetainedKey::load(&file, place.path()).unwrap().is_none());
        let kept = RetainedKey { secret: SharedSecret::new(), listen: vec!["127.0.0.1:7".parse().unwrap()] };
        kept.store(&file, place.path()).unwrap();
        let loaded = RetainedKey::load(&file, place.path()).unwrap().unwrap();
        assert!(loaded.secret == kept.secret && loaded.listen == kept.listen);
        assert!(!format!("{loaded:?}").contains(kept.secret.reveal().as_str()));
        assert!(RetainedKey::load(&file, &other).unwrap_err().contains("another directory"));
        fs::set_permissions(RetainedKey::path(&file), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(RetainedKey::load(&file, place.path()).unwrap_err().contains("only its owner"));
        fs::remove_file(RetainedKey::path(&file)).unwrap();
        fs::write(other.join("x"), "{}").unwrap();
        std::os::unix::fs::symlink(other.join("x"), RetainedKey::path(&file)).unwrap();
        assert!(RetainedKey::load(&file, place.path()).is_err());
        RetainedKey::remove(&file);
        assert!(RetainedKey::load(&file, place.path()).unwrap().is_none());
        fs::write(RetainedKey::path(&file), "{}").unwrap();
        fs::set_permissions(RetainedKey::path(&file), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(RetainedKey::load(&file, place.path()).unwrap_err().contains("damaged"));
    }
}
