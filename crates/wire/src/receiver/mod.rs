//! The receiver's side of a session: which files are wanted, what to request on which stream, what is
//! complete.
//!
//! Inputs are the `handle_…` and named methods, then [`Receiver::request_chunks`]; outputs come from
//! [`Receiver::poll_output`]. Memory is bounded by credit-based flow control: each requested chunk or pack
//! holds one *slot* from the budget given to `request_chunks`. When wanted data begins to arrive, the slot
//! becomes the caller's buffer; otherwise it returns through [`Receiver::take_freed_slots`]. So there are
//! never more buffers than slots.
//!
//! ```text
//! file:   wanted ─► requested ─► writing ─► (all written) complete     any ─► failed, removed
//!            ▲─────────┴─ stream died ──┘ damaged
//! stream: down ─► dialling ─► up ─► down
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::limits::SMALL_FILE_BYTES;
use longhaul_model::{AttemptId, Fault, FaultCode, Lfn, StorageName, Timestamp, TransferId};

use crate::frame::{BatchId, FileNumber, Frame, ManifestFile};
use crate::identity::SourceIdentity;

mod endgame;
mod file;
mod incoming;
mod origins;
mod overdue_files;
mod paths;
mod request_scheduler;
mod source_faults;
mod streams;

use file::{Body, ExpectedIdentity, File, LargeState, SmallState};
pub use incoming::PackedFile;
use origins::{FileSources, Origin};
pub use origins::{ORIGINS_MAX, OriginNumber};
pub use paths::PathSnapshot;
pub use source_faults::confine_to_source;
use streams::{State, Stream};

/// Position of one of the session's TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNumber(pub u32);

/// Files to fetch under one permit.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// Signed permit that the source will check.
    pub permit: Arc<str>,
    /// Where the files are at the source.
    pub storage: StorageName,
    /// Files of one lane may share a pack: those of the same target storage.
    pub lane: u16,
    /// The target only appends: it writes each file from its beginning to its end.
    pub in_order: bool,
    /// Files that have not started by then fail: their lease would run out.
    pub start_by: Timestamp,
    /// All files of the permit, in its order.
    pub files: Vec<NewFile>,
    /// Further sources, for those of the files that are verified chunk by chunk.
    pub replicas: Vec<Replica>,
}

/// Another source of the files of a batch.
#[derive(Clone, Debug)]
pub struct Replica {
    /// The source.
    pub origin: OriginNumber,
    /// Signed permit for this source.
    pub permit: Arc<str>,
    /// Where the files are at this source.
    pub storage: StorageName,
    /// The names of the files there, in the order of the batch.
    pub names: Vec<Lfn>,
}

/// A file of a batch.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Attempt that the permit names.
    pub attempt: AttemptId,
    /// Transfer that the attempt belongs to, for logs.
    pub transfer: TransferId,
    /// Logical name of the file.
    pub lfn: Lfn,
    /// Registered size, in bytes.
    pub size: u64,
    /// Higher goes first.
    pub priority: u8,
    /// Which bytes are missing.
    pub wanted: Wanted,
    /// The source's identity when the parts that are present were read.
    pub identity: Option<SourceIdentity>,
    /// The writer knows the digest of each chunk, and calls [`Receiver::chunk_wrong`] for one that differs.
    pub checked: bool,
    /// CRC-32C of each chunk of a file that is held already, and may differ in some of them: only those are
    /// sent. None of a chunk that is not held. Ignored for small files.
    pub held_crc32c: Option<Box<[Option<u32>]>>,
}

/// What to fetch of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The permit lists it, but it is not wanted.
    Nothing,
    /// The whole file.
    Everything,
    /// (offset, length), at chunk boundaries; large files only.
    Parts(Vec<(u64, u64)>),
}

