//! Switching streams to a circuit's addresses and back, for one copy and for a site's agent alike.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use longhaul_circuits::{CircuitEndpoints, Note};

use super::{Health, Traffic};

/// Ends of a circuit answer within this, or are asked again later.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for streams to move onto a circuit; then it is taken for lost.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(10);

/// One Mbit/s.
const MBIT_BYTES_PER_S: u64 = 125_000;

/// The ways to one source, for whoever has the streams.
pub trait StreamPaths: Send {
    /// Addresses for streams without a circuit, best first; empty while unknown.
    fn plain(&self) -> Vec<String>;
    /// From now on streams go there; the plain addresses stand by, so that a circuit that dies silently costs
    /// no more than any path that does. None is the plain way.
    fn set(&mut self, circuit: Option<CircuitPath>);
    /// Addresses that streams use now.
    fn in_use(&mut self) -> Vec<SocketAddr>;
    /// Users of the circuit besides streams: third-party copies.
    fn others(&self) -> usize {
        0
    }
    fn report(&mut self, note: &Note);
}

/// A circuit as streams see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitPath {
    pub address: SocketAddr,
    pub local: Option<IpAddr>,
    /// Rate limit of all streams together, packet headers included; none: no limit.
    pub bytes_per_s: Option<u64>,
}

pub struct Streams<W> {
    ways: W,
    /// Whether streams are limited to the booked bandwidth.
    paced: bool,
    used: Option<UsedCircuit>,
    /// The circuit used before this one.
    before: Option<SocketAddr>,
}

struct UsedCircuit {
    address: SocketAddr,
    since: Instant,
    /// At least one stream has used it.
    seen: bool,
    /// Streams are to leave it.
    is_left: bool,
}

impl<W: StreamPaths> Streams<W> {
    pub fn new(ways: W, paced: bool) -> Self {
        Streams { ways, paced, used: None, before: None }
    }

    /// The circuit's address, with the port of the plain path if the circuit names none.
    fn address(&self, ends: &CircuitEndpoints) -> Option<SocketAddr> {
        let plain_port = || self.ways.plain().first()?.rsplit_once(':')?.1.parse::<u16>().ok();
        if let Ok(address) = ends.source.parse::<IpAddr>() {
            return Some(SocketAddr::new(address, plain_port()?));
        }
        // Names are looked up; only those without a port lack one.
        let text = match ends.source.contains(':') {
            true => ends.source.clone(),
            false => format!("{}:{}", ends.source, plain_port()?),
        };
        text.to_socket_addrs().ok()?.next()
    }
}

impl<W: StreamPaths> Traffic for Streams<W> {
    fn probe(&mut self, ends: &CircuitEndpoints) -> bool {
        let answers = |address| TcpStream::connect_timeout(&address, PROBE_TIMEOUT).is_ok();
        self.address(ends).is_some_and(answers)
    }

    fn use_circuit(&mut self, mbit: u64, ends: &CircuitEndpoints) {
        let Some(address) = self.address(ends) else { return };
        let bytes_per_s = self.paced.then(|| mbit.saturating_mul(MBIT_BYTES_PER_S));
        self.ways.set(Some(CircuitPath { address, local: ends.target.parse().ok(), bytes_per_s }));
        let used = UsedCircuit { address, since: Instant::now(), seen: false, is_left: false };
        self.before =
            self.used.replace(used).map(|before| before.address).filter(|before| *before != address);
    }

    fn stop_using(&mut self) {
        self.ways.set(None);
        if let Some(used) = &mut self.used {
            used.is_left = true;
        }
    }

    fn health(&mut self) -> Health {
        let there = self.ways.in_use();
        let left = [self.before, self.used.as_ref().filter(|used| used.is_left).map(|used| used.address)];
        let has_left = !left.into_iter().flatten().any(|address| there.contains(&address));
        let others = self.ways.others();
        let Some(used) = &mut self.used else {
            return Health { users: others, has_left, ..Health::default() };
        };
        let users = there.iter().filter(|address| **address == used.address).count();
        used.seen |= users > 0;
        let is_late = used.seen || used.since.elapsed() > SWITCH_TIMEOUT;
        let why = match used.seen {
            true => "streams on it fell silent, and went back to the plain way",
            false => "no stream comes to be on it, and they stay on the plain way",
        };
        let lost = (users == 0 && !there.is_empty() && is_late).then(|| why.to_owned());
        Health { users: users + others, lost, has_left }
    }

