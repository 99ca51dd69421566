//! A mover with servers: has the servers of storages copy between themselves, and passes all else to the
//! engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_engine::{Clock, Config, Event, Export, FetchBatch, FetchFile, Path, Snapshot};
use longhaul_model::{
    AgentId, AttemptId, CircuitUse, Fault, FaultCode, Lfn, Pfn, StorageName, Timestamp, TrafficClass,
};
use longhaul_security::Credentials;
use longhaul_storage::TempName;
use longhaul_storage_remote::{RemoteStorage, ServerCopyFault};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::batch_copy::{BatchSource, ServerBatch};
use super::file_access::FileAccessServer;
use super::pairs::{StoragePair, StoragePairs};
use super::peer_files::PeerChannels;
use crate::attempt_temps::AttemptTemps;
use crate::command::CircuitCommands;
use crate::config::StorageConfig;
use crate::inner_mover::InnerMover;
use crate::mover::{Mover, MoverStart, PeerChannel};
use crate::state_dir::random_u64;
use crate::threads::blocking;

/// Files that one target's server copies at once, unless the storage's `parallel` says otherwise.
const COPIES_DEFAULT: usize = 16;

/// Time for another agent and its server to give access to files.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(30);

/// The storages of the agent that servers hold.
pub(crate) type StorageServers = BTreeMap<StorageName, Arc<RemoteStorage>>;

pub(super) struct ServerMover(pub(super) Arc<ServerMoverInner>);

pub(super) struct ServerMoverInner {
    pub(super) storages: BTreeMap<StorageName, Arc<ServerStorage>>,
    pub(super) engine: InnerMover,
    pub(super) clock: Clock,
    pub(super) temps: AttemptTemps,
    pub(super) agent: AgentId,
    pub(super) channels: PeerChannels,
    /// How long another agent may take to give access to files; then the engine moves them.
    pub(super) access_timeout: Duration,
    state: Mutex<ServerMoverState>,
    /// Serialises handing files to the engine with cancellation.
    gate: Mutex<()>,
    /// Changes when attempts are cancelled.
    cancelled: watch::Sender<u64>,
}

/// A storage whose server copies.
pub(super) struct ServerStorage {
    pub(super) server: Arc<RemoteStorage>,
    pub(super) export: Export,
    pub(super) slots: Arc<Semaphore>,
}

impl ServerStorage {
    /// A file's name there.
    pub(super) fn pfn(&self, lfn: &Lfn) -> Result<Pfn, ServerCopyFault> {
        let at = self.export.rules.to_pfn(self.export.storage.name(), lfn);
        at.map_err(|error| ServerCopyFault::of_file(error.into()))
    }
}

#[derive(Default)]
struct ServerMoverState {
    live: BTreeMap<AttemptId, LiveCopy>,
    pairs: StoragePairs,
    /// A rate is to be kept, which servers know nothing of.
    is_limited: bool,
    bytes_in: u64,
}

#[derive(Default)]
struct LiveCopy {
    has_begun: bool,
    moved: Arc<AtomicU64>,
}

/// Starts the engine with the servers of `storages` around it, or alone if there are none.
pub(crate) fn start(
    configs: &[StorageConfig],
    servers: &StorageServers,
    start: MoverStart,
    start_engine: impl FnOnce(MoverStart) -> Result<Box<dyn Mover>, Fault>,
) -> Result<Box<dyn Mover>, Fault> {
    let storages = server_storages(configs, servers, &start.exports);
    if storages.is_empty() {
        return start_engine(start);
    }
    let events: Arc<dyn Fn(Vec<Event>) + Send + Sync> = start.events.into();
    let internal =
        |error: std::io::Error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error);
    let temps = AttemptTemps::of_servers(start.config.agent, random_u64().map_err(internal)?);
    let (agent, clock) = (start.config.agent, start.clock.clone());
    let engine = InnerMover::new(events.clone())?;
    let inner = Arc::new(ServerMoverInner::new(storages, (agent, temps), clock, engine));
    let responder = Arc::new(FileAccessServer {
        mover: Arc::downgrade(&inner),
        permits: start.permits.clone(),
        deployment: start.config.deployment.clone(),
    });
    let config = Config { responder: Some(responder), ..start.config };
    let engine = start_engine(MoverStart { config, events: Box::new(move |those| events(those)), ..start })?;
    inner.engine.set(engine);
    inner.remove_stale_temps();
    Ok(Box::new(ServerMover(inner)))
}

