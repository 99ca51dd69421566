//! A mover with hooks: files wait for `validate` before they go to the inner mover, and do not count as done
//! before `validate` accepts them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use longhaul_engine::{
    AttemptOutcome, AttemptTimeline, Clock, Event, FetchBatch, FetchFile, Path, Snapshot, Success,
};
use longhaul_model::{AgentId, AttemptId, DigestSet, Fault, StorageName, Timestamp, Verification};
use longhaul_security::Credentials;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{Hooks, PreTransferVerdict};
use crate::command::CircuitCommands;
use crate::inner_mover::InnerMover;
use crate::mover::{Mover, MoverStart, PeerChannel, attempt_outcome};

struct HookedMover(Arc<HookedMoverInner>);

struct HookedMoverInner {
    hooks: Arc<Hooks>,
    mover: InnerMover,
    clock: Clock,
    state: Mutex<HookedAttempts>,
    /// Serialises handing files to the mover with cancellation.
    gate: Mutex<()>,
}

#[derive(Default)]
struct HookedAttempts {
    /// Being validated, not yet with the mover.
    validating_before: BTreeSet<AttemptId>,
    /// With the mover, to be validated on arrival.
    with_mover: BTreeMap<AttemptId, (StorageName, FetchFile)>,
    /// Number of arrived files that are being validated.
    validating_after: usize,
}

/// Starts the inner mover with the hooks around it.
pub(crate) fn start(
    hooks: Arc<Hooks>,
    start: MoverStart,
    start_mover: impl FnOnce(MoverStart) -> Result<Box<dyn Mover>, Fault>,
) -> Result<Box<dyn Mover>, Fault> {
    let inner = Arc::new(HookedMoverInner {
        hooks,
        mover: InnerMover::new(start.events.into())?,
        clock: start.clock.clone(),
        state: Mutex::default(),
        gate: Mutex::default(),
    });
    let after = Arc::downgrade(&inner);
    let events = move |events| {
        if let Some(inner) = after.upgrade() {
            inner.filter_events(events);
        }
    };
    let mover = start_mover(MoverStart { events: Box::new(events), ..start })?;
    inner.mover.set(mover);
    Ok(Box::new(HookedMover(inner)))
}

impl HookedMoverInner {
    /// Passes on the mover's events, except for files that are to be validated first.
    fn filter_events(self: &Arc<Self>, events: Vec<Event>) {
        let mut on = Vec::with_capacity(events.len());
        for event in events {
            let Event::Finished(finished) = event else {
                on.push(event);
                continue;
            };
            let mut state = self.state.lock();
            match (state.with_mover.remove(&finished.attempt), &finished.result) {
                (Some((storage, file)), Ok(success)) => {
                    state.validating_after += 1;
                    let digests = if file.digests.is_empty() { &success.digests } else { &file.digests };
                    let digests = digests.clone();
                    self.mover.spawn(self.clone().validate(storage, file, digests, finished));
                }
                _ => on.push(Event::Finished(finished)),
            }
        }
        self.mover.emit_blocking(on);
    }

    async fn validate(
        self: Arc<Self>,
        storage: StorageName,
        file: FetchFile,
        digests: DigestSet,
        finished: AttemptOutcome,
    ) {
        let verdict = match self.hooks.validating(&storage) {
            Some(of) => of.validate_after(&storage, &file, &digests).await,
            None => Ok(()),
        };
        self.state.lock().validating_after -= 1;
        let result = verdict.and(finished.result);
        self.mover.emit(vec![Event::Finished(AttemptOutcome { result, ..finished })]).await;
    }

    /// Validates each file of a batch, then hands the batch to the mover.
    async fn begin(self: Arc<Self>, mut batch: FetchBatch, received: Timestamp) {
        let mut asked = JoinSet::new();
        for (place, file) in batch.files.iter().enumerate() {
            let (inner, storage, file) = (self.clone(), batch.target_storage.clone(), file.clone());
            asked.spawn(async move {
                let before = match inner.hooks.validating(&storage) {
                    Some(of) => of.validate_before(&storage, &file).await,
                    None => PreTransferVerdict::Begin,
                };
                (place, before)
            });
        }
        let mut ended = Vec::new();
        while let Some(answer) = asked.join_next().await {
            // A file whose validation broke begins.
            let Ok((place, before)) = answer else { continue };
            let result = match before {
                PreTransferVerdict::Begin => continue,
                // The service knows that what the site holds is damaged.
                PreTransferVerdict::AlreadyThere if batch.files[place].replaces_damaged => continue,
                PreTransferVerdict::AlreadyThere => Ok(already_there()),
                PreTransferVerdict::Vetoed(fault) => Err(fault),
            };
            let times = AttemptTimeline { received, started: Some(received), ..AttemptTimeline::default() };
            ended.push(attempt_outcome(&batch.files[place], result, times));
        }
        // The files have begun here: `start_by` does not apply any more.
        batch.start_by = Timestamp::MAX;
        let inner = self.clone();
        let given = tokio::task::spawn_blocking(move || inner.hand_to_mover(batch, ended));
        if let Ok(events) = given.await {
            self.mover.emit(events).await;
        }
    }

