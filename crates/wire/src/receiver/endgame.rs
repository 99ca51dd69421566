//! Endgame: idle streams re-request the last chunks of stragglers; the first copy wins (Cohen, "Incentives
//! Build Robustness in BitTorrent", 2003). Each is a hedged request (Dean, Barroso, "The Tail at Scale",
//! 2013).

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;

use super::file::{Body, SmallState};
use super::streams::{RequestContent, State, Stream};
use super::{Budget, Receiver, StreamNumber};
use crate::FileNumber;
use crate::limits::ENDGAME_CHUNKS_MAX;

/// Seconds. A straggler that finishes sooner is not worth a second copy.
const ENDGAME_WAIT_S_MIN: f64 = 1.0;
/// The idle stream has to be faster by this factor: its rate is an estimate, and on a narrow path every
/// duplicate is a loss.
const ENDGAME_SPEEDUP_MIN: f64 = 3.0;

impl Receiver {
    /// Whether some stream is idle while another owes data, and nothing is left to request.
    pub fn is_in_endgame(&self) -> bool {
        self.has_work()
            && !self.has_unrequested_files()
            && self.used_streams().any(|place| self.streams[place].up().is_some_and(|up| up.slots == 0))
            && self.streams.iter().any(|stream| stream.slots() > 0)
    }

    /// Requests one part of a straggler's remaining work again on this idle stream. False if there is nothing
    /// to gain.
    pub(super) fn request_duplicate(
        &mut self,
        stream: StreamNumber,
        budget: &mut Budget,
        now: Duration,
    ) -> bool {
        let resting = self.streams[stream.0 as usize].slots() == 0;
        if !resting || self.has_unrequested_files() || self.duplicate_slots() >= ENDGAME_CHUNKS_MAX {
            return false;
        }
        let Some(late) = self.straggler(now) else { return false };
        let Some(what) = self.last_unduplicated(late, stream) else { return false };
        for (number, offset) in what.parts() {
            match self.files.get_mut(&number).map(|file| &mut file.body) {
                Some(Body::Small(SmallState::Requested(copies))) => *copies += 1,
                Some(Body::Large(large)) => {
                    large.requested.entry(offset).and_modify(|copies| *copies += 1);
                }
                _ => {}
            }
        }
        budget.buffers -= what.slots();
        let bytes = what.parts().iter().map(|&(number, offset)| self.part_bytes(number, offset)).sum::<u64>();
        budget.bytes = budget.bytes.saturating_sub(bytes);
        self.requested_bytes += bytes;
        self.send_request(stream, what, true, now);
        true
    }

    /// Bytes of a small file, or of one chunk of a large one.
    pub(super) fn part_bytes(&self, number: FileNumber, offset: u64) -> u64 {
        self.files
            .get(&number)
            .map_or(0, |file| (file.size.saturating_sub(offset)).min(u64::from(CHUNK_BYTES)))
    }

    /// Slots in use by duplicate requests.
    fn duplicate_slots(&self) -> usize {
        let requests = self.streams.iter().filter_map(Stream::up).flat_map(|up| up.requests.values());
        requests.filter(|request| request.is_duplicate).map(|request| request.content.slots()).sum()
    }

    /// The stream that will finish last, if far later than another one could.
    fn straggler(&mut self, now: Duration) -> Option<usize> {
        let chunk = f64::from(CHUNK_BYTES);
        let mut best = 1.0_f64;
        let mut latest = (0.0, 0);
        for (place, stream) in self.streams.iter_mut().enumerate() {
            let State::Up(up) = &mut stream.state else { continue };
            let rate = up.meter.rate(now).max(1.0);
            best = best.max(rate);
            let left = up.slots as f64 * chunk / rate;
            // A fresh request says nothing about the stream.
            let waits = up
                .busy_since
                .is_some_and(|since| now.saturating_sub(since).as_secs_f64() >= ENDGAME_WAIT_S_MIN);
            if waits && left > latest.0 {
                latest = (left, place);
            }
        }
        (latest.0 > ENDGAME_WAIT_S_MIN && latest.0 > ENDGAME_SPEEDUP_MIN * chunk / best).then_some(latest.1)
    }

    /// The last part of this stream's queue that was requested once only, and can be requested on the other
    /// stream.
    fn last_unduplicated(&self, place: usize, other: StreamNumber) -> Option<RequestContent> {
        let (origin, alive) = (self.origin_of(other), self.alive());
        let once = |number, offset: u64| {
            let Some(file) = self.files.get(&number) else { return false };
            let listed = self.batches.get(&file.batch).and_then(|batch| batch.manifest_for(origin));
            listed.is_some_and(|listed| listed.is_announced_on(other))
                && file.sources.may_request(offset, origin, alive)
                && match &file.body {
                    Body::Small(state) => *state == SmallState::Requested(1),
                    Body::Large(large) => large.requested.get(&offset) == Some(&1),
                }
        };
        let requests = &self.streams[place].up()?.requests;
        requests.values().rev().find_map(|request| match &request.content {
            RequestContent::Extent { file, left } => {
                let offset = left.iter().rev().find(|&&offset| once(*file, offset))?;
                Some(RequestContent::Extent { file: *file, left: BTreeSet::from([*offset]) })
            }
            RequestContent::Pack { files } => {
                files.iter().all(|&file| once(file, 0)).then(|| RequestContent::Pack { files: files.clone() })
            }
        })
    }
}
