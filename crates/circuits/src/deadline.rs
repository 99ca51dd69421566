//! Points in time that a clock which jumps cannot move away.

use std::time::Duration;

use longhaul_model::Timestamp;

/// When something is due. If the clock goes back, it is due no later than if it began now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    at: Timestamp,
    span: Duration,
}

impl Deadline {
    pub(crate) fn after(now: Timestamp, span: Duration) -> Deadline {
        Deadline { at: now.plus(span), span }
    }

    /// As it was written down.
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
