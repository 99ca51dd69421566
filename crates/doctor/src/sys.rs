//! System calls without a safe wrapper in our crates: kernel clock state, kernel TLS, `TCP_INFO`, path MTU,
//! and the ICMP error queue.
#![allow(unsafe_code, reason = "see each function")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// State of the kernel's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockState {
    pub(crate) synchronised: bool,
    /// Offset left to correct.
    pub(crate) offset_us: i64,
    pub(crate) error_us_max: i64,
}

pub(crate) fn clock_state() -> io::Result<ClockState> {
    let mut state = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: an all-zero `timex` is valid and, with `modes` 0, asks for nothing but to be filled in.
    let (result, state) = unsafe {
        let result = libc::adjtimex(state.as_mut_ptr());
        (result, state.assume_init())
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let nanoseconds = state.status & libc::STA_NANO != 0;
    Ok(ClockState {
        synchronised: result != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0,
        offset_us: if nanoseconds { state.offset / 1_000 } else { state.offset },
        error_us_max: state.maxerror,
    })
}

/// Whether the kernel has TLS (`TCP_ULP`). Asked of an unconnected socket: a kernel with it answers
/// `ENOTCONN`, one without it `ENOENT`.
pub(crate) fn has_kernel_tls() -> io::Result<bool> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    let name = b"tls";
    // SAFETY: the pointer and the length are those of `name`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_ULP,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOTCONN) => Ok(true),
        Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok(false),
        _ => Err(error),
    }
}

/// The kernel's path MTU of a connected socket.
pub(crate) fn path_mtu(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<u32> {
    let (level, name) =
        if is_ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is an integer of the length given, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, std::ptr::from_mut(&mut value).cast(), &mut len)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(value).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Enables path MTU discovery ("do not fragment") for a socket.
pub(crate) fn discover_path_mtu(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<()> {
    let (level, name, value) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    };
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is an integer of the length given, and outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(&value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The part of `tcp_info` that probes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    pub(crate) rtt_us: u32,
    /// Payload bytes per packet sent.
    pub(crate) mss_bytes: u32,
    /// TCP timestamps, which take 12 bytes of each packet.
    pub(crate) timestamps: bool,
    /// Segments that the peer's kernel has not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Neither end has closed.
    pub(crate) established: bool,
}

pub(crate) fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`; every field is an integer,
    // so what it leaves untouched is valid as zero.
    let (result, info) = unsafe {
        let result = libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        );
        (result, info.assume_init())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    const TIMESTAMPS: u8 = 1;
    const ESTABLISHED: u8 = 1;
    Ok(TcpInfo {
        rtt_us: info.tcpi_rtt,
        mss_bytes: info.tcpi_snd_mss,
        timestamps: info.tcpi_options & TIMESTAMPS != 0,
        unacknowledged: info.tcpi_unacked,
        established: info.tcpi_state == ESTABLISHED,
    })
}

/// The kernel's path MTU to an address, without sending anything.
pub(crate) fn path_mtu_of(address: SocketAddr) -> io::Result<u32> {
    let any: IpAddr =
        if address.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    path_mtu(socket.as_fd(), address.is_ipv6())
}

/// Enables the error queue of a socket (`IP_RECVERR`), read by [`next_error`].
pub(crate) fn enable_error_queue(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<()> {
    let (level, name) =
        if is_ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) } else { (libc::IPPROTO_IP, libc::IP_RECVERR) };
    let (value, len): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: `value` is an integer of the length given, and outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(&value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icmp {
    /// The hop limit was exceeded.
    TimeExceeded,
    Unreachable,
    Other,
}

/// An ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    pub(crate) kind: Icmp,
    pub(crate) from: Option<IpAddr>,
}

/// The next queued error of a socket after [`enable_error_queue`]; none if the queue is empty. Errors of this
/// host itself are skipped.
pub(crate) fn next_error(socket: BorrowedFd<'_>) -> io::Result<Option<IcmpError>> {
    /// Aligned as control messages must be; room for one with an address.
    #[repr(align(8))]
    struct Control([u8; 256]);
    loop {
        let (mut control, mut data) = (Control([0; 256]), [0u8; 64]);
        let mut piece = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
        // SAFETY: an all-zero `msghdr` is valid; every pointer put into it is to a local that outlives the
        // calls, with its length, and the kernel writes no more than that.
        let (length, message) = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut piece;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len() as _;
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            (libc::recvmsg(socket.as_raw_fd(), &mut message, flags), message)
        };
        if length < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        if let Some(error) = icmp_error(&control.0[..control.0.len().min(message.msg_controllen as _)]) {
            return Ok(Some(error));
        }
    }
}

/// Reads control messages as the kernel lays them out: length, level, kind, then the error and who sent it.
fn icmp_error(mut control: &[u8]) -> Option<IcmpError> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const ERROR: usize = size_of::<libc::sock_extended_err>();
    loop {
        let word = |at: usize| Some(i32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
        let length = usize::from_ne_bytes(control.get(..size_of::<usize>())?.try_into().ok()?);
        let (level, kind) = (word(HEADER - 8)?, word(HEADER - 4)?);
        let body = control.get(HEADER..length)?;
        let is_error = (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
        if is_error && body.len() >= ERROR {
            // errno u32, origin u8, type u8, code u8, padding, info u32, data u32.
            let kind = match (body[4], body[5]) {
                (libc::SO_EE_ORIGIN_ICMP, 11) | (libc::SO_EE_ORIGIN_ICMP6, 3) => Icmp::TimeExceeded,
                (libc::SO_EE_ORIGIN_ICMP, 3) | (libc::SO_EE_ORIGIN_ICMP6, 1) => Icmp::Unreachable,
                (libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6, _) => Icmp::Other,
                _ => return None,
            };
            return Some(IcmpError { kind, from: address(&body[ERROR..]) });
        }
        control = control.get(length.next_multiple_of(size_of::<usize>()).max(HEADER)..)?;
    }
}

/// The address of a `sockaddr_in` or `sockaddr_in6`.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    match family {
        libc::AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?)),
        libc::AF_INET6 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_control_message_is_parsed_safely(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = icmp_error(&bytes);
            let mut led = 48_usize.to_ne_bytes().to_vec();
            led.extend(libc::IPPROTO_IP.to_ne_bytes());
            led.extend(libc::IP_RECVERR.to_ne_bytes());
            led.extend(&bytes);
            let _ = icmp_error(&led);
        }
    }

    #[test]
    fn a_connection_on_this_host_is_measured() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let measured = tcp_info(near.as_fd()).unwrap();
        assert!(measured.rtt_us > 0 && measured.mss_bytes > 500, "{measured:?}");
        assert!(path_mtu(near.as_fd(), false).unwrap() >= 1_280);
        discover_path_mtu(near.as_fd(), false).unwrap();
    }

    #[test]
    fn the_kernel_answers() {
        clock_state().unwrap();
        has_kernel_tls().unwrap();
    }
}
