//! Socket options of data streams.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use longhaul_model::mark::Treatment;
use longhaul_model::{Blame, Fault, FaultCode, TrafficClass};
use longhaul_security::io_fault;
use mio::net::TcpStream;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::interface::PathProfile;
use crate::marks::StreamMarker;
use crate::tcp::{self, TcpInfo};

/// Unsent bytes that the kernel may hold (`TCP_NOTSENT_LOWAT`): enough to keep it busy between two turns of
/// the event loop; the rest can still be sent on another stream.
const NOTSENT_LOWAT_BYTES: u32 = 512 << 10;
/// The initial receive window, before anything is known about the path. The kernel's default of about 100 kB
/// limits the second and third round trip of a stream, when the sender's congestion window has outgrown it;
/// the kernel enlarges it only after those.
const WINDOW_BYTES_INITIAL: u32 = 1 << 20;
/// An older unacknowledged byte means that the path is dead (`TCP_USER_TIMEOUT`).
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Lower effort (RFC 8622) in the type-of-service byte: routers that support it drop these packets first.
const LOWER_EFFORT: u8 = 0b000001 << 2;

impl PathProfile {
    /// Sets the options of a data stream. None of them is essential, so failures are only logged.
    fn apply(&self, socket: &SockRef<'_>) {
        // Frames are written whole; Nagle's algorithm would only delay requests.
        let always = [
            socket.set_tcp_nodelay(true),
            socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES),
            socket.set_tcp_user_timeout(Some(USER_TIMEOUT)),
        ];
        let wanted = [
            self.congestion.as_ref().map(|name| socket.set_tcp_congestion(name.as_bytes())),
            self.pacing_bytes_per_s.map(|rate| tcp::set_pacing(socket, rate)),
        ];
        log_refused(always.into_iter().chain(wanted.into_iter().flatten()));
        self.apply_buffers(socket);
    }

    fn apply_buffers(&self, socket: &SockRef<'_>) {
        let receive = self.receive_buffer.map(|bytes| socket.set_recv_buffer_size(bytes as usize));
        let send = self.send_buffer.map(|bytes| socket.set_send_buffer_size(bytes as usize));
        log_refused([receive, send].into_iter().flatten());
    }

    fn open_window(&self, socket: &SockRef<'_>) {
        // A configured size takes precedence.
        let opened =
            self.receive_buffer.is_none().then(|| tcp::open_receive_window(socket, WINDOW_BYTES_INITIAL));
        log_refused(opened.into_iter());
    }
}

fn log_refused(results: impl Iterator<Item = io::Result<()>>) {
    for error in results.filter_map(Result::err) {
        tracing::debug!(%error, "a socket option was refused");
    }
}

/// Sets the options of an accepted socket. Packets marked as lower effort are answered as such; no other
/// marking is trusted.
pub(crate) fn prepare_accepted(socket: &TcpStream, profile: &PathProfile) {
    profile.apply(&SockRef::from(socket));
    profile.open_window(&SockRef::from(socket));
    let v6 = is_v6(socket);
    match tcp::peer_marking(socket.as_fd(), v6) {
        // The last two bits belong to ECN.
        Ok(Some(marking)) if marking & !0b11 == LOWER_EFFORT => {
            log_refused(std::iter::once(mark_lower_effort(&SockRef::from(socket), v6)))
        }
        Ok(_) => {}
        Err(error) => log_refused(std::iter::once(Err(error))),
    }
}

/// Whether the socket sends IPv6 packets.
pub(crate) fn is_v6(socket: &TcpStream) -> bool {
    let own = socket.local_addr();
    own.is_ok_and(|address| matches!(address.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none()))
}

fn mark_lower_effort(socket: &SockRef<'_>, v6: bool) -> io::Result<()> {
    if v6 { socket.set_tclass_v6(LOWER_EFFORT.into()) } else { socket.set_tos_v4(LOWER_EFFORT.into()) }
}

/// An accepted socket inherits its buffers from the listener, since window scaling is negotiated before it is
/// accepted.
pub(crate) fn prepare_listener(listener: &TcpListener, profile: &PathProfile) {
    profile.apply_buffers(&SockRef::from(listener));
}

