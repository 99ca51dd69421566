//! Dealing: which stream is asked for what next.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Fault, FaultCode, Timestamp};

use super::file::{Body, Small, chunks_of};
use super::streams::{Request, State, Stream, What};
use super::{Announced, Budget, Output, Receiver, StreamNumber};
use crate::frame::{BatchId, FileNumber, Frame, Manifest, RequestId};
use crate::limits::{
    LARGE_FILES_AT_ONCE, MANIFEST_PART_FILES, PACK_FILES_MAX, SESSION_FILES_MAX, STREAM_REQUESTS_MAX,
};

/// Chunks of one request. Fewer cost more frames, more leave a dying stream with more to hand over.
const EXTENT_CHUNKS: usize = 4;
/// Files looked at for one that may be asked for on a stream (its manifest may be under way on another).
const LOOKED_AT_MAX: usize = 64;
/// Files looked at that do not fit into the rest of a pack.
const MISFITS_MAX: usize = 8;

impl Receiver {
    /// Asks for as much as the budget allows. Returns the number of buffers that it took.
    pub fn deal(&mut self, mut budget: Budget, wall: Timestamp, now: Duration) -> usize {
        let given = budget.buffers;
        let up = self.streams_up();
        if up == 0 {
            return 0;
        }
        let depth = (budget.window / up).max(1);
        let mut resting: BTreeSet<usize> = BTreeSet::new();
        while budget.buffers > 0 && budget.bytes > 0 {
            let Some(place) = self.idlest(depth, &resting) else { break };
            let stream = StreamNumber(place as u32);
            let room = budget.buffers.min(depth - self.streams[place].slots());
            if !self.ask(stream, room, &mut budget, wall, now) && !self.help_out(stream, &mut budget, now) {
                resting.insert(place);
            }
        }
        given - budget.buffers
    }

    /// The stream with the fewest open slots that may take more.
    fn idlest(&self, depth: usize, resting: &BTreeSet<usize>) -> Option<usize> {
        let usable = |stream: &Stream| {
            stream.up().is_some_and(|up| up.slots < depth && up.requests.len() < STREAM_REQUESTS_MAX)
        };
        self.used()
            .filter(|place| !resting.contains(place) && usable(&self.streams[*place]))
            .min_by_key(|&place| self.streams[place].slots())
    }

    fn ask(
        &mut self,
        stream: StreamNumber,
        room: usize,
        budget: &mut Budget,
        wall: Timestamp,
        now: Duration,
    ) -> bool {
        self.turn = self.turn.wrapping_add(1);
        let small = self.small.first().map(|place| place.0);
        let large = self.large.first().map(|place| place.0);
        // `Reverse`: the smaller one has the higher priority. Equals take turns.
        let small_first = match (small, large) {
            (Some(small), Some(large)) => small < large || (small == large && self.turn.is_multiple_of(2)),
            (small, _) => small.is_some(),
        };
        [small_first, !small_first].into_iter().any(|small| {
            if small {
                self.ask_pack(stream, budget, wall, now)
            } else {
                self.ask_extent(stream, room, budget, wall, now)
            }
        })
    }

    fn ask_pack(
        &mut self,
        stream: StreamNumber,
        budget: &mut Budget,
        wall: Timestamp,
        now: Duration,
    ) -> bool {
        let Some(first) = self.first_usable(stream, true, wall, now) else { return false };
        let (files, bytes) = self.choose_pack(first, stream, wall);
        for &number in &files {
            if let Some(file) = self.files.get_mut(&number) {
                file.body = Body::Small(Small::Asked(1));
                let place = file.place(number);
                self.small.remove(&place);
                self.start(number);
            }
        }
        self.send_request(stream, What::Pack { files }, false, now);
        budget.buffers -= 1;
        // A file without bytes costs a little as well: nothing passes for ever under a limit.
        budget.bytes = budget.bytes.saturating_sub(bytes.max(1));
        self.dealt_bytes += bytes.max(1);
        true
    }

    /// `first` and what follows it in the queue, as long as it fits into one chunk.
    fn choose_pack(
        &self,
        first: FileNumber,
        stream: StreamNumber,
        wall: Timestamp,
    ) -> (Vec<FileNumber>, u64) {
        let Some(leader) = self.files.get(&first) else { return (vec![first], 0) };
        let (mut files, mut bytes, mut misfits) = (vec![first], leader.size, 0);
        for &(_, number) in self.small.range((Reverse(leader.priority), first)..).skip(1) {
            if files.len() == PACK_FILES_MAX || misfits == MISFITS_MAX {
                break;
            }
            let fits = self.files.get(&number).filter(|file| {
                file.lane == leader.lane
                    && bytes + file.size <= u64::from(CHUNK_BYTES)
                    && self.batches.get(&file.batch).is_some_and(|batch| {
                        (batch.announced == Announced::Answered || batch.announced == Announced::On(stream))
                            && wall <= batch.start_by
                    })
            });
            match fits {
                Some(file) => {
                    files.push(number);
                    bytes += file.size;
                }
                None => misfits += 1,
            }
        }
        (files, bytes)
    }

