//! Circuit breaker (M. Nygard, *Release It!*): keeps work away from what fails as a whole, such as a source
//! that cannot be reached or a full target, except for single probes.
//!
//! ```text
//! closed ──k failures in a row──► open until T ──T──► one probe ──success──► closed
//!                                      ▲                  └──failure──► open, twice as long
//! ```

use longhaul_model::fault::retry_delay;
use longhaul_model::{AttemptId, Retry, Timestamp};

use crate::id_map::jitter;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Breaker {
    /// Consecutive failures while closed.
    failures: u32,
    /// Times it has opened since the last success.
    times_opened: u32,
    open_until: Option<Timestamp>,
    probe: Option<AttemptId>,
}

impl Breaker {
    /// Whether an attempt may start now; otherwise, when a probe may.
    pub(crate) fn allows(&self, now: Timestamp) -> Result<(), Timestamp> {
        match self.open_until {
            None => Ok(()),
            Some(until) if now < until || self.probe.is_some() => Err(until),
            Some(_) => Ok(()),
        }
    }

    /// Until when it stays open, probes aside; none while closed.
    pub(crate) fn open_until(&self) -> Option<Timestamp> {
        self.open_until
    }

    /// An attempt started; while open it is the probe.
    pub(crate) fn record_start(&mut self, attempt: AttemptId) {
        if self.open_until.is_some() {
            self.probe = Some(attempt);
        }
    }

    /// An attempt ended without a verdict. True if it was the probe: another may be sent now.
    pub(crate) fn forget(&mut self, attempt: AttemptId) -> bool {
        let probe = self.probe == Some(attempt);
        if probe {
            self.probe = None;
        }
        probe
    }

    /// Closes it. True if it was open, so that waiting work may go on.
    pub(crate) fn record_success(&mut self) -> bool {
        let open = self.open_until.is_some();
        *self = Breaker::default();
        open
    }

    /// Counts a failure; if that opened it, returns until when it stays open. Attempts from before it opened
    /// do not extend that.
    pub(crate) fn record_failure(
        &mut self,
        attempt: AttemptId,
        most: u32,
        retry: Retry,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let opens = match self.open_until {
            None => {
                self.failures = self.failures.saturating_add(1);
                self.failures >= most.max(1)
            }
            Some(_) => self.probe == Some(attempt),
        };
        if !opens {
            return None;
        }
        self.times_opened = self.times_opened.saturating_add(1);
        self.probe = None;
        let until = now + retry_delay(retry, self.times_opened.saturating_add(1), jitter(attempt.0, 0));
        self.open_until = Some(until);
        Some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    #[test]
    fn opens_probes_and_closes() {
        let mut breaker = Breaker::default();
        assert_eq!(breaker.record_failure(AttemptId(1), 3, Retry::Now, at(0)), None);
        assert_eq!(breaker.record_failure(AttemptId(2), 3, Retry::Now, at(0)), None);
        let until = breaker.record_failure(AttemptId(3), 3, Retry::Now, at(0)).unwrap();
        assert_eq!(breaker.record_failure(AttemptId(4), 3, Retry::Now, at(0)), None, "it had started before");
        assert_eq!(breaker.allows(at(0)), Err(until));
        assert_eq!(breaker.allows(until), Ok(()));
        breaker.record_start(AttemptId(5));
        assert!(breaker.allows(until).is_err(), "one probe at a time");
        let longer = breaker.record_failure(AttemptId(5), 3, Retry::Now, until).unwrap();
        assert!(longer.since(until) > until.since(at(0)));
        breaker.record_start(AttemptId(6));
        breaker.forget(AttemptId(6));
        assert_eq!(breaker.allows(longer), Ok(()), "a probe that told nothing is repeated");
        breaker.record_success();
        assert_eq!(breaker.allows(at(0)), Ok(()));
    }
}
