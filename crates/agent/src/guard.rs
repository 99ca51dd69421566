//! Panics of our own threads become faults: said, reported, and never a thread that is silently gone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use longhaul_model::{Fault, FaultCode};

/// Runs `body`; a panic becomes an internal fault and a log line. Whatever `body` shares with others must be
/// usable after a panic: our locks recover from poisoning, and guard only state that each step leaves whole.
pub(crate) fn guarded<T>(what: &str, body: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let why = message(panic.as_ref());
        tracing::error!(what, why, "a thread panicked; this is a defect of Longhaul");
        Fault::new(FaultCode::Internal, format!("{what} panicked: {why}"))
    })
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
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
