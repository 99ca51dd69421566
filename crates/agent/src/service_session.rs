//! Whether the service knows this incarnation, and that a hello and a request for work never overlap.
//!
//! A hello lists the leases that the agent holds; the service forgets all others. A lease that arrived
//! meanwhile would be missing from that list: so no hello is sent while a request for work is under way, and
//! none is begun while a hello is.

use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) struct ServiceSession {
    state: Mutex<SessionState>,
    /// Counts changes, for whoever waits for one.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct SessionState {
    /// The service knows this incarnation and what it holds.
    greeted: bool,
    hello_in_flight: bool,
    /// The hello in flight is not the last word: what it says has changed meanwhile.
    is_hello_outdated: bool,
    /// From a request for work until what came is durable.
    work_in_flight: bool,
}

impl ServiceSession {
    pub(crate) fn new() -> Self {
        ServiceSession { state: Mutex::default(), changes: watch::Sender::new(0) }
    }

    pub(crate) fn is_greeted(&self) -> bool {
        self.state.lock().greeted
    }

    /// False while a request for work is under way: to be tried again after a change.
    pub(crate) fn begin_hello(&self) -> bool {
        let mut state = self.state.lock();
        state.hello_in_flight |= !state.work_in_flight;
        state.is_hello_outdated &= !state.hello_in_flight;
        state.hello_in_flight
    }

    pub(crate) fn end_hello(&self) {
        self.change(|state| state.hello_in_flight = false);
    }

    /// The service has taken in the hello: it knows us, unless another one was requested meanwhile.
    pub(crate) fn accept_hello(&self) {
        self.change(|state| state.greeted = !state.is_hello_outdated);
    }

    /// The service does not know us, or not as we are now: a hello is next, also if one is under way.
    pub(crate) fn request_hello(&self) {
        self.change(|state| {
            state.greeted = false;
            state.is_hello_outdated = state.hello_in_flight;
        });
    }

    /// False while the service does not know us or a hello is under way: to be tried again after a change.
    pub(crate) fn begin_work(&self) -> bool {
        let mut state = self.state.lock();
        state.work_in_flight = state.greeted && !state.hello_in_flight;
        state.work_in_flight
    }

    pub(crate) fn end_work(&self) {
        self.change(|state| state.work_in_flight = false);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut SessionState)) {
        change(&mut self.state.lock());
        self.changes.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_and_a_request_for_work_exclude_each_other() {
        let session = ServiceSession::new();
        assert!(!session.begin_work(), "nobody knows us");
        assert!(session.begin_hello());
        session.accept_hello();
        assert!(!session.begin_work(), "the hello is not over");
        session.end_hello();
        let mut changes = session.subscribe();
        assert!(session.begin_work());
        session.request_hello();
        assert!(changes.has_changed().unwrap() && !session.begin_hello());
        changes.mark_unchanged();
        session.end_work();
        assert!(changes.has_changed().unwrap() && session.begin_hello());
    }

    /// A root may come back, or go, while the service reads a hello that was written before.
    #[test]
    fn a_hello_that_is_outdated_when_it_is_accepted_is_said_again() {
        let session = ServiceSession::new();
        assert!(session.begin_hello());
        session.request_hello();
        session.accept_hello();
        session.end_hello();
        assert!(!session.is_greeted() && !session.begin_work());
        assert!(session.begin_hello());
        session.accept_hello();
        session.end_hello();
        assert!(session.is_greeted(), "once");
        session.request_hello();
        assert!(!session.is_greeted() && session.begin_hello());
        session.accept_hello();
        assert!(session.is_greeted(), "it was written after the request");
    }
}
