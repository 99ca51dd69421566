//! Moves the engine's streams from one peer onto its circuit and back.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use longhaul_api::agent::SourcePeer;
use longhaul_circuits::Note;
use longhaul_engine::{Path, SessionSnapshot};
use longhaul_gateways::circuits::{CircuitPath, StreamPaths};
use longhaul_model::{AgentId, CircuitUse};

use super::{Circuits, Link};
use crate::clock::ServiceClock;
use crate::mover::{Mover, MoverHandle};

pub(super) struct AgentStreams {
    /// Weak: the keeper is owned by the circuits and must not keep them or the engine alive.
    engine: Weak<Box<dyn Mover>>,
    circuits: Weak<Circuits>,
    clock: ServiceClock,
    link_index: usize,
    circuit: Option<CircuitPath>,
    /// The peer for which paths are set, with its plain addresses as spares.
    configured_peer: Option<SourcePeer>,
}

impl AgentStreams {
    pub(super) fn new(
        engine: &MoverHandle,
        circuits: &Arc<Circuits>,
        clock: &ServiceClock,
        place: usize,
    ) -> Self {
        AgentStreams {
            engine: Arc::downgrade(engine),
            circuits: Arc::downgrade(circuits),
            clock: clock.clone(),
            link_index: place,
            circuit: None,
            configured_peer: None,
        }
    }

    fn link<T>(&self, work: impl FnOnce(&MoverHandle, &Link) -> T) -> Option<T> {
        let (engine, circuits) = (self.engine.upgrade()?, self.circuits.upgrade()?);
        circuits.links.get(self.link_index).map(|link| work(&engine, link))
    }

    fn peer(&self) -> Option<SourcePeer> {
        self.link(|_, link| link.state.lock().peer.clone()).flatten()
    }

    fn set_paths(&self, agent: AgentId, paths: Vec<Path>) {
        if let Some(Err(fault)) = self.link(|engine, _| engine.set_paths(agent, paths)) {
            tracing::error!(fault = %fault.chain(), "the paths cannot be set");
        }
    }

    /// Sets the paths for whoever serves the storage now: it may have moved to another agent, or that agent
    /// to other addresses.
    fn update_paths(&mut self) {
        let peer = self.peer().filter(|_| self.circuit.is_some());
        if peer == self.configured_peer {
            return;
        }
        if let Some(before) = self.configured_peer.take()
            && peer.as_ref().is_none_or(|peer| peer.agent != before.agent)
        {
            self.set_paths(before.agent, Vec::new());
        }
        if let (Some(peer), Some(way)) = (peer, self.circuit) {
            let paths = Path::with_spares(way.address, way.local, way.bytes_per_s, &peer.addresses);
            self.set_paths(peer.agent, paths);
            self.configured_peer = Some(peer);
        }
    }
}

impl StreamPaths for AgentStreams {
    fn plain(&self) -> Vec<String> {
        self.peer().map(|peer| peer.addresses).unwrap_or_default()
    }

    fn set(&mut self, circuit: Option<CircuitPath>) {
        if circuit.is_some() && circuit != self.circuit {
            // Another circuit: the paths set are those of the one before.
            self.configured_peer = None;
        }
        self.circuit = circuit;
        self.link(|_, link| link.state.lock().circuit = circuit.map(|way| way.address));
        self.update_paths();
    }

    fn in_use(&mut self) -> Vec<SocketAddr> {
        self.update_paths();
        let Some(peer) = self.peer() else { return Vec::new() };
        let sessions = self.link(|engine, _| engine.snapshot().sessions).unwrap_or_default();
        let goes = |session: &SessionSnapshot| session.circuits != CircuitUse::Never;
        let of_peer = sessions.into_iter().filter(|session| session.source == peer.agent && goes(session));
        of_peer.flat_map(|session| session.addresses).collect()
    }

    fn others(&self) -> usize {
        self.link(|engine, link| {
            let state = link.state.lock();
            let of_peer = state.peer.as_ref().map(|peer| {
                let commands = engine.commands_on_circuit(peer.agent);
                // Bytes of a command that has just ended are counted while there is a circuit to count them
                // for.
                let untold =
                    commands.bytes > 0 && state.counted_commands != Some((peer.agent, commands.bytes));
                commands.running + usize::from(untold)
            });
            state.copies as usize + of_peer.unwrap_or_default()
        })
        .unwrap_or_default()
    }

    fn report(&mut self, note: &Note) {
        self.link(|_, link| {
            tracing::info!(from = %link.config.from, %note, "circuit");
            link.record.lock().note(note, self.clock.now());
        });
    }
}
