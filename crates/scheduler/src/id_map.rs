//! Hash map by id that offers no iteration, so that no decision depends on the order of hashes. The hash
//! (SplitMix64, Steele, Lea, Flood, OOPSLA 2014) has no random seed: ids are our own, and the same events
//! must give the same run.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

#[derive(Debug)]
pub(crate) struct IdMap<V>(HashMap<u64, V, BuildHasherDefault<SplitMixHasher>>);

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        IdMap(HashMap::default())
    }
}

impl<V> IdMap<V> {
    pub(crate) fn get(&self, id: u64) -> Option<&V> {
        self.0.get(&id)
    }

    pub(crate) fn insert(&mut self, id: u64, value: V) -> Option<V> {
        self.0.insert(id, value)
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<V> {
        self.0.remove(&id)
    }
}

/// The finaliser of splitmix64: every bit of the id reaches every bit of the hash.
pub(crate) fn mix(id: u64) -> u64 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in 0..1 that follows from two ids: spreads retries without a random source.
pub(crate) fn jitter(id: u64, turn: u64) -> f64 {
    (mix(id ^ mix(turn)) >> 11) as f64 / (1u64 << 53) as f64
}

#[derive(Default)]
pub(crate) struct SplitMixHasher(u64);

impl Hasher for SplitMixHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 ^ u64::from(byte));
        }
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = mix(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_and_repeatable() {
        let mean = (0..1_000).map(|id| jitter(id, 3)).sum::<f64>() / 1_000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        assert_eq!(jitter(7, 1), jitter(7, 1));
        assert_ne!(jitter(7, 1), jitter(7, 2));
    }

    #[test]
    fn keeps_one_value_per_id() {
        let mut table = IdMap::default();
        assert_eq!(table.insert(5, 'a'), None);
        assert_eq!(table.insert(5, 'b'), Some('a'));
        assert_eq!(table.get(5), Some(&'b'));
        assert_eq!(table.remove(5), Some('b'));
        assert_eq!(table.get(5), None);
    }
}
