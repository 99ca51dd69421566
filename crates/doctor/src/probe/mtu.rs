//! Path MTU discovery by acknowledged segments (packetization layer PMTUD, RFC 4821) on the data port, so
//! that the path is that of the data.
//!
//! A full segment is sent. If a router reports that it is too large, the kernel shrinks segments and has
//! learnt the path MTU. If nothing comes back and smaller segments arrive, the path is a black hole; its MTU
//! is found by binary search over common sizes of tunnels and links.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::checks::disk::error_text;
use crate::sys;

/// Length of a ClientHello that is never completed: the peer waits for the rest until we close.
const CLIENT_HELLO_BYTES_MAX: usize = 16_000;
/// Minimum wait for an acknowledgement: a segment is resent after a round trip and 0.2, 0.6 and 1.4 s, and is
/// lost if not acknowledged then.
const ACK_WAIT_MIN: Duration = Duration::from_millis(1_600);
/// Round trips added to that wait.
const ACK_WAIT_ROUND_TRIPS: u32 = 4;
/// First interval of polling for the acknowledgement.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Longest interval of polling.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(25);
/// Common MTUs, largest first: jumbo frames, Ethernet, PPPoE, GRE, IPsec and others, the minimum of IPv6.
const COMMON_MTUS_BYTES: [u32; 13] =
    [8_000, 4_352, 2_002, 1_500, 1_492, 1_476, 1_450, 1_430, 1_420, 1_400, 1_360, 1_300, 1_280];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathMtu {
    pub bytes: u32,
    pub black_hole: bool,
}

/// Why the path MTU is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum MtuError {
    /// A connection with small packets could not be made, or its state could not be read or set.
    #[error("{}", error_text(.0))]
    Socket(#[source] io::Error),
    #[error("the peer closed: {}", error_text(.0))]
    Send(#[source] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    /// Not even the smallest of the common sizes is acknowledged.
    #[error("connections begin, but not even packets of 1280 bytes get there")]
    NothingPasses,
}

pub(super) fn discover(
    address: SocketAddr,
    socket: TcpStream,
    rtt: Duration,
    patience: Duration,
) -> Result<PathMtu, MtuError> {
    let wait = ACK_WAIT_MIN + rtt * ACK_WAIT_ROUND_TRIPS;
    let tried = packet_bytes(&socket, address)?;
    if segments_arrive(socket, wait)? {
        // The kernel has learnt by now what routers reported.
        let bytes = sys::path_mtu_of(address).map_or(tried, |known| known.min(tried));
        return Ok(PathMtu { bytes, black_hole: false });
    }
    let passes = |bytes: u32| -> Result<bool, MtuError> {
        let socket = connect_with(address, bytes, patience).map_err(MtuError::Socket)?;
        segments_arrive(socket, wait)
    };
    match largest_passing(&COMMON_MTUS_BYTES.map(|bytes| if bytes < tried { bytes } else { 0 }), passes)? {
        Some(bytes) => Ok(PathMtu { bytes, black_hole: true }),
        None => Err(MtuError::NothingPasses),
    }
}

/// The first of the descending `sizes` that passes, by binary search since each failure costs its wait; zeros
/// are left out.
fn largest_passing(
    sizes: &[u32],
    mut passes: impl FnMut(u32) -> Result<bool, MtuError>,
) -> Result<Option<u32>, MtuError> {
    let sizes: Vec<u32> = sizes.iter().copied().filter(|&size| size > 0).collect();
    let (mut low, mut high) = (0, sizes.len());
    while low < high {
        let middle = (low + high) / 2;
        if passes(sizes[middle])? { high = middle } else { low = middle + 1 }
    }
    Ok(sizes.get(low).copied())
}

/// IP packet size of a full segment, as the two ends agreed.
fn packet_bytes(socket: &TcpStream, address: SocketAddr) -> Result<u32, MtuError> {
    let measured = sys::tcp_info(socket.as_fd()).map_err(MtuError::Socket)?;
    Ok(measured.mss_bytes + header_bytes(address) + if measured.timestamps { 12 } else { 0 })
}

fn header_bytes(address: SocketAddr) -> u32 {
    if address.is_ipv6() { 60 } else { 40 }
}

/// A connection with packets of at most `bytes`.
fn connect_with(address: SocketAddr, bytes: u32, patience: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_tcp_mss(bytes - header_bytes(address))?;
    socket.connect_timeout(&address.into(), patience)?;
    Ok(socket.into())
}

/// Sends two full segments; whether the peer's kernel acknowledges them.
fn segments_arrive(mut socket: TcpStream, wait: Duration) -> Result<bool, MtuError> {
    let measured = |socket: &TcpStream| sys::tcp_info(socket.as_fd()).map_err(MtuError::Socket);
    let mss = measured(&socket)?.mss_bytes as usize;
    socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).map_err(MtuError::Socket)?;
    socket.write_all(&partial_client_hello(2 * mss)).map_err(MtuError::Send)?;
    let began = Instant::now();
    let mut pause = POLL_INTERVAL_MIN;
    loop {
        let now = measured(&socket)?;
        if now.unacknowledged == 0 {
            return if now.established { Ok(true) } else { Err(MtuError::Closed) };
        }
        if began.elapsed() >= wait {
            return Ok(false);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(POLL_INTERVAL_MAX);
    }
}

/// The start of a TLS record with a ClientHello, padded with zeros and shorter than it announces.
fn partial_client_hello(bytes: usize) -> Vec<u8> {
    let mut greeting = vec![0; bytes.clamp(64, CLIENT_HELLO_BYTES_MAX)];
    greeting[..11].copy_from_slice(&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3]);
    greeting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_search_finds_the_largest_passing_size() {
        for limit in [0, 1_279, 1_280, 1_350, 1_420, 1_499, 1_500, 5_000, 9_000] {
            let mut asked = 0;
            let found = largest_passing(&COMMON_MTUS_BYTES, |bytes| {
                asked += 1;
                Ok(bytes <= limit)
            });
            assert_eq!(found.unwrap(), COMMON_MTUS_BYTES.into_iter().find(|&size| size <= limit));
            assert!(asked <= 4, "{asked} steps");
        }
        let falls = largest_passing(&COMMON_MTUS_BYTES, |_| Err(MtuError::Closed));
        assert!(matches!(falls, Err(MtuError::Closed)));
        assert!(COMMON_MTUS_BYTES.windows(2).all(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn a_client_hello_is_never_complete() {
        let greeting = partial_client_hello(1 << 20);
        let says = usize::from(u16::from_be_bytes([greeting[3], greeting[4]]));
        assert!(greeting.len() < says + 5, "whoever reads it waits for more");
    }
}