/// Starts connecting.
pub(crate) fn connect(
    address: SocketAddr,
    local: Option<IpAddr>,
    profile: &PathProfile,
    treatment: Treatment,
    marks: Option<(&StreamMarker, u32)>,
) -> Result<TcpStream, Fault> {
    let begin = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        profile.apply(&SockRef::from(&socket));
        if treatment.class == TrafficClass::Scavenger {
            log_refused(std::iter::once(mark_lower_effort(&SockRef::from(&socket), address.is_ipv6())));
        } else {
            profile.open_window(&SockRef::from(&socket));
        }
        if let Some(local) = local {
            // `IP_BIND_ADDRESS_NO_PORT`: the port is chosen at connect, so that each peer has the full port
            // range.
            log_refused(std::iter::once(tcp::bind_without_port(&SockRef::from(&socket))));
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        // Set after the scavenger class, which a configured value overrides.
        let marked = marks
            .filter(|_| !treatment.mark.is_none())
            .map(|(marks, random)| marks.before_connect(&socket, address, treatment.mark, random));
        match socket.connect(&marked.unwrap_or(address).into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(TcpStream::from_std(socket.into())),
        }
    };
    begin().map_err(|error: io::Error| {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            return connect_fault(address, error);
        }
        Fault::new(FaultCode::Unreachable, format!("{address}: {error}")).with_source(error)
    })
}

/// The fault of a connection to a peer that did not come about. A refusal is the word of the peer's own host:
/// the network has brought the request there and nobody listens, so it is the source's turn.
pub(crate) fn connect_fault(address: SocketAddr, error: io::Error) -> Fault {
    if error.kind() != io::ErrorKind::ConnectionRefused {
        return io_fault(error);
    }
    let detail = format!("{address} refuses connections: no agent listens there");
    Fault::new(FaultCode::Unreachable, detail).blaming(Blame::Source).with_source(error)
}

/// Sets the kernel's pacing rate (`SO_MAX_PACING_RATE`), counted in whole IP packets; zero means no limit but
/// the configured one.
pub(crate) fn set_pacing(socket: &TcpStream, bytes_per_s: u64, profile: &PathProfile) {
    // The kernel counts payload bytes.
    let segment = TcpInfo::read_from(socket.as_fd()).map_or(0, |info| info.segment_bytes);
    let wanted = (bytes_per_s > 0).then(|| tcp::payload_rate(bytes_per_s, segment, is_v6(socket)));
    let rate = [wanted, profile.pacing_bytes_per_s].into_iter().flatten().min().unwrap_or(u64::MAX);
    log_refused(std::iter::once(tcp::set_pacing(&SockRef::from(socket), rate)));
}

/// The kernel's rate-based congestion control (BBR, Cardwell et al. 2016).
const BBR: &[u8] = b"bbr";

/// Whether the socket uses BBR, whoever set it.
pub(crate) fn uses_bbr(socket: &TcpStream) -> bool {
    SockRef::from(socket).tcp_congestion().is_ok_and(|name| name.starts_with(BBR))
}

/// Switches the socket to BBR; returns the name of the previous congestion control.
pub(crate) fn use_bbr(socket: &TcpStream) -> io::Result<Vec<u8>> {
    let socket = SockRef::from(socket);
    let before = socket.tcp_congestion()?;
    let name = before.split(|byte| *byte == 0).next().unwrap_or_default();
    if name == BBR {
        return Err(io::Error::other("it sends so already"));
    }
    socket.set_tcp_congestion(BBR)?;
    Ok(name.to_vec())
}

/// Restores the congestion control of that name.
pub(crate) fn restore_congestion_control(socket: &TcpStream, name: &[u8]) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receive,
    Send,
}

/// The limits of the kernel's buffer autotuning and of explicitly set buffers.
#[derive(Clone, Copy, Debug)]
struct BufferLimits {
    autotuned_max: u64,
    explicit_max: u64,
}

impl BufferLimits {
    fn read(direction: Direction) -> Option<BufferLimits> {
        let (grow, most) = match direction {
            Direction::Receive => ("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/core/rmem_max"),
            Direction::Send => ("/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/core/wmem_max"),
        };
        let last = |path| std::fs::read_to_string(path).ok()?.split_whitespace().last()?.parse().ok();
        // The kernel doubles an explicit size for its own overhead.
        Some(BufferLimits { autotuned_max: last(grow)?, explicit_max: last(most).map(|most: u64| 2 * most)? })
    }

