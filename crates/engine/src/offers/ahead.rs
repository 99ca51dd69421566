//! Streams to a peer that will soon be fetched from: dialled while it is still being asked what it has. They
//! rest like those that a source has offered, until a session with it wants them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_wire::path::{STREAMS_INITIAL, streams_by_distance};

pub(crate) struct Ahead {
    addresses: Vec<String>,
    most: usize,
    /// It is known how far the peer is, and the others were dialled.
    grown: AtomicBool,
}

impl Ahead {
    /// `fixed`: so many, however far the peer is.
    pub(crate) fn new(addresses: &[String], most: usize, fixed: bool) -> Ahead {
        Ahead { addresses: addresses.to_vec(), most, grown: AtomicBool::new(fixed) }
    }

    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub(crate) fn at_first(&self) -> usize {
        if self.grown.load(Ordering::Relaxed) { self.most } else { STREAMS_INITIAL.min(self.most) }
    }

    /// One of them is connected. How many more a session over this distance will begin with.
    pub(crate) fn connected(&self, round_trip: Duration) -> usize {
        let begun = self.at_first();
        if self.grown.swap(true, Ordering::Relaxed) {
            return 0;
        }
        streams_by_distance(round_trip).min(self.most).saturating_sub(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_a_session_begins_with() {
        let far = Duration::from_millis(100);
        let ahead = |most| Ahead::new(&["far.example:7".into()], most, false);
        let eight = ahead(8);
        assert_eq!((eight.at_first(), eight.connected(far), eight.connected(far)), (2, 4, 0));
        assert_eq!((ahead(8).connected(Duration::ZERO), ahead(3).connected(far)), (0, 1));
        assert_eq!((ahead(1).at_first(), ahead(1).connected(far)), (1, 0));
        let fixed = Ahead::new(&[], 5, true);
        assert_eq!((fixed.at_first(), fixed.connected(far)), (5, 0));
    }
}
