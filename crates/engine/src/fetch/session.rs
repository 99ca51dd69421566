//! A session with one source, or with several of the same files: the state machine of `wire`, its streams and
//! its jobs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use longhaul_model::mark::Treatment;
use longhaul_model::{AgentId, CircuitUse, Fault, TrafficClass};
use longhaul_wire::receiver::Output;
use longhaul_wire::{
    Budget, ChunkHead, FileNumber, Frame, NewBatch, OriginNumber, PackHead, Receiver, StreamNumber,
};

use super::arrival::{Arrival, What};
use super::in_line::Places;
use super::job::Job;
use super::sources::{Origin, SourceList};
use super::write::WriteJob;
use crate::interface::{Config, Path, SessionSnapshot};
use crate::net::{Dialler, Link};
use crate::paths::{Paths, Way};
use crate::resolve::{Resolve, plain};
use crate::shared::Shared;
use crate::sync::lock;
use crate::tcp::TcpInfo;

/// Slots taken from the pool at once: so many at most are kept from others while they are dealt.
const RESERVED_AT_ONCE: usize = 64;
/// Chunks under way from a source nearby: that many within its round trip are more than any network carries,
/// and fewer stay in the processor's cache. From far away it is as many as the budget has.
const NEAR_WINDOW: usize = 32;

const FIRST: OriginNumber = OriginNumber(0);

pub(crate) struct Session {
    /// One at least.
    origins: Box<[Origin]>,
    begun: Duration,
    /// Of all its streams.
    treatment: Treatment,
    shared: Weak<Shared>,
    inner: Mutex<Inner>,
}

struct Inner {
    machine: Receiver,
    links: BTreeMap<StreamNumber, Arc<Link>>,
    jobs: BTreeMap<FileNumber, Arc<Job>>,
    /// Of each source.
    addresses: Vec<Vec<String>>,
    /// All of the first one's are used.
    spread: bool,
    paths: Paths,
    /// In the reorder buffer.
    places: Places,
    /// No more work is taken: another session of this peer begins.
    closed: bool,
}

/// What bounds a stream beside what it was asked for.
pub(crate) struct Bounds {
    /// Bytes that our kernel is to let come.
    pub(crate) window: Option<u64>,
    /// Bytes per second that the source may send, IP packets counted whole.
    pub(crate) pace: Option<u64>,
}

/// Jobs with their places in a batch.
pub(crate) type PlacedJobs = Vec<(usize, Arc<Job>)>;

/// What has to happen outside of the session's lock.
enum Effect {
    Dial(StreamNumber),
    Restarted(Arc<Job>),
    Complete(Arc<Job>),
    Failed(Arc<Job>, Fault),
}

impl Session {
    pub(crate) fn new(sources: &SourceList, treatment: Treatment, shared: &Arc<Shared>) -> Session {
        let (origins, begun) = (sources.origins(shared), shared.now());
        let inner = Inner {
            machine: machine(&shared.config, origins.len(), treatment.class, begun),
            links: BTreeMap::new(),
            jobs: BTreeMap::new(),
            addresses: Vec::new(),
            spread: false,
            paths: Paths::default(),
            places: Places::of(&shared.reorder),
            closed: false,
        };
        Session { origins, begun, treatment, shared: Arc::downgrade(shared), inner: Mutex::new(inner) }
    }

    /// The source; of several the first.
    pub(crate) fn peer(&self) -> AgentId {
        self.origins[0].agent
    }

    /// Where a stream goes to.
    pub(crate) fn origin_of(&self, stream: StreamNumber) -> &Origin {
        let number = lock(&self.inner).machine.origin_of(stream);
        &self.origins[usize::from(number.0)]
    }

    pub(crate) fn class(&self) -> TrafficClass {
        self.treatment.class
    }

    pub(crate) fn treatment(&self) -> Treatment {
        self.treatment
    }

    /// Takes a prepared batch with its jobs, one for each file that is wanted. Gives it back if the session
    /// is over.
    pub(crate) fn add(
        self: &Arc<Self>,
        batch: NewBatch,
        jobs: PlacedJobs,
        sources: &SourceList,
    ) -> Result<(), (NewBatch, PlacedJobs)> {
        let added = self.act(|inner, now| {
            inner.closed |= !inner.machine.has_file_numbers(batch.files.len());
            if inner.closed {
                return Err((batch, jobs));
            }
            inner.addresses = sources.addresses.clone();
            inner.spread = sources.spread;
            let first = inner.machine.add_batch(batch, now);
            for (place, job) in jobs {
                let number = FileNumber(first.0 + place as u32);
                let mut state = lock(&job.state);
                if state.over {
                    drop(state);
                    inner.machine.remove_file(number, now);
                    continue;
                }
                state.session = Some((Arc::downgrade(self), number));
                drop(state);
                inner.jobs.insert(number, job);
            }
            Ok(())
        });
        added.unwrap_or(Ok(()))
    }

