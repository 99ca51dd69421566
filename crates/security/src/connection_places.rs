//! Places for connections at a listener: how many there may be in all, from one address, and of agents, so
//! that a flood keeps nobody out but its own addresses. The addresses of an IPv6 /64 are one.
//!
//! A connection is anonymous until its handshake has ended, and the handshakes under way have places of their
//! own. Where these are all taken, the next one displaces the oldest of the address that has the most: silent
//! connections displace each other, and never keep out somebody from elsewhere, or an agent behind the same
//! address. After the handshake agents have places that others cannot take.
//!
//! Not here: sockets and the time that a handshake may take (`service` and `doors` have them).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use longhaul_model::{AgentId, Timestamp};

use crate::client_network;

/// One in so many of a listener's places is for agents alone.
const AGENTS_PART: usize = 4;
/// One in so many of a listener's places is for handshakes under way.
const HANDSHAKES_PART: usize = 4;
/// One address has at most one in so many of a listener's connections.
const ADDRESS_PART: usize = 8;
/// Connections of one agent, so that one does not keep out the others. In use are two or three.
const CONNECTIONS_PER_AGENT_MAX: usize = 64;
/// Time between two log lines about refused connections.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Connections by address; the addresses of an IPv6 /64 are one.
#[derive(Debug, Default)]
pub struct AddressCounts(HashMap<IpAddr, usize>);

impl AddressCounts {
    /// Counts one more; false, and not counted, if the address has `max` already.
    pub fn add(&mut self, address: IpAddr, max: usize) -> bool {
        let address = client_network(address);
        if self.count(address) >= max {
            return false;
        }
        *self.0.entry(address).or_default() += 1;
        true
    }

    pub fn remove(&mut self, address: IpAddr) {
        let address = client_network(address);
        let Some(count) = self.0.get_mut(&address) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.0.remove(&address);
        }
    }

    pub fn count(&self, address: IpAddr) -> usize {
        self.0.get(&client_network(address)).copied().unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Bounds of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// Handshakes under way.
    pub handshakes: usize,
    /// Connections of others than agents, after their handshake.
    pub anonymous: usize,
    /// Those from one address.
    pub anonymous_of_address: usize,
    /// Places that only agents take.
    pub agents: usize,
}

impl ConnectionBounds {
    /// Bounds of a TLS listener with so many connections in all.
    pub fn secure(connections: usize) -> ConnectionBounds {
        let handshakes = (connections / HANDSHAKES_PART).max(1);
        let agents = (connections / AGENTS_PART).max(1);
        ConnectionBounds {
            handshakes,
            anonymous: connections.saturating_sub(handshakes + agents).max(1),
            anonymous_of_address: (connections / ADDRESS_PART).max(1),
            agents,
        }
    }

    /// Bounds of a listener without TLS, where nobody can show a certificate.
    pub fn plain(connections: usize) -> ConnectionBounds {
        ConnectionBounds {
            handshakes: 0,
            anonymous: connections,
            anonymous_of_address: (connections / ADDRESS_PART).max(1),
            agents: 0,
        }
    }
}

/// Why a connection gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceRefusal {
    /// Its address has as many connections as one may.
    Address,
    /// Its agent has as many connections as one may.
    Agent,
    /// The listener has no place left for its kind.
    Listener,
    /// Its handshake was displaced by a newer one.
    Displaced,
}

impl PlaceRefusal {
    pub fn reason(self) -> &'static str {
        match self {
            PlaceRefusal::Address => "its address has as many connections as one address may",
            PlaceRefusal::Agent => "its agent has as many connections as one agent may",
            PlaceRefusal::Listener => "the listener has no place left",
            PlaceRefusal::Displaced => "too many handshakes are under way, most of them from its address",
        }
    }
}

/// A connection at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// The connections of one listener. `T` is held for each handshake under way, and handed out when it is
/// displaced.
#[derive(Debug)]
pub struct ConnectionPlaces<T> {
    bounds: ConnectionBounds,
    last: u64,
    handshakes: BTreeMap<ConnectionId, (IpAddr, T)>,
    handshakes_of: AddressCounts,
    established: BTreeMap<ConnectionId, Allocation>,
    anonymous: usize,
    anonymous_of: AddressCounts,
    agents: usize,
    agents_of: HashMap<AgentId, usize>,
    log: RefusalLog,
}