/// What `request_chunks` may use now.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Free buffers.
    pub buffers: usize,
    /// Payload that the rate limit allows; the last request may exceed it.
    pub bytes: u64,
    /// The session's fair share of slots.
    pub window: usize,
    /// Free credits for the reorder buffer: chunks of in-order files that may be requested ahead of their
    /// turn.
    pub reorder_credits: usize,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a frame.
    Send {
        /// Stream to send it on.
        stream: StreamNumber,
        /// The frame.
        frame: Frame,
    },
    /// Connect, send Hello, then call `stream_up`, and `handle_welcome` when the source has answered; or
    /// `stream_down`.
    Dial {
        /// Stream to connect.
        stream: StreamNumber,
    },
    /// The stream is released already; close its connection.
    Close {
        /// Stream to close.
        stream: StreamNumber,
        /// Why it is closed; none if it is no longer needed.
        fault: Option<Fault>,
    },
    /// The first request for the file was sent.
    Started {
        /// Number of the file.
        file: FileNumber,
    },
    /// The source's file has changed since the present parts were fetched: they are void.
    Restarted {
        /// Number of the file.
        file: FileNumber,
    },
    /// All of it is written; the session is done with the file.
    Complete {
        /// Number of the file.
        file: FileNumber,
    },
    /// The file cannot be fetched; the session is done with it.
    Failed {
        /// Number of the file.
        file: FileNumber,
        /// Why it cannot be fetched.
        fault: Fault,
    },
    /// One of several sources is no longer used for the file.
    SourceExcluded {
        /// Number of the file.
        file: FileNumber,
        /// The source that is dropped.
        origin: OriginNumber,
        /// Why it is dropped.
        fault: Fault,
    },
}

/// The files of one permit.
struct Batch {
    start_by: Timestamp,
    first: FileNumber,
    count: usize,
    /// Files that are not finished.
    open: usize,
    /// One manifest per source.
    manifests: Vec<BatchManifest>,
}

/// The manifest of a batch for one source.
struct BatchManifest {
    origin: OriginNumber,
    permit: Arc<str>,
    storage: StorageName,
    files: Vec<ManifestFile>,
    announced: Announcement,
    /// Live streams on which it was sent.
    sent_on: BTreeSet<StreamNumber>,
    /// The source may still hold it, even if its answer was lost.
    may_be_held: bool,
}

/// How far the announcement of a manifest has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announcement {
    NotSent,
    /// Requests may follow at once on the streams where it was sent, on others after the answer.
    Sent,
    Answered,
}

impl Batch {
    fn manifest_for(&self, origin: OriginNumber) -> Option<&BatchManifest> {
        self.manifests.iter().find(|listed| listed.origin == origin)
    }

    fn manifest_for_mut(&mut self, origin: OriginNumber) -> Option<&mut BatchManifest> {
        self.manifests.iter_mut().find(|listed| listed.origin == origin)
    }
}

impl BatchManifest {
    fn new(
        origin: OriginNumber,
        permit: Arc<str>,
        storage: StorageName,
        files: Vec<ManifestFile>,
    ) -> BatchManifest {
        let said_on = BTreeSet::new();
        BatchManifest {
            origin,
            permit,
            storage,
            files,
            announced: Announcement::NotSent,
            sent_on: said_on,
            may_be_held: false,
        }
    }

    /// Whether the source will know the batch when a request on this stream arrives.
    fn is_announced_on(&self, stream: StreamNumber) -> bool {
        match self.announced {
            Announcement::NotSent => false,
            Announcement::Sent => self.sent_on.contains(&stream),
            Announcement::Answered => true,
        }
    }
}

