//! A laboratory: two namespaces and what joins them.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

use super::config::{Change, Counters, Direction, Options, PathConfig, Side};
use super::line::Line;
use super::namespace::{Namespace, ip, remove_stale};
use super::tun;
use super::worker::{Report, Wire};

/// The MTU of a LAN laboratory.
const LAN_MTU: u32 = 9000;
/// What a TUN device holds until the emulator reads it, in packets (or super-packets). The kernel's 500 would
/// drop the start of a fast connection before the emulator sees it, and uncounted.
const DEVICE_QUEUE_PACKETS: &str = "10000";
/// Each path has a number in its addresses.
const PATHS_MAX: usize = 200;

/// Two namespaces, joined by emulated paths or by a LAN. Dropping it ends every process inside and removes
/// everything.
#[derive(Debug)]
pub struct Lab {
    /// One for each emulated path; none on a LAN. They end before the namespaces do.
    wires: Vec<Wire>,
    namespaces: [Namespace; 2],
    paths: usize,
}

impl Lab {
    /// Why this machine (or this user) can have no laboratory. It makes one and removes it.
    pub fn available() -> Result<(), String> {
        Lab::start(&[PathConfig::new(0.0)]).map(drop)
    }

    /// A laboratory with one emulated path for each of `paths`.
    pub fn start(paths: &[PathConfig]) -> Result<Lab, String> {
        Lab::start_with(paths, &Options::default())
    }

    pub fn start_with(paths: &[PathConfig], options: &Options) -> Result<Lab, String> {
        paths.iter().try_for_each(PathConfig::check)?;
        if paths.is_empty() || paths.len() > PATHS_MAX {
            return Err(format!("{} paths: must be 1 to {PATHS_MAX}", paths.len()));
        }
        remove_stale();
        let mut lab = Lab { wires: Vec::new(), namespaces: Namespace::pair()?, paths: paths.len() };
        lab.set_up(options)?;
        for (number, path) in paths.iter().enumerate() {
            let wire = lab.wire(number, path)?;
            lab.wires.push(wire);
        }
        Ok(lab)
    }

    /// Both sides on one LAN: a pair of virtual Ethernet devices with MTU 9000, as fast as this machine can.
    /// It is path 0.
    pub fn lan() -> Result<Lab, String> {
        Lab::lan_with(&Options::default())
    }

    pub fn lan_with(options: &Options) -> Result<Lab, String> {
        remove_stale();
        let lab = Lab { wires: Vec::new(), namespaces: Namespace::pair()?, paths: 1 };
        lab.set_up(options)?;
        let [left, right] = Side::BOTH.map(|side| lab.namespace(side));
        ip(&["-n", left, "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", right])?;
        for side in Side::BOTH {
            lab.address_device(side, 0, "lan0", LAN_MTU)?;
        }
        Ok(lab)
    }

    /// The namespace's name, as `ip netns` knows it.
    pub fn namespace(&self, side: Side) -> &str {
        self.namespace_of(side).name()
    }

    /// How many paths there are.
    pub fn paths(&self) -> usize {
        self.paths
    }

    /// 10.77.PATH.1 on the left, 10.77.PATH.2 on the right.
    pub fn address(&self, side: Side, path: usize) -> Ipv4Addr {
        assert!(path < self.paths, "there are {} paths", self.paths);
        Ipv4Addr::new(10, 77, path as u8, side.host())
    }

    /// fd77:PATH::1 on the left, fd77:PATH::2 on the right.
    pub fn address_v6(&self, side: Side, path: usize) -> Ipv6Addr {
        assert!(path < self.paths, "there are {} paths", self.paths);
        Ipv6Addr::new(0xfd77, path as u16, 0, 0, 0, 0, 0, side.host().into())
    }

