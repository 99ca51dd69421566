//! Preconnect: dials streams to a peer while its metadata is still being requested, before the first fetch.
//! They are parked like offered streams until a session needs them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_wire::path::{STREAMS_INITIAL, streams_by_distance};

pub(crate) struct Preconnect {
    addresses: Vec<String>,
    streams_max: usize,
    /// Whether the round trip time is known and the remaining streams were dialled.
    distance_known: AtomicBool,
}

impl Preconnect {
    /// `fixed` is the number of streams regardless of the round trip time.
    pub(crate) fn new(addresses: &[String], most: usize, fixed: bool) -> Preconnect {
        Preconnect {
            addresses: addresses.to_vec(),
            streams_max: most,
            distance_known: AtomicBool::new(fixed),
        }
    }

    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub(crate) fn initial_streams(&self) -> usize {
        if self.distance_known.load(Ordering::Relaxed) {
            self.streams_max
        } else {
            STREAMS_INITIAL.min(self.streams_max)
        }
    }

    /// Called when one stream is connected. Returns how many more streams a session over this round trip time
    /// starts with.
    pub(crate) fn additional_streams(&self, round_trip: Duration) -> usize {
        let begun = self.initial_streams();
        if self.distance_known.swap(true, Ordering::Relaxed) {
            return 0;
        }
        streams_by_distance(round_trip).min(self.streams_max).saturating_sub(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_streams_are_dialled_as_a_session_starts_with() {
        let far = Duration::from_millis(100);
        let ahead = |most| Preconnect::new(&["far.example:7".into()], most, false);
        let eight = ahead(8);
        assert_eq!(
            (eight.initial_streams(), eight.additional_streams(far), eight.additional_streams(far)),
            (2, 4, 0)
        );
        assert_eq!((ahead(8).additional_streams(Duration::ZERO), ahead(3).additional_streams(far)), (0, 1));
        assert_eq!((ahead(1).initial_streams(), ahead(1).additional_streams(far)), (1, 0));
        let fixed = Preconnect::new(&[], 5, true);
        assert_eq!((fixed.initial_streams(), fixed.additional_streams(far)), (5, 0));
    }
}
