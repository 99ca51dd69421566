//! The engine's public handle: starts the threads, submits work, stops them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode};
use longhaul_security::{Credentials, PermitVerifier};
use longhaul_threads::{spawn_core, spawn_worker};
use longhaul_wire::limits::MANIFEST_FILES_MAX;
use longhaul_wire::receiver::ORIGINS_MAX;
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::buffer_pool::BufferPool;
use crate::calls::{CallClient, CallServer, Channel};
use crate::congestion::CongestionControls;
use crate::context::{Counters, EngineContext, TickWaker, TlsSettings};
use crate::device::{Device, Devices};
use crate::events::EventQueue;
use crate::fetch::{FileLocks, JournalFile, ReorderBudget, Target, boot_id};
use crate::foreign_deployment::ForeignDeployment;
use crate::interface::{Clock, Config, Event, Export, FetchBatch, PATHS_MAX, Path, PathProfile, Snapshot};
use crate::marks::StreamMarker;
use crate::net::{self, Dialler};
use crate::offers::{Offer, Offering, ParkedStreams, Preconnect};
use crate::queue::Queue;
use crate::rate_limiter::RateLimiter;
use crate::refused_peers::{RefusedPeers, refused};
use crate::resolve::{ResolveRequest, check_locals, default_paths};
use crate::serve::SourceServer;

/// Worker threads for calls: a slow call must not delay the others.
const CALL_WORKERS: usize = 4;
/// Minimum size of each buffer pool, whatever the budget: fewer buffers could deadlock.
const BUFFERS_MIN: usize = 4;
/// Memory of a stream beside its buffers: TLS records on their way in and out.
const STREAM_BYTES: u64 = 512 << 10;
/// Minimum number of streams that a source serves, whatever the budget.
const SERVED_STREAMS_MIN: usize = 32;
const EVENTS_THREAD: &str = "data-events";
const RESOLVER_THREAD: &str = "data-resolver";

/// Serves exported storages to other agents and fetches files from them.
pub struct Engine {
    shared: Arc<EngineContext>,
    addresses: Vec<SocketAddr>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Division of the memory budget.
struct MemoryBudget {
    receive_buffers: usize,
    send_buffers: usize,
    manifest_bytes: usize,
    served_streams: usize,
}

impl MemoryBudget {
    /// Three eighths for buffers in each direction. What the kernel buffers on the receiving side was
    /// requested with slots, so it stays within that share. The last quarter is for the streams themselves
    /// (TLS, unacknowledged bytes) and for peers' manifests.
    fn new(memory_bytes: u64) -> MemoryBudget {
        let buffers = (memory_bytes / 8 * 3 / u64::from(CHUNK_BYTES)) as usize;
        let buffers = buffers.max(BUFFERS_MIN);
        MemoryBudget {
            receive_buffers: buffers,
            send_buffers: buffers,
            manifest_bytes: (memory_bytes / 8).max(8 << 20) as usize,
            served_streams: ((memory_bytes / 8 / STREAM_BYTES) as usize)
                .clamp(SERVED_STREAMS_MIN, net::ACCEPTED_MAX),
        }
    }
}

impl Engine {
    /// Opens the journals, removes orphaned temporary files, binds the ports and starts the threads. `events`
    /// is called from one of the engine's threads with batches of events, and may block.
    pub fn start(
        config: Config,
        credentials: &Credentials,
        permits: PermitVerifier,
        exports: Vec<Export>,
        clock: Clock,
        events: impl Fn(Vec<Event>) + Send + Sync + 'static,
    ) -> Result<Engine, Fault> {
        check_locals(&config.local_addresses)?;
        let budget = MemoryBudget::new(config.memory_bytes);
        let marks = config.marking.clone().map(|marking| Arc::new(StreamMarker::new(marking)));
        let (listeners, addresses) = listen(&config.listen, &config.path, marks.as_deref())?;
        let (network, loops) = net::open(config.network_threads, listeners)?;
        let devices = Devices::new(&exports);
        let alarm = Arc::new(TickWaker::default());
        let (receive_pool, send_pool) =
            (BufferPool::new(budget.receive_buffers), BufferPool::new(budget.send_buffers));
        for pool in [&receive_pool, &send_pool] {
            let alarm = alarm.clone();
            pool.on_slots_free(move || alarm.wake());
        }
        let shared = Arc::new(EngineContext {
            deployment: config.deployment.as_str().into(),
            tls: Mutex::new(TlsSettings::new(credentials, config.data_security)?),
            serve: SourceServer::new(&exports, &devices, budget.manifest_bytes, budget.served_streams),
            devices,
            reorder: ReorderBudget::new(budget.receive_buffers),
            calls: Arc::new(CallServer::new(config.responder.clone())),
            offers: ParkedStreams::default(),
            offerings: Mutex::default(),
            config,
            permits,
            clock,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            network,
            resolver: Queue::new(usize::MAX),
            targets: Mutex::default(),
            sessions: Mutex::default(),
            retired: Mutex::default(),
            paths: Mutex::default(),
            busy_sessions: AtomicUsize::new(1),
            attempts: Mutex::default(),
            congestion_controls: CongestionControls::default(),
            marks,
            file_locks: FileLocks::default(),
            receive_pool,
            send_pool,
            rate_limit_in: Mutex::new(RateLimiter::unlimited()),
            rate_limit_out: Mutex::new(RateLimiter::unlimited()),
            counters: Counters::default(),
            events: EventQueue::default(),
            waker: alarm,
            refused_peers: RefusedPeers::default(),
        });
        let engine = Engine { shared, addresses, threads: Mutex::default() };
        engine.start_threads(loops, Box::new(events))?;
        for export in exports {
            engine.add_target(export, &engine.shared.config.state_dir)?;
        }
        tracing::info!(agent = %engine.shared.config.agent, addresses = ?engine.addresses, "the engine runs");
        Ok(engine)
    }

