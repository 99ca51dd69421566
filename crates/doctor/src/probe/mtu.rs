//! The largest packet that gets to a peer, by what its kernel acknowledges on the port that data use, so that
//! it is the path of the data and no firewall's opinion of another protocol.
//!
//! A full segment is sent. Where a router says that it is too large, our kernel sends smaller ones, and has
//! learnt the path's MTU. Where nothing comes back the path is a black hole if smaller segments arrive:
//! which, is found by halving over sizes that tunnels and links usually leave.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::checks::disk::error_text;
use crate::sys;

/// A TLS greeting that its sender never ends: whoever listens waits for the rest until we close.
const CLIENT_HELLO_BYTES_MAX: usize = 16_000;
/// A segment is sent again after a round trip and 0.2, 0.6 and 1.4 s: what was not acknowledged then, is not
/// coming.
const ACK_WAIT_MIN: Duration = Duration::from_millis(1_600);
const ACK_WAIT_ROUND_TRIPS: u32 = 4;
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(1);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(25);
/// What links and tunnels leave, from the largest: jumbo frames, Ethernet, PPPoE, GRE, IPsec and others, the
/// least of IPv6.
const COMMON_MTUS_BYTES: [u32; 13] =
    [8_000, 4_352, 2_002, 1_500, 1_492, 1_476, 1_450, 1_430, 1_420, 1_400, 1_360, 1_300, 1_280];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathMtu {
    pub bytes: u32,
    pub black_hole: bool,
}

pub(super) fn discover(
    address: SocketAddr,
    socket: TcpStream,
    rtt: Duration,
    patience: Duration,
) -> Result<PathMtu, String> {
    let wait = ACK_WAIT_MIN + rtt * ACK_WAIT_ROUND_TRIPS;
    let tried = packet_bytes(&socket, address)?;
    if segments_arrive(socket, wait)? {
        // Our kernel knows by now what routers said.
        let bytes = sys::path_mtu_of(address).map_or(tried, |known| known.min(tried));
        return Ok(PathMtu { bytes, black_hole: false });
    }
    let passes = |bytes: u32| -> Result<bool, String> {
        let socket = connect_with(address, bytes, patience).map_err(|error| error_text(&error))?;
        segments_arrive(socket, wait)
    };
    match largest_passing(&COMMON_MTUS_BYTES.map(|bytes| if bytes < tried { bytes } else { 0 }), passes)? {
        Some(bytes) => Ok(PathMtu { bytes, black_hole: true }),
        None => Err("connections begin, but not even packets of 1280 bytes get there".into()),
    }
}

/// The first of `sizes`, which fall, that passes; zeros are left out. By halving: each that does not costs
/// its wait.
fn largest_passing(
    sizes: &[u32],
    mut passes: impl FnMut(u32) -> Result<bool, String>,
) -> Result<Option<u32>, String> {
    let sizes: Vec<u32> = sizes.iter().copied().filter(|&size| size > 0).collect();
    let (mut low, mut high) = (0, sizes.len());
    while low < high {
        let middle = (low + high) / 2;
        if passes(sizes[middle])? { high = middle } else { low = middle + 1 }
    }
    Ok(sizes.get(low).copied())
}

/// IP packet of a full segment of the connection, as its two ends agreed.
fn packet_bytes(socket: &TcpStream, address: SocketAddr) -> Result<u32, String> {
    let measured = sys::tcp_info(socket.as_fd()).map_err(|error| error_text(&error))?;
    Ok(measured.mss_bytes + header_bytes(address) + if measured.timestamps { 12 } else { 0 })
}

fn header_bytes(address: SocketAddr) -> u32 {
    if address.is_ipv6() { 60 } else { 40 }
}

/// A connection whose segments make packets of at most so many bytes.
fn connect_with(address: SocketAddr, bytes: u32, patience: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_tcp_mss(bytes - header_bytes(address))?;
    socket.connect_timeout(&address.into(), patience)?;
    Ok(socket.into())
}

/// Sends two full segments and looks whether the peer's kernel has them.
fn segments_arrive(mut socket: TcpStream, wait: Duration) -> Result<bool, String> {
    let measured = |socket: &TcpStream| sys::tcp_info(socket.as_fd()).map_err(|error| error_text(&error));
    let mss = measured(&socket)?.mss_bytes as usize;
    socket
        .set_nonblocking(true)
        .and_then(|()| socket.set_nodelay(true))
        .map_err(|error| error_text(&error))?;
    socket
        .write_all(&partial_client_hello(2 * mss))
        .map_err(|error| format!("the peer closed: {}", error_text(&error)))?;
    let began = Instant::now();
    let mut pause = POLL_INTERVAL_MIN;
    loop {
        let now = measured(&socket)?;
        if now.unacknowledged == 0 {
            return if now.established { Ok(true) } else { Err("the peer closed the connection".into()) };
        }
        if began.elapsed() >= wait {
            return Ok(false);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(POLL_INTERVAL_MAX);
    }
}

/// The beginning of a TLS record with a ClientHello, filled up with zeros and longer than what is sent of it.
fn partial_client_hello(bytes: usize) -> Vec<u8> {
    let mut greeting = vec![0; bytes.clamp(64, CLIENT_HELLO_BYTES_MAX)];
    greeting[..11].copy_from_slice(&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3]);
    greeting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_passes_is_found_in_few_steps() {
        for limit in [0, 1_279, 1_280, 1_350, 1_420, 1_499, 1_500, 5_000, 9_000] {
            let mut asked = 0;
            let found = largest_passing(&COMMON_MTUS_BYTES, |bytes| {
                asked += 1;
                Ok(bytes <= limit)
            });
            assert_eq!(found.unwrap(), COMMON_MTUS_BYTES.into_iter().find(|&size| size <= limit));
            assert!(asked <= 4, "{asked} steps");
        }
        let falls: Result<_, String> = largest_passing(&COMMON_MTUS_BYTES, |_| Err("gone".into()));
        assert_eq!(falls, Err("gone".to_owned()));
        assert!(COMMON_MTUS_BYTES.windows(2).all(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn a_greeting_is_never_complete() {
        let greeting = partial_client_hello(1 << 20);
        let says = usize::from(u16::from_be_bytes([greeting[3], greeting[4]]));
        assert!(greeting.len() < says + 5, "whoever reads it waits for more");
    }
}
