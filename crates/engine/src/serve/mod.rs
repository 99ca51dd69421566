//! The source's side: sessions of peers that read from this agent's exports.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, Lfn, StorageName, TransferId};
use longhaul_security::list_digest;
use longhaul_wire::source::{Batch, JoinedStream, Output};
use longhaul_wire::{BatchId, FileNumber, Frame, Hello, JoinKey, RequestId, SessionId, Source};
use parking_lot::Mutex;

use crate::context::EngineContext;
use crate::device::{Device, Devices};
use crate::interface::Export;
use crate::net::Link;
use crate::rate_limiter::SessionTag;

mod read;

pub(crate) use read::{OpenFiles, ReadJob, ReadKind};

/// Sessions of all peers. A peer needs one for each treatment of its streams, and for each set of sources.
const SERVED_SESSIONS_MAX: usize = 1_024;
/// Sessions of one peer: whoever opens them without end leaves room for the others.
const PEER_SESSIONS_MAX: usize = SERVED_SESSIONS_MAX / 4;
/// Buffers that are read and not yet sent, per stream: enough that disk and network work in parallel
/// (read-ahead).
const READ_AHEAD_BUFFERS_MAX: usize = 4;
/// Buffers taken from the pool in one step.
const BUFFERS_PER_ROUND_MAX: usize = 8;
/// Time for which a session without streams is kept, so that its manifests need not be sent again.
const SESSION_TTL: Duration = Duration::from_secs(60);

/// An export as peers read it.
pub(crate) struct ServedExport {
    pub(crate) export: Export,
    pub(crate) device: Arc<Device>,
}

pub(crate) struct SourceServer {
    pub(crate) exports: BTreeMap<StorageName, Arc<ServedExport>>,
    sessions: Mutex<BTreeMap<(AgentId, SessionId), Arc<ServedSession>>>,
    /// The limit and the current use of memory for peers' manifests.
    manifest_bytes_max: usize,
    manifest_bytes: Mutex<BTreeMap<AgentId, usize>>,
    /// The limit and the current number of served streams.
    streams_max: usize,
    streams: AtomicUsize,
}

/// Refused permits of a session that are all logged.
const REFUSALS_LOGGED_MAX: u64 = 16;

/// Whether the refusal with this number, counted from one, is logged.
fn is_logged_refusal(count: u64) -> bool {
    count <= REFUSALS_LOGGED_MAX || count.is_power_of_two()
}

/// One session of a peer.
pub(crate) struct ServedSession {
    peer: AgentId,
    key: JoinKey,
    incarnation: u64,
    shared: Weak<EngineContext>,
    /// How the rate limit of what goes out knows the session.
    limiter_tag: SessionTag,
    inner: Mutex<Inner>,
    /// Permits refused so far. The first few are logged, and then each power of two: a peer that sends bad
    /// ones without end must not fill the log, or keep the thread of other peers' streams busy with it.
    refused_permits: AtomicU64,
    pub(crate) open_files: OpenFiles,
}

struct Inner {
    machine: Source,
    links: BTreeMap<JoinedStream, Arc<Link>>,
    accounted_bytes: usize,
    /// Buffers held by the session.
    buffers: usize,
    empty_since: Option<Duration>,
}

/// What a reader needs to know about a file.
#[derive(Clone, Debug)]
pub(crate) struct ServedFile {
    pub(crate) number: FileNumber,
    pub(crate) attempt: AttemptId,
    pub(crate) transfer: TransferId,
    pub(crate) lfn: Lfn,
    pub(crate) size: u64,
}

impl SourceServer {
    pub(crate) fn new(
        exports: &[Export],
        devices: &Devices,
        manifest_bytes_max: usize,
        streams_max: usize,
    ) -> SourceServer {
        let exported = |export: &Export| {
            let name = export.storage.name().clone();
            let device = devices.device(&name);
            (name, Arc::new(ServedExport { export: export.clone(), device }))
        };
        SourceServer {
            exports: exports.iter().map(exported).collect(),
            sessions: Mutex::default(),
            manifest_bytes_max,
            manifest_bytes: Mutex::default(),
            streams_max,
            streams: AtomicUsize::new(0),
        }
    }

