//! The source's side of third-party copies between the storages of two agents: gives the target's agent
//! access to single files of a server, under the permit that lets it read them.

use std::sync::{Arc, Weak};

use longhaul_engine::Responder;
use longhaul_model::{AgentId, Fault, FaultCode, Lfn, StorageName};
use longhaul_security::{PermitVerifier, list_digest};
use longhaul_storage_remote::{FileAccess, ServerCopyFault};

use super::file_calls::{ACCESS_FILES_MAX, AgentAnswer, AgentCall, FileAccessRequest, Refusal};
use super::mover::{ServerMoverInner, ServerStorage};

/// Answers the calls of other agents. Empty once the mover has ended.
pub(super) struct FileAccessServer {
    pub(super) mover: Weak<ServerMoverInner>,
    pub(super) permits: PermitVerifier,
    pub(super) deployment: String,
}

impl Responder for FileAccessServer {
    fn answer(&self, peer: AgentId, request: Vec<u8>) -> Vec<u8> {
        let answer = self.answer_call(peer, &request).unwrap_or_else(AgentAnswer::Refused);
        serde_json::to_vec(&answer).unwrap_or_default()
    }
}

impl FileAccessServer {
    fn answer_call(&self, peer: AgentId, request: &[u8]) -> Result<AgentAnswer, Refusal> {
        let call = serde_json::from_slice(request)
            .map_err(|_| Refusal::of_storage("this agent does not know the call"))?;
        let AgentCall::FileAccess(request) = call;
        let mover = self.mover.upgrade().ok_or_else(|| Refusal::of_storage("this agent stops"))?;
        let wanted = self.judge(&mover, peer, &request).inspect_err(|refusal| {
            tracing::info!(target_agent = %peer, storage = %request.storage, why = refusal.detail,
                "no access to files of a server");
        })?;
        let storage = mover.source_storage(&request.storage)?;
        let given = mover.engine.block_on(open_files(storage, wanted));
        Ok(AgentAnswer::Files(given.into_iter().map(Into::into).collect()))
    }

    /// The wanted files with their sizes, if the permit is for this peer and for its list. As the engine does
    /// before it reads.
    fn judge(
        &self,
        mover: &ServerMoverInner,
        peer: AgentId,
        request: &FileAccessRequest,
    ) -> Result<Vec<(Lfn, u64)>, Refusal> {
        let of_permit = |fault: Fault| Refusal { detail: fault.to_string(), is_of_servers: false };
        let permit = self.permits.verify(&request.permit, (mover.clock)()).map_err(of_permit)?;
        let list = list_digest(request.files.iter().map(|(attempt, lfn, size)| (*attempt, lfn, *size)));
        permit.covers(&self.deployment, mover.agent, peer, &request.storage, &list).map_err(of_permit)?;
        if request.wanted.len() > ACCESS_FILES_MAX {
            let detail = format!("{} files are asked for, {ACCESS_FILES_MAX} at most", request.wanted.len());
            return Err(Refusal::of_storage(detail));
        }
        let file = |place: &u32| request.files.get(usize::try_from(*place).ok()?);
        let found = request.wanted.iter().map(|place| file(place).map(|(_, lfn, size)| (lfn.clone(), *size)));
        let found: Option<Vec<(Lfn, u64)>> = found.collect();
        found.ok_or_else(|| Refusal::of_storage("a file beyond the end of the list is asked for"))
    }
}

impl ServerMoverInner {
    /// A storage whose files its server may give to others.
    fn source_storage(&self, name: &StorageName) -> Result<Arc<ServerStorage>, Refusal> {
        let Some(storage) = self.storages.get(name) else {
            return Err(Refusal::of_storage(format!("{name} is not a storage whose server copies")));
        };
        if self.is_limited() {
            return Err(Refusal::of_storage("a rate is to be kept here, which servers do not know"));
        }
        Ok(storage.clone())
    }
}

/// Access to each of the files, in their order.
async fn open_files(
    storage: Arc<ServerStorage>,
    files: Vec<(Lfn, u64)>,
) -> Vec<Result<FileAccess, ServerCopyFault>> {
    let abnormal = || {
        let fault = Fault::new(FaultCode::Internal, "asking the storage's server ended abnormally");
        Err(ServerCopyFault::of_file(fault))
    };
    let open = |(lfn, size): (Lfn, u64)| {
        let storage = storage.clone();
        tokio::spawn(async move { storage.open_file(&lfn, size).await })
    };
    let opening: Vec<_> = files.into_iter().map(open).collect();
    let mut opened = Vec::with_capacity(opening.len());
    for file in opening {
        opened.push(file.await.unwrap_or_else(|_| abnormal()));
    }
    opened
}

impl ServerStorage {
    async fn open_file(&self, lfn: &Lfn, size: u64) -> Result<FileAccess, ServerCopyFault> {
        self.server.file_access(&self.pfn(lfn)?, size).await
    }
}
