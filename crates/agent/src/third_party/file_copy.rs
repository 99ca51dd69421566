//! One file, copied by a server: from its lease to its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_engine::{AttemptTimeline, FetchFile, Success};
use longhaul_model::{Fault, FaultCode, Verification};
use longhaul_storage::Commit;
use longhaul_storage_remote::{FileAccess, Mode, ServerCopy, ServerCopyFault};

use super::mover::{ServerMoverInner, ServerStorage};

/// A file that is complete at the target.
pub(super) struct CopiedFile {
    pub(super) mode: Mode,
    pub(super) success: Success,
    pub(super) times: AttemptTimeline,
}

/// Where a file is copied from.
pub(super) enum FileSource {
    /// A storage of this agent.
    Own(Arc<ServerStorage>),
    /// A storage of another agent, which gives access to the file.
    Peer(FileAccess),
}

/// What a copy is made of.
pub(super) struct FileCopy<'a> {
    pub(super) source: &'a FileSource,
    pub(super) target: &'a ServerStorage,
    pub(super) file: &'a FetchFile,
    pub(super) scitag: Option<u32>,
    /// Bytes that the servers say they have moved.
    pub(super) moved: &'a AtomicU64,
    /// With the time at which the attempt began.
    pub(super) times: AttemptTimeline,
}

impl FileCopy<'_> {
    /// Copies the file under a temporary name, verifies it and gives it its name.
    pub(super) async fn run(self, mover: &ServerMoverInner) -> Result<CopiedFile, ServerCopyFault> {
        let (file, target) = (self.file, self.target);
        let at = target.pfn(&file.lfn)?;
        if !target.server.is_free(&at).await.map_err(ServerCopyFault::of_file)? {
            let fault = Fault::new(FaultCode::NameClash, format!("{at} exists"));
            return Err(ServerCopyFault::of_file(fault));
        }
        let temp = mover.temps.name(file.attempt);
        let copy = ServerCopy { at: &at, temp: &temp, size: file.size, scitag: self.scitag };
        let note_moved = |bytes| self.moved.store(bytes, Ordering::Relaxed);
        let mode = match self.source {
            FileSource::Own(source) => {
                let from = ServerCopy { at: &source.pfn(&file.lfn)?, ..copy };
                target.server.copy_from(&source.server, from, &note_moved).await?
            }
            FileSource::Peer(access) => {
                target.server.pull(access, copy, &note_moved).await?;
                Mode::Pull
            }
        };
        let last_byte = Some((mover.clock)());
        let reads_back = file.verification == Verification::Readback;
        let verified = target.server.verify_temporary(copy, &file.digests, reads_back).await;
        let (digests, verification) = verified.map_err(ServerCopyFault::of_file)?;
        let commit = Commit::new(temp, at, file.size);
        target.server.commit_copy(&commit).await.map_err(ServerCopyFault::of_file)?;
        let times = AttemptTimeline { last_byte, committed: Some((mover.clock)()), ..self.times };
        Ok(CopiedFile { mode, success: Success { digests, verification, already_there: false }, times })
    }
}
