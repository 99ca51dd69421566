//! How fast files are read, all together: each piece has its time in one row of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// What was not used before is had later, of this much time.
const BURST: Duration = Duration::from_millis(250);

pub(crate) struct Pace(Mutex<State>);

struct State {
    bytes_per_s: Option<u64>,
    /// When the next piece has its time.
    next: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Pace {
        Pace(Mutex::new(State { bytes_per_s, next: None }))
    }

    pub(crate) fn set(&self, bytes_per_s: Option<u64>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.bytes_per_s != bytes_per_s {
            *state = State { bytes_per_s, next: None };
        }
    }

    /// Ends when a piece of that size has its time.
    pub(crate) async fn take(&self, bytes: usize) {
        let turn = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.turn(bytes, Instant::now())
        };
        if let Some(turn) = turn {
            sleep_until(turn).await;
        }
    }
}

impl State {
    fn turn(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        let rate = self.bytes_per_s?.max(1);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let begins = self.next.map_or(earliest, |next| next.max(earliest));
        let ends = begins + Duration::from_secs_f64(bytes as f64 / rate as f64);
        self.next = Some(ends);
        (ends > now).then_some(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_at_the_rate_and_no_faster_whoever_takes_them() {
        let mut state = State { bytes_per_s: Some(1_000), next: None };
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // A quarter of a second is had at once.
        assert_eq!(state.turn(250, start), None);
        assert_eq!(state.turn(100, start), Some(at(100)));
        assert_eq!(state.turn(1_000, start), Some(at(1_100)));
        // Who did not come for long has no more than that.
        assert_eq!(state.turn(1_250, at(60_000)), Some(at(61_000)));
        state.bytes_per_s = None;
        assert_eq!(state.turn(1_000_000, at(60_000)), None);
    }
}
