//! Circuits managed by the site's agent, the second of their three levels: one per peer, shared by many jobs.
//!
//! Queue sizes and the throughput of each path feed the lifecycle of `circuits` through its keeper; while a
//! circuit is up, the sessions with the peer use its addresses, and the plain path otherwise. Leases and
//! transfers are not aware of it. Without configured links nothing here is active.
//!
//! Not here: when a circuit is worth requesting (`circuits`), providers and how streams migrate
//! (`gateways::circuits`).

pub(crate) mod sampler;
mod status;
mod streams;

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{CircuitCopies, LinkAhead, SourcePeer};
use longhaul_circuits::{CircuitHistory, Event, Order};
use longhaul_gateways::circuits::{CircuitConfig, CircuitContext, FILE_BYTES_MAX, ProviderDriver, Streams};
use longhaul_model::{AgentId, Blame, CircuitUse, Fault, FaultCode, StorageName};
use parking_lot::Mutex;

use crate::clock::ServiceClock;
use crate::config::circuits::CircuitLinkConfig;
use crate::mover::MoverHandle;
use crate::step::AgentTime;
use streams::AgentStreams;

/// Ended transfers that wait for the keeper; further ones say nothing new.
const ENDED_TRANSFERS_MAX: usize = 1_000;
/// The service's answer about a queue is valid for this many checks.
const QUEUE_ANSWER_CHECKS_MAX: u32 = 3;

/// The links for which circuits are configured.
#[derive(Default)]
pub(crate) struct Circuits {
    links: Vec<Link>,
    /// When the service was last asked for the queues.
    queue_queried_at: Mutex<Option<AgentTime>>,
    /// The last status that the service was sent.
    last_status: Mutex<Option<status::LastStatus>>,
}

struct Link {
    config: CircuitLinkConfig,
    circuit: CircuitConfig,
    state: Mutex<LinkState>,
    keeper: Mutex<Option<ProviderDriver>>,
    record: Mutex<CircuitHistory>,
}

#[derive(Default)]
struct LinkState {
    /// The agent that serves the source, as the last leases say.
    peer: Option<SourcePeer>,
    /// The peer's address on the circuit while it is in use.
    circuit: Option<SocketAddr>,
    ahead: Option<QueueAhead>,
    /// Ended transfers: whether on the circuit, and whether successful.
    ended_transfers: VecDeque<(bool, bool)>,
    /// Copies between foreign storages that use the circuit, as the service said last.
    copies: u32,
    /// Bytes that site commands had fetched over circuits from that peer at the last sample.
    counted_commands: Option<(AgentId, u64)>,
    /// Orders of people, as the service said last.
    orders: Vec<Order>,
    /// The service plans circuits for queued work.
    is_planned_by_service: bool,
}

#[derive(Clone, Copy)]
struct QueueAhead {
    bytes: u64,
    bytes_per_s: Option<f64>,
    at: AgentTime,
}

/// Arguments of [`Circuits::start`].
pub(crate) struct CircuitsStart<'a> {
    /// Holds the keepers' records from run to run.
    pub directory: &'a Path,
    pub agent: AgentId,
    pub seed: u64,
    pub engine: &'a MoverHandle,
    pub clock: &'a ServiceClock,
}

impl Circuits {
    /// Reads the configured links; requests nothing yet.
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

    /// Starts the keepers, which resume the circuits that an earlier run has recorded.
    pub(crate) fn start(self: &Arc<Self>, start: CircuitsStart<'_>) -> Result<(), Fault> {
        for (place, link) in self.links.iter().enumerate() {
            let from = &link.config.from;
            let whose = CircuitContext {
                link: format!("{from}→{}", start.agent),
                ledger_path: start.directory.join(format!("{from}.json")),
                seed: start.seed,
            };
            let ways = AgentStreams::new(start.engine, self, start.clock, place);
            let clock = start.clock.for_engine();
            let keeper = ProviderDriver::start(
                whose,
                &link.circuit,
                clock,
                Box::new(Streams::new(ways, link.circuit.paced)),
            )?;
            *link.keeper.lock() = Some(keeper);
        }
        Ok(())
    }

