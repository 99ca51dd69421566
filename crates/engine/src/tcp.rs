//! `TCP_INFO` of a connection, and socket options that have no safe interface.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use socket2::SockRef;

/// The state of one connection at one moment. Counters start at the connection's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    pub(crate) round_trip: Duration,
    /// The minimum over the last minutes.
    pub(crate) round_trip_min: Duration,
    /// The receiver-side estimate; zero until data arrived.
    pub(crate) receiver_round_trip: Duration,
    /// The maximum segment size, and the congestion window in segments.
    pub(crate) segment_bytes: u32,
    pub(crate) window_segments: u32,
    /// Retransmitted segments.
    pub(crate) retransmits: u32,
    pub(crate) segments_sent: u32,
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    /// The delivery rate in bytes per second.
    pub(crate) delivery_rate: u64,
    /// Whether the delivery rate was limited by the application and not by the path.
    pub(crate) app_limited: bool,
    /// Time with data in flight, and the parts of it limited by the peer's window and by the send buffer.
    pub(crate) busy: Duration,
    pub(crate) receiver_limited: Duration,
    pub(crate) buffer_limited: Duration,
}

/// The used part of `struct tcp_info`, by the offsets of `linux/tcp.h`; the kernel only ever appends fields.
const TCP_INFO_BYTES: usize = 192;

impl TcpInfo {
    pub(crate) fn read_from(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
        let mut bytes = [0_u8; TCP_INFO_BYTES];
        let mut len = TCP_INFO_BYTES as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has that many, and any bytes are
        // valid there.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // An older kernel fills less: the rest stays zero.
        Ok(TcpInfo::parse(&bytes))
    }

    fn parse(bytes: &[u8; TCP_INFO_BYTES]) -> TcpInfo {
        let short = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(four)
        };
        let long = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(eight)
        };
        TcpInfo {
            app_limited: bytes[7] & 1 != 0,
            segment_bytes: short(16),
            round_trip: Duration::from_micros(short(68).into()),
            // All ones means no measurement.
            round_trip_min: Duration::from_micros(if short(148) == u32::MAX { 0 } else { short(148).into() }),
            receiver_round_trip: Duration::from_micros(short(92).into()),
            window_segments: short(80),
            retransmits: short(100),
            bytes_acked: long(120),
            bytes_received: long(128),
            segments_sent: short(156),
            delivery_rate: long(160),
            busy: Duration::from_micros(long(168)),
            receiver_limited: Duration::from_micros(long(176)),
            buffer_limited: Duration::from_micros(long(184)),
        }
    }
}

/// The kernel's pacing rate of a socket, in bytes per second.
#[cfg(test)]
pub(crate) fn pacing(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut rate = 0_u64;
    let mut len = std::mem::size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `rate`, which has that many, and any bytes are valid
    // there.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw mut rate).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(rate) } else { Err(io::Error::last_os_error()) }
}

/// Converts a rate in whole IP packets to a payload rate for full segments of this size. The headers are
/// those of IP and TCP with time stamps.
pub(crate) fn payload_rate(bytes_per_s: u64, segment_bytes: u32, v6: bool) -> u64 {
    const TCP: u64 = 20 + 12;
    let head = TCP + if v6 { 40 } else { 20 };
    let (segment, rate) = (u128::from(segment_bytes.max(1)), u128::from(bytes_per_s));
    u64::try_from(rate * segment / (segment + u128::from(head))).unwrap_or(u64::MAX)
}

/// Sets the kernel's pacing rate.
pub(crate) fn set_pacing(socket: &SockRef<'_>, bytes_per_s: u64) -> io::Result<()> {
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes_per_s)
}

/// Clamps the receive window (`TCP_WINDOW_CLAMP`). The kernel may forget it when it grows the receive buffer.
pub(crate) fn set_window_clamp(socket: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// Opens the receive window this far from the beginning and, unlike an explicit buffer size, leaves further
/// growth to autotuning. The kernel makes room for `SO_RCVLOWAT` bytes, and keeps the room when the value is
/// reset.
pub(crate) fn open_receive_window(socket: &SockRef<'_>, bytes: u32) -> io::Result<()> {
    let wait_for =
        |bytes: libc::c_int| set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
    let opened = wait_for(libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX));
    wait_for(1).and(opened)
}

