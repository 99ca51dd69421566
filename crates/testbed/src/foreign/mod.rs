//! Storages of others, as processes of their own on loopback: XRootD with HTTP and third-party copies, nginx
//! and Apache as plain WebDAV servers. And one that speaks S3. With certificates of an authority of the
//! test's own. And brokers of messages, and a database.

mod apache;
mod brokers;
mod moto;
mod nginx;
mod postgresql;
mod s3;
mod xrootd;

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use apache::Apache;
pub use brokers::{ActiveMq, BROKER_PASSWORD, BROKER_USER, NatsServer};
use longhaul_testkit::CertificateAuthority;
pub use nginx::{Nginx, NginxRules};
pub use postgresql::PostgreSql;
pub use s3::{S3Program, S3Request, S3Server};
pub use xrootd::Xrootd;

use crate::Process;

/// Interval at which a server is tried until it listens.
const TICK: Duration = Duration::from_millis(20);
const READY_TICKS: u32 = 6_000;
/// User id of the servers where the test runs as root: XRootD refuses to.
const NOBODY: u32 = 65_534;
const SERVER_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A certificate authority in a folder: `ca.pem`, hashed as OpenSSL wants it, and what it issued.
pub struct ForeignAuthority {
    folder: tempfile::TempDir,
    authority: CertificateAuthority,
}

impl ForeignAuthority {
    /// # Panics
    /// If the folder cannot be written, or there is no `openssl`.
    pub fn new(name: &str) -> ForeignAuthority {
        let folder = open_folder();
        fs::create_dir(folder.path().join("certificates")).expect("a folder");
        let authority = ForeignAuthority { authority: CertificateAuthority::new(name), folder };
        fs::write(authority.ca_file(), authority.ca_pem()).expect("a file");
        let output = Command::new("openssl")
            .args(["x509", "-noout", "-hash", "-in"])
            .arg(authority.ca_file())
            .output()
            .expect("openssl");
        let hash = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        fs::write(authority.ca_folder().join(format!("{hash}.0")), authority.ca_pem()).expect("a file");
        authority
    }

    pub fn ca_pem(&self) -> &str {
        &self.authority.ca_pem
    }

    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// What it issued is believed by whoever is told of this folder of hashed names.
    pub fn ca_folder(&self) -> PathBuf {
        self.folder.path().join("certificates")
    }

    /// A certificate and its key, for `localhost` as a server and for anybody as a client.
    pub fn issue(&self, name: &str) -> (String, String) {
        self.authority.issue(name, &SERVER_NAMES)
    }

    /// The same with a key of RSA: the client of FTS delegates with no other.
    pub fn issue_rsa(&self, name: &str) -> (String, String) {
        self.authority.issue_rsa(name, &SERVER_NAMES)
    }

    /// The same as files that a server of the name can read.
    pub fn issue_files(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = self.issue(name);
        let files = (folder.join("host.pem"), folder.join("host.key"));
        fs::write(&files.0, certificate).expect("a file");
        fs::write(&files.1, key).expect("a file");
        fs::set_permissions(&files.1, PermissionsExt::from_mode(0o600)).expect("a mode");
        give_away(&files.0);
        give_away(&files.1);
        files
    }
}

/// What lies in a folder of a storage, temporary names too; nothing if there is none.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(listed) = fs::read_dir(folder) else { return Vec::new() };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().into_string().expect("names of tests are UTF-8")
    };
    let mut names: Vec<String> = listed.map(name).collect();
    names.sort();
    names
}

/// A folder that servers under another name can look into.
fn open_folder() -> tempfile::TempDir {
    open_folder_in(&std::env::temp_dir())
}

fn open_folder_in(parent: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("a mode");
    folder
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// To whom the servers run as.
fn give_away(path: &Path) {
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("root may give files away");
    }
}

/// # Panics
/// If it ends, or takes too long.
pub fn wait_until_listening(process: &mut Process, port: u16) {
    wait_until_ready(process, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
}

fn wait_until_ready(process: &mut Process, is_ready: impl Fn() -> bool) {
    for _ in 0..READY_TICKS {
        if is_ready() {
            return;
        }
        assert!(process.wait(TICK).is_none(), "the server has ended: {}", process.log.tail());
    }
    panic!("the server does not get ready: {}", process.log.tail());
}
