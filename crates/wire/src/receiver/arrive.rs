//! Frames from the source.

use std::time::Duration;

use longhaul_model::{Fault, FaultCode};

use super::file::{Body, Known, chunk_len};
use super::streams::{Arriving, State, What};
use super::{Announced, Output, Receiver, StreamNumber};
use crate::frame::{BatchId, ChunkHead, FileNumber, Frame, PackEntry, PackHead, RequestId};
use crate::identity::SourceIdentity;

/// One file of a pack that is wanted, and where its bytes stand in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedFile {
    pub file: FileNumber,
    pub at: u32,
    pub size: u32,
    pub crc32c: u32,
    pub identity: SourceIdentity,
}

fn broken(what: &'static str) -> Fault {
    Fault::new(FaultCode::ProtocolError, what)
}

impl Receiver {
    /// Any frame without payload. An error means that the stream has to be closed.
    pub fn handle_frame(&mut self, stream: StreamNumber, frame: Frame, now: Duration) -> Result<(), Fault> {
        let origin = self.origin_of(stream);
        // Useful is what answers us: a peer that says anything else on each stream has not come back. One
        // that only lives is patiently waited for, as its disk may be slow.
        if matches!(frame, Frame::ManifestAnswer { .. } | Frame::FileFault { .. } | Frame::Pong { .. }) {
            self.origin(origin).is_back();
        }
        match frame {
            Frame::ManifestAnswer { batch, fault } => self.manifest_answered(stream, batch, fault, now),
            Frame::FileFault { request, file, fault } => self.file_fault(stream, request, file, fault, now),
            Frame::Ping { number } => {
                self.outputs.push_back(Output::Send { stream, frame: Frame::Pong { number } });
                Ok(())
            }
            Frame::Pong { .. } => Ok(()),
            Frame::Report(report) => {
                self.reported(stream, report);
                Ok(())
            }
            Frame::Goodbye { fault } => Err(fault
                .unwrap_or_else(|| Fault::new(FaultCode::ConnectionLost, "the source closed the stream"))),
            _ => Err(broken("a frame that sources do not send")),
        }
    }

    fn manifest_answered(
        &mut self,
        stream: StreamNumber,
        batch: BatchId,
        fault: Option<Fault>,
        now: Duration,
    ) -> Result<(), Fault> {
        // Batches can be over before their answer comes.
        let origin = self.origin_of(stream);
        let Some(known) = self.batches.get_mut(&batch).and_then(|batch| batch.at_mut(origin)) else {
            return Ok(());
        };
        if !known.reaches(stream) {
            return Err(broken("an answer to a manifest that was not sent here"));
        }
        if std::mem::replace(&mut known.announced, Announced::Answered) == Announced::Answered {
            // It was said on several streams, and each time it is answered alike.
            return Ok(());
        }
        if let Some(fault) = fault {
            let numbers: Vec<FileNumber> = self
                .files
                .iter()
                .filter(|(_, file)| file.batch == batch)
                .map(|(&number, _)| number)
                .collect();
            numbers.into_iter().for_each(|number| self.leave_out(number, origin, fault.clone(), now));
        }
        Ok(())
    }

    fn file_fault(
        &mut self,
        stream: StreamNumber,
        request: RequestId,
        file: FileNumber,
        fault: Fault,
        now: Duration,
    ) -> Result<(), Fault> {
        if !self.issued(stream, request) {
            return Err(broken("a fault for a request that was never made"));
        }
        let Some(ended) = self.end_request(stream, request) else { return Ok(()) };
        let asked = ended.what.parts().iter().any(|&(asked, _)| asked == file);
        if asked {
            self.leave_out(file, self.origin_of(stream), fault, now);
        }
        self.unasked(&ended.what);
        if asked { Ok(()) } else { Err(broken("a fault for a file that was not asked for")) }
    }

    /// A request that is not with its stream any more will not be answered.
    pub(super) fn unasked(&mut self, what: &What) {
        for (number, offset) in what.parts() {
            if let Some(file) = self.files.get_mut(&number) {
                file.body.request_lost(offset, file.size);
                self.queue(number);
            }
        }
    }

    fn issued(&self, stream: StreamNumber, request: RequestId) -> bool {
        self.streams
            .get(stream.0 as usize)
            .and_then(|stream| stream.up())
            .is_some_and(|up| request.0 < up.next_request)
    }

    /// A chunk begins to arrive. True: keep it, its slot is the caller's buffer now. False: let the payload
    /// pass. Then call `payload_ended`.
    pub fn chunk_begins(
        &mut self,
        stream: StreamNumber,
        head: &ChunkHead,
        payload_len: u32,
        now: Duration,
    ) -> Result<bool, Fault> {
        if !self.issued(stream, head.request) {
            return Err(broken("data for a request that was never made"));
        }
        let Some(State::Up(up)) = self.state(stream) else { return Ok(false) };
        // A fault may have ended the request while its other chunks were on their way.
        let Some(request) = up.requests.get_mut(&head.request) else { return Ok(false) };
        let What::Extent { file, left } = &mut request.what else {
            return Err(broken("a chunk in answer to a request for a pack"));
        };
        if *file != head.file || !left.remove(&head.offset) {
            return Err(broken("a chunk that was not asked for"));
        }
        if left.is_empty() {
            up.requests.remove(&head.request);
        }
        up.answered(1);
        let wanted = self.chunk_wanted(head, payload_len, now);
        match wanted {
            Ok(true) => {
                self.arriving(stream, vec![(head.file, head.offset)], now);
            }
            _ => self.freed += 1,
        }
        wanted
    }

