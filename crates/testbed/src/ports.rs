//! Ports of the loopback address that stay the same over restarts.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process;
use std::sync::{Mutex, PoisonError};

/// Below the ports that the kernel gives to outgoing connections, so that none of these takes a port of a
/// process that is dead for a moment.
const FIRST: u16 = 12_000;
/// Test processes have ports by the range.
const RANGE_PORTS: u16 = 500;
const RANGES: u16 = 36;

/// The ranges of this process.
struct HeldRanges {
    /// What is left of the last one.
    left: Range<u16>,
    marks: Vec<UnixListener>,
}

/// A free port that is not given out twice by this process, nor by another test process while this one runs.
pub fn free_port() -> u16 {
    static HELD: Mutex<HeldRanges> = Mutex::new(HeldRanges { left: 0..0, marks: Vec::new() });
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(port) = held.left.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()) {
            return port;
        }
        let (range, mark) = take_range();
        held.left = range;
        held.marks.push(mark);
    }
}

/// The first that no test process has, from a place of this process's own on; and the socket whose name says
/// that it is taken, which nobody else can have and which ends with this process.
fn take_range() -> (Range<u16>, UnixListener) {
    let begin = (process::id() % u32::from(RANGES)) as u16;
    for number in (begin..RANGES).chain(0..begin) {
        let first = FIRST + number * RANGE_PORTS;
        let name = SocketAddr::from_abstract_name(format!("longhaul-testbed-ports-{first}"));
        if let Ok(mark) = UnixListener::bind_addr(&name.expect("a short name")) {
            return (first..first + RANGE_PORTS, mark);
        }
    }
    panic!("no free ports between {FIRST} and {}", FIRST + RANGES * RANGE_PORTS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_range_is_taken_once() {
        let taken = [(); 3].map(|()| take_range());
        let firsts = BTreeSet::from(taken.each_ref().map(|(range, _)| range.start));
        assert_eq!(firsts.len(), 3, "{firsts:?}");
        assert_ne!(free_port(), free_port());
    }
}