#[derive(Clone, Copy, Debug)]
enum Allocation {
    Anonymous(IpAddr),
    Agent(AgentId),
    /// An agent's connection beyond the places for agents, which takes one of the others.
    AgentAmongAnonymous(AgentId),
}

impl<T> ConnectionPlaces<T> {
    pub fn new(bounds: ConnectionBounds) -> ConnectionPlaces<T> {
        ConnectionPlaces {
            bounds,
            last: 0,
            handshakes: BTreeMap::new(),
            handshakes_of: AddressCounts::default(),
            established: BTreeMap::new(),
            anonymous: 0,
            anonymous_of: AddressCounts::default(),
            agents: 0,
            agents_of: HashMap::new(),
            log: RefusalLog::default(),
        }
    }

    /// A connection begins its handshake. Returns the address and the `T` of the handshake that it displaces,
    /// if all places are taken.
    pub fn begin(&mut self, address: IpAddr, held: T) -> (ConnectionId, Option<(IpAddr, T)>) {
        let id = self.next_id();
        let displaced = if self.handshakes.len() >= self.bounds.handshakes { self.displace() } else { None };
        self.handshakes_of.add(address, usize::MAX);
        self.handshakes.insert(id, (address, held));
        (id, displaced)
    }

    /// Ends the oldest handshake of the address that has the most.
    fn displace(&mut self) -> Option<(IpAddr, T)> {
        let most = self.handshakes_of.0.values().copied().max()?;
        let of_most =
            |(_, (address, _)): &(&ConnectionId, &(IpAddr, T))| self.handshakes_of.count(*address) == most;
        let oldest = self.handshakes.iter().find(of_most).map(|(id, _)| *id)?;
        let (address, held) = self.handshakes.remove(&oldest)?;
        self.handshakes_of.remove(address);
        Some((address, held))
    }

    /// The handshake has ended, and the connection is an agent's of this deployment or anonymous. Without a
    /// place it has to be closed.
    pub fn establish(&mut self, id: ConnectionId, agent: Option<AgentId>) -> Result<(), PlaceRefusal> {
        let (address, _) = self.handshakes.remove(&id).ok_or(PlaceRefusal::Displaced)?;
        self.handshakes_of.remove(address);
        match agent {
            Some(agent) => self.establish_agent(id, agent),
            None => self.establish_anonymous(id, address),
        }
    }

    /// A connection without a handshake.
    pub fn open(&mut self, address: IpAddr) -> Result<ConnectionId, PlaceRefusal> {
        let id = self.next_id();
        self.establish_anonymous(id, address).map(|()| id)
    }

    fn establish_anonymous(&mut self, id: ConnectionId, address: IpAddr) -> Result<(), PlaceRefusal> {
        if self.anonymous >= self.bounds.anonymous {
            return Err(PlaceRefusal::Listener);
        }
        if !self.anonymous_of.add(address, self.bounds.anonymous_of_address) {
            return Err(PlaceRefusal::Address);
        }
        self.anonymous += 1;
        self.established.insert(id, Allocation::Anonymous(address));
        Ok(())
    }

    fn establish_agent(&mut self, id: ConnectionId, agent: AgentId) -> Result<(), PlaceRefusal> {
        let of_agent = self.agents_of.get(&agent).copied().unwrap_or_default();
        if of_agent >= CONNECTIONS_PER_AGENT_MAX {
            return Err(PlaceRefusal::Agent);
        }
        let place = if self.agents < self.bounds.agents {
            self.agents += 1;
            Allocation::Agent(agent)
        } else if self.anonymous < self.bounds.anonymous {
            self.anonymous += 1;
            Allocation::AgentAmongAnonymous(agent)
        } else {
            return Err(PlaceRefusal::Listener);
        };
        self.agents_of.insert(agent, of_agent + 1);
        self.established.insert(id, place);
        Ok(())
    }

