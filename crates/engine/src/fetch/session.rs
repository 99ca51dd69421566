//! A session with one source, or with several of the same files: drives the state machine of `wire`, its
//! streams and its jobs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use longhaul_model::mark::Treatment;
use longhaul_model::{AgentId, CircuitUse, Fault, TrafficClass};
use longhaul_wire::receiver::Output;
use longhaul_wire::{
    Budget, ChunkHead, FileNumber, Frame, NewBatch, OriginNumber, PackHead, Receiver, StreamNumber, Welcome,
};
use parking_lot::Mutex;

use super::arrival::{Arrival, ArrivalContent};
use super::job::Job;
use super::reorder_buffer::ReorderShare;
use super::sources::{SessionOrigin, SourceList};
use super::write::WriteJob;
use crate::context::EngineContext;
use crate::interface::{Config, Path, SessionSnapshot};
use crate::net::{Dialler, Link};
use crate::paths::{PathSelector, ResolvedPath};
use crate::rate_limiter::SessionTag;
use crate::resolve::{ResolveRequest, default_paths};
use crate::tcp::TcpInfo;

/// Slots reserved from the pool per round: this many at most are withheld from other sessions meanwhile.
const SLOTS_PER_ROUND_MAX: usize = 64;
/// Window for a source nearby: more chunks than any network carries within a short round trip, yet few enough
/// to stay in the CPU cache. On long paths the budget is the limit.
const WINDOW_SLOTS_SHORT_PATH: usize = 32;

const FIRST_ORIGIN: OriginNumber = OriginNumber(0);

/// A fetch session and its streams.
pub(crate) struct Session {
    /// At least one.
    origins: Box<[SessionOrigin]>,
    begun: Duration,
    /// Applies to all its streams.
    treatment: Treatment,
    shared: Weak<EngineContext>,
    inner: Mutex<Inner>,
}

struct Inner {
    receiver: Receiver,
    links: BTreeMap<StreamNumber, Arc<Link>>,
    jobs: BTreeMap<FileNumber, Arc<Job>>,
    /// The state of each source.
    addresses: Vec<Vec<String>>,
    /// Use all addresses of the first source at the same time.
    spread: bool,
    paths: PathSelector,
    /// Credits of the reorder buffer.
    reorder_share: ReorderShare,
    /// How the rate limit of what comes in knows the session.
    limiter_tag: SessionTag,
    /// No more work is accepted: the peer's next work opens another session.
    closed: bool,
}

/// Limits of a stream besides its slots.
pub(crate) struct StreamLimits {
    /// Receive window in bytes for our kernel.
    pub(crate) window: Option<u64>,
    /// Bytes per second that the source may send, counting whole IP packets.
    pub(crate) pace: Option<u64>,
}

/// Jobs with their positions in a batch.
pub(crate) type IndexedJobs = Vec<(usize, Arc<Job>)>;

/// Actions to carry out outside the session's lock.
enum Effect {
    Dial(StreamNumber),
    Restarted(Arc<Job>),
    Complete(Arc<Job>),
    Failed(Arc<Job>, Fault),
}

impl Session {
    pub(crate) fn new(sources: &SourceList, treatment: Treatment, shared: &Arc<EngineContext>) -> Session {
        let (origins, begun) = (sources.origins(shared), shared.now());
        let inner = Inner {
            receiver: new_receiver(&shared.config, origins.len(), treatment.class, begun),
            links: BTreeMap::new(),
            jobs: BTreeMap::new(),
            addresses: Vec::new(),
            spread: false,
            paths: PathSelector::default(),
            reorder_share: ReorderShare::new(&shared.reorder),
            limiter_tag: shared.rate_limit_in.lock().add_session(),
            closed: false,
        };
        Session { origins, begun, treatment, shared: Arc::downgrade(shared), inner: Mutex::new(inner) }
    }

    /// The source; of several the first.
    pub(crate) fn peer(&self) -> AgentId {
        self.origins[0].agent
    }

    /// The source that a stream connects to.
    pub(crate) fn origin_of(&self, stream: StreamNumber) -> &SessionOrigin {
        let number = self.inner.lock().receiver.origin_of(stream);
        &self.origins[usize::from(number.0)]
    }

