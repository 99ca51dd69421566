//! Rows that are asked for again and again and seldom change, kept in memory. What was read while a change
//! was under way is not kept, so nothing is answered that was changed before it was asked.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};

use crate::sync::locked;

/// Of one kind; beyond it all are asked for again.
const CACHED_ROWS_MAX: usize = 1_000;

pub(crate) struct ReadCache<K, V>(Mutex<CachedRows<K, V>>);

struct CachedRows<K, V> {
    rows: HashMap<K, V>,
    /// Of changes, so far.
    generation: u64,
}

impl<K, V> Default for ReadCache<K, V> {
    fn default() -> Self {
        ReadCache(Mutex::new(CachedRows { rows: HashMap::new(), generation: 0 }))
    }
}

impl<K: Eq + Hash, V: Clone> ReadCache<K, V> {
    fn rows(&self) -> MutexGuard<'_, CachedRows<K, V>> {
        locked(&self.0)
    }

    /// What is kept, or what `read` finds. That there is nothing is not kept: anybody may ask for that, under
    /// any name.
    pub(crate) fn get<E>(
        &self,
        key: K,
        read: impl FnOnce(&K) -> Result<Option<V>, E>,
    ) -> Result<Option<V>, E> {
        let changes = {
            let rows = self.rows();
            if let Some(row) = rows.rows.get(&key) {
                return Ok(Some(row.clone()));
            }
            rows.generation
        };
        let found = read(&key)?;
        let mut rows = self.rows();
        if let Some(row) = &found
            && rows.generation == changes
        {
            if rows.rows.len() >= CACHED_ROWS_MAX {
                rows.rows.clear();
            }
            rows.rows.insert(key, row.clone());
        }
        Ok(found)
    }

    /// Makes a change and, before anybody is told of it, forgets what is kept: also after an error, which may
    /// be of what came after the change.
    pub(crate) fn invalidate_after<T>(&self, change: impl FnOnce() -> T) -> T {
        let made = change();
        let mut rows = self.rows();
        rows.rows.clear();
        rows.generation += 1;
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<Option<u8>, ()>;

    #[test]
    fn what_is_there_is_read_once_until_it_changes() {
        let kept = ReadCache::default();
        let never = |_: &&str| -> Read { unreachable!() };
        assert_eq!(kept.get("a", |_| -> Read { Ok(None) }), Ok(None));
        assert_eq!(kept.get("a", |_| -> Read { Ok(Some(1)) }), Ok(Some(1)));
        assert_eq!(kept.get("a", never), Ok(Some(1)));
        assert_eq!(kept.get("b", |_| -> Read { Err(()) }), Err(()));
        kept.invalidate_after(|| ());
        assert_eq!(kept.get("a", |_| -> Read { Ok(Some(2)) }), Ok(Some(2)));
        assert_eq!(kept.get("a", never), Ok(Some(2)));
    }

    #[test]
    fn what_is_read_during_a_change_is_not_kept() {
        let kept = ReadCache::default();
        let old = kept.get("a", |_| -> Read {
            kept.invalidate_after(|| ());
            Ok(Some(1))
        });
        assert_eq!(old, Ok(Some(1)));
        assert_eq!(kept.get("a", |_| -> Read { Ok(Some(2)) }), Ok(Some(2)));
    }

    #[test]
    fn they_are_bounded() {
        let kept = ReadCache::default();
        for key in 0..3 * CACHED_ROWS_MAX {
            kept.get(key, |_| Ok::<_, ()>(Some(key))).unwrap();
            assert!(kept.rows().rows.len() <= CACHED_ROWS_MAX);
        }
    }
}
