//! The source's side of a session: accepted manifests, open requests, what to read next.
//!
//! It answers and decides nothing: requests are served in order, streams round-robin. Feed it frames with
//! [`Source::handle_frame`], call [`schedule_reads`](Source::schedule_reads) when buffers are free, and carry
//! out the actions from [`Source::poll_output`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Fault, FaultCode, StorageName};

use crate::frame::{BatchId, FileNumber, Frame, Manifest, ManifestFile, PackEntry, PackHead, RequestId};
use crate::limits::{MANIFEST_FILES_MAX, PERMIT_BYTES_MAX, SESSION_FILES_MAX, STREAM_REQUESTS_MAX};

/// One of the session's TCP connections, numbered by the source as they join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinedStream(pub u32);

/// An action for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a frame without payload.
    Send {
        /// Stream to send it on.
        stream: JoinedStream,
        /// The frame.
        frame: Frame,
    },
    /// Check the permit of a batch against its files, then call `complete_authorisation`.
    Authorise {
        /// The batch.
        batch: BatchId,
    },
    /// Read into one buffer and send it; call `release_buffer` when the buffer is free again.
    ReadChunk {
        /// Stream to send the chunk on.
        stream: JoinedStream,
        /// Request that it answers.
        request: RequestId,
        /// File to read.
        file: FileNumber,
        /// Offset of the chunk, in bytes.
        offset: u64,
        /// Length of the chunk, in bytes.
        len: u32,
        /// CRC-32C of the chunk as the receiver holds it. If it is the same here, the answer is
        /// [`Frame::Unchanged`].
        held_crc32c: Option<u32>,
    },
    /// Read several small files into one buffer. A file that [`Source::file`] does not know (it arrived over
    /// another stream, and was forgotten) is not read: its entry is a fault.
    ReadPack {
        /// Stream to send the pack on.
        stream: JoinedStream,
        /// Request that it answers.
        request: RequestId,
        /// Files to read, in this order.
        files: Vec<FileNumber>,
    },
}

/// A manifest: the permit to check, and the files to read.
pub struct Batch {
    /// Signed permit; whether it covers the files is the caller's decision.
    pub permit: Arc<str>,
    /// Storage that holds the files.
    pub storage: StorageName,
    /// Files in the order of their numbers.
    pub files: Vec<ManifestFile>,
    first: FileNumber,
    state: BatchState,
    /// Streams that carried the manifest, and so get the answer.
    announced_on: Vec<JoinedStream>,
}

/// Progress of a manifest.
enum BatchState {
    Collecting,
    Checking,
    Accepted,
    Refused(Fault),
}

/// A request that is not fully served.
#[derive(Debug)]
enum PendingRequest {
    Extent {
        request: RequestId,
        file: FileNumber,
        next: u64,
        end: u64,
        /// The checksum of each chunk from `next` on, as it is held; empty if nothing is.
        held_crc32c: VecDeque<Option<u32>>,
    },
    Pack {
        request: RequestId,
        files: Vec<FileNumber>,
    },
}

/// Open requests of one stream.
#[derive(Default)]
struct Stream {
    queue: VecDeque<PendingRequest>,
    /// Buffers being read into or waiting to be sent.
    buffers: usize,
}

impl Batch {
    fn counted_permit_bytes(&self) -> usize {
        PERMIT_BYTES_MAX.min(self.permit.len())
    }
}

/// About what a file of a manifest takes in memory.
const FILE_MEMORY_BYTES: usize = 200;

/// State machine of the sending end.
#[derive(Default)]
pub struct Source {
    batches: BTreeMap<BatchId, Batch>,
    batch_by_first_file: BTreeMap<FileNumber, BatchId>,
    /// Files of all batches, and bytes of their permits. Kept, since every frame asks for them: a peer that
    /// announces without end would otherwise take time that grows with the square of its batches.
    announced_files: usize,
    permit_bytes: usize,
    streams: BTreeMap<JoinedStream, Stream>,
    next_stream: u32,
    /// The stream to serve next.
    next_to_serve: u32,
    outputs: VecDeque<Output>,
}