    /// A command that will run inside. The child is the program itself: its number and its CPU time are the
    /// program's.
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        self.namespace_of(side).command(program)
    }

    /// Runs `work` in a thread inside; the sockets it opens stay there and can be handed out.
    pub fn inside<T: Send>(&self, side: Side, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        self.namespace_of(side).inside(work)
    }

    /// `cubic` or `bbr` for connections made from now on; each side's holds for what it sends.
    pub fn set_congestion_control(&self, side: Side, name: &str) -> Result<(), String> {
        self.namespace_of(side).congestion_control(name)
    }

    /// How far the kernel may grow the buffers of connections made from now on.
    pub fn set_socket_buffers(&self, side: Side, bytes_max: u64) -> Result<(), String> {
        self.namespace_of(side)
            .sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {}", bytes_max.max(131_072)))?;
        self.namespace_of(side).sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {}", bytes_max.max(16_384)))
    }

    /// Buffers of connections made from now on have this size from the beginning, and the kernel leaves them
    /// so.
    pub fn fix_socket_buffers(&self, side: Side, bytes: u64) -> Result<(), String> {
        for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            self.namespace_of(side).sysctl(name, &format!("4096 {bytes} {bytes}"))?;
        }
        self.namespace_of(side).sysctl("net.ipv4.tcp_moderate_rcvbuf", "0")
    }

    /// Changes a path, both directions of it unless the change names one. When this returns, it is so.
    pub fn set(&self, path: usize, change: Change) -> Result<(), String> {
        let wire = self.wires.get(path).ok_or_else(|| format!("there is no emulated path {path}"))?;
        change.check()?;
        let workers = Direction::BOTH.into_iter().zip(wire.workers());
        let mut changed = workers.filter(|(direction, _)| change.is_for(*direction));
        changed.try_for_each(|(_, worker)| worker.order(Some(change)).map(drop))
    }

    /// What a direction of a path has done until now. A LAN counts nothing.
    pub fn counters(&self, path: usize, direction: Direction) -> Counters {
        let report =
            |wire: &Wire| wire.workers()[usize::from(direction == Direction::RightToLeft)].order(None);
        self.wires.get(path).and_then(|wire| report(wire).ok()).unwrap_or_default().counters
    }

    /// CPU time of the emulator's threads until now. It contains the kernel's work of receiving: a packet
    /// written to a TUN device is handled by the receiver's TCP before the write returns.
    pub fn cpu_seconds(&self) -> f64 {
        let workers = self.wires.iter().flat_map(Wire::workers);
        workers.filter_map(|worker| worker.order(None).ok()).map(|report: Report| report.cpu_seconds).sum()
    }

    fn namespace_of(&self, side: Side) -> &Namespace {
        &self.namespaces[usize::from(side == Side::Right)]
    }

    fn set_up(&self, options: &Options) -> Result<(), String> {
        for side in Side::BOTH {
            // A connection must not begin with what an earlier one learned: every measurement starts alike.
            self.namespace_of(side).sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
            self.set_congestion_control(side, &options.congestion_control)?;
            self.set_socket_buffers(side, options.socket_buffer_bytes_max)?;
        }
        Ok(())
    }

    fn wire(&self, number: usize, path: &PathConfig) -> Result<Wire, String> {
        let device = format!("wan{number}");
        let end = |side| {
            let open = self.inside(side, || tun::open(&device))?;
            let file = open.map_err(|error| format!("making a TUN device (/dev/net/tun): {error}"))?;
            ip(&["-n", self.namespace(side), "link", "set", &device, "txqueuelen", DEVICE_QUEUE_PACKETS])?;
            self.address_device(side, number, &device, path.mtu)?;
            Ok::<_, String>(file)
        };
        let lines = [2 * number as u64, 2 * number as u64 + 1].map(|line| Line::new(path, line));
        Wire::start(number, end(Side::Left)?, end(Side::Right)?, lines)
    }

    fn address_device(&self, side: Side, path: usize, device: &str, mtu: u32) -> Result<(), String> {
        let name = self.namespace(side);
        let v4 = format!("{}/24", self.address(side, path));
        let v6 = format!("{}/64", self.address_v6(side, path));
        ip(&["-n", name, "address", "add", &v4, "dev", device])?;
        // Without nodad the address could not be used for the first second or two.
        ip(&["-n", name, "-6", "address", "add", &v6, "dev", device, "nodad"])?;
        ip(&["-n", name, "link", "set", device, "mtu", &mtu.to_string(), "up"])
    }
}
