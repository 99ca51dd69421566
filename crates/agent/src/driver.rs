//! Drives the agent's loops in production: waits for time and inputs, carries out what they send.
//!
//! What may wait for a disk runs off the event loop. Such a step holds the whole context until it has ended,
//! so that the agent does not give its state directory away while something is still written there.

use std::sync::Arc;

use longhaul_model::Fault;
use tokio::time::{Instant, sleep_until};

use crate::context::AgentContext;
use crate::step::{AgentTime, PeriodicLoop};
use crate::threads::{blocking, locked};

/// The clock of [`AgentTime`]. Paused and advanced with tokio's in tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonotonicClock(Instant);

impl MonotonicClock {
    pub(crate) fn start() -> MonotonicClock {
        MonotonicClock(Instant::now())
    }

    pub(crate) fn now(&self) -> AgentTime {
        self.0.elapsed()
    }

    /// Forever if there is no time.
    pub(crate) async fn sleep_until(&self, time: Option<AgentTime>) {
        match time {
            Some(time) => sleep_until(self.0 + time).await,
            None => std::future::pending().await,
        }
    }
}

/// Drives a loop that never waits for a disk. Runs for ever.
pub(crate) async fn run_periodic(clock: MonotonicClock, mut periodic: impl PeriodicLoop) -> Fault {
    loop {
        let due = periodic.step(clock.now());
        clock.sleep_until(due).await;
    }
}

/// Drives a loop that writes to the state directory. Runs for ever.
pub(crate) async fn run_periodic_blocking(context: Arc<AgentContext>, periodic: impl PeriodicLoop) -> Fault {
    let periodic = Arc::new(std::sync::Mutex::new(periodic));
    let clock = context.monotonic;
    loop {
        let (held, stepped, now) = (context.clone(), periodic.clone(), clock.now());
        let due = blocking(move || {
            let due = locked(&stepped).step(now);
            drop(held);
            Ok(due)
        });
        match due.await {
            Ok(due) => clock.sleep_until(due).await,
            Err(fault) => return fault,
        }
    }
}
