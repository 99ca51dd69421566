//! No other process of the same user can read the memory of a Longhaul process, and no core dump is written.
//!
//! Needs root in order to become another user, since root itself may read everything. Without root the test
//! says that it did not run; with CI set it fails.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use longhaul_testbed::binary;

/// An account that every Debian has, by its ids.
const GAMES: (u32, u32) = (5, 60);
const CANARY: &str = "secret-of-the-environment";

/// A user other than root, with a directory of its own.
struct User {
    home: tempfile::TempDir,
}

impl User {
    fn new() -> Option<User> {
        if !rustix::process::geteuid().is_root() {
            let why = "DID NOT RUN: needs root";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("{why}");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(home.path(), Some(GAMES.0), Some(GAMES.1)).unwrap();
        // The directory of the program may be closed to others.
        let program = home.path().join("longhaul");
        fs::hard_link(binary(), &program).or_else(|_| fs::copy(binary(), &program).map(drop)).unwrap();
        Some(User { home })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.home.path()).env("CANARY", CANARY);
        command.env_remove("LONGHAUL_CORE_DUMPS").uid(GAMES.0).gid(GAMES.1);
        command
    }

    fn longhaul(&self, words: &[&str]) -> Command {
        let state = self.path("state").display().to_string();
        let mut command = self.command(&self.path("longhaul"), words);
        command
            .env("HOME", self.home.path())
            .env("LONGHAUL_SERVICE_STATE_DIR", state)
            .env("LONGHAUL_SERVICE_LISTEN", "127.0.0.1:0");
        command
    }

    /// What another process of this user can read of that process.
    fn reads(&self, process: &Child, what: &str) -> Output {
        let file = format!("/proc/{}/{what}", process.id());
        self.command(Path::new("/bin/cat"), &[&file]).output().unwrap()
    }

    fn is_refused(&self, process: &Child, what: &str) {
        let read = self.reads(process, what);
        let told = String::from_utf8_lossy(&read.stderr);
        assert!(read.stdout.is_empty() && told.contains("Permission denied"), "{what}: {told}");
    }
}

struct Running(Child);

impl Running {
    /// Waits for its first line.
    fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Both stay open, so that it can continue to write.
        let mut line = String::new();
        let of_service = command.get_args().next().is_some_and(|word| word == "service");
        if of_service {
            BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        } else {
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        }
        assert!(!line.is_empty(), "it says nothing: {:?}", child.wait());
        Running(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_other_process_of_the_user_sees_into_it() {
    let Some(user) = User::new() else { return };
    fs::create_dir(user.path("far")).unwrap();
    let made = user.longhaul(&["service", "init"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let serve: &[&str] = &["serve", "--listen", "127.0.0.1:0", "far"];
    for words in [serve, &["service", "run"]] {
        let running = Running::start(user.longhaul(words));
        for what in ["environ", "mem", "io", "maps", "fd/0"] {
            user.is_refused(&running.0, what);
        }
        let limits = fs::read_to_string(format!("/proc/{}/limits", running.0.id())).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
        // What reveals nothing is readable by all, as for every process.
        assert!(user.reads(&running.0, "status").status.success());
    }
    // The hardening is what refuses them, and an administrator can turn it off to debug a fault.
    let mut open = user.longhaul(serve);
    open.env("LONGHAUL_CORE_DUMPS", "1");
    let open = Running::start(open);
    let seen = user.reads(&open.0, "environ");
    assert!(String::from_utf8_lossy(&seen.stdout).contains(CANARY));
}
