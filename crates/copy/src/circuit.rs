//! A circuit for one copy (the first of its three levels): asked for when the copy begins, used when its ends answer, given
//! back at the end. Streams move onto its addresses in mid-file, and back; the plain addresses stand by, so that a circuit
//! that dies silently costs no more than any path that does.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use longhaul_circuits::{Ends, Event, Note};
use longhaul_engine::Path;
use longhaul_gateways::circuits::{CircuitConfig, Health, Keeper, Place, Traffic};
use longhaul_model::{AgentId, Fault, FaultCode};

use crate::clock;
use crate::progress::Story;
use crate::site::{Site, Source};
use crate::state::StateDir;

const BOOK: &str = "circuit.json";
/// Ends of a circuit answer within this, or are asked again later.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// From the order to use a circuit until its streams must be there.
const MOVE_WITHIN: Duration = Duration::from_secs(10);

/// Asks for a circuit; what comes back gives it back when dropped. `story` hears what is done and why.
pub(crate) fn ask_for(
    config: &CircuitConfig,
    site: &Arc<Site>,
    source: &Source,
    state: &StateDir,
    story: Arc<Story>,
) -> Result<Keeper, Fault> {
    let mut seed = [0; 8];
    rand::fill(&mut seed)
        .map_err(|_| Fault::new(FaultCode::Internal, "the system gives no random numbers"))?;
    let place = Place {
        link: format!("{}→{}", source.agent, site.agent()),
        book: state.path().join(BOOK),
        seed: u64::from_le_bytes(seed),
    };
    let (site, addresses) = (site.clone(), source.addresses.clone());
    let streams = Streams { site, source: source.agent, plain: addresses, used: None, story };
    let keeper = Keeper::start(place, config, Arc::new(clock::now), Box::new(streams))?;
    keeper.tell(Event::Wanted(true));
    Ok(keeper)
}

/// The streams of one session.
struct Streams {
    site: Arc<Site>,
    source: AgentId,
    /// Where they go without a circuit.
    plain: Vec<String>,
    used: Option<Used>,
    story: Arc<Story>,
}

struct Used {
    address: SocketAddr,
    since: Instant,
    /// At least one was there.
    seen: bool,
}

impl Streams {
    /// With the port of the plain way, if the circuit names none.
    fn address(&self, ends: &Ends) -> Option<SocketAddr> {
        let found = |text: &str| text.to_socket_addrs().ok().and_then(|mut found| found.next());
        found(&ends.source).or_else(|| {
            let port = self.plain.first()?.rsplit_once(':')?.1;
            let host =
                if ends.source.contains(':') { format!("[{}]", ends.source) } else { ends.source.clone() };
            found(&format!("{host}:{port}"))
        })
    }

    fn set_paths(&self, paths: Vec<Path>) {
        if let Err(fault) = self.site.engine().set_paths(self.source, paths) {
            tracing::error!(%fault, "the paths cannot be set");
        }
    }

    fn where_streams_are(&self) -> Vec<SocketAddr> {
        let sessions = self.site.engine().snapshot().sessions;
        let of_source = sessions.into_iter().filter(|session| session.source == self.source);
        of_source.flat_map(|session| session.addresses).collect()
    }
}

impl Traffic for Streams {
    fn probe(&mut self, ends: &Ends) -> bool {
        let answers = |address| TcpStream::connect_timeout(&address, PROBE_WITHIN).is_ok();
        self.address(ends).is_some_and(answers)
    }

    fn use_circuit(&mut self, _mbit: u64, ends: &Ends) {
        let Some(address) = self.address(ends) else { return };
        let circuit = Path { local: ends.target.parse().ok(), ..Path::to(address.to_string()) };
        let spare = self.plain.iter().map(|plain| Path { spare: true, ..Path::to(plain) });
        self.set_paths([circuit].into_iter().chain(spare).collect());
        self.used = Some(Used { address, since: Instant::now(), seen: false });
    }

    fn stop_using(&mut self) {
        self.set_paths(Vec::new());
    }

    fn health(&mut self) -> Health {
        let there = self.where_streams_are();
        let Some(used) = &mut self.used else { return Health::default() };
        let users = there.iter().filter(|address| **address == used.address).count();
        used.seen |= users > 0;
        let is_late = used.seen || used.since.elapsed() > MOVE_WITHIN;
        let lost = (users == 0 && !there.is_empty() && is_late)
            .then(|| "streams on it fell silent, and went back to the plain way".to_owned());
        Health { users, lost }
    }

    fn tell(&mut self, note: &Note) {
        tracing::info!(%note, "circuit");
        self.story.say(note.to_string());
    }
}
