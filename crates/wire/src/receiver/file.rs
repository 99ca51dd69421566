//! State of one wanted file: what of it is missing, requested, being written.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use longhaul_model::limits::CHUNK_BYTES;

use crate::frame::{BatchId, FileNumber};
use crate::identity::SourceIdentity;

use super::origins::{FileSources, OriginNumber};

const CHUNK: u64 = CHUNK_BYTES as u64;

/// A wanted file of the session.
pub(super) struct File {
    pub(super) batch: BatchId,
    pub(super) lane: u16,
    pub(super) priority: u8,
    pub(super) size: u64,
    pub(super) identity: Option<ExpectedIdentity>,
    pub(super) sources: FileSources,
    pub(super) started: bool,
    pub(super) damaged_chunks: u8,
    /// See [`super::NewFile::held_crc32c`].
    pub(super) held_crc32c: Option<Box<[Option<u32>]>>,
    pub(super) body: Body,
}

/// The source file's identity as we know it: from the journal until data of this session confirms it.
#[derive(Clone, Copy)]
pub(super) struct ExpectedIdentity {
    pub(super) identity: SourceIdentity,
    pub(super) confirmed: bool,
}

/// Progress of a file, by its kind.
pub(super) enum Body {
    Small(SmallState),
    Large(LargeState),
}

/// Progress of a file that is fetched as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SmallState {
    Wanted,
    /// In this many packs.
    Requested(u8),
    Writing,
}

/// Progress of a file that is fetched in chunks.
#[derive(Default)]
pub(super) struct LargeState {
    /// Not requested: offset and length, at chunk boundaries.
    pub(super) missing: BTreeMap<u64, u64>,
    /// Requested chunks, with the number of requests for each.
    pub(super) requested: BTreeMap<u64, u8>,
    /// Chunks that are arriving or being written.
    pub(super) writing: BTreeSet<u64>,
    /// The target only appends: a chunk waits for those before it.
    pub(super) in_order: bool,
    /// Chunks of an in-order file that may have to wait, each with its credit for the reorder buffer.
    pub(super) out_of_order: BTreeSet<u64>,
}

impl File {
    pub(super) fn queue_key(&self, number: FileNumber) -> (Reverse<u8>, FileNumber) {
        (Reverse(self.priority), number)
    }

    /// Offset of the next chunk that may be requested from this source.
    pub(super) fn next_requestable(&self, origin: OriginNumber, alive: u16) -> Option<u64> {
        match &self.body {
            Body::Small(_) => self.sources.may_request(0, origin, alive).then_some(0),
            Body::Large(large) => {
                let mut chunks = large.missing.iter().flat_map(|(&offset, &len)| chunks_of(offset, len));
                chunks.find(|&offset| self.sources.may_request(offset, origin, alive))
            }
        }
    }

    /// CRC-32C of the chunk at this offset, if it is held.
    pub(super) fn held_at(&self, offset: u64) -> Option<u32> {
        let place = usize::try_from(offset / CHUNK).ok()?;
        self.held_crc32c.as_ref()?.get(place).copied().flatten()
    }

    pub(super) fn forget_held(&mut self, offset: u64) {
        if let Some(held) = &mut self.held_crc32c
            && let Some(chunk) = usize::try_from(offset / CHUNK).ok().and_then(|place| held.get_mut(place))
        {
            *chunk = None;
        }
    }

    /// How many consecutive chunks from there may be requested, up to `most`.
    pub(super) fn contiguous_run(&self, from: u64, most: u64, origin: OriginNumber, alive: u16) -> u64 {
        let chunks = chunks_of(from, most * CHUNK).take(most as usize);
        chunks.take_while(|&offset| self.sources.may_request(offset, origin, alive)).count() as u64
    }
}

/// Length of the chunk at `offset` of a file of `size` bytes.
pub(super) fn chunk_len(offset: u64, size: u64) -> u64 {
    (size - offset).min(CHUNK)
}

