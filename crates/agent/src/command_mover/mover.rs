//! A mover with commands: keeps the files that a site's command fetches, passes all others to the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_engine::{AttemptOutcome, Clock, Event, Export, FetchBatch, Path, Snapshot};
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, StorageName, Timestamp};
use longhaul_security::Credentials;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::command_circuits::CommandCircuits;
use super::{commit, run};
use crate::attempt_temps::AttemptTemps;
use crate::command::CircuitCommands;
use crate::config::StorageConfig;
use crate::config::mover::MoverConfig;
use crate::mover::{Mover, MoverStart, PeerChannel};
use crate::stop::StopFlag;

struct CommandMover {
    inner: Arc<CommandMoverInner>,
    engine: Box<dyn Mover>,
}

pub(super) struct CommandMoverInner {
    by_storage: BTreeMap<StorageName, StorageCommand>,
    events: Arc<dyn Fn(Vec<Event>) + Send + Sync>,
    pub(super) clock: Clock,
    pub(super) temps: AttemptTemps,
    pub(super) spool: PathBuf,
    runtime: Handle,
    /// Number of commands so far: each has a directory of its own.
    runs: AtomicU64,
    state: Mutex<CommandMoverState>,
    /// Changes when attempts are cancelled.
    cancelled: watch::Sender<u64>,
    stopping: watch::Sender<bool>,
    pub(super) stop: StopFlag,
}

/// A storage whose files a command fetches.
pub(super) struct StorageCommand {
    pub(super) config: MoverConfig,
    pub(super) export: Export,
    pub(super) slots: Semaphore,
}

#[derive(Default)]
struct CommandMoverState {
    live: BTreeMap<AttemptId, LiveAttempt>,
    in_bytes_per_s: Option<u64>,
    bytes_in: u64,
    circuits: CommandCircuits,
}

#[derive(Default)]
struct LiveAttempt {
    /// Where the command writes the file; none before it has begun.
    written_path: Option<PathBuf>,
}

/// Starts the engine with the commands of `storages` around it, or alone if there are none.
pub(crate) fn start(
    storages: &[StorageConfig],
    spool: PathBuf,
    start: MoverStart,
    start_engine: impl FnOnce(MoverStart) -> Result<Box<dyn Mover>, Fault>,
) -> Result<Box<dyn Mover>, Fault> {
    let temps = AttemptTemps::of_commands(start.config.agent);
    let mut of = BTreeMap::new();
    for storage in storages {
        let Some(config) = storage.mover.clone() else { continue };
        let export = start.exports.iter().find(|export| *export.storage.name() == storage.name).cloned();
        let export = export.ok_or_else(|| Fault::new(FaultCode::Internal, "a storage is not open"))?;
        commit::remove_stale_temps(&*export.storage, &temps)?;
        let slots = Semaphore::new(config.at_once);
        of.insert(storage.name.clone(), StorageCommand { config, export, slots });
    }
    if of.is_empty() {
        return start_engine(start);
    }
    // Remains of a killed run.
    match std::fs::remove_dir_all(&spool) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Fault::new(FaultCode::StateDirectory, format!("{}: {error}", spool.display()))
                .with_source(error));
        }
        _ => {}
    }
    let runtime = Handle::try_current()
        .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
    let events: Arc<dyn Fn(Vec<Event>) + Send + Sync> = start.events.into();
    let inner = Arc::new(CommandMoverInner {
        by_storage: of,
        events: events.clone(),
        clock: start.clock.clone(),
        temps,
        spool,
        runtime,
        runs: AtomicU64::new(0),
        state: Mutex::default(),
        cancelled: watch::Sender::new(0),
        stopping: watch::Sender::new(false),
        stop: StopFlag::default(),
    });
    let engine = start_engine(MoverStart { events: Box::new(move |those| events(those)), ..start })?;
    Ok(Box::new(CommandMover { inner, engine }))
}

impl CommandMoverInner {
    /// Whether a command fetches this batch; otherwise the engine does.
    fn is_for_command(&self, batch: &FetchBatch) -> bool {
        self.by_storage
            .get(&batch.target_storage)
            .is_some_and(|of| batch.foreign.is_none() && of.config.source(&batch.source_storage).is_some())
    }

    pub(super) fn storage_command(&self, storage: &StorageName) -> Option<&StorageCommand> {
        self.by_storage.get(storage)
    }

    pub(super) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the attempt has not been cancelled.
    pub(super) fn is_wanted(&self, attempt: AttemptId) -> bool {
        self.state.lock().live.contains_key(&attempt)
    }

    /// Sets where the attempt's file is being written.
    pub(super) fn set_written_path(&self, attempt: AttemptId, path: PathBuf) {
        if let Some(live) = self.state.lock().live.get_mut(&attempt) {
            live.written_path = Some(path);
        }
    }

    /// Completes when none of these attempts is wanted any more.
    pub(super) async fn until_unwanted(&self, attempts: &[AttemptId]) {
        let mut changed = self.cancelled.subscribe();
        while attempts.iter().any(|attempt| self.is_wanted(*attempt)) && changed.changed().await.is_ok() {}
    }

