//! The target's side of third-party copies between the storages of two agents: asks the source's agent for
//! access to files, over one stream for each agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_engine::{FetchBatch, FetchFile};
use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_storage_remote::{FileAccess, ServerCopyFault};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::file_calls::{AgentCall, FileAccessRequest, read_answer};
use super::mover::ServerMoverInner;
use crate::inner_mover::InnerMover;
use crate::mover::PeerChannel;
use crate::threads::blocking;

/// Streams for calls to other agents.
#[derive(Default)]
pub(super) struct PeerChannels(Mutex<BTreeMap<AgentId, Arc<dyn PeerChannel>>>);

impl ServerMoverInner {
    /// Access to each of these files of the batch.
    ///
    /// # Errors
    /// The source's agent cannot be asked, or gives none: for this batch, or for all of its files.
    pub(super) async fn ask_access(
        self: &Arc<Self>,
        batch: &FetchBatch,
        files: &[FetchFile],
    ) -> Result<Vec<Result<FileAccess, ServerCopyFault>>, ServerCopyFault> {
        let request = encode_request(batch, files).map_err(ServerCopyFault::of_file)?;
        let (mover, agent, addresses) = (self.clone(), batch.source_agent, batch.addresses.clone());
        let asked = blocking(move || mover.channels.open(&mover.engine, agent, &addresses)?.call(&request));
        let silent = |_| Err(Fault::new(FaultCode::Stalled, format!("agent {agent} does not answer")));
        let asked = timeout(self.access_timeout, asked).await.unwrap_or_else(silent);
        let answer = asked.map_err(|fault| ServerCopyFault {
            // A list that is too long is one of this batch.
            is_of_servers: fault.code != FaultCode::TooLarge,
            fault,
        })?;
        read_answer(&answer, files.len())
    }
}

impl PeerChannels {
    /// The stream to an agent, a new one where there is none or it is closed. Blocks.
    fn open(
        &self,
        engine: &InnerMover,
        agent: AgentId,
        addresses: &[String],
    ) -> Result<Arc<dyn PeerChannel>, Fault> {
        let known = self.0.lock().get(&agent).filter(|channel| channel.is_up()).cloned();
        if let Some(channel) = known {
            return Ok(channel);
        }
        let channel: Arc<dyn PeerChannel> = engine.open_channel(addresses)?.into();
        if channel.peer() != agent {
            let detail = format!("agent {} answers at the addresses of agent {agent}", channel.peer());
            return Err(Fault::new(FaultCode::NotAuthenticated, detail));
        }
        self.0.lock().insert(agent, channel.clone());
        Ok(channel)
    }
}

fn encode_request(batch: &FetchBatch, files: &[FetchFile]) -> Result<Vec<u8>, Fault> {
    let place = |file: &FetchFile| batch.files.iter().position(|listed| listed.attempt == file.attempt);
    let wanted = files.iter().filter_map(|file| u32::try_from(place(file)?).ok()).collect();
    let request = AgentCall::FileAccess(FileAccessRequest {
        storage: batch.source_storage.clone(),
        permit: batch.permit.to_string(),
        files: batch.files.iter().map(|file| (file.attempt, file.lfn.clone(), file.size)).collect(),
        wanted,
    });
    serde_json::to_vec(&request)
        .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))
}