    /// The connection has ended, at whatever stage; one that ended before is no matter.
    pub fn end(&mut self, id: ConnectionId) {
        if let Some((address, _)) = self.handshakes.remove(&id) {
            self.handshakes_of.remove(address);
        }
        match self.established.remove(&id) {
            Some(Allocation::Anonymous(address)) => {
                self.anonymous -= 1;
                self.anonymous_of.remove(address);
            }
            Some(Allocation::Agent(agent)) => {
                self.agents -= 1;
                self.forget_agent(agent);
            }
            Some(Allocation::AgentAmongAnonymous(agent)) => {
                self.anonymous -= 1;
                self.forget_agent(agent);
            }
            None => {}
        }
    }

    fn forget_agent(&mut self, agent: AgentId) {
        let Some(count) = self.agents_of.get_mut(&agent) else { return };
        *count -= 1;
        if *count == 0 {
            self.agents_of.remove(&agent);
        }
    }

    /// Counts a refusal, and says how many there were since the last log line if the next one is due.
    pub fn note_refusal(&mut self, now: Timestamp) -> Option<u64> {
        self.log.note(now)
    }

    fn next_id(&mut self) -> ConnectionId {
        self.last += 1;
        ConnectionId(self.last)
    }
}

/// Refused connections since the last log line about them.
#[derive(Debug, Default)]
struct RefusalLog {
    last_line: Option<Timestamp>,
    refused: u64,
}

