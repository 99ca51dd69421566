//! A mover that moves nothing: every attempt takes the time, and ends as a file says, that links are
//! described in. For trying a real service with hundreds of sites on one machine, as PhEDEx's null back end
//! did.
//!
//! It never opens a storage; it says of each file that it arrived with the digests that the catalog has. That
//! would be a lie about a storage that holds something, so [`crate::Config::check`] admits virtual storages
//! only beside it. Start with [`NullLinks`]; `link_queues` holds what happens when.

mod link_queues;
mod links;

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longhaul_engine::{Clock, Event, FetchBatch, Path, Snapshot};
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode};
use longhaul_security::Credentials;

use link_queues::{LinkQueues, QueueEvent};
pub use links::NullLinks;

use crate::command::CircuitCommands;
use crate::mover::{Mover, MoverStart};

/// Events handed on at once.
const EVENTS_PER_CALL_MAX: usize = 1_000;

pub(crate) struct NullMover {
    shared: Arc<NullMoverInner>,
    thread: Option<JoinHandle<()>>,
}

struct NullMoverInner {
    state: Mutex<State>,
    changed: Condvar,
    begun: Instant,
    clock: Clock,
}

struct State {
    queue: LinkQueues,
    in_bytes_per_s: Option<u64>,
    stop: bool,
}

/// In place of the engine.
pub(crate) fn start(links: NullLinks, start: MoverStart) -> Result<Box<dyn Mover>, Fault> {
    let state = State { queue: LinkQueues::new(links), in_bytes_per_s: None, stop: false };
    let shared = Arc::new(NullMoverInner {
        state: Mutex::new(state),
        changed: Condvar::new(),
        begun: Instant::now(),
        clock: start.clock,
    });
    let (own, events) = (shared.clone(), start.events);
    let thread = thread::Builder::new().name("null-mover".into()).spawn(move || own.run(&*events));
    let thread = thread
        .map_err(|error| Fault::new(FaultCode::Busy, format!("no thread for the null mover: {error}")))?;
    tracing::warn!("this agent has a null mover: nothing that it reports was moved");
    Ok(Box::new(NullMover { shared, thread: Some(thread) }))
}

impl NullMoverInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, events: &(dyn Fn(Vec<Event>) + Send + Sync)) {
        let mut state = self.lock();
        while !state.stop {
            let now = self.begun.elapsed();
            let wall = (self.clock)();
            let limit = state.in_bytes_per_s;
            let steps = state.queue.advance(now, wall, limit, EVENTS_PER_CALL_MAX);
            if !steps.is_empty() {
                drop(state);
                events(
                    steps
                        .into_iter()
                        .map(|step| match step {
                            QueueEvent::Started(attempt) => Event::Started { attempt, at: wall },
                            QueueEvent::Finished(finished) => Event::Finished(*finished),
                        })
                        .collect(),
                );
                state = self.lock();
                continue;
            }
            let wait = state.queue.due().map(|due| due.saturating_sub(now));
            // Nothing waits longer than a day without something being due.
            let wait = wait.unwrap_or(Duration::from_secs(86_400)).max(Duration::from_micros(100));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Mover for NullMover {
    /// Nobody can dial it.
    fn data_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
    fn fetch(&self, batch: FetchBatch) {
        let wall = (self.shared.clock)();
        self.shared.update(|state| state.queue.add(batch, wall));
    }
    fn cancel(&self, attempts: &[AttemptId]) {
        let now = self.shared.begun.elapsed();
        self.shared.update(|state| state.queue.cancel(attempts, now));
    }
    fn set_limits(&self, in_bytes_per_s: Option<u64>, _out_bytes_per_s: Option<u64>) {
        self.shared.update(|state| state.in_bytes_per_s = in_bytes_per_s);
    }
    /// It has no streams.
    fn set_paths(&self, _source: AgentId, _paths: Vec<Path>) -> Result<(), Fault> {
        Ok(())
    }
    fn commands_on_circuit(&self, _source: AgentId) -> CircuitCommands {
        CircuitCommands::default()
    }
    fn renew(&self, _credentials: &Credentials) -> Result<(), Fault> {
        Ok(())
    }
    fn snapshot(&self) -> Snapshot {
        let now = self.shared.begun.elapsed();
        let state = self.shared.lock();
        let (running, waiting) = (state.queue.running(now), state.queue.waiting());
        Snapshot { running, waiting, bytes_in: state.queue.bytes_in, ..Snapshot::default() }
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for NullMover {
    fn drop(&mut self) {
        self.shared.update(|state| state.stop = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the null mover broke");
        }
    }
}