    fn ask_extent(
        &mut self,
        stream: StreamNumber,
        room: usize,
        budget: &mut Budget,
        wall: Timestamp,
        now: Duration,
    ) -> bool {
        let Some(number) = self.first_usable(stream, false, wall, now) else { return false };
        let Some(file) = self.files.get_mut(&number) else { return false };
        let place = file.place(number);
        let Body::Large(large) = &mut file.body else { return false };
        // Under a limit what goes beyond it is one chunk, not a run of them.
        let allowed = usize::try_from(budget.bytes / u64::from(CHUNK_BYTES)).unwrap_or(usize::MAX).max(1);
        let Some((offset, len)) = large.take(room.min(EXTENT_CHUNKS).min(allowed) as u64) else {
            return false;
        };
        if large.missing.is_empty() {
            self.large.remove(&place);
        }
        self.start(number);
        let left: BTreeSet<u64> = chunks_of(offset, len).collect();
        budget.buffers -= left.len();
        budget.bytes = budget.bytes.saturating_sub(len);
        self.dealt_bytes += len;
        self.send_request(stream, What::Extent { file: number, left }, false, now);
        true
    }

    /// The next file of a kind that may be asked for on this stream; several large ones take turns.
    fn first_usable(
        &mut self,
        stream: StreamNumber,
        small: bool,
        wall: Timestamp,
        now: Duration,
    ) -> Option<FileNumber> {
        let queue = if small { &self.small } else { &self.large };
        let mut candidates: Vec<(Reverse<u8>, FileNumber)> =
            queue.iter().copied().take(LOOKED_AT_MAX).collect();
        if !small && let Some(&(top, _)) = candidates.first() {
            let active = candidates.iter().take(LARGE_FILES_AT_ONCE).filter(|place| place.0 == top).count();
            candidates[..active].rotate_left(self.turn / 2 % active);
        }
        for (_, number) in candidates {
            let Some(file) = self.files.get(&number) else { continue };
            let (batch, started) = (file.batch, file.started);
            if !started && self.batches.get(&batch).is_some_and(|batch| wall > batch.start_by) {
                self.fail(
                    number,
                    Fault::new(FaultCode::LeaseExpired, "it waited too long at the target"),
                    now,
                );
            } else if self.announce(batch, stream) {
                return Some(number);
            }
        }
        None
    }

    /// Whether the source knows the batch when a request on this stream reaches it; sends the manifest if need be.
    fn announce(&mut self, id: BatchId, stream: StreamNumber) -> bool {
        let Some(batch) = self.batches.get_mut(&id) else { return false };
        match batch.announced {
            Announced::Answered => return true,
            Announced::On(other) => return other == stream,
            Announced::No => {}
        }
        if self.announced_files > 0 && self.announced_files + batch.files.len() > SESSION_FILES_MAX {
            return false;
        }
        batch.announced = Announced::On(stream);
        batch.known = true;
        self.announced_files += batch.files.len();
        let parts = batch.files.chunks(MANIFEST_PART_FILES);
        let count = parts.len();
        for (place, files) in parts.enumerate() {
            let frame = Frame::Manifest(Manifest {
                batch: id,
                first: FileNumber(batch.first.0 + (place * MANIFEST_PART_FILES) as u32),
                permit: (place == 0).then(|| batch.permit.clone()),
                storage: batch.storage.clone(),
                last_part: place + 1 == count,
                files: files.to_vec(),
            });
            self.outputs.push_back(Output::Send { stream, frame });
        }
        true
    }

    fn start(&mut self, number: FileNumber) {
        if let Some(file) = self.files.get_mut(&number)
            && !file.started
        {
            file.started = true;
            self.outputs.push_back(Output::Started { file: number });
        }
    }

    pub(super) fn send_request(&mut self, stream: StreamNumber, what: What, copy: bool, now: Duration) {
        if self.slots() == 0 {
            self.progress_at = now;
        }
        let size = |file: &FileNumber| self.files.get(file).map_or(0, |file| file.size);
        let extent_end = match &what {
            What::Extent { file, left } => {
                let last = left.last().copied().unwrap_or(0);
                (last + u64::from(CHUNK_BYTES)).min(size(file))
            }
            What::Pack { .. } => 0,
        };
        let Some(State::Up(up)) = self.state(stream) else { return };
        let request = RequestId(up.next_request);
        up.next_request += 1;
        up.asked(what.slots(), now);
        let frame = match &what {
            What::Extent { file, left } => {
                let offset = left.first().copied().unwrap_or(0);
                Frame::Request { request, file: *file, offset, len: extent_end - offset }
            }
            What::Pack { files } => Frame::RequestPack { request, files: files.clone() },
        };
        up.requests.insert(request, Request { what, copy });
        self.outputs.push_back(Output::Send { stream, frame });
    }
}
