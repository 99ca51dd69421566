//! Batched delivery of events to the owner of the engine.

use parking_lot::{Condvar, Mutex};

use crate::interface::Event;
use crate::sync::catch_panic;

/// Events of one batch: bounds the memory and the latency of the receiver.
const EVENTS_PER_BATCH_MAX: usize = 1_000;

/// A queue that can delay waking its consumer: a wake-up per event costs more than the events.
#[derive(Default)]
pub(crate) struct EventQueue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    /// Number of open batches, which are about to add events.
    open_batches: usize,
    ended: bool,
}

impl State {
    fn is_due(&self) -> bool {
        let many = if self.open_batches > 0 { EVENTS_PER_BATCH_MAX } else { 1 };
        self.events.len() >= many
    }
}

impl EventQueue {
    /// Adds an event. After the end it is dropped.
    pub(crate) fn push(&self, event: Event) {
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        state.events.push(event);
        let is_due = state.is_due();
        drop(state);
        if is_due {
            self.arrived.notify_one();
        }
    }

    /// Events pushed until this is dropped are delivered together.
    pub(crate) fn batch(&self) -> EventBatch<'_> {
        self.state.lock().open_batches += 1;
        EventBatch(self)
    }

    /// No more events. Those in the queue are still delivered.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.arrived.notify_all();
    }

    /// Waits for events and delivers them, until the end.
    pub(crate) fn deliver(&self, to: &(dyn Fn(Vec<Event>) + Send + Sync)) {
        while let Some(group) = self.take() {
            if let Err(fault) = catch_panic("the receiver of events", || to(group)) {
                tracing::error!(fault = %fault.chain(), "events were lost");
            }
        }
    }

    fn take(&self) -> Option<Vec<Event>> {
        let mut state = self.state.lock();
        while !state.is_due() && !state.ended {
            self.arrived.wait(&mut state);
        }
        if state.events.is_empty() {
            return None;
        }
        let many = state.events.len().min(EVENTS_PER_BATCH_MAX);
        let later = state.events.split_off(many);
        Some(std::mem::replace(&mut state.events, later))
    }
}

/// Delays delivery until dropped.
pub(crate) struct EventBatch<'a>(&'a EventQueue);

impl Drop for EventBatch<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.open_batches -= 1;
        let is_due = state.is_due();
        drop(state);
        if is_due {
            self.0.arrived.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{AttemptId, Timestamp};

    fn event(number: usize) -> Event {
        Event::Started { attempt: AttemptId(number as u64), at: Timestamp(0) }
    }

    #[test]
    fn events_of_a_batch_are_delivered_together() {
        let events = EventQueue::default();
        let groups = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| events.deliver(&|group| groups.lock().push(group.len())));
            let gathering = events.batch();
            let more = events.batch();
            (0..5).for_each(|number| events.push(event(number)));
            drop(more);
            (5..9).for_each(|number| events.push(event(number)));
            drop(gathering);
            while groups.lock().is_empty() {
                std::thread::yield_now();
            }
            // A full batch does not wait.
            let _gathering = events.batch();
            (0..=EVENTS_PER_BATCH_MAX).for_each(|number| events.push(event(number)));
            while groups.lock().len() < 2 {
                std::thread::yield_now();
            }
            // Neither does the end, which loses nothing.
            events.end();
            events.push(event(1));
        });
        let groups = groups.into_inner();
        assert_eq!(groups[0], 9);
        assert!(
            groups[1] >= EVENTS_PER_BATCH_MAX && groups.iter().sum::<usize>() == 9 + EVENTS_PER_BATCH_MAX + 1,
            "{groups:?}"
        );
    }
}
