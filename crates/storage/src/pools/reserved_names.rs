//! Names that are about to be given to files, or taken from them. Two pools cannot see each other's: while
//! one looks whether a name is free everywhere and takes it, nobody else may take it, or one above or below
//! it.

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::{Condvar, Mutex};

/// The names that are held at this moment.
#[derive(Default)]
pub(super) struct ReservedNames {
    held: Mutex<BTreeMap<String, Hold>>,
    released: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hold {
    /// Whoever holds it gives way to others: a file is only moved from pool to pool.
    gives_way: bool,
    /// Somebody waits for it.
    is_wanted: bool,
}

/// A reserved name, until it is dropped.
pub(super) struct ReservedName<'a> {
    names: &'a ReservedNames,
    path: String,
}

impl ReservedNames {
    /// Waits for whoever gives way. None if anybody else holds the name, a directory in its path or a name
    /// below it.
    pub(super) fn reserve(&self, path: &str) -> Option<ReservedName<'_>> {
        let mut held = self.held.lock();
        loop {
            let conflicts = conflicts(&held, path);
            if conflicts.iter().any(|name| held.get(name).is_some_and(|hold| !hold.gives_way)) {
                return None;
            }
            if conflicts.is_empty() {
                held.insert(path.to_owned(), Hold::default());
                return Some(ReservedName { names: self, path: path.to_owned() });
            }
            for name in conflicts {
                held.entry(name).and_modify(|hold| hold.is_wanted = true);
            }
            self.released.wait(&mut held);
        }
    }

    /// Whether somebody waits for a name.
    #[cfg(test)]
    pub(super) fn is_wanted(&self, path: &str) -> bool {
        self.held.lock().get(path).is_some_and(|hold| hold.is_wanted)
    }

    /// For one who gives way. None if anybody holds the name, a directory in its path or a name below it.
    pub(super) fn reserve_giving_way(&self, path: &str) -> Option<ReservedName<'_>> {
        let mut held = self.held.lock();
        if !conflicts(&held, path).is_empty() {
            return None;
        }
        held.insert(path.to_owned(), Hold { gives_way: true, is_wanted: false });
        Some(ReservedName { names: self, path: path.to_owned() })
    }
}

/// The held names that the path is, lies below or lies above.
fn conflicts(held: &BTreeMap<String, Hold>, path: &str) -> Vec<String> {
    let above = path.match_indices('/').map(|(end, _)| &path[..end]).chain([path]);
    let mut found: Vec<String> = above.filter(|name| held.contains_key(*name)).map(str::to_owned).collect();
    let below = format!("{path}/");
    let from = held.range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded));
    found.extend(from.take_while(|(name, _)| name.starts_with(&below)).map(|(name, _)| name.clone()));
    found
}

impl ReservedName<'_> {
    /// Whether somebody waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.names.held.lock().get(&self.path).is_some_and(|hold| hold.is_wanted)
    }
}

impl Drop for ReservedName<'_> {
    fn drop(&mut self) {
        self.names.held.lock().remove(&self.path);
        self.names.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_a_reserved_name_or_one_above_or_below() {
        let names = ReservedNames::default();
        let held = names.reserve("a/b/c");
        assert!(held.is_some());
        for path in ["a/b/c", "a/b", "a", "a/b/c/d", "a/b/c/d/e"] {
            assert!(names.reserve(path).is_none() && names.reserve_giving_way(path).is_none(), "{path}");
        }
        let others: Vec<_> = ["a/b/d", "a/b/c-", "a/b/cc", "b"].map(|path| names.reserve(path)).into();
        assert!(others.iter().all(Option::is_some));
        drop(held);
        assert!(names.reserve("a/b").is_none(), "a/b/d is below");
        drop(others);
        assert!(names.reserve("a").is_some());
    }

    #[test]
    fn one_that_gives_way_hears_of_those_who_wait() {
        let names = ReservedNames::default();
        let moving = names.reserve_giving_way("a/b").unwrap();
        assert!(!moving.is_wanted());
        std::thread::scope(|scope| {
            let waiting = ["a", "a/b", "a/b/c"].map(|path| scope.spawn(|| names.reserve(path).is_some()));
            while !moving.is_wanted() {
                std::thread::yield_now();
            }
            drop(moving);
            // They may meet each other then; the first one has it.
            assert!(waiting.into_iter().any(|thread| thread.join().unwrap()));
        });
        assert!(names.reserve("a/b").is_some());
    }
}
