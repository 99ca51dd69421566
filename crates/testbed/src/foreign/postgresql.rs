//! PostgreSQL as Debian has it, with a cluster of its own: a database for programs of others.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::{NOBODY, give_away, is_root, open_folder, wait_until_ready};
use crate::{Log, Process, free_port};

const USER: &str = "longhaul";
/// Where Debian puts the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
const END_WITHIN: Duration = Duration::from_secs(60);
/// Nothing of it outlives the test.
const IN_HASTE: [&str; 5] = ["-F", "-c", "shared_buffers=16MB", "-c", "autovacuum=off"];
/// What the administrator's guide says of a server that holds a busy catalog.
const AS_ADVISED: [&str; 4] = ["-c", "shared_buffers=1GB", "-c", "max_wal_size=4GB"];

pub struct PostgreSql {
    port: u16,
    process: Process,
    durable: bool,
    log: Log,
    folder: tempfile::TempDir,
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
        PostgreSql::with(false)
    }

    /// As [`PostgreSql::start`]; what it has answered is on disk.
    pub fn start_durable() -> PostgreSql {
        PostgreSql::with(true)
    }

    fn with(durable: bool) -> PostgreSql {
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
        let (port, log) = (free_port(), Log::default());
        let process = serve(folder.path(), port, durable, &log);
        PostgreSql { port, process, durable, log, folder }
    }

    /// Its first database, without the scheme.
    pub fn location(&self) -> String {
        self.location_of("postgres")
    }

    pub fn location_of(&self, database: &str) -> String {
        format!("{USER}@127.0.0.1:{}/{database}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Another database, empty.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn create(&self, database: &str) {
        self.create_like(database, "template1");
    }

    /// Makes another database, a copy of one that nobody is connected to.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn create_like(&self, database: &str, template: &str) {
        let mut command = client("createdb", self.folder.path(), self.port);
        command.args(["-U", USER, "--template", template, database]);
        let ran = command.output().expect("createdb runs");
        assert!(ran.status.success(), "createdb: {}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Ends all its processes at once, in the middle of what they do: the next start recovers as after a
    /// crash.
    ///
    /// # Panics
    /// If it lives on.
    pub fn crash(&mut self) {
        assert!(self.end_at_once(), "postgresql does not end at SIGQUIT: {}", self.log.tail());
    }

    /// Says whether it has ended.
    fn end_at_once(&mut self) -> bool {
        self.process.signal(Signal::QUIT);
        self.process.wait(END_WITHIN).is_some()
    }

    /// Serves again, when this returns.
    pub fn start_again(&mut self) {
        self.process = serve(self.folder.path(), self.port, self.durable, &self.log);
    }
}

fn serve(folder: &Path, port: u16, durable: bool, log: &Log) -> Process {
    let mut command = as_nobody(&programs().expect("postgresql").join("postgres"), folder);
    command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
    command.arg("-k").arg(folder).args(["-c", "dynamic_shared_memory_type=mmap"]);
    match durable {
        true => command.args(AS_ADVISED),
        false => command.args(IN_HASTE),
    };
    let mut process = Process::start("postgresql", &mut command, log, &folder.join("log"));
    // It listens before it has recovered.
    wait_until_ready(&mut process, || {
        let asked = client("pg_isready", folder, port).output().expect("pg_isready runs");
        asked.status.success()
    });
    process
}

/// A program that asks it.
fn client(program: &str, folder: &Path, port: u16) -> Command {
    let mut command = as_nobody(&programs().expect("postgresql").join(program), folder);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    command
}

impl Drop for PostgreSql {
    fn drop(&mut self) {
        // With what its processes share; a test may have ended it already.
        if self.process.is_running() {
            self.end_at_once();
        }
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
