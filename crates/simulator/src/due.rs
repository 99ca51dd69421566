//! When something is due next, for things with numbers: a heap in which each has at most one place, so that a
//! new time replaces the old one.

#[derive(Debug, Default)]
pub struct Due {
    /// (time, number), smallest first.
    heap: Vec<(i64, u32)>,
    /// By number: the place in the heap, plus one.
    places: Vec<u32>,
}

impl Due {
    pub fn next(&self) -> Option<(i64, u32)> {
        self.heap.first().copied()
    }

    pub fn set(&mut self, number: u32, time: i64) {
        let index = number as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        match self.places[index] {
            0 => {
                self.heap.push((time, number));
                self.rise(self.heap.len() - 1);
            }
            place => {
                let place = place as usize - 1;
                let before = self.heap[place].0;
                self.heap[place].0 = time;
                if time < before { self.rise(place) } else { self.sink(place) }
            }
        }
    }

    pub fn remove(&mut self, number: u32) {
        let Some(&place) = self.places.get(number as usize) else { return };
        if place == 0 {
            return;
        }
        let place = place as usize - 1;
        self.heap.swap_remove(place);
        self.places[number as usize] = 0;
        if place < self.heap.len() {
            self.places[self.heap[place].1 as usize] = place as u32 + 1;
            self.rise(place);
            let place = self.places[self.heap[place].1 as usize] as usize - 1;
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if self.heap[above] <= entry {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let mut below = 2 * place + 1;
            if below >= self.heap.len() {
                break;
            }
            if below + 1 < self.heap.len() && self.heap[below + 1] < self.heap[below] {
                below += 1;
            }
            if entry <= self.heap[below] {
                break;
            }
            self.put(place, self.heap[below]);
            place = below;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (i64, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32 + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(steps in prop::collection::vec((0u32..20, prop::option::of(0i64..100)), 0..200)) {
            let mut due = Due::default();
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
                prop_assert_eq!(due.next(), first);
            }
        }
    }
}