    /// In which order a stream tries the peer's addresses.
    pub(crate) fn order(&self, stream: StreamNumber, ways: Vec<Way>, now: Duration) -> Vec<Way> {
        lock(&self.inner).paths.order(stream, ways, now)
    }

    pub(crate) fn way_failed(&self, way: &Way, now: Duration) {
        lock(&self.inner).paths.failed(way, now);
    }

    /// The ways to the source were changed: streams that go others drain.
    pub(crate) fn follow_paths(self: &Arc<Self>) {
        self.act(|inner, now| {
            let ways = self.ways(inner, FIRST);
            inner.leave_other_ways(&ways, now);
        });
    }

    fn set_ways(&self) -> Option<Arc<[Arc<Path>]>> {
        if self.treatment.circuits == CircuitUse::Never {
            return None;
        }
        let shared = self.shared.upgrade()?;
        lock(&shared.paths).get(&self.peer()).cloned()
    }

    /// Where its streams may go: what was set, or else what came with the work. None if the source dials.
    fn ways(&self, inner: &mut Inner, origin: OriginNumber) -> Vec<Arc<Path>> {
        let shared = self.shared.upgrade();
        let locals = shared.as_ref().map_or(&[][..], |shared| &shared.config.local_addresses);
        let addresses = inner.addresses.get(usize::from(origin.0));
        let usual = || addresses.map_or(Vec::new(), |addresses| plain(addresses, locals, 0));
        if origin != FIRST {
            return usual();
        }
        let set = self.set_ways();
        inner.paths.spread = inner.spread || set.as_ref().map_or(locals.len(), |set| set.len()) > 1;
        match (set, self.treatment.circuits) {
            (Some(set), CircuitUse::Only) => set.iter().filter(|path| !path.spare).cloned().collect(),
            (Some(set), _) => set.to_vec(),
            (None, CircuitUse::Only) => Vec::new(),
            (None, _) => usual(),
        }
    }

    /// The stream is connected and hello is said; the address is where we dialled to.
    pub(crate) fn stream_up(
        self: &Arc<Self>,
        stream: StreamNumber,
        link: Arc<Link>,
        way: Option<Way>,
        round_trip: Duration,
    ) {
        let address = way.as_ref().map(|way| way.address);
        tracing::debug!(source = %self.origin_of(stream).agent, stream = stream.0, ?address, "a stream is up");
        self.act(|inner, now| {
            if inner.closed && !inner.machine.has_work() {
                // Nobody looks after this session any more.
                link.close(None);
            }
            inner.links.insert(stream, link);
            inner.paths.up(stream, way);
            inner.machine.stream_up(stream, round_trip, now);
            // The ways may have been changed while it was dialled.
            if let Some(set) = self.set_ways() {
                inner.leave_other_ways(&set, now);
            }
        });
    }

    /// The source has welcomed a stream.
    pub(crate) fn welcomed(self: &Arc<Self>, stream: StreamNumber, incarnation: u64) {
        self.act(|inner, now| inner.machine.handle_welcome(stream, incarnation, now));
    }

    /// A stream that was up has ended. If we closed it, that is known, and the next one may be under way
    /// under its number.
    pub(crate) fn stream_ended(self: &Arc<Self>, stream: StreamNumber, link: &Arc<Link>, fault: Fault) {
        self.act(|inner, now| {
            if inner.links.get(&stream).is_some_and(|known| Arc::ptr_eq(known, link)) {
                inner.stream_down(stream, fault, now);
            }
        });
    }

    /// A stream is down, or could not be opened.
    pub(crate) fn stream_down(self: &Arc<Self>, stream: StreamNumber, fault: Fault) {
        self.act(|inner, now| inner.stream_down(stream, fault, now));
    }

    pub(crate) fn heard(self: &Arc<Self>, stream: StreamNumber, payload: u64, now: Duration) {
        if let Some(shared) = self.shared.upgrade() {
            shared.counters.bytes_in.fetch_add(payload, Ordering::Relaxed);
        }
        lock(&self.inner).machine.note_received(stream, payload, now);
    }

