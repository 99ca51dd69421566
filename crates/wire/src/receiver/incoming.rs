//! Incoming frames from the source: answers, faults, and data for open requests.

use std::time::Duration;

use longhaul_model::{Fault, FaultCode};

use super::file::{Body, ExpectedIdentity, chunk_len};
use super::source_faults::confine_to_source;
use super::streams::{Arriving, RequestContent, State};
use super::{Announcement, Output, Receiver, StreamNumber};
use crate::frame::{BatchId, ChunkHead, FileNumber, Frame, PackEntry, PackHead, RequestId};
use crate::identity::SourceIdentity;

/// One wanted file of a pack, and the position of its bytes in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedFile {
    /// Number of the file.
    pub file: FileNumber,
    /// Start of its bytes in the payload.
    pub at: u32,
    /// Number of bytes.
    pub size: u32,
    /// CRC-32C that the source declared.
    pub crc32c: u32,
    /// Identity of the source file when it was opened.
    pub identity: SourceIdentity,
}

fn protocol_error(what: &'static str) -> Fault {
    Fault::new(FaultCode::ProtocolError, what)
}

impl Receiver {
    /// Handles a frame without payload. An error means that the stream has to be closed.
    ///
    /// # Errors
    /// Why the stream has to be closed.
    pub fn handle_frame(&mut self, stream: StreamNumber, frame: Frame, now: Duration) -> Result<(), Fault> {
        let origin = self.origin_of(stream);
        // Only answers prove that the source is back. A peer that merely lives is waited for, as its disk may
        // be slow.
        if matches!(frame, Frame::ManifestAnswer { .. } | Frame::FileFault { .. } | Frame::Pong { .. }) {
            self.origin(origin).mark_reachable();
        }
        match frame {
            Frame::ManifestAnswer { batch, fault } => self.handle_manifest_answer(stream, batch, fault, now),
            Frame::FileFault { request, file, fault } => {
                self.handle_file_fault(stream, request, file, fault, now)
            }
            Frame::Ping { number } => {
                self.outputs.push_back(Output::Send { stream, frame: Frame::Pong { number } });
                Ok(())
            }
            Frame::Pong { .. } => Ok(()),
            Frame::Report(report) => {
                self.handle_report(stream, report);
                Ok(())
            }
            Frame::Goodbye { fault } => Err(fault
                .map(confine_to_source)
                .unwrap_or_else(|| Fault::new(FaultCode::ConnectionLost, "the source closed the stream"))),
            _ => Err(protocol_error("unexpected frame from a source")),
        }
    }

    fn handle_manifest_answer(
        &mut self,
        stream: StreamNumber,
        batch: BatchId,
        fault: Option<Fault>,
        now: Duration,
    ) -> Result<(), Fault> {
        // A batch may be over before its answer arrives.
        let origin = self.origin_of(stream);
        let Some(known) = self.batches.get_mut(&batch).and_then(|batch| batch.manifest_for_mut(origin))
        else {
            return Ok(());
        };
        if !known.is_announced_on(stream) {
            return Err(protocol_error("an answer to a manifest that was not sent on this stream"));
        }
        if std::mem::replace(&mut known.announced, Announcement::Answered) == Announcement::Answered {
            // A manifest that was repeated on several streams is answered alike on each.
            return Ok(());
        }
        if let Some(fault) = fault {
            let numbers: Vec<FileNumber> = self
                .files
                .iter()
                .filter(|(_, file)| file.batch == batch)
                .map(|(&number, _)| number)
                .collect();
            let fault = confine_to_source(fault);
            numbers.into_iter().for_each(|number| self.exclude_source(number, origin, fault.clone(), now));
        }
        Ok(())
    }

    fn handle_file_fault(
        &mut self,
        stream: StreamNumber,
        request: RequestId,
        file: FileNumber,
        fault: Fault,
        now: Duration,
    ) -> Result<(), Fault> {
        if !self.is_issued(stream, request) {
            return Err(protocol_error("a fault for an unknown request"));
        }
        let Some(ended) = self.end_request(stream, request) else { return Ok(()) };
        let asked = ended.content.parts().iter().any(|&(asked, _)| asked == file);
        self.note_answered(stream, &ended.content);
        if asked {
            self.exclude_source(file, self.origin_of(stream), confine_to_source(fault), now);
        }
        self.requeue_request(&ended.content);
        if asked { Ok(()) } else { Err(protocol_error("a fault for a file that was not requested")) }
    }

