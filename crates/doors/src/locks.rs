//! WebDAV locks (RFC 4918, sections 6 and 7): the lock table, without a clock, a socket or a disk.
//!
//! Locks bind the clients of one door to each other, and nothing else: transfers of Longhaul's go on, and a
//! restart forgets all locks, as a server may. A lock on a directory keeps its list of members as it is; a
//! deep one covers all that is in it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::request::is_within;

/// Locks of one door.
const LOCKS_MAX: usize = 10_000;
/// The longest timeout of a lock; clients refresh it.
pub(crate) const LOCK_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    /// A URI.
    pub(crate) token: String,
    /// The path that was locked; the root is the empty path.
    pub(crate) path: String,
    /// With all that is in it.
    pub(crate) deep: bool,
    pub(crate) exclusive: bool,
    /// The client's `owner` element, as XML.
    pub(crate) owner: String,
    /// Names of who asked: only they may use it.
    pub(crate) holder: Vec<String>,
    pub(crate) until: Duration,
}

impl Lock {
    fn covers(&self, path: &str) -> bool {
        self.path == path || self.deep && is_within(path, &self.path)
    }

    pub(crate) fn is_held_by(&self, who: &[String]) -> bool {
        self.holder.iter().any(|name| who.contains(name))
    }
}

/// The part of the tree that a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteScope<'a> {
    /// This file, or the properties of this directory.
    One(&'a str),
    /// With all that is in it.
    Tree(&'a str),
    /// Which members this directory has.
    Members(&'a str),
}

/// Why a lock was not granted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// Another lock is in the way: what it was asked for.
    Conflict(String),
    TooMany,
}

#[derive(Default)]
pub(crate) struct Locks {
    /// Locks by locked path. Several at one path are shared locks.
    by_path: BTreeMap<String, Vec<Lock>>,
}

impl Locks {
    /// Those that have not run out, of this path and all above it.
    pub(crate) fn covering<'a>(&'a self, path: &'a str, now: Duration) -> impl Iterator<Item = &'a Lock> {
        let above = std::iter::successors(Some(path), |path| match path.rsplit_once('/') {
            Some((parent, _)) => Some(parent),
            None => (!path.is_empty()).then_some(""),
        });
        let locks = above.filter_map(|above| self.by_path.get(above)).flatten();
        locks.filter(move |lock| lock.until > now && lock.covers(path))
    }

    /// Those of what is in the directory.
    fn beneath<'a>(&'a self, path: &'a str, now: Duration) -> impl Iterator<Item = &'a Lock> {
        let first = if path.is_empty() { String::new() } else { format!("{path}/") };
        let within = self.by_path.range(first..).take_while(move |(found, _)| is_within(found, path));
        within
            .filter(move |(found, _)| *found != path)
            .flat_map(|(_, locks)| locks)
            .filter(move |lock| lock.until > now)
    }

    pub(crate) fn acquire(&mut self, lock: Lock, now: Duration) -> Result<(), LockError> {
        self.forget_old(now);
        if self.by_path.values().map(Vec::len).sum::<usize>() >= LOCKS_MAX {
            return Err(LockError::TooMany);
        }
        if let Some(path) = self.excluded(&lock, now) {
            return Err(LockError::Conflict(path));
        }
        self.by_path.entry(lock.path.clone()).or_default().push(lock);
        Ok(())
    }

    /// The path of a lock that excludes this one.
    fn excluded(&self, lock: &Lock, now: Duration) -> Option<String> {
        let below = self.beneath(&lock.path, now).filter(|_| lock.deep);
        let mut others = self.covering(&lock.path, now).chain(below);
        others.find(|other| other.exclusive || lock.exclusive).map(|other| other.path.clone())
    }

    fn forget_old(&mut self, now: Duration) {
        self.by_path.retain(|_, locks| {
            locks.retain(|lock| lock.until > now);
            !locks.is_empty()
        });
    }

    /// Lets it last until then. None: there is no such lock of theirs that covers the path.
    pub(crate) fn refresh(
        &mut self,
        (path, token): (&str, &str),
        who: &[String],
        until: Duration,
        now: Duration,
    ) -> Option<Lock> {
        let found = self.find(path, token, now).filter(|lock| lock.is_held_by(who))?.path.clone();
        let lock = self.by_path.get_mut(&found)?.iter_mut().find(|lock| lock.token == token)?;
        lock.until = until;
        Some(lock.clone())
    }

    pub(crate) fn find<'a>(&'a self, path: &'a str, token: &str, now: Duration) -> Option<&'a Lock> {
        self.covering(path, now).find(|lock| lock.token == token)
    }

    pub(crate) fn release(&mut self, token: &str) {
        self.by_path.retain(|_, locks| {
            locks.retain(|lock| lock.token != token);
            !locks.is_empty()
        });
    }

    /// Removes the locks of a path that was deleted, and of all below.
    pub(crate) fn remove_below(&mut self, path: &str) {
        self.by_path.retain(|found, _| !is_within(found, path));
    }

    /// What is locked and stands in the way of a request with these tokens. Of several shared locks one is
    /// enough.
    pub(crate) fn conflicting(
        &self,
        touches: &[WriteScope<'_>],
        tokens: &[&str],
        who: &[String],
        now: Duration,
    ) -> Option<String> {
        let mut roots: BTreeMap<&str, bool> = BTreeMap::new();
        for touch in touches {
            let (WriteScope::One(path) | WriteScope::Tree(path) | WriteScope::Members(path)) = *touch;
            let below = self.beneath(path, now).filter(|_| matches!(touch, WriteScope::Tree(_)));
            for lock in self.covering(path, now).chain(below) {
                let fits = tokens.contains(&lock.token.as_str()) && lock.is_held_by(who);
                *roots.entry(&lock.path).or_default() |= fits;
            }
        }
        roots.into_iter().find(|(_, fits)| !fits).map(|(path, _)| path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(100);

    fn lock(path: &str, deep: bool, exclusive: bool, token: &str) -> Lock {
        Lock {
            token: token.into(),
            path: path.into(),
            deep,
            exclusive,
            owner: String::new(),
            holder: vec!["/CN=alice".into()],
            until: NOW + Duration::from_secs(60),
        }
    }

    fn alice() -> Vec<String> {
        vec!["/CN=alice".into()]
    }

    #[test]
    fn locks_that_exclude_each_other_do() {
        let mut locks = Locks::default();
        locks.acquire(lock("a/b", false, true, "1"), NOW).unwrap();
        for other in [lock("a/b", false, false, "2"), lock("a", true, false, "2"), lock("", true, true, "2")]
        {
            assert_eq!(locks.acquire(other, NOW), Err(LockError::Conflict("a/b".into())));
        }
        // Neither a neighbour nor the list of members is in its way.
        locks.acquire(lock("a/bc", true, true, "3"), NOW).unwrap();
        locks.acquire(lock("a", false, true, "4"), NOW).unwrap();
        assert_eq!(
            locks.acquire(lock("a/bc/d", false, true, "5"), NOW),
            Err(LockError::Conflict("a/bc".into()))
        );
        locks.release("1");
        locks.acquire(lock("a/b", false, false, "6"), NOW).unwrap();
        locks.acquire(lock("a/b", false, false, "7"), NOW).unwrap();
        assert_eq!(locks.covering("a/b", NOW).count(), 2);
        // An expired lock conflicts with nothing.
        locks.acquire(lock("a/b", false, true, "8"), NOW + Duration::from_secs(61)).unwrap();
        assert_eq!(locks.by_path.len(), 1);
    }

    #[test]
    fn what_is_locked_takes_its_token_from_who_holds_it() {
        let mut locks = Locks::default();
        locks.acquire(lock("d", false, true, "members"), NOW).unwrap();
        locks.acquire(lock("d/x", false, false, "one"), NOW).unwrap();
        locks.acquire(lock("d/x", false, false, "two"), NOW).unwrap();
        locks.acquire(lock("e", true, true, "deep"), NOW).unwrap();
        let (who, other) = (alice(), vec!["/CN=bob".to_owned()]);
        let way = |touches: &[WriteScope<'_>], tokens: &[&str]| locks.conflicting(touches, tokens, &who, NOW);
        assert_eq!(way(&[WriteScope::One("d/x")], &[]).as_deref(), Some("d/x"));
        assert_eq!(way(&[WriteScope::One("d/x")], &["two"]), None, "one of several shared ones");
        assert_eq!(way(&[WriteScope::One("d/y")], &[]), None, "the directory's lock is of its members");
        assert_eq!(way(&[WriteScope::One("d/y"), WriteScope::Members("d")], &[]).as_deref(), Some("d"));
        assert_eq!(way(&[WriteScope::Tree("d")], &["members"]).as_deref(), Some("d/x"));
        assert_eq!(way(&[WriteScope::Tree("d")], &["members", "one"]), None);
        assert_eq!(way(&[WriteScope::Tree("")], &["members", "one"]).as_deref(), Some("e"));
        assert_eq!(way(&[WriteScope::One("e/f/g")], &["other"]).as_deref(), Some("e"));
        assert_eq!(way(&[WriteScope::One("ee")], &[]), None);
        let stolen = locks.conflicting(&[WriteScope::One("e/f")], &["deep"], &other, NOW);
        assert_eq!(stolen.as_deref(), Some("e"), "a token is of use to who holds the lock");
        assert_eq!(locks.conflicting(&[WriteScope::Tree("")], &[], &who, NOW + LOCK_TIMEOUT_MAX), None);
    }

    #[test]
    fn a_lock_is_refreshed_by_its_holder_and_goes_with_what_it_was_on() {
        let mut locks = Locks::default();
        locks.acquire(lock("d", true, true, "t"), NOW).unwrap();
        let (who, later) = (alice(), NOW + Duration::from_secs(500));
        assert_eq!(locks.refresh(("d/x", "t"), &["/CN=bob".into()], later, NOW), None);
        assert_eq!(locks.refresh(("x", "t"), &who, later, NOW), None, "it does not cover that");
        assert_eq!(locks.refresh(("d/x", "t"), &who, later, NOW).map(|lock| lock.until), Some(later));
        locks.remove_below("d/x");
        assert!(locks.find("d", "t", NOW).is_some());
        locks.remove_below("");
        assert!(locks.find("d", "t", NOW).is_none());
    }

    fn any_path() -> impl Strategy<Value = String> {
        proptest::collection::vec("[ab]", 0..4).prop_map(|parts| parts.join("/"))
    }

    proptest! {
        /// Whoever is let through changes nothing that somebody else has locked for themselves.
        #[test]
        fn no_two_exclusive_locks_cover_the_same(
            wanted in proptest::collection::vec((any_path(), any::<bool>(), any::<bool>()), 1..12),
            looked_at in any_path(),
        ) {
            let mut locks = Locks::default();
            for (number, (path, deep, exclusive)) in wanted.iter().enumerate() {
                let _ = locks.acquire(lock(path, *deep, *exclusive, &number.to_string()), NOW);
            }
            let covering: Vec<&Lock> = locks.covering(&looked_at, NOW).collect();
            let exclusive = covering.iter().filter(|lock| lock.exclusive).count();
            prop_assert!(exclusive == 0 || covering.len() == 1, "{covering:?}");
            let blocked = locks.conflicting(&[WriteScope::One(&looked_at)], &[], &alice(), NOW);
            prop_assert_eq!(blocked.is_some(), !covering.is_empty());
        }
    }
}
