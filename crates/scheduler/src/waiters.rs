//! Who waits for a slot of a site: by priority, then by how long; one in [`OLDEST_EACH`] goes to the longest
//! wait whatever its priority, so that nobody waits for ever.

use std::collections::{BTreeMap, BTreeSet};

const OLDEST_EACH: u32 = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters {
    order: BTreeSet<(u8, u64, u32)>,
    places: BTreeMap<u32, (u8, u64)>,
    arrivals: u64,
    served: u32,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A target that waits already keeps its place, unless its priority has risen.
    pub(crate) fn add(&mut self, target: u32, priority: u8) {
        let class = u8::MAX - priority;
        let arrival = match self.places.get(&target).copied() {
            Some((known, _)) if known <= class => return,
            Some((known, arrival)) => {
                self.order.remove(&(known, arrival, target));
                arrival
            }
            None => {
                self.arrivals += 1;
                self.arrivals
            }
        };
        self.order.insert((class, arrival, target));
        self.places.insert(target, (class, arrival));
    }

    pub(crate) fn next(&mut self) -> Option<u32> {
        self.served = self.served.wrapping_add(1);
        let place = if self.served.is_multiple_of(OLDEST_EACH) {
            self.order.iter().min_by_key(|(_, arrival, _)| *arrival).copied()
        } else {
            self.order.first().copied()
        }?;
        self.order.remove(&place);
        self.places.remove(&place.2);
        Some(place.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_then_arrival_and_nobody_waits_for_ever() {
        let mut waiters = Waiters::default();
        waiters.add(1, 1);
        waiters.add(2, 5);
        waiters.add(3, 5);
        waiters.add(3, 5);
        assert_eq!(waiters.next(), Some(2));
        assert_eq!(waiters.next(), Some(3));
        let mut turns = 0;
        loop {
            waiters.add(9, 9);
            turns += 1;
            if waiters.next() == Some(1) {
                break;
            }
            assert!(turns <= 2 * OLDEST_EACH, "priority 1 starves");
        }
    }
}
