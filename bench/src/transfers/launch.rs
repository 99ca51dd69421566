//! Starting programs inside a laboratory: each in its side's namespace, in a group of its own that counts it,
//! with names that resolve there, and held back until the clock is started.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_testbed::wan::{Lab, Side};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::account::Group;
use crate::peers::Server;

/// Arguments: folder of name files; then the program. It gets its own view of three files of /etc, says that
/// it is ready, and becomes the program when told: until then it can be put into its group.
const SCRIPT: &str = r#"set -e
for name in hosts resolv.conf nsswitch.conf; do mount --bind "$1/$name" /etc/$name; done
shift
printf r
read -r go
exec "$@" >&2 < /dev/null"#;

/// Name by which the far side knows the near one.
pub(crate) const NEAR_HOST: &str = "near.bench";
/// Name by which the near side knows the far one; certificates are issued for it.
pub(crate) const FAR_HOST: &str = "far.bench";

/// Characters of a log that are shown when a program fails.
const LOG_SHOWN: usize = 400;
const READY_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// A program with its arguments, as it is run and as it is printed.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub(crate) words: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

impl Words {
    pub(crate) fn new(program: impl Into<String>) -> Words {
        Words { words: vec![program.into()], environment: Vec::new() }
    }

    pub(crate) fn arg(mut self, word: impl Into<String>) -> Words {
        self.words.push(word.into());
        self
    }

    /// Words separated by spaces.
    pub(crate) fn args(mut self, words: &str) -> Words {
        self.words.extend(words.split_whitespace().map(str::to_owned));
        self
    }

    pub(crate) fn path(self, path: &Path) -> Words {
        self.arg(path.to_string_lossy())
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Words {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn shown(&self) -> String {
        let environment = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        environment.chain(self.words.iter().cloned()).collect::<Vec<_>>().join(" ")
    }
}

/// Where programs run: a laboratory and the files that all of them need.
pub(crate) struct Stage<'a> {
    pub(crate) lab: &'a Lab,
    /// Files that stand in for those of /etc, logs, settings of servers.
    pub(crate) folder: PathBuf,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(lab: &'a Lab, folder: PathBuf) -> Result<Stage<'a>, String> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (near, far) = (lab.address(Side::Left, 0), lab.address(Side::Right, 0));
        let hosts = format!("127.0.0.1 localhost\n{near} {NEAR_HOST}\n{far} {FAR_HOST} {}\n", host.trim());
        let write = |name: &str, text: &str| {
            fs::write(folder.join(name), text).map_err(|error| format!("{name} of the stage: {error}"))
        };
        fs::create_dir_all(&folder).map_err(|error| format!("a folder for the stage: {error}"))?;
        write("hosts", &hosts)?;
        // Names come from that file alone: a look for a name server would cost seconds.
        write("resolv.conf", "")?;
        write(
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
        )?;
        Ok(Stage { lab, folder })
    }

    /// Starts the program up to the point where only `go` is missing.
    pub(crate) fn prepare(&self, side: Side, words: &Words, log: &str) -> Result<Launched, String> {
        let shown = words.words.first().cloned().unwrap_or_default();
        find(&shown)?;
        let group = Arc::new(Group::new());
        let log = self.folder.join(log);
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = self.lab.command(side, "unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]);
        command.arg(&self.folder);
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 2) {
            command.args(["taskset", "-c", "0,1"]);
        }
        command.args(&words.words).env("HOME", &self.folder).current_dir(&self.folder).env_remove("LANG");
        command.envs(words.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).process_group(0);
        let child = command.spawn().map_err(|error| format!("cannot start {shown}: {error}"))?;
        let mut launched = Launched { child, group, log, cpu_before: 0.0, status: None };
        let mut ready = [0u8];
        let told = launched.child.stdout.as_mut().is_some_and(|pipe| pipe.read_exact(&mut ready).is_ok());
        if !told {
            return Err(format!("{shown} was not ready to run: {}", launched.log_end()));
        }
        launched.group.begin_with(launched.child.id())?;
        launched.cpu_before = launched.group.cpu_seconds();
        Ok(launched)
    }

    /// Starts a server and waits until its port listens and its file is there.
    pub(crate) fn serve(&self, wanted: &Server, log: &str) -> Result<Launched, String> {
        let mut server = self.prepare(Side::Right, &wanted.words, log)?;
        server.go();
        let until = Instant::now() + READY_WITHIN;
        loop {
            let has_file =
                wanted.file.as_ref().is_none_or(|file| file.metadata().is_ok_and(|data| data.len() > 0));
            if has_file && listens(server.pid(), wanted.port) {
                return Ok(server);
            }
            let ended = server.wait(Duration::from_millis(5));
            if ended.is_some() || Instant::now() > until {
                let how = ended.map_or("does not listen".to_owned(), |status| status.to_string());
                return Err(format!("server {} {how}: {}", wanted.words.shown(), server.log_end()));
            }
        }
    }
}

/// A program that runs, with its group. Dropping it ends all of its group.
pub(crate) struct Launched {
    child: Child,
    pub(crate) group: Arc<Group>,
    log: PathBuf,
    cpu_before: f64,
    status: Option<ExitStatus>,
}

impl Launched {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn go(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            let _ = input.write_all(b"\n");
        }
    }

