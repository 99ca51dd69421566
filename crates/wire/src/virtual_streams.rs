//! Two sessions over virtual streams that delay, die and damage, by seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AttemptId, Fault, FaultCode, Timestamp, TransferId};
use proptest::prelude::*;

use crate::frame::{ChunkHead, FileNumber, Frame, PackEntry, PackHead, Welcome};
use crate::identity::SourceIdentity;
use crate::limits::MANIFEST_AGAIN_FILES;
use crate::receiver::{
    Budget, NewBatch, NewFile, OriginNumber, Output as Wish, Receiver, Replica, StreamNumber, Wanted,
};
use crate::source::{Joined, Output as Answer, Source};

const CHUNK: u64 = CHUNK_BYTES as u64;

/// Reproducible numbers (Knuth's MMIX constants).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A payload is not made of bytes here: it says what it holds, and whether it was damaged.
#[derive(Clone, Debug)]
struct Message {
    frame: Frame,
    payload: u32,
    damaged: bool,
}

#[derive(Default)]
struct Line {
    origin: usize,
    joined: Option<Joined>,
    to_source: VecDeque<Message>,
    to_target: VecDeque<Message>,
}

struct Job {
    file: FileNumber,
    offset: u64,
    len: u64,
    damaged: bool,
    from: OriginNumber,
}

/// A buffer on its way to the disk.
struct Buffer {
    jobs: Vec<Job>,
}

/// How several sources differ, and what became of it.
#[derive(Default)]
struct Manner {
    /// Nobody answers there any more.
    dead: Option<usize>,
    /// What it sends is not what the others have: of every chunk whose number this divides.
    liar: Option<(usize, u64)>,
    /// So do the others, of the same chunks or each of its own.
    all_lie: bool,
    apart: bool,
    /// It has none of the files whose number this divides.
    poor: Option<(usize, u32)>,
    /// How often each chunk was sent.
    sent: BTreeMap<(FileNumber, u64), usize>,
    found_wrong: usize,
    /// Right bytes, by source.
    brought: BTreeMap<OriginNumber, u64>,
    left_out: BTreeMap<(FileNumber, OriginNumber), Fault>,
}

impl Manner {
    fn is_wrong(&self, job: &Job) -> bool {
        self.liar.is_some_and(|(liar, every)| {
            let own = if self.apart { u64::from(job.from.0) } else { 0 };
            let chunk = job.offset / CHUNK + u64::from(job.file.0) + own;
            (self.all_lie || usize::from(job.from.0) == liar) && chunk.is_multiple_of(every)
        })
    }

    /// Whether it has the file as it is.
    fn is_good(&self, origin: usize, file: FileNumber) -> bool {
        let lies = self.all_lie || self.liar.is_some_and(|(liar, _)| liar == origin);
        !lies && !self.lacks(origin, file) && self.dead != Some(origin)
    }

    fn lacks(&self, origin: usize, file: FileNumber) -> bool {
        self.poor.is_some_and(|(poor, every)| poor == origin && file.0.is_multiple_of(every))
    }
}

struct World {
    dice: Dice,
    now: Duration,
    receiver: Receiver,
    /// Several have the same files, which are checked then.
    sources: Vec<Source>,
    incarnations: Vec<u64>,
    manner: Manner,
    lines: BTreeMap<StreamNumber, Line>,
    dialled: Vec<StreamNumber>,
    writing: Vec<Buffer>,
    sizes: Vec<u64>,
    /// Ranges written, by file.
    disk: Vec<BTreeMap<u64, u64>>,
    complete: BTreeSet<FileNumber>,
    failed: BTreeMap<FileNumber, Fault>,
    buffers_max: usize,
    slots_free: usize,
    trouble: bool,
    /// A step takes less than this.
    step_ms: u64,
    identity: u64,
    /// The disk only appends: what comes early waits in its buffer, and there are so many places for that.
    places: Option<usize>,
}