/// A bind to an address leaves the port to be chosen at connect.
pub(crate) fn bind_without_port(socket: &SockRef<'_>) -> io::Result<()> {
    set_option(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1 as libc::c_int)
}

/// A numeric option of its native size.
fn set_option<T: Copy>(socket: RawFd, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives through the call, and its size is given.
    let result = unsafe { libc::setsockopt(socket, level, option, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The type-of-service byte (in IPv6, the traffic class) of the peer's packets when an accepted connection
/// was set up.
pub(crate) fn peer_marking(socket: BorrowedFd<'_>, v6: bool) -> io::Result<Option<u8>> {
    /// One control message: `struct cmsghdr`, then the number.
    const HEAD_BYTES: usize = size_of::<libc::cmsghdr>();
    let (level, tell, all, kind) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, libc::IPV6_2292PKTOPTIONS, libc::IPV6_TCLASS)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_PKTOPTIONS, libc::IP_TOS)
    };
    // Requested alone, so that no other message precedes it.
    set_option(socket.as_raw_fd(), level, tell, 1 as libc::c_int)?;
    let mut bytes = [0_u8; 64];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has that many, and any bytes are valid
    // there.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, all, bytes.as_mut_ptr().cast(), &raw mut len) };
    let failed = (result != 0).then(io::Error::last_os_error);
    set_option(socket.as_raw_fd(), level, tell, 0 as libc::c_int)?;
    if let Some(error) = failed {
        return Err(error);
    }
    let number = |at: usize| {
        let mut four = [0; 4];
        four.copy_from_slice(&bytes[at..at + 4]);
        libc::c_int::from_ne_bytes(four)
    };
    let ours = len as usize > HEAD_BYTES && number(HEAD_BYTES - 8) == level && number(HEAD_BYTES - 4) == kind;
    Ok(ours.then(|| number(HEAD_BYTES) as u8))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_opened_window_still_wakes_on_a_single_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut near, _) = listener.accept().unwrap();
        let before = SockRef::from(&near).recv_buffer_size().unwrap();
        let wanted = 2 * before as u32;
        open_receive_window(&SockRef::from(&near), wanted).unwrap();
        let most: usize = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem")
            .unwrap()
            .split_whitespace()
            .last()
            .unwrap()
            .parse()
            .unwrap();
        let after = SockRef::from(&near).recv_buffer_size().unwrap();
        assert!(after >= (wanted as usize).min(most / 2), "{before} became {after}");
        far.write_all(b"x").unwrap();
        let mut ready = [rustix::event::PollFd::new(&near, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ready, None).unwrap();
        near.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn headers_take_their_share_of_a_reserved_rate() {
        assert_eq!(payload_rate(1_500_000, 1_448, false), 1_448_000);
        assert_eq!(payload_rate(1_500_000, 1_428, true), 1_428_000);
        assert_eq!(payload_rate(0, 1_448, false), 0);
        assert!(payload_rate(u64::MAX, u32::MAX, true) < u64::MAX);
        assert!(payload_rate(1_000, 0, false) < 1_000);
    }

    #[test]
    fn the_kernel_counts_sent_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        set_pacing(&SockRef::from(&near), 1 << 30).unwrap();
        let sent = vec![7; 300_000];
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; 300_000];
            far.read_exact(&mut read).unwrap();
            far.write_all(b"done").unwrap();
            TcpInfo::read_from(far.as_fd()).unwrap()
        });
        near.write_all(&sent).unwrap();
        near.read_exact(&mut [0; 4]).unwrap();
        let receiver = reader.join().unwrap();
        let sender = TcpInfo::read_from(near.as_fd()).unwrap();
        assert_eq!(receiver.bytes_received, 300_000);
        // One byte counts for the opening of the connection.
        assert!((300_000..=300_001).contains(&sender.bytes_acked), "{sender:?}");
        assert!(sender.segment_bytes >= 536 && sender.window_segments >= 2 && sender.segments_sent > 0);
        assert!(sender.round_trip > Duration::ZERO && sender.round_trip < Duration::from_secs(1));
        assert!(sender.delivery_rate > 0, "{sender:?}");
    }
}
