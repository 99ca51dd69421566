//! Walks over stores whose contents are all in memory.

use std::ops::ControlFlow;

use longhaul_model::{Fault, FaultCode, StorageName};

use crate::Visit;

/// Whether a path is `start` or lies below it; everything lies below the empty path.
pub(crate) fn is_beneath(path: &str, start: &str) -> bool {
    start.is_empty() || path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Visits the entries at and below `start` until the visitor breaks.
pub(crate) fn visit_all(
    found: Vec<Visit>,
    (storage, start): (&StorageName, &str),
    visit: &mut dyn FnMut(Visit) -> ControlFlow<()>,
) -> Result<(), Fault> {
    if found.is_empty() && !start.is_empty() {
        return Err(Fault::new(FaultCode::SourceMissing, format!("{storage}:{start}")));
    }
    for item in found {
        if visit(item).is_break() {
            break;
        }
    }
    Ok(())
}