impl World {
    fn new(seed: u64, sizes: Vec<u64>, buffers: usize, trouble: bool) -> World {
        let mut dice = Dice(seed);
        let streams = 1 + dice.below(4) as usize;
        World {
            now: Duration::ZERO,
            receiver: Receiver::new(streams, Duration::ZERO),
            sources: vec![Source::default()],
            incarnations: vec![1],
            manner: Manner::default(),
            lines: BTreeMap::new(),
            dialled: Vec::new(),
            writing: Vec::new(),
            disk: vec![BTreeMap::new(); sizes.len()],
            sizes,
            complete: BTreeSet::new(),
            failed: BTreeMap::new(),
            buffers_max: buffers,
            slots_free: buffers,
            trouble,
            step_ms: 30,
            identity: 1,
            places: None,
            dice,
        }
    }

    /// The same with so many sources of all files, of so many streams each.
    fn with_sources(mut self, count: usize, streams: usize) -> World {
        self.receiver = Receiver::with_origins(count, streams, Duration::ZERO);
        self.sources = (0..count).map(|_| Source::default()).collect();
        self.incarnations = vec![1; count];
        self
    }

    fn replica(&self, origin: usize, files: std::ops::Range<usize>) -> Replica {
        Replica {
            origin: OriginNumber(origin as u8),
            permit: "another permit".into(),
            storage: "beta".parse().unwrap(),
            names: files.map(|number| format!("copy/{number}").parse().unwrap()).collect(),
        }
    }

    fn add_files(&mut self) {
        let mut first = 0;
        while first < self.sizes.len() {
            // Some worlds have short manifests only.
            let most = if self.sizes.len().is_multiple_of(2) { MANIFEST_AGAIN_FILES } else { 300 };
            let count = (1 + self.dice.below(most as u64) as usize).min(self.sizes.len() - first);
            let files = (first..first + count)
                .map(|number| NewFile {
                    attempt: AttemptId(number as u64),
                    transfer: TransferId(number as u64),
                    lfn: format!("f{number}").parse().unwrap(),
                    size: self.sizes[number],
                    priority: self.dice.below(3) as u8,
                    wanted: Wanted::Everything,
                    identity: None,
                    checked: self.sources.len() > 1,
                })
                .collect();
            let replicas =
                (1..self.sources.len()).map(|origin| self.replica(origin, first..first + count)).collect();
            let batch = NewBatch {
                replicas,
                permit: "permit".into(),
                storage: "alpha".parse().unwrap(),
                lane: 0,
                in_order: self.places.is_some(),
                start_by: Timestamp::MAX,
                files,
            };
            assert_eq!(self.receiver.add_batch(batch, self.now), FileNumber(first as u32));
            first += count;
        }
    }

    fn identity(&self, file: FileNumber) -> SourceIdentity {
        SourceIdentity {
            size: self.sizes[file.0 as usize],
            mtime_ns: self.identity as i64,
            inode: file.0.into(),
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.dice.below(self.step_ms));
        match self.dice.below(5) {
            0 => self.dials(),
            1 => self.deliver_to_source(),
            2 => self.deliver_to_target(),
            3 => self.write(),
            _ => self.deal(),
        }
        if self.trouble && self.dice.once_in(300) {
            self.cut_a_line();
        }
        if self.trouble && self.dice.once_in(3_000) {
            self.restart_the_source();
        }
        self.receiver.handle_timeout(self.now);
        self.drain();
        let held: usize = self.receiver.slots() + self.writing.len() + self.slots_free;
        assert_eq!(held, self.buffers_max, "no slot is lost or made");
        if let Some(places) = self.places {
            assert!(self.receiver.places() <= places, "the reorder buffer is bounded");
            let early = self.writing.iter().filter(|buffer| self.is_early(buffer)).count();
            assert!(early <= self.receiver.places(), "{early} chunks wait, each has a place");
        }
    }

