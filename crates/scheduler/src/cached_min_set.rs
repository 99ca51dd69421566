//! Ordered set with a cached minimum: most queues are only asked for their first element, thousands of times
//! per change, and each level of a tree is a wait for memory.

use std::collections::BTreeSet;
use std::ops::Bound;

#[derive(Debug)]
pub(crate) struct CachedMinSet<T> {
    first: Option<T>,
    set: BTreeSet<T>,
}

impl<T> Default for CachedMinSet<T> {
    fn default() -> Self {
        CachedMinSet { first: None, set: BTreeSet::new() }
    }
}

impl<T: Ord + Copy> CachedMinSet<T> {
    pub(crate) fn from_value(value: T) -> Self {
        CachedMinSet { first: Some(value), set: BTreeSet::from([value]) }
    }

    /// True if it is new.
    pub(crate) fn insert(&mut self, value: T) -> bool {
        if self.first.is_none_or(|first| value < first) {
            self.first = Some(value);
        }
        self.set.insert(value)
    }

    /// True if it was there.
    pub(crate) fn remove(&mut self, value: &T) -> bool {
        let found = self.set.remove(value);
        if self.first.as_ref() == Some(value) {
            self.first = self.set.first().copied();
        }
        found
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.first.as_ref()
    }

    /// The first one that comes after this value, which need not be here.
    pub(crate) fn after(&self, value: &T) -> Option<&T> {
        self.set.range((Bound::Excluded(value), Bound::Unbounded)).next()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.set.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_that_of_the_set(steps in proptest::collection::vec((any::<bool>(), 0_u8..20),
            0..100)) {
            let (mut sorted, mut set) = (CachedMinSet::default(), BTreeSet::new());
            for (more, value) in steps {
                let same = match more {
                    true => sorted.insert(value) == set.insert(value),
                    false => sorted.remove(&value) == set.remove(&value),
                };
                prop_assert!(same && sorted.first() == set.first() && sorted.is_empty() == set.is_empty());
                prop_assert_eq!(sorted.after(&value), set.iter().find(|&&other| other > value));
            }
        }
    }
}