/// State machine of the receiving end.
pub struct Receiver {
    batches: BTreeMap<BatchId, Batch>,
    files: BTreeMap<FileNumber, File>,
    /// Small files to request, by priority.
    small: BTreeSet<(Reverse<u8>, FileNumber)>,
    /// Large files with parts to request, by priority.
    large: BTreeSet<(Reverse<u8>, FileNumber)>,
    /// In-order files of which something was requested.
    in_order_files: BTreeSet<FileNumber>,
    /// Round-robin position among the first large files, and between small and large.
    turn: usize,
    streams: Vec<Stream>,
    /// The source, or several that hold the same files.
    origins: Vec<Origin>,
    /// Traffic of all streams since the session began.
    totals: paths::PathTotals,
    next_batch: u32,
    next_file: u32,
    idle_since: Duration,
    /// When time-outs were last checked.
    timeouts_checked_at: Duration,
    /// When the rates of the streams were last compared.
    rates_compared_at: Duration,
    /// When files that sources pass over were last looked for.
    overdue_checked_at: Duration,
    freed_slots: usize,
    requested_bytes: u64,
    unsent_bytes: u64,
    outputs: VecDeque<Output>,
}

impl Receiver {
    /// A session with one source, of a fixed number of streams.
    pub fn new(streams: usize, now: Duration) -> Self {
        assert!(streams > 0, "a session needs at least one stream");
        Receiver {
            batches: BTreeMap::new(),
            files: BTreeMap::new(),
            small: BTreeSet::new(),
            large: BTreeSet::new(),
            in_order_files: BTreeSet::new(),
            turn: 0,
            streams: (0..streams).map(|_| Stream::new(OriginNumber(0))).collect(),
            origins: vec![Origin::new(streams, now)],
            totals: paths::PathTotals::default(),
            next_batch: 0,
            next_file: 0,
            idle_since: now,
            timeouts_checked_at: now,
            rates_compared_at: now,
            overdue_checked_at: now,
            freed_slots: 0,
            requested_bytes: 0,
            unsent_bytes: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Whether the file numbers suffice for a batch of this size. If not, a new session is needed.
    pub fn has_file_numbers(&self, files: usize) -> bool {
        u32::try_from(files).is_ok_and(|files| self.next_file.checked_add(files).is_some())
            && self.next_batch < u32::MAX
    }

    /// Adds a batch; its files are numbered consecutively from the returned one.
    ///
    /// # Panics
    /// If the file numbers are exhausted: see [`Receiver::has_file_numbers`].
    pub fn add_batch(&mut self, batch: NewBatch, now: Duration) -> FileNumber {
        assert!(self.has_file_numbers(batch.files.len()), "the file numbers of the session are exhausted");
        if self.files.is_empty() {
            self.reset_origins();
        }
        let first = self.next_file;
        let next_file = first + batch.files.len() as u32;
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        self.next_file = next_file;
        let open = batch.files.iter().filter(|file| file.wanted != Wanted::Nothing).count();
        let known = Batch {
            start_by: batch.start_by,
            first: FileNumber(first),
            count: batch.files.len(),
            open,
            manifests: self.manifests(&batch),
        };
        for (number, file) in (first..next_file).map(FileNumber).zip(&batch.files) {
            if file.wanted != Wanted::Nothing {
                let sources =
                    FileSources::new(known.manifests.iter().map(|listed| listed.origin), file.checked);
                self.add_file(number, id, (batch.lane, batch.in_order), file, sources);
            }
        }
        if open > 0 {
            self.batches.insert(id, known);
            self.check_new_files(FileNumber(first), now);
            self.handle_timeout(now);
        }
        FileNumber(first)
    }

    /// One manifest per source, without sources that are excluded (unless all are).
    fn manifests(&self, batch: &NewBatch) -> Vec<BatchManifest> {
        let listed = |file: &NewFile, lfn: &Lfn| ManifestFile {
            attempt: file.attempt,
            transfer: file.transfer,
            lfn: lfn.clone(),
            size: file.size,
        };
        let files = batch.files.iter().map(|file| listed(file, &file.lfn)).collect();
        let mut all =
            vec![BatchManifest::new(OriginNumber(0), batch.permit.clone(), batch.storage.clone(), files)];
        for replica in &batch.replicas {
            let known = usize::from(replica.origin.0) < self.origins.len()
                && all.iter().all(|listed| listed.origin != replica.origin);
            if known && replica.names.len() == batch.files.len() {
                let files =
                    batch.files.iter().zip(&replica.names).map(|(file, lfn)| listed(file, lfn)).collect();
                all.push(BatchManifest::new(
                    replica.origin,
                    replica.permit.clone(),
                    replica.storage.clone(),
                    files,
                ));
            }
        }
        let lost = |listed: &BatchManifest| self.origins[usize::from(listed.origin.0)].excluded;
        if !all.iter().all(lost) {
            all.retain(|listed| !lost(listed));
        }
        all
    }

    fn add_file(
        &mut self,
        number: FileNumber,
        batch: BatchId,
        (lane, in_order): (u16, bool),
        new: &NewFile,
        sources: FileSources,
    ) {
        let place = (Reverse(new.priority), number);
        let body = if new.size <= SMALL_FILE_BYTES {
            self.small.insert(place);
            Body::Small(SmallState::Wanted)
        } else {
            self.large.insert(place);
            let large = match &new.wanted {
                Wanted::Parts(parts) => LargeState::with_missing(parts),
                _ => LargeState::with_missing(&[(0, new.size)]),
            };
            Body::Large(LargeState { in_order, ..large })
        };
        let identity = new.identity.map(|identity| ExpectedIdentity { identity, confirmed: false });
        let (priority, size) = (new.priority, new.size);
        self.files.insert(
            number,
            File {
                batch,
                lane,
                priority,
                size,
                identity,
                sources,
                started: false,
                damaged_chunks: 0,
                held_crc32c: new.held_crc32c.clone().filter(|_| new.size > SMALL_FILE_BYTES),
                body,
            },
        );
    }

    /// The next action; none if there is nothing to do for now.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Slots freed since the last call.
    pub fn take_freed_slots(&mut self) -> usize {
        std::mem::take(&mut self.freed_slots)
    }

    /// Payload requested since the last call, for the rate limit.
    pub fn take_requested_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.requested_bytes)
    }

