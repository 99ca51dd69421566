//! Request scheduling: which stream requests what next (credit-based flow control, longest work to the
//! fastest stream).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Fault, FaultCode, Timestamp};

use super::file::{Body, SmallState, chunks_of};
use super::streams::{Request, RequestContent, State};
use super::{Announcement, BatchManifest, Budget, Output, Receiver, StreamNumber};
use crate::frame::{BatchId, FileNumber, Frame, Manifest, RequestId};
use crate::limits::{
    LARGE_FILES_ACTIVE_MAX, MANIFEST_PART_FILES_MAX, MANIFEST_REPEAT_FILES_MAX, PACK_FILES_MAX,
    SESSION_FILES_MAX, STREAM_REQUESTS_MAX,
};
use crate::version::CONDITIONAL_REQUESTS_SINCE;

/// Chunks of one request. Fewer cost more frames, more leave a dying stream with more to hand over.
const EXTENT_CHUNKS: usize = 4;
/// Files skipped in search of one that may be requested: batches whose manifests are in flight on other
/// streams, and in-order files that wait for their next chunk.
const SKIPPED_FILES_MAX: usize = 64;
/// Files tried that do not fit into the rest of a pack.
const PACK_MISFITS_MAX: usize = 8;

/// Lower bound of a stream's weight, as a share of the mean rate.
const STREAM_WEIGHT_MIN: f64 = 0.25;

/// The slots that one stream may use.
struct StreamShare {
    index: usize,
    /// Its rate, as far as known.
    weight: f64,
    /// Most slots that it may use.
    slots_max: usize,
}

impl Receiver {
    /// Requests as much as the budget allows, of large files but those whose disk is behind: they are passed
    /// over, so that one slow disk of several does not hold the buffers of all. Returns the number of buffers
    /// that it took.
    pub fn request_chunks(
        &mut self,
        mut budget: Budget,
        wall: Timestamp,
        now: Duration,
        is_behind: &dyn Fn(FileNumber) -> bool,
    ) -> usize {
        let given = budget.buffers;
        let shares = self.stream_shares(budget.window, now);
        let mut resting: BTreeSet<usize> = BTreeSet::new();
        while budget.buffers > 0 && budget.bytes > 0 {
            let Some((place, depth)) = self.earliest_to_finish(&shares, &resting) else { break };
            let stream = StreamNumber(place as u32);
            let room = budget.buffers.min(depth - self.streams[place].slots());
            if !self.request_next(stream, room, &mut budget, (wall, now), is_behind)
                && !self.request_duplicate(stream, &mut budget, now)
            {
                resting.insert(place);
            }
        }
        given - budget.buffers
    }

    /// Divides the window among the streams in proportion to their rates, so that all finish at the same
    /// time.
    fn stream_shares(&mut self, window: usize, now: Duration) -> Vec<StreamShare> {
        let (begins, coming) = (self.is_starting(now), self.connecting_soon(now));
        let mut rates: Vec<(usize, f64)> = self.used_streams().map(|place| (place, 0.0)).collect();
        rates.retain_mut(|(place, rate)| {
            let State::Up(up) = &mut self.streams[*place].state else { return false };
            *rate = up.meter.rate(now);
            true
        });
        let mean = rates.iter().map(|(_, rate)| rate).sum::<f64>() / rates.len().max(1) as f64;
        // A stream that was slow for a moment, or is new, needs work to show that it can do more.
        let weight = |rate: f64| if mean > 0.0 { rate.max(mean * STREAM_WEIGHT_MIN) } else { 1.0 };
        // The first stream that is up must not be given what all of them could carry in parallel.
        let all = rates.iter().map(|(_, rate)| weight(*rate)).sum::<f64>() + coming as f64 * weight(mean);
        let depth = |weight: f64| if begins { 1 } else { (window as f64 * weight / all).round() as usize };
        let share = |(place, rate): (usize, f64)| {
            let weight = weight(rate);
            StreamShare { index: place, weight, slots_max: depth(weight).max(1) }
        };
        let shares: Vec<StreamShare> = rates.into_iter().map(share).collect();
        for share in &shares {
            if let State::Up(up) = &mut self.streams[share.index].state {
                up.slots_max = share.slots_max;
            }
        }
        shares
    }

