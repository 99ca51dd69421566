//! Slab: rows in slots that are reused; a row is found by its index in O(1), and memory follows the number of
//! rows.

use std::ops::{Index, IndexMut};

/// Niche marker: as a field of a row it gives `Option<Row>` its niche, beside the fields that are read
/// anyway. Otherwise `Option` would use a field that is never read with them, and each access to a row of a
/// large slab would wait for memory twice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(u64)]
pub(crate) enum RowMarker {
    #[default]
    Yes,
}

pub(crate) struct Slab<T> {
    rows: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { rows: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn add(&mut self, row: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.rows[index as usize] = Some(row);
                index
            }
            None => {
                assert!(self.rows.len() < u32::MAX as usize, "a table has at most 2^32 rows");
                self.rows.push(Some(row));
                (self.rows.len() - 1) as u32
            }
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let row = self.rows.get_mut(index as usize)?.take();
        if row.is_some() {
            self.free.push(index);
        }
        row
    }
}

/// # Panics
/// If there is no row at that place: our own bookkeeping would be wrong.
impl<T> Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        match self.rows.get(index as usize) {
            Some(Some(row)) => row,
            _ => panic!("no row at place {index}"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        match self.rows.get_mut(index as usize) {
            Some(Some(row)) => row,
            _ => panic!("no row at place {index}"),
        }
    }
}

/// Small set of indexes, inline up to three: mostly there are one to three.
#[derive(Default)]
pub(crate) struct SmallSet {
    inline: [u32; 3],
    count: u8,
    more: Vec<u32>,
}

impl SmallSet {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.count) + self.more.len()
    }

    pub(crate) fn get(&self, at: usize) -> u32 {
        let count = usize::from(self.count);
        if at < count { self.inline[at] } else { self.more[at - count] }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }

    pub(crate) fn push(&mut self, index: u32) {
        match self.inline.get_mut(usize::from(self.count)) {
            Some(slot) => {
                *slot = index;
                self.count += 1;
            }
            None => self.more.push(index),
        }
    }

    /// Keeps the order of the others.
    pub(crate) fn remove(&mut self, index: u32) {
        let Some(at) = self.iter().position(|other| other == index) else { return };
        let count = usize::from(self.count);
        if at >= count {
            self.more.remove(at - count);
            return;
        }
        self.inline.copy_within(at + 1..count, at);
        if self.more.is_empty() {
            self.count -= 1;
        } else {
            self.inline[count - 1] = self.more.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_or_many_keep_their_order() {
        let mut few = SmallSet::default();
        (0..10).for_each(|index| few.push(index));
        few.remove(1);
        few.remove(9);
        assert_eq!(few.iter().collect::<Vec<_>>(), [0, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(few.len(), 8);
    }

    #[test]
    fn places_are_used_again() {
        let mut table = Slab::default();
        let (first, second) = (table.add('a'), table.add('b'));
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        assert_eq!(table.add('c'), first);
        assert_eq!((table[first], table[second]), ('c', 'b'));
    }
}
