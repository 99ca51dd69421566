//! Threads that survive a panic: a bug in one job must not hang all callers.

use std::panic::{AssertUnwindSafe, catch_unwind};

use longhaul_model::{Fault, FaultCode};

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
    }
}