    /// The explicit buffer size for this many bytes in flight; none if autotuning reaches it as well.
    fn explicit_size(self, need: u64) -> Option<u64> {
        let set = self.explicit_max.min(2 * need);
        (2 * need > self.autotuned_max && set > self.autotuned_max + self.autotuned_max / 4)
            .then_some(set / 2)
    }
}

/// Enlarges a buffer if the autotuning limit is too small and an explicit size may be larger.
pub(crate) fn grow_buffer(socket: &TcpStream, direction: Direction, need: u64) {
    let Some(bytes) = BufferLimits::read(direction).and_then(|ceilings| ceilings.explicit_size(need)) else {
        return;
    };
    tracing::debug!(?direction, bytes, "a socket's buffer is set, since the kernel's own limit is too small");
    let socket = SockRef::from(socket);
    log_refused(std::iter::once(match direction {
        Direction::Receive => socket.set_recv_buffer_size(bytes as usize),
        Direction::Send => socket.set_send_buffer_size(bytes as usize),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_is_the_sources_turn_and_a_lost_one_the_networks() {
        let address = SocketAddr::from(([192, 0, 2, 1], 5_000));
        let fault = |kind: io::ErrorKind| connect_fault(address, kind.into());
        let refused = fault(io::ErrorKind::ConnectionRefused);
        assert_eq!((refused.code, refused.blame), (FaultCode::Unreachable, Blame::Source));
        assert!(refused.detail.contains("192.0.2.1:5000"), "{refused}");
        for kind in [io::ErrorKind::HostUnreachable, io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset]
        {
            assert_eq!(fault(kind).blame, Blame::Network, "{kind}");
        }
    }

    #[test]
    fn the_lower_of_both_pacing_rates_applies() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = TcpStream::from_std(stream);
        let (free, own) = (PathProfile::default(), 1_000_000);
        let bound = PathProfile { pacing_bytes_per_s: Some(own), ..PathProfile::default() };
        let paced = |bytes_per_s, profile: &PathProfile| {
            set_pacing(&stream, bytes_per_s, profile);
            tcp::pacing(stream.as_fd()).unwrap()
        };
        let wanted = paced(10_000_000, &free);
        assert!((9_000_000..10_000_000).contains(&wanted), "{wanted}: without headers");
        assert_eq!(paced(10_000_000, &bound), own);
        assert!(paced(500_000, &bound) < 500_000);
        assert_eq!(paced(0, &bound), own, "the site's own stays");
        assert_eq!(paced(0, &free), u64::MAX);
    }

    #[test]
    fn a_socket_switches_to_bbr_and_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = TcpStream::from_std(stream);
        SockRef::from(&stream).set_tcp_congestion(b"reno").unwrap();
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
        if !known.split_whitespace().any(|name| name == "bbr") {
            return assert!(use_bbr(&stream).is_err());
        }
        let before = use_bbr(&stream).unwrap();
        assert_eq!(before, b"reno");
        assert!(use_bbr(&stream).is_err(), "it does already");
        restore_congestion_control(&stream, &before).unwrap();
        assert_eq!(use_bbr(&stream).unwrap(), b"reno");
    }

    #[test]
    fn buffers_are_set_only_where_that_makes_them_larger() {
        let mib = 1 << 20;
        // Autotuning reaches 32 MiB, an explicit size 8: never set.
        assert_eq!(
            BufferLimits { autotuned_max: 32 * mib, explicit_max: 8 * mib }.explicit_size(100 * mib),
            None
        );
        // The other way round: as much as is needed, or as much as is allowed.
        let low = BufferLimits { autotuned_max: 4 * mib, explicit_max: 512 * mib };
        assert_eq!(low.explicit_size(mib), None);
        assert_eq!(low.explicit_size(40 * mib), Some(40 * mib));
        assert_eq!(low.explicit_size(1_000 * mib), Some(256 * mib));
        assert!(
            BufferLimits::read(Direction::Send).is_some() && BufferLimits::read(Direction::Receive).is_some()
        );
    }
}
