//! Options of data sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use longhaul_model::mark::Treatment;
use longhaul_model::{Fault, FaultCode, TrafficClass};
use mio::net::TcpStream;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::interface::PathProfile;
use crate::marks::StreamMarker;
use crate::tcp::{self, TcpInfo};

/// Unsent bytes that the kernel may hold: enough to keep it busy between two turns of our loop, while what it
/// does not hold can still go another way.
const NOTSENT_LOWAT_BYTES: u32 = 512 << 10;
/// The receive window opens as far before anything is known of the path. The kernel's own beginning of some
/// 100 kB would hold up the second and third round trip of a stream, when the sender's window has grown
/// beyond it already; it widens its window only after those.
const WINDOW_BYTES_INITIAL: u32 = 1 << 20;
/// An unacknowledged byte this old means that the path is dead.
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Lower effort (RFC 8622), as the type-of-service byte has it: routers that know it drop this first.
const LOWER_EFFORT: u8 = 0b000001 << 2;

impl PathProfile {
    /// Sets what a data stream needs. None of it is vital, so that failures are only noted.
    fn apply(&self, socket: &SockRef<'_>) {
        // Frames are handed over whole: waiting for more only delays requests.
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
        // A size that is set is the site's wish.
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

/// A socket that was accepted. What its peer marked as lower effort is answered so; no other marking is
/// believed.
pub(crate) fn prepare_accepted(socket: &TcpStream, profile: &PathProfile) {
    profile.apply(&SockRef::from(socket));
    profile.open_window(&SockRef::from(socket));
    let v6 = is_v6(socket);
    match tcp::peer_marking(socket.as_fd(), v6) {
        // The last two bits are another thing's.
        Ok(Some(marking)) if marking & !0b11 == LOWER_EFFORT => {
            log_refused(std::iter::once(mark_lower_effort(&SockRef::from(socket), v6)))
        }
        Ok(_) => {}
        Err(error) => log_refused(std::iter::once(Err(error))),
    }
}

/// Whether its packets are those of IPv6.
pub(crate) fn is_v6(socket: &TcpStream) -> bool {
    let own = socket.local_addr();
    own.is_ok_and(|address| matches!(address.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none()))
}

fn mark_lower_effort(socket: &SockRef<'_>, v6: bool) -> io::Result<()> {
    if v6 { socket.set_tclass_v6(LOWER_EFFORT.into()) } else { socket.set_tos_v4(LOWER_EFFORT.into()) }
}

/// What is accepted inherits its buffers, and the scale of its window is settled before it is.
pub(crate) fn prepare_listener(listener: &TcpListener, profile: &PathProfile) {
    profile.apply_buffers(&SockRef::from(listener));
}

/// Begins to connect.
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
            // The port is chosen when the peer is known: so there are as many for each peer.
            log_refused(std::iter::once(tcp::bind_without_port(&SockRef::from(&socket))));
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        // After the class of a scavenger, in whose place a person may want another.
        let marked = marks
            .filter(|_| !treatment.mark.is_none())
            .map(|(marks, random)| marks.before_connect(&socket, address, treatment.mark, random));
        match socket.connect(&marked.unwrap_or(address).into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(TcpStream::from_std(socket.into())),
        }
    };
    begin().map_err(|error: io::Error| Fault::new(FaultCode::Unreachable, format!("{address}: {error}")))
}

/// Lets the kernel send no more than this, IP packets counted whole; zero is no bound but the site's own.
pub(crate) fn set_pacing(socket: &TcpStream, bytes_per_s: u64, profile: &PathProfile) {
    // The kernel counts payload.
    let segment = TcpInfo::read_from(socket.as_fd()).map_or(0, |info| info.segment_bytes);
    let wanted = (bytes_per_s > 0).then(|| tcp::payload_rate(bytes_per_s, segment, is_v6(socket)));
    let rate = [wanted, profile.pacing_bytes_per_s].into_iter().flatten().min().unwrap_or(u64::MAX);
    log_refused(std::iter::once(tcp::set_pacing(&SockRef::from(socket), rate)));
}

/// The kernel's congestion control by rate and round trip.
const BBR: &[u8] = b"bbr";

/// Whether the kernel sends by rate and round trip, whoever chose that.
pub(crate) fn uses_bbr(socket: &TcpStream) -> bool {
    SockRef::from(socket).tcp_congestion().is_ok_and(|name| name.starts_with(BBR))
}

/// Lets the kernel send by rate and round trip; gives the name of the law by which it sent before.
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

/// Lets the kernel send by the law of that name again.
pub(crate) fn restore_congestion_control(socket: &TcpStream, name: &[u8]) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receive,
    Send,
}

/// How far the kernel lets a buffer grow by itself, and how large one may be that is set.
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
        // The kernel doubles what is set, for its own costs.
        Some(BufferLimits { autotuned_max: last(grow)?, explicit_max: last(most).map(|most: u64| 2 * most)? })
    }

    /// What to set for so many bytes under way; none if the kernel does as well or better by itself.
    fn explicit_size(self, need: u64) -> Option<u64> {
        let set = self.explicit_max.min(2 * need);
        (2 * need > self.autotuned_max && set > self.autotuned_max + self.autotuned_max / 4)
            .then_some(set / 2)
    }
}

/// Sets a buffer, if the kernel's own limits forbid what is needed and explicit ones allow more.
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
        // The kernel goes to 32 MiB by itself, an explicit one to 8: never set.
        assert_eq!(
            BufferLimits { autotuned_max: 32 * mib, explicit_max: 8 * mib }.explicit_size(100 * mib),
            None
        );
        // The other way round: as much as is needed, or as much as may be.
        let low = BufferLimits { autotuned_max: 4 * mib, explicit_max: 512 * mib };
        assert_eq!(low.explicit_size(mib), None);
        assert_eq!(low.explicit_size(40 * mib), Some(40 * mib));
        assert_eq!(low.explicit_size(1_000 * mib), Some(256 * mib));
        assert!(
            BufferLimits::read(Direction::Send).is_some() && BufferLimits::read(Direction::Receive).is_some()
        );
    }
}
