//! A certification authority for one session, and what peers need from it: TLS for nginx and xrootd, GSI for
//! GridFTP. Made with the `openssl` command, in the forms that these programs read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::launch::FAR_HOST;

const SUBJECT: &str = "/O=Longhaul/OU=Bench";
pub(crate) const USER: &str = "/O=Longhaul/OU=Bench/CN=user";

pub(crate) struct Keys {
    folder: PathBuf,
}

impl Keys {
    pub(crate) fn make(folder: &Path, far: &str) -> Result<Keys, String> {
        let keys = Keys { folder: folder.join("keys") };
        let trusted = keys.trusted();
        fs::create_dir_all(&trusted).map_err(|error| format!("a folder for keys: {error}"))?;
        keys.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj {SUBJECT}/CN=authority -keyout ca.key -out \
                ca.pem"
        ))?;
        keys.issue(
            "host",
            &format!("{SUBJECT}/CN={FAR_HOST}"),
            &format!("subjectAltName=DNS:{FAR_HOST},IP:{far}"),
        )?;
        keys.issue("user", USER, "extendedKeyUsage=clientAuth")?;
        let hash = keys.openssl("x509 -in ca.pem -noout -hash")?;
        let policy = format!(
            "access_id_CA X509 '{SUBJECT}/CN=authority'\npos_rights globus CA:sign\ncond_subjects globus \
                '\"/*\"'\n"
        );
        let write = |path: PathBuf, bytes: &[u8]| {
            fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))
        };
        let authority = fs::read(keys.authority()).map_err(|error| format!("the authority: {error}"))?;
        write(trusted.join(format!("{}.0", hash.trim())), &authority)?;
        write(trusted.join(format!("{}.signing_policy", hash.trim())), policy.as_bytes())?;
        write(keys.grid_map(), format!("\"{USER}\" root\n").as_bytes())?;
        Ok(keys)
    }

    /// Certificate of the authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The same as a folder by hash, with its signing policy.
    pub(crate) fn trusted(&self) -> PathBuf {
        self.folder.join("trusted")
    }

    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pem"))
    }

    pub(crate) fn key(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.key"))
    }

    pub(crate) fn grid_map(&self) -> PathBuf {
        self.folder.join("grid-mapfile")
    }

    fn issue(&self, name: &str, subject: &str, extension: &str) -> Result<(), String> {
        self.openssl(&format!(
            "req -newkey rsa:2048 -nodes -subj {subject} -keyout {name}.key -out {name}.request"
        ))?;
        let extensions = self.folder.join(format!("{name}.extensions"));
        fs::write(&extensions, extension).map_err(|error| format!("extensions: {error}"))?;
        self.openssl(&format!(
            "x509 -req -in {name}.request -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile \
             {name}.extensions -out {name}.pem"
        ))?;
        // GSI refuses a key that others may read.
        fs::set_permissions(self.key(name), fs::Permissions::from_mode(0o400))
            .map_err(|error| format!("the mode of a key: {error}"))
    }

    fn openssl(&self, words: &str) -> Result<String, String> {
        let output = Command::new("openssl")
            .args(words.split_whitespace())
            .current_dir(&self.folder)
            .output()
            .map_err(|error| format!("openssl: {error}"))?;
        if !output.status.success() {
            return Err(format!("openssl {words}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