    fn start_threads(
        &self,
        loops: Vec<net::EventLoop>,
        events: Box<dyn Fn(Vec<Event>) + Send + Sync>,
    ) -> Result<(), Fault> {
        self.spawn(EVENTS_THREAD, move |shared| shared.events.deliver(&*events))?;
        for each in loops {
            self.spawn_pinned("data-network", move |shared| each.run(shared))?;
        }
        self.spawn("data-sessions", EngineContext::run_session_loop)?;
        self.spawn(RESOLVER_THREAD, crate::resolve::run_resolver)?;
        self.shared.devices.all().iter().try_for_each(|device| self.spawn_for(device))?;
        if self.shared.calls.is_enabled() {
            (0..CALL_WORKERS).try_for_each(|_| self.spawn_responder())?;
        }
        Ok(())
    }

    /// Adds a storage that files may be fetched into, with its journal in the directory. Leftovers of an
    /// earlier process are cleaned up. Peers cannot read from it.
    pub fn add_target(&self, export: Export, state_dir: &std::path::Path) -> Result<(), Fault> {
        let (device, is_new) = self.shared.devices.add(&export);
        if is_new {
            self.spawn_for(&device)?;
        }
        let mut targets = self.shared.targets.lock();
        let target = Arc::new(self.shared.open_target(targets.len(), export, device, state_dir)?);
        let with = |work: fn(&Arc<Target>, &Arc<EngineContext>)| {
            let target = target.clone();
            move |shared: &Arc<EngineContext>| work(&target, shared)
        };
        self.spawn("data-prepare", with(|target, shared| target.run_preparer(shared)))?;
        self.spawn("data-commit", with(|target, shared| target.run_committer(shared)))?;
        for disk in 0..target.flushers() {
            let target = target.clone();
            self.spawn("data-flush", move |shared| target.run_flusher(disk, shared))?;
        }
        targets.insert(target.name().clone(), target);
        Ok(())
    }

    fn spawn_for(&self, device: &Arc<Device>) -> Result<(), Fault> {
        for _ in 0..device.parallel() {
            let (reader, writer) = (device.clone(), device.clone());
            self.spawn_pinned("data-read", move |_| reader.run_reader())?;
            self.spawn_pinned("data-write", move |shared| writer.run_writer(shared))?;
        }
        Ok(())
    }