    /// Joins a stream to its session, at its hello.
    pub(crate) fn join(
        &self,
        peer: AgentId,
        hello: &Hello,
        link: Arc<Link>,
        shared: &Arc<EngineContext>,
    ) -> Result<(Arc<ServedSession>, JoinedStream), Fault> {
        // The place first: a session that never gets a stream would stay for ever.
        if self.streams.fetch_add(1, Ordering::Relaxed) >= self.streams_max {
            self.streams.fetch_sub(1, Ordering::Relaxed);
            return Err(Fault::new(
                FaultCode::Busy,
                format!("{} streams are served already", self.streams_max),
            ));
        }
        let serving = self.session(peer, hello, shared).inspect_err(|_| {
            self.streams.fetch_sub(1, Ordering::Relaxed);
        })?;
        let mut inner = serving.inner.lock();
        let joined = inner.machine.stream_up();
        inner.links.insert(joined, link);
        inner.empty_since = None;
        drop(inner);
        Ok((serving, joined))
    }

    /// The session that a hello names; a new one if there is none and there is room.
    fn session(
        &self,
        peer: AgentId,
        hello: &Hello,
        shared: &Arc<EngineContext>,
    ) -> Result<Arc<ServedSession>, Fault> {
        let mut sessions = self.sessions.lock();
        if let Some(known) = sessions.get(&(peer, hello.session)) {
            // Only the session's own agent can reach this point, and only it knows the key: a mismatch means
            // a copied identity.
            return match known.key == hello.key {
                true => Ok(known.clone()),
                false => Err(Fault::new(FaultCode::NotAuthenticated, "the key does not open the session")),
            };
        }
        check_room(&sessions, peer)?;
        tracing::info!(target_agent = %peer, "a session begins");
        let serving = Arc::new(ServedSession::new(peer, hello.key, shared));
        sessions.insert((peer, hello.session), serving.clone());
        Ok(serving)
    }

    fn all(&self) -> Vec<Arc<ServedSession>> {
        self.sessions.lock().values().cloned().collect()
    }

    /// Resumes sessions that wait for buffers or for the rate limit, and drops expired ones.
    pub(crate) fn tick(&self, now: Duration) {
        for serving in self.all() {
            serving.pump();
        }
        self.sessions.lock().retain(|_, serving| {
            let inner = serving.inner.lock();
            let over = inner.empty_since.is_some_and(|since| now.saturating_sub(since) >= SESSION_TTL);
            if over {
                self.account(serving.peer, inner.accounted_bytes, 0);
                tracing::info!(target_agent = %serving.peer, "a session ended");
            }
            !over
        });
    }

    /// Updates the memory that a session of a peer holds for its manifests. Returns the peer's total and the
    /// overall total.
    fn account(&self, peer: AgentId, before: usize, now: usize) -> (usize, usize) {
        let mut held = self.manifest_bytes.lock();
        let own = (held.get(&peer).copied().unwrap_or(0) + now).saturating_sub(before);
        if own == 0 {
            held.remove(&peer);
        } else {
            held.insert(peer, own);
        }
        (own, held.values().sum())
    }

    /// Ends all streams of a peer.
    pub(crate) fn close_streams(&self, peer: AgentId, fault: &Fault) {
        for serving in self.all().iter().filter(|serving| serving.peer == peer) {
            serving.inner.lock().links.values().for_each(|link| link.close(Some(fault.clone())));
        }
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.sessions.lock().clear();
    }
}