    /// Waits for its end; none if it lives on. Its times stay readable until it is dropped.
    pub(crate) fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        if self.status.is_none() && wait_for_exit(self.child.id(), within) {
            // What it used is in the process table only as long as nobody has waited for it.
            if let Group::Control(_) = *self.group {
                self.status = self.child.wait().ok();
            } else {
                self.status = Some(ExitStatus::from_raw(zombie_status(self.child.id())));
            }
        }
        self.status
    }

    /// CPU time since it was told to go.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.group.cpu_seconds() - self.cpu_before
    }

    pub(crate) fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    pub(crate) fn log_end(&self) -> String {
        // Nobody needs the secrets of servers, not even of those that have ended.
        let words = |line: &str| -> String {
            let shown = |word| if str::starts_with(word, "lh://") { "lh://…" } else { word };
            line.split(' ').map(shown).collect::<Vec<_>>().join(" ")
        };
        let text = self.log().lines().map(words).collect::<Vec<_>>().join(" | ");
        let skip = text.chars().count().saturating_sub(LOG_SHOWN);
        text.chars().skip(skip).collect()
    }

    /// Asks it to end, and ends it if it does not.
    pub(crate) fn stop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32).filter(|_| self.status.is_none()) {
            let _ = kill_process_group(pid, Signal::TERM);
            self.wait(STOP_WITHIN);
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.group.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the process has ended; it may stay unwaited for.
pub(crate) fn wait_for_exit(pid: u32, within: Duration) -> bool {
    let Some(Ok(process)) = Pid::from_raw(pid as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return true;
    };
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            _ => return true,
        }
    }
}

/// The last field of `/proc/PID/stat`: how it ended, as `wait` would tell.
fn zombie_status(pid: u32) -> i32 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.split_whitespace().next_back().and_then(|word| word.parse().ok()).unwrap_or(1 << 8)
}

/// A program that is missing is told with the package that has it.
fn find(program: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = program.contains('/') && Path::new(program).exists()
        || std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if found {
        Ok(())
    } else {
        Err(format!("{program} is not installed (cargo xtask bench transfers installs it)"))
    }
}

/// Whether the namespace of a process has a TCP socket that listens on the port.
fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        has_listener(&text, port)
    })
}

fn has_listener(table: &str, port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&wanted)) && words.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_told_from_a_connection() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
            0: 0100007F:0016 00000000:0000 0A 00000000:00000000\n   \
            1: 0100007F:1F90 0100007F:0016 01 00000000:00000000\n";
        assert!(has_listener(table, 22));
        assert!(!has_listener(table, 8080), "that is a connection");
        assert!(!has_listener("", 22));
    }

    #[test]
    fn words_are_shown_as_one_would_type_them() {
        let words = Words::new("curl").args("-s -f").path(Path::new("/x")).env("A", "b");
        assert_eq!(words.shown(), "A=b curl -s -f /x");
    }

    #[test]
    fn a_missing_program_is_told() {
        assert!(find("no-such-program-at-all").unwrap_err().contains("not installed"));
        assert!(find("sh").is_ok());
    }
}
