//! What the kernel knows of a TCP connection, and two options that no safe interface sets.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::SockRef;

/// Of one connection at one moment. Counters count from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    pub(crate) round_trip: Duration,
    /// Bytes per segment, and segments that may be under way.
    pub(crate) segment_bytes: u32,
    pub(crate) window_segments: u32,
    /// Segments sent a second time.
    pub(crate) retransmits: u32,
    pub(crate) segments_sent: u32,
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    /// Bytes per second, as the kernel saw them delivered.
    pub(crate) delivery_rate: u64,
    /// That rate was what we gave it to send, not what the path can do.
    pub(crate) app_limited: bool,
    /// Time with data under way; and of it, while the peer's window, or our send buffer, was what held it up.
    pub(crate) busy: Duration,
    pub(crate) receiver_limited: Duration,
    pub(crate) buffer_limited: Duration,
}

/// As much of `struct tcp_info` as is used, by the offsets of `linux/tcp.h`; fields are only ever added at its end.
const INFO_BYTES: usize = 192;

impl TcpInfo {
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
        let mut bytes = [0_u8; INFO_BYTES];
        let mut len = INFO_BYTES as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has that many, and any bytes are valid there.
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
        Ok(TcpInfo::read(&bytes))
    }

    fn read(bytes: &[u8; INFO_BYTES]) -> TcpInfo {
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

/// The kernel sends no faster, and evenly.
pub(crate) fn set_pacing(socket: &SockRef<'_>, bytes_per_s: u64) -> io::Result<()> {
    // SAFETY: the value lives through the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_s).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_kernel_counts_what_was_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        set_pacing(&SockRef::from(&near), 1 << 30).unwrap();
        let sent = vec![7; 300_000];
        let reader = std::thread::spawn(move || {
            let mut read = vec![0; 300_000];
            far.read_exact(&mut read).unwrap();
            far.write_all(b"done").unwrap();
            TcpInfo::of(far.as_fd()).unwrap()
        });
        near.write_all(&sent).unwrap();
        near.read_exact(&mut [0; 4]).unwrap();
        let receiver = reader.join().unwrap();
        let sender = TcpInfo::of(near.as_fd()).unwrap();
        assert_eq!(receiver.bytes_received, 300_000);
        // One is counted for the opening of the connection.
        assert!((300_000..=300_001).contains(&sender.bytes_acked), "{sender:?}");
        assert!(sender.segment_bytes >= 536 && sender.window_segments >= 2 && sender.segments_sent > 0);
        assert!(sender.round_trip > Duration::ZERO && sender.round_trip < Duration::from_secs(1));
        assert!(sender.delivery_rate > 0, "{sender:?}");
    }
}