    fn deal(&mut self) {
        let places = self.places.map_or(0, |most| most - self.receiver.places());
        let budget = Budget { buffers: self.slots_free, bytes: u64::MAX, window: self.buffers_max, places };
        let taken = self.receiver.deal(budget, Timestamp::ZERO, self.now);
        self.slots_free -= taken;
        let buffers = 1 + self.dice.below(4) as usize;
        for source in &mut self.sources {
            source.deal(buffers, u64::MAX, 2);
        }
    }

    fn dials(&mut self) {
        for stream in std::mem::take(&mut self.dialled) {
            let origin = usize::from(self.receiver.origin_of(stream).0);
            let dead = self.manner.dead == Some(origin);
            if dead || self.trouble && self.dice.once_in(3) {
                self.receiver.stream_down(stream, Fault::new(FaultCode::Unreachable, "refused"), self.now);
            } else {
                let welcome = Welcome { version: 1, incarnation: self.incarnations[origin] };
                let welcome = Message { frame: Frame::Welcome(welcome), payload: 0, damaged: false };
                let joined = Some(self.sources[origin].stream_up());
                let mut line = Line { origin, joined, ..Line::default() };
                // Requests may be on their way before it comes.
                let late = self.trouble && self.dice.once_in(2);
                line.to_target.extend(late.then_some(welcome));
                self.lines.insert(stream, line);
                self.receiver.stream_up(stream, Duration::from_millis(30), self.now);
                if !late {
                    self.receiver.welcomed(stream, self.incarnations[origin], self.now);
                }
            }
        }
    }

    fn cut_a_line(&mut self) {
        let Some(stream) = self.pick_line() else { return };
        self.cut(stream);
    }

    fn cut(&mut self, stream: StreamNumber) {
        self.hang_up(stream);
        self.receiver.stream_down(stream, Fault::new(FaultCode::ConnectionLost, "reset"), self.now);
    }

    /// What a line had carried is lost; its source hears of it.
    fn hang_up(&mut self, stream: StreamNumber) {
        if let Some(line) = self.lines.remove(&stream)
            && let Some(joined) = line.joined
        {
            self.sources[line.origin].stream_down(joined);
        }
    }