    /// One command's part of the site's limit.
    pub(super) fn bytes_per_s(&self) -> Option<u64> {
        let commands: usize = self.by_storage.values().map(|of| of.config.at_once).sum();
        self.state.lock().in_bytes_per_s.map(|limit| (limit / commands.max(1) as u64).max(1))
    }

    /// Access to the circuits of commands.
    pub(super) fn circuits<T>(&self, work: impl FnOnce(&mut CommandCircuits) -> T) -> T {
        work(&mut self.state.lock().circuits)
    }

    pub(super) fn emit(&self, events: Vec<Event>) {
        if !events.is_empty() {
            (self.events)(events);
        }
    }

    /// Reports the ends of attempts, except for cancelled ones and for failures during shutdown: those start
    /// over with the next run.
    pub(super) fn finish_attempts(&self, ended: Vec<AttemptOutcome>) {
        let mut state = self.state.lock();
        let told: Vec<Event> = ended
            .into_iter()
            .filter(|one| one.result.is_ok() || !self.stop.is_set())
            .filter(|one| state.live.remove(&one.attempt).is_some())
            .map(Event::Finished)
            .collect();
        let moved = told.iter().map(|event| match event {
            Event::Finished(one) => one.bytes_moved,
            Event::Started { .. } => 0,
        });
        state.bytes_in = state.bytes_in.saturating_add(moved.sum());
        drop(state);
        self.emit(told);
    }
}

impl Mover for CommandMover {
    fn data_addresses(&self) -> Vec<SocketAddr> {
        self.engine.data_addresses()
    }

    fn fetch(&self, mut batch: FetchBatch) {
        if !self.inner.is_for_command(&batch) {
            return self.engine.fetch(batch);
        }
        batch.files.retain(|file| !batch.withheld.contains(&file.attempt));
        let received: Timestamp = (self.inner.clock)();
        let Some(of) = self.inner.storage_command(&batch.target_storage) else { return };
        let attempts = batch.files.iter().map(|file| (file.attempt, LiveAttempt::default()));
        self.inner.state.lock().live.extend(attempts);
        for files in batch.files.chunks(of.config.files) {
            let job = run::CommandJob {
                source: batch.source_storage.clone(),
                source_agent: batch.source_agent,
                circuits: batch.circuits,
                target: batch.target_storage.clone(),
                start_by: batch.start_by,
                received,
                files: files.to_vec(),
            };
            let (inner, mut stopping) = (self.inner.clone(), self.inner.stopping.subscribe());
            self.inner.runtime.spawn(async move {
                tokio::select! {
                    _ = stopping.wait_for(|stopping| *stopping) => {}
                    () = run::run(inner, job) => {}
                }
            });
        }
    }

    fn cancel(&self, attempts: &[AttemptId]) {
        let mut state = self.inner.state.lock();
        let theirs: BTreeSet<AttemptId> =
            attempts.iter().copied().filter(|attempt| state.live.remove(attempt).is_some()).collect();
        drop(state);
        if !theirs.is_empty() {
            self.inner.cancelled.send_modify(|count| *count += 1);
        }
        self.engine.cancel(attempts);
    }

    fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>) {
        self.inner.state.lock().in_bytes_per_s = in_bytes_per_s;
        self.engine.set_limits(in_bytes_per_s, out_bytes_per_s);
    }

    fn set_paths(&self, source: AgentId, paths: Vec<Path>) -> Result<(), Fault> {
        self.inner.circuits(|circuits| circuits.set(source, &paths));
        self.engine.set_paths(source, paths)
    }

    fn commands_on_circuit(&self, source: AgentId) -> CircuitCommands {
        self.inner.circuits(|circuits| circuits.commands(source))
    }

    fn renew(&self, credentials: &Credentials) -> Result<(), Fault> {
        self.engine.renew(credentials)
    }

    fn refuse_peers(&self, peers: BTreeSet<AgentId>) {
        self.engine.refuse_peers(peers);
    }

    fn open_channel(&self, addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault> {
        self.engine.open_channel(addresses)
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.engine.snapshot();
        let state = self.inner.state.lock();
        snapshot.bytes_in = snapshot.bytes_in.saturating_add(state.bytes_in);
        let written: Vec<(AttemptId, Option<PathBuf>)> =
            state.live.iter().map(|(attempt, live)| (*attempt, live.written_path.clone())).collect();
        drop(state);
        for (attempt, path) in written {
            match path {
                // A file that the command has not begun has no bytes.
                Some(path) => {
                    snapshot.running.push((attempt, path.metadata().map_or(0, |found| found.len())))
                }
                None => snapshot.waiting += 1,
            }
        }
        snapshot
    }

    fn stop(self: Box<Self>) {
        self.inner.stop.set();
        self.inner.stopping.send_replace(true);
        self.engine.stop();
    }
}
