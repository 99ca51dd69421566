//! System calls without a safe wrapper in the crates we use: the state of the kernel's clock, whether the kernel has
//! TLS of its own, and what it knows about a connection.
#![allow(unsafe_code, reason = "see each function")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

/// What the kernel believes about its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockState {
    pub(crate) synchronised: bool,
    /// Left to correct.
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

/// Whether the kernel would do the TLS of a connection. Asked of a socket that is not connected: then a kernel that
/// has it says that it is not connected, and one that does not says that there is no such thing.
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

/// Path MTU as the kernel believes it, of a connected socket.
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

/// Sets or clears "do not fragment" for a socket, as path MTU discovery wants it.
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

/// What TCP measured on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) rtt_us: u32,
    /// Of packets sent, bytes of payload.
    pub(crate) mss_bytes: u32,
}

pub(crate) fn tcp_measured(socket: BorrowedFd<'_>) -> io::Result<Measured> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`; every field is an integer, so what
    // it leaves untouched is valid as zero.
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
    Ok(Measured { rtt_us: info.tcpi_rtt, mss_bytes: info.tcpi_snd_mss })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_connection_on_this_host_is_measured() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let measured = tcp_measured(near.as_fd()).unwrap();
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