pub(super) fn server_storages(
    configs: &[StorageConfig],
    servers: &StorageServers,
    exports: &[Export],
) -> BTreeMap<StorageName, Arc<ServerStorage>> {
    let mut storages = BTreeMap::new();
    for config in configs {
        let is_asked = config.server.as_ref().is_some_and(|server| server.third_party != Some(false));
        let export = exports.iter().find(|export| *export.storage.name() == config.name);
        if let (true, Some(server), Some(export)) = (is_asked, servers.get(&config.name), export) {
            let slots = if config.parallel > 0 { config.parallel.into() } else { COPIES_DEFAULT };
            let slots = Arc::new(Semaphore::new(slots));
            let storage = ServerStorage { server: server.clone(), export: export.clone(), slots };
            storages.insert(config.name.clone(), Arc::new(storage));
        }
    }
    storages
}

/// Whether nothing is wanted of the batch that only the engine can do: circuits, marks of packets, yielding
/// to other traffic.
pub(super) fn suits_servers(batch: &FetchBatch) -> bool {
    batch.foreign.is_none()
        && batch.replicas.is_empty()
        && batch.class == TrafficClass::Bulk
        && batch.circuits != CircuitUse::Only
        && batch.mark.dscp.is_none()
}

/// Whether a server can make the file: a digest shows what arrived, an empty file is nothing to move (XRootD
/// takes two minutes to fail over it), and what is to be replaced is the engine's to judge.
pub(super) fn file_suits_servers(file: &FetchFile) -> bool {
    !file.digests.is_empty() && file.size > 0 && !file.replaces_damaged
}

impl ServerMoverInner {
    pub(super) fn new(
        storages: BTreeMap<StorageName, Arc<ServerStorage>>,
        (agent, temps): (AgentId, AttemptTemps),
        clock: Clock,
        engine: InnerMover,
    ) -> ServerMoverInner {
        ServerMoverInner {
            storages,
            engine,
            clock,
            temps,
            agent,
            channels: PeerChannels::default(),
            access_timeout: ACCESS_TIMEOUT,
            state: Mutex::default(),
            gate: Mutex::default(),
            cancelled: watch::Sender::new(0),
        }
    }

    /// The two storages of a batch, if their servers may copy its files.
    pub(super) fn storages_of(&self, batch: &FetchBatch) -> Option<(BatchSource, Arc<ServerStorage>)> {
        let target = self.storages.get(&batch.target_storage).filter(|target| target.server.may_pull())?;
        if !suits_servers(batch) {
            return None;
        }
        let pair = (batch.source_storage.clone(), batch.target_storage.clone());
        let state = self.state.lock();
        if state.is_limited || !state.pairs.may_copy(&pair, (self.clock)()) {
            return None;
        }
        drop(state);
        if batch.source_agent != self.agent {
            // One that cannot be dialled is not asked either.
            return (!batch.addresses.is_empty()).then(|| (BatchSource::Peer, target.clone()));
        }
        let source = self.storages.get(&batch.source_storage)?;
        let may = target.server.may_copy_from(&source.server);
        may.then(|| (BatchSource::Own(source.clone()), target.clone()))
    }

    /// A rate is to be kept, which servers know nothing of.
    pub(super) fn is_limited(&self) -> bool {
        self.state.lock().is_limited
    }

    /// Whether the attempt is still ours: neither cancelled nor handed on.
    fn is_wanted(&self, attempt: AttemptId) -> bool {
        self.state.lock().live.contains_key(&attempt)
    }

    pub(super) async fn until_unwanted(&self, attempt: AttemptId) {
        let mut changed = self.cancelled.subscribe();
        while self.is_wanted(attempt) && changed.changed().await.is_ok() {}
    }

    /// What an earlier run has left at the servers, which may be away now.
    fn remove_stale_temps(self: &Arc<Self>) {
        for target in self.storages.values().filter(|target| target.server.may_pull()).cloned() {
            let inner = self.clone();
            self.engine.spawn(async move {
                let removed = target.server.remove_temporary(|temp| inner.is_stale(temp)).await;
                if let Err(fault) = removed {
                    tracing::info!(storage = %target.export.storage.name(), fault = %fault.chain(),
                        "temporary files of an earlier run could not be removed");
                }
            });
        }
    }

    fn is_stale(&self, temp: &TempName) -> bool {
        let is_live = |attempt: &AttemptId| self.temps.name(*attempt) == *temp;
        self.temps.contains(temp) && !self.state.lock().live.keys().any(is_live)
    }

    /// Hands those of a batch's files to the engine, but for cancelled ones. The batch goes along whole,
    /// since its permit covers the whole list. The engine has until `start_by` to begin.
    fn hand_to_engine(&self, batch: &FetchBatch, files: &BTreeSet<AttemptId>, start_by: Timestamp) {
        let _gate = self.gate.lock();
        let mut state = self.state.lock();
        let wanted: BTreeSet<AttemptId> =
            files.iter().copied().filter(|attempt| state.live.remove(attempt).is_some()).collect();
        drop(state);
        if wanted.is_empty() {
            return;
        }
        let withheld = batch.files.iter().map(|file| file.attempt);
        let withheld = withheld.filter(|attempt| !wanted.contains(attempt)).collect();
        self.engine.ask_mover(|engine| engine.fetch(FetchBatch { withheld, start_by, ..batch.clone() }));
    }