    fn restart_the_source(&mut self) {
        let origin = self.dice.below(self.sources.len() as u64) as usize;
        self.sources[origin] = Source::default();
        self.incarnations[origin] += 1;
        let lines = self.lines.iter().filter(|(_, line)| line.origin == origin);
        for stream in lines.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.lines.remove(&stream);
            self.receiver.stream_down(stream, Fault::new(FaultCode::ConnectionLost, "reset"), self.now);
        }
    }

    fn pick_line(&mut self) -> Option<StreamNumber> {
        let count = self.lines.len() as u64;
        if count == 0 {
            return None;
        }
        let place = self.dice.below(count) as usize;
        self.lines.keys().nth(place).copied()
    }

    fn deliver_to_source(&mut self) {
        let Some(stream) = self.pick_line() else { return };
        let Some(line) = self.lines.get_mut(&stream) else { return };
        if let (Some(message), Some(joined)) = (line.to_source.pop_front(), line.joined) {
            self.sources[line.origin].handle_frame(joined, message.frame).unwrap();
        }
    }

    fn deliver_to_target(&mut self) {
        let Some(stream) = self.pick_line() else { return };
        let Some(message) = self.lines.get_mut(&stream).and_then(|line| line.to_target.pop_front()) else {
            return;
        };
        self.receiver.heard(stream, message.payload.into(), self.now);
        let from = self.receiver.origin_of(stream);
        let jobs: Vec<Job> = match &message.frame {
            Frame::Data(head) => {
                if self.receiver.chunk_begins(stream, head, message.payload, self.now).unwrap() {
                    vec![Job {
                        file: head.file,
                        offset: head.offset,
                        len: message.payload.into(),
                        damaged: message.damaged,
                        from,
                    }]
                } else {
                    Vec::new()
                }
            }
            Frame::PackData(head) => {
                let wanted = self.receiver.pack_begins(stream, head, message.payload, self.now).unwrap();
                let job = |packed: &crate::PackedFile| Job {
                    file: packed.file,
                    offset: 0,
                    len: packed.size.into(),
                    damaged: message.damaged,
                    from,
                };
                wanted.iter().map(job).collect()
            }
            Frame::Welcome(welcome) => return self.receiver.welcomed(stream, welcome.incarnation, self.now),
            frame => {
                self.receiver.handle_frame(stream, frame.clone(), self.now).unwrap();
                return;
            }
        };
        let buffer = (!jobs.is_empty()).then_some(Buffer { jobs });
        if self.trouble && self.dice.once_in(20) {
            // The line dies in the middle of the payload; the buffer is free again.
            self.slots_free += usize::from(buffer.is_some());
            self.cut(stream);
            return;
        }
        self.receiver.payload_ended(stream);
        self.writing.extend(buffer);
    }

    fn write(&mut self) {
        if self.writing.is_empty() {
            return;
        }
        let place = self.dice.below(self.writing.len() as u64) as usize;
        if self.is_early(&self.writing[place]) {
            return;
        }
        let buffer = self.writing.swap_remove(place);
        self.slots_free += 1;
        for job in buffer.jobs {
            if self.failed.contains_key(&job.file) {
                continue;
            }
            if job.damaged {
                self.receiver.damaged(job.file, job.offset, self.now);
            } else if self.manner.is_wrong(&job) {
                self.manner.found_wrong += 1;
                self.receiver.wrong(job.file, job.offset, job.from, self.now);
            } else {
                *self.manner.brought.entry(job.from).or_default() += job.len;
                let overlap = self.disk[job.file.0 as usize].insert(job.offset, job.len);
                assert_eq!(overlap, None, "no chunk is written twice");
                self.receiver.written(job.file, job.offset, self.now);
            }
        }
    }

    /// Whether it has to wait for others before it: a good chunk that is not the next of its file.
    fn is_early(&self, buffer: &Buffer) -> bool {
        let early = |job: &Job| {
            let next: u64 = self.disk[job.file.0 as usize].values().sum();
            !job.damaged
                && !self.manner.is_wrong(job)
                && job.offset != next
                && !self.failed.contains_key(&job.file)
        };
        self.places.is_some() && buffer.jobs.iter().any(early)
    }

    fn send(&mut self, stream: StreamNumber, message: Message, to_target: bool) {
        if let Some(line) = self.lines.get_mut(&stream) {
            if to_target { line.to_target.push_back(message) } else { line.to_source.push_back(message) }
        }
    }

    fn drain(&mut self) {
        self.slots_free += self.receiver.take_freed();
        while let Some(wish) = self.receiver.poll_output() {
            match wish {
                Wish::Send { stream, frame } => {
                    self.send(stream, Message { frame, payload: 0, damaged: false }, false)
                }
                Wish::Dial { stream } => self.dialled.push(stream),
                Wish::Close { stream, .. } => self.hang_up(stream),
                Wish::LeftOut { file, origin, fault } => {
                    let before = self.manner.left_out.insert((file, origin), fault);
                    assert!(before.is_none(), "left out once");
                }
                Wish::Started { .. } | Wish::Restarted { .. } => {}
                Wish::Complete { file } => assert!(self.complete.insert(file), "complete once"),
                Wish::Failed { file, fault } => {
                    assert!(self.failed.insert(file, fault).is_none(), "failed once")
                }
            }
        }
        self.slots_free += self.receiver.take_freed();
        for origin in 0..self.sources.len() {
            while let Some(answer) = self.sources[origin].poll_output() {
                self.answer(origin, answer);
            }
        }
    }

    fn answer(&mut self, origin: usize, answer: Answer) {
        let damaged = self.trouble && self.dice.once_in(40);
        let (joined, frame, payload) = match answer {
            Answer::Authorise { batch } => return self.sources[origin].authorised(batch, Ok(())),
            Answer::Send { stream, frame } => (stream, frame, 0),
            Answer::ReadChunk { stream, request, file, .. } if self.manner.lacks(origin, file) => {
                self.sources[origin].sent(stream);
                self.sources[origin].read_failed(stream, request);
                let fault = Fault::new(FaultCode::SourceMissing, "never had it");
                (stream, Frame::FileFault { request, file, fault }, 0)
            }
            Answer::ReadChunk { stream, request, file, offset, len } => {
                let identity = self.identity(file);
                self.sources[origin].sent(stream);
                *self.manner.sent.entry((file, offset)).or_default() += 1;
                (stream, Frame::Data(ChunkHead { request, file, offset, crc32c: 0, identity }), len)
            }
            Answer::ReadPack { stream, request, files } => {
                let size = |file: FileNumber| self.sizes[file.0 as usize];
                let entry = |&file: &FileNumber| match self.manner.lacks(origin, file) {
                    true => {
                        PackEntry::Fault { file, fault: Fault::new(FaultCode::SourceMissing, "never had it") }
                    }
                    false => PackEntry::Whole {
                        file,
                        size: size(file) as u32,
                        crc32c: 0,
                        identity: self.identity(file),
                    },
                };
                let entries: Vec<PackEntry> = files.iter().map(entry).collect();
                let has: Vec<FileNumber> =
                    files.into_iter().filter(|file| !self.manner.lacks(origin, *file)).collect();
                let total = has.iter().map(|&file| size(file)).sum::<u64>();
                for file in has {
                    *self.manner.sent.entry((file, 0)).or_default() += 1;
                }
                self.sources[origin].sent(stream);
                (stream, Frame::PackData(PackHead { request, entries }), total as u32)
            }
        };
        let is_its = |line: &Line| line.origin == origin && line.joined == Some(joined);
        let line = self.lines.iter().find(|(_, line)| is_its(line)).map(|(&stream, _)| stream);
        if let Some(stream) = line {
            self.send(stream, Message { frame, payload, damaged }, true);
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.complete.len() + self.failed.len() == self.sizes.len() {
                return;
            }
            self.step();
        }
    }

    fn check_complete(&self) {
        assert!(
            self.receiver.wants_slots()
                || !self.receiver.has_work()
                || self.receiver.slots() > 0
                || !self.writing.is_empty()
        );
        for &file in &self.complete {
            let written = &self.disk[file.0 as usize];
            assert_eq!(written.values().sum::<u64>(), self.sizes[file.0 as usize], "{file:?}");
            let mut at = 0;
            for (&offset, &len) in written {
                assert_eq!(offset, at, "{file:?}");
                at += len;
            }
        }
    }
}