    /// The stream that would finish first with one more slot, among those that may take one.
    fn earliest_to_finish(
        &self,
        shares: &[StreamShare],
        resting: &BTreeSet<usize>,
    ) -> Option<(usize, usize)> {
        let usable = |share: &&StreamShare| {
            !resting.contains(&share.index)
                && self.streams[share.index]
                    .up()
                    .is_some_and(|up| up.slots < share.slots_max && up.requests.len() < STREAM_REQUESTS_MAX)
        };
        let done = |share: &StreamShare| (self.streams[share.index].slots() + 1) as f64 / share.weight;
        let first = shares.iter().filter(usable).min_by(|left, right| done(left).total_cmp(&done(right)))?;
        Some((first.index, first.slots_max))
    }

    fn request_next(
        &mut self,
        stream: StreamNumber,
        room: usize,
        budget: &mut Budget,
        (wall, now): (Timestamp, Duration),
        is_behind: &dyn Fn(FileNumber) -> bool,
    ) -> bool {
        self.turn = self.turn.wrapping_add(1);
        let small = self.small.first().map(|place| place.0);
        let large = self.large.first().map(|place| place.0);
        // `Reverse`: the smaller key has the higher priority. Equals take turns.
        let small_first = match (small, large) {
            (Some(small), Some(large)) => small < large || (small == large && self.turn.is_multiple_of(2)),
            (small, _) => small.is_some(),
        };
        [small_first, !small_first].into_iter().any(|small| {
            if small {
                self.request_pack(stream, budget, wall, now)
            } else {
                self.request_extent(stream, room, budget, (wall, now), is_behind)
            }
        })
    }

    fn request_pack(
        &mut self,
        stream: StreamNumber,
        budget: &mut Budget,
        wall: Timestamp,
        now: Duration,
    ) -> bool {
        let Some(first) = self.next_file(stream, true, budget, (wall, now), &|_| false) else { return false };
        let (files, bytes) = self.select_pack(first, stream, wall);
        for &number in &files {
            if let Some(file) = self.files.get_mut(&number) {
                file.body = Body::Small(SmallState::Requested(1));
                let place = file.queue_key(number);
                self.small.remove(&place);
                self.mark_started(number);
            }
        }
        self.send_request(stream, RequestContent::Pack { files }, false, now);
        budget.buffers -= 1;
        // An empty file costs a little as well, so that not everything passes under a rate limit.
        budget.bytes = budget.bytes.saturating_sub(bytes.max(1));
        self.requested_bytes += bytes.max(1);
        true
    }

