//! Waiting for what other threads and processes do.

use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine: who waits so long waits for what never comes.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The same where each poll may be a request.
#[cfg(feature = "async")]
const ASYNC_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until the condition holds; panics with `what` if that takes two minutes.
#[track_caller]
pub fn wait_until(mut condition: impl FnMut() -> bool, what: impl Fn() -> String) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "not within {} s: {}", WAIT_TIMEOUT.as_secs(), what());
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Polls until there is a result, and returns it; panics with `what` and the last reason why there is none if
/// that takes two minutes.
#[cfg(feature = "async")]
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begun = tokio::time::Instant::now();
    loop {
        match poll().await {
            Ok(found) => return found,
            Err(why) => assert!(begun.elapsed() < WAIT_TIMEOUT, "{what} did not come about: {why}"),
        }
        tokio::time::sleep(ASYNC_POLL_INTERVAL).await;
    }
}

/// [`until`] for a condition that says nothing of itself.
#[cfg(feature = "async")]
pub async fn until_met(what: &str, met: impl Fn() -> bool) {
    until(what, async || met().then_some(()).ok_or_else(|| "it is not so".to_owned())).await;
}
