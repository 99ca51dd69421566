//! Path probes: reachability of a peer's port, round trip, path MTU and route, for both address families in
//! turn, without privileges.
//!
//! Traffic to one address: a few TCP connections without data, one with the start of a TLS ClientHello of at
//! most 16 kB, and up to 60 empty datagrams to a closed port. Not here: whom to probe (the service decides),
//! what the results mean for a link (`network`). Start with [`probe_peer`].

mod connect;
mod hops;
mod mtu;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use connect::Reach;
pub(crate) use connect::{Connection, fastest_connection, resolve};

/// Connections per address, each from its own port: ECMP and link aggregation hash by ports.
pub const PORTS_PER_ADDRESS: usize = 8;
/// Addresses of one family tried until one answers.
const ADDRESSES_PER_FAMILY_MAX: usize = 3;

/// Probe results for one address family of a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PathProbe {
    /// The address that answered, or the first.
    pub address: SocketAddr,
    pub reach: Reach,
    /// Round trip of each source port, in order; the minimum is the path's.
    pub rtts_us: Vec<u32>,
    /// Path MTU: the largest IP packet that arrives; none if unknown.
    pub mtu: Option<u32>,
    /// Larger packets vanish without an ICMP message.
    pub black_hole: bool,
    /// Routers in order, the peer last if it answers; none where one does not.
    pub hops: Vec<Option<IpAddr>>,
    /// What could not be determined, and why.
    pub unknown: Vec<String>,
}

impl PathProbe {
    pub fn rtt_us(&self) -> Option<u32> {
        self.rtts_us.iter().copied().min()
    }
}

/// Probes each address family of `addresses` (`host:port`, best first), with `patience` as the timeout of
/// each step. Fails if no name has an address.
pub fn probe_peer(addresses: &[String], patience: Duration) -> Result<Vec<PathProbe>, String> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let mut faults = Vec::new();
    for address in addresses {
        let Some((host, port)) = address.rsplit_once(':') else { continue };
        let Ok(port) = port.parse() else { continue };
        match resolve(host.trim_matches(['[', ']']), port, patience) {
            Ok(more) => more.into_iter().for_each(|one| {
                if !found.contains(&one) {
                    found.push(one);
                }
            }),
            Err(why) => faults.push(format!("{host}: {why}")),
        }
    }
    if found.is_empty() {
        return Err(if faults.is_empty() { "it has no address".to_owned() } else { faults.join("; ") });
    }
    let of = |ipv6: bool| -> Vec<SocketAddr> {
        found.iter().copied().filter(|one| one.is_ipv6() == ipv6).take(ADDRESSES_PER_FAMILY_MAX).collect()
    };
    Ok([of(false), of(true)].iter().filter_map(|family| probe_family(family, patience)).collect())
}

/// None without an address.
fn probe_family(family: &[SocketAddr], patience: Duration) -> Option<PathProbe> {
    let mut first = None;
    for &address in family {
        let way = probe_address(address, patience);
        if way.reach == Reach::Answers {
            return Some(way);
        }
        first.get_or_insert(way);
    }
    first
}

fn probe_address(address: SocketAddr, patience: Duration) -> PathProbe {
    let mut way = PathProbe {
        address,
        reach: Reach::Answers,
        rtts_us: Vec::new(),
        mtu: None,
        black_hole: false,
        hops: Vec::new(),
        unknown: Vec::new(),
    };
    let connected = match connect::connect_ports(address, PORTS_PER_ADDRESS, patience) {
        Ok(connected) => connected,
        Err(reach) => return PathProbe { reach, ..way },
    };
    way.rtts_us = connected.rtts_us;
    let rtt = Duration::from_micros(way.rtt_us().unwrap_or(0).into());
    match mtu::discover(address, connected.last, rtt, patience) {
        Ok(found) => (way.mtu, way.black_hole) = (Some(found.bytes), found.black_hole),
        Err(error) => way.unknown.push(format!("path MTU: {error}")),
    }
    match hops::trace(address.ip(), rtt) {
        Ok(hops) => way.hops = hops,
        Err(why) => way.unknown.push(format!("routers on the way: {why}")),
    }
    way
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const TEST_TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn a_peer_on_this_host_answers_over_both_families() {
        let (four, six) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::1]:0"));
        let mut addresses = vec![four.local_addr().unwrap().to_string()];
        addresses.extend(six.as_ref().ok().map(|six| six.local_addr().unwrap().to_string()));
        let ways = probe_peer(&addresses, TEST_TIMEOUT).unwrap();
        assert_eq!(ways.len(), addresses.len());
        for way in &ways {
            assert_eq!(way.reach, Reach::Answers, "{way:?}");
            assert_eq!(way.rtts_us.len(), PORTS_PER_ADDRESS);
            assert!(way.rtt_us().unwrap() < 5_000_000);
            assert!(way.mtu.is_some_and(|mtu| mtu >= 1_280) && !way.black_hole, "{way:?}");
            assert_eq!(way.hops, [Some(way.address.ip())], "this host is its own last hop: {way:?}");
        }
    }

    #[test]
    fn a_port_where_nobody_listens_refuses() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let ways = probe_peer(&[closed.to_string()], TEST_TIMEOUT).unwrap();
        assert_eq!(ways[0].reach, Reach::Refused);
        assert!(ways[0].rtts_us.is_empty() && ways[0].mtu.is_none());
    }

    #[test]
    fn an_unresolvable_name_is_reported() {
        let why = probe_peer(&["no-such-host.invalid:7470".to_owned()], TEST_TIMEOUT).unwrap_err();
        assert!(why.contains("no-such-host.invalid"), "{why}");
        assert!(
            probe_peer(&[], TEST_TIMEOUT).is_err() && probe_peer(&["x".to_owned()], TEST_TIMEOUT).is_err()
        );
    }
}
