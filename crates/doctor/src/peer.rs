//! Checks a peer: name, both address families, port, TLS, clock, path MTU.
//!
//! Sends only a handshake, an HTTP HEAD request (to web servers, for their clock) and one datagram.
//! Certificates are inspected, not trusted: the report says who answers.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use longhaul_model::units::printable;
use longhaul_model::{Fault, Timestamp};
use longhaul_network::advice::{Family, payload_share};
use longhaul_security::{ForeignServerTrust, foreign_client_tls};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConnection, ProtocolVersion};

use crate::checks::credentials;
use crate::checks::disk::error_text;
use crate::finding::{Finding, Group};
use crate::probe::{Connection, fastest_connection, resolve};
use crate::sys;
use crate::tune::milliseconds;

/// Data port of agents.
const PORT_DEFAULT: u16 = 7470;
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Clock offset beyond which certificates and tokens are refused.
const CLOCK_OFFSET_S_MAX: i64 = 60;
/// Resolution of the HTTP `Date` header.
const CLOCK_RESOLUTION_S: i64 = 2;
/// A family is reported if its round trip is longer by this factor.
const FAMILY_RTT_FACTOR_MAX: u64 = 2;
/// Connections per address; the fastest counts.
const CONNECTS_PER_ADDRESS: usize = 3;

/// The peer to check. Secrets in a URL are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub host: String,
    pub port: u16,
    scheme: Scheme,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// No TLS.
    Http,
    Https,
    /// Ours, or unknown: a handshake is tried.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerError(String);

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PeerError {}

impl std::str::FromStr for Peer {
    type Err = PeerError;