    pub(crate) fn frame(self: &Arc<Self>, stream: StreamNumber, frame: Frame) -> Result<(), Fault> {
        self.act(|inner, now| inner.machine.handle_frame(stream, frame, now)).unwrap_or(Ok(()))
    }

    pub(crate) fn chunk_begins(
        self: &Arc<Self>,
        stream: StreamNumber,
        head: &ChunkHead,
        payload_len: u32,
    ) -> Result<Option<Arrival>, Fault> {
        let Some(shared) = self.shared.upgrade() else { return Ok(None) };
        let wanted = self.act(|inner, now| {
            let wanted = inner.machine.begin_chunk(stream, head, payload_len, now)?;
            let from = inner.machine.origin_of(stream);
            Ok::<_, Fault>((wanted, from, inner.jobs.get(&head.file).cloned()))
        });
        match wanted.unwrap_or(Ok((false, FIRST, None)))? {
            (true, from, Some(job)) => Ok(Some(Arrival {
                buffer: shared.receive_pool.buffer(),
                filled: 0,
                what: What::Chunk { job, head: *head },
                from,
            })),
            (true, _, None) => {
                shared.receive_pool.release(1);
                Ok(None)
            }
            (false, _, job) => {
                if let Some(job) = job {
                    job.arrived(payload_len.into(), &shared);
                    job.resent(payload_len.into());
                }
                Ok(None)
            }
        }
    }

    pub(crate) fn pack_begins(
        self: &Arc<Self>,
        stream: StreamNumber,
        head: &PackHead,
        payload_len: u32,
    ) -> Result<Option<Arrival>, Fault> {
        let Some(shared) = self.shared.upgrade() else { return Ok(None) };
        let wanted = self.act(|inner, now| {
            let wanted = inner.machine.begin_pack(stream, head, payload_len, now)?;
            let slot = !wanted.is_empty();
            let files =
                wanted.into_iter().filter_map(|packed| Some((inner.jobs.get(&packed.file)?.clone(), packed)));
            let files = files.collect::<Vec<_>>();
            Ok::<_, Fault>((slot, inner.machine.origin_of(stream), files))
        });
        let (slot, from, files) = wanted.unwrap_or(Ok((false, FIRST, Vec::new())))?;
        if !slot {
            return Ok(None);
        }
        if files.is_empty() {
            shared.receive_pool.release(1);
            return Ok(None);
        }
        let buffer = shared.receive_pool.buffer();
        Ok(Some(Arrival { buffer, filled: 0, what: What::Pack { files }, from }))
    }

    /// A payload has arrived in full; none if it was not wanted.
    pub(crate) fn arrived(self: &Arc<Self>, stream: StreamNumber, arrival: Option<Arrival>) {
        let Some(shared) = self.shared.upgrade() else { return };
        lock(&self.inner).machine.end_payload(stream);
        let Some(arrival) = arrival else { return };
        let shares = arrival.shares();
        shares.iter().for_each(|(job, bytes)| job.arrived(*bytes, &shared));
        if let Some((job, _)) = shares.first() {
            job.target.device.to_write.push(WriteJob { session: self.clone(), arrival });
        }
    }

    /// The stream died in the middle of a payload.
    pub(crate) fn lost(&self, arrival: Option<Arrival>) {
        let (Some(shared), Some(arrival)) = (self.shared.upgrade(), arrival) else { return };
        for (job, bytes) in arrival.shares() {
            job.arrived(bytes, &shared);
            job.resent(bytes);
        }
    }

    pub(super) fn written(self: &Arc<Self>, parts: &[(FileNumber, u64)]) {
        self.act(|inner, now| {
            parts.iter().for_each(|&(file, offset)| inner.machine.chunk_written(file, offset, now))
        });
    }

    pub(super) fn damaged(self: &Arc<Self>, file: FileNumber, offset: u64) {
        self.act(|inner, now| inner.machine.chunk_damaged(file, offset, now));
    }

    /// The bytes are as that source sent them, and not those of the file.
    pub(super) fn wrong(self: &Arc<Self>, file: FileNumber, offset: u64, from: OriginNumber) {
        self.act(|inner, now| inner.machine.chunk_wrong(file, offset, from, now));
    }

    /// The file is cancelled, or failed here.
    pub(crate) fn remove(self: &Arc<Self>, file: FileNumber) {
        self.act(|inner, now| {
            inner.jobs.remove(&file);
            inner.machine.remove_file(file, now);
        });
    }

