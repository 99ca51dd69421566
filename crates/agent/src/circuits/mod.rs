//! Circuits at the site's agent, the second of their three levels: one per peer, for many jobs.
//!
//! What waits and what each way carries goes into the lifecycle of `circuits`, by way of its keeper; when a
//! circuit is up, what comes from the peer moves onto its addresses, and back when it goes. Leases and
//! transfers know nothing of it: without a circuit they go the way they always went. Where none is configured
//! there is none of this.
//!
//! Not here: when a circuit is worth its while (`circuits`), providers and how streams move
//! (`gateways::circuits`).

pub(crate) mod sampler;
mod status;
mod streams;

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::agent::{CircuitCopies, LinkAhead, SourcePeer};
use longhaul_circuits::{CircuitHistory, Event, Order};
use longhaul_gateways::circuits::{CircuitConfig, FILE_BYTES_MAX, Keeper, Place, Streams};
use longhaul_model::{AgentId, Blame, CircuitUse, Fault, FaultCode, StorageName};

use crate::clock::ServiceClock;
use crate::config::circuits::CircuitLinkConfig;
use crate::mover::MoverHandle;
use crate::step::AgentTime;
use crate::threads::locked;
use streams::AgentStreams;

/// Ends of transfers that wait to be told; more say nothing new.
const ENDED_TRANSFERS_MAX: usize = 1_000;
/// What the service said of a queue counts for so many checks.
const QUEUE_ANSWER_CHECKS_MAX: u32 = 3;

/// The links that may have circuits.
#[derive(Default)]
pub(crate) struct Circuits {
    links: Vec<Link>,
    /// When the service was asked what waits.
    queue_queried_at: Mutex<Option<AgentTime>>,
    /// What it was last told of the links, and when.
    last_status: Mutex<Option<status::LastStatus>>,
}

struct Link {
    config: CircuitLinkConfig,
    circuit: CircuitConfig,
    state: Mutex<LinkState>,
    keeper: Mutex<Option<Keeper>>,
    record: Mutex<CircuitHistory>,
}

#[derive(Default)]
struct LinkState {
    /// Who serves the storage, as the last leases say.
    peer: Option<SourcePeer>,
    /// Where streams go while a circuit is used.
    circuit: Option<SocketAddr>,
    ahead: Option<QueueAhead>,
    /// Whether on the circuit, and whether it went well.
    ended_transfers: VecDeque<(bool, bool)>,
    /// Copies between storages of others that go by the circuit, as last heard.
    copies: u32,
    /// What commands of the site had brought by circuits from that peer, when that was looked at last.
    counted_commands: Option<(AgentId, u64)>,
    /// What people want, as last heard.
    orders: Vec<Order>,
    /// The service decides about work.
    is_planned_by_service: bool,
}

#[derive(Clone, Copy)]
struct QueueAhead {
    bytes: u64,
    bytes_per_s: Option<f64>,
    at: AgentTime,
}

/// What the links need to begin.
pub(crate) struct CircuitsStart<'a> {
    /// For what is kept of each link from run to run.
    pub directory: &'a Path,
    pub agent: AgentId,
    pub seed: u64,
    pub engine: &'a MoverHandle,
    pub clock: &'a ServiceClock,
}

impl Circuits {
    /// Reads what is configured; nothing is asked for yet.
    pub(crate) fn read(configs: &[CircuitLinkConfig]) -> Result<Circuits, Fault> {
        let link = |config: &CircuitLinkConfig| {
            let mut circuit = read(config)?;
            circuit.settings = config.settings(circuit.settings);
            let state = Mutex::default();
            let (keeper, record) = (Mutex::default(), Mutex::default());
            Ok(Link { config: config.clone(), circuit, state, keeper, record })
        };
        let links = configs.iter().map(link).collect::<Result<_, Fault>>()?;
        Ok(Circuits { links, ..Circuits::default() })
    }

    /// Takes up what a run before has left in its books.
    pub(crate) fn start(self: &Arc<Self>, start: CircuitsStart<'_>) -> Result<(), Fault> {
        for (place, link) in self.links.iter().enumerate() {
            let from = &link.config.from;
            let whose = Place {
                link: format!("{from}→{}", start.agent),
                book: start.directory.join(format!("{from}.json")),
                seed: start.seed,
            };
            let ways = AgentStreams::new(start.engine, self, start.clock, place);
            let clock = start.clock.for_engine();
            let keeper =
                Keeper::start(whose, &link.circuit, clock, Box::new(Streams::new(ways, link.circuit.paced)))?;
            *locked(&link.keeper) = Some(keeper);
        }
        Ok(())
    }

