//! `longhaul serve` on the right of a laboratory and `longhaul copy` on its left, as processes that can be
//! killed.
//!
//! Not here: deployments with a service (`Deployment`). Waiting is for events, in ticks of [`TICK`], each of
//! which ends early if the process does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::run::{binary, clean};
use crate::wan::{Direction, Lab, Side};
use crate::{Log, Process};

/// Between two looks at what a running process has done.
pub const TICK: Duration = Duration::from_millis(5);
/// Exit status of a command after Ctrl-C.
pub const INTERRUPTED: i32 = 130;
const PORT: u16 = 7000;
/// A server that does not listen after so many ticks never will.
const READY_TICKS: u32 = 24_000;

/// A laboratory with folders for source, target and what is beside.
pub struct AdHoc {
    pub lab: Lab,
    directory: tempfile::TempDir,
    /// The files are near and the server takes them; else they are far and it gives them.
    push: bool,
}

impl AdHoc {
    /// Files lie in memory where this machine has a place for it, so that no slow disk has a say.
    pub fn new(lab: Lab) -> AdHoc {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        AdHoc::below(lab, &place)
    }

    pub fn below(lab: Lab, place: &Path) -> AdHoc {
        let directory = tempfile::tempdir_in(place).expect("a temporary directory");
        for name in ["source", "target", "home"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        AdHoc { lab, directory, push: false }
    }

    /// From left to right instead.
    #[must_use]
    pub fn pushing(self) -> AdHoc {
        AdHoc { push: true, ..self }
    }

    /// Which way the data go.
    pub fn direction(&self) -> Direction {
        if self.push { Direction::LeftToRight } else { Direction::RightToLeft }
    }

    /// Bytes that the WAN has carried the way the data go.
    pub fn on_the_wire(&self) -> u64 {
        (0..self.lab.paths()).map(|path| self.lab.counters(path, self.direction()).bytes_carried).sum()
    }

    /// Waits until it has carried so many; false if the copy ends before.
    pub fn carries(&self, bytes: u64, copy: &mut Process) -> bool {
        while self.on_the_wire() < bytes {
            if copy.wait(TICK).is_some() {
                return false;
            }
        }
        true
    }

    pub fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    pub fn target(&self) -> PathBuf {
        self.directory.path().join("target")
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn url(&self) -> PathBuf {
        self.home().join("url")
    }

    /// Exports the far folder on all paths; ready when this returns. A new one after a kill has the same
    /// addresses.
    pub fn serve(&self, more: &[&str]) -> Process {
        self.serve_on(&Vec::from_iter(0..self.lab.paths()), more)
    }

    /// It listens on all paths, and says so of these.
    pub fn serve_on(&self, paths: &[usize], more: &[&str]) -> Process {
        let _ = fs::remove_file(self.url());
        let mut command = self.lab.command(Side::Right, binary());
        clean(&mut command, &self.home());
        let folder = if self.push { self.target() } else { self.source() };
        command.arg("serve").arg(folder).arg("--url-file").arg(self.url());
        command.args(self.push.then_some("--write"));
        command.args(["--listen", &format!("0.0.0.0:{PORT}")]);
        for &path in paths {
            command.args(["--advertise", &format!("{}:{PORT}", self.lab.address(Side::Right, path))]);
        }
        command.args(more);
        let log = Log::default();
        let mut server = Process::start("serve", &mut command, &log, &self.home().join("serve.log"));
        for _ in 0..READY_TICKS {
            if fs::metadata(self.url()).is_ok_and(|data| data.len() > 0) {
                return server;
            }
            assert!(server.wait(TICK).is_none(), "the server has ended: {}", log.tail());
        }
        panic!("the server does not listen: {}", log.tail());
    }

    /// The whole source into the target.
    pub fn command(&self, more: &[&str]) -> Command {
        let mut command = self.lab.command(Side::Left, binary());
        clean(&mut command, &self.home());
        command.args(["copy", "--recursive"]).args(more);
        let far = format!("@{}/", self.url().display());
        if self.push {
            command.arg(format!("{}/", self.source().display())).arg(far);
        } else {
            command.arg(far).arg(self.target());
        }
        command
    }

    /// The same, running, until somebody kills it.
    pub fn copy(&self, more: &[&str]) -> Process {
        Process::start("copy", &mut self.command(more), &Log::default(), &self.home().join("copy.log"))
    }
}