impl Body {
    /// Returns whether this chunk completes the file.
    pub(super) fn chunk_written(&mut self, offset: u64) -> bool {
        match self {
            Body::Small(state) => *state == SmallState::Writing,
            Body::Large(large) => {
                large.out_of_order.remove(&offset);
                large.writing.remove(&offset)
                    && large.writing.is_empty()
                    && large.requested.is_empty()
                    && large.missing.is_empty()
            }
        }
    }

    /// A chunk that was arriving or being written has to be requested again.
    pub(super) fn requeue_chunk(&mut self, offset: u64, size: u64) {
        match self {
            Body::Small(state) => {
                if *state == SmallState::Writing {
                    *state = SmallState::Wanted;
                }
            }
            Body::Large(large) => {
                if large.writing.remove(&offset) {
                    large.out_of_order.remove(&offset);
                    large.put_back(offset, chunk_len(offset, size));
                }
            }
        }
    }

    /// A request for this chunk (or small file) will not be answered.
    pub(super) fn request_lost(&mut self, offset: u64, size: u64) {
        match self {
            Body::Small(state) => match *state {
                SmallState::Requested(1) => *state = SmallState::Wanted,
                SmallState::Requested(copies) => *state = SmallState::Requested(copies - 1),
                _ => {}
            },
            Body::Large(large) => {
                if let Some(copies) = large.requested.get_mut(&offset) {
                    *copies -= 1;
                    if *copies == 0 {
                        large.requested.remove(&offset);
                        large.out_of_order.remove(&offset);
                        large.put_back(offset, chunk_len(offset, size));
                    }
                }
            }
        }
    }

    /// Data for this chunk (or small file) begins. Returns whether it is wanted.
    pub(super) fn begin_arrival(&mut self, offset: u64) -> bool {
        match self {
            Body::Small(state) => {
                let wanted = matches!(state, SmallState::Requested(_));
                if wanted {
                    *state = SmallState::Writing;
                }
                wanted
            }
            Body::Large(large) => large.requested.remove(&offset).is_some() && large.writing.insert(offset),
        }
    }
}

impl LargeState {
    pub(super) fn with_missing(parts: &[(u64, u64)]) -> Self {
        let mut large = LargeState::default();
        parts.iter().for_each(|&(offset, len)| large.put_back(offset, len));
        large
    }

    /// How many chunks may be requested from there on with this many reorder credits. The head of line (the
    /// first unwritten chunk) needs no credit, since it waits for nobody: so an in-order file always makes
    /// progress.
    pub(super) fn requestable(&self, from: u64, places: usize) -> usize {
        if self.in_order { places + usize::from(self.is_head_of_line(from)) } else { usize::MAX }
    }

    /// Whether this is the head of line, and not requested yet.
    fn is_head_of_line(&self, offset: u64) -> bool {
        self.head_of_line_is_missing()
            && self.missing.first_key_value().is_some_and(|(&first, _)| first == offset)
    }

    /// Whether the head of line, the first unwritten chunk, has not been requested.
    fn head_of_line_is_missing(&self) -> bool {
        let Some((first, _)) = self.missing.first_key_value() else { return false };
        self.requested.first_key_value().is_none_or(|(asked, _)| first < asked)
            && self.writing.first().is_none_or(|writing| first < writing)
    }

    /// Marks everything missing that is not in flight.
    pub(super) fn restart(&mut self, size: u64) {
        self.missing.clear();
        let mut at = 0;
        while at < size {
            let len = chunk_len(at, size);
            if !self.requested.contains_key(&at) && !self.writing.contains(&at) {
                self.put_back(at, len);
            }
            at += len;
        }
    }

