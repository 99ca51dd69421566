//! The binary under test, and one command of it run to its end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::process::wait_for_exit;

/// A command that takes longer hangs.
pub const COMMAND_WITHIN: Duration = Duration::from_secs(240);

/// The `longhaul` to test: `LONGHAUL_BINARY`, else the one built beside the running test.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("LONGHAUL_BINARY") {
        return PathBuf::from(named);
    }
    beside("longhaul")
}

/// A program of this workspace that was built with the running test.
pub(crate) fn beside(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its program");
    // target/release/deps/kill-0123 or target/release/examples/x → target/release/longhaul
    let beside = test.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    let found = beside.into_iter().find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "there is no {name} beside {}: build it first (cargo build --release --workspace); \
             LONGHAUL_BINARY names another longhaul",
            test.display()
        )
    })
}

/// Takes this shell's set-up away from a command.
pub fn clean(command: &mut Command, home: &Path) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LONGHAUL_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").env("NO_COLOR", "1");
}

/// A command that has ended.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    pub command: String,
    /// Exit status; -1 after a signal.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// # Panics
    /// If it does not end within `within`.
    pub fn from_command(command: &mut Command, within: Duration) -> CommandOutput {
        let shown = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("running {shown}: {error}"));
        let stdout = read_all(child.stdout.take().expect("it is piped"));
        let stderr = read_all(child.stderr.take().expect("it is piped"));
        let ended = wait_for_exit(child.id(), within);
        if !ended {
            let _ = child.kill();
        }
        let status = child.wait().expect("it is our child").code().unwrap_or(-1);
        let read = |thread: std::thread::JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&thread.join().expect("it reads")).into_owned()
        };
        let ran = CommandOutput { command: shown, status, stdout: read(stdout), stderr: read(stderr) };
        assert!(ended, "not ended after {} s: {ran}", within.as_secs());
        ran
    }

    #[track_caller]
    pub fn ok(self) -> CommandOutput {
        self.exits(0)
    }

    #[track_caller]
    pub fn exits(self, status: i32) -> CommandOutput {
        assert_eq!(self.status, status, "{self}");
        self
    }

    /// One clear error: a code, what, why and what next.
    #[track_caller]
    pub fn fails(self, status: i32, code: &str, parts: &[&str]) -> CommandOutput {
        assert_eq!(self.status, status, "{self}");
        assert!(self.stderr.contains(&format!("error[{code}]")), "no {code}: {self}");
        assert!(self.stderr.contains("next:"), "no next step: {self}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {self}");
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self}"))
    }
}

impl std::fmt::Display for CommandOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} → {}\n--- stdout\n{}--- stderr\n{}",
            self.command, self.status, self.stdout, self.stderr
        )
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        all
    })
}