fn protocol_error(what: &'static str) -> Fault {
    Fault::new(FaultCode::ProtocolError, what)
}

impl Source {
    /// A stream has joined; returns its number.
    pub fn stream_up(&mut self) -> JoinedStream {
        let stream = JoinedStream(self.next_stream);
        self.next_stream = self.next_stream.wrapping_add(1);
        self.streams.insert(stream, Stream::default());
        stream
    }

    /// A stream is closed: its requests are dropped.
    pub fn stream_down(&mut self, stream: JoinedStream) {
        self.streams.remove(&stream);
        // A manifest that was cut off is sent again in full.
        let cut_off: Vec<BatchId> = self
            .batches
            .iter()
            .filter(|(_, batch)| {
                batch.announced_on.contains(&stream) && matches!(batch.state, BatchState::Collecting)
            })
            .map(|(&id, _)| id)
            .collect();
        cut_off.into_iter().for_each(|id| self.forget(id));
    }

    /// Number of streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The next action; none if there is nothing to do for now.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A batch that was announced and is not forgotten yet.
    pub fn batch(&self, id: BatchId) -> Option<&Batch> {
        self.batches.get(&id)
    }

    /// A file of a batch whose permit was accepted, with its storage.
    pub fn file(&self, number: FileNumber) -> Option<(&ManifestFile, &StorageName)> {
        let batch = self.batch_of(number)?;
        matches!(batch.state, BatchState::Accepted).then_some(())?;
        let file = batch.files.get((number.0 - batch.first.0) as usize)?;
        Some((file, &batch.storage))
    }

    fn batch_of(&self, number: FileNumber) -> Option<&Batch> {
        let (_, id) = self.batch_by_first_file.range(..=number).next_back()?;
        self.batches.get(id).filter(|batch| ((number.0 - batch.first.0) as usize) < batch.files.len())
    }

    /// Handles a frame from the receiver. An error means that the stream has to be closed with it.
    ///
    /// # Errors
    /// Why the stream has to be closed: the frame breaks the protocol or exceeds a limit.
    pub fn handle_frame(&mut self, stream: JoinedStream, frame: Frame) -> Result<(), Fault> {
        match frame {
            Frame::Manifest(manifest) => self.handle_manifest(stream, manifest),
            Frame::Forget { batch } => {
                self.forget(batch);
                Ok(())
            }
            Frame::Request { request, file, offset, len }
            | Frame::RequestIfChanged { request, file, offset, len, .. } => {
                let end = offset + len;
                let held_crc32c: VecDeque<Option<u32>> = match frame {
                    Frame::RequestIfChanged { held_crc32c, .. } => held_crc32c.into(),
                    _ => VecDeque::new(),
                };
                self.enqueue(stream, PendingRequest::Extent { request, file, next: offset, end, held_crc32c })
            }
            Frame::RequestPack { request, files } => {
                self.enqueue(stream, PendingRequest::Pack { request, files })
            }
            Frame::Ping { number } => {
                self.outputs.push_back(Output::Send { stream, frame: Frame::Pong { number } });
                Ok(())
            }
            Frame::Pong { .. } => Ok(()),
            Frame::Goodbye { fault } => Err(fault
                .unwrap_or_else(|| Fault::new(FaultCode::ConnectionLost, "the target closed the stream"))),
            _ => Err(protocol_error("unexpected frame from a receiver")),
        }
    }

    fn enqueue(&mut self, stream: JoinedStream, pending: PendingRequest) -> Result<(), Fault> {
        let Some(stream) = self.streams.get_mut(&stream) else { return Ok(()) };
        if stream.queue.len() >= STREAM_REQUESTS_MAX {
            return Err(protocol_error("too many open requests on one stream"));
        }
        stream.queue.push_back(pending);
        Ok(())
    }

