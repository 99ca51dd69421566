//! A circuit for one copy (the first of its three levels): requested when the copy begins, used once both
//! ends answer over it, released at the end.

use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::rand;
use longhaul_circuits::{Event, Note};
use longhaul_engine::Path;
use longhaul_gateways::circuits::{
    CircuitConfig, CircuitContext, CircuitPath, ProviderDriver, StreamPaths, Streams,
};
use longhaul_model::{AgentId, Fault, FaultCode};

use crate::clock;
use crate::progress::CircuitLog;
use crate::site::{Site, Source};
use crate::state::StateDir;

const CIRCUIT_STATE_FILE: &str = "circuit.json";

/// Requests a circuit; dropping the keeper releases it. `story` records what is done and why.
pub(crate) fn request_circuit(
    config: &CircuitConfig,
    site: &Arc<Site>,
    source: &Source,
    state: &StateDir,
    story: Arc<CircuitLog>,
) -> Result<ProviderDriver, Fault> {
    let mut seed = [0; 8];
    rand::fill(&mut seed)
        .map_err(|_| Fault::new(FaultCode::Internal, "the system's random number generator failed"))?;
    let place = CircuitContext {
        link: format!("{}→{}", source.agent, site.agent()),
        ledger_path: state.path().join(CIRCUIT_STATE_FILE),
        seed: u64::from_le_bytes(seed),
    };
    let ways =
        SessionPaths { site: site.clone(), source: source.agent, plain: source.addresses.clone(), story };
    let keeper = ProviderDriver::start(
        place,
        config,
        Arc::new(clock::now),
        Box::new(Streams::new(ways, config.paced)),
    )?;
    keeper.send_event(Event::SetWanted(true));
    Ok(keeper)
}

/// The network paths of one copy's session: the plain one, and the circuit while it is up.
struct SessionPaths {
    site: Arc<Site>,
    source: AgentId,
    /// Addresses of the source without a circuit.
    plain: Vec<String>,
    story: Arc<CircuitLog>,
}

impl StreamPaths for SessionPaths {
    fn plain(&self) -> Vec<String> {
        self.plain.clone()
    }

    fn set(&mut self, circuit: Option<CircuitPath>) {
        let paths =
            circuit.map(|way| Path::with_spares(way.address, way.local, way.bytes_per_s, &self.plain));
        if let Err(fault) = self.site.engine().set_paths(self.source, paths.unwrap_or_default()) {
            tracing::error!(fault = %fault.chain(), "cannot set the session's paths");
        }
    }

    fn in_use(&mut self) -> Vec<SocketAddr> {
        let sessions = self.site.engine().snapshot().sessions;
        let of_source = sessions.into_iter().filter(|session| session.source == self.source);
        of_source.flat_map(|session| session.addresses).collect()
    }

    fn report(&mut self, note: &Note) {
        tracing::info!(%note, "circuit");
        self.story.record(note.to_string());
    }
}
