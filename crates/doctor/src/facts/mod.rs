//! Host facts from `/proc` and `/sys`: read once, under a given root, so that tests feed recorded trees.
//!
//! A file that is missing or malformed is an unknown fact (`None`), never an error: containers hide half of
//! them. Start with [`HostFacts::read`].

mod interfaces;
mod processor;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use longhaul_network::advice::HostLimits;
use serde::Serialize;

pub use interfaces::{Interface, Queue, Traffic};
pub use processor::Processor;

/// Largest file read: enough for `/proc/interrupts` and `/proc/cpuinfo` of a host with thousands of CPUs.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Facts about this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostFacts {
    pub limits: HostLimits,
    /// Congestion control in use.
    pub congestion: Option<String>,
    /// Congestion controls that programs may choose without privileges.
    pub congestion_allowed: Vec<String>,
    /// Congestion controls that the kernel has.
    pub congestion_available: Vec<String>,
    /// `tcp_mem` in bytes: low, pressure and maximum of all TCP buffers together.
    pub tcp_memory_bytes: Option<[u64; 3]>,
    pub memory_bytes: Option<u64>,
    pub interfaces: Vec<Interface>,
    pub processor: Processor,
    /// Open-file limits of this process, soft and hard; none means unlimited.
    pub open_files: Option<(Option<u64>, Option<u64>)>,
    /// Whether pressure stall information (PSI) of the disks is available.
    pub io_pressure: bool,
    pub kernel: Option<String>,
}

impl HostFacts {
    pub fn read(root: &Path) -> HostFacts {
        let tree = Tree { root: root.to_owned() };
        let words = |path: &str| -> Vec<String> {
            tree.text(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        let page = rustix::param::page_size() as u64;
        HostFacts {
            limits: limits(&tree),
            congestion: words("proc/sys/net/ipv4/tcp_congestion_control").into_iter().next(),
            congestion_allowed: words("proc/sys/net/ipv4/tcp_allowed_congestion_control"),
            congestion_available: words("proc/sys/net/ipv4/tcp_available_congestion_control"),
            tcp_memory_bytes: tree
                .triple("proc/sys/net/ipv4/tcp_mem")
                .map(|pages| pages.map(|pages| pages.saturating_mul(page))),
            memory_bytes: memory(&tree),
            interfaces: interfaces::read(&tree),
            processor: Processor::read(&tree),
            open_files: open_files(&tree),
            io_pressure: tree.text("proc/pressure/io").is_some_and(|text| text.starts_with("some ")),
            kernel: words("proc/sys/kernel/osrelease").into_iter().next(),
        }
    }

    /// Rate of the fastest external interface.
    pub fn fastest_bytes_per_s(&self) -> Option<u64> {
        self.external_interfaces().filter_map(|interface| interface.bits_per_s).max().map(|bits| bits / 8)
    }

    pub fn mtu_max(&self) -> u32 {
        self.external_interfaces().filter_map(|interface| interface.mtu).max().unwrap_or(1_500)
    }

    /// Interfaces to other hosts: up, and not the loopback.
    pub fn external_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| interface.up && !interface.is_loopback)
    }
}

fn limits(tree: &Tree) -> HostLimits {
    let ipv4 = |name: &str| tree.number(&format!("proc/sys/net/ipv4/{name}"));
    let core = |name: &str| tree.number(&format!("proc/sys/net/core/{name}"));
    HostLimits {
        tcp_rmem: tree.triple("proc/sys/net/ipv4/tcp_rmem"),
        tcp_wmem: tree.triple("proc/sys/net/ipv4/tcp_wmem"),
        rmem_max: core("rmem_max"),
        wmem_max: core("wmem_max"),
        netdev_max_backlog: core("netdev_max_backlog"),
        somaxconn: core("somaxconn"),
        tcp_mtu_probing: ipv4("tcp_mtu_probing"),
        tcp_slow_start_after_idle: ipv4("tcp_slow_start_after_idle"),
        tcp_no_metrics_save: ipv4("tcp_no_metrics_save"),
        tcp_window_scaling: ipv4("tcp_window_scaling"),
        tcp_sack: ipv4("tcp_sack"),
        tcp_timestamps: ipv4("tcp_timestamps"),
        tcp_moderate_rcvbuf: ipv4("tcp_moderate_rcvbuf"),
        default_qdisc: tree.text("proc/sys/net/core/default_qdisc").map(|text| text.trim().to_owned()),
    }
}

/// `MemTotal:       3070340 kB`.
fn memory(tree: &Tree) -> Option<u64> {
    let text = tree.text("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// `Max open files            20000                524288               files`.
fn open_files(tree: &Tree) -> Option<(Option<u64>, Option<u64>)> {
    let text = tree.text("proc/self/limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut values = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    });
    Some((values.next()??, values.next()??))
}

/// Files under a root.
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// None if it is missing, unreadable (`/sys/class/net/*/speed` gives `EINVAL` without a link), not text,
    /// or too large.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        use std::io::Read as _;
        let mut text = String::new();
        let file = std::fs::File::open(self.path(path)).ok()?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    fn triple(&self, path: &str) -> Option<[u64; 3]> {
        let text = self.text(path)?;
        let values: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        values?.try_into().ok()
    }

    /// Names in a directory, sorted; none if there is no such directory.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}
