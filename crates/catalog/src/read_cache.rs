//! A read-through cache of rows that are read often and seldom change. Any change clears it. A row read while
//! a change was under way is not cached, so no caller gets a row that was changed before it asked.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::{Mutex, MutexGuard};

/// Rows of one cache. A cache that would grow beyond this starts over.
const CACHED_ROWS_MAX: usize = 1_000;

pub(crate) struct ReadCache<K, V>(Mutex<CachedRows<K, V>>);

struct CachedRows<K, V> {
    rows: HashMap<K, V>,
    /// Changes so far. A read that spans a change sees this grow, and does not cache its row.
    generation: u64,
}

impl<K, V> Default for ReadCache<K, V> {
    fn default() -> Self {
        ReadCache(Mutex::new(CachedRows { rows: HashMap::new(), generation: 0 }))
    }
}

impl<K: Eq + Hash, V: Clone> ReadCache<K, V> {
    fn rows(&self) -> MutexGuard<'_, CachedRows<K, V>> {
        self.0.lock()
    }

    /// Returns the cached row, or what `read` finds. A missing row is not cached: anybody may ask for it,
    /// under any name.
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

    /// Makes a change, then clears the cache before anybody learns of the change. Clears it after an error
    /// too, since the change may have been committed before it.
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
    fn a_row_is_read_once_until_a_change() {
        let cache = ReadCache::default();
        let never = |_: &&str| -> Read { unreachable!() };
        assert_eq!(cache.get("a", |_| -> Read { Ok(None) }), Ok(None));
        assert_eq!(cache.get("a", |_| -> Read { Ok(Some(1)) }), Ok(Some(1)));
        assert_eq!(cache.get("a", never), Ok(Some(1)));
        assert_eq!(cache.get("b", |_| -> Read { Err(()) }), Err(()));
        cache.invalidate_after(|| ());
        assert_eq!(cache.get("a", |_| -> Read { Ok(Some(2)) }), Ok(Some(2)));
        assert_eq!(cache.get("a", never), Ok(Some(2)));
    }

    #[test]
    fn a_row_read_during_a_change_is_not_cached() {
        let cache = ReadCache::default();
        let old = cache.get("a", |_| -> Read {
            cache.invalidate_after(|| ());
            Ok(Some(1))
        });
        assert_eq!(old, Ok(Some(1)));
        assert_eq!(cache.get("a", |_| -> Read { Ok(Some(2)) }), Ok(Some(2)));
    }

    #[test]
    fn the_cache_is_bounded() {
        let cache = ReadCache::default();
        for key in 0..3 * CACHED_ROWS_MAX {
            cache.get(key, |_| Ok::<_, ()>(Some(key))).unwrap();
            assert!(cache.rows().rows.len() <= CACHED_ROWS_MAX);
        }
    }
}