    fn chunk_wanted(&mut self, head: &ChunkHead, payload_len: u32, now: Duration) -> Result<bool, Fault> {
        let Some(file) = self.files.get_mut(&head.file) else { return Ok(false) };
        if u64::from(payload_len) != chunk_len(head.offset, file.size) {
            file.body.request_lost(head.offset, file.size);
            self.queue(head.file);
            return Err(broken("a chunk of the wrong length"));
        }
        Ok(self.identity_fits(head.file, head.identity, now)
            && self.files.get_mut(&head.file).is_some_and(|file| file.body.arrives(head.offset)))
    }

    /// Several whole files begin to arrive. Returns those that are wanted; if there are any, the slot is the
    /// caller's buffer now, else let the payload pass. Then call `payload_ended`.
    pub fn pack_begins(
        &mut self,
        stream: StreamNumber,
        head: &PackHead,
        payload_len: u32,
        now: Duration,
    ) -> Result<Vec<PackedFile>, Fault> {
        if !self.issued(stream, head.request) {
            return Err(broken("data for a request that was never made"));
        }
        let Some(ended) = self.end_request(stream, head.request) else { return Ok(Vec::new()) };
        let fits = matches!(&ended.what, What::Pack { files } if files.iter().copied().eq(head.entries.iter().map(PackEntry::file)));
        let total: u64 = head.entries.iter().map(packed_size).sum();
        let sized = head.entries.iter().all(|entry| match (entry, self.files.get(&entry.file())) {
            (PackEntry::Whole { size, .. }, Some(file)) => u64::from(*size) == file.size,
            _ => true,
        });
        if !fits || !sized || total != u64::from(payload_len) {
            self.unasked(&ended.what);
            return Err(broken("a pack that was not asked for"));
        }
        let wanted = self.wanted_of_pack(stream, head, now);
        if !wanted.is_empty() {
            self.freed -= 1;
            self.arriving(stream, wanted.iter().map(|packed| (packed.file, 0)).collect(), now);
        }
        Ok(wanted)
    }

    fn wanted_of_pack(&mut self, stream: StreamNumber, head: &PackHead, now: Duration) -> Vec<PackedFile> {
        let origin = self.origin_of(stream);
        let mut wanted = Vec::new();
        let mut at = 0;
        for entry in &head.entries {
            match entry {
                PackEntry::Fault { file: number, fault } => {
                    self.leave_out(*number, origin, fault.clone(), now);
                    if let Some(file) = self.files.get_mut(number) {
                        file.body.request_lost(0, file.size);
                        self.queue(*number);
                    }
                }
                &PackEntry::Whole { file, size, crc32c, identity } => {
                    if self.identity_fits(file, identity, now)
                        && self.files.get_mut(&file).is_some_and(|file| file.body.arrives(0))
                    {
                        wanted.push(PackedFile { file, at, size, crc32c, identity });
                    }
                    at += size;
                }
            }
        }
        wanted
    }

    /// The payload announced last on this stream has arrived in full.
    pub fn payload_ended(&mut self, stream: StreamNumber) {
        if let Some(State::Up(up)) = self.state(stream) {
            up.arriving = None;
        }
    }

    fn arriving(&mut self, stream: StreamNumber, parts: Vec<(FileNumber, u64)>, now: Duration) {
        let origin = self.origin_of(stream);
        self.origin(origin).progress(now);
        parts.iter().for_each(|(file, _)| self.takes(*file, origin));
        if let Some(State::Up(up)) = self.state(stream) {
            up.arriving = Some(Arriving { parts });
        }
    }

    /// Never a mixed file: all bytes come from one state of the source's file.
    fn identity_fits(&mut self, number: FileNumber, identity: SourceIdentity, now: Duration) -> bool {
        let Some(file) = self.files.get_mut(&number) else { return false };
        if file.sources.checked {
            // Each chunk is known by itself.
            return true;
        }
        match file.identity {
            Some(known) if known.identity == identity => {}
            // Small files are taken whole from one opening.
            Some(known) if known.confirmed && matches!(file.body, Body::Large(_)) => {
                let detail = format!(
                    "size {} then {}, modified {} then {} (ns)",
                    known.identity.size, identity.size, known.identity.mtime_ns, identity.mtime_ns
                );
                self.fail(number, Fault::new(FaultCode::SourceChanged, detail), now);
                return false;
            }
            Some(_) => {
                if let Body::Large(large) = &mut file.body {
                    large.restart(file.size);
                    self.outputs.push_back(Output::Restarted { file: number });
                }
            }
            None => {}
        }
        file.identity = Some(Known { identity, confirmed: true });
        self.queue(number);
        true
    }
}

fn packed_size(entry: &PackEntry) -> u64 {
    match entry {
        PackEntry::Whole { size, .. } => u64::from(*size),
        PackEntry::Fault { .. } => 0,
    }
}
