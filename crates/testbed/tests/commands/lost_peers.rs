//! Peers that disappear without notice: the other side recovers, and the same command resumes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_testbed::binary;
use longhaul_testkit::wait_until;
use serde_json::Value;

const BYTES: usize = 48 << 20;
/// A rate that makes the copy last seconds, so that it can be interrupted.
const SLOW: &str = "8MB";
/// For a copy that need not end.
const SLOWER: &str = "4MB";
/// What a server holds for this long without a change, it holds for good.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

struct Running(Child);

impl Running {
    fn start(home: &Path, arguments: &[&str]) -> Running {
        let mut command = Command::new(binary());
        command.args(arguments).current_dir(home).stdout(Stdio::piped()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    fn serve(home: &Path) -> Running {
        let mut running = Running::start(
            home,
            &["serve", "--write", "--listen", "127.0.0.1:0", "--url-file", "url", "far"],
        );
        let mut line = String::new();
        BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("lh://"), "{line}");
        running
    }

    fn process(&self, what: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{what}", self.0.id()))
    }

    /// Resources that a client costs the server: descriptors and threads.
    fn holds(&self) -> (usize, usize) {
        let count = |what: &str| fs::read_dir(self.process(what)).unwrap().count();
        (count("fd"), count("task"))
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes on disk of unfinished files in `root`: space is reserved at once, so the size says nothing.
fn written(journal: &Path) -> u64 {
    fs::read_dir(journal).map_or(0, |entries| {
        entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
    })
}

fn temps(home: &Path) -> usize {
    fs::read_dir(home.join("far/.longhaul/temps")).map_or(0, Iterator::count)
}

fn ground() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("far")).unwrap();
    let bytes: Vec<u8> =
        (0..BYTES as u32 / 4).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    fs::write(home.path().join("large"), bytes).unwrap();
    home
}

/// The last line of `--json`.
fn summary(home: &Path, arguments: &[&str]) -> Value {
    let ran = Command::new(binary()).args(arguments).current_dir(home).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(ran.status.success() && last["event"] == "summary", "{last}");
    last
}

/// State directory of the server, which has the journal.
fn state(home: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(home.join("far/.longhaul")).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("serve-"))
}

/// Promise 4, and nothing of a client outlives it except the bytes that it sent.
#[test]
fn a_client_killed_in_the_middle_of_a_push_leaves_the_server_as_it_was() {
    let home = ground();
    let home = home.path();
    let server = Running::serve(home);
    // A first client, so that everything created only once exists.
    fs::write(home.join("small"), "x").unwrap();
    summary(home, &["copy", "--json", "small", "@url"]);
    let (mut before, mut since) = (server.holds(), Instant::now());
    wait_until(
        || {
            let now = server.holds();
            if now != before {
                (before, since) = (now, Instant::now());
            }
            since.elapsed() >= SETTLED_AFTER && temps(home) == 0
        },
        || "the first client is not forgotten".into(),
    );
    let journal = state(home).unwrap();
    let empty = written(&journal);
    let client = Running::start(home, &["copy", "--limit", SLOWER, "large", "@url"]);
    wait_until(|| temps(home) == 1 && written(&journal) > empty + 200, || "nothing moves".into());
    assert!(server.holds().0 > before.0, "a client holds something");
    client.kill();
    wait_until(
        || {
            let now = server.holds();
            now.0 <= before.0 && now.1 <= before.1
        },
        || "what a killed client held is not given back".into(),
    );
    assert!(!home.join("far/large").exists(), "whole or absent");
    assert_eq!(temps(home), 1, "what it had brought is kept");
    let last = summary(home, &["copy", "--json", "large", "@url"]);
    assert!(last["bytes_resumed"].as_u64().unwrap() > 0, "{last}");
    assert!(last["bytes_moved"].as_u64().unwrap() < BYTES as u64, "{last}");
    assert_eq!(fs::read(home.join("far/large")).unwrap(), fs::read(home.join("large")).unwrap());
    wait_until(
        || server.holds() == before || server.holds().0 <= before.0,
        || "the second client is not forgotten".into(),
    );
    server.signal(rustix::process::Signal::TERM);
    let mut server = server;
    assert!(server.0.wait().unwrap().success());
    assert!(!home.join("url").exists() && !home.join("far/.longhaul").exists(), "something is left");
    assert!(!home.join("url.key").exists(), "a clean end makes the URL worthless");
}

/// A killed server comes back with its identity: its client resumes by itself.
#[test]
fn a_killed_server_comes_back_under_its_url_and_its_client_goes_on() {
    let home = ground();
    let home = home.path();
    let server = Running::serve(home);
    let url = fs::read_to_string(home.join("url")).unwrap();
    let mut client = Running::start(home, &["copy", "--json", "--limit", SLOW, "large", "@url"]);
    wait_until(
        || temps(home) == 1 && state(home).is_some_and(|journal| written(&journal) > 400),
        || "nothing moves".into(),
    );
    server.kill();
    assert!(home.join("url.key").exists() && client.0.try_wait().unwrap().is_none());
    let server = Running::serve(home);
    assert_eq!(fs::read_to_string(home.join("url")).unwrap(), url);
    let output = BufReader::new(client.0.stdout.take().unwrap());
    let last = output.lines().map(Result::unwrap).last().unwrap();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert!(client.0.wait().unwrap().success(), "{last}");
    assert_eq!(fs::read(home.join("far/large")).unwrap(), fs::read(home.join("large")).unwrap());
    assert!(last["retries"].as_u64().unwrap() > 0 && last["bytes_resumed"].as_u64().unwrap() > 0, "{last}");
    drop(server);
}
