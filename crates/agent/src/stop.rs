//! Cooperative cancellation: a flag that threads check between two steps, with child flags.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug, Default)]
pub(crate) struct StopFlag {
    own: Arc<AtomicBool>,
    /// The parent's flag.
    all: Arc<AtomicBool>,
}

impl StopFlag {
    /// A child: set by itself, and whenever this flag is set.
    pub(crate) fn child(&self) -> StopFlag {
        StopFlag { own: Arc::default(), all: self.own.clone() }
    }

    pub(crate) fn set(&self) {
        self.own.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.own.load(Ordering::Acquire) || self.all.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_stops_its_children_and_not_the_reverse() {
        let whole = StopFlag::default();
        let (one, other) = (whole.child(), whole.child());
        one.set();
        assert!(one.is_set() && !other.is_set() && !whole.is_set());
        whole.set();
        assert!(other.is_set());
    }
}
