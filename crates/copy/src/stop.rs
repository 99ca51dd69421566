//! Cancellation of a copy. What it has done so far stays, so that the same command resumes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_model::{Blame, Fault, FaultCode};
use parking_lot::{Condvar, Mutex, MutexGuard};

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

/// Removes its hook when dropped.
pub(crate) struct HookGuard {
    stop: Stop,
    number: u64,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
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

    /// Fails once stopped.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.is_stopped() { Err(interrupted()) } else { Ok(()) }
    }

    /// How a copy ended that may have been stopped. A connection that breaks then is no failure of the copy:
    /// the signal that stopped it may have ended the other end too, such as an `ssh` of the same terminal.
    pub(crate) fn conclude(&self, ended: Result<(), Fault>) -> Result<(), Fault> {
        ended.map_err(|fault| match fault.blame {
            Blame::Network if self.is_stopped() => interrupted().with_source(fault),
            _ => fault,
        })
    }

    /// Registers a hook, called on stop, or now if that has happened. It must not block.
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

    /// Sleeps for up to `most`; true if stopped.
    pub fn wait(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut state = self.lock();
        while !state.stopped {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.0.changed.wait_for(&mut state, left);
        }
        true
    }
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        self.stop.lock().hooks.retain(|(number, _)| *number != self.number);
    }
}

/// The fault of a stopped copy.
pub fn interrupted() -> Fault {
    Fault::new(FaultCode::Interrupted, "what has arrived is kept; the same command resumes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_after(stop: &Stop, code: FaultCode) -> Option<FaultCode> {
        stop.conclude(Err(Fault::new(code, ""))).err().map(|fault| fault.code)
    }

    #[test]
    fn a_connection_that_breaks_after_the_stop_is_an_interruption() {
        let stop = Stop::default();
        assert_eq!(code_after(&stop, FaultCode::ConnectionLost), Some(FaultCode::ConnectionLost));
        stop.stop();
        assert_eq!(code_after(&stop, FaultCode::ConnectionLost), Some(FaultCode::Interrupted));
        assert_eq!(code_after(&stop, FaultCode::Unreachable), Some(FaultCode::Interrupted));
        assert_eq!(code_after(&stop, FaultCode::TargetFull), Some(FaultCode::TargetFull));
        assert!(stop.conclude(Ok(())).is_ok());
    }
}
