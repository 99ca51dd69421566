//! The engine's handle.

use std::net::SocketAddr;

use longhaul_model::{AttemptId, Fault};
use longhaul_security::{Credentials, PermitVerifier};

use crate::interface::{Clock, Config, Event, Export, FetchBatch, Snapshot};

/// Serves exported storages to other agents and fetches files from them.
pub struct Engine {}

impl Engine {
    /// Opens the journals, removes temporary files nobody claims, binds the ports and starts the threads.
    /// `events` is called from a thread of the engine's, with groups of events, and may block.
    pub fn start(
        _config: Config,
        _credentials: &Credentials,
        _permits: PermitVerifier,
        _exports: Vec<Export>,
        _clock: Clock,
        _events: impl Fn(Vec<Event>) + Send + Sync + 'static,
    ) -> Result<Engine, Fault> {
        todo!()
    }

    /// Where this engine listens, with the ports it was given.
    pub fn data_addresses(&self) -> Vec<SocketAddr> {
        todo!()
    }

    /// Takes files to fetch. Never blocks.
    pub fn fetch(&self, _batch: FetchBatch) {
        todo!()
    }

    /// Drops attempts that wait and stops those that run; no event follows for them.
    pub fn cancel(&self, _attempts: &[AttemptId]) {
        todo!()
    }

    /// Payload bytes per second in and out; none is no limit.
    pub fn set_limits(&self, _in_bytes_per_s: Option<u64>, _out_bytes_per_s: Option<u64>) {
        todo!()
    }

    /// New streams use these credentials; old ones live on.
    pub fn renew(&self, _credentials: &Credentials) -> Result<(), Fault> {
        todo!()
    }

    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }

    /// Stops all threads, and leaves what has arrived for the next start. Unfinished attempts get no event.
    pub fn stop(self) {
        todo!()
    }
}
