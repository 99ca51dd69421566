//! Quota of unfinished files per user: endless submissions would fill the database, which all users share.
//!
//! A count of a user's open files costs as much as they have open jobs, so it is taken seldom: what was
//! counted last plus all that came since is never less than the truth, and as long as that fits nothing is
//! counted. Where it does not, the truth is looked up, once a second at most. So a user at their limit costs
//! a query a second, and others nothing.
//!
//! A user is who has one credential: the subject of a certificate with its attributes, or the holder of a
//! token.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::Timestamp;
use parking_lot::Mutex;

/// A count of a refused user's files is reused for this long.
const COUNT_TTL: Duration = Duration::from_secs(1);
/// Users in memory; beyond this all are forgotten, and counted again when they submit.
const USERS_MAX: usize = 10_000;

#[derive(Default)]
pub struct QueuedFiles {
    users: Mutex<HashMap<String, Arc<Mutex<UserCount>>>>,
}

#[derive(Default)]
struct UserCount {
    /// None: nobody has counted yet.
    counted: Option<(u64, Timestamp)>,
    /// Accepted since.
    since: u64,
    /// Being made durable, which a count may or may not have seen.
    under_way: u64,
}

/// Reserved quota for the files of one submission: committed once they are durable, else released on drop.
pub struct Reservation {
    user: Arc<Mutex<UserCount>>,
    files: u64,
    committed: bool,
}

impl QueuedFiles {
    /// Finds room for `files` more of a user, of whom `most` may be open. `count` tells how many are; the
    /// outer error is its own, the inner one is the number that is in the way.
    pub fn reserve<E>(
        &self,
        user: &str,
        (files, most): (u64, u64),
        now: Timestamp,
        count: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Result<Reservation, u64>, E> {
        let user = self.user_count(user);
        let mut known = user.lock();
        let fresh = known.counted.is_some_and(|(_, at)| now.since(at) < COUNT_TTL);
        if !known.fits(files, most) && !fresh {
            known.counted = Some((count()?, now));
            known.since = 0;
        }
        if !known.fits(files, most) {
            return Ok(Err(known.upper_bound()));
        }
        known.under_way += files;
        drop(known);
        Ok(Ok(Reservation { user, files, committed: false }))
    }

    fn user_count(&self, user: &str) -> Arc<Mutex<UserCount>> {
        let mut users = self.users.lock();
        if !users.contains_key(user) && users.len() >= USERS_MAX {
            users.clear();
        }
        users.entry(user.to_owned()).or_default().clone()
    }
}

impl UserCount {
    fn upper_bound(&self) -> u64 {
        self.counted.map_or(0, |(counted, _)| counted) + self.since + self.under_way
    }

    fn fits(&self, files: u64, most: u64) -> bool {
        self.counted.is_some() && self.upper_bound().saturating_add(files) <= most
    }
}

impl Reservation {
    pub fn commit(mut self) {
        self.committed = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut known = self.user.lock();
        known.under_way -= self.files;
        if self.committed {
            known.since += self.files;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_seconds(second)
    }

    #[test]
    fn nothing_is_counted_while_it_fits() {
        let (queued, counts) = (QueuedFiles::default(), Cell::new(0));
        let count = |open: u64| {
            counts.set(counts.get() + 1);
            Ok::<u64, ()>(open)
        };
        let room =
            |files, second, open| queued.reserve("anna", (files, 10), at(second), || count(open)).unwrap();
        for _ in 0..4 {
            room(2, 0, 1).unwrap().commit();
        }
        assert_eq!(counts.get(), 1);
        // 1 and 8 since: the truth is asked, and told.
        assert_eq!(room(2, 5, 9).err(), Some(9));
        assert_eq!(counts.get(), 2);
        assert_eq!(room(2, 5, 0).err(), Some(9), "counted just now");
        assert_eq!(counts.get(), 2);
        assert!(room(1, 5, 0).is_ok(), "what fits is taken");
        assert!(room(2, 6, 3).is_ok(), "a second later it is counted again");
        assert_eq!(counts.get(), 3);
        assert_eq!(room(11, 7, 0).err(), Some(0), "more than ever fits");
    }

    #[test]
    fn what_is_refused_elsewhere_gives_its_room_back() {
        let queued = QueuedFiles::default();
        let room = |files| queued.reserve("anna", (files, 10), at(0), || Ok::<u64, ()>(0)).unwrap();
        let held = room(6).unwrap();
        assert_eq!(room(6).err(), Some(6), "while it is made durable");
        drop(held);
        room(6).unwrap().commit();
        assert_eq!(room(6).err(), Some(6));
        assert!(queued.reserve("bert", (6, 10), at(0), || Ok::<u64, ()>(0)).unwrap().is_ok(), "another user");
    }

    /// Promise 7.
    #[test]
    fn users_are_forgotten_before_they_are_too_many() {
        let queued = QueuedFiles::default();
        for number in 0..=USERS_MAX {
            let name = number.to_string();
            assert!(queued.reserve(&name, (1, 1), at(0), || Ok::<u64, ()>(0)).unwrap().is_ok());
        }
        assert!(queued.users.lock().len() <= USERS_MAX);
    }

    #[test]
    fn a_count_that_fails_refuses_nobody_for_good() {
        let queued = QueuedFiles::default();
        assert!(matches!(queued.reserve("anna", (1, 5), at(0), || Err("busy")), Err("busy")));
        assert!(matches!(queued.reserve("anna", (1, 5), at(0), || Ok::<u64, &str>(4)), Ok(Ok(_))));
    }
}
