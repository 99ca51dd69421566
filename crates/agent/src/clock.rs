//! Clocks: the service's, as far as this agent knows it, and the one that its loops are stepped by.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use longhaul_engine::Clock;
use longhaul_model::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::step::AgentTime;

/// This host's clock, which never steps, plus an offset learnt from the service's replies.
#[derive(Clone)]
pub(crate) struct ServiceClock {
    local: Clock,
    offset_us: Arc<AtomicI64>,
}

impl ServiceClock {
    pub(crate) fn new(local: Clock, offset_us: i64) -> Self {
        ServiceClock { local, offset_us: Arc::new(AtomicI64::new(offset_us)) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let offset = self.offset_us.load(Ordering::Relaxed);
        Timestamp(self.local().0.saturating_add(offset))
    }

    pub(crate) fn local(&self) -> Timestamp {
        (self.local)()
    }

    pub(crate) fn offset_us(&self) -> i64 {
        self.offset_us.load(Ordering::Relaxed)
    }

    /// Learns from a reply: the service's clock showed `service` at some time between `sent` and `received`
    /// of this host's clock. That bounds the offset from both sides (as in Cristian's algorithm, 1989); the
    /// offset moves only as far as the bounds force it, so that a slow reply changes little.
    pub(crate) fn learn(&self, sent: Timestamp, service: Timestamp, received: Timestamp) {
        let least = service.0.saturating_sub(received.0);
        let most = service.0.saturating_sub(sent.0).max(least);
        self.offset_us.store(self.offset_us().clamp(least, most), Ordering::Relaxed);
    }

    /// The same clock in the engine's form.
    pub(crate) fn for_engine(&self) -> Clock {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }
}

/// The monotonic clock of [`AgentTime`], from the agent's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonotonicClock(Instant);

impl MonotonicClock {
    pub(crate) fn start() -> MonotonicClock {
        MonotonicClock(Instant::now())
    }

    pub(crate) fn now(&self) -> AgentTime {
        self.0.elapsed()
    }

    /// Sleeps until then; forever if there is no time.
    pub(crate) async fn sleep_until(&self, time: Option<AgentTime>) {
        match time {
            Some(time) => sleep_until(self.0 + time).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    #[test]
    fn an_offset_of_an_hour_is_learnt_from_one_reply() {
        let clock = ServiceClock::new(Arc::new(|| at(3_600)), 0);
        clock.learn(at(3_600), at(1), at(3_602));
        assert!(clock.now().since(at(0)) <= std::time::Duration::from_secs(1));
        assert_eq!(clock.local(), at(3_600));
    }

    #[test]
    fn a_slow_reply_does_not_spoil_what_a_quick_one_taught() {
        let clock = ServiceClock::new(Arc::new(|| at(0)), 0);
        clock.learn(at(10), at(110), at(10));
        assert_eq!(clock.offset_us(), 100_000_000);
        clock.learn(at(20), at(121), at(40));
        assert_eq!(clock.offset_us(), 100_000_000);
    }

    proptest! {
        #[test]
        fn the_error_is_below_the_round_trip(
            true_offset in -4_000_000_000i64..4_000_000_000,
            go in 0i64..1_000_000,
            back in 0i64..1_000_000,
        ) {
            let clock = ServiceClock::new(Arc::new(|| Timestamp(0)), 0);
            let sent = 5_000_000_000;
            clock.learn(Timestamp(sent), Timestamp(sent + go + true_offset), Timestamp(sent + go + back));
            prop_assert!((clock.offset_us() - true_offset).abs() <= go + back);
        }
    }
}
