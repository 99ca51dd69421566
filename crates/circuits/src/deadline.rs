//! Deadlines that are robust against clock steps.

use std::time::Duration;

use longhaul_model::Timestamp;

/// A deadline. If the clock steps back, it is due no later than if it began now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    at: Timestamp,
    span: Duration,
}

impl Deadline {
    pub(crate) fn after(now: Timestamp, span: Duration) -> Deadline {
        Deadline { at: now.plus(span), span }
    }

    /// Restores a persisted deadline.
    pub(crate) fn restored(at: Timestamp, span: Duration) -> Deadline {
        Deadline { at, span }
    }

    pub(crate) fn is_past(&mut self, now: Timestamp) -> bool {
        self.at = self.at.min(now.plus(self.span));
        self.at <= now
    }

    pub(crate) fn when(&self) -> Timestamp {
        self.at
    }
}
