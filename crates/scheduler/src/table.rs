//! Rows in places that are used again: a row is found by its place at once, and memory follows the number of rows.

use std::ops::{Index, IndexMut};

pub(crate) struct Table<T> {
    rows: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { rows: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(crate) fn add(&mut self, row: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.rows[place as usize] = Some(row);
                place
            }
            None => {
                assert!(self.rows.len() < u32::MAX as usize, "a table has at most 2^32 rows");
                self.rows.push(Some(row));
                (self.rows.len() - 1) as u32
            }
        }
    }

    pub(crate) fn remove(&mut self, place: u32) -> Option<T> {
        let row = self.rows.get_mut(place as usize)?.take();
        if row.is_some() {
            self.free.push(place);
        }
        row
    }
}

/// # Panics
/// If there is no row at that place: our own bookkeeping would be wrong.
impl<T> Index<u32> for Table<T> {
    type Output = T;
    fn index(&self, place: u32) -> &T {
        match self.rows.get(place as usize) {
            Some(Some(row)) => row,
            _ => panic!("no row at place {place}"),
        }
    }
}

impl<T> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        match self.rows.get_mut(place as usize) {
            Some(Some(row)) => row,
            _ => panic!("no row at place {place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut table = Table::default();
        let (first, second) = (table.add('a'), table.add('b'));
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        assert_eq!(table.add('c'), first);
        assert_eq!((table[first], table[second]), ('c', 'b'));
    }
}
