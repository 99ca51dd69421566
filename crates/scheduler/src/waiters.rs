//! Queue for the slots of a site: by priority, then by waiting time; one slot in [`OLDEST_TURN_INTERVAL`]
//! goes to the longest wait whatever its priority, so that nobody starves.

use std::collections::{BTreeMap, BTreeSet};

/// One slot in this many goes to the longest wait.
const OLDEST_TURN_INTERVAL: u32 = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct SlotWaiters {
    order: BTreeSet<(u8, u64, u32)>,
    queued: BTreeMap<u32, (u8, u64)>,
    arrivals: u64,
    served: u32,
}

impl SlotWaiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A target that waits already keeps its place, unless its priority has risen.
    pub(crate) fn add(&mut self, target: u32, priority: u8) {
        let class = u8::MAX - priority;
        let arrival = match self.queued.get(&target).copied() {
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
        self.queued.insert(target, (class, arrival));
    }

    pub(crate) fn next(&mut self) -> Option<u32> {
        self.served = self.served.wrapping_add(1);
        let next = if self.served.is_multiple_of(OLDEST_TURN_INTERVAL) {
            self.order.iter().min_by_key(|(_, arrival, _)| *arrival).copied()
        } else {
            self.order.first().copied()
        }?;
        self.order.remove(&next);
        self.queued.remove(&next.2);
        Some(next.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_then_arrival_and_nobody_waits_for_ever() {
        let mut waiters = SlotWaiters::default();
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
            assert!(turns <= 2 * OLDEST_TURN_INTERVAL, "priority 1 starves");
        }
    }
}
