//! Incoming payload: the buffer being filled, and its meaning.

use std::sync::Arc;

use longhaul_wire::{ChunkHead, OriginNumber, PackedFile};

use super::job::Job;
use crate::buffer_pool::Buffer;

/// A payload that is arriving.
pub(crate) struct Arrival {
    pub(super) buffer: Buffer,
    pub(super) filled: usize,
    pub(super) content: ArrivalContent,
    /// The source that sends it.
    pub(super) from: OriginNumber,
}

pub(super) enum ArrivalContent {
    Chunk {
        job: Arc<Job>,
        head: ChunkHead,
    },
    /// A chunk that did not have to be sent: it is read from the copy that is held.
    Held {
        job: Arc<Job>,
        head: ChunkHead,
    },
    Pack {
        files: Vec<(Arc<Job>, PackedFile)>,
    },
}

impl Arrival {
    pub(crate) fn fill(&mut self, part: &[u8]) {
        let end = self.filled + part.len();
        assert!(end <= self.buffer.len(), "a payload is at most one chunk");
        self.buffer[self.filled..end].copy_from_slice(part);
        self.filled = end;
    }

    /// Where the next bytes go, with some slack that may be overwritten.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.buffer.space(self.filled)
    }

    /// Accounts for bytes that were put into the space.
    pub(crate) fn advance(&mut self, len: usize) {
        self.filled += len;
        assert!(self.filled <= self.buffer.len(), "a payload is at most one chunk");
    }

    /// Whether no job wants it any more.
    pub(crate) fn is_unwanted(&self) -> bool {
        match &self.content {
            ArrivalContent::Chunk { job, .. } | ArrivalContent::Held { job, .. } => job.is_over(),
            ArrivalContent::Pack { files } => files.iter().all(|(job, _)| job.is_over()),
        }
    }

    /// Bytes that have arrived for each job.
    pub(super) fn bytes_by_job(&self) -> Vec<(Arc<Job>, u64)> {
        match &self.content {
            ArrivalContent::Chunk { job, .. } | ArrivalContent::Held { job, .. } => {
                vec![(job.clone(), self.filled as u64)]
            }
            ArrivalContent::Pack { files } => files
                .iter()
                .map(|(job, packed)| {
                    let arrived = self.filled.saturating_sub(packed.at as usize).min(packed.size as usize);
                    (job.clone(), arrived as u64)
                })
                .collect(),
        }
    }
}
