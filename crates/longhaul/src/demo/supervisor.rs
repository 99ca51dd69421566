//! Supervises the demo's processes, which are this program again as service and agents: starts them, restarts
//! those that die, and stops them at the end. They hold the reading end of a pipe of ours, so they die with
//! us, whatever kills us.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use longhaul_model::units::printable;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::clock;
use crate::failure::{Failure, plain_io};

/// Delay before a restart; doubles with each early death up to the maximum.
const RESTART_BACKOFF_MIN: Duration = Duration::from_millis(100);
const RESTART_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A child that ran this long has started successfully.
const UPTIME_STABLE_MIN: Duration = Duration::from_secs(2);
/// A child that exits by itself (not by a signal) this often in a row right after its start is given up.
const FAILED_STARTS_MAX: u32 = 5;
/// Time between asking a child to stop and killing it.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const EVENTS_QUEUED_MAX: usize = 1_000;
/// Bytes read from the end of a log to explain why a child does not start.
const LOG_TAIL_BYTES: usize = 4_000;

/// One process to keep running.
#[derive(Clone, Debug)]
pub struct ChildSpec {
    /// `service` or the name of the site.
    pub name: String,
    /// Directory of the files `pid` and `log`.
    pub directory: PathBuf,
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

#[derive(Debug)]
pub enum Event {
    /// A child died and was restarted after this time.
    Restarted { name: String, died: String, after: Duration },
    /// A child does not start; with the reason from its log.
    GaveUp { name: String, why: String },
}

impl Event {
    /// One line for the event: `beta died (signal 9), restarted in 0.1 s`.
    pub fn line(&self) -> String {
        match self {
            Event::Restarted { name, died, after } => {
                format!("{name} died ({died}), restarted in {:.1} s", after.as_secs_f64())
            }
            Event::GaveUp { name, why } => format!("{name} does not start: {why}"),
        }
    }
}

pub struct Supervisor {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
}

impl Supervisor {
    pub fn new() -> Self {
        let (sender, events) = mpsc::channel(EVENTS_QUEUED_MAX);
        Supervisor { tasks: JoinSet::new(), stop: watch::Sender::new(false), events, sender }
    }

    /// Starts a process and keeps it running.
    pub fn supervise(&mut self, role: ChildSpec) -> Result<(), Failure> {
        let child = start(&role).map_err(|error| Failure::file("starting", &role.program, &error))?;
        self.tasks.spawn(supervise_child(role, child, self.stop.subscribe(), self.sender.clone()));
        Ok(())
    }

    /// Waits for the next event.
    pub async fn next_event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            None => unreachable!("we hold a sender ourselves"),
        }
    }

    /// Stops all processes: asks first, then kills.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // Nobody reads events any more; a full channel must not block a task.
        self.events.close();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A child and our end of the pipe that is its standard input, which is closed only when we die.
/// (`Child::wait` would close it if it were left there.)
struct ChildProcess {
    child: Child,
    _input: Option<ChildStdin>,
}

async fn supervise_child(
    role: ChildSpec,
    mut running: ChildProcess,
    mut stop: watch::Receiver<bool>,
    events: mpsc::Sender<Event>,
) {
    let mut false_starts = 0;
    let mut delay = RESTART_BACKOFF_MIN;
    loop {
        let begun = clock::now();
        let status = tokio::select! {
            status = running.child.wait() => Some(status),
            () = stop_requested(&mut stop) => None,
        };
        let Some(status) = status else { return stop_child(&role, &mut running.child).await };
        let died = clock::now();
        let well = died.since(begun) >= UPTIME_STABLE_MIN;
        let by_itself = status.as_ref().is_ok_and(|status| status.signal().is_none());
        false_starts = if by_itself && !well { false_starts + 1 } else { 0 };
        if false_starts >= FAILED_STARTS_MAX {
            let _ = events.send(Event::GaveUp { name: role.name.clone(), why: log_tail(&role) }).await;
            return;
        }
        if well {
            delay = RESTART_BACKOFF_MIN;
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = stop_requested(&mut stop) => return,
        }
        delay = (delay * 2).min(RESTART_BACKOFF_MAX);
        match start(&role) {
            Ok(next) => running = next,
            Err(error) => {
                let _ = events.send(Event::GaveUp { name: role.name.clone(), why: plain_io(&error) }).await;
                return;
            }
        }
        let how = status.map_or_else(|error| plain_io(&error), exit_reason);
        let after = clock::now().since(died);
        let _ = events.send(Event::Restarted { name: role.name.clone(), died: how, after }).await;
    }
}

