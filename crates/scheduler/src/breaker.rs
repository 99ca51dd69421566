//! Keeps off what fails as a whole (a source that cannot be reached, a full target), but for single probes.
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
    /// In a row, while closed.
    failures: u32,
    /// How often it has opened since the last success.
    times_opened: u32,
    open_until: Option<Timestamp>,
    probe: Option<AttemptId>,
}

impl Breaker {
    /// Whether something may start now; if not, from when on a probe may.
    pub(crate) fn allows(&self, now: Timestamp) -> Result<(), Timestamp> {
        match self.open_until {
            None => Ok(()),
            Some(until) if now < until || self.probe.is_some() => Err(until),
            Some(_) => Ok(()),
        }
    }

    /// Something started; while open it is the probe.
    pub(crate) fn record_start(&mut self, attempt: AttemptId) {
        if self.open_until.is_some() {
            self.probe = Some(attempt);
        }
    }

    /// Something ended without telling anything. True if it was the probe: another may be sent now.
    pub(crate) fn forget(&mut self, attempt: AttemptId) -> bool {
        let probe = self.probe == Some(attempt);
        if probe {
            self.probe = None;
        }
        probe
    }

    /// True if it was open: those that it kept off may go on.
    pub(crate) fn record_success(&mut self) -> bool {
        let open = self.open_until.is_some();
        *self = Breaker::default();
        open
    }

    /// Counts a failure; returns until when it stays open if this opened it. What had started before it
    /// opened does not open it further.
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
