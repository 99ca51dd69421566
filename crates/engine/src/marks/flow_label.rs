//! IPv6 flow labels (RFC 6437) of sockets, through the kernel's flow label manager, which has no safe
//! interface.
#![allow(unsafe_code)]

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, RawFd};

use mio::net::TcpStream;
use socket2::SockRef;

/// Constants from `linux/in6.h`.
const FLOWLABEL_MGR: libc::c_int = 32;
const FLOWINFO_SEND: libc::c_int = 33;
const GET: u8 = 0;
const CREATE: u16 = 1;
const REFLECT: u16 = 4;
/// The label may be shared by all our sockets: there are only 32 labels per tag, and more streams.
const SHARED_BY_USER: u8 = 3;
/// Where the kernel partitions the label space, labels with this bit cannot be leased.
const STATELESS: u32 = 0x80000;

/// `struct in6_flowlabel_req`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    target: [u8; 16],
    /// In network byte order.
    label: u32,
    action: u8,
    share: u8,
    flags: u16,
    expires: u16,
    linger: u16,
    pad: u32,
}

impl Request {
    fn new(target: Ipv6Addr, label: u32, flags: u16) -> Request {
        let share = if flags == CREATE { SHARED_BY_USER } else { 0 };
        let target = target.octets();
        Request { target, label: label.to_be(), action: GET, share, flags, expires: 0, linger: 0, pad: 0 }
    }
}

/// Leases the label for packets from this socket to the address, and lets the socket connect with it. Returns
/// the leased label.
pub(super) fn lease(socket: &SockRef<'_>, target: Ipv6Addr, label: u32) -> io::Result<u32> {
    let label = label & !STATELESS;
    set_option(socket.as_raw_fd(), FLOWLABEL_MGR, Request::new(target, label, CREATE))?;
    set_option(socket.as_raw_fd(), FLOWINFO_SEND, 1 as libc::c_int)?;
    Ok(label)
}

/// Accepted connections reflect the flow label of the peer.
pub(super) fn reflect(listener: &SockRef<'_>) -> io::Result<()> {
    if std::fs::read("/proc/sys/net/ipv6/flowlabel_reflect").is_ok_and(|text| is_odd(&text)) {
        // It is enabled for the whole host.
        return Ok(());
    }
    set_option(listener.as_raw_fd(), FLOWLABEL_MGR, Request::new(Ipv6Addr::UNSPECIFIED, 0, REFLECT))
}

/// Bit 0 enables reflection for established connections.
fn is_odd(text: &[u8]) -> bool {
    text.trim_ascii().last().is_some_and(|digit| digit & 1 == 1)
}

/// The flow label of a connected socket, if any.
pub(super) fn flow_label_of(socket: &TcpStream) -> Option<u32> {
    let mut request = Request::new(Ipv6Addr::UNSPECIFIED, 0, 0);
    let mut len = size_of::<Request>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the request, which has that many, and any bytes are
    // valid there.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            FLOWLABEL_MGR,
            (&raw mut request).cast(),
            &raw mut len,
        )
    };
    let label = u32::from_be(request.label) & 0xF_FFFF;
    (result == 0 && label != 0).then_some(label)
}

fn set_option<T: Copy>(socket: RawFd, option: libc::c_int, value: T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives through the call, and its size is given.
    let result =
        unsafe { libc::setsockopt(socket, libc::IPPROTO_IPV6, option, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use longhaul_model::SciTag;
    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn a_connection_carries_the_leased_label() {
        let Ok(listener) = TcpListener::bind("[::1]:0") else {
            return eprintln!("SKIPPED: this host has no IPv6");
        };
        let SocketAddr::V6(mut to) = listener.local_addr().unwrap() else { panic!("not IPv6") };
        let tag = SciTag::new(2, 26).unwrap();
        // Several at a time, with the same label and with full entropy.
        let streams = [0, u32::MAX, u32::MAX].map(|random| {
            let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
            let label = lease(&SockRef::from(&socket), *to.ip(), tag.flow_label(random).unwrap()).unwrap();
            to.set_flowinfo(label.to_be());
            socket.connect(&to.into()).unwrap();
            let std: std::net::TcpStream = socket.into();
            std.set_nonblocking(true).unwrap();
            (TcpStream::from_std(std), label)
        });
        for (stream, label) in &streams {
            assert_eq!(flow_label_of(stream), Some(*label));
            assert_eq!(SciTag::from_flow_label(*label), Some(tag));
        }
        assert_eq!(streams[0].1, 0x10068);
        assert_ne!(streams[1].1, 0x10068);
    }

    #[test]
    fn the_reflect_setting_is_parsed() {
        assert!(is_odd(b"1\n") && is_odd(b"7\n"));
        assert!(!is_odd(b"0\n") && !is_odd(b"2\n") && !is_odd(b""));
    }
}