fn sizes(dice: &mut Dice, small: u64, large: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = (0..small)
        .map(|_| {
            let scale = dice.below(12);
            dice.below((CHUNK >> scale) + 1)
        })
        .collect();
    sizes.extend([0, 1, CHUNK, CHUNK - 1, CHUNK + 1]);
    sizes.extend((0..large).map(|_| CHUNK + 1 + dice.below(12 * CHUNK)));
    sizes
}

#[test]
fn a_source_that_cannot_be_reached_fails_the_files() {
    let mut world = World::new(1, vec![10, 5 * CHUNK], 4, false);
    world.receiver = Receiver::new(2, Duration::ZERO);
    world.add_files();
    let mut dials = 0;
    while world.failed.len() < 2 {
        world.now += Duration::from_millis(100);
        world.receiver.handle_timeout(world.now);
        world.drain();
        for stream in std::mem::take(&mut world.dialled) {
            dials += 1;
            world.receiver.stream_down(stream, Fault::new(FaultCode::Unreachable, "refused"), world.now);
        }
        assert!(world.now < 2 * crate::limits::RECONNECT_FOR);
    }
    assert!(world.failed.values().all(|fault| fault.code == FaultCode::Unreachable));
    assert!((6..40).contains(&dials), "{dials} tries, with back-off");
}