    /// Payload since the last call that was requested and not sent, as the source has it unchanged: the rate
    /// limit gets it back.
    pub fn take_unsent_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.unsent_bytes)
    }

    /// Slots in use by requests.
    pub fn slots_in_use(&self) -> usize {
        self.streams.iter().map(Stream::slots).sum()
    }

    /// Reorder credits in use.
    pub fn reorder_credits_in_use(&self) -> usize {
        let held = |number| match self.files.get(number).map(|file| &file.body) {
            Some(Body::Large(large)) => large.out_of_order.len(),
            _ => 0,
        };
        self.in_order_files.iter().map(held).sum()
    }

    /// Number of connected streams.
    pub fn streams_up(&self) -> usize {
        self.streams.iter().filter(|stream| stream.up().is_some()).count()
    }

    /// Whether any file is unfinished.
    pub fn has_work(&self) -> bool {
        !self.files.is_empty()
    }

    /// Whether there are files left to request: the session would use more slots.
    pub fn has_unrequested_files(&self) -> bool {
        !self.small.is_empty() || !self.large.is_empty()
    }

    /// Since when the session has had no work.
    pub fn idle_since(&self) -> Option<Duration> {
        self.files.is_empty().then_some(self.idle_since)
    }

    /// The bytes of a chunk (or whole small file, at offset 0) were handed to the storage.
    pub fn chunk_written(&mut self, number: FileNumber, offset: u64, now: Duration) {
        let Some(file) = self.files.get_mut(&number) else { return };
        if file.body.chunk_written(offset) {
            self.drop_file(number, now);
            self.outputs.push_back(Output::Complete { file: number });
        }
    }

    /// A chunk (or whole small file) arrived with a wrong checksum.
    pub fn chunk_damaged(&mut self, number: FileNumber, offset: u64, now: Duration) {
        let Some(file) = self.files.get_mut(&number) else { return };
        file.damaged_chunks = file.damaged_chunks.saturating_add(1);
        if file.damaged_chunks > crate::limits::DAMAGED_TRIES_MAX {
            let tries = file.damaged_chunks;
            let fault = Fault::new(
                FaultCode::Corrupted,
                format!("the chunk at {offset} arrived damaged {tries} times"),
            );
            self.fail_file(number, fault, now);
        } else {
            file.body.requeue_chunk(offset, file.size);
            self.enqueue(number);
        }
    }

    /// A chunk that the source has unchanged is not held after all: it is requested anew, whatever its
    /// checksum.
    pub fn chunk_not_held(&mut self, number: FileNumber, offset: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        file.forget_held(offset);
        file.body.requeue_chunk(offset, file.size);
        self.enqueue(number);
    }

    /// The caller abandons the file: it is cancelled, or cannot be written. No output follows.
    pub fn remove_file(&mut self, number: FileNumber, now: Duration) {
        self.drop_file(number, now);
    }

    /// Fails every file, as after a fault that concerns the peer as a whole.
    pub fn fail_all(&mut self, fault: &Fault, now: Duration) {
        let numbers: Vec<FileNumber> = self.files.keys().copied().collect();
        for number in numbers {
            self.fail_file(number, fault.clone(), now);
        }
    }

    fn fail_file(&mut self, number: FileNumber, fault: Fault, now: Duration) {
        if self.files.contains_key(&number) {
            self.drop_file(number, now);
            self.outputs.push_back(Output::Failed { file: number, fault });
        }
    }

    fn drop_file(&mut self, number: FileNumber, now: Duration) {
        let Some(file) = self.files.remove(&number) else { return };
        self.origins.iter_mut().for_each(|origin| origin.overdue.forget(number));
        self.small.remove(&file.queue_key(number));
        self.large.remove(&file.queue_key(number));
        self.in_order_files.remove(&number);
        if self.files.is_empty() {
            self.idle_since = now;
            self.reset_origins();
        }
        let Some(batch) = self.batches.get_mut(&file.batch) else { return };
        batch.open -= 1;
        if batch.open > 0 {
            return;
        }
        let Some(batch) = self.batches.remove(&file.batch) else { return };
        for listed in batch.manifests {
            let origin = self.origin(listed.origin);
            if listed.announced != Announcement::NotSent {
                origin.announced_files -= batch.count;
            }
            if listed.may_be_held {
                origin.pending_forgets.push((file.batch, listed.sent_on));
                self.send_forgets(listed.origin);
            }
        }
    }

    /// Queues a file for `request_chunks`, if anything of it is left to request.
    fn enqueue(&mut self, number: FileNumber) {
        let Some(file) = self.files.get(&number) else { return };
        match &file.body {
            Body::Small(SmallState::Wanted) => self.small.insert(file.queue_key(number)),
            Body::Large(large) if !large.missing.is_empty() => self.large.insert(file.queue_key(number)),
            _ => false,
        };
    }

    /// Sends `Forget` on each stream that carried the manifest: it arrives after the manifest if that is
    /// still in flight.
    fn send_forgets(&mut self, origin: OriginNumber) {
        let Some(first) = self.first_stream_up(origin) else { return };
        for (batch, mut said_on) in std::mem::take(&mut self.origin(origin).pending_forgets) {
            said_on.retain(|stream| self.streams[stream.0 as usize].up().is_some());
            if said_on.is_empty() {
                said_on.insert(first);
            }
            let say = |stream| Output::Send { stream, frame: Frame::Forget { batch } };
            self.outputs.extend(said_on.into_iter().map(say));
        }
    }

    fn first_stream_up(&self, origin: OriginNumber) -> Option<StreamNumber> {
        let is_up = |stream: &Stream| stream.origin == origin && stream.up().is_some();
        self.streams.iter().position(is_up).map(|place| StreamNumber(place as u32))
    }

    #[cfg(test)]
    pub(crate) fn expire_all(&mut self) {
        self.batches.values_mut().for_each(|batch| batch.start_by = Timestamp(-1));
    }

    fn state(&mut self, stream: StreamNumber) -> Option<&mut State> {
        self.streams.get_mut(stream.0 as usize).map(|stream| &mut stream.state)
    }
}
