//! The receiver's side of a session against sources that answer as they like: no slot is lost or made, every
//! file ends once, and is complete only if all of it was written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AttemptId, Fault, FaultCode, Timestamp, TransferId};
use longhaul_wire::receiver::Output;
use longhaul_wire::{
    Budget, ChunkHead, FileNumber, Frame, NewBatch, NewFile, OriginNumber, PackEntry, PackHead, Receiver,
    Replica, RequestId, SourceIdentity, StreamNumber, Wanted,
};

use super::dice::Dice;

const CHUNK: u64 = CHUNK_BYTES as u64;
/// Streams of one source.
const STREAMS: usize = 3;
const BUFFERS: usize = 6;
/// Credits of the reorder buffer, in chunks.
const REORDER_CREDITS: usize = 3;
/// Sizes of the files, by turns: empty, small, just a chunk, large, with parts present.
const SIZES: [u64; 6] = [0, 10, CHUNK, CHUNK + 1, 5 * CHUNK, 9 * CHUNK - 7];

/// A chunk or small file that lies in a buffer.
type Part = (FileNumber, u64, u64);

#[derive(Default)]
struct Line {
    up: bool,
    dialling: bool,
    /// Requests as they were sent.
    asked: Vec<Frame>,
    arriving: Option<Vec<Part>>,
}

struct World<'a> {
    dice: Dice<'a>,
    now: Duration,
    receiver: Receiver,
    lines: Vec<Line>,
    free: usize,
    writing: Vec<(OriginNumber, Vec<Part>)>,
    origins: usize,
    files: Vec<Wish>,
}

struct Wish {
    size: u64,
    written: BTreeMap<u64, u64>,
    ended: bool,
    ours: bool,
}

pub fn receiver(bytes: &[u8]) {
    session(bytes, 1);
}

/// The same with several sources, whose chunks are compared with what is known of the file.
pub fn replicas(bytes: &[u8]) {
    session(bytes, 3);
}

fn session(bytes: &[u8], origins: usize) {
    let receiver = Receiver::with_origins(origins, STREAMS, Duration::ZERO);
    let lines = (0..STREAMS * origins).map(|_| Line::default()).collect();
    let mut world = World {
        dice: Dice::new(bytes),
        now: Duration::ZERO,
        receiver,
        lines,
        free: BUFFERS,
        writing: Vec::new(),
        origins,
        files: Vec::new(),
    };
    world.add_batch();
    while !world.dice.is_empty() {
        world.step();
        world.settle();
    }
    // However it went: everything ends when the session is given up.
    world.receiver.fail_all(&Fault::new(FaultCode::Internal, "over"), world.now);
    world.settle();
    assert!(!world.receiver.has_work() && world.files.iter().all(|file| file.ended));
}

