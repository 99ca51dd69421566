//! Null mover: moves nothing; every attempt takes the time and ends as a file of link properties says. For
//! trying a real service with hundreds of sites on one machine, like PhEDEx's null back end.
//!
//! It never opens a storage; it reports each file as arrived with the catalog's digests. That would be false
//! for a storage that holds something, so [`crate::Config::check`] admits only virtual storages beside it.
//! Start with [`NullLinks`]; `link_queues` holds what happens when.

mod link_queues;
mod links;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use longhaul_engine::{Clock, Event, FetchBatch, Path, Snapshot};
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode};
use longhaul_security::Credentials;
use longhaul_threads::spawn_core;
use parking_lot::{Condvar, Mutex};

use link_queues::{LinkQueues, QueueEvent};
pub use links::NullLinks;

use crate::command::CircuitCommands;
use crate::mover::{Mover, MoverStart, PeerChannel};
use crate::step::{AgentTime, PeriodicLoop};

/// Events in one call.
const EVENTS_PER_CALL_MAX: usize = 1_000;
/// Minimum time between two steps.
const STEP_INTERVAL_MIN: Duration = Duration::from_micros(100);

pub(crate) struct NullMover {
    inner: Arc<NullMoverInner>,
    thread: Option<JoinHandle<()>>,
}

struct NullMoverInner {
    state: Mutex<NullMoverState>,
    changed: Condvar,
    now: MoverTime,
    clock: Clock,
    events: Box<dyn Fn(Vec<Event>) + Send + Sync>,
}

/// The clock by which a null mover is stepped.
type MoverTime = Box<dyn Fn() -> AgentTime + Send + Sync>;

struct NullMoverState {
    queue: LinkQueues,
    in_bytes_per_s: Option<u64>,
    /// Counts changes from outside.
    version: u64,
    stop: bool,
}

/// The loop of a null mover, in which its attempts begin and end.
pub(crate) struct NullMoverSteps(Arc<NullMoverInner>);

/// Starts a null mover with a thread of its own.
pub(crate) fn start(links: NullLinks, start: MoverStart) -> Result<Box<dyn Mover>, Fault> {
    let begun = Instant::now();
    let (mut mover, steps) = NullMover::new(links, start, Box::new(move || begun.elapsed()));
    let inner = steps.0.clone();
    let thread = spawn_core("null-mover", move || inner.state.lock().stop, move || steps.run());
    let thread = thread.map_err(|error| {
        Fault::new(FaultCode::Busy, format!("no thread for the null mover: {error}")).with_source(error)
    })?;
    tracing::warn!("this agent has a null mover: nothing that it reports was moved");
    mover.thread = Some(thread);
    Ok(Box::new(mover))
}

impl NullMover {
    /// A null mover without a thread: everything happens in its steps, at the time that `now` returns.
    pub(crate) fn new(links: NullLinks, start: MoverStart, now: MoverTime) -> (NullMover, NullMoverSteps) {
        let state =
            NullMoverState { queue: LinkQueues::new(links), in_bytes_per_s: None, version: 0, stop: false };
        let inner = Arc::new(NullMoverInner {
            state: Mutex::new(state),
            changed: Condvar::new(),
            now,
            clock: start.clock,
            events: start.events,
        });
        (NullMover { inner: inner.clone(), thread: None }, NullMoverSteps(inner))
    }
}

impl PeriodicLoop for NullMoverSteps {
    /// Blocks on the disk. To be called as well when files came or were cancelled.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        loop {
            let wall = (self.0.clock)();
            let mut state = self.0.state.lock();
            let limit = state.in_bytes_per_s;
            let events = state.queue.advance(now, wall, limit, EVENTS_PER_CALL_MAX);
            if events.is_empty() {
                return state.queue.due().map(|due| due.max(now + STEP_INTERVAL_MIN));
            }
            drop(state);
            let event = |event| match event {
                QueueEvent::Started(attempt) => Event::Started { attempt, at: wall },
                QueueEvent::Finished(finished) => Event::Finished(*finished),
            };
            (self.0.events)(events.into_iter().map(event).collect());
        }
    }
}

impl NullMoverSteps {
    fn run(mut self) {
        let inner = self.0.clone();
        let mut state = inner.state.lock();
        while !state.stop {
            let version = state.version;
            drop(state);
            let now = (inner.now)();
            let due = self.step(now);
            state = inner.state.lock();
            // An idle loop wakes once a day.
            let wait = due.map_or(Duration::from_secs(86_400), |due| due.saturating_sub(now));
            let is_idle = |state: &mut NullMoverState| state.version == version;
            inner.changed.wait_while_for(&mut state, is_idle, wait);
        }
    }
}

impl NullMoverInner {
    fn update(&self, change: impl FnOnce(&mut NullMoverState)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.version += 1;
        self.changed.notify_all();
    }
}

impl Mover for NullMover {
    /// None: it cannot be dialled.
    fn data_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
    fn fetch(&self, batch: FetchBatch) {
        let wall = (self.inner.clock)();
        self.inner.update(|state| state.queue.add(batch, wall));
    }
    fn cancel(&self, attempts: &[AttemptId]) {
        let now = (self.inner.now)();
        self.inner.update(|state| state.queue.cancel(attempts, now));
    }
    fn set_limits(&self, in_bytes_per_s: Option<u64>, _out_bytes_per_s: Option<u64>) {
        self.inner.update(|state| state.in_bytes_per_s = in_bytes_per_s);
    }
    /// Ignored: it has no streams.
    fn set_paths(&self, _source: AgentId, _paths: Vec<Path>) -> Result<(), Fault> {
        Ok(())
    }
    fn commands_on_circuit(&self, _source: AgentId) -> CircuitCommands {
        CircuitCommands::default()
    }
    fn renew(&self, _credentials: &Credentials) -> Result<(), Fault> {
        Ok(())
    }
    fn refuse_peers(&self, _peers: std::collections::BTreeSet<AgentId>) {}
    /// Fails: it cannot be dialled, and dials nobody.
    fn open_channel(&self, _addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault> {
        Err(Fault::new(FaultCode::Unreachable, "this agent only pretends to move files"))
    }
    fn snapshot(&self) -> Snapshot {
        let now = (self.inner.now)();
        let state = self.inner.state.lock();
        let (running, waiting) = (state.queue.running(now), state.queue.waiting());
        Snapshot { running, waiting, bytes_in: state.queue.bytes_in, ..Snapshot::default() }
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for NullMover {
    fn drop(&mut self) {
        self.inner.update(|state| state.stop = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the null mover panicked");
        }
    }
}
