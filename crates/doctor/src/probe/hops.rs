//! Route discovery as by `tracepath`: UDP datagrams with increasing hop limits, and the ICMP errors they
//! cause, read from the socket's error queue without privileges.
//!
//! The ports are constant (Paris traceroute, Augustin et al., 2006): with ECMP, routers choose by addresses
//! and ports, and the route found must be stable while nothing changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::checks::disk::error_text;
use crate::sys::{self, Icmp};

/// Hop limit; no path on this planet is longer.
const HOPS_MAX: u8 = 30;
/// Silent hops in a row that end the trace: most likely a firewall.
const SILENT_HOPS_MAX: usize = 3;
/// Tries per hop: routers rate-limit ICMP.
const TRIES_PER_HOP: usize = 2;
/// Minimum wait for a hop's answer.
const HOP_WAIT_MIN: Duration = Duration::from_millis(100);
/// Maximum wait for a hop's answer.
const HOP_WAIT_MAX: Duration = Duration::from_millis(600);
/// Base port of `traceroute`, which firewalls know.
const TARGET_PORT: u16 = 33_434;
/// Source ports, in the same range.
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 33_500..=33_531;

pub(super) fn trace(to: IpAddr, rtt: Duration) -> Result<Vec<Option<IpAddr>>, String> {
    let words = |error: io::Error| error_text(&error);
    let socket = open(to).map_err(words)?;
    let wait = (rtt * 2).clamp(HOP_WAIT_MIN, HOP_WAIT_MAX);
    let mut hops: Vec<Option<IpAddr>> = Vec::new();
    for limit in 1..=HOPS_MAX {
        socket.set_hop_limit(limit).map_err(words)?;
        let answer =
            (0..TRIES_PER_HOP).find_map(|_| socket.probe_hop(wait).transpose()).transpose().map_err(words)?;
        hops.push(answer.as_ref().and_then(|answer| answer.from));
        match answer.map(|answer| answer.kind) {
            Some(Icmp::TimeExceeded) | None => {}
            // The peer itself, or a router that goes no farther.
            Some(Icmp::Unreachable | Icmp::Other) => break,
        }
        if hops.len() >= SILENT_HOPS_MAX && hops.iter().rev().take(SILENT_HOPS_MAX).all(Option::is_none) {
            break;
        }
    }
    while hops.last().is_some_and(Option::is_none) {
        hops.pop();
    }
    if hops.is_empty() { Err("no router answers, nor does the peer".into()) } else { Ok(hops) }
}

struct Tracer {
    socket: UdpSocket,
    ipv6: bool,
}

fn open(to: IpAddr) -> io::Result<Tracer> {
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Another program or agent may be tracing at the moment.
    let bound = SOURCE_PORTS.map(|port| UdpSocket::bind((any, port))).find_map(Result::ok);
    let socket = match bound {
        Some(socket) => socket,
        None => UdpSocket::bind((any, 0))?,
    };
    sys::enable_error_queue(socket.as_fd(), to.is_ipv6())?;
    socket.connect(SocketAddr::new(to, TARGET_PORT))?;
    Ok(Tracer { socket, ipv6: to.is_ipv6() })
}

impl Tracer {
    fn set_hop_limit(&self, hops: u8) -> io::Result<()> {
        let socket = socket2::SockRef::from(&self.socket);
        if self.ipv6 { socket.set_unicast_hops_v6(hops.into()) } else { socket.set_ttl_v4(hops.into()) }
    }

    /// Sends a datagram; returns the ICMP error that it causes, or none in time.
    fn probe_hop(&self, wait: Duration) -> io::Result<Option<sys::IcmpError>> {
        // A late error of an earlier datagram belongs to no hop any more, and makes the next call fail once.
        while sys::next_error(self.socket.as_fd())?.is_some() {}
        self.socket.send(&[]).or_else(|_| self.socket.send(&[]))?;
        let ends = Instant::now() + wait;
        loop {
            if let Some(error) = sys::next_error(self.socket.as_fd())? {
                return Ok(Some(error));
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            poll(&mut [PollFd::new(&self.socket, PollFlags::empty())], Some(&left))?;
        }
    }
}