    /// Puts back the content of a request that its stream will not answer.
    pub(super) fn requeue_request(&mut self, what: &RequestContent) {
        for (number, offset) in what.parts() {
            if let Some(file) = self.files.get_mut(&number) {
                file.body.request_lost(offset, file.size);
                self.enqueue(number);
            }
        }
    }

    fn note_answered(&mut self, stream: StreamNumber, content: &RequestContent) {
        let origin = self.origin_of(stream);
        self.origin(origin).overdue.note_answer(content.files());
    }

    fn is_issued(&self, stream: StreamNumber, request: RequestId) -> bool {
        self.streams
            .get(stream.0 as usize)
            .and_then(|stream| stream.up())
            .is_some_and(|up| request.0 < up.next_request)
    }

    /// A chunk begins to arrive. True: keep it; its slot becomes the caller's buffer. False: discard the
    /// payload. Call `end_payload` afterwards.
    ///
    /// # Errors
    /// Why the stream has to be closed: nobody requested the chunk, or it differs from what was requested.
    pub fn begin_chunk(
        &mut self,
        stream: StreamNumber,
        head: &ChunkHead,
        payload_len: u32,
        now: Duration,
    ) -> Result<bool, Fault> {
        if !self.end_chunk_request(stream, head)? {
            return Ok(false);
        }
        let wanted = self.accept_chunk(head, payload_len, now);
        match wanted {
            Ok(true) => {
                self.note_arriving(stream, vec![(head.file, head.offset)], now);
            }
            _ => self.freed_slots += 1,
        }
        wanted
    }

    /// The source has a chunk as it is held. True: the caller writes what it holds; the slot becomes its
    /// buffer. False: nobody wants it.
    ///
    /// # Errors
    /// Why the stream has to be closed: nobody requested the chunk, or it is not as it is held.
    pub fn begin_unchanged(
        &mut self,
        stream: StreamNumber,
        head: &ChunkHead,
        now: Duration,
    ) -> Result<bool, Fault> {
        if !self.end_chunk_request(stream, head)? {
            return Ok(false);
        }
        self.unsent_bytes += self.part_bytes(head.file, head.offset);
        let wanted = self.accept_unchanged(head, now);
        match wanted {
            Ok(true) => {
                let origin = self.origin_of(stream);
                self.origin(origin).mark_reachable();
                self.origin(origin).note_progress(now);
                self.note_taken(head.file, origin);
            }
            _ => self.freed_slots += 1,
        }
        wanted
    }

    fn accept_unchanged(&mut self, head: &ChunkHead, now: Duration) -> Result<bool, Fault> {
        let Some(file) = self.files.get_mut(&head.file) else { return Ok(false) };
        if file.held_at(head.offset) != Some(head.crc32c) {
            // A copy of the request may have been answered, and what is held found to be otherwise.
            let is_wanted_anew = file.held_crc32c.is_some() && file.held_at(head.offset).is_none();
            file.body.request_lost(head.offset, file.size);
            self.enqueue(head.file);
            return match is_wanted_anew {
                true => Ok(false),
                false => Err(protocol_error("a chunk is called unchanged that is not held so")),
            };
        }
        Ok(self.matches_identity(head.file, head.identity, now)
            && self.files.get_mut(&head.file).is_some_and(|file| file.body.begin_arrival(head.offset)))
    }

    /// A chunk of a request is answered: the request no longer waits for it. False if it was over already.
    fn end_chunk_request(&mut self, stream: StreamNumber, head: &ChunkHead) -> Result<bool, Fault> {
        if !self.is_issued(stream, head.request) {
            return Err(protocol_error("data for an unknown request"));
        }
        let Some(State::Up(up)) = self.state(stream) else { return Ok(false) };
        // A fault may have ended the request while its other chunks were in flight.
        let Some(request) = up.requests.get_mut(&head.request) else { return Ok(false) };
        let RequestContent::Extent { file, left } = &mut request.content else {
            return Err(protocol_error("a chunk in reply to the request of a pack"));
        };
        if *file != head.file || !left.remove(&head.offset) {
            return Err(protocol_error("a chunk that was not requested"));
        }
        if left.is_empty() {
            up.requests.remove(&head.request);
        }
        up.note_answered(1);
        let origin = self.origin_of(stream);
        self.origin(origin).overdue.note_answer(&[head.file]);
        Ok(true)
    }

    fn accept_chunk(&mut self, head: &ChunkHead, payload_len: u32, now: Duration) -> Result<bool, Fault> {
        let Some(file) = self.files.get_mut(&head.file) else { return Ok(false) };
        if u64::from(payload_len) != chunk_len(head.offset, file.size) {
            file.body.request_lost(head.offset, file.size);
            self.enqueue(head.file);
            return Err(protocol_error("a chunk of the wrong length"));
        }
        Ok(self.matches_identity(head.file, head.identity, now)
            && self.files.get_mut(&head.file).is_some_and(|file| file.body.begin_arrival(head.offset)))
    }

