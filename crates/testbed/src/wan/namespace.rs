//! A network namespace with a name, and everything in it ends with it.
//!
//! The name says which process made it (number and start time), so that what a killed process left can be
//! found.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::config::Side;

const PREFIX: &str = "longhaul-";
/// Where `ip netns` keeps names.
const NAMES: &str = "/run/netns";
/// Congestion controls that everyone may choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
/// How many entries the tables of connections of a namespace's children shall have; the kernel takes a power
/// of two.
const TABLE_OF_CHILDREN: &str = "/proc/sys/net/ipv4/tcp_child_ehash_entries";
const TABLE_ENTRIES: u32 = 4096;

#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
}

impl Namespace {
    /// Two with the same number in their names.
    pub(super) fn pair() -> Result<[Namespace; 2], String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let start = start_time(process).ok_or("/proc does not tell when this process began")?;
        let make = |side: Side| {
            let name = format!("{PREFIX}{process}-{start}-{number}-{}", side.name());
            add(&name)?;
            let made = Namespace { name };
            ip(&["-n", &made.name, "link", "set", "lo", "up"])?;
            Ok::<_, String>(made)
        };
        Ok([make(Side::Left)?, make(Side::Right)?])
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// `ip netns exec` becomes the program: the child's number and its CPU time are the program's.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `work` in a thread inside; sockets and devices opened there stay there.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        let path = Path::new(NAMES).join(&self.name);
        let namespace = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let enter_and_work = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| format!("entering {}: {error}", path.display()))?;
            Ok(work())
        };
        std::thread::scope(|scope| {
            scope.spawn(enter_and_work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(super) fn sysctl(&self, name: &str, value: &str) -> Result<(), String> {
        let path = PathBuf::from(format!("/proc/sys/{}", name.replace('.', "/")));
        self.inside(|| std::fs::write(&path, value))?
            .map_err(|error| format!("setting {name} to {value:?} in {}: {error}", self.name))
    }

    /// For connections made from now on. Beyond the machine's default a namespace may have only what the
    /// machine allows to everyone. Where that list does not hold it, it does for as long as the setting
    /// takes: the choice stays when the permission goes, and the machine is as before.
    pub(super) fn congestion_control(&self, name: &str) -> Result<(), String> {
        let set = || self.sysctl("net.ipv4.tcp_congestion_control", name);
        // Labs of several processes do this one after another.
        let Ok(list) = File::options().read(true).write(true).open(ALLOWED) else { return set() };
        flock(&list, FlockOperation::LockExclusive).map_err(|error| format!("locking {ALLOWED}: {error}"))?;
        let before = std::fs::read_to_string(ALLOWED).map_err(|error| format!("{ALLOWED}: {error}"))?;
        if before.split_whitespace().any(|allowed| allowed == name) {
            return set();
        }
        let allow = |names: &str| {
            std::fs::write(ALLOWED, names).map_err(|error| format!("allowing {name} ({ALLOWED}): {error}"))
        };
        allow(&format!("{} {name}", before.trim()))?;
        let done = set();
        allow(before.trim())?;
        done
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Removes what processes that are gone left behind.
pub(super) fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(NAMES) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if maker(&name).is_some_and(|(process, start)| start_time(process) != Some(start)) {
            remove(&name);
        }
    }
}

/// Runs `ip`; its complaint is the error.
pub(super) fn ip(words: &[&str]) -> Result<(), String> {
    run(Command::new("ip").args(words), "iproute2")
}

/// Runs a program of a Debian package to its end; its complaint is the error.
fn run(command: &mut Command, package: &str) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{command:?}: {error} (the program comes with the package {package})"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A namespace that is born in another one, since what a namespace asks for its children holds for their
/// table of connections: a table of their own. Whoever counts the memory of sockets walks all of it, and the
/// machine's is so large that fifty walks a second cost a twentieth of a core. Kernels before 6.1 have one
/// table for all, and no such file.
fn add(name: &str) -> Result<(), String> {
    let script = format!(
        "[ ! -w {TABLE_OF_CHILDREN} ] || echo {TABLE_ENTRIES} > {TABLE_OF_CHILDREN}; exec ip netns add \"$0\""
    );
    run(Command::new("unshare").args(["--net", "sh", "-c", &script, name]), "util-linux")
}

/// Ends what runs inside first: a namespace lives on as long as a process is in it, and a server left behind
/// would hold its memory and CPU.
fn remove(name: &str) {
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).stdin(Stdio::null()).output() {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let own = std::process::id() as i32;
        let others = text.split_whitespace().filter_map(|word| word.parse().ok()).filter(|pid| *pid != own);
        for pid in others.filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let _ = ip(&["netns", "delete", name]);
}

/// Number and start time of the process that made a namespace of ours.
fn maker(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let process = parts.next()?.parse().ok()?;
    let start = parts.next()?.parse().ok()?;
    parts.next()?.parse::<u32>().ok()?;
    matches!(parts.next()?, "left" | "right").then_some((process, start))
}

/// When a process began, in ticks since the machine did: with its number it is unique. None if it is gone.
fn start_time(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name in brackets, which may hold anything; the start is the 22nd.
    let fields = &text[text.rfind(')')? + 1..];
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_maker() {
        assert_eq!(maker("longhaul-12-345-0-left"), Some((12, 345)));
        for other in ["longhaul-12-345-0-up", "longhaul-x-345-0-left", "left", "longhaul-12-left", "blue"] {
            assert_eq!(maker(other), None, "{other}");
        }
    }

    #[test]
    fn this_process_has_a_start_and_none_has_number_zero() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(0), None);
    }
}
