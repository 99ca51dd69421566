//! Memory that the kernel holds for the TCP sockets of one namespace, asked for by `sock_diag` (what `ss -tm`
//! shows), since `/proc/net/sockstat` counts all namespaces of a machine together.
//!
//! Counted per socket: bytes received and not yet read, bytes queued for sending or retransmission, the
//! kernel's reserve for it, options and backlog, all with the kernel's own overhead. Pages lent by `sendfile`
//! count as queued.

use std::os::fd::OwnedFd;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with, sockopt,
};

use super::config::Side;
use super::lab::Lab;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const SKMEMINFO: u16 = 7;
const TCP: u8 = 6;
/// States in which a socket holds data: neither listening nor merely bound. Those two are kept in tables of
/// the whole machine, however small that of the namespace is, and a look through them costs more than all the
/// rest.
const HOLDING: u32 = !(1 << 10 | 1 << 13);
const FAMILIES: [u8; 2] = [2, 10];
const HEADER: usize = 16;
const REQUEST: usize = HEADER + 56;
/// A header, then `struct inet_diag_msg`; attributes follow.
const ATTRIBUTES_AT: usize = HEADER + 72;
/// Places in `SK_MEMINFO` that hold memory: rmem_alloc, fwd_alloc, wmem_queued, optmem, backlog.
const HELD: [usize; 5] = [0, 4, 5, 6, 7];

pub struct SocketMemory {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl SocketMemory {
    /// Asks the namespace of that side, whichever thread asks later.
    pub fn open(lab: &Lab, side: Side) -> Result<SocketMemory, String> {
        let open = || {
            let socket =
                socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
            sockopt::set_socket_timeout(
                &socket,
                sockopt::Timeout::Recv,
                Some(std::time::Duration::from_secs(2)),
            )?;
            Ok::<_, rustix::io::Errno>(socket)
        };
        let socket = lab.inside(side, open)?.map_err(|error| format!("a sock_diag socket: {error}"))?;
        Ok(SocketMemory { socket, buffer: vec![0; 64 << 10] })
    }

    /// Bytes held now by all TCP sockets of the namespace.
    pub fn bytes(&mut self) -> Result<u64, String> {
        let mut sum = 0;
        for family in FAMILIES {
            sum += self.dump(family).map_err(|error| format!("asking for sockets: {error}"))?;
        }
        Ok(sum)
    }

    fn dump(&mut self, family: u8) -> rustix::io::Result<u64> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &request(family), SendFlags::empty(), &kernel)?;
        let mut sum = 0;
        loop {
            let (length, _) = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            let (bytes, done) = read_answer(&self.buffer[..length]);
            sum += bytes;
            if done {
                return Ok(sum);
            }
        }
    }
}

fn request(family: u8) -> [u8; REQUEST] {
    let mut bytes = [0u8; REQUEST];
    bytes[..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    bytes[HEADER] = family;
    bytes[HEADER + 1] = TCP;
    bytes[HEADER + 2] = 1 << (SKMEMINFO - 1);
    bytes[HEADER + 4..HEADER + 8].copy_from_slice(&HOLDING.to_ne_bytes());
    bytes
}

/// Sum over the messages of one datagram, and whether the answer ends with it.
fn read_answer(mut bytes: &[u8]) -> (u64, bool) {
    let mut sum = 0;
    while let (Some(length), Some(kind)) = (number(bytes, 0), half(bytes, 4)) {
        let length = length as usize;
        if kind == NLMSG_DONE || kind == NLMSG_ERROR || length < HEADER || length > bytes.len() {
            return (sum, true);
        }
        sum += memory_of(&bytes[..length]);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    (sum, false)
}

fn memory_of(message: &[u8]) -> u64 {
    let mut attributes = message.get(ATTRIBUTES_AT..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        let length = usize::from(length);
        if length < 4 || length > attributes.len() {
            break;
        }
        if kind == SKMEMINFO {
            let value = &attributes[4..length];
            return HELD.iter().filter_map(|place| number(value, place * 4)).map(u64::from).sum();
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    0
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(memory: [u32; 9]) -> Vec<u8> {
        let mut bytes = vec![0u8; ATTRIBUTES_AT];
        // An attribute of no interest before the one that counts; its length is no multiple of 4.
        bytes.extend([5, 0, 2, 0, 7, 0, 0, 0]);
        bytes.extend(40u16.to_ne_bytes());
        bytes.extend(SKMEMINFO.to_ne_bytes());
        memory.iter().for_each(|value| bytes.extend(value.to_ne_bytes()));
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes
    }

    #[test]
    fn an_answer_is_summed_up_to_its_end() {
        // rmem, rcvbuf, wmem, sndbuf, fwd, queued, optmem, backlog, drops
        let mut bytes = message([1, 1000, 1000, 1000, 20, 300, 4000, 50_000, 1000]);
        bytes.extend(message([1, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(read_answer(&bytes), (54_322, false));
        let mut done = vec![0u8; 20];
        done[0] = 20;
        done[4..6].copy_from_slice(&NLMSG_DONE.to_ne_bytes());
        bytes.extend(done);
        assert_eq!(read_answer(&bytes), (54_322, true));
    }

    #[test]
    fn nonsense_ends_the_answer() {
        assert_eq!(read_answer(&[]), (0, false));
        assert_eq!(read_answer(&[0; 16]), (0, true));
        let mut cut = message([1; 9]);
        cut.truncate(60);
        assert_eq!(read_answer(&cut), (0, true));
    }
}