    fn handle_manifest(&mut self, stream: JoinedStream, part: Manifest) -> Result<(), Fault> {
        if self.accept_repeat(stream, &part) {
            return Ok(());
        }
        if let Some(permit) = part.permit {
            self.forget(part.batch);
            if self.batch_by_first_file.contains_key(&part.first) {
                return Err(protocol_error("file numbers of two manifests overlap"));
            }
            let batch = Batch {
                permit,
                storage: part.storage,
                files: part.files,
                first: part.first,
                state: BatchState::Collecting,
                announced_on: vec![stream],
            };
            self.announced_files += batch.files.len();
            self.permit_bytes += batch.counted_permit_bytes();
            self.batches.insert(part.batch, batch);
            self.batch_by_first_file.insert(part.first, part.batch);
        } else {
            let fits = |batch: &&mut Batch| {
                batch.announced_on.contains(&stream)
                    && matches!(batch.state, BatchState::Collecting)
                    && batch.storage == part.storage
                    && batch.first.0.checked_add(batch.files.len() as u32) == Some(part.first.0)
            };
            let Some(batch) = self.batches.get_mut(&part.batch).filter(fits) else {
                return Err(protocol_error("parts of a manifest are not consecutive"));
            };
            self.announced_files += part.files.len();
            batch.files.extend(part.files);
        }
        self.check_bounds(part.batch)?;
        if part.last_part
            && let Some(batch) = self.batches.get_mut(&part.batch)
        {
            batch.state = BatchState::Checking;
            self.outputs.push_back(Output::Authorise { batch: part.batch });
        }
        Ok(())
    }

    /// Accepts a manifest that was sent on another stream already, so that requests can follow on this one as
    /// well. It is checked once and answered on each. False if it is a different one.
    fn accept_repeat(&mut self, stream: JoinedStream, part: &Manifest) -> bool {
        let Some(known) = self.batches.get_mut(&part.batch) else { return false };
        let is_same = part.last_part
            && !known.announced_on.contains(&stream)
            && part.permit.as_ref() == Some(&known.permit)
            && (&known.storage, known.first) == (&part.storage, part.first)
            && known.files == part.files;
        let fault = match &known.state {
            _ if !is_same => return false,
            BatchState::Collecting => return false,
            BatchState::Checking => {
                known.announced_on.push(stream);
                return true;
            }
            BatchState::Accepted => None,
            BatchState::Refused(fault) => Some(fault.clone()),
        };
        known.announced_on.push(stream);
        let frame = Frame::ManifestAnswer { batch: part.batch, fault };
        self.outputs.push_back(Output::Send { stream, frame });
        true
    }

    fn check_bounds(&mut self, id: BatchId) -> Result<(), Fault> {
        let Some(batch) = self.batches.get(&id) else { return Ok(()) };
        let last = u64::from(batch.first.0) + batch.files.len() as u64;
        let before = self
            .batch_by_first_file
            .range(..batch.first)
            .next_back()
            .and_then(|(_, id)| self.batches.get(id));
        let overlaps = last > u64::from(u32::MAX)
            || before.is_some_and(|before| {
                u64::from(before.first.0) + before.files.len() as u64 > u64::from(batch.first.0)
            })
            || self
                .batch_by_first_file
                .range(batch.first..)
                .nth(1)
                .is_some_and(|(next, _)| u64::from(next.0) < last);
        if overlaps {
            return Err(protocol_error("file numbers of two manifests overlap"));
        }
        if batch.files.len() > MANIFEST_FILES_MAX
            || self.announced_files > SESSION_FILES_MAX + MANIFEST_FILES_MAX
        {
            return Err(protocol_error("too many files announced at once"));
        }
        Ok(())
    }

    /// Approximate memory use of the manifests.
    pub fn manifest_bytes(&self) -> usize {
        self.permit_bytes + self.announced_files * FILE_MEMORY_BYTES
    }