/// Whether the peer may open one more session.
fn check_room<S>(sessions: &BTreeMap<(AgentId, SessionId), S>, peer: AgentId) -> Result<(), Fault> {
    if sessions.len() >= SERVED_SESSIONS_MAX {
        return Err(Fault::new(FaultCode::Busy, "too many sessions at this source"));
    }
    let of_peer = (peer, SessionId([0; 16]))..=(peer, SessionId([u8::MAX; 16]));
    if sessions.range(of_peer).count() >= PEER_SESSIONS_MAX {
        let detail = format!("{PEER_SESSIONS_MAX} sessions of this agent are open at this source already");
        return Err(Fault::new(FaultCode::Busy, detail));
    }
    Ok(())
}

impl ServedSession {
    fn new(peer: AgentId, key: JoinKey, shared: &Arc<EngineContext>) -> ServedSession {
        let inner = Inner {
            machine: Source::default(),
            links: BTreeMap::new(),
            accounted_bytes: 0,
            buffers: 0,
            empty_since: None,
        };
        ServedSession {
            peer,
            key,
            incarnation: shared.random_number(),
            shared: Arc::downgrade(shared),
            limiter_tag: shared.rate_limit_out.lock().add_session(),
            inner: Mutex::new(inner),
            refused_permits: AtomicU64::new(0),
            open_files: OpenFiles::default(),
        }
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) fn peer(&self) -> AgentId {
        self.peer
    }