    /// The same off the event loop: the engine may report at once what is too late, which blocks on the disk.
    pub(super) async fn hand_over(
        self: &Arc<Self>,
        batch: &Arc<ServerBatch>,
        files: BTreeSet<AttemptId>,
        start_by: Timestamp,
    ) {
        let (inner, batch) = (self.clone(), batch.clone());
        let handed = blocking(move || {
            inner.hand_to_engine(&batch.batch, &files, start_by);
            Ok(())
        });
        if let Err(fault) = handed.await {
            tracing::error!(fault = %fault.chain(), "files could not be handed to the engine");
        }
    }

    /// The attempt's count of bytes, if it is still wanted; it has begun.
    pub(super) fn begin(&self, attempt: AttemptId) -> Option<Arc<AtomicU64>> {
        let mut state = self.state.lock();
        let live = state.live.get_mut(&attempt)?;
        live.has_begun = true;
        Some(live.moved.clone())
    }

    /// What is known of pairs of storages.
    pub(super) fn with_pairs<T>(&self, update: impl FnOnce(&mut StoragePairs) -> T) -> T {
        update(&mut self.state.lock().pairs)
    }

    /// The file is complete at the target. Whether it is still wanted.
    pub(super) fn end(&self, pair: &StoragePair, file: &FetchFile) -> bool {
        let mut state = self.state.lock();
        state.pairs.note_copied(pair);
        state.bytes_in = state.bytes_in.saturating_add(file.size);
        state.live.remove(&file.attempt).is_some()
    }
}

impl Mover for ServerMover {
    fn data_addresses(&self) -> Vec<SocketAddr> {
        self.0.engine.ask_mover(|engine| engine.data_addresses()).unwrap_or_default()
    }

    fn fetch(&self, batch: FetchBatch) {
        let received = (self.0.clock)();
        let Some((source, target)) = self.0.storages_of(&batch).filter(|_| received <= batch.start_by) else {
            self.0.engine.ask_mover(|engine| engine.fetch(batch));
            return;
        };
        let (ours, others): (Vec<FetchFile>, Vec<FetchFile>) =
            batch.wanted().cloned().partition(file_suits_servers);
        let live = batch.wanted().map(|file| (file.attempt, LiveCopy::default()));
        self.0.state.lock().live.extend(live);
        let others = others.iter().map(|file| file.attempt).collect();
        self.0.hand_to_engine(&batch, &others, batch.start_by);
        if !ours.is_empty() {
            let batch = Arc::new(ServerBatch { batch, source, target, received });
            self.0.engine.spawn(self.0.clone().run_batch(batch, ours));
        }
    }

    fn cancel(&self, attempts: &[AttemptId]) {
        let _gate = self.0.gate.lock();
        let mut state = self.0.state.lock();
        attempts.iter().for_each(|attempt| drop(state.live.remove(attempt)));
        drop(state);
        self.0.cancelled.send_modify(|count| *count += 1);
        self.0.engine.ask_mover(|engine| engine.cancel(attempts));
    }

    /// Servers keep no rate of ours: what has not begun goes to the engine, which does.
    fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>) {
        self.0.state.lock().is_limited = in_bytes_per_s.is_some() || out_bytes_per_s.is_some();
        self.0.engine.ask_mover(|engine| engine.set_limits(in_bytes_per_s, out_bytes_per_s));
    }

    fn set_paths(&self, source: AgentId, paths: Vec<Path>) -> Result<(), Fault> {
        self.0.engine.ask_mover(|engine| engine.set_paths(source, paths)).unwrap_or(Ok(()))
    }

    fn commands_on_circuit(&self, source: AgentId) -> CircuitCommands {
        self.0.engine.ask_mover(|engine| engine.commands_on_circuit(source)).unwrap_or_default()
    }

    fn renew(&self, credentials: &Credentials) -> Result<(), Fault> {
        self.0.engine.ask_mover(|engine| engine.renew(credentials)).unwrap_or(Ok(()))
    }

    fn refuse_peers(&self, peers: BTreeSet<AgentId>) {
        self.0.engine.ask_mover(|engine| engine.refuse_peers(peers));
    }

    fn open_channel(&self, addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault> {
        self.0.engine.open_channel(addresses)
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.0.engine.ask_mover(|engine| engine.snapshot()).unwrap_or_default();
        let state = self.0.state.lock();
        snapshot.bytes_in = snapshot.bytes_in.saturating_add(state.bytes_in);
        for (attempt, live) in &state.live {
            match live.has_begun {
                true => snapshot.running.push((*attempt, live.moved.load(Ordering::Relaxed))),
                false => snapshot.waiting += 1,
            }
        }
        snapshot
    }

    fn stop(self: Box<Self>) {
        self.0.engine.stop();
    }
}
