//! Reorder buffer for append-only storages: chunks arrive over several streams in any order and are written
//! in sequence; early ones wait in their buffers.
//!
//! Avoids head-of-line deadlock by credits: a share of the receive buffers, for all such files together. A
//! chunk that may have to wait is requested only with a credit; the head of line of each file needs none. So
//! waiting chunks never fill the pool, and the chunk that they wait for can always be requested.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The reorder credits of all sessions.
pub(crate) struct ReorderBudget {
    total: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl ReorderBudget {
    /// Half of the buffers: the rest is for files that are written in any order, and for head-of-line chunks.
    pub(crate) fn new(buffers: usize) -> Arc<ReorderBudget> {
        Arc::new(ReorderBudget { total: buffers / 2, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Free credits. The caller holds the lock of the rate limit, so no other session takes them meanwhile.
    pub(crate) fn free(&self) -> usize {
        self.total.saturating_sub(self.used.load(Ordering::Acquire))
    }
}

/// The credits that one session holds.
pub(crate) struct ReorderShare {
    reorder: Arc<ReorderBudget>,
    held: usize,
}

impl ReorderShare {
    pub(crate) fn new(reorder: &Arc<ReorderBudget>) -> ReorderShare {
        ReorderShare { reorder: reorder.clone(), held: 0 }
    }

    /// Sets the number of credits held.
    pub(crate) fn set_held(&mut self, now: usize) {
        if now >= self.held {
            let used = self.reorder.used.fetch_add(now - self.held, Ordering::AcqRel) + now - self.held;
            self.reorder.peak.fetch_max(used, Ordering::Relaxed);
        } else {
            self.reorder.used.fetch_sub(self.held - now, Ordering::AcqRel);
        }
        self.held = now;
    }
}

impl Drop for ReorderShare {
    fn drop(&mut self) {
        self.set_held(0);
    }
}

/// Out-of-order pieces of one file, released in sequence.
pub(super) struct ReorderBuffer<T> {
    next: u64,
    /// A writer is at the head of line.
    busy: bool,
    waiting: BTreeMap<u64, T>,
}

impl<T> ReorderBuffer<T> {
    /// Creates the buffer of a file that is written up to `next`.
    pub(super) fn starting_at(next: u64) -> Self {
        ReorderBuffer { next, busy: false, waiting: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, offset: u64, piece: T) {
        self.waiting.insert(offset, piece);
    }

    /// Takes the head of line, if it is present and no writer is at it. The caller reports with `written`.
    pub(super) fn take_next(&mut self) -> Option<T> {
        if self.busy {
            return None;
        }
        let piece = self.waiting.remove(&self.next)?;
        self.busy = true;
        Some(piece)
    }

    /// The piece that was taken is written, up to `end`.
    pub(super) fn written(&mut self, end: u64) {
        (self.busy, self.next) = (false, end);
    }

    /// Takes all waiting pieces, for the caller to drop outside the lock.
    pub(super) fn drain(&mut self) -> BTreeMap<u64, T> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the order of arrival and the number of writers, pieces leave in sequence, one at a time.
        #[test]
        fn pieces_are_written_in_order(lens in proptest::collection::vec(1u64..50, 1..40),
            order in any::<u64>()) {
            let mut pieces = Vec::new();
            let mut end = 0;
            for len in lens {
                pieces.push((end, end + len));
                end += len;
            }
            let expected = pieces.clone();
            pieces.sort_by_key(|piece| (piece.0 + 1).wrapping_mul(order | 1));
            let mut line = ReorderBuffer::starting_at(0);
            let mut left: Vec<(u64, u64)> = Vec::new();
            let mut taken = None::<(u64, u64)>;
            for (number, piece) in pieces.into_iter().enumerate() {
                line.push(piece.0, piece);
                while let Some(next) = line.take_next() {
                    prop_assert!(taken.is_none(), "one at a time");
                    prop_assert!(line.take_next().is_none());
                    // At times the writer is slow, and others arrive meanwhile.
                    if (order >> (number % 60)) & 1 == 1 {
                        taken = Some(next);
                        break;
                    }
                    line.written(next.1);
                    left.push(next);
                }
                if let Some(late) = taken.take() {
                    line.written(late.1);
                    left.push(late);
                    while let Some(next) = line.take_next() {
                        line.written(next.1);
                        left.push(next);
                    }
                }
            }
            prop_assert_eq!(left, expected);
            prop_assert!(line.drain().is_empty());
        }
    }

    #[test]
    fn credits_are_returned() {
        let reorder = ReorderBudget::new(9);
        let mut places = ReorderShare::new(&reorder);
        places.set_held(3);
        ReorderShare::new(&reorder).set_held(1);
        assert_eq!((reorder.total(), reorder.free(), reorder.peak()), (4, 1, 4));
        places.set_held(1);
        assert_eq!(reorder.free(), 3);
        drop(places);
        assert_eq!((reorder.free(), reorder.peak()), (4, 4));
    }
}