async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody can ask any more, which amounts to the same.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn exit_reason(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => "no reason given".to_owned(),
    }
}

fn start(role: &ChildSpec) -> io::Result<ChildProcess> {
    let log = OpenOptions::new().create(true).append(true).open(role.directory.join("log"))?;
    let mut command = Command::new(&role.program);
    command
        .args(&role.arguments)
        // The demo is a deployment of its own, whatever this shell is configured for.
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("LONGHAUL_")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        // Ctrl-C is for us; we stop the children.
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    if let Some(pid) = child.id() {
        fs::write(role.directory.join("pid"), format!("{pid}\n"))?;
    }
    Ok(ChildProcess { _input: child.stdin.take(), child })
}

/// Asks a child to stop and kills it if it does not.
async fn stop_child(role: &ChildSpec, child: &mut Child) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
    let _ = fs::remove_file(role.directory.join("pid"));
}

/// The error at the end of a child's log.
fn log_tail(role: &ChildSpec) -> String {
    let bytes = fs::read(role.directory.join("log")).unwrap_or_default();
    let end = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned();
    let from = end.rfind("error[").unwrap_or_else(|| end.trim_end().rfind('\n').map_or(0, |at| at + 1));
    let words: Vec<&str> = end[from..].split_whitespace().collect();
    if words.is_empty() { "its log is empty".to_owned() } else { printable(&words.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell_spec(directory: &std::path::Path, script: &str) -> ChildSpec {
        ChildSpec {
            name: "beta".into(),
            directory: directory.to_owned(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
        }
    }

    fn pid(directory: &std::path::Path) -> Pid {
        let text = fs::read_to_string(directory.join("pid")).unwrap();
        Pid::from_raw(text.trim().parse().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn what_is_killed_is_restarted_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut children = Supervisor::new();
        children.supervise(shell_spec(directory.path(), "cat >/dev/null")).unwrap();
        let first = pid(directory.path());
        kill_process(first, Signal::KILL).unwrap();
        let event = children.next_event().await;
        assert!(event.line().starts_with("beta died (signal 9), restarted in "), "{}", event.line());
        let second = pid(directory.path());
        assert_ne!(first, second);
        children.stop().await;
        assert!(rustix::process::test_kill_process(second).is_err(), "it is gone");
        assert!(!directory.path().join("pid").exists());
    }

    #[tokio::test]
    async fn what_never_starts_is_given_up_with_its_own_words() {
        let directory = tempfile::tempdir().unwrap();
        let mut children = Supervisor::new();
        children
            .supervise(shell_spec(directory.path(), "echo 'error[E9007]: no place to live' >&2; exit 1"))
            .unwrap();
        let why = loop {
            match children.next_event().await {
                Event::GaveUp { why, .. } => break why,
                Event::Restarted { .. } => {}
            }
        };
        assert_eq!(why, "error[E9007]: no place to live");
        children.stop().await;
    }

    /// The pipe that signals our death to a child must not be held open by its siblings.
    #[tokio::test]
    async fn siblings_do_not_hold_each_others_pipes() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut first = start(&shell_spec(one.path(), "cat >/dev/null")).unwrap();
        let mut second = start(&shell_spec(two.path(), "cat >/dev/null")).unwrap();
        drop(first._input.take());
        assert!(
            first.child.wait().await.unwrap().success(),
            "its input is closed although the sibling lives"
        );
        second.child.kill().await.unwrap();
    }
}
