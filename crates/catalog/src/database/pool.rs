//! Connections that read, so many at the same time and no more.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::BUSY_WAIT;
use crate::CatalogError;
use crate::sync::locked;

/// More callers than this wait for each other.
pub(super) const READERS_MAX: usize = 4;

pub(super) struct Pool<C> {
    state: Mutex<PoolState<C>>,
    returned: Condvar,
}

struct PoolState<C> {
    idle: Vec<C>,
    open: usize,
}

/// Goes back to its pool, also when a query panics.
pub(super) struct PooledConnection<'p, C> {
    pool: &'p Pool<C>,
    connection: Option<C>,
}

impl<C> Default for Pool<C> {
    fn default() -> Self {
        let readers = Mutex::new(PoolState { idle: Vec::new(), open: 0 });
        Pool { state: readers, returned: Condvar::new() }
    }
}

impl<C> Pool<C> {
    pub(super) fn acquire(
        &self,
        open: impl Fn() -> Result<C, CatalogError>,
    ) -> Result<PooledConnection<'_, C>, CatalogError> {
        let until = Instant::now() + BUSY_WAIT;
        let mut readers = locked(&self.state);
        loop {
            if let Some(connection) = readers.idle.pop() {
                return Ok(PooledConnection { pool: self, connection: Some(connection) });
            }
            if readers.open < READERS_MAX {
                readers.open += 1;
                drop(readers);
                // Counted before it is there: if there will be none, its place is given back.
                let mut lent = PooledConnection { pool: self, connection: None };
                lent.connection = Some(open()?);
                return Ok(lent);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CatalogError::Busy(format!("{READERS_MAX} queries run already")));
            }
            readers = self.wait_for_return(readers, left);
        }
    }

    fn wait_for_return<'m>(
        &self,
        readers: std::sync::MutexGuard<'m, PoolState<C>>,
        left: Duration,
    ) -> std::sync::MutexGuard<'m, PoolState<C>> {
        self.returned.wait_timeout(readers, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// How many there are, and how many of them nobody uses.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let readers = locked(&self.state);
        (readers.open, readers.idle.len())
    }
}

impl<C> PooledConnection<'_, C> {
    pub(super) fn with<T>(&mut self, run: impl FnOnce(&mut C) -> T) -> T {
        match &mut self.connection {
            Some(connection) => run(connection),
            None => unreachable!("a pool lends what is open"),
        }
    }
}

impl<C> Drop for PooledConnection<'_, C> {
    fn drop(&mut self) {
        let mut readers = locked(&self.pool.state);
        match self.connection.take() {
            Some(connection) => readers.idle.push(connection),
            None => readers.open -= 1,
        }
        drop(readers);
        self.pool.returned.notify_one();
    }
}