    /// Releases all circuits. Takes some seconds at most; what is left stays recorded.
    pub(crate) fn release_all(&self) {
        let keepers: Vec<_> = self.links.iter().filter_map(|link| link.keeper.lock().take()).collect();
        // All begin to release before the first is waited for.
        keepers.iter().for_each(|keeper| keeper.send_event(Event::OwnerEnded));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    fn links_from<'a>(&'a self, storage: &'a StorageName) -> impl Iterator<Item = &'a Link> {
        self.links.iter().filter(move |link| link.config.from == *storage)
    }

    // ---- inputs from the rest of the agent ---------------------------------------------------------------

    /// Sets who serves a storage now, as leases say, or the service where there is no lease yet.
    pub(crate) fn set_source_peer(&self, source: &SourcePeer) {
        for link in self.links_from(&source.storage) {
            let mut state = link.state.lock();
            if state.peer.as_ref() != Some(source) {
                state.peer = Some(source.clone());
            }
        }
    }

    /// Whether this is the peer's address on a circuit in use.
    pub(crate) fn is_circuit_address(&self, address: &SocketAddr) -> bool {
        self.links.iter().any(|link| link.state.lock().circuit.as_ref() == Some(address))
    }

    /// Notes the end of an attempt. Faults of disks or permissions say nothing about the path.
    pub(crate) fn note_attempt_end(&self, source: &StorageName, circuits: CircuitUse, fault: Option<&Fault>) {
        let good = fault.is_none();
        if fault.is_some_and(|fault| fault.blame != Blame::Network) {
            return;
        }
        for link in self.links_from(source) {
            let mut state = link.state.lock();
            if state.ended_transfers.len() < ENDED_TRANSFERS_MAX {
                // An attempt that never uses circuits was on the plain path.
                let on_circuit = state.circuit.is_some() && circuits != CircuitUse::Never;
                state.ended_transfers.push_back((on_circuit, good));
            }
        }
    }

    /// Whether the next report asks for the queues: as often as they are checked.
    pub(crate) fn take_queue_query(&self, now: AgentTime) -> bool {
        let Some(every) = self.links.iter().map(|link| link.circuit.settings.check_interval).min() else {
            return false;
        };
        let mut asked = self.queue_queried_at.lock();
        let due =
            asked.is_none_or(|at| now.saturating_sub(at) >= every.saturating_sub(Duration::from_millis(100)));
        if due {
            *asked = Some(now);
        }
        due
    }

    /// Sets the service's copies over circuits. A link that it does not name has none.
    pub(crate) fn set_copies(&self, all: &[CircuitCopies]) {
        for link in &self.links {
            let named = all.iter().filter(|one| one.source == link.config.from);
            let copies = named.fold(0, |sum: u32, one| sum.saturating_add(one.copies));
            link.state.lock().copies = copies;
        }
    }

    /// Takes the service's answer about the queues. A link that it does not name has no queue.
    pub(crate) fn set_queue_ahead(&self, now: AgentTime, all: &[LinkAhead]) {
        for link in &self.links {
            let mut ahead = QueueAhead { bytes: 0, bytes_per_s: None, at: now };
            for one in all.iter().filter(|one| one.source == link.config.from) {
                ahead.bytes = ahead.bytes.saturating_add(one.bytes);
                // Queues to several storages here share the path.
                ahead.bytes_per_s = ahead.bytes_per_s.into_iter().chain([one.bytes_per_s]).reduce(f64::max);
            }
            link.state.lock().ahead = Some(ahead);
        }
    }
}

fn read(config: &CircuitLinkConfig) -> Result<CircuitConfig, Fault> {
    let shown = config.file.display().to_string();
    let mut text = String::new();
    let read = std::fs::File::open(&config.file)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text));
    read.map_err(|error| Fault::new(FaultCode::BadRequest, format!("{shown}: {error}")).with_source(error))?;
    CircuitConfig::parse(&text, &shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "provider = \"static\"\nsource = \"10.1.0.2\"\ntarget = \"10.1.0.1\"\nmbit = 100\n";

    #[test]
    fn an_attempt_on_the_plain_path_says_nothing_about_the_circuit() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("circuit.toml");
        std::fs::write(&file, LINK).unwrap();
        let config = toml::from_str(&format!("from = 'beta'\nfile = {file:?}\n")).unwrap();
        let circuits = Circuits::read(&[config]).unwrap();
        let beta: StorageName = "beta".parse().unwrap();
        let told = |circuits: &Circuits| {
            circuits.links[0].state.lock().ended_transfers.drain(..).collect::<Vec<_>>()
        };
        let network = Fault::new(FaultCode::Stalled, "nothing came");
        assert_eq!(network.blame, Blame::Network);
        circuits.note_attempt_end(&beta, CircuitUse::Prefer, None);
        assert_eq!(told(&circuits), [(false, true)], "there is none");
        circuits.links[0].state.lock().circuit = "10.1.0.2:7000".parse().ok();
        for (wish, on_circuit) in
            [(CircuitUse::Never, false), (CircuitUse::Prefer, true), (CircuitUse::Only, true)]
        {
            circuits.note_attempt_end(&beta, wish, Some(&network));
            circuits.note_attempt_end(&beta, wish, None);
            assert_eq!(told(&circuits), [(on_circuit, false), (on_circuit, true)], "{wish}");
        }
        // A full disk is not the path's fault, and another storage is another link.
        circuits.note_attempt_end(
            &beta,
            CircuitUse::Prefer,
            Some(&Fault::new(FaultCode::TargetFull, "full")),
        );
        circuits.note_attempt_end(&"gamma".parse().unwrap(), CircuitUse::Prefer, Some(&network));
        assert_eq!(told(&circuits), []);
    }
}
