//! Locks and threads that survive a panic: a bug in one job must not hang all callers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use longhaul_model::{Fault, FaultCode};

/// Ignores lock poisoning: the state of a panicked holder is still well-formed enough to be closed down.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change; may also wake spuriously.
pub(crate) fn wait<'a, T>(change: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    change.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait_until<'a, T>(
    change: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
) -> MutexGuard<'a, T> {
    let left = deadline.saturating_duration_since(Instant::now());
    change.wait_timeout(guard, left).map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard)
}

/// Runs one job of a thread; a panic in it becomes an internal error for the log and the caller.
pub(crate) fn catch_panic<T>(what: &str, job: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no text");
        tracing::error!(what, said, "a job of the engine panicked");
        Fault::new(FaultCode::Internal, format!("{what}: {said}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_fault() {
        assert_eq!(catch_panic("adding", || 2).unwrap(), 2);
        let fault = catch_panic("writing", || panic!("at {}", 7)).map(|(): ()| ()).unwrap_err();
        assert_eq!(fault.code, FaultCode::Internal);
        assert!(fault.detail.contains("at 7"));
        let mutex = std::sync::Arc::new(Mutex::new(1));
        let other = mutex.clone();
        let _ = catch_panic("holding", move || {
            let _held = lock(&other);
            panic!("with the lock");
        });
        assert_eq!(*lock(&mutex), 1);
    }
}
