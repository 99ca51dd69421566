//! The state that the threads of an engine share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longhaul_model::mark::Treatment;
use longhaul_model::{AgentId, AttemptId, DataSecurity, Fault, StorageName, Timestamp};
use longhaul_security::{Credentials, PermitVerifier, agent_client_tls, data_server_tls};
use longhaul_wire::NewBatch;
use parking_lot::{Condvar, Mutex};
use rustls::{ClientConfig, ServerConfig};

use crate::buffer_pool::BufferPool;
use crate::calls::CallServer;
use crate::congestion::CongestionControls;
use crate::device::Devices;
use crate::events::EventQueue;
use crate::fetch::{FileLocks, IndexedJobs, Job, ReorderBudget, Session, SessionKey, SourceList, Target};
use crate::interface::{AttemptOutcome, AttemptTimeline, Clock, Config, Event, FetchFile, Path};
use crate::marks::StreamMarker;
use crate::net::{Dialler, Network};
use crate::offers::{Offering, ParkedStreams, Preconnect, no_stream_offered};
use crate::queue::Queue;
use crate::rate_limiter::RateLimiter;
use crate::refused_peers::RefusedPeers;
use crate::resolve::{ResolveRequest, default_paths};
use crate::serve::SourceServer;
use crate::tls::AUTHENTICATED_PROTOCOL;

/// Interval of session maintenance, and the granularity of the rate limits.
const TICK_INTERVAL: Duration = Duration::from_millis(20);

/// TLS configuration of new streams.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl TlsSettings {
    pub(crate) fn new(credentials: &Credentials, security: DataSecurity) -> Result<TlsSettings, Fault> {
        let mut client = (*agent_client_tls(credentials)?).clone();
        let mut server = (*data_server_tls(credentials)?).clone();
        // This crate's own record layer replaces the one of rustls after the handshake.
        client.enable_secret_extraction = true;
        server.enable_secret_extraction = true;
        if security == DataSecurity::Authenticated {
            // Negotiated by ALPN only if both ends offer it; the handshake protects it from tampering.
            client.alpn_protocols = vec![AUTHENTICATED_PROTOCOL.to_vec()];
            server.alpn_protocols = vec![AUTHENTICATED_PROTOCOL.to_vec()];
        }
        Ok(TlsSettings { client: Arc::new(client), server: Arc::new(server) })
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) refused_addresses: AtomicU64,
    pub(crate) refused_subjects: AtomicU64,
}

pub(crate) struct EngineContext {
    pub(crate) config: Config,
    pub(crate) deployment: Arc<str>,
    pub(crate) permits: PermitVerifier,
    pub(crate) clock: Clock,
    pub(crate) started: Instant,
    pub(crate) stopping: AtomicBool,
    pub(crate) tls: Mutex<TlsSettings>,
    pub(crate) network: Network,
    pub(crate) resolver: Queue<ResolveRequest>,
    pub(crate) serve: SourceServer,
    pub(crate) calls: Arc<CallServer>,
    /// Streams offered by sources, and those offered by this agent.
    pub(crate) offers: ParkedStreams,
    pub(crate) offerings: Mutex<Vec<Arc<Offering>>>,
    pub(crate) targets: Mutex<BTreeMap<StorageName, Arc<Target>>>,
    pub(crate) sessions: Mutex<BTreeMap<SessionKey, Arc<Session>>>,
    /// Sessions that were replaced while they still had work.
    pub(crate) retired: Mutex<Vec<Arc<Session>>>,
    /// Configured addresses that replace those that come with the work.
    pub(crate) paths: Mutex<BTreeMap<AgentId, Arc<[Arc<Path>]>>>,
    pub(crate) busy_sessions: AtomicUsize,
    pub(crate) attempts: Mutex<BTreeMap<AttemptId, Arc<Job>>>,
    pub(crate) congestion_controls: CongestionControls,
    /// None if packet marking is off.
    pub(crate) marks: Option<Arc<StreamMarker>>,
    pub(crate) file_locks: FileLocks,
    pub(crate) devices: Devices,
    /// Places in the reorder buffer for chunks that arrive out of order.
    pub(crate) reorder: Arc<ReorderBudget>,
    pub(crate) receive_pool: Arc<BufferPool>,
    pub(crate) send_pool: Arc<BufferPool>,
    pub(crate) rate_limit_in: Mutex<RateLimiter>,
    pub(crate) rate_limit_out: Mutex<RateLimiter>,
    pub(crate) counters: Counters,
    pub(crate) events: EventQueue,
    pub(crate) waker: Arc<TickWaker>,
    pub(crate) refused_peers: RefusedPeers,
}

/// Wakes the maintenance thread before its next tick.
#[derive(Default)]
pub(crate) struct TickWaker {
    pending: Mutex<bool>,
    signal: Condvar,
}

impl TickWaker {
    pub(crate) fn wake(&self) {
        *self.pending.lock() = true;
        self.signal.notify_one();
    }

    fn wait(&self, most: Duration) {
        let mut rung = self.pending.lock();
        if !*rung {
            self.signal.wait_for(&mut rung, most);
        }
        *rung = false;
    }
}

