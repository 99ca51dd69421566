//! Connections that read, so many at the same time and no more.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::BUSY_WAIT;
use crate::CatalogError;
use crate::sync::locked;

/// More callers than this wait for each other.
pub(super) const READERS_MAX: usize = 4;

pub(super) struct Pool<C> {
    readers: Mutex<Readers<C>>,
    returned: Condvar,
}

struct Readers<C> {
    idle: Vec<C>,
    open: usize,
}

/// Goes back to its pool, also when a query panics.
pub(super) struct Lent<'p, C> {
    pool: &'p Pool<C>,
    connection: Option<C>,
}

impl<C> Default for Pool<C> {
    fn default() -> Self {
        let readers = Mutex::new(Readers { idle: Vec::new(), open: 0 });
        Pool { readers, returned: Condvar::new() }
    }
}

impl<C> Pool<C> {
    pub(super) fn borrow(
        &self,
        open: impl Fn() -> Result<C, CatalogError>,
    ) -> Result<Lent<'_, C>, CatalogError> {
        let until = Instant::now() + BUSY_WAIT;
        let mut readers = locked(&self.readers);
        loop {
            if let Some(connection) = readers.idle.pop() {
                return Ok(Lent { pool: self, connection: Some(connection) });
            }
            if readers.open < READERS_MAX {
                readers.open += 1;
                drop(readers);
                // Counted before it is there: if there will be none, its place is given back.
                let mut lent = Lent { pool: self, connection: None };
                lent.connection = Some(open()?);
                return Ok(lent);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CatalogError::Busy(format!("{READERS_MAX} queries run already")));
            }
            readers = self.wait(readers, left);
        }
    }

    fn wait<'m>(
        &self,
        readers: std::sync::MutexGuard<'m, Readers<C>>,
        left: Duration,
    ) -> std::sync::MutexGuard<'m, Readers<C>> {
        self.returned.wait_timeout(readers, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// How many there are, and how many of them nobody uses.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let readers = locked(&self.readers);
        (readers.open, readers.idle.len())
    }
}

impl<C> Lent<'_, C> {
    pub(super) fn with<T>(&mut self, run: impl FnOnce(&mut C) -> T) -> T {
        match &mut self.connection {
            Some(connection) => run(connection),
            None => unreachable!("a pool lends what is open"),
        }
    }
}

impl<C> Drop for Lent<'_, C> {
    fn drop(&mut self) {
        let mut readers = locked(&self.pool.readers);
        match self.connection.take() {
            Some(connection) => readers.idle.push(connection),
            None => readers.open -= 1,
        }
        drop(readers);
        self.pool.returned.notify_one();
    }
}