    /// `first` and its successors in the queue, as long as they fit into one chunk.
    fn select_pack(
        &self,
        first: FileNumber,
        stream: StreamNumber,
        wall: Timestamp,
    ) -> (Vec<FileNumber>, u64) {
        let Some(leader) = self.files.get(&first) else { return (vec![first], 0) };
        let (origin, alive) = (self.origin_of(stream), self.alive());
        let (mut files, mut bytes, mut misfits) = (vec![first], leader.size, 0);
        for &(_, number) in self.small.range((Reverse(leader.priority), first)..).skip(1) {
            if files.len() == PACK_FILES_MAX || misfits == PACK_MISFITS_MAX {
                break;
            }
            let fits = self.files.get(&number).filter(|file| {
                file.lane == leader.lane
                    && file.sources.may_request(0, origin, alive)
                    && bytes + file.size <= u64::from(CHUNK_BYTES)
                    && self
                        .batches
                        .get(&file.batch)
                        .filter(|batch| wall <= batch.start_by)
                        .and_then(|batch| batch.manifest_for(origin))
                        .is_some_and(|listed| listed.is_announced_on(stream))
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

    fn request_extent(
        &mut self,
        stream: StreamNumber,
        room: usize,
        budget: &mut Budget,
        at: (Timestamp, Duration),
        is_behind: &dyn Fn(FileNumber) -> bool,
    ) -> bool {
        let Some(number) = self.next_file(stream, false, budget, at, is_behind) else { return false };
        let (_, now) = at;
        let (origin, alive) = (self.origin_of(stream), self.alive());
        let Some(file) = self.files.get_mut(&number) else { return false };
        let place = file.queue_key(number);
        let Some(from) = file.next_requestable(origin, alive) else { return false };
        let run = file.contiguous_run(from, EXTENT_CHUNKS as u64, origin, alive) as usize;
        let Body::Large(large) = &mut file.body else { return false };
        // Under a rate limit at most one chunk may exceed it, not a run of chunks.
        let allowed = usize::try_from(budget.bytes / u64::from(CHUNK_BYTES)).unwrap_or(usize::MAX).max(1);
        let most = room.min(run).min(allowed).min(large.requestable(from, budget.reorder_credits));
        let before = large.out_of_order.len();
        let Some((offset, len)) = large.take(from, most as u64) else { return false };
        budget.reorder_credits -= large.out_of_order.len() - before;
        if large.in_order {
            self.in_order_files.insert(number);
        }
        if large.missing.is_empty() {
            self.large.remove(&place);
        }
        self.mark_started(number);
        let left: BTreeSet<u64> = chunks_of(offset, len).collect();
        budget.buffers -= left.len();
        budget.bytes = budget.bytes.saturating_sub(len);
        self.requested_bytes += len;
        self.send_request(stream, RequestContent::Extent { file: number, left }, false, now);
        true
    }

    /// The next file of a kind that may be requested on this stream; several large ones take turns.
    fn next_file(
        &mut self,
        stream: StreamNumber,
        small: bool,
        budget: &Budget,
        (wall, now): (Timestamp, Duration),
        is_behind: &dyn Fn(FileNumber) -> bool,
    ) -> Option<FileNumber> {
        loop {
            let number = self.find_candidate(stream, small, budget.reorder_credits, is_behind)?;
            let file = self.files.get(&number)?;
            let (batch, started) = (file.batch, file.started);
            if started || self.batches.get(&batch).is_none_or(|batch| wall <= batch.start_by) {
                return self.announce_batch(batch, stream).then_some(number);
            }
            let fault = Fault::new(FaultCode::LeaseExpired, "the file waited too long at the target");
            self.fail_file(number, fault, now);
        }
    }

    fn find_candidate(
        &self,
        stream: StreamNumber,
        small: bool,
        places: usize,
        is_behind: &dyn Fn(FileNumber) -> bool,
    ) -> Option<FileNumber> {
        let queue = if small { &self.small } else { &self.large };
        let most = if small { 1 } else { LARGE_FILES_ACTIVE_MAX };
        let (origin, alive) = (self.origin_of(stream), self.alive());
        let welcomed = self.version_of(stream).is_some();
        let mut found: Vec<(Reverse<u8>, FileNumber)> = Vec::with_capacity(most);
        let (mut from, mut passed_over) = ((Reverse(u8::MAX), FileNumber(0)), 0);
        while found.len() < most
            && passed_over < SKIPPED_FILES_MAX
            && let Some(&place) = queue.range(from..).next()
            && found.first().is_none_or(|first| first.0 == place.0)
        {
            let file = self.files.get(&place.1)?;
            let batch = self.batches.get(&file.batch)?;
            let waits = match (file.next_requestable(origin, alive), &file.body) {
                (None, _) => true,
                // Whether the source understands what is held has to be known.
                _ if file.held_crc32c.is_some() && !welcomed => true,
                (Some(from), Body::Large(large)) => {
                    large.requestable(from, places) == 0 || is_behind(place.1)
                }
                (Some(_), Body::Small(_)) => false,
            };
            let next = if !batch.manifest_for(origin).is_some_and(|listed| self.can_announce(listed, stream))
            {
                passed_over += 1;
                batch.first.0 + batch.count as u32
            } else if waits {
                passed_over += 1;
                place.1.0 + 1
            } else {
                found.push(place);
                place.1.0 + 1
            };
            // The last file number is never assigned, so this does not overflow.
            from = (place.0, FileNumber(next));
        }
        let turn = self.turn / 2 % found.len().max(1);
        found.get(turn).map(|place| place.1)
    }

    /// Whether requests for the batch's files can follow on the stream, after its manifest if need be.
    fn can_announce(&self, listed: &BatchManifest, stream: StreamNumber) -> bool {
        match listed.announced {
            Announcement::NotSent => {
                let announced = self.origins[usize::from(listed.origin.0)].announced_files;
                announced == 0 || announced + listed.files.len() <= SESSION_FILES_MAX
            }
            // Repeating a short manifest on each stream costs less than waiting for the answer.
            Announcement::Sent if listed.files.len() <= MANIFEST_REPEAT_FILES_MAX => true,
            Announcement::Sent | Announcement::Answered => listed.is_announced_on(stream),
        }
    }

    /// Sends the manifest, unless the source will know it when a request on this stream arrives. False if it
    /// cannot be sent.
    fn announce_batch(&mut self, id: BatchId, stream: StreamNumber) -> bool {
        let origin = self.origin_of(stream);
        let at = self.batches.get(&id).and_then(|batch| batch.manifest_for(origin));
        if !at.is_some_and(|listed| self.can_announce(listed, stream)) {
            return false;
        }
        let Some(batch) = self.batches.get_mut(&id) else { return false };
        let first = batch.first;
        let Some(listed) = batch.manifest_for_mut(origin) else { return false };
        if listed.is_announced_on(stream) {
            return true;
        }
        listed.sent_on.insert(stream);
        if listed.announced == Announcement::NotSent {
            listed.announced = Announcement::Sent;
            listed.may_be_held = true;
            self.origins[usize::from(origin.0)].announced_files += listed.files.len();
        }
        let parts = listed.files.chunks(MANIFEST_PART_FILES_MAX);
        let count = parts.len();
        for (place, files) in parts.enumerate() {
            let frame = Frame::Manifest(Manifest {
                batch: id,
                first: FileNumber(first.0 + (place * MANIFEST_PART_FILES_MAX) as u32),
                permit: (place == 0).then(|| listed.permit.clone()),
                storage: listed.storage.clone(),
                last_part: place + 1 == count,
                files: files.to_vec(),
            });
            self.outputs.push_back(Output::Send { stream, frame });
        }
        true
    }

    fn mark_started(&mut self, number: FileNumber) {
        if let Some(file) = self.files.get_mut(&number)
            && !file.started
        {
            file.started = true;
            self.outputs.push_back(Output::Started { file: number });
        }
    }

    fn version_of(&self, stream: StreamNumber) -> Option<u16> {
        self.streams.get(stream.0 as usize)?.up()?.version
    }

    /// What is held of the chunks of a request, if anything is and the source understands it.
    fn held_of(&self, stream: StreamNumber, what: &RequestContent) -> Option<Vec<Option<u32>>> {
        let RequestContent::Extent { file, left } = what else { return None };
        let file = self.files.get(file).filter(|file| file.held_crc32c.is_some())?;
        self.version_of(stream).filter(|&version| version >= CONDITIONAL_REQUESTS_SINCE)?;
        let held: Vec<Option<u32>> = left.iter().map(|&offset| file.held_at(offset)).collect();
        held.iter().any(Option::is_some).then_some(held)
    }

    pub(super) fn send_request(
        &mut self,
        stream: StreamNumber,
        what: RequestContent,
        copy: bool,
        now: Duration,
    ) {
        let origin = self.origin_of(stream);
        if self.slots_of(origin) == 0 {
            self.origin(origin).note_progress(now);
        }
        let size = |file: &FileNumber| self.files.get(file).map_or(0, |file| file.size);
        let extent_end = match &what {
            RequestContent::Extent { file, left } => {
                let last = left.last().copied().unwrap_or(0);
                (last + u64::from(CHUNK_BYTES)).min(size(file))
            }
            RequestContent::Pack { .. } => 0,
        };
        let held_crc32c = self.held_of(stream, &what);
        let Some(State::Up(up)) = self.state(stream) else { return };
        let request = RequestId(up.next_request);
        up.next_request += 1;
        up.note_requested(what.slots(), now);
        let frame = match &what {
            RequestContent::Extent { file, left } => {
                let offset = left.first().copied().unwrap_or(0);
                let (file, len) = (*file, extent_end - offset);
                match held_crc32c {
                    Some(held_crc32c) => Frame::RequestIfChanged { request, file, offset, len, held_crc32c },
                    None => Frame::Request { request, file, offset, len },
                }
            }
            RequestContent::Pack { files } => Frame::RequestPack { request, files: files.clone() },
        };
        up.requests.insert(request, Request { content: what, is_duplicate: copy, sent_at: now });
        self.outputs.push_back(Output::Send { stream, frame });
    }
}