    /// Hands the whole batch to the mover, since its permit covers the whole list, and withholds what is not
    /// to be fetched. Returns the ends of files that were not cancelled.
    fn hand_to_mover(&self, mut batch: FetchBatch, ended: Vec<AttemptOutcome>) -> Vec<Event> {
        let _gate = self.gate.lock();
        let mut ended: BTreeMap<AttemptId, AttemptOutcome> =
            ended.into_iter().map(|one| (one.attempt, one)).collect();
        let mut ends = Vec::new();
        let mut state = self.state.lock();
        for file in &batch.files {
            let was_cancelled = !state.validating_before.remove(&file.attempt);
            let end = ended.remove(&file.attempt);
            if was_cancelled {
                batch.withheld.insert(file.attempt);
            } else if let Some(end) = end {
                batch.withheld.insert(file.attempt);
                ends.push(Event::Finished(end));
            } else {
                state.with_mover.insert(file.attempt, (batch.target_storage.clone(), file.clone()));
            }
        }
        drop(state);
        if batch.wanted().next().is_some() {
            self.mover.ask_mover(|mover| mover.fetch(batch));
        }
        ends
    }
}

/// Success by the site's word alone: nothing was read here.
fn already_there() -> Success {
    Success { digests: DigestSet::default(), verification: Verification::Wire, already_there: true }
}

impl Mover for HookedMover {
    fn data_addresses(&self) -> Vec<SocketAddr> {
        self.0.mover.ask_mover(|mover| mover.data_addresses()).unwrap_or_default()
    }

    fn fetch(&self, batch: FetchBatch) {
        let now = (self.0.clock)();
        let of = self.0.hooks.validating(&batch.target_storage);
        // The mover reports what is too late.
        let Some(of) = of.filter(|_| now <= batch.start_by) else {
            self.0.mover.ask_mover(|mover| mover.fetch(batch));
            return;
        };
        let attempts = batch.files.iter().map(|file| file.attempt);
        if !of.config.before {
            let files = batch.files.iter().cloned();
            let storage = &batch.target_storage;
            let given = files.map(|file| (file.attempt, (storage.clone(), file)));
            self.0.state.lock().with_mover.extend(given);
            self.0.mover.ask_mover(|mover| mover.fetch(batch));
            return;
        }
        self.0.state.lock().validating_before.extend(attempts.clone());
        self.0.mover.emit_blocking(attempts.map(|attempt| Event::Started { attempt, at: now }).collect());
        self.0.mover.spawn(self.0.clone().begin(batch, now));
    }

    fn cancel(&self, attempts: &[AttemptId]) {
        let _gate = self.0.gate.lock();
        let mut state = self.0.state.lock();
        for attempt in attempts {
            state.validating_before.remove(attempt);
            state.with_mover.remove(attempt);
        }
        drop(state);
        self.0.mover.ask_mover(|mover| mover.cancel(attempts));
    }

    fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>) {
        self.0.mover.ask_mover(|mover| mover.set_limits(in_bytes_per_s, out_bytes_per_s));
    }

    fn set_paths(&self, source: AgentId, paths: Vec<Path>) -> Result<(), Fault> {
        self.0.mover.ask_mover(|mover| mover.set_paths(source, paths)).unwrap_or(Ok(()))
    }

    fn commands_on_circuit(&self, source: AgentId) -> CircuitCommands {
        self.0.mover.ask_mover(|mover| mover.commands_on_circuit(source)).unwrap_or_default()
    }

    fn renew(&self, credentials: &Credentials) -> Result<(), Fault> {
        self.0.mover.ask_mover(|mover| mover.renew(credentials)).unwrap_or(Ok(()))
    }

    fn refuse_peers(&self, peers: BTreeSet<AgentId>) {
        self.0.mover.ask_mover(|mover| mover.refuse_peers(peers));
    }

    fn open_channel(&self, addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault> {
        self.0.mover.open_channel(addresses)
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.0.mover.ask_mover(|mover| mover.snapshot()).unwrap_or_default();
        let state = self.0.state.lock();
        snapshot.waiting += state.validating_before.len() + state.validating_after;
        snapshot
    }

    fn stop(self: Box<Self>) {
        self.0.mover.stop();
    }
}