    fn forget(&mut self, id: BatchId) {
        let Some(batch) = self.batches.remove(&id) else { return };
        self.announced_files -= batch.files.len();
        self.permit_bytes -= batch.counted_permit_bytes();
        if self.batch_by_first_file.get(&batch.first) == Some(&id) {
            self.batch_by_first_file.remove(&batch.first);
        }
    }

    /// The result of `Output::Authorise`.
    pub fn complete_authorisation(&mut self, id: BatchId, answer: Result<(), Fault>) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        let fault = answer.err();
        batch.state = match &fault {
            None => BatchState::Accepted,
            Some(fault) => BatchState::Refused(fault.clone()),
        };
        for stream in batch.announced_on.iter().filter(|stream| self.streams.contains_key(stream)) {
            let frame = Frame::ManifestAnswer { batch: id, fault: fault.clone() };
            self.outputs.push_back(Output::Send { stream: *stream, frame });
        }
    }

    /// A buffer of the stream is free again.
    pub fn release_buffer(&mut self, stream: JoinedStream) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.buffers = stream.buffers.saturating_sub(1);
        }
    }

    /// Whether some stream has open requests.
    pub fn has_work(&self) -> bool {
        self.streams.values().any(|stream| !stream.queue.is_empty())
    }

    /// Starts reads for open requests, round-robin over the streams with at most `per_stream` buffers each,
    /// until `buffers` or `bytes` are used up. Returns the buffers and bytes taken.
    pub fn schedule_reads(&mut self, buffers: usize, bytes: u64, per_stream: usize) -> (usize, u64) {
        let (mut taken, mut bytes_taken) = (0, 0);
        let mut resting = 0;
        while taken < buffers && bytes_taken < bytes && resting < self.streams.len() {
            let next = self
                .streams
                .range(JoinedStream(self.next_to_serve)..)
                .next()
                .or_else(|| self.streams.iter().next());
            let Some((&stream, place)) = next else { break };
            self.next_to_serve = stream.0.wrapping_add(1);
            let served = if place.buffers < per_stream { self.serve_next(stream) } else { None };
            match served {
                Some(len) => {
                    resting = 0;
                    if let Some(len) = len {
                        taken += 1;
                        bytes_taken += len;
                    }
                }
                None => resting += 1,
            }
        }
        (taken, bytes_taken)
    }

    /// Serves one step of the first request of a stream. None if there is nothing to do; otherwise the bytes
    /// to read, if any.
    fn serve_next(&mut self, stream: JoinedStream) -> Option<Option<u64>> {
        let (asked, request) = match self.streams.get(&stream)?.queue.front()? {
            PendingRequest::Extent { request, file, .. } => (vec![*file], *request),
            PendingRequest::Pack { request, files } => (files.clone(), *request),
        };
        let (mut refused, mut readable) = (None, false);
        for &number in &asked {
            match self.batch_of(number).map(|batch| &batch.state) {
                Some(BatchState::Accepted) => readable = true,
                Some(BatchState::Collecting | BatchState::Checking) => return None,
                Some(BatchState::Refused(fault)) => refused = Some(fault.clone()),
                None => {
                    refused = Some(Fault::new(
                        FaultCode::PermitRefused,
                        "the source does not know this file's manifest",
                    ))
                }
            }
        }
        // The rest of a pack is read: a part of it may have arrived over another stream, and its batch been
        // forgotten.
        if let Some(fault) = refused.filter(|_| !readable) {
            self.refuse_next(stream, request, asked, fault);
            return Some(None);
        }
        self.read_next(stream).map(Some)
    }

    fn refuse_next(
        &mut self,
        stream: JoinedStream,
        request: RequestId,
        asked: Vec<FileNumber>,
        fault: Fault,
    ) {
        let Some(place) = self.streams.get_mut(&stream) else { return };
        let frame = match place.queue.pop_front() {
            Some(PendingRequest::Pack { .. }) => {
                let entries =
                    asked.into_iter().map(|file| PackEntry::Fault { file, fault: fault.clone() }).collect();
                Frame::PackData(PackHead { request, entries })
            }
            _ => Frame::FileFault { request, file: asked[0], fault },
        };
        self.outputs.push_back(Output::Send { stream, frame });
    }

    fn read_next(&mut self, id: JoinedStream) -> Option<u64> {
        let sizes = match self.streams.get(&id)?.queue.front()? {
            PendingRequest::Pack { files, .. } => files
                .iter()
                .filter_map(|&file| self.file(file))
                .map(|(file, _)| file.size)
                .fold(0, u64::saturating_add),
            PendingRequest::Extent { .. } => 0,
        };
        let stream = self.streams.get_mut(&id)?;
        stream.buffers += 1;
        let (output, len, over) = match stream.queue.front_mut()? {
            PendingRequest::Extent { request, file, next, end, held_crc32c } => {
                let len = (*end - *next).min(u64::from(CHUNK_BYTES));
                let (request, file, offset) = (*request, *file, *next);
                let held_crc32c = held_crc32c.pop_front().flatten();
                *next += len;
                let read =
                    Output::ReadChunk { stream: id, request, file, offset, len: len as u32, held_crc32c };
                (read, len, *next == *end)
            }
            PendingRequest::Pack { request, files } => {
                let files = std::mem::take(files);
                (
                    Output::ReadPack { stream: id, request: *request, files },
                    sizes.min(u64::from(CHUNK_BYTES)),
                    true,
                )
            }
        };
        if over {
            stream.queue.pop_front();
        }
        self.outputs.push_back(output);
        Some(len)
    }

    /// A chunk of this request could not be read, and its fault was sent: the remaining chunks are not
    /// wanted.
    pub fn abandon_request(&mut self, stream: JoinedStream, failed: RequestId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.queue.retain(
                |pending| !matches!(pending, PendingRequest::Extent { request, .. } if *request == failed),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{AttemptId, TransferId};

    fn part(batch: u32, first: u32, count: u32, permit: bool, last: bool) -> Frame {
        let file = |number: u32| ManifestFile {
            attempt: AttemptId(number.into()),
            transfer: TransferId(number.into()),
            lfn: format!("f{number}").parse().unwrap(),
            size: 10,
        };
        Frame::Manifest(Manifest {
            batch: BatchId(batch),
            first: FileNumber(first),
            permit: permit.then(|| "permit".into()),
            storage: "alpha".parse().unwrap(),
            last_part: last,
            files: (first..first + count).map(file).collect(),
        })
    }

    fn outputs(source: &mut Source) -> Vec<Output> {
        std::iter::from_fn(|| source.poll_output()).collect()
    }

    #[test]
    fn nothing_is_read_before_the_permit_is_accepted() {
        let mut source = Source::default();
        let stream = source.stream_up();
        source.handle_frame(stream, part(0, 0, 2, true, false)).unwrap();
        source.handle_frame(stream, part(0, 2, 1, false, true)).unwrap();
        let pack = Frame::RequestPack { request: RequestId(0), files: vec![FileNumber(2)] };
        source.handle_frame(stream, pack).unwrap();
        assert_eq!(source.schedule_reads(9, 1 << 30, 9), (0, 0));
        assert_eq!(outputs(&mut source), vec![Output::Authorise { batch: BatchId(0) }]);
        assert!(source.file(FileNumber(2)).is_none());
        source.complete_authorisation(BatchId(0), Ok(()));
        assert_eq!(source.schedule_reads(9, 1 << 30, 9), (1, 10));
        assert!(matches!(outputs(&mut source)[..], [Output::Send { .. }, Output::ReadPack { .. }]));
        assert_eq!(source.file(FileNumber(2)).unwrap().0.lfn.as_str(), "f2");
        source.handle_frame(stream, Frame::Forget { batch: BatchId(0) }).unwrap();
        assert!(source.file(FileNumber(2)).is_none() && source.manifest_bytes() == 0);
    }

    #[test]
    fn refused_and_unannounced_files_get_a_fault() {
        let mut source = Source::default();
        let stream = source.stream_up();
        source.handle_frame(stream, part(0, 0, 1, true, true)).unwrap();
        source.complete_authorisation(BatchId(0), Err(Fault::new(FaultCode::PermitRefused, "expired")));
        let request = |number, file| Frame::Request {
            request: RequestId(number),
            file: FileNumber(file),
            offset: 0,
            len: 1,
        };
        source.handle_frame(stream, request(0, 0)).unwrap();
        source.handle_frame(stream, request(1, 77)).unwrap();
        outputs(&mut source);
        assert_eq!(source.schedule_reads(9, 1 << 30, 9), (0, 0));
        let faults = outputs(&mut source);
        assert_eq!(faults.len(), 2);
        assert!(
            faults.iter().all(|output| matches!(output, Output::Send { frame: Frame::FileFault { .. }, .. }))
        );
    }

    #[test]
    fn a_pack_is_read_even_if_part_of_it_is_forgotten() {
        let mut source = Source::default();
        let stream = source.stream_up();
        for batch in 0..2 {
            source.handle_frame(stream, part(batch, batch * 10, 2, true, true)).unwrap();
            source.complete_authorisation(BatchId(batch), Ok(()));
        }
        source.handle_frame(stream, Frame::Forget { batch: BatchId(0) }).unwrap();
        let files = vec![FileNumber(0), FileNumber(10)];
        source.handle_frame(stream, Frame::RequestPack { request: RequestId(0), files }).unwrap();
        outputs(&mut source);
        source.schedule_reads(9, 1 << 30, 9);
        assert!(matches!(&outputs(&mut source)[..], [Output::ReadPack { files, .. }] if files.len() == 2));
        assert!(source.file(FileNumber(0)).is_none(), "the reader finds no permit for it");
    }

    #[test]
    fn overlapping_or_discontinuous_manifests_are_refused() {
        let mut source = Source::default();
        let stream = source.stream_up();
        source.handle_frame(stream, part(0, 10, 5, true, true)).unwrap();
        assert!(source.handle_frame(stream, part(1, 12, 1, true, true)).is_err());
        let mut source = Source::default();
        let stream = source.stream_up();
        source.handle_frame(stream, part(0, 10, 5, true, true)).unwrap();
        assert!(source.handle_frame(stream, part(1, 8, 3, true, true)).is_err());
        assert!(source.handle_frame(stream, part(2, 20, 1, false, true)).is_err());
        let mut source = Source::default();
        let stream = source.stream_up();
        source.handle_frame(stream, part(0, 10, 5, true, true)).unwrap();
        source.handle_frame(stream, part(0, 10, 5, true, true)).unwrap();
        source.handle_frame(stream, part(1, 15, 5, true, true)).unwrap();
    }

    #[test]
    fn a_manifest_repeated_on_another_stream_is_answered_there_and_checked_once() {
        let mut source = Source::default();
        let (one, two, three) = (source.stream_up(), source.stream_up(), source.stream_up());
        source.handle_frame(one, part(0, 0, 2, true, true)).unwrap();
        source.handle_frame(two, part(0, 0, 2, true, true)).unwrap();
        assert_eq!(outputs(&mut source), vec![Output::Authorise { batch: BatchId(0) }]);
        source.complete_authorisation(BatchId(0), Ok(()));
        source.handle_frame(three, part(0, 0, 2, true, true)).unwrap();
        let answered = |output: &Output| match output {
            Output::Send { stream, frame: Frame::ManifestAnswer { fault: None, .. } } => Some(*stream),
            _ => None,
        };
        let answers: Vec<Option<JoinedStream>> = outputs(&mut source).iter().map(answered).collect();
        assert_eq!(answers, [Some(one), Some(two), Some(three)]);
        // Another list under the same number is a different manifest.
        source.handle_frame(two, part(0, 0, 3, true, true)).unwrap();
        assert_eq!(outputs(&mut source), vec![Output::Authorise { batch: BatchId(0) }]);
    }

    #[test]
    fn what_is_counted_is_what_the_batches_have() {
        let mut source = Source::default();
        let (stream, other) = (source.stream_up(), source.stream_up());
        let check = |source: &Source| {
            let files: usize = source.batches.values().map(|batch| batch.files.len()).sum();
            let permits: usize = source.batches.values().map(Batch::counted_permit_bytes).sum();
            assert_eq!((source.announced_files, source.permit_bytes), (files, permits));
        };
        // In parts, again, on another stream, as another list, overlapping, forgotten twice, cut off.
        let frames = [
            part(0, 0, 2, true, false),
            part(0, 2, 3, false, true),
            part(1, 5, 4, true, true),
            part(1, 5, 4, true, true),
            part(1, 5, 6, true, true),
            part(2, 5, 1, true, true),
            part(2, 4, 1, true, true),
            part(3, 9, 1, false, true),
            Frame::Forget { batch: BatchId(0) },
            Frame::Forget { batch: BatchId(0) },
            part(4, 20, 2, true, false),
        ];
        for frame in frames {
            for stream in [stream, other] {
                // A frame against the protocol closes its stream; the session goes on.
                let _ = source.handle_frame(stream, frame.clone());
                check(&source);
            }
        }
        assert!(source.manifest_bytes() > 0);
        source.stream_down(other);
        check(&source);
    }

    #[test]
    fn requests_and_files_are_bounded() {
        let mut source = Source::default();
        let stream = source.stream_up();
        let ping = || Frame::Request { request: RequestId(0), file: FileNumber(0), offset: 0, len: 1 };
        for _ in 0..STREAM_REQUESTS_MAX {
            source.handle_frame(stream, ping()).unwrap();
        }
        assert_eq!(source.handle_frame(stream, ping()).unwrap_err().code, FaultCode::ProtocolError);
        let mut at = 0;
        let refused = (0..).find_map(|batch| {
            let result = source.handle_frame(stream, part(batch, at, 200, true, true));
            at += 200;
            result.err()
        });
        assert_eq!(refused.unwrap().code, FaultCode::ProtocolError);
        assert!(at as usize <= SESSION_FILES_MAX + MANIFEST_FILES_MAX + 400);
    }

    #[test]
    fn streams_are_served_round_robin_within_their_share() {
        let mut source = Source::default();
        let (one, two) = (source.stream_up(), source.stream_up());
        source.handle_frame(one, part(0, 0, 4, true, true)).unwrap();
        source.complete_authorisation(BatchId(0), Ok(()));
        for stream in [one, two] {
            let len = 4 * u64::from(CHUNK_BYTES);
            source
                .handle_frame(
                    stream,
                    Frame::Request { request: RequestId(0), file: FileNumber(1), offset: 0, len },
                )
                .unwrap();
        }
        outputs(&mut source);
        let served = |source: &mut Source| -> Vec<u32> {
            outputs(source)
                .iter()
                .filter_map(|output| match output {
                    Output::ReadChunk { stream, .. } => Some(stream.0),
                    _ => None,
                })
                .collect()
        };
        assert_eq!(source.schedule_reads(3, u64::MAX, 2).0, 3);
        assert_eq!(served(&mut source), vec![0, 1, 0]);
        assert_eq!(source.schedule_reads(9, u64::MAX, 2).0, 1, "at most two buffers per stream");
        source.release_buffer(one);
        assert_eq!(source.schedule_reads(9, 1, 9).0, 1, "the rate limit stops after the first");
    }
}
