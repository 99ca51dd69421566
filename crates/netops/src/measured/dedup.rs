//! Deduplication of measurements by id: archives are read with an overlap, and senders repeat themselves.

use std::collections::{BTreeSet, VecDeque};

use longhaul_network::ObservationId;

/// A quarter of an hour of a mesh with 5,000 pairs that report each minute, with room.
const SEEN_MAX: usize = 100_000;

/// The ids of the latest measurements.
#[derive(Default)]
pub struct RecentObservations {
    known: BTreeSet<ObservationId>,
    order: VecDeque<ObservationId>,
}

impl RecentObservations {
    pub fn holds(&self, id: ObservationId) -> bool {
        self.known.contains(&id)
    }

    pub fn insert(&mut self, id: ObservationId) {
        if self.known.insert(id) {
            self.order.push_back(id);
        }
        if self.order.len() > SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub fn forget(&mut self, id: ObservationId) {
        if self.known.remove(&id) {
            self.order.retain(|known| *known != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_the_number_is_bounded() {
        let mut seen = RecentObservations::default();
        for number in 0..SEEN_MAX as u64 + 10 {
            seen.insert(ObservationId(number));
        }
        assert!(!seen.holds(ObservationId(9)) && seen.holds(ObservationId(10)));
        assert_eq!((seen.known.len(), seen.order.len()), (SEEN_MAX, SEEN_MAX));
        seen.forget(ObservationId(10));
        assert!(!seen.holds(ObservationId(10)));
        seen.insert(ObservationId(10));
        assert!(seen.holds(ObservationId(10)));
    }
}
