//! Deduplication of measurements by id: archives are read with an overlap, and senders repeat themselves.

use std::collections::{BTreeSet, VecDeque};

use longhaul_network::ObservationId;

/// A quarter of an hour of a mesh with 5,000 pairs that report each minute, with room.
const RECENT_IDS_MAX: usize = 100_000;

/// The ids of the latest measurements.
#[derive(Default)]
pub struct RecentObservations {
    known: BTreeSet<ObservationId>,
    order: VecDeque<ObservationId>,
}

impl RecentObservations {
    pub fn contains(&self, id: ObservationId) -> bool {
        self.known.contains(&id)
    }

    pub fn insert(&mut self, id: ObservationId) {
        if self.known.insert(id) {
            self.order.push_back(id);
        }
        if self.order.len() > RECENT_IDS_MAX
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
        for number in 0..RECENT_IDS_MAX as u64 + 10 {
            seen.insert(ObservationId(number));
        }
        assert!(!seen.contains(ObservationId(9)) && seen.contains(ObservationId(10)));
        assert_eq!((seen.known.len(), seen.order.len()), (RECENT_IDS_MAX, RECENT_IDS_MAX));
        seen.forget(ObservationId(10));
        assert!(!seen.contains(ObservationId(10)));
        seen.insert(ObservationId(10));
        assert!(seen.contains(ObservationId(10)));
    }
}
