//! Name resolution, and TCP connections that carry no data.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::checks::disk::error_text;
use crate::sys;

/// Connection tries: a first packet may be lost by chance, and the kernel resends it only after a second.
const CONNECT_TRIES_MAX: usize = 2;

/// Result of dialling an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Answers,
    /// The host refuses: nothing listens there.
    Refused,
    /// No answer at all.
    Silent,
    /// This host has no route to it, such as IPv6 on a host without it.
    NoRoute,
}

/// Resolves a name. The resolver has no timeout, so a blocked thread is abandoned.
pub(crate) fn resolve(host: &str, port: u16, patience: Duration) -> Result<Vec<SocketAddr>, String> {
    let (sender, receiver) = mpsc::channel();
    let host = host.to_owned();
    let begun = thread::Builder::new().name("resolve".into()).spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let _ = sender.send(found);
    });
    begun.map_err(|error| error_text(&error))?;
    match receiver.recv_timeout(patience) {
        Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Ok(Ok(_)) => Err("it has no address".into()),
        Ok(Err(error)) => Err(error_text(&error)),
        Err(_) => Err(format!("no answer within {} s", patience.as_secs())),
    }
}

pub(crate) struct Connection {
    pub socket: TcpStream,
    pub rtt_us: u64,
    pub mss_bytes: u32,
}

/// The fastest of `count` connections.
pub(crate) fn fastest_connection(
    address: SocketAddr,
    count: usize,
    patience: Duration,
) -> io::Result<Connection> {
    let mut best: Option<Connection> = None;
    for _ in 0..count {
        let connected = connect(address, patience)?;
        if best.as_ref().is_none_or(|best| connected.rtt_us < best.rtt_us) {
            best = Some(connected);
        }
    }
    best.ok_or_else(|| io::Error::other("not tried"))
}

/// Round trips from several source ports, measured in sequence so that they do not disturb each other.
pub(super) struct PortSamples {
    pub rtts_us: Vec<u32>,
    /// The last connection, still open.
    pub last: TcpStream,
}

pub(super) fn connect_ports(
    address: SocketAddr,
    count: usize,
    patience: Duration,
) -> Result<PortSamples, Reach> {
    let mut connected = connect_with_retry(address, patience)?;
    let mut rtts_us = vec![saturating_u32(connected.rtt_us)];
    while rtts_us.len() < count {
        // A host that stops answering halfway has answered.
        let Ok(next) = connect(address, patience) else { break };
        rtts_us.push(saturating_u32(next.rtt_us));
        connected = next;
    }
    Ok(PortSamples { rtts_us, last: connected.socket })
}

fn connect_with_retry(address: SocketAddr, patience: Duration) -> Result<Connection, Reach> {
    for _ in 0..CONNECT_TRIES_MAX {
        match connect(address, patience) {
            Ok(connected) => return Ok(connected),
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => return Err(Reach::Refused),
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::AddrNotAvailable => {
                    return Err(Reach::NoRoute);
                }
                _ => {}
            },
        }
    }
    Err(Reach::Silent)
}

fn connect(address: SocketAddr, patience: Duration) -> io::Result<Connection> {
    let began = Instant::now();
    let socket = TcpStream::connect_timeout(&address, patience)?;
    let waited = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let measured = sys::tcp_info(socket.as_fd())?;
    // The kernel's round trip excludes the time that this thread waited for a CPU.
    let rtt_us = waited.min(u64::from(measured.rtt_us).max(1));
    Ok(Connection { socket, rtt_us, mss_bytes: measured.mss_bytes })
}

fn saturating_u32(us: u64) -> u32 {
    u32::try_from(us).unwrap_or(u32::MAX)
}