    /// Something of ours failed in the middle of a step: nobody should wait for this session.
    pub(crate) fn broken(self: &Arc<Self>, fault: &Fault) {
        self.act(|inner, now| {
            inner.closed = true;
            inner.machine.fail_all(fault, now);
        });
    }

    /// Time-outs, and slots if there are some now. True while the session has work.
    pub(crate) fn tick(self: &Arc<Self>) -> bool {
        self.act(|inner, now| {
            inner.machine.handle_timeout(now);
            inner.machine.has_work()
        })
        .unwrap_or(false)
    }

    /// Whether the session has rested for long; then it takes no more work.
    pub(crate) fn is_over(self: &Arc<Self>, now: Duration) -> bool {
        let mut inner = lock(&self.inner);
        let rested = inner
            .machine
            .idle_since()
            .is_some_and(|since| now.saturating_sub(since) >= longhaul_wire::limits::IDLE_MAX);
        inner.closed |= rested;
        if inner.closed && !inner.machine.has_work() {
            inner.links.values().for_each(|link| link.close(None));
            return true;
        }
        false
    }

    /// Takes what our kernel measured of a stream; says what is to bound it.
    pub(crate) fn measured(&self, stream: StreamNumber, info: &TcpInfo) -> Bounds {
        let pace = self.pace(stream);
        let machine = &mut lock(&self.inner).machine;
        machine.set_round_trip(stream, info.round_trip, info.round_trip_min);
        Bounds { window: machine.receive_window(stream), pace }
    }

    /// The stream's share of what its way is booked for. Other sessions with the source may go the same way.
    fn pace(&self, stream: StreamNumber) -> Option<u64> {
        let set = self.set_ways()?;
        let way = lock(&self.inner).paths.way_of(stream)?.clone();
        let booked = set.iter().find(|path| way.is(path))?.booked_bytes_per_s?;
        let sessions = self.shared.upgrade()?.all_sessions();
        let with_source = sessions.iter().filter(|session| session.peer() == self.peer());
        let streams: usize = with_source.map(|session| lock(&session.inner).paths.on(&way)).sum();
        Some((booked / streams.max(1) as u64).max(1))
    }

    pub(crate) fn snapshot(&self, shared: &Shared) -> SessionSnapshot {
        let mut inner = lock(&self.inner);
        let (source, addresses) = (self.peer(), inner.paths.in_use());
        let held = inner.is_held(shared);
        let path = inner.machine.path_snapshot(held, shared.now());
        let mixed = self.origins.len() > 1;
        let Treatment { class, circuits, .. } = self.treatment;
        SessionSnapshot { source, class, circuits, mixed, begun: self.begun, addresses, path }
    }

    pub(crate) fn streams(&self) -> usize {
        lock(&self.inner).machine.streams_up()
    }

    fn act<T>(self: &Arc<Self>, change: impl FnOnce(&mut Inner, Duration) -> T) -> Option<T> {
        let shared = self.shared.upgrade()?;
        let told_together = shared.events.gather();
        let mut effects = Vec::new();
        let mut inner = lock(&self.inner);
        let result = change(&mut inner, shared.now());
        inner.settle(&shared, &mut effects);
        drop(inner);
        let mut complete = Vec::new();
        for effect in effects {
            match effect {
                Effect::Complete(job) => complete.push(job),
                effect => self.run(effect, &shared),
            }
        }
        drop(told_together);
        // It may wait for the disk.
        Job::complete(complete);
        Some(result)
    }

    fn run(self: &Arc<Self>, effect: Effect, shared: &Arc<Shared>) {
        match effect {
            Effect::Dial(stream) => {
                let mut inner = lock(&self.inner);
                let origin = inner.machine.origin_of(stream);
                let paths = self.ways(&mut inner, origin);
                drop(inner);
                // What goes by circuits only cannot be had without one, whoever dials.
                if paths.is_empty() && origin == FIRST && self.treatment.circuits != CircuitUse::Only {
                    return shared.offers.want(self, stream, shared.now());
                }
                // What was dialled ahead goes the usual way, and is marked as usual.
                let is_ours = origin == FIRST && self.origins[0].membership.is_none();
                let is_usual = is_ours && self.set_ways().is_none() && self.treatment == Treatment::default();
                if is_usual && shared.offers.use_parked(self, stream) {
                    return;
                }
                let dialler = Dialler::Session(self.clone(), stream);
                shared.resolver.push(Resolve { dialler, paths });
            }
            Effect::Restarted(job) => job.restart(),
            Effect::Complete(job) => Job::complete(vec![job]),
            Effect::Failed(job, fault) => job.fail(fault, shared),
        }
    }
}

