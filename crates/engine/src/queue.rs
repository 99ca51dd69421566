//! A bounded multi-producer, multi-consumer queue between threads that can be closed. A full one makes its
//! producers wait (backpressure; Reactive Streams, 1.0).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    emptied: Condvar,
    /// `put_many` blocks while the queue holds this many items.
    soft_max: usize,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    pub(crate) fn new(soft_max: usize) -> Self {
        let state = Mutex::new(State { items: VecDeque::new(), closed: false });
        Queue { state, filled: Condvar::new(), emptied: Condvar::new(), soft_max }
    }

    /// Waits until there is any room, then adds all items, so that `soft_max` can be exceeded by one batch.
    /// After the queue is closed the items are dropped.
    pub(crate) fn put_many(&self, items: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock();
        while state.items.len() >= self.soft_max && !state.closed {
            self.emptied.wait(&mut state);
        }
        if !state.closed {
            state.items.extend(items);
            drop(state);
            self.filled.notify_one();
        }
    }

    /// For items whose number is bounded elsewhere: never waits. Returns the item if the queue is closed.
    pub(crate) fn push(&self, item: T) -> Option<T> {
        let mut state = self.state.lock();
        if state.closed {
            return Some(item);
        }
        state.items.push_back(item);
        drop(state);
        self.filled.notify_one();
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// The next item; none when the queue is closed, which also takes the queued items.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                drop(state);
                self.emptied.notify_one();
                return Some(item);
            }
            if state.closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    /// Up to `most` items, waiting for at most `wait`. None when the queue is closed.
    pub(crate) fn take_many(&self, most: usize, wait: Duration) -> Option<Vec<T>> {
        let mut state = self.state.lock();
        if state.items.is_empty() && !state.closed {
            self.filled.wait_for(&mut state, wait);
        }
        if state.closed {
            return None;
        }
        let count = state.items.len().min(most);
        let taken = state.items.drain(..count).collect();
        drop(state);
        self.emptied.notify_all();
        Some(taken)
    }

    /// Closes the queue and returns its items.
    pub(crate) fn close(&self) -> VecDeque<T> {
        let mut state = self.state.lock();
        state.closed = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        self.filled.notify_all();
        self.emptied.notify_all();
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn closing_wakes_takers_and_putters() {
        let queue = Arc::new(Queue::new(1));
        queue.put_many([1]);
        let putter = std::thread::spawn({
            let queue = queue.clone();
            move || queue.put_many([2])
        });
        assert_eq!(queue.take(), Some(1));
        assert_eq!(queue.take(), Some(2));
        putter.join().unwrap();
        let taker = std::thread::spawn({
            let queue = queue.clone();
            move || queue.take()
        });
        queue.close();
        assert_eq!(taker.join().unwrap(), None);
        queue.push(3);
        assert_eq!(queue.take_many(9, Duration::ZERO), None);
    }

    #[test]
    fn a_batch_is_put_once_there_is_room() {
        let queue = Arc::new(Queue::new(2));
        queue.put_many(0..3);
        let putter = std::thread::spawn({
            let queue = queue.clone();
            move || queue.put_many(3..5)
        });
        // The queue is full: nothing is added until an item is taken.
        let all: Vec<i32> = std::iter::from_fn(|| queue.take()).take(5).collect();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        putter.join().unwrap();
        queue.close();
        queue.put_many(5..6);
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn takes_many_up_to_a_bound() {
        let queue = Queue::new(10);
        queue.put_many(0..5);
        assert_eq!(queue.take_many(3, Duration::ZERO), Some(vec![0, 1, 2]));
        assert_eq!(queue.take_many(3, Duration::ZERO), Some(vec![3, 4]));
        assert_eq!(queue.take_many(3, Duration::ZERO), Some(vec![]));
    }
}
