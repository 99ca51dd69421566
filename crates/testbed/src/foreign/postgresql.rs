//! PostgreSQL as Debian has it, with a cluster of its own: a database for programs of others.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::{NOBODY, give_away, is_root, open_folder, wait_until_listening};
use crate::{Log, Process, free_port};

const USER: &str = "longhaul";
/// Where Debian puts the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

pub struct PostgreSql {
    port: u16,
    process: Process,
    _folder: tempfile::TempDir,
}

impl PostgreSql {
    /// Why there is none here, if so.
    pub fn missing() -> Option<String> {
        programs().is_none().then(|| "there is no postgresql".to_owned())
    }

    /// Serves, when this returns. What it holds does not outlive it, so nothing is flushed.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> PostgreSql {
        let programs = programs().expect("postgresql");
        let folder = open_folder();
        give_away(folder.path());
        let data = folder.path().join("data");
        let mut init = as_nobody(&programs.join("initdb"), folder.path());
        init.args([
            "--auth=trust",
            "--no-sync",
            "--locale=C",
            "--encoding=UTF8",
            "--username",
            USER,
            "--pgdata",
        ]);
        let ran = init.arg(&data).output().expect("initdb runs");
        assert!(ran.status.success(), "initdb: {}", String::from_utf8_lossy(&ran.stderr));
        let port = free_port();
        let mut command = as_nobody(&programs.join("postgres"), folder.path());
        command
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-h", "127.0.0.1", "-F", "-k"])
            .arg(folder.path());
        command.args(["-c", "dynamic_shared_memory_type=mmap"]);
        let log = Log::default();
        let mut process = Process::start("postgresql", &mut command, &log, &folder.path().join("log"));
        wait_until_listening(&mut process, port);
        PostgreSql { port, process, _folder: folder }
    }

    /// Its one database, without the scheme.
    pub fn location(&self) -> String {
        format!("{USER}@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PostgreSql {
    fn drop(&mut self) {
        // At once, and with all its processes and what they share.
        self.process.signal(Signal::QUIT);
        self.process.wait(std::time::Duration::from_secs(10));
    }
}

/// The newest version's.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let mut found: Vec<PathBuf> = versions.filter(|folder| folder.join("initdb").exists()).collect();
    found.sort();
    found.pop()
}

/// It refuses to run as root.
fn as_nobody(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("LC_ALL", "C");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}
