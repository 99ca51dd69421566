//! Rows that are asked for again and again and seldom change, kept in memory. What was read while a change
//! was under way is not kept, so nothing is answered that was changed before it was asked.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};

use crate::sync::locked;

/// Of one kind; beyond it all are asked for again.
const KEPT_MAX: usize = 1_000;

pub(crate) struct ReadCache<K, V>(Mutex<Rows<K, V>>);

struct Rows<K, V> {
    rows: HashMap<K, V>,
    /// Of changes, so far.
    changes: u64,
}

impl<K, V> Default for ReadCache<K, V> {
    fn default() -> Self {
        ReadCache(Mutex::new(Rows { rows: HashMap::new(), changes: 0 }))
    }
}

impl<K: Eq + Hash, V: Clone> ReadCache<K, V> {
    fn rows(&self) -> MutexGuard<'_, Rows<K, V>> {
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
            rows.changes
        };
        let found = read(&key)?;
        let mut rows = self.rows();
        if let Some(row) = &found
            && rows.changes == changes
        {
            if rows.rows.len() >= KEPT_MAX {
                rows.rows.clear();
            }
            rows.rows.insert(key, row.clone());
        }
        Ok(found)
    }

    /// Makes a change and, before anybody is told of it, forgets what is kept: also after an error, which may
    /// be of what came after the change.
    pub(crate) fn changed<T>(&self, change: impl FnOnce() -> T) -> T {
        let made = change();
        let mut rows = self.rows();
        rows.rows.clear();
        rows.changes += 1;
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
        kept.changed(|| ());
        assert_eq!(kept.get("a", |_| -> Read { Ok(Some(2)) }), Ok(Some(2)));
        assert_eq!(kept.get("a", never), Ok(Some(2)));
    }

    #[test]
    fn what_is_read_during_a_change_is_not_kept() {
        let kept = ReadCache::default();
        let old = kept.get("a", |_| -> Read {
            kept.changed(|| ());
            Ok(Some(1))
        });
        assert_eq!(old, Ok(Some(1)));
        assert_eq!(kept.get("a", |_| -> Read { Ok(Some(2)) }), Ok(Some(2)));
    }

    #[test]
    fn they_are_bounded() {
        let kept = ReadCache::default();
        for key in 0..3 * KEPT_MAX {
            kept.get(key, |_| Ok::<_, ()>(Some(key))).unwrap();
            assert!(kept.rows().rows.len() <= KEPT_MAX);
        }
    }
}
