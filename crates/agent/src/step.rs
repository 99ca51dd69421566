//! Loops without a thread (sans-IO, as in quinn-proto): state machines that are stepped with the time.
//!
//! A loop never sleeps, and its time is an argument; stamps of the service's time come from a clock that it
//! was given. A driver (see `driver`) steps it when an input has come or its time has come, carries out what
//! it sends, and hands the answer back. A test drives all loops of several agents in one thread, with a clock
//! of its own.

use std::time::Duration;

/// Time since the agent's start, on a clock that never jumps.
pub(crate) type AgentTime = Duration;

/// What a step came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step<T> {
    /// To be carried out now; the answer goes back into the loop.
    pub send: Option<T>,
    /// When to step again if no input comes before; none: at an input only.
    pub wake_at: Option<AgentTime>,
}

impl<T> Step<T> {
    pub(crate) fn send(output: T) -> Self {
        Step { send: Some(output), wake_at: None }
    }

    pub(crate) fn wake_at(time: AgentTime) -> Self {
        Step { send: None, wake_at: Some(time) }
    }

    /// Nothing to do before an input comes.
    pub(crate) fn wait() -> Self {
        Step { send: None, wake_at: None }
    }
}

/// A loop that only does something from time to time and sends nothing.
pub(crate) trait PeriodicLoop: Send + 'static {
    /// Does what is due by `now`; returns when to be called again, none: never.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime>;
}

/// Counts periods. Late ticks are not made up for: the next one is a whole period after the last.
#[derive(Debug)]
pub(crate) struct Ticker {
    period: Duration,
    first_after: Duration,
    /// The last tick (or the first look), and when the next is due.
    last_and_due: Option<(AgentTime, AgentTime)>,
}

impl Ticker {
    /// Ticks for the first time one period after it was first asked.
    pub(crate) fn new(period: Duration) -> Ticker {
        Ticker { period, first_after: period, last_and_due: None }
    }

    /// Ticks for the first time at once.
    pub(crate) fn immediate(period: Duration) -> Ticker {
        Ticker { period, first_after: Duration::ZERO, last_and_due: None }
    }

    /// If a tick is due: the time since the one before.
    pub(crate) fn tick(&mut self, now: AgentTime) -> Option<Duration> {
        let (last, due) = *self.last_and_due.get_or_insert((now, now + self.first_after));
        if now < due {
            return None;
        }
        self.last_and_due = Some((now, now + self.period));
        Some(now.saturating_sub(last))
    }

    /// When the next tick is due; none before it was first asked.
    pub(crate) fn due(&self) -> Option<AgentTime> {
        self.last_and_due.map(|(_, due)| due)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Steps a loop from `from` whenever it wants to be, as long as that is before `until`; when it was.
    pub(crate) fn drive(step: &mut impl PeriodicLoop, from: AgentTime, until: AgentTime) -> Vec<AgentTime> {
        let mut steps = vec![from];
        let mut due = step.step(from);
        while let Some(now) = due.filter(|due| *due < until) {
            steps.push(now);
            due = step.step(now);
            assert!(due.is_none_or(|due| due > now), "a loop that does not wait would never end");
        }
        steps
    }

    #[test]
    fn a_ticker_keeps_its_period_and_skips_missed_ticks() {
        let s = Duration::from_secs;
        let mut ticker = Ticker::new(s(10));
        assert_eq!((ticker.due(), ticker.tick(s(3)), ticker.due()), (None, None, Some(s(13))));
        assert_eq!((ticker.tick(s(12)), ticker.tick(s(13)), ticker.tick(s(13))), (None, Some(s(10)), None));
        assert_eq!((ticker.tick(s(50)), ticker.due()), (Some(s(37)), Some(s(60))), "three ticks are lost");
        assert_eq!(Ticker::immediate(s(10)).tick(s(3)), Some(Duration::ZERO));
    }
}
