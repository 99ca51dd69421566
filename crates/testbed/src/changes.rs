//! Waiting for the service to tell of a change, or to be there again.

use std::io::ErrorKind;
use std::sync::mpsc;
use std::time::Duration;

use crate::http::{Api, Events};

/// Without a change one looks again after this long: not everything that a test waits for is told.
const EVENT_TIMEOUT: Duration = Duration::from_millis(500);
/// Between two tries to reach a service that is away.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);

/// The stream of changes, opened again whenever it ends.
pub(crate) struct Changes {
    api: Api,
    events: Option<Events>,
}

impl Changes {
    pub(crate) fn new(api: Api) -> Self {
        Changes { api, events: None }
    }

    /// Returns at the next change, and after `at_most` or a moment at the latest.
    pub(crate) fn wait(&mut self, at_most: Duration) {
        if self.events.is_none() {
            self.events = self.api.events(EVENT_TIMEOUT).ok();
        }
        let Some(events) = &mut self.events else { return tick(RECONNECT_INTERVAL.min(at_most)) };
        match events.event() {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => {
                self.events = None;
                tick(RECONNECT_INTERVAL.min(at_most));
            }
        }
    }
}

/// A moment, where there is nothing to wait for.
pub(crate) fn tick(time: Duration) {
    let (_sender, receiver) = mpsc::channel::<()>();
    let _ = receiver.recv_timeout(time);
}
