//! One child process: watched by its log, killed by its own id, and gone when we are.

use std::io::{PipeWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::Log;

/// Between asking a process to end and giving it up.
const STOP_WITHIN: Duration = Duration::from_secs(120);
/// Within which what a process said before its end is read.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// A running (or ended, and not yet restarted) child.
pub struct Process {
    name: String,
    child: Child,
    /// Our end of its standard input, which closes when we die, whatever kills us.
    input: Option<ChildStdin>,
    /// The end of the pipe that is its standard error.
    error: PipeWriter,
    pub log: Log,
}

impl Process {
    /// Starts `command` with a pipe as standard input; what it says goes to `log` and the file.
    pub fn start(name: &str, command: &mut Command, log: &Log, file: &Path) -> Process {
        let (reader, error) = std::io::pipe().expect("a pipe");
        let its_own = error.try_clone().expect("a descriptor");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(its_own);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("starting {name}: {error}"));
        // The command holds it open otherwise.
        command.stderr(Stdio::null());
        log.follow(reader, file);
        Process { name: name.to_owned(), input: child.stdin.take(), child, error, log: log.clone() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Writes to its standard input.
    pub fn write_input(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("it has been open since the start");
        input.write_all(bytes).unwrap_or_else(|error| panic!("telling {}: {error}", self.name));
    }

    /// SIGKILL, and its end; its log is whole then.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.log.catch_up(&self.error, READ_WITHIN);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a positive id");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("signal to {}: {error}", self.name));
    }

    /// SIGTERM, and a clean end in good time.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(STOP_WITHIN).unwrap_or_else(|| panic!("{} does not end at SIGTERM", self.name))
    }

    /// Waits for its end, after which its log is whole; none if it lives on.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        if !wait_for_exit(self.child.id(), within) {
            return None;
        }
        self.log.catch_up(&self.error, READ_WITHIN);
        Some(self.child.wait().expect("it is our child"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the process of that id has ended; says whether it has.
pub fn wait_for_exit(pid: u32, within: Duration) -> bool {
    let Ok(process) = pidfd_open(Pid::from_raw(pid as i32).expect("an id is positive"), PidfdFlags::empty())
    else {
        return true;
    };
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut polled = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        match poll(&mut polled, Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting for process {pid}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_seen_and_a_life_is_too() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("cat");
        let mut process = Process::start("cat", &mut command, &Log::default(), &directory.path().join("log"));
        assert!(process.is_running());
        assert!(process.wait(Duration::ZERO).is_none());
        process.input.take();
        assert!(process.wait(Duration::from_secs(60)).unwrap().success(), "it ends with its input");
    }

    /// Also where another process, which it has left behind, could still say more.
    #[test]
    fn all_that_it_said_is_in_its_log_at_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "exec 3<&0; cat <&3 & seq 5000 >&2; printf last >&2"]);
        let mut process = Process::start("sh", &mut command, &Log::default(), &file);
        assert!(process.wait(Duration::from_secs(60)).unwrap().success());
        assert_eq!((process.log.len(), process.log.lines_with(&["last"]).len()), (5001, 1));
        process.kill();
        assert_eq!(process.log.len(), 5001, "nothing is added by looking");
        assert!(std::fs::read_to_string(file).unwrap().ends_with("5000\nlast"));
    }
}