    pub(crate) fn handle_frame(self: &Arc<Self>, joined: JoinedStream, frame: Frame) -> Result<(), Fault> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let manifest = matches!(frame, Frame::Manifest(_) | Frame::Forget { .. });
        let mut inner = self.inner.lock();
        inner.machine.handle_frame(joined, frame)?;
        if manifest {
            self.account_manifests(&mut inner, &shared)?;
        }
        self.process(&mut inner, &shared);
        Ok(())
    }

    /// Keeps the manifests of all peers within their share of memory.
    fn account_manifests(&self, inner: &mut Inner, shared: &EngineContext) -> Result<(), Fault> {
        let serve = &shared.serve;
        let held = inner.machine.manifest_bytes();
        let (own, total) = serve.account(self.peer, inner.accounted_bytes, held);
        inner.accounted_bytes = held;
        // A peer that announces without end leaves room for the others.
        if total > serve.manifest_bytes_max || own > serve.manifest_bytes_max / 4 * 3 {
            return Err(Fault::new(FaultCode::Busy, "the source holds too many lists of files"));
        }
        Ok(())
    }

    pub(crate) fn stream_down(self: &Arc<Self>, joined: JoinedStream) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut inner = self.inner.lock();
        inner.machine.stream_down(joined);
        let link = inner.links.remove(&joined);
        shared.serve.streams.fetch_sub(1, Ordering::Relaxed);
        if inner.links.is_empty() {
            inner.empty_since = Some(shared.now());
            self.open_files.clear();
        }
        self.process(&mut inner, &shared);
        drop(inner);
        // This may drop the last payloads, whose destructor takes the lock.
        drop(link);
    }

    /// Records that a buffer of this stream is free again after `bytes` of it were sent.
    pub(crate) fn payload_sent(self: &Arc<Self>, joined: JoinedStream, bytes: u64) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.counters.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        inner.buffers = inner.buffers.saturating_sub(1);
        inner.machine.release_buffer(joined);
        self.process(&mut inner, &shared);
    }

    /// Records that a chunk was not sent, as the receiver holds it: the rate limit gets its bytes back.
    fn chunk_unchanged(self: &Arc<Self>, joined: JoinedStream, len: u32) {
        if let Some(shared) = self.shared.upgrade() {
            shared.rate_limit_out.lock().refund(len.into());
        }
        self.payload_sent(joined, 0);
    }

    /// Records that a chunk could not be read and that its fault was sent.
    fn abandon_request(self: &Arc<Self>, joined: JoinedStream, request: RequestId) {
        self.inner.lock().machine.abandon_request(joined, request);
    }

    pub(crate) fn pump(self: &Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut inner = self.inner.lock();
        if inner.machine.has_work() {
            self.process(&mut inner, &shared);
        }
    }

    fn process(self: &Arc<Self>, inner: &mut Inner, shared: &Arc<EngineContext>) {
        self.handle_outputs(inner, shared);
        let streams = shared.serve.streams().max(1);
        let per_stream = (shared.send_pool.total() / streams).clamp(1, READ_AHEAD_BUFFERS_MAX);
        while inner.machine.has_work() {
            let mut limiter = shared.rate_limit_out.lock();
            let allowance = limiter.allowance(self.limiter_tag, shared.now());
            let reserved = if allowance == 0 { 0 } else { shared.send_pool.reserve(BUFFERS_PER_ROUND_MAX) };
            let (taken, bytes) = inner.machine.schedule_reads(reserved, allowance, per_stream);
            limiter.take(self.limiter_tag, allowance, bytes);
            drop(limiter);
            shared.send_pool.release(reserved - taken);
            inner.buffers += taken;
            self.handle_outputs(inner, shared);
            if taken == 0 {
                if reserved == 0 && allowance > 0 && inner.buffers == 0 {
                    shared.send_pool.note_starvation();
                }
                return;
            }
        }
    }

    fn handle_outputs(self: &Arc<Self>, inner: &mut Inner, shared: &Arc<EngineContext>) {
        while let Some(output) = inner.machine.poll_output() {
            match output {
                Output::Send { stream, frame } => {
                    if let Some(link) = inner.links.get(&stream) {
                        link.send_frame(&frame);
                    }
                }
                Output::Authorise { batch } => {
                    let answer = match inner.machine.batch(batch) {
                        Some(known) => self.authorise(batch, known, shared),
                        None => continue,
                    };
                    inner.machine.complete_authorisation(batch, answer);
                }
                Output::ReadChunk { stream, request, file, offset, len, held_crc32c } => {
                    self.enqueue_read(
                        inner,
                        shared,
                        stream,
                        request,
                        &[file],
                        ReadKind::Chunk { offset, len, held_crc32c },
                    );
                }
                Output::ReadPack { stream, request, files } => {
                    self.enqueue_read(inner, shared, stream, request, &files, ReadKind::Pack);
                }
            }
        }
    }

    /// Verifies the permit completely before anything is read.
    fn authorise(&self, id: BatchId, batch: &Batch, shared: &EngineContext) -> Result<(), Fault> {
        let refused = |fault: Fault| {
            let count = self.refused_permits.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            if is_logged_refusal(count) {
                tracing::warn!(target_agent = %self.peer, batch = id.0, count, fault = %fault.chain(),
                    "a permit was refused");
            }
            fault
        };
        shared.refused_peers.check(self.peer).map_err(refused)?;
        let permit = shared.permits.verify(&batch.permit, shared.wall()).map_err(refused)?;
        let list = list_digest(batch.files.iter().map(|file| (file.attempt, &file.lfn, file.size)));
        let (source, target) = (shared.config.agent, self.peer);
        permit.covers(&shared.deployment, source, target, &batch.storage, &list).map_err(refused)?;
        if !shared.serve.exports.contains_key(&batch.storage) {
            let detail = format!("the storage {} is not exported here", batch.storage);
            return Err(refused(Fault::new(FaultCode::PermitRefused, detail)));
        }
        tracing::debug!(target_agent = %self.peer, storage = %batch.storage, files = batch.files.len(),
            "a manifest is accepted");
        Ok(())
    }

    /// Passes a read with its reserved slot to the storage's readers.
    fn enqueue_read(
        self: &Arc<Self>,
        inner: &Inner,
        shared: &Arc<EngineContext>,
        stream: JoinedStream,
        request: RequestId,
        numbers: &[FileNumber],
        reading: ReadKind,
    ) {
        let buffer = shared.send_pool.buffer();
        let mut storage: Option<StorageName> = None;
        let mut files = Vec::with_capacity(numbers.len());
        for &number in numbers {
            // A permit is for one storage: a pack with files of two storages would read names of one in the
            // other.
            let known = inner.machine.file(number);
            if let Some((file, of)) =
                known.filter(|(_, of)| storage.as_ref().is_none_or(|first| first == *of))
            {
                storage = Some(of.clone());
                files.push(Ok(ServedFile {
                    number,
                    attempt: file.attempt,
                    transfer: file.transfer,
                    lfn: file.lfn.clone(),
                    size: file.size,
                }));
            } else {
                files.push(Err(number));
            }
        }
        let exported = storage.and_then(|storage| shared.serve.exports.get(&storage));
        let link = inner.links.get(&stream).cloned();
        // Every file of a scheduled request was in an accepted batch a moment ago, and batches name exported
        // storages.
        if let (Some(exported), Some(link)) = (exported, link) {
            let serving = self.clone();
            let job = ReadJob {
                serving,
                exported: exported.clone(),
                link,
                stream,
                request,
                files,
                reading,
                buffer,
            };
            exported.device.to_read.push(job);
        } else {
            tracing::error!(target_agent = %self.peer, "a request without a storage was dealt");
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::Timestamp;
    use longhaul_security::PermitVerifier;
    use longhaul_wire::VERSIONS;

    use super::*;
    use crate::net::NetworkThread;
    use crate::tls::tests::{authority, credentials};
    use crate::{Config, Engine};

    fn session_id(number: u32) -> SessionId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        SessionId(id)
    }

    #[test]
    fn ten_thousand_sessions_of_one_peer_leave_room_for_the_others() {
        let mut sessions = BTreeMap::new();
        for number in 0..10_000 {
            if check_room(&sessions, AgentId(3)).is_ok() {
                sessions.insert((AgentId(3), session_id(number)), ());
            }
        }
        assert_eq!(sessions.len(), PEER_SESSIONS_MAX);
        assert!(check_room(&sessions, AgentId(2)).is_ok() && check_room(&sessions, AgentId(4)).is_ok());
        // Neither do all of them together fill its memory.
        for number in 0..10_000 {
            let peer = AgentId(u64::from(number % 50) + 4);
            if check_room(&sessions, peer).is_ok() {
                sessions.insert((peer, session_id(number)), ());
            }
        }
        assert_eq!(sessions.len(), SERVED_SESSIONS_MAX);
    }

    /// Each left a session behind that nobody could end: after 1,024 of them the source served nobody.
    #[test]
    fn a_stream_that_is_refused_leaves_no_session_behind() {
        let home = tempfile::tempdir().unwrap();
        let authority = authority();
        let config = Config::new(AgentId(7), "test", home.path());
        let permits = PermitVerifier::new(&authority.permit_key_pem()).unwrap();
        let clock = Arc::new(|| Timestamp(0));
        let engine =
            Engine::start(config, &credentials(&authority), permits, Vec::new(), clock, |_| ()).unwrap();
        let shared = engine.context();
        let poll = mio::Poll::new().unwrap();
        let thread = NetworkThread::idle(&poll);
        let server = SourceServer::new(&[], &Devices::new(&[]), 0, 2);
        let join = |number: u32, key: u8| {
            let hello = Hello { versions: VERSIONS, session: session_id(number), key: JoinKey([key; 32]) };
            let joined = server.join(AgentId(3), &hello, Link::new(thread.clone(), 1), shared);
            joined.map(drop).map_err(|fault| fault.code)
        };
        assert_eq!(join(0, 1), Ok(()));
        assert_eq!(join(0, 2), Err(FaultCode::NotAuthenticated));
        assert_eq!((server.all().len(), server.streams()), (1, 1), "a wrong key takes no place");
        assert_eq!(join(0, 1), Ok(()));
        for number in 1..=10 {
            assert_eq!(join(number, 1), Err(FaultCode::Busy));
        }
        assert_eq!((server.all().len(), server.streams()), (1, 2));
    }

    #[test]
    fn a_flood_of_bad_permits_does_not_flood_the_log() {
        let logged = (1..=60_000).filter(|count| is_logged_refusal(*count)).count();
        assert!(is_logged_refusal(1) && logged < 32, "{logged} lines");
        assert!(is_logged_refusal(1 << 40), "it is said that it goes on");
    }
}
