//! What the agent needs of an engine, as a trait: the real one, a null one, one with hooks or site commands
//! around it, or one that a test plays.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_engine::{
    AttemptOutcome, AttemptTimeline, Channel, Clock, Config, Engine, Event, Export, FetchBatch, FetchFile,
    Path, Snapshot, Success,
};
use longhaul_model::{AgentId, AttemptId, Fault};
use longhaul_security::{Credentials, PermitVerifier};

use crate::command::CircuitCommands;

/// Moves files. See [`Engine`], whose methods these are.
pub(crate) trait Mover: Send + Sync {
    fn data_addresses(&self) -> Vec<SocketAddr>;
    fn fetch(&self, batch: FetchBatch);
    fn cancel(&self, attempts: &[AttemptId]);
    fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>);
    fn set_paths(&self, source: AgentId, paths: Vec<Path>) -> Result<(), Fault>;
    /// Site commands that use the circuit from this source. The engine's own streams are in the snapshot.
    fn commands_on_circuit(&self, source: AgentId) -> CircuitCommands;
    fn renew(&self, credentials: &Credentials) -> Result<(), Fault>;
    /// Exchanges nothing with these peers, whom the service refuses.
    fn refuse_peers(&self, peers: BTreeSet<AgentId>);
    /// Opens a stream for calls to the agent at one of the addresses. Blocks.
    fn open_channel(&self, addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault>;
    fn snapshot(&self) -> Snapshot;
    fn stop(self: Box<Self>);
}

/// A stream for calls to another agent. See [`Channel`], whose methods these are.
pub(crate) trait PeerChannel: Send + Sync {
    fn peer(&self) -> AgentId;
    fn is_up(&self) -> bool;
    fn call(&self, request: &[u8]) -> Result<Vec<u8>, Fault>;
}

impl PeerChannel for Channel {
    fn peer(&self) -> AgentId {
        Channel::peer(self)
    }
    fn is_up(&self) -> bool {
        Channel::is_up(self)
    }
    fn call(&self, request: &[u8]) -> Result<Vec<u8>, Fault> {
        Channel::call(self, request)
    }
}

/// Time in which another agent accepts a stream for calls.
const CHANNEL_TIMEOUT: Duration = Duration::from_secs(5);

/// The running mover, shared by the loops. Whoever holds it last stops it.
pub(crate) type MoverHandle = Arc<Box<dyn Mover>>;

/// Arguments with which a mover is started.
pub(crate) struct MoverStart {
    pub config: Config,
    pub credentials: Credentials,
    pub permits: PermitVerifier,
    pub exports: Vec<Export>,
    pub clock: Clock,
    pub events: Box<dyn Fn(Vec<Event>) + Send + Sync>,
}

/// The end of an attempt that one source served, or none.
pub(crate) fn attempt_outcome(
    file: &FetchFile,
    result: Result<Success, Fault>,
    times: AttemptTimeline,
) -> AttemptOutcome {
    let has_moved = result.as_ref().is_ok_and(|success| !success.already_there);
    AttemptOutcome {
        attempt: file.attempt,
        transfer: file.transfer,
        epoch: file.epoch,
        result,
        bytes_moved: if has_moved { file.size } else { 0 },
        bytes_resent: 0,
        times,
        shares: Vec::new(),
        executor: None,
    }
}

/// Starts the real engine.
pub(crate) fn start_engine(start: MoverStart) -> Result<Box<dyn Mover>, Fault> {
    let MoverStart { config, credentials, permits, exports, clock, events } = start;
    Ok(Box::new(Engine::start(config, &credentials, permits, exports, clock, events)?))
}

impl Mover for Engine {
    fn data_addresses(&self) -> Vec<SocketAddr> {
        Engine::data_addresses(self)
    }
    fn fetch(&self, batch: FetchBatch) {
        Engine::fetch(self, batch);
    }
    fn cancel(&self, attempts: &[AttemptId]) {
        Engine::cancel(self, attempts);
    }
    fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>) {
        Engine::set_limits(self, in_bytes_per_s, out_bytes_per_s);
    }
    fn set_paths(&self, source: AgentId, paths: Vec<Path>) -> Result<(), Fault> {
        Engine::set_paths(self, source, paths)
    }
    fn commands_on_circuit(&self, _source: AgentId) -> CircuitCommands {
        CircuitCommands::default()
    }
    fn renew(&self, credentials: &Credentials) -> Result<(), Fault> {
        Engine::renew_credentials(self, credentials)
    }
    fn refuse_peers(&self, peers: BTreeSet<AgentId>) {
        Engine::refuse_peers(self, peers);
    }
    fn open_channel(&self, addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault> {
        Ok(Box::new(Engine::channel(self, addresses, CHANNEL_TIMEOUT)?))
    }
    fn snapshot(&self) -> Snapshot {
        Engine::snapshot(self)
    }
    fn stop(self: Box<Self>) {
        Engine::stop(*self);
    }
}