    /// Merges neighbours, so that extents stay long.
    pub(super) fn put_back(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset + len);
        if let Some((&left, &left_len)) = self.missing.range(..offset).next_back()
            && left + left_len == offset
        {
            self.missing.remove(&left);
            start = left;
        }
        if let Some(right_len) = self.missing.remove(&end) {
            end += right_len;
        }
        self.missing.insert(start, end - start);
    }

    /// Takes at most `chunks` consecutive missing chunks from there on, and marks them as requested.
    pub(super) fn take(&mut self, from: u64, chunks: u64) -> Option<(u64, u64)> {
        let is_next = self.is_head_of_line(from);
        let (&start, &len) = self.missing.range(..=from).next_back()?;
        let end = start + len;
        if end <= from {
            return None;
        }
        self.missing.remove(&start);
        if start < from {
            self.missing.insert(start, from - start);
        }
        let taken = (end - from).min(chunks * CHUNK);
        if from + taken < end {
            self.missing.insert(from + taken, end - from - taken);
        }
        for chunk in chunks_of(from, taken) {
            self.requested.insert(chunk, 1);
            if self.in_order && !(is_next && chunk == from) {
                self.out_of_order.insert(chunk);
            }
        }
        Some((from, taken))
    }
}

/// Offsets of the chunks of an extent.
pub(super) fn chunks_of(offset: u64, len: u64) -> impl Iterator<Item = u64> {
    (offset..offset + len).step_by(CHUNK as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_cut_and_joined_at_chunk_borders() {
        let size = 5 * CHUNK + 10;
        let mut large = LargeState::with_missing(&[(0, size)]);
        assert_eq!(large.take(0, 2), Some((0, 2 * CHUNK)));
        assert_eq!(large.take(2 * CHUNK, 9), Some((2 * CHUNK, 3 * CHUNK + 10)));
        assert_eq!(large.take(6 * CHUNK, 1), None);
        let mut body = Body::Large(large);
        body.request_lost(5 * CHUNK, size);
        body.request_lost(4 * CHUNK, size);
        let Body::Large(large) = &body else { unreachable!() };
        assert_eq!(large.missing.iter().collect::<Vec<_>>(), vec![(&(4 * CHUNK), &(CHUNK + 10))]);
        assert!(body.begin_arrival(0) && !body.begin_arrival(0), "the second copy is discarded");
        assert!(!body.chunk_written(0), "other chunks are missing");
    }

    #[test]
    fn in_order_only_the_head_of_line_needs_no_reorder_credit() {
        let size = 9 * CHUNK;
        let mut large = LargeState { in_order: true, ..LargeState::with_missing(&[(0, size)]) };
        assert_eq!(large.requestable(0, 0), 1);
        assert_eq!(large.take(0, 3), Some((0, 3 * CHUNK)));
        assert_eq!(
            (large.out_of_order.len(), large.requestable(3 * CHUNK, 0), large.requestable(3 * CHUNK, 2)),
            (2, 0, 2)
        );
        let mut body = Body::Large(large);
        assert!(body.begin_arrival(CHUNK));
        body.request_lost(0, size);
        let Body::Large(large) = &mut body else { unreachable!() };
        assert_eq!(
            (large.out_of_order.len(), large.requestable(0, 0), large.requestable(3 * CHUNK, 0)),
            (2, 1, 0),
            "the head of line was lost, and again needs no credit"
        );
        assert_eq!(large.take(0, 1), Some((0, CHUNK)));
        assert!(body.begin_arrival(0) && !body.chunk_written(0) && !body.chunk_written(CHUNK));
        body.request_lost(2 * CHUNK, size);
        let Body::Large(large) = &body else { unreachable!() };
        assert_eq!(
            (large.out_of_order.len(), large.requestable(2 * CHUNK, 0)),
            (0, 1),
            "every credit is returned"
        );
    }

    #[test]
    fn a_restart_keeps_requested_chunks() {
        let size = 3 * CHUNK;
        let mut large = LargeState::with_missing(&[(2 * CHUNK, CHUNK)]);
        large.take(2 * CHUNK, 1);
        large.restart(size);
        assert_eq!(large.missing.iter().collect::<Vec<_>>(), vec![(&0, &(2 * CHUNK))]);
    }
}