impl RefusalLog {
    fn note(&mut self, now: Timestamp) -> Option<u64> {
        self.refused += 1;
        if self.last_line.is_some_and(|last| now.since(last) < REFUSAL_LOG_INTERVAL) {
            return None;
        }
        self.last_line = Some(now);
        Some(std::mem::take(&mut self.refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ConnectionBounds =
        ConnectionBounds { handshakes: 4, anonymous: 6, anonymous_of_address: 3, agents: 2 };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn numbered(number: usize) -> IpAddr {
        IpAddr::from([192, 0, 2, number as u8])
    }

    /// A connection that ends its handshake at once.
    fn connect(
        places: &mut ConnectionPlaces<()>,
        from: IpAddr,
        agent: Option<u64>,
    ) -> Result<ConnectionId, PlaceRefusal> {
        let (id, _) = places.begin(from, ());
        places.establish(id, agent.map(AgentId)).map(|()| id)
    }

    #[test]
    fn one_address_cannot_take_all_connections() {
        let mut places = ConnectionPlaces::new(BOUNDS);
        let flood = address("198.51.100.7");
        let admitted = (0..100).filter(|_| connect(&mut places, flood, None).is_ok()).count();
        assert_eq!(admitted, BOUNDS.anonymous_of_address);
        assert_eq!(connect(&mut places, flood, None), Err(PlaceRefusal::Address));
        assert!(connect(&mut places, numbered(1), None).is_ok());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let mut places = ConnectionPlaces::<()>::new(ConnectionBounds::plain(8));
        assert!(places.open(address("2001:db8:0:1::1")).is_ok());
        assert_eq!(places.open(address("2001:db8:0:1:ffff::2")), Err(PlaceRefusal::Address));
        assert!(places.open(address("2001:db8:0:2::1")).is_ok(), "another network");
        assert!(places.open(address("192.0.2.1")).is_ok());
        assert_eq!(places.open(address("::ffff:192.0.2.1")), Err(PlaceRefusal::Address), "mapped");
    }

    #[test]
    fn silent_connections_displace_each_other_and_nobody_else() {
        let mut places = ConnectionPlaces::new(BOUNDS);
        let flood = address("2001:db8::1");
        let (other, displaced) = places.begin(numbered(1), "other");
        assert!(displaced.is_none());
        let mut flooding = Vec::new();
        for number in 0..100 {
            let (id, displaced) = places.begin(flood, "silent");
            assert_eq!(displaced.is_some(), number >= BOUNDS.handshakes - 1);
            assert!(
                displaced.is_none_or(|displaced| displaced == (flood, "silent")),
                "the oldest of its own"
            );
            flooding.push(id);
        }
        assert_eq!(places.handshakes.len(), BOUNDS.handshakes);
        assert_eq!(places.establish(flooding[0], None), Err(PlaceRefusal::Displaced));
        assert!(places.establish(other, None).is_ok());
        let (agent, _) = places.begin(flood, "an agent behind the same address");
        assert!(places.establish(agent, Some(AgentId(1))).is_ok());
    }

    #[test]
    fn an_anonymous_flood_cannot_keep_agents_out() {
        let mut places = ConnectionPlaces::new(BOUNDS);
        let admitted =
            (0..200).filter(|number| connect(&mut places, numbered(*number), None).is_ok()).count();
        assert_eq!(admitted, BOUNDS.anonymous, "from many addresses");
        for number in 0..50 {
            places.begin(numbered(number), ());
        }
        assert_eq!(connect(&mut places, numbered(201), None), Err(PlaceRefusal::Listener));
        assert!(connect(&mut places, numbered(201), Some(1)).is_ok());
        assert!(connect(&mut places, numbered(1), Some(2)).is_ok(), "also from an address of the flood");
        assert_eq!(connect(&mut places, numbered(201), Some(3)), Err(PlaceRefusal::Listener));
    }

    #[test]
    fn agents_take_other_places_where_these_are_free_and_one_agent_not_all() {
        let mut places = ConnectionPlaces::new(BOUNDS);
        let at = numbered(1);
        let admitted = (0..100).filter(|number| connect(&mut places, at, Some(*number)).is_ok()).count();
        assert_eq!(admitted, BOUNDS.agents + BOUNDS.anonymous);
        let mut large = ConnectionPlaces::new(ConnectionBounds::secure(4_096));
        let admitted = (0..1_000).filter(|_| connect(&mut large, at, Some(1)).is_ok()).count();
        assert_eq!(admitted, CONNECTIONS_PER_AGENT_MAX);
        assert_eq!(connect(&mut large, at, Some(1)), Err(PlaceRefusal::Agent));
        assert!(connect(&mut large, at, Some(2)).is_ok());
    }

    #[test]
    fn a_connection_that_ends_gives_its_place_back() {
        let mut places = ConnectionPlaces::new(BOUNDS);
        let mut open = vec![places.begin(numbered(9), ()).0];
        for agent in [None, None, None, Some(1), Some(2), Some(3)] {
            open.push(connect(&mut places, numbered(1), agent).unwrap());
        }
        assert!(connect(&mut places, numbered(1), None).is_err());
        for id in open.iter().chain(&open) {
            places.end(*id);
        }
        assert!(places.handshakes.is_empty() && places.established.is_empty());
        assert!(places.handshakes_of.is_empty() && places.anonymous_of.is_empty());
        assert!(places.agents_of.is_empty());
        assert_eq!((places.anonymous, places.agents), (0, 0));
        assert!(connect(&mut places, numbered(1), None).is_ok());
    }

    #[test]
    fn the_parts_of_a_listener_are_its_connections() {
        let bounds = ConnectionBounds::secure(4_096);
        assert_eq!(bounds.handshakes + bounds.anonymous + bounds.agents, 4_096);
        assert_eq!(bounds.anonymous_of_address, 512);
        let one = ConnectionBounds::secure(1);
        assert_eq!((one.handshakes, one.anonymous, one.anonymous_of_address, one.agents), (1, 1, 1, 1));
        assert_eq!(ConnectionBounds::plain(4_096).anonymous, 4_096);
    }

    #[test]
    fn refusals_are_told_at_most_once_a_minute_with_their_number() {
        let mut places = ConnectionPlaces::<()>::new(BOUNDS);
        let start = Timestamp::from_seconds(1_000);
        assert_eq!(places.note_refusal(start), Some(1));
        for second in 1..60 {
            assert_eq!(places.note_refusal(start + Duration::from_secs(second)), None);
        }
        assert_eq!(places.note_refusal(start + Duration::from_secs(60)), Some(60));
        assert_eq!(places.note_refusal(start + Duration::from_secs(61)), None);
    }
}