impl EngineContext {
    /// Monotonic time since the start, for timeouts.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The coordination service's clock.
    pub(crate) fn wall(&self) -> Timestamp {
        (self.clock)()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn tls(&self) -> TlsSettings {
        self.tls.lock().clone()
    }

    /// # Panics
    /// If the system provides no randomness: session keys would be predictable.
    pub(crate) fn random(&self, bytes: &mut [u8]) {
        assert!(aws_lc_rs::rand::fill(bytes).is_ok(), "no random numbers from the system");
    }

    pub(crate) fn random_number(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn emit(&self, event: Event) {
        self.events.push(event);
    }

    /// Ends an attempt that never became a job.
    pub(crate) fn refuse_attempt(&self, file: &FetchFile, received: Timestamp, fault: Fault) {
        tracing::warn!(attempt = %file.attempt, transfer = %file.transfer, lfn = file.lfn.shown(),
            fault = %fault.chain(),
            "an attempt was refused");
        self.emit(Event::Finished(AttemptOutcome {
            attempt: file.attempt,
            transfer: file.transfer,
            epoch: file.epoch,
            result: Err(fault),
            bytes_moved: 0,
            bytes_resent: 0,
            times: AttemptTimeline { received, ..AttemptTimeline::default() },
            shares: Vec::new(),
            executor: None,
        }));
    }

    /// Returns false if the attempt is known already.
    pub(crate) fn register_attempt(&self, job: &Arc<Job>) -> bool {
        match self.attempts.lock().entry(job.file.attempt) {
            std::collections::btree_map::Entry::Occupied(_) => false,
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(job.clone());
                true
            }
        }
    }

    pub(crate) fn unregister_attempt(&self, attempt: AttemptId) {
        let job = self.attempts.lock().remove(&attempt);
        drop(job);
    }

    /// Passes a batch to the session with its sources; a session that accepts no more work is replaced.
    pub(crate) fn add_to_session(
        self: &Arc<Self>,
        sources: &SourceList,
        treatment: Treatment,
        mut batch: NewBatch,
        mut jobs: IndexedJobs,
    ) {
        let key = sources.key(treatment);
        loop {
            let session = self
                .sessions
                .lock()
                .entry(key.clone())
                .or_insert_with(|| Arc::new(Session::new(sources, treatment, self)))
                .clone();
            match session.add(batch, jobs, sources) {
                Ok(()) => return,
                Err((back, jobs_back)) => {
                    batch = back;
                    jobs = jobs_back;
                    let mut sessions = self.sessions.lock();
                    if sessions.get(&key).is_some_and(|known| Arc::ptr_eq(known, &session)) {
                        sessions.remove(&key);
                        self.retired.lock().push(session);
                    }
                }
            }
        }
    }

    /// The main loop of the maintenance thread.
    pub(crate) fn run_session_loop(self: &Arc<Self>) {
        while !self.is_stopping() {
            self.waker.wait(TICK_INTERVAL);
            if let Err(fault) = crate::sync::catch_panic("looking after sessions", || self.tick()) {
                tracing::error!(fault = %fault.chain(), "a tick failed");
            }
        }
    }

    fn tick(self: &Arc<Self>) {
        let now = self.now();
        let sessions = self.all_sessions();
        let busy = sessions.iter().filter(|session| session.tick()).count();
        self.busy_sessions.store(busy.max(1), Ordering::Relaxed);
        self.sessions.lock().retain(|_, session| !session.is_over(now));
        self.retired.lock().retain(|session| !session.is_over(now));
        self.serve.tick(now);
        self.devices.tick(now);
        self.tick_offers(now);
    }

    pub(crate) fn preconnect(&self, ahead: &Arc<Preconnect>, streams: usize) {
        for number in 0..streams {
            let dialler = Dialler::Preconnect(ahead.clone());
            let paths = default_paths(ahead.addresses(), &self.config.local_addresses, number);
            self.resolver.push(ResolveRequest { dialler, paths });
        }
    }

    fn tick_offers(self: &Arc<Self>, now: Duration) {
        let sources: BTreeSet<AgentId> =
            self.sessions.lock().values().map(|session| session.peer()).collect();
        for (session, stream) in self.offers.tick(now, |peer| sources.contains(&peer)) {
            session.stream_down(stream, no_stream_offered());
        }
        self.offerings.lock().retain(|offering| {
            let due = offering.due(now);
            for &place in due.iter().flatten() {
                let dialler = Dialler::Offer(offering.clone(), place);
                let paths = default_paths(offering.addresses(), &self.config.local_addresses, place);
                self.resolver.push(ResolveRequest { dialler, paths });
            }
            due.is_some()
        });
    }

    pub(crate) fn all_sessions(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        all.extend(self.retired.lock().iter().cloned());
        all
    }

    /// Drops all work at shutdown.
    pub(crate) fn release_all(&self) {
        // Their destructors take these locks.
        let attempts = std::mem::take(&mut *self.attempts.lock());
        let sessions = std::mem::take(&mut *self.sessions.lock());
        let retired = std::mem::take(&mut *self.retired.lock());
        drop((attempts, sessions, retired));
        self.offers.clear();
    }

    /// Unblocks every waiting thread.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.network.wake_all();
        self.resolver.close();
        self.targets.lock().values().for_each(|target| target.stop());
        self.devices.stop();
        self.serve.stop();
        self.calls.stop();
        self.waker.wake();
    }
}

impl std::fmt::Debug for EngineContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({})", self.config.agent)
    }
}
