//! The source's side of a session under a target that sends any frames it likes, in any order.

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AttemptId, Fault, FaultCode, StorageName, TransferId};
use longhaul_wire::limits::{EXTENT_CHUNKS_MAX, MANIFEST_FILES_MAX, PACK_FILES_MAX, SESSION_FILES_MAX};
use longhaul_wire::source::{JoinedStream, Output};
use longhaul_wire::{BatchId, FileNumber, Frame, Manifest, ManifestFile, RequestId, Source};

use super::dice::Dice;

const BUFFERS: usize = 6;
const PER_STREAM: usize = 2;

struct World<'a> {
    dice: Dice<'a>,
    source: Source,
    streams: Vec<JoinedStream>,
    /// Buffers being read into or on their way out.
    reading: Vec<JoinedStream>,
}

pub fn source(bytes: &[u8]) {
    let mut world =
        World { dice: Dice::new(bytes), source: Source::default(), streams: Vec::new(), reading: Vec::new() };
    while !world.dice.is_empty() {
        world.step();
        world.outputs();
        assert!(world.source.streams() == world.streams.len());
        assert!(
            world.source.manifest_bytes() <= (SESSION_FILES_MAX + MANIFEST_FILES_MAX) * 200 + (256 << 20)
        );
    }
}

impl World<'_> {
    fn step(&mut self) {
        match self.dice.below(8) {
            0 if self.streams.len() < 4 => self.streams.push(self.source.stream_up()),
            1 if self.dice.below(4) == 0 => self.hang_up(),
            2 => self.free_buffer(),
            3 | 4 => self.deal(),
            5 => self.raw_frame(),
            _ => self.frame(),
        }
    }

    fn stream(&mut self) -> Option<JoinedStream> {
        let which = self.dice.byte();
        if self.streams.is_empty() {
            return None;
        }
        Some(self.streams[usize::from(which) % self.streams.len()])
    }

    fn hang_up(&mut self) {
        if let Some(stream) = self.stream() {
            self.close(stream);
        }
    }

    fn close(&mut self, stream: JoinedStream) {
        self.streams.retain(|other| *other != stream);
        self.source.stream_down(stream);
    }

    fn free_buffer(&mut self) {
        if let Some(stream) = self.reading.pop() {
            if self.dice.below(4) == 0 {
                self.source.abandon_request(stream, RequestId(u32::from(self.dice.below(8))));
            }
            self.source.release_buffer(stream);
        }
    }

    fn deal(&mut self) {
        let free = BUFFERS - self.reading.len();
        let bytes = if self.dice.flag() { u64::MAX } else { u64::from(self.dice.byte()) << 16 };
        let (taken, _) = self.source.schedule_reads(free, bytes, PER_STREAM);
        assert!(taken <= free, "no more buffers than there are");
        let before = self.reading.len();
        self.outputs();
        assert!(self.reading.len() - before == taken, "a buffer for each read");
    }

    fn raw_frame(&mut self) {
        let (kind, len) = (self.dice.below(20), self.dice.byte());
        let body = self.dice.bytes(usize::from(len));
        if let Ok(frame) = Frame::decode(kind, body) {
            self.send(frame);
        }
    }

    fn frame(&mut self) {
        let (batch, request) = (BatchId(self.dice.below(4).into()), RequestId(self.dice.below(8).into()));
        let file = FileNumber(u32::from(self.dice.below(24)));
        let frame = match self.dice.below(6) {
            0 | 1 => Frame::Manifest(self.manifest(batch)),
            2 => Frame::Forget { batch },
            3 => {
                let count = 1 + self.dice.below(4);
                let files = (0..count).map(|_| FileNumber(self.dice.below(24).into())).collect();
                Frame::RequestPack { request, files }
            }
            _ => {
                let offset = u64::from(self.dice.below(4)) * u64::from(CHUNK_BYTES);
                let chunks = 1 + u64::from(self.dice.below(EXTENT_CHUNKS_MAX as u8));
                Frame::Request { request, file, offset, len: chunks * u64::from(CHUNK_BYTES) }
            }
        };
        self.send(frame);
    }

    fn manifest(&mut self, batch: BatchId) -> Manifest {
        let first = if self.dice.below(8) == 0 { u32::MAX - 3 } else { self.dice.below(24).into() };
        let permit = (self.dice.below(4) > 0).then(|| "permit".into());
        let count = self.dice.below(6).min((u32::MAX - first).min(6) as u8);
        let storage = StorageName::parse(if self.dice.flag() { "one" } else { "two" }).expect("names");
        let file = |number: u8| ManifestFile {
            attempt: AttemptId(number.into()),
            transfer: TransferId(1),
            lfn: format!("f{number}").parse().expect("it is a name"),
            size: u64::from(number) << 19,
        };
        Manifest {
            batch,
            first: FileNumber(first),
            permit,
            storage,
            last_part: self.dice.below(4) > 0,
            files: (0..count).map(file).collect(),
        }
    }

    fn send(&mut self, frame: Frame) {
        let Some(stream) = self.stream() else { return };
        if self.source.handle_frame(stream, frame).is_err() {
            self.close(stream);
        }
    }

    fn outputs(&mut self) {
        let mut count = 0;
        while let Some(output) = self.source.poll_output() {
            count += 1;
            assert!(count < 10_000, "one frame does not make many");
            match output {
                Output::Send { frame, .. } => assert!(frame.encode(0).len() > 11),
                Output::Authorise { batch } => {
                    let known = self.source.batch(batch).is_some();
                    let refusal = Fault::new(FaultCode::PermitRefused, "no");
                    let good = self.dice.below(4) > 0;
                    self.source.complete_authorisation(batch, if good { Ok(()) } else { Err(refusal) });
                    assert!(known || self.source.batch(batch).is_none());
                }
                Output::ReadChunk { stream, file, len, .. } => {
                    assert!(len > 0 && len <= CHUNK_BYTES);
                    self.read(stream, &[file]);
                }
                Output::ReadPack { stream, files, .. } => {
                    assert!(files.len() <= PACK_FILES_MAX);
                    // Whoever reads asks for each, and finds those only that a permit covers.
                    let known = |file: &FileNumber| self.source.file(*file).is_some();
                    let readable: Vec<FileNumber> = files.into_iter().filter(known).collect();
                    assert!(!readable.is_empty(), "a pack is read without any permit");
                    self.read(stream, &readable);
                }
            }
        }
    }

    /// Nothing is read but files of accepted manifests. (That a pack is of one storage is seen to where it is
    /// read: the hostile target of `testbed` tries.)
    fn read(&mut self, stream: JoinedStream, files: &[FileNumber]) {
        self.reading.push(stream);
        for &file in files {
            assert!(self.source.file(file).is_some(), "a file without a permit is read");
        }
    }
}