#[test]
fn a_changed_source_is_an_error_and_never_a_mixed_file() {
    let mut world = World::new(3, vec![30 * CHUNK], 4, false);
    world.add_files();
    let mut changed = false;
    while world.failed.is_empty() && world.complete.is_empty() {
        world.step();
        if !changed && world.disk[0].len() > 10 {
            world.identity = 2;
            changed = true;
        }
    }
    assert_eq!(world.failed[&FileNumber(0)].code, FaultCode::SourceChanged);
}

#[test]
fn parts_of_another_source_are_void() {
    let mut world = World::new(3, vec![10 * CHUNK], 4, false);
    let file = NewFile {
        attempt: AttemptId(1),
        transfer: TransferId(1),
        lfn: "f".parse().unwrap(),
        size: 10 * CHUNK,
        priority: 0,
        wanted: Wanted::Parts(vec![(7 * CHUNK, CHUNK)]),
        identity: Some(SourceIdentity { size: 1, mtime_ns: 1, inode: 1 }),
        checked: false,
    };
    let storage = "alpha".parse().unwrap();
    let batch = NewBatch {
        permit: "p".into(),
        storage,
        lane: 0,
        in_order: false,
        start_by: Timestamp::MAX,
        files: vec![file],
        replicas: Vec::new(),
    };
    world.receiver.add_batch(batch, Duration::ZERO);
    world.run(100_000);
    assert_eq!(world.complete.len(), 1);
    world.check_complete();
}

#[test]
fn what_waited_too_long_does_not_start() {
    let mut world = World::new(1, vec![5, 3 * CHUNK], 4, false);
    world.add_files();
    world.drain();
    while world.lines.is_empty() {
        world.dials();
    }
    world.receiver.expire_all();
    world.run(10_000);
    assert_eq!(world.failed.len(), 2);
    assert!(world.failed.values().all(|fault| fault.code == FaultCode::LeaseExpired));
}

#[test]
fn a_source_that_says_nothing_but_pong_is_a_stall() {
    let mut world = World::new(1, vec![3 * CHUNK, 9], 4, false);
    world.add_files();
    let mut waited = 0;
    while world.failed.len() < 2 {
        world.now += Duration::from_secs(1);
        world.receiver.handle_timeout(world.now);
        world.drain();
        world.dials();
        world.deal();
        world.drain();
        for (&stream, line) in &mut world.lines {
            line.to_source.clear();
            world.receiver.heard(stream, 0, world.now);
            world.receiver.handle_frame(stream, Frame::Pong { number: 1 }, world.now).unwrap();
        }
        waited += 1;
        assert!(waited < 1_000);
    }
    assert!(world.failed.values().all(|fault| fault.code == FaultCode::Stalled), "{:?}", world.failed);
    assert_eq!(world.slots_free, 4);
}

/// Promises 3, 4, 6 and 7: whatever the streams do, every file ends complete, written once, within the
/// buffers.
fn survives(seed: u64, trouble: bool) -> Result<(), TestCaseError> {
    let mut dice = Dice(seed ^ 0x5555);
    let (small, large, buffers) = (dice.below(400), dice.below(6), 1 + dice.below(20) as usize);
    let world = World::new(seed, sizes(&mut dice, small, large), buffers, trouble);
    completes(world, trouble)
}

/// The same with a disk that only appends, and few places to wait in: none, at times.
fn survives_in_order(seed: u64, trouble: bool) -> Result<(), TestCaseError> {
    let mut dice = Dice(seed ^ 0xaaaa);
    let (small, large, buffers) = (dice.below(40), 1 + dice.below(8), 2 + dice.below(20) as usize);
    let mut world = World::new(seed, sizes(&mut dice, small, large), buffers, trouble);
    world.places = Some(dice.below(buffers as u64) as usize);
    completes(world, trouble)
}

