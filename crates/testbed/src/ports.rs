//! Ports of the loopback address that stay the same over restarts.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel gives to outgoing connections, so that none of these takes a port of a
/// process that is dead for a moment.
const FIRST: u16 = 12_000;
const COUNT: u16 = 18_000;

/// A free port that is not given out twice by this process. Other test processes begin elsewhere.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = (u64::from(std::process::id()) * 97 % u64::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let port = FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        if TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
