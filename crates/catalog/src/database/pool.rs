//! A bounded pool of connections that read.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::BUSY_WAIT;
use crate::CatalogError;

/// Connections of one pool; further callers wait. Reads are short, and each connection costs a cache of its
/// own.
pub(super) const READERS_MAX: usize = 4;

pub(super) struct Pool<C> {
    state: Mutex<PoolState<C>>,
    returned: Condvar,
}

struct PoolState<C> {
    idle: Vec<C>,
    open: usize,
}

/// A connection in use. Returns to its pool when dropped, also when a query panics.
pub(super) struct PooledConnection<'p, C> {
    pool: &'p Pool<C>,
    connection: Option<C>,
}

impl<C> Default for Pool<C> {
    fn default() -> Self {
        let state = Mutex::new(PoolState { idle: Vec::new(), open: 0 });
        Pool { state, returned: Condvar::new() }
    }
}

impl<C> Pool<C> {
    pub(super) fn acquire(
        &self,
        open: impl Fn() -> Result<C, CatalogError>,
    ) -> Result<PooledConnection<'_, C>, CatalogError> {
        let until = Instant::now() + BUSY_WAIT;
        let mut state = self.state.lock();
        loop {
            if let Some(connection) = state.idle.pop() {
                return Ok(PooledConnection { pool: self, connection: Some(connection) });
            }
            if state.open < READERS_MAX {
                state.open += 1;
                drop(state);
                // Counted before it is open; if opening fails, the drop gives the slot back.
                let mut pooled = PooledConnection { pool: self, connection: None };
                pooled.connection = Some(open()?);
                return Ok(pooled);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CatalogError::Busy(
                    format!("all {READERS_MAX} connections for reading are in use").into(),
                ));
            }
            self.returned.wait_for(&mut state, left);
        }
    }

    /// Open connections, and idle ones among them.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.open, state.idle.len())
    }
}

impl<C> PooledConnection<'_, C> {
    pub(super) fn with<T>(&mut self, run: impl FnOnce(&mut C) -> T) -> T {
        match &mut self.connection {
            Some(connection) => run(connection),
            None => unreachable!("acquire opens the connection"),
        }
    }
}

impl<C> Drop for PooledConnection<'_, C> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        match self.connection.take() {
            Some(connection) => state.idle.push(connection),
            None => state.open -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}
