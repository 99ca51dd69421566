//! Timer heap: an indexed binary heap of next times by number, in which each number has at most one entry, so
//! that a new time replaces the old one.

#[derive(Debug, Default)]
pub struct TimerHeap {
    /// (time, number), smallest first.
    heap: Vec<(i64, u32)>,
    /// By number: the place in the heap, plus one.
    slots: Vec<u32>,
}

impl TimerHeap {
    pub fn peek(&self) -> Option<(i64, u32)> {
        self.heap.first().copied()
    }

    pub fn set(&mut self, number: u32, time: i64) {
        let index = number as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, 0);
        }
        match self.slots[index] {
            0 => {
                self.heap.push((time, number));
                self.sift_up(self.heap.len() - 1);
            }
            slot => {
                let slot = slot as usize - 1;
                let before = self.heap[slot].0;
                self.heap[slot].0 = time;
                if time < before { self.sift_up(slot) } else { self.sift_down(slot) }
            }
        }
    }

    pub fn remove(&mut self, number: u32) {
        let Some(&slot) = self.slots.get(number as usize) else { return };
        if slot == 0 {
            return;
        }
        let slot = slot as usize - 1;
        self.heap.swap_remove(slot);
        self.slots[number as usize] = 0;
        if slot < self.heap.len() {
            self.slots[self.heap[slot].1 as usize] = slot as u32 + 1;
            self.sift_up(slot);
            let slot = self.slots[self.heap[slot].1 as usize] as usize - 1;
            self.sift_down(slot);
        }
    }

    fn sift_up(&mut self, mut slot: usize) {
        let entry = self.heap[slot];
        while slot > 0 {
            let above = (slot - 1) / 2;
            if self.heap[above] <= entry {
                break;
            }
            self.slot(slot, self.heap[above]);
            slot = above;
        }
        self.slot(slot, entry);
    }

    fn sift_down(&mut self, mut slot: usize) {
        let entry = self.heap[slot];
        loop {
            let mut below = 2 * slot + 1;
            if below >= self.heap.len() {
                break;
            }
            if below + 1 < self.heap.len() && self.heap[below + 1] < self.heap[below] {
                below += 1;
            }
            if entry <= self.heap[below] {
                break;
            }
            self.slot(slot, self.heap[below]);
            slot = below;
        }
        self.slot(slot, entry);
    }

    fn slot(&mut self, slot: usize, entry: (i64, u32)) {
        self.heap[slot] = entry;
        self.slots[entry.1 as usize] = slot as u32 + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(steps in prop::collection::vec((0u32..20, prop::option::of(0i64..100)),
            0..200)) {
            let mut due = TimerHeap::default();
            let mut map: BTreeMap<u32, i64> = BTreeMap::new();
            for (number, time) in steps {
                match time {
                    Some(time) => {
                        due.set(number, time);
                        map.insert(number, time);
                    }
                    None => {
                        due.remove(number);
                        map.remove(&number);
                    }
                }
                let first = map.iter().map(|(number, time)| (*time, *number)).min();
                prop_assert_eq!(due.peek(), first);
            }
        }
    }
}