impl World<'_> {
    fn add_batch(&mut self) {
        if self.files.len() > 60 {
            return;
        }
        let first = self.files.len();
        let mut files = Vec::new();
        for number in 0..=self.dice.below(8) {
            let size = SIZES[usize::from(self.dice.byte()) % SIZES.len()];
            let what = self.dice.below(8);
            let wanted = match what {
                0 => Wanted::Nothing,
                1 if size > 3 * CHUNK => Wanted::Parts(vec![(CHUNK, CHUNK)]),
                _ => Wanted::Everything,
            };
            let mut written = BTreeMap::new();
            if let Wanted::Parts(_) = wanted {
                (0..size).step_by(CHUNK as usize).filter(|at| *at != CHUNK).for_each(|at| {
                    written.insert(at, CHUNK.min(size - at));
                });
            }
            let ours = wanted != Wanted::Nothing;
            self.files.push(Wish { size, written, ended: !ours, ours });
            files.push(NewFile {
                attempt: AttemptId(number.into()),
                transfer: TransferId(1),
                lfn: format!("f{number}").parse().expect("it is a name"),
                size,
                priority: self.dice.below(2),
                identity: (what == 1).then(|| identity(u64::from(self.dice.below(2)))),
                wanted,
                checked: self.origins > 1,
                held_crc32c: (what > 5).then(|| {
                    (0..size).step_by(CHUNK as usize).map(|at| (at != CHUNK).then_some(0)).collect()
                }),
            });
        }
        let replica = |origin: usize| Replica {
            origin: OriginNumber(origin as u8),
            permit: "another".into(),
            storage: "beta".parse().expect("it is a name"),
            names: files.iter().map(|file: &NewFile| file.lfn.clone()).collect(),
        };
        let replicas = (1..self.origins).map(replica).collect();
        let start_by = if self.dice.below(8) == 0 { Timestamp(50) } else { Timestamp::MAX };
        let storage = "alpha".parse().expect("it is a name");
        let in_order = self.dice.below(4) == 0;
        let batch =
            NewBatch { permit: "permit".into(), storage, lane: 0, start_by, in_order, files, replicas };
        assert_eq!(self.receiver.add_batch(batch, self.now), FileNumber(first as u32));
    }

    fn step(&mut self) {
        match self.dice.below(16) {
            0 => self.add_batch(),
            1 => self.pass(),
            2 => self.dialled(),
            3 => self.raw_frame(),
            4 | 5 => self.deal(),
            6..=9 => self.answer(),
            10 => self.payload_ends(),
            11 | 12 => self.wrote(),
            13 => self.frame(),
            14 if self.dice.below(4) == 0 => self.cut(),
            15 if self.dice.below(4) == 0 => self.give_up(),
            _ => self.payload_ends(),
        }
    }

    fn pass(&mut self) {
        self.now += Duration::from_millis(u64::from(self.dice.byte()) * 40);
        self.receiver.handle_timeout(self.now);
    }

    fn line(&mut self) -> usize {
        usize::from(self.dice.byte()) % self.lines.len()
    }

    fn dialled(&mut self) {
        let Some(place) = self.lines.iter().position(|line| line.dialling) else { return };
        let line = &mut self.lines[place];
        line.dialling = false;
        let stream = StreamNumber(place as u32);
        if self.dice.below(4) == 0 {
            self.receiver.stream_down(stream, Fault::new(FaultCode::Unreachable, "no"), self.now);
        } else {
            line.up = true;
            line.asked.clear();
            let round_trip = Duration::from_millis(u64::from(self.dice.byte()));
            self.receiver.stream_up(stream, round_trip, self.now);
            if self.dice.below(4) > 0 {
                let version = 1 + u16::from(self.dice.below(3));
                let incarnation = u64::from(self.dice.below(16) == 0);
                self.receiver.handle_welcome(stream, version, incarnation, self.now);
            }
        }
    }

    fn deal(&mut self) {
        let bytes = if self.dice.below(4) == 0 { u64::from(self.dice.byte()) << 12 } else { u64::MAX };
        let reorder_credits = REORDER_CREDITS.saturating_sub(self.receiver.reorder_credits_in_use());
        let budget = Budget { buffers: self.free, bytes, window: BUFFERS, reorder_credits };
        let taken = {
            let behind = self.dice.below(4) as u32;
            let is_behind = |file: FileNumber| file.0 % 4 == behind;
            self.receiver.request_chunks(budget, Timestamp(100), self.now, &is_behind)
        };
        assert!(taken <= self.free, "no more slots than there are");
        self.free -= taken;
    }

    /// Answers a request that was made, right or nearly so.
    fn answer(&mut self) {
        let place = self.line();
        if self.lines[place].asked.is_empty() {
            return;
        }
        let which = usize::from(self.dice.byte()) % self.lines[place].asked.len();
        let lie = self.dice.byte();
        match self.lines[place].asked[which].clone() {
            Frame::Request { request, file, offset, len }
            | Frame::RequestIfChanged { request, file, offset, len, .. } => {
                let chunks = len.div_ceil(CHUNK);
                let at = offset + u64::from(self.dice.byte()) % chunks.max(1) * CHUNK;
                let size = self.files.get(file.0 as usize).map_or(0, |file| file.size);
                let payload = CHUNK.min(size.saturating_sub(at)) as u32;
                let mut head = ChunkHead {
                    request,
                    file,
                    offset: at,
                    crc32c: 0,
                    identity: identity(u64::from(lie & 1)),
                };
                let mut payload = payload;
                match lie >> 3 {
                    1 => payload = payload.wrapping_add(1).min(CHUNK_BYTES),
                    2 => head.file = FileNumber(file.0 ^ 1),
                    3 => head.offset += 1,
                    4 => head.request = RequestId(request.0 + 7),
                    5 => head.offset = u64::MAX - 5,
                    _ => {}
                }
                if lie >> 3 == 6 {
                    self.unchanged(place, &head);
                } else {
                    self.data(place, &head, payload);
                }
            }
            Frame::RequestPack { request, files } => {
                let mut entries: Vec<PackEntry> = Vec::new();
                for file in files {
                    let size = self.files.get(file.0 as usize).map_or(0, |file| file.size) as u32;
                    entries.push(match self.dice.below(16) {
                        0 => PackEntry::Fault { file, fault: Fault::new(FaultCode::SourceMissing, "gone") },
                        1 => PackEntry::Whole { file, size: size ^ 1, crc32c: 0, identity: identity(0) },
                        _ => {
                            PackEntry::Whole { file, size, crc32c: 0, identity: identity(u64::from(lie & 1)) }
                        }
                    });
                }
                match lie >> 3 {
                    1 => drop(entries.pop()),
                    2 => entries.extend(entries.clone()),
                    3 => entries.reverse(),
                    _ => {}
                }
                let payload: u64 = entries.iter().map(entry_size).sum();
                let payload = (payload as u32).wrapping_add(u32::from(lie >> 3 == 4)).min(CHUNK_BYTES);
                self.pack(place, &PackHead { request, entries }, payload);
            }
            _ => {}
        }
    }

    fn data(&mut self, place: usize, head: &ChunkHead, payload: u32) {
        if !self.begins(place) {
            return;
        }
        let stream = StreamNumber(place as u32);
        self.receiver.note_received(stream, payload.into(), self.now);
        match self.receiver.begin_chunk(stream, head, payload, self.now) {
            Ok(true) => self.lines[place].arriving = Some(vec![(head.file, head.offset, payload.into())]),
            Ok(false) => self.receiver.end_payload(stream),
            Err(fault) => self.close(place, fault),
        }
    }

    fn unchanged(&mut self, place: usize, head: &ChunkHead) {
        if !self.begins(place) {
            return;
        }
        let stream = StreamNumber(place as u32);
        match self.receiver.begin_unchanged(stream, head, self.now) {
            Ok(true) => {
                let size = self.files.get(head.file.0 as usize).map_or(0, |file| file.size);
                let len = CHUNK.min(size.saturating_sub(head.offset));
                self.writing.push((self.receiver.origin_of(stream), vec![(head.file, head.offset, len)]));
            }
            Ok(false) => {}
            Err(fault) => self.close(place, fault),
        }
    }

    fn pack(&mut self, place: usize, head: &PackHead, payload: u32) {
        if !self.begins(place) {
            return;
        }
        let stream = StreamNumber(place as u32);
        self.receiver.note_received(stream, payload.into(), self.now);
        match self.receiver.begin_pack(stream, head, payload, self.now) {
            Ok(wanted) if wanted.is_empty() => self.receiver.end_payload(stream),
            Ok(wanted) => {
                for packed in &wanted {
                    assert!(u64::from(packed.at) + u64::from(packed.size) <= u64::from(payload), "inside");
                }
                let parts = wanted.iter().map(|packed| (packed.file, 0, packed.size.into())).collect();
                self.lines[place].arriving = Some(parts);
            }
            Err(fault) => self.close(place, fault),
        }
    }

    /// A stream brings one payload after the other.
    fn begins(&mut self, place: usize) -> bool {
        if self.lines[place].arriving.is_some() {
            self.end_payload(place);
            self.settle();
        }
        self.lines[place].up
    }

    fn payload_ends(&mut self) {
        let place = self.line();
        self.end_payload(place);
    }

    fn end_payload(&mut self, place: usize) {
        if let Some(parts) = self.lines[place].arriving.take() {
            let stream = StreamNumber(place as u32);
            self.receiver.end_payload(stream);
            self.writing.push((self.receiver.origin_of(stream), parts));
        }
    }

    fn wrote(&mut self) {
        if self.writing.is_empty() {
            return;
        }
        let which = usize::from(self.dice.byte()) % self.writing.len();
        let (from, parts) = self.writing.swap_remove(which);
        self.free += 1;
        for (number, offset, len) in parts {
            if self.dice.below(8) == 0 {
                self.receiver.chunk_damaged(number, offset, self.now);
                continue;
            }
            if self.origins > 1 && self.dice.below(4) == 0 {
                self.receiver.chunk_wrong(number, offset, from, self.now);
                self.settle();
                continue;
            }
            let file = &mut self.files[number.0 as usize];
            if !file.ended {
                file.written.insert(offset, len);
            }
            self.receiver.chunk_written(number, offset, self.now);
            self.settle();
        }
    }

    fn raw_frame(&mut self) {
        let (kind, len) = (self.dice.below(20), self.dice.byte());
        let body = self.dice.bytes(usize::from(len));
        let Ok(frame) = Frame::decode(kind, body) else { return };
        let place = self.line();
        self.take(place, frame);
    }

    fn frame(&mut self) {
        let place = self.line();
        let request = RequestId(self.dice.below(16).into());
        let file = FileNumber(self.dice.below(32).into());
        let fault = Fault::new(FaultCode::SourceMissing, "gone");
        let frame = match self.dice.below(6) {
            0 => Frame::FileFault { request, file, fault },
            1 | 2 => Frame::ManifestAnswer { batch: longhaul_wire::BatchId(file.0 % 8), fault: None },
            3 => Frame::ManifestAnswer { batch: longhaul_wire::BatchId(file.0 % 8), fault: Some(fault) },
            4 => Frame::Ping { number: 1 },
            _ => Frame::Pong { number: 1 },
        };
        self.take(place, frame);
    }

    /// As the engine does with what a stream brings.
    fn take(&mut self, place: usize, frame: Frame) {
        match frame {
            Frame::Data(head) => {
                let payload = u32::from(self.dice.byte()) << 12;
                self.data(place, &head, payload);
            }
            Frame::PackData(head) => {
                let payload = head.entries.iter().map(entry_size).sum::<u64>().min(CHUNK) as u32;
                self.pack(place, &head, payload);
            }
            frame => {
                if !self.begins(place) {
                    return;
                }
                let stream = StreamNumber(place as u32);
                self.receiver.note_received(stream, 0, self.now);
                if let Err(fault) = self.receiver.handle_frame(stream, frame, self.now) {
                    self.close(place, fault);
                }
            }
        }
    }

    fn cut(&mut self) {
        let place = self.line();
        if self.lines[place].up {
            self.close(place, Fault::new(FaultCode::ConnectionLost, "reset"));
        }
    }

    /// The engine closes a stream: a buffer that was filling is free again.
    fn close(&mut self, place: usize, fault: Fault) {
        self.hang_up(place);
        self.receiver.stream_down(StreamNumber(place as u32), fault, self.now);
    }

    fn hang_up(&mut self, place: usize) {
        let line = &mut self.lines[place];
        self.free += usize::from(line.arriving.is_some());
        *line = Line { dialling: line.dialling, ..Line::default() };
    }

    fn give_up(&mut self) {
        let which = usize::from(self.dice.byte()) % self.files.len();
        let file = &mut self.files[which];
        file.ended = true;
        self.receiver.remove_file(FileNumber(which as u32), self.now);
    }

    fn settle(&mut self) {
        self.free += self.receiver.take_freed_slots();
        let mut seen = BTreeSet::new();
        for count in 0.. {
            assert!(count < 10_000, "one event does not make many");
            let Some(output) = self.receiver.poll_output() else { break };
            self.output(output, &mut seen);
        }
        self.free += self.receiver.take_freed_slots();
        let arriving = self.lines.iter().filter(|line| line.arriving.is_some()).count();
        let held = self.receiver.slots_in_use() + arriving + self.writing.len();
        assert_eq!(held + self.free, BUFFERS, "no slot is lost or made");
    }

    fn output(&mut self, output: Output, closed: &mut BTreeSet<u32>) {
        match output {
            Output::Send { stream, frame } => {
                assert!(frame.encode(0).len() > 11);
                let line = &mut self.lines[stream.0 as usize];
                if matches!(
                    frame,
                    Frame::Request { .. } | Frame::RequestIfChanged { .. } | Frame::RequestPack { .. }
                ) {
                    assert!(line.up || closed.contains(&stream.0), "only open streams are asked");
                    line.asked.push(frame);
                }
            }
            Output::Dial { stream } => {
                let line = &mut self.lines[stream.0 as usize];
                assert!(!line.up && !line.dialling, "one connection at a time");
                line.dialling = true;
            }
            Output::Close { stream, .. } => {
                // It is given up already: the receiver hears no more of it.
                closed.insert(stream.0);
                self.hang_up(stream.0 as usize);
            }
            Output::Started { file } | Output::Restarted { file } | Output::SourceExcluded { file, .. } => {
                self.begun(file)
            }
            Output::Complete { file } => {
                let file = &mut self.files[file.0 as usize];
                assert!(!file.ended && file.ours, "a file ends once");
                file.ended = true;
                let written: u64 = file.written.values().sum();
                assert_eq!(written, file.size, "complete is all of it");
            }
            Output::Failed { file, .. } => {
                let file = &mut self.files[file.0 as usize];
                assert!(!file.ended && file.ours, "a file ends once");
                file.ended = true;
            }
        }
    }

    fn begun(&mut self, file: FileNumber) {
        assert!(self.files[file.0 as usize].ours);
    }
}

fn identity(which: u64) -> SourceIdentity {
    SourceIdentity { size: 1, mtime_ns: which as i64, inode: 1 }
}

fn entry_size(entry: &PackEntry) -> u64 {
    match entry {
        PackEntry::Whole { size, .. } => u64::from(*size),
        PackEntry::Fault { .. } => 0,
    }
}