/// Several sources share the streams, so that they take no more memory than one.
fn machine(config: &Config, origins: usize, class: TrafficClass, now: Duration) -> Receiver {
    let most = config.streams_per_session.div_ceil(origins).max(1);
    if config.fixed_streams {
        return Receiver::with_origins(origins, most, now);
    }
    let mut machine = Receiver::with_origins(origins, 1, now);
    if class == TrafficClass::Scavenger {
        // Several would only compete with each other for what is left.
        return machine;
    }
    machine.adapt_streams(config.local_addresses.len(), most);
    machine
}

impl Inner {
    fn stream_down(&mut self, stream: StreamNumber, fault: Fault, now: Duration) {
        self.links.remove(&stream);
        self.paths.down(stream);
        self.machine.stream_down(stream, fault, now);
    }

    /// Ways are set for the first source only.
    fn leave_other_ways(&mut self, ways: &[Arc<Path>], now: Duration) {
        for stream in self.paths.elsewhere(ways, now) {
            if self.machine.origin_of(stream) == FIRST {
                self.machine.drain_stream(stream, now);
            }
        }
    }

    /// Whether what has arrived waits for our disk, so that less is asked for than could be.
    fn is_held(&self, shared: &Shared) -> bool {
        let pool = &shared.receive_pool;
        let arrived = pool.used().saturating_sub(self.machine.slots_in_use());
        self.machine.has_unrequested_files() && 2 * arrived > pool.total()
    }

    /// Takes what the machine wants, deals what the pool allows, and takes again.
    fn settle(&mut self, shared: &Arc<Shared>, effects: &mut Vec<Effect>) {
        self.take_outputs(shared, effects);
        if self.machine.has_unrequested_files() || self.machine.is_in_endgame() {
            self.deal(shared);
            self.take_outputs(shared, effects);
        }
    }

    fn deal(&mut self, shared: &Arc<Shared>) {
        let pool = &shared.receive_pool;
        let share = pool.total() / shared.busy_sessions.load(Ordering::Relaxed).max(1);
        let window = if self.machine.is_short_path() { share.min(NEAR_WINDOW) } else { share }.max(1);
        let open = window.saturating_sub(self.machine.slots_in_use()).min(RESERVED_AT_ONCE);
        if open == 0 {
            return;
        }
        let mut pace = lock(&shared.pace_in);
        let bytes = pace.available(shared.now());
        let buffers = if bytes == 0 { 0 } else { pool.reserve(open) };
        let places = shared.reorder.free();
        let budget = Budget { buffers, bytes, window, reorder_credits: places };
        let taken = self.machine.request_chunks(budget, shared.wall(), shared.now());
        self.places.hold(self.machine.reorder_credits_in_use());
        pace.consume(self.machine.take_requested_bytes());
        drop(pace);
        pool.release(buffers - taken);
        if buffers == 0 && bytes > 0 && self.machine.slots_in_use() == 0 {
            pool.hunger();
        }
    }

    fn take_outputs(&mut self, shared: &Arc<Shared>, effects: &mut Vec<Effect>) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send { stream, frame } => {
                    if let Some(link) = self.links.get(&stream) {
                        link.send_frame(&frame);
                    }
                }
                Output::Dial { stream } => effects.push(Effect::Dial(stream)),
                Output::Close { stream, fault } => {
                    if fault.is_some() {
                        self.paths.given_up(stream, shared.now());
                    } else {
                        self.paths.down(stream);
                    }
                    if let Some(link) = self.links.remove(&stream) {
                        link.close(fault);
                    }
                }
                Output::Started { file } => {
                    // At once: after its request is sent, the file could be complete before we come to it.
                    if let Some(job) = self.jobs.get(&file) {
                        job.start(shared);
                    }
                }
                Output::SourceExcluded { file, origin, fault } => {
                    if let Some(job) = self.jobs.get(&file) {
                        job.left_out(origin, fault);
                    }
                }
                Output::Restarted { file } => {
                    effects.extend(self.jobs.get(&file).cloned().map(Effect::Restarted))
                }
                Output::Complete { file } => effects.extend(self.jobs.remove(&file).map(Effect::Complete)),
                Output::Failed { file, fault } => {
                    effects.extend(self.jobs.remove(&file).map(|job| Effect::Failed(job, fault)));
                }
            }
        }
        shared.receive_pool.release(self.machine.take_freed_slots());
        self.places.hold(self.machine.reorder_credits_in_use());
    }
}