    /// Parses `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a URL (`https`, `http`, `lh`, `davs`, …). Text before an
    /// `@` in a URL is a secret and is dropped.
    fn from_str(text: &str) -> Result<Peer, PeerError> {
        // The text may hold a secret: it is not repeated.
        let bad = |why: &str| Err(PeerError(format!("{why}; write HOST, HOST:PORT, [IPV6]:PORT or a URL")));
        let (scheme, rest, port) = match text.split_once("://") {
            Some((scheme, rest)) => match scheme.to_ascii_lowercase().as_str() {
                "https" | "davs" => (Scheme::Https, rest, 443),
                "http" | "dav" => (Scheme::Http, rest, 80),
                "lh" => (Scheme::Any, rest, PORT_DEFAULT),
                _ => return bad("unknown kind of URL"),
            },
            None => (Scheme::Any, text, PORT_DEFAULT),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
        let (host, port) = if let Some(inside) = address.strip_prefix('[') {
            let Some((host, after)) = inside.split_once(']') else { return bad("a bracket is not closed") };
            let Ok(_) = host.parse::<Ipv6Addr>() else { return bad("no IPv6 address in brackets") };
            (host, after.strip_prefix(':').map(str::parse).unwrap_or(Ok(port)))
        } else if address.parse::<Ipv6Addr>().is_ok() {
            (address, Ok(port))
        } else {
            match address.rsplit_once(':') {
                Some((host, port)) => (host, port.parse()),
                None => (address, Ok(port)),
            }
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        match port {
            _ if host.is_empty() || host.len() > 253 || !host.chars().all(fits) => bad("no name of a host"),
            Ok(port @ 1..) => Ok(Peer { host: host.to_owned(), port, scheme }),
            _ => bad("no number of a port"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Findings about a peer, and its round trip.
pub(crate) struct PeerReport {
    pub(crate) findings: Vec<Finding>,
    pub(crate) rtt_us: Option<u64>,
}

/// Checks a peer within a few times `patience`.
pub(crate) fn examine_peer(peer: &Peer, patience: Duration, now: Timestamp) -> PeerReport {
    let mut findings = Vec::new();
    let addresses = match resolve(&peer.host, peer.port, patience) {
        Ok(addresses) => addresses,
        Err(why) => {
            findings.push(
                Finding::problem(Group::Peer, "name", format!("{} cannot be resolved: {why}", peer.host))
                    .costs("nothing can be sent there")
                    .remedy(format!("check the spelling and the resolver: getent ahosts {}", peer.host)),
            );
            return PeerReport { findings, rtt_us: None };
        }
    };
    let first = |ipv6: bool| addresses.iter().copied().find(|address| address.is_ipv6() == ipv6);
    let tried: Vec<DialResult> = thread::scope(|scope| {
        let begin = |address| scope.spawn(move || try_address(address, patience));
        let threads: Vec<_> = [first(false), first(true)].into_iter().flatten().map(begin).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    findings.push(name(peer, &addresses));
    findings.extend(families(peer, &tried));
    let best = tried
        .into_iter()
        .filter_map(|tried| Some((tried.address, tried.connected.ok()?)))
        .min_by_key(|(_, connected)| connected.rtt_us);
    let Some((address, connected)) = best else { return PeerReport { findings, rtt_us: None } };
    findings.push(path_mtu(address, &connected, patience));
    findings.extend(check_tls(peer, connected.socket, patience, now));
    PeerReport { findings, rtt_us: Some(connected.rtt_us) }
}

fn name(peer: &Peer, addresses: &[SocketAddr]) -> Finding {
    let count = |ipv6: bool| addresses.iter().filter(|address| address.is_ipv6() == ipv6).count();
    if peer.host.parse::<IpAddr>().is_ok() {
        return Finding::ok(Group::Peer, "name", format!("{} is an address", peer.host));
    }
    let found = format!("{} has {} IPv4 and {} IPv6 addresses", peer.host, count(false), count(true));
    Finding::ok(Group::Peer, "name", found)
}

struct DialResult {
    address: SocketAddr,
    connected: io::Result<Connection>,
}

fn try_address(address: SocketAddr, patience: Duration) -> DialResult {
    DialResult { address, connected: fastest_connection(address, CONNECTS_PER_ADDRESS, patience) }
}

fn families(peer: &Peer, tried: &[DialResult]) -> Vec<Finding> {
    let mut all = Vec::new();
    let reached = tried.iter().any(|tried| tried.connected.is_ok());
    for one in tried {
        let check = if one.address.is_ipv6() { "ipv6" } else { "ipv4" };
        let found = |words: String| format!("{} {words}", one.address);
        all.push(match &one.connected {
            Ok(connected) => {
                let found = found(format!("answers, round trip {}", milliseconds(connected.rtt_us)));
                Finding::ok(Group::Peer, check, found)
            }
            Err(error) => {
                let (why, remedy) = refusal(peer, error);
                let finding = if reached {
                    Finding::advice(Group::Peer, check, found(why)).costs(
                        "each new connection may try it first and wait; half of the paths between the hosts \
                            is lost",
                    )
                } else {
                    Finding::problem(Group::Peer, check, found(why)).costs("nothing can be sent there")
                };
                finding.remedy(remedy)
            }
        });
    }
    let rtt = |ipv6: bool| {
        let one = tried.iter().find(|tried| tried.address.is_ipv6() == ipv6)?;
        one.connected.as_ref().ok().map(|connected| connected.rtt_us)
    };
    if let (Some(v4), Some(v6)) = (rtt(false), rtt(true)) {
        let (slow, fast) = (v4.max(v6), v4.min(v6));
        // Below a millisecond the difference is noise.
        if slow > fast.saturating_mul(FAMILY_RTT_FACTOR_MAX) && slow > 1_000 {
            let which = if v6 > v4 { "IPv6" } else { "IPv4" };
            let found = format!("{which} takes {} and the other {}", milliseconds(slow), milliseconds(fast));
            all.push(
                Finding::advice(Group::Peer, "families", found)
                    .costs("the two are routed differently; whoever takes the longer one is slower")
                    .remedy(format!("compare traceroute -4 {0} and traceroute -6 {0}", peer.host)),
            );
        }
    }
    all
}

fn refusal(peer: &Peer, error: &io::Error) -> (String, String) {
    let port = peer.port;
    match error.kind() {
        io::ErrorKind::ConnectionRefused => (
            "refuses the connection: nothing listens there".to_owned(),
            format!("on that host: start what should listen, and check with ss -ltn 'sport = {port}'"),
        ),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => (
            "does not answer: packets are swallowed on the way".to_owned(),
            format!("open TCP port {port} in the firewalls of both sites"),
        ),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => (
            format!("cannot be reached: {}", error_text(error)),
            "check the routes of this host: ip route get ADDRESS".to_owned(),
        ),
        _ => (format!("cannot be reached: {}", error_text(error)), "see the reason".to_owned()),
    }
}

/// Path MTU as known by the kernel, after one datagram of that size.
fn path_mtu(address: SocketAddr, connected: &Connection, patience: Duration) -> Finding {
    let ipv6 = address.is_ipv6();
    let probe = || -> io::Result<(u32, u32)> {
        let any: SocketAddr = if ipv6 { (Ipv6Addr::UNSPECIFIED, 0).into() } else { ([0, 0, 0, 0], 0).into() };
        let socket = UdpSocket::bind(any)?;
        sys::discover_path_mtu(socket.as_fd(), ipv6)?;
        socket.connect(address)?;
        let before = sys::path_mtu(socket.as_fd(), ipv6)?;
        let headers = if ipv6 { 48 } else { 28 };
        let payload = vec![0; before.saturating_sub(headers).min(65_507) as usize];
        // Nobody listens: an ICMP answer becomes an error of the next call.
        if socket.send(&payload).is_ok() {
            let wait =
                Duration::from_micros(connected.rtt_us.saturating_mul(3)).max(Duration::from_millis(20));
            socket.set_read_timeout(Some(wait.min(patience)))?;
            let _ = socket.recv(&mut [0; 16]);
        }
        Ok((before, sys::path_mtu(socket.as_fd(), ipv6)?))
    };
    let (before, after) = match probe() {
        Ok(both) => both,
        Err(error) => return Finding::unknown(Group::Peer, "path mtu", error_text(&error)),
    };
    let family = if ipv6 { Family::Ipv6 } else { Family::Ipv4 };
    let share = payload_share(after, family, true) * 100.0;
    let found =
        format!("{after}, {share:.1} % of it payload; full segments carry {} bytes", connected.mss_bytes);
    if after < before {
        return Finding::advice(
            Group::Peer,
            "path mtu",
            format!("{found}; the interface would take {before}"),
        )
        .costs("a hop takes less than the ends: where its messages are filtered, bulk data stand still")
        .remedy("sysctl -w net.ipv4.tcp_mtu_probing=\"1\"");
    }
    Finding::ok(Group::Peer, "path mtu", found)
}

fn check_tls(peer: &Peer, socket: TcpStream, patience: Duration, now: Timestamp) -> Vec<Finding> {
    let began = Instant::now();
    let timed = socket.set_read_timeout(Some(patience)).and(socket.set_write_timeout(Some(patience)));
    if let Err(error) = timed {
        return vec![Finding::unknown(Group::Peer, "tls", error_text(&error))];
    }
    let mut socket = Deadline { socket, ends: began + patience };
    if peer.scheme == Scheme::Http {
        let mut all = vec![
            Finding::advice(Group::Peer, "tls", "none: this URL is in clear text")
                .costs("anyone on the way reads and changes what passes")
                .remedy("use its https address"),
        ];
        all.extend(clock(peer, &mut socket, now, began));
        return all;
    }
    let mut connection = match client(peer) {
        Ok(connection) => connection,
        Err(error) => return vec![Finding::unknown(Group::Peer, "tls", error.to_string())],
    };
    while connection.is_handshaking() {
        if let Err(error) = connection.complete_io(&mut socket) {
            return vec![no_handshake(&error)];
        }
    }
    let mut all = vec![handshake(&connection)];
    if let Some(der) = connection.peer_certificates().and_then(|chain| chain.first()) {
        all.push(credentials::check_certificate(Group::Peer, "certificate", der, now));
    }
    if peer.scheme == Scheme::Https {
        all.extend(clock(peer, &mut rustls::Stream::new(&mut connection, &mut socket), now, began));
    }
    all
}

/// A socket with an overall deadline: a peer that sends a byte now and then must not hold us.
struct Deadline {
    socket: TcpStream,
    ends: Instant,
}

impl Deadline {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.ends.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Deadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buffer)
    }
}

impl Write for Deadline {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn no_handshake(error: &io::Error) -> Finding {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer to a handshake".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the connection was closed during the handshake".to_owned()
        }
        _ => printable(&error_text(error)),
    };
    Finding::problem(Group::Peer, "tls", format!("no TLS: {why}"))
        .costs("no agent or service of ours answers there")
        .remedy("check the port, and what listens on it")
}

fn handshake(connection: &ClientConnection) -> Finding {
    let version = match connection.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
        Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
        _ => "an unknown version",
    };
    let suite = connection.negotiated_cipher_suite().map_or(String::new(), |suite| {
        let name = format!("{:?}", suite.suite());
        let name = name.trim_start_matches("TLS13_").trim_start_matches("TLS_").replace('_', "-");
        format!(", {name}")
    });
    let found = format!("{version}{suite}");
    if version == "TLS 1.3" {
        return Finding::ok(Group::Peer, "tls", found);
    }
    Finding::advice(Group::Peer, "tls", found)
        .costs("a round trip more for each connection; agents of ours speak TLS 1.3 only")
        .remedy("let the peer offer TLS 1.3")
}

/// By the `Date` of a web server's answer.
fn clock(peer: &Peer, stream: &mut (impl Read + Write), now: Timestamp, began: Instant) -> Option<Finding> {
    let request = format!("HEAD / HTTP/1.1\r\nHost: {peer}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).ok()?;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while head.len() < HEAD_BYTES_MAX && !head.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(got @ 1..) => head.extend_from_slice(&buffer[..got]),
            _ => break,
        }
    }
    let Some(theirs) = date(&head) else {
        return Some(Finding::unknown(Group::Peer, "clock", "its answer tells no time"));
    };
    let ours = now.plus(began.elapsed());
    let offset_s = (theirs.as_micros() - ours.as_micros()) / 1_000_000;
    let words = match offset_s.unsigned_abs() {
        0..=1 => "the same as here, to the second it tells".to_owned(),
        off => format!("{off} s {} this host's", if offset_s > 0 { "ahead of" } else { "behind" }),
    };
    Some(match offset_s.abs() {
        0..=CLOCK_RESOLUTION_S => Finding::ok(Group::Peer, "clock", words),
        off => {
            let finding = if off > CLOCK_OFFSET_S_MAX {
                Finding::problem(Group::Peer, "clock", words)
                    .costs("certificates, tokens and permits are refused")
            } else {
                Finding::advice(Group::Peer, "clock", words).costs("times in the logs of both do not compare")
            };
            finding.remedy("compare both with NTP (timedatectl), and set the one that is wrong")
        }
    })
}

fn date(head: &[u8]) -> Option<Timestamp> {
    let text = String::from_utf8_lossy(head);
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    })?;
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(&line).ok()?;
    Some(Timestamp(at.as_microsecond()))
}

/// Why no TLS connection to the peer could be prepared.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error("{0}")]
    Settings(#[source] Fault),
    #[error("{0}")]
    HostName(#[from] InvalidDnsNameError),
    #[error("{0}")]
    Connection(#[from] rustls::Error),
}

/// Believes whoever answers and holds the key of the certificate shown: this connection carries nothing, and
/// the report says who it was.
fn client(peer: &Peer) -> Result<ClientConnection, ClientError> {
    let config = foreign_client_tls(ForeignServerTrust::Anyone).map_err(ClientError::Settings)?;
    let name = ServerName::try_from(peer.host.clone())?;
    Ok(ClientConnection::new(config, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names_addresses_and_urls() {
        let peer = |text: &str| text.parse::<Peer>().map(|peer| peer.to_string());
        for (text, wanted) in [
            ("far.example", "far.example:7470"),
            ("far.example:8443", "far.example:8443"),
            ("2001:db8::1", "[2001:db8::1]:7470"),
            ("[2001:db8::1]:99", "[2001:db8::1]:99"),
            ("https://far.example/path?x#y", "far.example:443"),
            ("lh://SECRET@far.example:7000/data", "far.example:7000"),
            ("http://u:p@far.example", "far.example:80"),
        ] {
            assert_eq!(peer(text), Ok(wanted.to_owned()), "{text}");
        }
        for bad in
            ["", ":1", "a:0", "a:x", "a b", "[::1", "[a]:1", "ftp://a", "lh://SECRET@/", "a:99999", "ä"]
        {
            let error = peer(bad).unwrap_err().to_string();
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn parses_the_date_header() {
        let head = b"HTTP/1.1 404 Not Found\r\ndate: Sat, 21 Nov 2026 12:48:56 GMT\r\n\r\n";
        assert_eq!(date(head), Some("2026-11-21T12:48:56Z".parse().unwrap()));
        assert_eq!(date(b"HTTP/1.1 200 OK\r\nDate: yesterday\r\n\r\n"), None);
        assert_eq!(date(b"\xff\xfe"), None);
    }
}
