//! A mover with servers: has the servers of storages copy between themselves, and passes all else to the
//! engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_engine::{AttemptTimeline, Clock, Event, Export, FetchBatch, FetchFile, Path, Snapshot};
use longhaul_model::{
    AgentId, AttemptId, CircuitUse, Fault, FaultCode, StorageName, Timestamp, TrafficClass,
};
use longhaul_security::Credentials;
use longhaul_storage::TempName;
use longhaul_storage_remote::{RemoteStorage, ServerCopyFault};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::file_copy::{CopiedFile, FileCopy};
use super::pairs::{StoragePair, StoragePairs};
use crate::attempt_temps::AttemptTemps;
use crate::command::CircuitCommands;
use crate::config::StorageConfig;
use crate::inner_mover::InnerMover;
use crate::mover::{Mover, MoverStart, attempt_outcome};
use crate::state_dir::random_u64;
use crate::threads::blocking;

/// Files that one target's server copies at once, unless the storage's `parallel` says otherwise.
const COPIES_DEFAULT: usize = 16;

/// The storages of the agent that servers hold.
pub(crate) type StorageServers = BTreeMap<StorageName, Arc<RemoteStorage>>;

struct ServerMover(Arc<ServerMoverInner>);

pub(super) struct ServerMoverInner {
    storages: BTreeMap<StorageName, Arc<ServerStorage>>,
    engine: InnerMover,
    pub(super) clock: Clock,
    pub(super) temps: AttemptTemps,
    agent: AgentId,
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
    slots: Arc<Semaphore>,
}

#[derive(Default)]
struct ServerMoverState {
    live: BTreeMap<AttemptId, LiveCopy>,
    pairs: StoragePairs,
    /// A rate is to be kept, which servers know nothing of.
    is_limited: bool,
    bytes_in: u64,
}

#[derive(Clone, Default)]
struct LiveCopy {
    has_begun: bool,
    moved: Arc<AtomicU64>,
}

/// A batch with its two storages.
struct ServerBatch {
    batch: FetchBatch,
    source: Arc<ServerStorage>,
    target: Arc<ServerStorage>,
    received: Timestamp,
}

impl ServerBatch {
    fn pair(&self) -> StoragePair {
        (self.batch.source_storage.clone(), self.batch.target_storage.clone())
    }
}

/// Starts the engine with the servers of `storages` around it, or alone if none of them can copy from
/// another.
pub(crate) fn start(
    configs: &[StorageConfig],
    servers: &StorageServers,
    start: MoverStart,
    start_engine: impl FnOnce(MoverStart) -> Result<Box<dyn Mover>, Fault>,
) -> Result<Box<dyn Mover>, Fault> {
    let storages = server_storages(configs, servers, &start.exports);
    if !storages.values().any(|target| has_source(&storages, target)) {
        return start_engine(start);
    }
    let events: Arc<dyn Fn(Vec<Event>) + Send + Sync> = start.events.into();
    let internal =
        |error: std::io::Error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error);
    let temps = AttemptTemps::of_servers(start.config.agent, random_u64().map_err(internal)?);
    let (agent, clock) = (start.config.agent, start.clock.clone());
    let engine = InnerMover::new(events.clone())?;
    let inner = Arc::new(ServerMoverInner::new(storages, (agent, temps), clock, engine));
    let engine = start_engine(MoverStart { events: Box::new(move |those| events(those)), ..start })?;
    inner.engine.set(engine);
    inner.remove_stale_temps();
    Ok(Box::new(ServerMover(inner)))
}