    pub(crate) fn class(&self) -> TrafficClass {
        self.treatment.class
    }

    pub(crate) fn treatment(&self) -> Treatment {
        self.treatment
    }

    /// Adds a prepared batch with one job per wanted file. Returns both if the session is closed.
    pub(crate) fn add(
        self: &Arc<Self>,
        batch: NewBatch,
        jobs: IndexedJobs,
        sources: &SourceList,
    ) -> Result<(), (NewBatch, IndexedJobs)> {
        let added = self.update(|inner, now| {
            inner.closed |= !inner.receiver.has_file_numbers(batch.files.len());
            if inner.closed {
                return Err((batch, jobs));
            }
            inner.addresses = sources.addresses.clone();
            inner.spread = sources.spread;
            let first = inner.receiver.add_batch(batch, now);
            for (place, job) in jobs {
                let number = FileNumber(first.0 + place as u32);
                let mut state = job.state.lock();
                if state.over {
                    drop(state);
                    inner.receiver.remove_file(number, now);
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

    /// Orders the resolved paths for a stream to try.
    pub(crate) fn rank_paths(
        &self,
        stream: StreamNumber,
        ways: Vec<ResolvedPath>,
        now: Duration,
    ) -> Vec<ResolvedPath> {
        self.inner.lock().paths.rank(stream, ways, now)
    }

    pub(crate) fn path_failed(&self, way: &ResolvedPath, now: Duration) {
        self.inner.lock().paths.avoid(way, now);
    }

    /// The paths to the source were changed: streams on other paths drain.
    pub(crate) fn apply_paths(self: &Arc<Self>) {
        self.update(|inner, now| {
            let ways = self.paths_to(inner, FIRST_ORIGIN);
            inner.drain_other_paths(&ways, now);
        });
    }

    fn configured_paths(&self) -> Option<Arc<[Arc<Path>]>> {
        if self.treatment.circuits == CircuitUse::Never {
            return None;
        }
        let shared = self.shared.upgrade()?;
        shared.paths.lock().get(&self.peer()).cloned()
    }

    /// The paths to a source: the configured ones, or else those of its batches. None if the source dials us.
    fn paths_to(&self, inner: &mut Inner, origin: OriginNumber) -> Vec<Arc<Path>> {
        let shared = self.shared.upgrade();
        let locals = shared.as_ref().map_or(&[][..], |shared| &shared.config.local_addresses);
        let addresses = inner.addresses.get(usize::from(origin.0));
        let usual = || addresses.map_or(Vec::new(), |addresses| default_paths(addresses, locals, 0));
        if origin != FIRST_ORIGIN {
            return usual();
        }
        let set = self.configured_paths();
        inner.paths.spread = inner.spread || set.as_ref().map_or(locals.len(), |set| set.len()) > 1;
        match (set, self.treatment.circuits) {
            (Some(set), CircuitUse::Only) => set.iter().filter(|path| !path.spare).cloned().collect(),
            (Some(set), _) => set.to_vec(),
            (None, CircuitUse::Only) => Vec::new(),
            (None, _) => usual(),
        }
    }

    /// The stream is connected and Hello was sent; `path` is where we dialled.
    pub(crate) fn stream_up(
        self: &Arc<Self>,
        stream: StreamNumber,
        link: Arc<Link>,
        way: Option<ResolvedPath>,
        round_trip: Duration,
    ) {
        let address = way.as_ref().map(|way| way.address);
        tracing::debug!(source = %self.origin_of(stream).agent, stream = stream.0, ?address,
            "a stream is up");
        self.update(|inner, now| {
            if inner.closed && !inner.receiver.has_work() {
                // This session is no longer ticked.
                link.close(None);
            }
            inner.links.insert(stream, link);
            inner.paths.stream_up(stream, way);
            inner.receiver.stream_up(stream, round_trip, now);
            // The paths may have been changed while it was dialled.
            if let Some(set) = self.configured_paths() {
                inner.drain_other_paths(&set, now);
            }
        });
    }

    /// The source has accepted a stream.
    pub(crate) fn handle_welcome(self: &Arc<Self>, stream: StreamNumber, welcome: &Welcome) {
        let Welcome { version, incarnation } = *welcome;
        self.update(|inner, now| inner.receiver.handle_welcome(stream, version, incarnation, now));
    }

    /// A stream that was up has ended. If we closed it ourselves, that is known already, and its number may
    /// have been reused.
    pub(crate) fn stream_ended(self: &Arc<Self>, stream: StreamNumber, link: &Arc<Link>, fault: Fault) {
        self.update(|inner, now| {
            if inner.links.get(&stream).is_some_and(|known| Arc::ptr_eq(known, link)) {
                inner.stream_down(stream, fault, now);
            }
        });
    }

    /// A stream is down, or could not be opened.
    pub(crate) fn stream_down(self: &Arc<Self>, stream: StreamNumber, fault: Fault) {
        self.update(|inner, now| inner.stream_down(stream, fault, now));
    }

    pub(crate) fn note_received(self: &Arc<Self>, stream: StreamNumber, payload: u64, now: Duration) {
        if let Some(shared) = self.shared.upgrade() {
            shared.counters.bytes_in.fetch_add(payload, Ordering::Relaxed);
        }
        self.inner.lock().receiver.note_received(stream, payload, now);
    }

    pub(crate) fn handle_frame(self: &Arc<Self>, stream: StreamNumber, frame: Frame) -> Result<(), Fault> {
        self.update(|inner, now| inner.receiver.handle_frame(stream, frame, now)).unwrap_or(Ok(()))
    }

    pub(crate) fn begin_chunk(
        self: &Arc<Self>,
        stream: StreamNumber,
        head: &ChunkHead,
        payload_len: u32,
    ) -> Result<Option<Arrival>, Fault> {
        let Some(shared) = self.shared.upgrade() else { return Ok(None) };
        let wanted = self.update(|inner, now| {
            let wanted = inner.receiver.begin_chunk(stream, head, payload_len, now)?;
            let from = inner.receiver.origin_of(stream);
            Ok::<_, Fault>((wanted, from, inner.jobs.get(&head.file).cloned()))
        });
        match wanted.unwrap_or(Ok((false, FIRST_ORIGIN, None)))? {
            (true, from, Some(job)) => Ok(Some(Arrival {
                buffer: shared.receive_pool.buffer(),
                filled: 0,
                content: ArrivalContent::Chunk { job, head: *head },
                from,
            })),
            (true, _, None) => {
                shared.receive_pool.release(1);
                Ok(None)
            }
            (false, _, job) => {
                if let Some(job) = job {
                    job.note_arrived(payload_len.into(), &shared);
                    job.note_resent(payload_len.into());
                }
                Ok(None)
            }
        }
    }

    /// The source has a chunk as this target holds it: it is taken from the copy that is held.
    pub(crate) fn keep_chunk(self: &Arc<Self>, stream: StreamNumber, head: &ChunkHead) -> Result<(), Fault> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let wanted = self.update(|inner, now| {
            let wanted = inner.receiver.begin_unchanged(stream, head, now);
            shared.rate_limit_in.lock().refund(inner.receiver.take_unsent_bytes());
            let wanted = wanted?;
            let from = inner.receiver.origin_of(stream);
            Ok::<_, Fault>((wanted, from, inner.jobs.get(&head.file).cloned()))
        });
        match wanted.unwrap_or(Ok((false, FIRST_ORIGIN, None)))? {
            (true, from, Some(job)) => {
                let device = job.disk().device.clone();
                let content = ArrivalContent::Held { job, head: *head };
                let arrival = Arrival { buffer: shared.receive_pool.buffer(), filled: 0, content, from };
                device.to_write.push(WriteJob { session: self.clone(), arrival });
            }
            (true, _, None) => shared.receive_pool.release(1),
            (false, ..) => {}
        }
        Ok(())
    }

    pub(crate) fn begin_pack(
        self: &Arc<Self>,
        stream: StreamNumber,
        head: &PackHead,
        payload_len: u32,
    ) -> Result<Option<Arrival>, Fault> {
        let Some(shared) = self.shared.upgrade() else { return Ok(None) };
        let wanted = self.update(|inner, now| {
            let wanted = inner.receiver.begin_pack(stream, head, payload_len, now)?;
            let slot = !wanted.is_empty();
            let files =
                wanted.into_iter().filter_map(|packed| Some((inner.jobs.get(&packed.file)?.clone(), packed)));
            let files = files.collect::<Vec<_>>();
            Ok::<_, Fault>((slot, inner.receiver.origin_of(stream), files))
        });
        let (slot, from, files) = wanted.unwrap_or(Ok((false, FIRST_ORIGIN, Vec::new())))?;
        if !slot {
            return Ok(None);
        }
        if files.is_empty() {
            shared.receive_pool.release(1);
            return Ok(None);
        }
        let buffer = shared.receive_pool.buffer();
        Ok(Some(Arrival { buffer, filled: 0, content: ArrivalContent::Pack { files }, from }))
    }

    /// A payload has arrived completely; none if it was not wanted.
    pub(crate) fn end_payload(self: &Arc<Self>, stream: StreamNumber, arrival: Option<Arrival>) {
        let Some(shared) = self.shared.upgrade() else { return };
        self.inner.lock().receiver.end_payload(stream);
        let Some(arrival) = arrival else { return };
        let shares = arrival.bytes_by_job();
        shares.iter().for_each(|(job, bytes)| job.note_arrived(*bytes, &shared));
        if let Some((job, _)) = shares.first() {
            job.target.place(&shares);
            job.disk().device.to_write.push(WriteJob { session: self.clone(), arrival });
        }
    }

    /// The stream died in the middle of a payload.
    pub(crate) fn payload_lost(&self, arrival: Option<Arrival>) {
        let (Some(shared), Some(arrival)) = (self.shared.upgrade(), arrival) else { return };
        for (job, bytes) in arrival.bytes_by_job() {
            job.note_arrived(bytes, &shared);
            job.note_resent(bytes);
        }
    }

    pub(super) fn chunks_written(self: &Arc<Self>, parts: &[(FileNumber, u64)]) {
        self.update(|inner, now| {
            parts.iter().for_each(|&(file, offset)| inner.receiver.chunk_written(file, offset, now))
        });
    }

    pub(super) fn chunk_damaged(self: &Arc<Self>, file: FileNumber, offset: u64) {
        self.update(|inner, now| inner.receiver.chunk_damaged(file, offset, now));
    }

    /// A chunk that was to be kept cannot be read, or is another by now.
    pub(super) fn chunk_not_held(self: &Arc<Self>, file: FileNumber, offset: u64) {
        self.update(|inner, _| inner.receiver.chunk_not_held(file, offset));
    }

    /// The bytes arrived as the source sent them, but are not those of the file.
    pub(super) fn chunk_wrong(self: &Arc<Self>, file: FileNumber, offset: u64, from: OriginNumber) {
        self.update(|inner, now| inner.receiver.chunk_wrong(file, offset, from, now));
    }

    /// The file is cancelled, or failed on this side.
    pub(crate) fn remove_file(self: &Arc<Self>, file: FileNumber) {
        self.update(|inner, now| {
            inner.jobs.remove(&file);
            inner.receiver.remove_file(file, now);
        });
    }

    /// A step of ours panicked: nobody should wait for this session.
    pub(crate) fn abort(self: &Arc<Self>, fault: &Fault) {
        self.update(|inner, now| {
            inner.closed = true;
            inner.receiver.fail_all(fault, now);
        });
    }

    /// Checks time-outs, requests more if slots are free, and leaves spare paths when the others may answer
    /// again. True while the session has work.
    pub(crate) fn tick(self: &Arc<Self>) -> bool {
        self.update(|inner, now| {
            inner.receiver.handle_timeout(now);
            if inner.paths.end_penalties(now)
                && let Some(set) = self.configured_paths()
            {
                inner.drain_other_paths(&set, now);
            }
            inner.receiver.has_work()
        })
        .unwrap_or(false)
    }

    /// Whether the session has been idle for long; then it accepts no more work.
    pub(crate) fn is_over(self: &Arc<Self>, now: Duration) -> bool {
        let mut inner = self.inner.lock();
        let rested = inner
            .receiver
            .idle_since()
            .is_some_and(|since| now.saturating_sub(since) >= longhaul_wire::limits::IDLE_MAX);
        inner.closed |= rested;
        if inner.closed && !inner.receiver.has_work() {
            inner.links.values().for_each(|link| link.close(None));
            return true;
        }
        false
    }

    /// Takes the kernel's measurements of a stream, and returns its limits.
    pub(crate) fn update_round_trip(&self, stream: StreamNumber, info: &TcpInfo) -> StreamLimits {
        let pace = self.reserved_rate(stream);
        let machine = &mut self.inner.lock().receiver;
        machine.set_round_trip(stream, info.round_trip, info.round_trip_min);
        StreamLimits { window: machine.receive_window(stream), pace }
    }

    /// The stream's share of its path's reserved rate. Other sessions with the source may use the same path.
    fn reserved_rate(&self, stream: StreamNumber) -> Option<u64> {
        let set = self.configured_paths()?;
        let way = self.inner.lock().paths.path_of(stream)?.clone();
        let booked = set.iter().find(|path| way.matches(path))?.reserved_bytes_per_s?;
        let sessions = self.shared.upgrade()?.all_sessions();
        let with_source = sessions.iter().filter(|session| session.peer() == self.peer());
        let streams: usize = with_source.map(|session| session.inner.lock().paths.streams_on(&way)).sum();
        Some((booked / streams.max(1) as u64).max(1))
    }

    pub(crate) fn snapshot(&self, shared: &EngineContext) -> SessionSnapshot {
        let mut inner = self.inner.lock();
        let (source, addresses) = (self.peer(), inner.paths.addresses_in_use());
        let held = inner.is_backpressured(shared);
        let path = inner.receiver.path_snapshot(held, shared.now());
        let mixed = self.origins.len() > 1;
        let Treatment { class, circuits, .. } = self.treatment;
        SessionSnapshot { source, class, circuits, multi_source: mixed, started: self.begun, addresses, path }
    }

    pub(crate) fn streams(&self) -> usize {
        self.inner.lock().receiver.streams_up()
    }

    fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut Inner, Duration) -> T) -> Option<T> {
        let shared = self.shared.upgrade()?;
        let told_together = shared.events.batch();
        let mut effects = Vec::new();
        let mut inner = self.inner.lock();
        let result = change(&mut inner, shared.now());
        inner.process(&shared, &mut effects);
        drop(inner);
        let mut complete = Vec::new();
        for effect in effects {
            match effect {
                Effect::Complete(job) => complete.push(job),
                effect => self.run_effect(effect, &shared),
            }
        }
        drop(told_together);
        // This may block on the disk.
        Job::complete(complete);
        Some(result)
    }

    fn run_effect(self: &Arc<Self>, effect: Effect, shared: &Arc<EngineContext>) {
        match effect {
            Effect::Dial(stream) => {
                let mut inner = self.inner.lock();
                let origin = inner.receiver.origin_of(stream);
                let paths = self.paths_to(&mut inner, origin);
                drop(inner);
                // Work that requires a circuit has to wait for one, whoever dials.
                if paths.is_empty() && origin == FIRST_ORIGIN && self.treatment.circuits != CircuitUse::Only {
                    return shared.offers.assign_or_wait(self, stream, shared.now());
                }
                // Preconnected streams use the default path and the default marking.
                let is_ours = origin == FIRST_ORIGIN && self.origins[0].membership.is_none();
                let is_usual =
                    is_ours && self.configured_paths().is_none() && self.treatment == Treatment::default();
                if is_usual && shared.offers.assign_parked(self, stream) {
                    return;
                }
                let dialler = Dialler::Session(self.clone(), stream);
                shared.resolver.push(ResolveRequest { dialler, paths });
            }
            Effect::Restarted(job) => job.restart(),
            Effect::Complete(job) => Job::complete(vec![job]),
            Effect::Failed(job, fault) => job.fail(fault, shared),
        }
    }
}

/// Several sources share the stream limit, so that they take no more memory than one.
fn new_receiver(config: &Config, origins: usize, class: TrafficClass, now: Duration) -> Receiver {
    let most = config.streams_per_session.div_ceil(origins).max(1);
    if config.fixed_streams {
        return Receiver::with_origins(origins, most, now);
    }
    let mut machine = Receiver::with_origins(origins, 1, now);
    if class == TrafficClass::Scavenger {
        // Several scavenger streams would only compete with each other.
        return machine;
    }
    machine.adapt_streams(config.local_addresses.len(), most);
    machine
}

impl Inner {
    fn stream_down(&mut self, stream: StreamNumber, fault: Fault, now: Duration) {
        self.links.remove(&stream);
        self.paths.stream_down(stream);
        self.receiver.stream_down(stream, fault, now);
    }

    /// Paths are configured for the first source only.
    fn drain_other_paths(&mut self, ways: &[Arc<Path>], now: Duration) {
        for stream in self.paths.misplaced_streams(ways, now) {
            if self.receiver.origin_of(stream) == FIRST_ORIGIN {
                self.receiver.drain_stream(stream, now);
            }
        }
    }

    /// Backpressure from our disk: arrived data fills more than half of the pool, so that less is requested
    /// than could be.
    fn is_backpressured(&self, shared: &EngineContext) -> bool {
        let pool = &shared.receive_pool;
        let arrived = pool.used().saturating_sub(self.receiver.slots_in_use());
        self.receiver.has_unrequested_files() && 2 * arrived > pool.total()
    }

    /// Handles the state machine's outputs, requests what the pool allows, and handles the new outputs.
    fn process(&mut self, shared: &Arc<EngineContext>, effects: &mut Vec<Effect>) {
        self.take_outputs(shared, effects);
        if self.receiver.has_unrequested_files() || self.receiver.is_in_endgame() {
            self.request_chunks(shared);
            self.take_outputs(shared, effects);
        }
    }

    fn request_chunks(&mut self, shared: &Arc<EngineContext>) {
        let pool = &shared.receive_pool;
        let share = pool.total() / shared.busy_sessions.load(Ordering::Relaxed).max(1);
        let window =
            if self.receiver.is_short_path() { share.min(WINDOW_SLOTS_SHORT_PATH) } else { share }.max(1);
        let open = window.saturating_sub(self.receiver.slots_in_use()).min(SLOTS_PER_ROUND_MAX);
        if open == 0 {
            return;
        }
        let mut limiter = shared.rate_limit_in.lock();
        let bytes = limiter.allowance(self.limiter_tag, shared.now());
        let buffers = if bytes == 0 { 0 } else { pool.reserve(open) };
        let places = shared.reorder.free();
        let budget = Budget { buffers, bytes, window, reorder_credits: places };
        let Inner { receiver, jobs, .. } = self;
        let is_behind = |file| jobs.get(&file).is_some_and(|job: &Arc<Job>| job.waits_for_its_disk());
        let taken = receiver.request_chunks(budget, shared.wall(), shared.now(), &is_behind);
        self.reorder_share.set_held(self.receiver.reorder_credits_in_use());
        limiter.take(self.limiter_tag, bytes, self.receiver.take_requested_bytes());
        drop(limiter);
        pool.release(buffers - taken);
        if buffers == 0 && bytes > 0 && self.receiver.slots_in_use() == 0 {
            pool.note_starvation();
        }
    }

    fn take_outputs(&mut self, shared: &Arc<EngineContext>, effects: &mut Vec<Effect>) {
        while let Some(output) = self.receiver.poll_output() {
            match output {
                Output::Send { stream, frame } => {
                    if let Some(link) = self.links.get(&stream) {
                        link.send_frame(&frame);
                    }
                }
                Output::Dial { stream } => effects.push(Effect::Dial(stream)),
                Output::Close { stream, fault } => {
                    if fault.is_some() {
                        self.paths.stream_given_up(stream, shared.now());
                    } else {
                        self.paths.stream_down(stream);
                    }
                    if let Some(link) = self.links.remove(&stream) {
                        link.close(fault);
                    }
                }
                Output::Started { file } => {
                    // At once: once its request is sent, the file might complete before the deferred effects
                    // run.
                    if let Some(job) = self.jobs.get(&file) {
                        job.mark_started(shared);
                    }
                }
                Output::SourceExcluded { file, origin, fault } => {
                    if let Some(job) = self.jobs.get(&file) {
                        job.note_excluded(origin, fault);
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
        shared.receive_pool.release(self.receiver.take_freed_slots());
        self.reorder_share.set_held(self.receiver.reorder_credits_in_use());
    }
}