    /// Starts a worker thread for calls. Shutdown does not wait for it: its responder is foreign code and may
    /// take long, so it holds no reference to the engine either.
    fn spawn_responder(&self) -> Result<(), Fault> {
        let calls = self.shared.calls.clone();
        spawn_worker("data-calls", move || calls.run_worker()).map(drop).map_err(thread_fault)
    }

    /// Starts a thread that moves data, pinned to the configured cores in turn.
    fn spawn_pinned(
        &self,
        name: &str,
        work: impl FnOnce(&Arc<EngineContext>) + Send + 'static,
    ) -> Result<(), Fault> {
        let cores = &self.shared.config.cores;
        let core = match cores.is_empty() {
            true => None,
            false => Some(cores[self.threads.lock().len() % cores.len()]),
        };
        self.spawn(name, move |shared| {
            if let Some(core) = core
                && let Err(error) = pin(core)
            {
                tracing::warn!(core, %error, "a thread cannot be pinned to a core");
            }
            work(shared);
        })
    }

    fn spawn(
        &self,
        name: &str,
        work: impl FnOnce(&Arc<EngineContext>) + Send + 'static,
    ) -> Result<(), Fault> {
        let (shared, stopping) = (self.shared.clone(), Arc::downgrade(&self.shared));
        let may_return = move || stopping.upgrade().is_none_or(|shared| shared.is_stopping());
        let thread = spawn_core(name, may_return, move || work(&shared)).map_err(thread_fault)?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// The addresses on which this engine listens, with the actual ports.
    pub fn data_addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Submits files to fetch. Never blocks.
    pub fn fetch(&self, batch: FetchBatch) {
        let refuse_all = |fault: &Fault| {
            let received = self.shared.wall();
            batch.wanted().for_each(|file| self.shared.refuse_attempt(file, received, fault.clone()));
        };
        if batch.files.len() > MANIFEST_FILES_MAX {
            let detail = format!("a batch of {} files; the limit is {MANIFEST_FILES_MAX}", batch.files.len());
            return refuse_all(&Fault::new(FaultCode::TooLarge, detail));
        }
        if batch.replicas.len() >= ORIGINS_MAX {
            let detail = format!("{} replicas; the limit is {}", batch.replicas.len(), ORIGINS_MAX - 1);
            return refuse_all(&Fault::new(FaultCode::TooLarge, detail));
        }
        let Some(target) = self.shared.targets.lock().get(&batch.target_storage).cloned() else {
            let detail = format!("this agent has no storage {}", batch.target_storage);
            return refuse_all(&Fault::new(FaultCode::NotFound, detail));
        };
        let prepare = target.accept(batch, &self.shared);
        target.enqueue(prepare);
    }

    /// Cancels attempts, waiting or running; no event follows for them.
    pub fn cancel(&self, attempts: &[AttemptId]) {
        for attempt in attempts {
            let job = self.shared.attempts.lock().get(attempt).cloned();
            if let Some(job) = job {
                job.cancel(&self.shared);
            }
        }
    }

    /// Opens a stream for calls to the agent at one of the addresses. Blocks.
    pub fn channel(&self, addresses: &[String], within: Duration) -> Result<Channel, Fault> {
        self.channel_in(None, addresses, within)
    }

    /// The same to an agent of another deployment.
    pub fn channel_in(
        &self,
        membership: Option<&ForeignDeployment>,
        addresses: &[String],
        within: Duration,
    ) -> Result<Channel, Fault> {
        let calling = CallClient::new(membership.cloned());
        let dialler = Dialler::Calls(calling.clone());
        let paths = default_paths(addresses, &[], 0);
        self.shared.resolver.push(ResolveRequest { dialler, paths });
        Channel::open(calling, within)
    }

    /// Enables this engine to dial agents of another deployment, as replicas and for calls.
    pub fn join_deployment(
        &self,
        deployment: &str,
        credentials: &Credentials,
    ) -> Result<ForeignDeployment, Fault> {
        ForeignDeployment::new(deployment, credentials, self.shared.config.data_security)
    }

    /// Opens streams to the peer at one of the addresses before the first files are requested, to save their
    /// round trips. Never blocks.
    pub fn preconnect(&self, addresses: &[String]) {
        let config = &self.shared.config;
        let ahead =
            Arc::new(Preconnect::new(addresses, config.streams_per_session.max(1), config.fixed_streams));
        self.shared.preconnect(&ahead, ahead.initial_streams());
    }

    /// Keeps this many streams open to the peer at one of the addresses, on which it may fetch from our
    /// exports; for peers that cannot dial us. Never blocks; ends when dropped.
    pub fn offer(&self, addresses: &[String], streams: usize) -> Result<Offer, Fault> {
        if addresses.is_empty() || streams == 0 {
            return Err(Fault::new(FaultCode::BadRequest, "an offer needs an address and a stream"));
        }
        let offering = Arc::new(Offering::new(addresses, streams, self.shared.now()));
        self.shared.offerings.lock().push(offering.clone());
        self.shared.waker.wake();
        Ok(Offer::new(offering))
    }

    /// Sets the network paths to a source, in place of the addresses in its batches; an empty list restores
    /// those. Streams on other paths drain while new ones open: files in progress move with their next
    /// chunks, and nothing is sent twice. The traffic class of a stream makes no difference, but its
    /// [`CircuitUse`] does: work that never uses circuits stays where it is, work that requires one uses no
    /// spare path.
    pub fn set_paths(&self, source: AgentId, paths: Vec<Path>) -> Result<(), Fault> {
        if paths.len() > PATHS_MAX || paths.iter().any(|path| path.weight == 0) {
            let detail = format!("paths are at most {PATHS_MAX}, each with a weight");
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        let paths: Arc<[Arc<Path>]> = paths.into_iter().map(Arc::new).collect();
        tracing::info!(%source, paths = paths.len(), "the paths to a source are set");
        let mut all = self.shared.paths.lock();
        match paths.is_empty() {
            true => all.remove(&source),
            false => all.insert(source, paths),
        };
        drop(all);
        let sessions = self.shared.all_sessions();
        sessions.iter().filter(|session| session.peer() == source).for_each(|session| session.apply_paths());
        Ok(())
    }

    /// Rate limits in payload bytes per second, in and out; none is unlimited.
    pub fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>) {
        let now = self.shared.now();
        self.shared.rate_limit_in.lock().set_rate(in_bytes_per_s, now);
        self.shared.rate_limit_out.lock().set_rate(out_bytes_per_s, now);
        self.shared.waker.wake();
    }

    /// New streams use these credentials; existing ones live on.
    pub fn renew_credentials(&self, credentials: &Credentials) -> Result<(), Fault> {
        let settings = TlsSettings::new(credentials, self.shared.config.data_security)?;
        *self.shared.tls.lock() = settings;
        Ok(())
    }

    /// Exchanges nothing more with these peers, instead of those named before: their open streams end, too.
    pub fn refuse_peers(&self, peers: BTreeSet<AgentId>) {
        for peer in self.shared.refused_peers.replace(peers) {
            tracing::warn!(%peer, "the service refuses this agent: its streams end");
            let sessions = self.shared.all_sessions();
            let with_peer = sessions.iter().filter(|session| session.peer() == peer);
            with_peer.for_each(|session| session.abort(&refused(peer)));
            self.shared.serve.close_streams(peer, &refused(peer));
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        let shared = &self.shared;
        let jobs: Vec<_> = shared.attempts.lock().values().cloned().collect();
        let running: Vec<(AttemptId, u64)> = jobs
            .iter()
            .filter(|job| job.has_started())
            .map(|job| (job.file.attempt, job.written_bytes()))
            .collect();
        Snapshot {
            waiting: jobs.len() - running.len(),
            running,
            bytes_in: shared.counters.bytes_in.load(Ordering::Relaxed),
            bytes_out: shared.counters.bytes_out.load(Ordering::Relaxed),
            buffers_total: shared.receive_pool.total() + shared.send_pool.total(),
            buffers_used: shared.receive_pool.used() + shared.send_pool.used(),
            buffers_peak: shared.receive_pool.peak() + shared.send_pool.peak(),
            streams_in: shared.all_sessions().iter().map(|session| session.streams()).sum(),
            streams_out: shared.serve.streams(),
            reorder_total: shared.reorder.total(),
            reorder_peak: shared.reorder.peak(),
            devices: shared.devices.snapshot(),
            refused_addresses: shared.counters.refused_addresses.load(Ordering::Relaxed),
            refused_subjects: shared.counters.refused_subjects.load(Ordering::Relaxed),
            sessions: shared.all_sessions().iter().map(|session| session.snapshot(shared)).collect(),
            marking: shared.marks.as_ref().map(|marks| marks.snapshot()),
        }
    }

    /// Stops all threads, and keeps what has arrived for the next start. Unfinished attempts get no event.
    pub fn stop(self) {
        drop(self);
    }

    fn shut_down(&self) {
        self.shared.stop();
        let me = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        // The first delivers events: it ends when no sender is left.
        for thread in threads.into_iter().rev() {
            if thread.thread().name() == Some(EVENTS_THREAD) {
                self.shared.release_all();
                self.shared.events.end();
            }
            if thread.thread().name() == Some(RESOLVER_THREAD) {
                // The system's resolver may block it for long, and it holds no state worth waiting for.
                continue;
            }
            // If the receiver of events drops the engine, it runs on that very thread and cannot join it.
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a thread of the engine had panicked");
            }
        }
    }
}

#[cfg(test)]
impl Engine {
    /// For tests of parts that need one.
    pub(crate) fn context(&self) -> &Arc<EngineContext> {
        &self.shared
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down();
        tracing::info!(agent = %self.shared.config.agent, "the engine has stopped");
    }
}

/// Pins the calling thread to this core.
fn pin(core: usize) -> std::io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

fn thread_fault(error: std::io::Error) -> Fault {
    Fault::new(FaultCode::Internal, format!("no thread can be started: {error}")).with_source(error)
}

fn listen(
    wanted: &[SocketAddr],
    path: &PathProfile,
    marks: Option<&StreamMarker>,
) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), Fault> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for address in wanted {
        let failed = |error: std::io::Error| {
            Fault::new(
                FaultCode::from_listen_error(error.kind()),
                format!("cannot listen on {address}: {error}"),
            )
            .with_source(error)
            .blaming(longhaul_model::Blame::Ourselves)
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        crate::socket::prepare_listener(&listener, path);
        if let Some(marks) = marks {
            marks.prepare_listener(&listener);
        }
        addresses.push(listener.local_addr().map_err(failed)?);
        listeners.push(listener);
    }
    Ok((listeners, addresses))
}

impl EngineContext {
    fn open_target(
        &self,
        place: usize,
        export: Export,
        device: Arc<Device>,
        state_dir: &std::path::Path,
    ) -> Result<Target, Fault> {
        let name = export.storage.name().clone();
        let lane = u16::try_from(place)
            .map_err(|_| Fault::new(FaultCode::TooLarge, format!("{place} storages and one more")))?;
        std::fs::create_dir_all(state_dir).map_err(|error| {
            Fault::new(FaultCode::StateDirectory, format!("{}: {error}", state_dir.display()))
                .with_source(error)
        })?;
        let mut random = [0; 16];
        self.random(&mut random);
        let journal = JournalFile::open(state_dir.join(format!("{name}.journal")), boot_id(random))?;
        let pools = export.storage.pool_devices();
        let pools = pools.iter().filter_map(|pool| self.devices.numbered(pool.number)).collect();
        let Export { storage, rules } = export;
        let target = Target::new(self.config.agent, lane, storage, device, pools, rules, journal);
        if let Err(fault) = target.clean_up_leftovers(self.wall()) {
            // A storage that cannot be listed now may still be readable; its faults are reported when it is
            // used.
            tracing::warn!(storage = %name, fault = %fault.chain(),
                "leftovers of earlier attempts could not be cleaned up");
        }
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_told_as_such() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let code = |address: SocketAddr| {
            listen(&[address], &PathProfile::default(), None).map(drop).map_err(|fault| fault.code)
        };
        assert_eq!(code(taken.local_addr().unwrap()), Err(FaultCode::AddressInUse));
        // An address that this host does not have (RFC 5737).
        assert_eq!(code(SocketAddr::from(([192, 0, 2, 1], 7_000))), Err(FaultCode::BadRequest));
    }
}