fn server_storages(
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

fn has_source(storages: &BTreeMap<StorageName, Arc<ServerStorage>>, target: &Arc<ServerStorage>) -> bool {
    let others = storages.values().filter(|source| !Arc::ptr_eq(source, target));
    others.into_iter().any(|source| target.server.may_copy_from(&source.server))
}

/// Whether nothing is wanted of the batch that only the engine can do: circuits, marks of packets, yielding
/// to other traffic.
fn suits_servers(batch: &FetchBatch) -> bool {
    batch.foreign.is_none()
        && batch.replicas.is_empty()
        && batch.class == TrafficClass::Bulk
        && batch.circuits != CircuitUse::Only
        && batch.mark.dscp.is_none()
}

/// Whether a server can make the file: a digest shows what arrived, an empty file is nothing to move (XRootD
/// takes two minutes to fail over it), and what is to be replaced is the engine's to judge.
fn file_suits_servers(file: &FetchFile) -> bool {
    !file.digests.is_empty() && file.size > 0 && !file.replaces_damaged
}

impl ServerMoverInner {
    fn new(
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
            state: Mutex::default(),
            gate: Mutex::default(),
            cancelled: watch::Sender::new(0),
        }
    }

    /// The two storages of a batch, if their servers may copy its files.
    fn storages_of(&self, batch: &FetchBatch) -> Option<(Arc<ServerStorage>, Arc<ServerStorage>)> {
        if !suits_servers(batch) || batch.source_agent != self.agent {
            return None;
        }
        let (source, target) =
            (self.storages.get(&batch.source_storage)?, self.storages.get(&batch.target_storage)?);
        let pair = (batch.source_storage.clone(), batch.target_storage.clone());
        let state = self.state.lock();
        let may = !state.is_limited && state.pairs.may_copy(&pair, (self.clock)());
        (may && target.server.may_copy_from(&source.server)).then(|| (source.clone(), target.clone()))
    }

    /// Whether the attempt is still ours: neither cancelled nor handed on.
    fn is_wanted(&self, attempt: AttemptId) -> bool {
        self.state.lock().live.contains_key(&attempt)
    }

    async fn until_unwanted(&self, attempt: AttemptId) {
        let mut changed = self.cancelled.subscribe();
        while self.is_wanted(attempt) && changed.changed().await.is_ok() {}
    }

    /// What an earlier run has left at the servers, which may be away now.
    fn remove_stale_temps(self: &Arc<Self>) {
        for target in self.storages.values().filter(|target| has_source(&self.storages, target)).cloned() {
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
    async fn hand_over(
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

    /// Has the servers copy the files, as many at once as the target takes.
    async fn run_batch(self: Arc<Self>, batch: Arc<ServerBatch>, files: Vec<FetchFile>) {
        let mut running = JoinSet::new();
        let mut left: Vec<FetchFile> = files.into_iter().rev().collect();
        while let Some(file) = left.pop() {
            let Ok(slot) = batch.target.slots.clone().acquire_owned().await else { return };
            if self.storages_of(&batch.batch).is_none() || (self.clock)() > batch.batch.start_by {
                let rest = left.iter().chain([&file]).map(|file| file.attempt).collect();
                self.hand_over(&batch, rest, batch.batch.start_by).await;
                break;
            }
            let (inner, batch) = (self.clone(), batch.clone());
            running.spawn(async move {
                inner.run_file(&batch, file).await;
                drop(slot);
            });
        }
        while running.join_next().await.is_some() {}
    }

    async fn run_file(self: &Arc<Self>, batch: &Arc<ServerBatch>, file: FetchFile) {
        let attempt = file.attempt;
        let Some(live) = self.state.lock().live.get_mut(&attempt).map(|live| {
            live.has_begun = true;
            live.clone()
        }) else {
            return;
        };
        let started = (self.clock)();
        self.engine.emit(vec![Event::Started { attempt, at: started }]).await;
        let copy = FileCopy {
            source: &batch.source,
            target: &batch.target,
            file: &file,
            scitag: batch.batch.mark.scitag.map(|tag| tag.number().into()),
            moved: &live.moved,
            times: AttemptTimeline {
                received: batch.received,
                started: Some(started),
                ..AttemptTimeline::default()
            },
        };
        let ended = tokio::select! {
            ended = copy.run(self) => Some(ended),
            () = self.until_unwanted(attempt) => None,
        };
        match ended {
            Some(Ok(copied)) => return self.finish(&batch.pair(), file, copied).await,
            Some(Err(fault)) => self.note_fault(&batch.pair(), &file, &fault),
            None => {}
        }
        let temp = self.temps.name(attempt);
        if let Err(fault) = batch.target.server.remove_copy(&temp).await {
            tracing::info!(%attempt, %temp, fault = %fault.chain(), "a temporary file could not be removed");
        }
        // It has begun here: `start_by` does not apply any more.
        self.hand_over(batch, BTreeSet::from([attempt]), Timestamp::MAX).await;
    }

    fn note_fault(&self, pair: &StoragePair, file: &FetchFile, failed: &ServerCopyFault) {
        let (source, target) = pair;
        tracing::info!(
            attempt = %file.attempt, transfer = %file.transfer, %source, %target,
            fault = %failed.fault.chain(), "the servers did not copy a file; the engine does"
        );
        let now = (self.clock)();
        if failed.is_of_servers && self.state.lock().pairs.note_refused(pair, now) {
            tracing::warn!(%source, %target, fault = %failed.fault.chain(),
                "these servers do not copy between themselves; they are asked again in ten minutes");
        }
    }

    /// Whether the file is still wanted.
    fn note_copied(&self, pair: &StoragePair, file: &FetchFile) -> bool {
        let mut state = self.state.lock();
        state.pairs.note_copied(pair);
        state.bytes_in = state.bytes_in.saturating_add(file.size);
        state.live.remove(&file.attempt).is_some()
    }

    async fn finish(&self, pair: &StoragePair, file: FetchFile, copied: CopiedFile) {
        if !self.note_copied(pair, &file) {
            return;
        }
        tracing::info!(
            attempt = %file.attempt, transfer = %file.transfer, source = %pair.0, target = %pair.1,
            mode = %copied.mode, "the servers copied a file between themselves"
        );
        let outcome = attempt_outcome(&file, Ok(copied.success), copied.times);
        self.engine.emit(vec![Event::Finished(outcome)]).await;
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

#[cfg(test)]
mod tests {
    use longhaul_model::mark::Dscp;
    use longhaul_model::{DigestSet, Mark, StorageKind};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::ServerConfig;
    use crate::tests::fake_engine::{FakeEngine, fetch_batch, fetch_file};

    fn file(attempt: u64) -> FetchFile {
        fetch_file(attempt, 7)
    }

    fn batch() -> FetchBatch {
        FetchBatch {
            start_by: Timestamp(1),
            withheld: BTreeSet::from([AttemptId(4)]),
            ..fetch_batch("one", "two", (1..=4).map(file).collect())
        }
    }

    #[test]
    fn what_only_the_engine_can_do_is_not_asked_of_servers() {
        assert!(suits_servers(&batch()));
        let dscp = Some(Dscp::new(8).unwrap());
        for other in [
            FetchBatch { class: TrafficClass::Scavenger, ..batch() },
            FetchBatch { circuits: CircuitUse::Only, ..batch() },
            FetchBatch { mark: Mark { dscp, ..Mark::default() }, ..batch() },
        ] {
            assert!(!suits_servers(&other), "{other:?}");
        }
        assert!(file_suits_servers(&file(1)));
        for other in [
            FetchFile { digests: DigestSet::default(), ..file(1) },
            FetchFile { size: 0, ..file(1) },
            FetchFile { replaces_damaged: true, ..file(1) },
        ] {
            assert!(!file_suits_servers(&other), "{other:?}");
        }
    }

    /// Two storages of one server, which this process plays, around an engine that does nothing.
    async fn mover() -> (ServerMover, FakeEngine, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut configs, mut servers, mut exports) = (Vec::new(), BTreeMap::new(), Vec::new());
        for name in ["one", "two"] {
            let url = format!("http://{}/{name}", listener.local_addr().unwrap());
            let allow_networks = vec!["127.0.0.0/8".to_owned()];
            let settings = ServerConfig { url, allow_networks, ..ServerConfig::default() };
            let name: StorageName = name.parse().unwrap();
            let config = StorageConfig {
                kind: StorageKind::Webdav,
                server: Some(settings),
                parallel: 2,
                ..StorageConfig::new(name.clone(), "")
            };
            let server = Arc::new(config.open_remote().unwrap());
            exports.push(Export { storage: server.clone(), rules: config.name_rules() });
            servers.insert(name, server);
            configs.push(config);
        }
        let engine = FakeEngine::silent();
        let clock: Clock = Arc::new(|| Timestamp::ZERO);
        let storages = server_storages(&configs, &servers, &exports);
        let own = (AgentId(1), AttemptTemps::of_servers(AgentId(1), 7));
        let nobody = InnerMover::new(Arc::new(|_| {})).unwrap();
        let inner = ServerMoverInner::new(storages, own, clock, nobody);
        inner.engine.set(Box::new(engine.clone()));
        (ServerMover(Arc::new(inner)), engine, listener)
    }

    #[tokio::test]
    async fn files_that_servers_do_not_copy_go_to_the_engine_once() {
        let (mover, engine, listener) = mover().await;
        // Nobody listens any more.
        drop(listener);
        mover.fetch(batch());
        let calls = engine.wait_until(|calls| calls.fetched.len() == 3).await;
        let wanted = |batch: &FetchBatch| batch.wanted().map(|file| file.attempt).collect::<Vec<_>>();
        let mut given: Vec<AttemptId> = calls.fetched.iter().flat_map(wanted).collect();
        given.sort();
        assert_eq!(given, [1, 2, 3].map(AttemptId));
        // They have begun, and the permit is for the whole list.
        assert!(calls.fetched.iter().all(|batch| batch.start_by == Timestamp::MAX));
        assert!(calls.fetched.iter().all(|batch| batch.files.len() == 4));
    }

    #[tokio::test]
    async fn what_a_limit_is_for_goes_to_the_engine() {
        let (mover, engine, _listener) = mover().await;
        mover.set_limits(None, Some(1_000_000));
        mover.fetch(batch());
        let calls = engine.calls();
        assert_eq!((calls.fetched.len(), calls.limits), (1, Some((None, Some(1_000_000)))));
        assert_eq!(calls.fetched[0].withheld, batch().withheld);
    }

    async fn read_request(connection: &mut TcpStream) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(connection.read_u8().await.unwrap());
        }
        String::from_utf8(request).unwrap()
    }

    async fn until_closed(mut connection: TcpStream) {
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = connection.read_to_end(&mut rest).await;
    }

    #[tokio::test]
    async fn a_cancelled_copy_ends_and_goes_nowhere_else() {
        // It takes requests and answers none.
        let (mover, engine, listener) = mover().await;
        mover.fetch(batch());
        let (mut one, mut two) = (listener.accept().await.unwrap().0, listener.accept().await.unwrap().0);
        for connection in [&mut one, &mut two] {
            let request = read_request(connection).await;
            assert!(request.starts_with("PROPFIND /two/f"), "{request}");
        }
        let snapshot = mover.snapshot();
        assert_eq!((snapshot.running.len(), snapshot.waiting), (2, 1));
        mover.cancel(&[1, 2, 3].map(AttemptId));
        until_closed(one).await;
        until_closed(two).await;
        let calls = engine.calls();
        assert_eq!((calls.cancelled.len(), calls.fetched.len()), (3, 0));
        Box::new(mover).stop();
        assert!(engine.calls().stopped);
    }
}
