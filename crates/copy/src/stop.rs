//! The wish of a person that a copy end now. It is left so that the same command goes on from there.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_model::{Fault, FaultCode};

type Hook = Box<dyn Fn() + Send>;

#[derive(Clone, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stopped: bool,
    hooks: Vec<(u64, Hook)>,
    next: u64,
}

/// Takes its hook away when dropped.
pub(crate) struct HookGuard {
    stop: Stop,
    number: u64,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.hooks.iter().for_each(|(_, hook)| hook());
        drop(state);
        self.0.changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// An error once stopped.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.is_stopped() { Err(interrupted()) } else { Ok(()) }
    }

    /// Called at the stop, or now if it has come. It must not wait.
    pub(crate) fn hook(&self, hook: impl Fn() + Send + 'static) -> HookGuard {
        let mut state = self.lock();
        if state.stopped {
            hook();
        }
        let number = state.next;
        state.next += 1;
        state.hooks.push((number, Box::new(hook)));
        drop(state);
        HookGuard { stop: self.clone(), number }
    }

    /// Waits; true if stopped.
    pub fn wait(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut state = self.lock();
        while !state.stopped {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .0
                .changed
                .wait_timeout(state, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        true
    }
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        self.stop.lock().hooks.retain(|(number, _)| *number != self.number);
    }
}

/// What a stopped copy ends with.
pub fn interrupted() -> Fault {
    Fault::new(FaultCode::Interrupted, "what has arrived is kept; the same command goes on from there")
}
