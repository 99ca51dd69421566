//! What the processes of one side have used: CPU time and memory of a program with all that it starts.
//!
//! Where the machine has a control-group tree of version 2 that can be written to, each side of each run is a
//! group of its own: the kernel then counts also children that ended unnoticed (servers that fork for each
//! connection). Elsewhere the process tables are read, which count a child once its parent has waited for it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use longhaul_testbed::processes;

/// Clock ticks of `/proc/PID/stat` in a second; Linux shows 100 to programs on every machine we know.
const TICKS_PER_SECOND: f64 = 100.0;
const END_WITHIN: Duration = Duration::from_secs(5);

pub(crate) enum Group {
    Control(PathBuf),
    /// The first process; its descendants are found through it.
    Tables(AtomicU32),
}

impl Group {
    pub(crate) fn new() -> Group {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("longhaul-bench-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = control_groups().map(|root| root.join(name));
        match folder.filter(|folder| fs::create_dir(folder).is_ok()) {
            Some(folder) => Group::Control(folder),
            None => Group::Tables(AtomicU32::new(0)),
        }
    }

    pub(crate) fn how(&self) -> &'static str {
        match self {
            Group::Control(_) => "control groups",
            Group::Tables(_) => "process tables (ticks of 10 ms)",
        }
    }

    /// The process belongs here from now on, and all that it starts.
    pub(crate) fn begin_with(&self, pid: u32) -> Result<(), String> {
        match self {
            Group::Control(folder) => fs::write(folder.join("cgroup.procs"), pid.to_string())
                .map_err(|error| format!("putting a process into {}: {error}", folder.display())),
            Group::Tables(first) => {
                first.store(pid, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        match self {
            Group::Control(folder) => {
                let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                text.lines().filter_map(|line| line.parse().ok()).collect()
            }
            Group::Tables(first) => match first.load(Ordering::Relaxed) {
                0 => Vec::new(),
                first => family(first),
            },
        }
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        match self {
            Group::Control(folder) => {
                let text = fs::read_to_string(folder.join("cpu.stat")).unwrap_or_default();
                field(&text, "usage_usec").map_or(0.0, |micros| micros as f64 / 1e6)
            }
            Group::Tables(_) => {
                let stat = |pid| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                self.processes().into_iter().map(|pid| cpu_of(&stat(pid))).sum()
            }
        }
    }

    /// Ends all of them, and waits until they are gone.
    pub(crate) fn kill(&self) {
        if let Group::Control(folder) = self {
            let _ = fs::write(folder.join("cgroup.kill"), "1");
        }
        for pid in self.processes() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let until = Instant::now() + END_WITHIN;
        for pid in self.processes() {
            super::launch::wait_for_exit(pid, until.saturating_duration_since(Instant::now()));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        if let Group::Control(folder) = self {
            let until = Instant::now() + END_WITHIN;
            // An ended process leaves its group when its parent (or init) has heard of it.
            while fs::remove_dir(&*folder).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
                && Instant::now() < until
            {
                std::thread::yield_now();
            }
        }
    }
}

/// The highest sum of memory peaks of processes that lived at the same time.
#[derive(Default)]
pub(crate) struct Peak {
    each: HashMap<u32, u64>,
    most: u64,
}

impl Peak {
    /// Reads `VmHWM` of each of these; what shares memory (a server and its children) counts it each time.
    pub(crate) fn sample(&mut self, processes: &[u32], sockets: u64) {
        let mut sum = sockets;
        for pid in processes {
            let known = self.each.entry(*pid).or_default();
            *known = (*known).max(crate::measure::peak_memory(*pid));
            sum += *known;
        }
        self.most = self.most.max(sum);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.most
    }
}

/// Where the tree of version 2 is mounted, alone or beside version 1.
fn control_groups() -> Option<PathBuf> {
    mounted_at(&fs::read_to_string("/proc/mounts").ok()?, "cgroup2").map(|path| Path::new(&path).to_owned())
}

fn mounted_at(mounts: &str, kind: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let place = words.next()?;
        (words.next()? == kind).then(|| place.to_owned())
    })
}

/// A line `NAME NUMBER` of a statistics file.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// A process and all that descend from it and still live.
fn family(first: u32) -> Vec<u32> {
    let mut all = vec![first];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        all.extend(processes::children(pid));
        next += 1;
    }
    all
}

/// Own time and that of children waited for: fields 14 to 17 of `/proc/PID/stat`. The name (field 2) may hold
/// anything.
fn cpu_of(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn times_of_children_count_and_names_do_not_confuse() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 55 1 1";
        assert_eq!(cpu_of(stat), 35.2);
        assert_eq!(cpu_of(""), 0.0);
    }

    #[test]
    fn mounts_and_statistics_are_read() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mounted_at(mounts, "cgroup2").as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(mounted_at(mounts, "nfs"), None);
        assert_eq!(field("usage_usec 17\nuser_usec 5\n", "user_usec"), Some(5));
        assert_eq!(field("usage_usec x\n", "usage_usec"), None);
    }

    /// Both ways of counting see a child that has ended and was waited for by its parent only.
    #[test]
    fn both_ways_count_grandchildren() {
        for group in [Group::new(), Group::Tables(AtomicU32::new(0))] {
            let script =
                "read go; sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; read wait; true";
            let mut child = std::process::Command::new("sh")
                .args(["-c", script])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            group.begin_with(child.id()).unwrap();
            writeln!(child.stdin.as_mut().unwrap(), "go").unwrap();
            while group.cpu_seconds() < 0.02 {
                assert!(child.try_wait().unwrap().is_none(), "it waits for its input");
            }
            let mut peak = Peak::default();
            peak.sample(&group.processes(), 5);
            assert!(peak.bytes() > 100_000);
            group.kill();
            assert!(!child.wait().unwrap().success());
            if matches!(group, Group::Control(_)) {
                assert!(group.processes().is_empty());
            }
        }
    }
}
