//! The demo as a user starts it, and what a user types beside it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use longhaul_testbed::http::Api;
use longhaul_testbed::{CommandOutput, Log, Process, binary, clean, free_port};
use serde_json::Value;
use tempfile::TempDir;

/// Within which its data are written and its processes run.
const START_TIMEOUT: Duration = Duration::from_secs(300);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two tries of a command whose subject may not be there yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A running demo, in a directory of its own. Dropped, it is killed, and all of its processes end with it.
pub(super) struct Demo {
    process: Process,
    service: SocketAddr,
    pages: SocketAddr,
    home: TempDir,
}

impl Demo {
    /// Starts it, and waits until its service answers.
    pub(super) fn start(words: &[&str]) -> Demo {
        let home = tempfile::Builder::new()
            .prefix("longhaul-bench-limits-")
            .tempdir()
            .expect("a temporary directory");
        let [service, pages] = [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let mut command = Command::new(binary());
        clean(&mut command, home.path());
        command.arg("demo").args(words).arg("--dir").arg(home.path().join("state"));
        command.args(["--listen", &service.to_string(), "--http", &pages.to_string()]);
        let process = Process::start("demo", &mut command, &Log::default(), &home.path().join("log"));
        let demo = Demo { process, service, pages, home };
        demo.wait_until_said("https://");
        demo
    }

    fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// Root of the storage of a site.
    pub(super) fn storage(&self, site: &str) -> PathBuf {
        self.state().join(site).join("storage")
    }

    /// Where the pages are.
    pub(super) fn pages_url(&self) -> String {
        format!("http://{}", self.pages)
    }

    pub(super) fn has_said(&self, words: &str) -> bool {
        !self.process.log.lines_with(&[words]).is_empty()
    }

    pub(super) fn wait_until_said(&self, words: &str) {
        let line = self.process.log.wait_for(0, &[words], START_TIMEOUT);
        assert!(line.is_some(), "the demo never says {words:?}:\n{}", self.process.log.tail());
    }

    fn run(&self, words: &[&str]) -> CommandOutput {
        let mut command = Command::new(binary());
        clean(&mut command, self.home.path());
        command.args(words).arg("--json").arg("--dir").arg(self.state());
        CommandOutput::from_command(&mut command, COMMAND_TIMEOUT)
    }

    /// A command that must work.
    pub(super) fn json(&self, words: &[&str]) -> Value {
        self.run(words).ok().json()
    }

    /// A command that works as soon as its subject is there.
    pub(super) fn run_until_ok(&self, words: &[&str]) {
        let begun = Instant::now();
        loop {
            let ran = self.run(words);
            if ran.status == 0 {
                return;
            }
            assert!(begun.elapsed() < START_TIMEOUT, "{ran}");
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// The API, with a token of an administrator.
    pub(super) fn api(&self) -> Api {
        let created = self.json(&["token", "create", "bench", "--role", "admin"]);
        let token = created["token"].as_str().expect("a token");
        let ca = fs::read_to_string(self.state().join("service/state/ca.pem")).expect("the CA's certificate");
        Api::secure(self.service, &ca, token)
    }

    /// Ends it as Ctrl-C does.
    pub(super) fn stop(mut self) {
        let status = self.process.stop();
        eprintln!("  the demo has ended: {status}");
    }
}
