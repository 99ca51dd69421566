//! Network interfaces, and the CPUs that serve their interrupts.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::Tree;

/// Interfaces read; virtual ones may be any number.
const INTERFACES_MAX: usize = 1_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    pub name: String,
    pub up: bool,
    pub is_loopback: bool,
    pub mtu: Option<u32>,
    /// None where the driver does not report it, as in most virtual machines.
    pub bits_per_s: Option<u64>,
    pub transmit_queue_length: Option<u64>,
    /// Received packets dropped since it came up.
    pub dropped_in: Option<u64>,
    pub received_packets: Option<u64>,
    pub queues: Vec<Queue>,
}

/// An interrupt of an interface (one hardware queue).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    pub interrupt: String,
    pub name: String,
    /// Interrupts served by each CPU.
    pub per_cpu: Vec<u64>,
}

impl Interface {
    /// Interrupts served by each CPU, over all queues.
    pub fn per_cpu(&self) -> Vec<u64> {
        let cpus = self.queues.iter().map(|queue| queue.per_cpu.len()).max().unwrap_or(0);
        let of = |cpu: usize| self.queues.iter().filter_map(move |queue| queue.per_cpu.get(cpu));
        (0..cpus).map(|cpu| of(cpu).sum()).collect()
    }
}

/// Byte counters of an interface since it came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// None where the driver does not report it.
    pub bits_per_s: Option<u64>,
}

impl Traffic {
    /// Reads one interface; none if it does not exist. The counters are those of the calling thread's network
    /// namespace, which `/sys` in a container need not be.
    pub fn read(root: &Path, interface: &str) -> Option<Traffic> {
        let tree = Tree { root: root.to_owned() };
        let (received_bytes, sent_bytes) =
            interface_counters(&tree.text("proc/thread-self/net/dev")?, interface)?;
        Some(Traffic { received_bytes, sent_bytes, bits_per_s: link_speed(&tree, interface) })
    }
}

/// Lines such as `  eth0: 1500 2 0 0 0 0 0 0 900 1 0 0 0 0 0 0`: eight counters of each direction, bytes
/// first.
fn interface_counters(table: &str, interface: &str) -> Option<(u64, u64)> {
    let of = |line: &str| -> Option<(u64, u64)> {
        let (name, counters) = line.split_once(':')?;
        let counters: Vec<&str> = counters.split_whitespace().collect();
        let counter = |at: usize| counters.get(at)?.parse().ok();
        if name.trim() == interface { Some((counter(0)?, counter(8)?)) } else { None }
    };
    table.lines().find_map(of)
}

/// Megabits per second; -1 without a link or a number.
fn link_speed(tree: &Tree, interface: &str) -> Option<u64> {
    tree.number(&format!("sys/class/net/{interface}/speed")).and_then(|speed: i64| match speed {
        1.. => Some(speed as u64 * 1_000_000),
        _ => None,
    })
}

pub(super) fn read(tree: &Tree) -> Vec<Interface> {
    let interrupts = interrupts(&tree.text("proc/interrupts").unwrap_or_default());
    let names = tree.names("sys/class/net");
    names.iter().take(INTERFACES_MAX).map(|name| read_interface(tree, name, &interrupts)).collect()
}

fn read_interface(tree: &Tree, name: &str, interrupts: &[Queue]) -> Interface {
    let at = |file: &str| format!("sys/class/net/{name}/{file}");
    // IFF_UP and IFF_LOOPBACK.
    let flags = tree
        .text(&at("flags"))
        .and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
    let flags = flags.unwrap_or(0);
    Interface {
        name: name.to_owned(),
        up: flags & 1 != 0,
        is_loopback: flags & 8 != 0,
        mtu: tree.number(&at("mtu")),
        bits_per_s: link_speed(tree, name),
        transmit_queue_length: tree.number(&at("tx_queue_len")),
        dropped_in: tree.number(&at("statistics/rx_dropped")),
        received_packets: tree.number(&at("statistics/rx_packets")),
        queues: queues(tree, name, interrupts),
    }
}

/// Finds interrupts by the numbers that the device lists (its own, or its parent's, since virtio devices sit
/// on a PCI one), else by the interface's name.
fn queues(tree: &Tree, name: &str, interrupts: &[Queue]) -> Vec<Queue> {
    let device = tree.path(&format!("sys/class/net/{name}/device"));
    let mut numbers: Vec<String> = tree.names(&format!("sys/class/net/{name}/device/msi_irqs"));
    if numbers.is_empty()
        && let Some(parent) = device.canonicalize().ok().as_deref().and_then(std::path::Path::parent)
    {
        let entries = std::fs::read_dir(parent.join("msi_irqs")).into_iter().flatten().flatten();
        numbers = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    }
    let by_number: Vec<Queue> =
        interrupts.iter().filter(|one| numbers.contains(&one.interrupt)).cloned().collect();
    let found = if by_number.is_empty() {
        let begins = |text: &str| {
            text.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        interrupts.iter().filter(|one| one.name.split(['@', ' ']).any(begins)).cloned().collect()
    } else {
        by_number
    };
    // Configuration and event interrupts are not queues.
    found.into_iter().filter(|one| one.per_cpu.iter().sum::<u64>() > 1).collect()
}

/// Lines such as ` 41:  6038  0  PCI-MSIX-0000:00:04.0  1-edge  virtio3-rx`, under a heading of the CPUs on
/// line.
fn interrupts(text: &str) -> Vec<Queue> {
    let mut lines = text.lines();
    let cpus = lines.next().unwrap_or_default().split_whitespace().count();
    let mut all = BTreeMap::new();
    for line in lines {
        let Some((number, rest)) = line.split_once(':') else { continue };
        let number = number.trim();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let words: Vec<&str> = rest.split_whitespace().collect();
        let per_cpu: Option<Vec<u64>> = words.iter().take(cpus).map(|word| word.parse().ok()).collect();
        let Some(per_cpu) = per_cpu.filter(|counts| counts.len() == cpus) else { continue };
        let name = words.last().copied().unwrap_or_default().to_owned();
        all.insert(number.to_owned(), Queue { interrupt: number.to_owned(), name, per_cpu });
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_interface_counters() {
        let table = "Inter-|   Receive                    |  Transmit\n face |bytes packets\n    lo:  10 1 0 \
            0 0 0 0 0 10 1 0 0 0 0 0 0\n\
                     bond0.12:1500 2 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n  bad: x\n";
        assert_eq!(interface_counters(table, "bond0.12"), Some((1_500, 900)));
        assert_eq!(interface_counters(table, "lo"), Some((10, 10)));
        assert_eq!(
            (
                interface_counters(table, "bond0"),
                interface_counters(table, "bad"),
                interface_counters("", "lo")
            ),
            (None, None, None)
        );
    }

    #[test]
    fn parses_the_interrupt_table() {
        let text = "           CPU0       CPU1\n 41:       6038          0 \
            PCI-MSIX-0000:00:04.0   1-edge      virtio3-rx\n\
                    NMI:          0          0   Non-maskable interrupts\n 9: x 2 odd\n 42:  7\n";
        let all = interrupts(text);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].name.as_str(), all[0].per_cpu.as_slice()), ("virtio3-rx", &[6_038, 0][..]));
        assert!(interrupts("").is_empty());
    }
}
