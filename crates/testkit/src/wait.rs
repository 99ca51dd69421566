//! Waiting for what other threads and processes do.

use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine: who waits so long waits for what never comes.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Polls until the condition holds; panics with `what` if that takes two minutes.
#[track_caller]
pub fn wait_until(mut condition: impl FnMut() -> bool, what: impl Fn() -> String) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "not within {} s: {}", WAIT_TIMEOUT.as_secs(), what());
        std::thread::sleep(POLL_INTERVAL);
    }
}