    fn record_note(&mut self, note: &Note) {
        self.ways.report(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake {
        plain: Vec<String>,
        set: Option<CircuitPath>,
        there: Vec<SocketAddr>,
        others: usize,
    }

    impl StreamPaths for Fake {
        fn plain(&self) -> Vec<String> {
            self.plain.clone()
        }
        fn set(&mut self, circuit: Option<CircuitPath>) {
            self.set = circuit;
        }
        fn in_use(&mut self) -> Vec<SocketAddr> {
            self.there.clone()
        }
        fn others(&self) -> usize {
            self.others
        }
        fn report(&mut self, _note: &Note) {}
    }

    fn streams() -> Streams<Fake> {
        let plain = vec!["10.0.0.2:7000".into()];
        Streams::new(Fake { plain, set: None, there: Vec::new(), others: 0 }, true)
    }

    #[test]
    fn a_circuit_has_the_port_of_the_plain_way_unless_it_names_one() {
        let address = |source: &str| {
            streams().address(&CircuitEndpoints { source: source.into(), target: "10.1.0.1".into() })
        };
        for (source, expected) in [
            ("10.1.0.2", "10.1.0.2:7000"),
            ("10.1.0.2:7001", "10.1.0.2:7001"),
            ("fd77::2", "[fd77::2]:7000"),
            ("[fd77::2]:7001", "[fd77::2]:7001"),
        ] {
            assert_eq!(address(source), expected.parse().ok(), "{source}");
        }
        let mut unknown = streams();
        unknown.ways.plain.clear();
        let ends = CircuitEndpoints { source: "10.1.0.2".into(), target: "10.1.0.1".into() };
        assert!(unknown.address(&ends).is_none() && !unknown.probe(&ends));
    }

    #[test]
    fn a_circuit_whose_streams_went_back_is_lost_and_one_that_rests_is_not() {
        let mut streams = streams();
        let circuit: SocketAddr = "10.1.0.2:7000".parse().unwrap();
        let ends = CircuitEndpoints { source: "10.1.0.2".into(), target: "10.1.0.1".into() };
        streams.use_circuit(100, &ends);
        let local = "10.1.0.1".parse().ok();
        let way = CircuitPath { address: circuit, local, bytes_per_s: Some(12_500_000) };
        assert_eq!(streams.ways.set, Some(way));
        streams.paced = false;
        streams.use_circuit(100, &ends);
        assert_eq!(streams.ways.set, Some(CircuitPath { bytes_per_s: None, ..way }));
        let plain = "10.0.0.2:7000".parse().unwrap();
        for (there, users, lost) in [
            (vec![plain], 0, false),
            (vec![plain, circuit], 1, false),
            (vec![], 0, false),
            (vec![plain], 0, true),
        ] {
            streams.ways.there = there;
            let health = streams.health();
            assert_eq!((health.users, health.lost.is_some()), (users, lost));
        }
        streams.stop_using();
        assert_eq!(streams.ways.set, None);
    }

    #[test]
    fn copies_of_others_use_a_circuit_as_streams_do_and_say_nothing_of_how_it_does() {
        let mut streams = streams();
        let circuit: SocketAddr = "10.1.0.2:7000".parse().unwrap();
        streams.use_circuit(100, &CircuitEndpoints { source: "10.1.0.2".into(), target: "10.1.0.1".into() });
        streams.ways.there = vec![circuit];
        streams.ways.others = 3;
        assert_eq!(streams.health().users, 4);
        // Left by all streams: the copies are still there.
        streams.stop_using();
        streams.ways.there.clear();
        let health = streams.health();
        assert_eq!((health.users, health.has_left, health.lost), (3, true, None));
        streams.ways.others = 0;
        assert_eq!(streams.health().users, 0);
    }

    #[test]
    fn a_circuit_is_left_for_another_when_no_stream_is_on_it_any_more() {
        let mut streams = streams();
        let ends = |source: &str| CircuitEndpoints { source: source.into(), target: "10.1.0.1".into() };
        let (first, second): (SocketAddr, SocketAddr) =
            ("10.1.0.2:7000".parse().unwrap(), "10.2.0.2:7000".parse().unwrap());
        streams.use_circuit(100, &ends("10.1.0.2"));
        streams.ways.there = vec![first];
        assert!(streams.health().has_left, "there was none before");
        streams.use_circuit(200, &ends("10.2.0.2"));
        assert_eq!(streams.ways.set.map(|way| way.address), Some(second));
        for (there, users, has_left) in
            [(vec![first], 0, false), (vec![first, second], 1, false), (vec![second], 1, true)]
        {
            streams.ways.there = there;
            let health = streams.health();
            assert_eq!((health.users, health.has_left, health.lost), (users, has_left, None));
        }
        // Left before there is another: it is the one that is to be empty.
        streams.stop_using();
        assert!(!streams.health().has_left);
        streams.ways.there.clear();
        assert!(streams.health().has_left);
    }
}
