//! Threads and panics: blocking steps run off the event loop, a panic becomes a fault.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use longhaul_model::{Fault, FaultCode};

/// Runs a step that may block on a disk, off the threads that serve the network.
pub(crate) async fn blocking<T: Send + 'static>(
    body: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(body).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => Err(ended_fault("a step", message(panic.as_ref()))),
            Err(error) => Err(ended_fault("a step", error)),
        },
    }
}

/// Runs `body`; a panic becomes an internal fault and a log line. State that `body` shares must be usable
/// after a panic: our locks ignore poisoning and guard only state that each step leaves consistent.
pub(crate) fn guarded<T>(what: &str, body: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let why = message(panic.as_ref());
        tracing::error!(what, why, "a thread panicked; this is a defect of Longhaul");
        Fault::new(FaultCode::Internal, format!("{what} panicked: {why}"))
    })
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The fault of a loop that ended and must not.
pub(crate) fn ended_fault(what: &str, why: impl std::fmt::Display) -> Fault {
    Fault::new(FaultCode::Internal, format!("{what} ended: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_fault() {
        assert_eq!(guarded("adding", || 1 + 1).unwrap(), 2);
        let fault = guarded::<()>("scanning", || panic!("at {}", "7")).unwrap_err();
        assert_eq!(fault.code, FaultCode::Internal);
        assert_eq!(fault.detail, "scanning panicked: at 7");
    }
}