fn completes(mut world: World, trouble: bool) -> Result<(), TestCaseError> {
    world.add_files();
    world.run(400_000);
    for (file, fault) in &world.failed {
        // A chunk may be damaged time and again; being cut off for long is a matter of the dice, too.
        let expected =
            matches!(fault.code, FaultCode::Corrupted | FaultCode::ConnectionLost | FaultCode::Unreachable);
        let hopeless = !(0..world.sources.len()).any(|origin| world.manner.is_good(origin, *file));
        prop_assert!(hopeless || trouble && expected, "{file:?}: {fault}");
    }
    prop_assert_eq!(world.complete.len() + world.failed.len(), world.sizes.len());
    world.check_complete();
    while !world.writing.is_empty() {
        world.write();
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256, ..ProptestConfig::default() })]
    #[test]
    fn sessions_complete_over_dying_streams(seed in any::<u64>()) {
        survives(seed, true)?;
    }

    /// No order in which streams answer and die overflows the reorder buffer or leaves everybody waiting for
    /// a chunk that nobody may ask for.
    #[test]
    fn files_in_order_complete_over_dying_streams(seed in any::<u64>()) {
        survives_in_order(seed, true)?;
    }

    #[test]
    fn files_in_order_complete_over_good_streams(seed in any::<u64>()) {
        survives_in_order(seed, false)?;
    }

    #[test]
    fn sessions_complete_over_good_streams(seed in any::<u64>()) {
        survives(seed, false)?;
    }

    /// No order of frames, sensible or not, makes a session panic or lose a slot.
    #[test]
    fn a_hostile_source_breaks_nothing(seed in any::<u64>()) {
        let mut world = World::new(seed, vec![3 * CHUNK, 100, 200, 5 * CHUNK], 6, false);
        world.add_files();
        for _ in 0..400 {
            world.step();
            let Some(stream) = world.pick_line() else { continue };
            if world.dice.once_in(3) {
                let frame = world.hostile_frame();
                let payload = world.dice.below(CHUNK + 1) as u32;
                let now = world.now;
                let result = match &frame {
                    Frame::Data(head) => world.receiver.chunk_begins(stream, head, payload, now).map(usize::from),
                    Frame::PackData(head) => world.receiver.pack_begins(stream, head, payload, now).map(|wanted| usize::from(!wanted.is_empty())),
                    _ => world.receiver.handle_frame(stream, frame.clone(), now).map(|()| 0),
                };
                match result {
                    Ok(buffers) => {
                        world.slots_free += buffers;
                        world.cut(stream);
                    }
                    Err(_) => world.cut(stream),
                }
                world.drain();
            }
        }
    }
}

impl World {
    fn hostile_frame(&mut self) -> Frame {
        let request = crate::frame::RequestId(self.dice.below(6) as u32);
        let file = FileNumber(self.dice.below(5) as u32);
        let identity = SourceIdentity { size: 1, mtime_ns: self.dice.below(2) as i64, inode: 0 };
        let fault = Fault::new(FaultCode::SourceMissing, "so it says");
        match self.dice.below(6) {
            0 | 1 => Frame::Data(ChunkHead {
                request,
                file,
                offset: self.dice.below(6) * CHUNK,
                crc32c: 0,
                identity,
            }),
            2 => {
                let size = self.dice.below(300) as u32;
                let entries = vec![PackEntry::Whole { file, size, crc32c: 0, identity }];
                Frame::PackData(PackHead { request, entries })
            }
            3 => Frame::FileFault { request, file, fault },
            4 => {
                Frame::ManifestAnswer { batch: crate::frame::BatchId(self.dice.below(3) as u32), fault: None }
            }
            _ => Frame::Pong { number: 3 },
        }
    }
}

mod paths;
mod replicas;
