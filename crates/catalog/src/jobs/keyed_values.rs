//! Values that a query finds in any order, in the order of the keys that were asked for.

use std::collections::BTreeMap;

/// The value of each key, by the key's position in the question; the default where nothing was found. A key
/// may be repeated.
pub(super) struct KeyedValues<'k, K, V> {
    keys: &'k [K],
    first_positions: BTreeMap<&'k K, usize>,
    values: Vec<V>,
}

impl<'k, K: Ord, V: Clone + Default> KeyedValues<'k, K, V> {
    pub(super) fn new(keys: &'k [K]) -> Self {
        let mut first_positions = BTreeMap::new();
        for (position, key) in keys.iter().enumerate() {
            first_positions.entry(key).or_insert(position);
        }
        KeyedValues { keys, first_positions, values: vec![V::default(); keys.len()] }
    }

    /// The value of a key; none if nobody asked for it.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.values.get_mut(*self.first_positions.get(key)?)
    }

    /// Only what is asked for again is copied.
    pub(super) fn into_vec(mut self) -> Vec<V> {
        for (position, key) in self.keys.iter().enumerate() {
            let first = self.first_positions[key];
            if first != position {
                self.values[position] = self.values[first].clone();
            }
        }
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_the_order_of_their_keys() {
        let mut found: KeyedValues<'_, u8, Vec<char>> = KeyedValues::new(&[3, 1, 2, 1]);
        for (key, letter) in [(1, 'a'), (3, 'b'), (1, 'c')] {
            found.get_mut(&key).unwrap().push(letter);
        }
        assert_eq!(found.get_mut(&4), None, "nobody asked for it");
        assert_eq!(found.into_vec(), [vec!['b'], vec!['a', 'c'], vec![], vec!['a', 'c']]);
    }
}