    /// Several whole files begin to arrive. Returns the wanted ones. If there are any, the slot becomes the
    /// caller's buffer; otherwise discard the payload. Call `end_payload` afterwards.
    ///
    /// # Errors
    /// Why the stream has to be closed: nobody requested the pack, or it differs from what was requested.
    pub fn begin_pack(
        &mut self,
        stream: StreamNumber,
        head: &PackHead,
        payload_len: u32,
        now: Duration,
    ) -> Result<Vec<PackedFile>, Fault> {
        if !self.is_issued(stream, head.request) {
            return Err(protocol_error("data for an unknown request"));
        }
        let Some(ended) = self.end_request(stream, head.request) else { return Ok(Vec::new()) };
        let fits = matches!(&ended.content,
            RequestContent::Pack {
                files } if files.iter().copied().eq(head.entries.iter().map(PackEntry::file)));
        let total: u64 = head.entries.iter().map(packed_size).sum();
        let sized = head.entries.iter().all(|entry| match (entry, self.files.get(&entry.file())) {
            (PackEntry::Whole { size, .. }, Some(file)) => u64::from(*size) == file.size,
            _ => true,
        });
        if !fits || !sized || total != u64::from(payload_len) {
            self.requeue_request(&ended.content);
            return Err(protocol_error("a pack that was not requested"));
        }
        self.note_answered(stream, &ended.content);
        let wanted = self.accept_pack(stream, head, now);
        if !wanted.is_empty() {
            self.freed_slots -= 1;
            self.note_arriving(stream, wanted.iter().map(|packed| (packed.file, 0)).collect(), now);
        }
        Ok(wanted)
    }

    fn accept_pack(&mut self, stream: StreamNumber, head: &PackHead, now: Duration) -> Vec<PackedFile> {
        let origin = self.origin_of(stream);
        let mut wanted = Vec::new();
        let mut at = 0;
        for entry in &head.entries {
            match entry {
                PackEntry::Fault { file: number, fault } => {
                    self.exclude_source(*number, origin, confine_to_source(fault.clone()), now);
                    if let Some(file) = self.files.get_mut(number) {
                        file.body.request_lost(0, file.size);
                        self.enqueue(*number);
                    }
                }
                &PackEntry::Whole { file, size, crc32c, identity } => {
                    if self.matches_identity(file, identity, now)
                        && self.files.get_mut(&file).is_some_and(|file| file.body.begin_arrival(0))
                    {
                        wanted.push(PackedFile { file, at, size, crc32c, identity });
                    }
                    at += size;
                }
            }
        }
        wanted
    }

    /// The payload announced last on this stream has arrived completely.
    pub fn end_payload(&mut self, stream: StreamNumber) {
        if let Some(State::Up(up)) = self.state(stream) {
            up.arriving = None;
        }
    }

    fn note_arriving(&mut self, stream: StreamNumber, parts: Vec<(FileNumber, u64)>, now: Duration) {
        let origin = self.origin_of(stream);
        self.origin(origin).note_progress(now);
        parts.iter().for_each(|(file, _)| self.note_taken(*file, origin));
        if let Some(State::Up(up)) = self.state(stream) {
            up.arriving = Some(Arriving { parts });
        }
    }

    /// Enforces that all bytes of a file come from one version of the source's file.
    fn matches_identity(&mut self, number: FileNumber, identity: SourceIdentity, now: Duration) -> bool {
        let Some(file) = self.files.get_mut(&number) else { return false };
        if file.sources.checked {
            // Each chunk is verified by itself.
            return true;
        }
        match file.identity {
            Some(known) if known.identity == identity => {}
            // Small files are taken whole from one opening, so a new identity is harmless.
            Some(known) if known.confirmed && matches!(file.body, Body::Large(_)) => {
                let detail = format!(
                    "size {} then {}, modified {} then {} (ns)",
                    known.identity.size, identity.size, known.identity.mtime_ns, identity.mtime_ns
                );
                self.fail_file(number, Fault::new(FaultCode::SourceChanged, detail), now);
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
        file.identity = Some(ExpectedIdentity { identity, confirmed: true });
        self.enqueue(number);
        true
    }
}

fn packed_size(entry: &PackEntry) -> u64 {
    match entry {
        PackEntry::Whole { size, .. } => u64::from(*size),
        PackEntry::Fault { .. } => 0,
    }
}