    /// Gives all back. Takes some seconds at the most; what is left then is in the books.
    pub(crate) fn release_all(&self) {
        let keepers: Vec<_> = self.links.iter().filter_map(|link| locked(&link.keeper).take()).collect();
        // All begin to end before the first is waited for.
        keepers.iter().for_each(|keeper| keeper.tell(Event::OwnerEnded));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    fn links_from<'a>(&'a self, storage: &'a StorageName) -> impl Iterator<Item = &'a Link> {
        self.links.iter().filter(move |link| link.config.from == *storage)
    }

    // ---- what the rest of the agent tells ------------------------------------------------------------------

    /// Who serves a storage now: leases say it, and the service where there is none yet.
    pub(crate) fn set_source_peer(&self, source: &SourcePeer) {
        for link in self.links_from(&source.storage) {
            let mut state = locked(&link.state);
            if state.peer.as_ref() != Some(source) {
                state.peer = Some(source.clone());
            }
        }
    }

    /// Whether a circuit that is used leads there.
    pub(crate) fn is_circuit_address(&self, address: &SocketAddr) -> bool {
        self.links.iter().any(|link| locked(&link.state).circuit.as_ref() == Some(address))
    }

    /// An attempt has ended. What the disks or the permissions of either end did says nothing about the way.
    pub(crate) fn note_attempt_end(&self, source: &StorageName, circuits: CircuitUse, fault: Option<&Fault>) {
        let good = fault.is_none();
        if fault.is_some_and(|fault| fault.blame != Blame::Network) {
            return;
        }
        for link in self.links_from(source) {
            let mut state = locked(&link.state);
            if state.ended_transfers.len() < ENDED_TRANSFERS_MAX {
                // What never goes by circuits was beside it.
                let on_circuit = state.circuit.is_some() && circuits != CircuitUse::Never;
                state.ended_transfers.push_back((on_circuit, good));
            }
        }
    }

    /// Whether the service is to be asked what waits: as often as that is looked at.
    pub(crate) fn take_queue_query(&self, now: AgentTime) -> bool {
        let Some(every) = self.links.iter().map(|link| link.circuit.settings.check_interval).min() else {
            return false;
        };
        let mut asked = locked(&self.queue_queried_at);
        let due =
            asked.is_none_or(|at| now.saturating_sub(at) >= every.saturating_sub(Duration::from_millis(100)));
        if due {
            *asked = Some(now);
        }
        due
    }

    /// The copies that the service makes by circuits. Those of a link that it does not name have ended.
    pub(crate) fn set_copies(&self, all: &[CircuitCopies]) {
        for link in &self.links {
            let named = all.iter().filter(|one| one.source == link.config.from);
            let copies = named.fold(0, |sum: u32, one| sum.saturating_add(one.copies));
            locked(&link.state).copies = copies;
        }
    }

    /// The service's answer. A link that it does not name has no queue.
    pub(crate) fn set_queue_ahead(&self, now: AgentTime, all: &[LinkAhead]) {
        for link in &self.links {
            let mut ahead = QueueAhead { bytes: 0, bytes_per_s: None, at: now };
            for one in all.iter().filter(|one| one.source == link.config.from) {
                ahead.bytes = ahead.bytes.saturating_add(one.bytes);
                // To several storages here they share the way.
                ahead.bytes_per_s = ahead.bytes_per_s.into_iter().chain([one.bytes_per_s]).reduce(f64::max);
            }
            locked(&link.state).ahead = Some(ahead);
        }
    }
}

fn read(config: &CircuitLinkConfig) -> Result<CircuitConfig, Fault> {
    let shown = config.file.display().to_string();
    let mut text = String::new();
    let read = std::fs::File::open(&config.file)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text));
    read.map_err(|error| Fault::new(FaultCode::BadRequest, format!("{shown}: {error}")))?;
    CircuitConfig::parse(&text, &shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "provider = \"static\"\nsource = \"10.1.0.2\"\ntarget = \"10.1.0.1\"\nmbit = 100\n";

    #[test]
    fn an_attempt_that_stays_on_the_plain_way_says_nothing_of_the_circuit() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("circuit.toml");
        std::fs::write(&file, LINK).unwrap();
        let config = toml::from_str(&format!("from = 'beta'\nfile = {file:?}\n")).unwrap();
        let circuits = Circuits::read(&[config]).unwrap();
        let beta: StorageName = "beta".parse().unwrap();
        let told = |circuits: &Circuits| {
            locked(&circuits.links[0].state).ended_transfers.drain(..).collect::<Vec<_>>()
        };
        let network = Fault::new(FaultCode::Stalled, "nothing came");
        assert_eq!(network.blame, Blame::Network);
        circuits.note_attempt_end(&beta, CircuitUse::Prefer, None);
        assert_eq!(told(&circuits), [(false, true)], "there is none");
        locked(&circuits.links[0].state).circuit = "10.1.0.2:7000".parse().ok();
        for (wish, on_circuit) in
            [(CircuitUse::Never, false), (CircuitUse::Prefer, true), (CircuitUse::Only, true)]
        {
            circuits.note_attempt_end(&beta, wish, Some(&network));
            circuits.note_attempt_end(&beta, wish, None);
            assert_eq!(told(&circuits), [(on_circuit, false), (on_circuit, true)], "{wish}");
        }
        // The disk is not the way, and another storage is another link.
        circuits.note_attempt_end(
            &beta,
            CircuitUse::Prefer,
            Some(&Fault::new(FaultCode::TargetFull, "full")),
        );
        circuits.note_attempt_end(&"gamma".parse().unwrap(), CircuitUse::Prefer, Some(&network));
        assert_eq!(told(&circuits), []);
    }
}
