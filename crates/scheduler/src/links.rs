//! The links into a target by the index of their source. Each decision visits all that have work, in this
//! order, so they are stored contiguously; lookup is by open addressing with Fibonacci hashing (Knuth, TAOCP
//! 6.4).

use crate::state::LinkState;

#[derive(Default)]
pub(crate) struct LinkMap {
    /// In their order, and at the same place the link.
    sources: Vec<u32>,
    rows: Vec<LinkState>,
    slots: HashIndex,
}

/// Where a source is in its list: each decision asks for some dozens. Open addressing, half full at the most;
/// made anew for a source that is new, which is rare.
#[derive(Default)]
struct HashIndex {
    /// One more than the place in the list; 0 is none. A power of two of them.
    entries: Vec<u32>,
    shift: u32,
}

impl HashIndex {
    fn build(sources: &[u32]) -> HashIndex {
        let bits = (2 * sources.len()).next_power_of_two().trailing_zeros().max(1);
        let mut slots = HashIndex { entries: vec![0; 1 << bits], shift: u32::BITS - bits };
        for (index, &source) in (1..).zip(sources) {
            let mut at = slots.bucket(source);
            while slots.entries[at] != 0 {
                at = slots.next_bucket(at);
            }
            slots.entries[at] = index;
        }
        slots
    }

    /// Multiplied by the golden ratio, neighbours come far apart.
    fn bucket(&self, source: u32) -> usize {
        (source.wrapping_mul(0x9e37_79b9) >> self.shift) as usize
    }

    fn next_bucket(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    fn find(&self, sources: &[u32], source: u32) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let mut at = self.bucket(source);
        loop {
            let index = self.entries[at].checked_sub(1)? as usize;
            if sources[index] == source {
                return Some(index);
            }
            at = self.next_bucket(at);
        }
    }
}

impl LinkMap {
    pub(crate) fn get(&self, source: u32) -> Option<&LinkState> {
        self.slots.find(&self.sources, source).map(|at| &self.rows[at])
    }

    pub(crate) fn get_mut(&mut self, source: u32) -> Option<&mut LinkState> {
        self.slots.find(&self.sources, source).map(|at| &mut self.rows[at])
    }

    /// The link, which is a new one if there was none.
    pub(crate) fn row(&mut self, source: u32) -> &mut LinkState {
        let at = self.slots.find(&self.sources, source).unwrap_or_else(|| self.add(source));
        &mut self.rows[at]
    }

    fn add(&mut self, source: u32) -> usize {
        let at = self.sources.partition_point(|&known| known < source);
        self.sources.insert(at, source);
        self.rows.insert(at, LinkState::default());
        self.slots = HashIndex::build(&self.sources);
        at
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &LinkState)> {
        self.sources.iter().copied().zip(&self.rows)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut LinkState)> {
        self.sources.iter().copied().zip(&mut self.rows)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &LinkState> {
        self.rows.iter()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut LinkState> {
        self.rows.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_stay_in_the_order_of_their_sources() {
        let mut links = LinkMap::default();
        for source in [7, 2, 9, 2, 4] {
            links.row(source).files += source;
        }
        assert_eq!(
            links.iter().map(|(source, link)| (source, link.files)).collect::<Vec<_>>(),
            [(2, 4), (4, 4), (7, 7), (9, 9)]
        );
        assert_eq!(links.get(9).map(|link| link.files), Some(9));
        assert!(links.get(3).is_none() && links.get_mut(10).is_none());
        assert!(LinkMap::default().get(0).is_none());
    }

    #[test]
    fn any_number_of_sources_is_found() {
        let mut links = LinkMap::default();
        for step in 0..500_u32 {
            let source = |step: u32| step.wrapping_mul(977) % 100_003;
            links.row(source(step)).files = step;
            let found = |known: u32| links.get(source(known)).map(|link| link.files);
            assert!((0..=step).all(|known| found(known) == Some(known)));
            assert_eq!(links.get(source(step) + 200_000).map(|link| link.files), None);
        }
        assert!(links.iter().map(|(source, _)| source).is_sorted());
    }
}
