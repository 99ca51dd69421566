//! `longhaul copy` as somebody at a terminal sees it, between two namespaces at 150 ms: it says how far it
//! is, Ctrl-C leaves what has come, and the same command goes on from there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longhaul_testbed::wan::{Change, Lab, PathConfig};
use longhaul_testbed::{AdHoc, INTERRUPTED, Log, Process, Random, TICK, needs, tree};

const RTT_MS: f64 = 150.0;
const RATE_MBIT: f64 = 200.0;
/// Until it was stopped: Ctrl-C comes long before its end.
const SLOW_MBIT: f64 = 100.0;
const FILE: &str = "run7.root";
const BYTES: u64 = 100_000_000;
/// Headers, acknowledgements, digests.
const OVERHEAD: f64 = 1.03;
/// Sent and not kept when the copy was stopped: twice the BDP of 4 MB, and a chunk of each stream that had
/// not all come; and what the end of a file sends twice, so that no stream is waited for. All of it again
/// would be twice as much.
const IN_FLIGHT: u64 = 25_000_000;
const WITHIN: Duration = Duration::from_secs(120);
/// Width of the terminal.
const COLUMNS: u16 = 120;
const CTRL_C: &[u8] = b"\x03";

/// A copy on a terminal of its own, which `script` makes and records.
struct Screen {
    copy: Process,
    recorded: PathBuf,
}

impl Screen {
    fn start(ground: &AdHoc, folder: &Path) -> Screen {
        let copy = ground.command(&[]);
        let words = std::iter::once(copy.get_program()).chain(copy.get_args());
        let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
        let recorded = folder.join("recorded");
        let mut command = Command::new("script");
        // As wide as what is expected of each line, whatever numbers stand in it.
        let on_terminal = format!("stty columns {COLUMNS}; exec {}", words.join(" "));
        command.args(["-qefc", &on_terminal]).arg(&recorded);
        for (name, value) in copy.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("TERM", "xterm");
        let copy = Process::start("copy", &mut command, &Log::default(), &folder.join("log"));
        Screen { copy, recorded }
    }

    /// Everything that the terminal has shown.
    fn shown(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.recorded).unwrap_or_default()).into_owned()
    }

    /// Waits until the terminal has shown it; false if the copy ends before.
    fn shows(&mut self, part: &str) -> bool {
        while !self.shown().contains(part) {
            if self.copy.wait(TICK).is_some() {
                return false;
            }
        }
        true
    }

    /// Its exit status, after which the terminal shows all of these.
    fn ends_with(mut self, parts: &[&str]) -> Option<i32> {
        let status = self.copy.wait(WITHIN).expect("it ends");
        let shown = self.shown();
        for part in parts {
            assert!(shown.contains(part), "no {part:?} in {shown}");
        }
        status.code()
    }
}

#[test]
fn a_copy_is_watched_stopped_and_goes_on() {
    if let Err(why) = Lab::available() {
        needs::not_run("a copy at a terminal", &why);
        return;
    }
    let ground = AdHoc::new(Lab::start(&[PathConfig::new(RTT_MS).rate_mbit(SLOW_MBIT)]).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let content = tree::content(&mut Random::new(BYTES), BYTES);
    fs::write(ground.source().join(FILE), &content).unwrap();
    let _server = ground.serve(&[]);

    let mut screen = Screen::start(&ground, folder.path());
    assert!(ground.carries(BYTES / 4, &mut screen.copy) && screen.shows("█"), "it ended by itself");
    screen.copy.write_input(CTRL_C);
    let watched = ["█", "░", " % ", "0 / 1 file", " MB/s (avg ", "done "];
    let stopped = ["stopped; what has arrived is kept; the same command resumes"];
    assert_eq!(screen.ends_with(&[&watched[..], &stopped].concat()), Some(INTERRUPTED));
    assert!(!ground.target().join(FILE).exists(), "half a file has no name");

    ground.lab.set(0, Change::RateMbit(Some(RATE_MBIT))).unwrap();
    let goes_on = ["MB had come before)", "; 1 verified end to end"];
    assert_eq!(Screen::start(&ground, folder.path()).ends_with(&goes_on), Some(0));
    assert!(fs::read(ground.target().join(FILE)).unwrap() == content);
    let (sent, most) = (ground.on_the_wire(), (BYTES as f64 * OVERHEAD) as u64 + IN_FLIGHT);
    assert!(sent <= most, "{sent} bytes on the wire for {BYTES}");
}
