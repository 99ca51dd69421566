//! Apache with its WebDAV module: a plain server that copies nothing between servers and tells no checksums,
//! but moves and locks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ForeignAuthority, give_away, open_folder, wait_until_listening};
use crate::{Log, Process, free_port};

/// Where Debian has its modules.
const MODULES: &str = "/usr/lib/apache2/modules";

pub struct Apache {
    folder: tempfile::TempDir,
    port: u16,
    _process: Process,
}

impl Apache {
    /// Serves, when this returns.
    pub fn start(authority: &ForeignAuthority) -> Apache {
        let folder = open_folder();
        let port = free_port();
        for name in ["data", "locks"] {
            let made = folder.path().join(name);
            fs::create_dir(&made).expect("a folder");
            give_away(&made);
        }
        let config_file = folder.path().join("apache.conf");
        fs::write(&config_file, config(authority, folder.path(), port)).expect("a file");
        let mut command = Command::new("apache2");
        // One process: workers would outlive a parent that is killed.
        command.arg("-X").arg("-f").arg(&config_file);
        let log = Log::default();
        let mut process = Process::start("apache2", &mut command, &log, &folder.path().join("log"));
        wait_until_listening(&mut process, port);
        Apache { folder, port, _process: process }
    }

    /// Where its files lie.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// URL of one of its files.
    pub fn url(&self, name: &str) -> String {
        format!("https://localhost:{}/data/{name}", self.port)
    }

    /// A file as others have left it.
    pub fn put(&self, name: &str, content: &[u8]) {
        let file = self.data().join(name);
        fs::write(&file, content).expect("a file");
        give_away(&file);
    }
}

fn config(authority: &ForeignAuthority, here: &Path, port: u16) -> String {
    let (certificate, key) = authority.issue_files(here, "apache");
    let modules: String = ["mpm_event", "authz_core", "ssl", "dav", "dav_fs"]
        .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"))
        .concat();
    let (certificate, key, here) = (certificate.display(), key.display(), here.display());
    format!(
        "{modules}ServerRoot {here}\nServerName localhost\nPidFile {here}/pid\nErrorLog {here}/errors\n\
         Listen 127.0.0.1:{port}\nUser nobody\nGroup nogroup\n\
         SSLEngine on\nSSLCertificateFile {certificate}\nSSLCertificateKeyFile {key}\n\
         DocumentRoot {here}\nDavLockDB {here}/locks/database\n\
         <Directory {here}/data>\nRequire all granted\nDav On\n</Directory>\n"
    )
}
