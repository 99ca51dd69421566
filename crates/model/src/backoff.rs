//! Truncated exponential backoff with jitter ("equal jitter" in Marc Brooker, *Exponential Backoff And
//! Jitter*, AWS Architecture Blog, 2015). Pure: the caller passes the random number, so that simulations are
//! reproducible.

use std::time::Duration;

/// A schedule of delays: `first`, doubled with each further failure up to `max`, then jittered.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Delay after the first failure.
    pub first: Duration,
    /// Upper bound of the delay before jitter.
    pub max: Duration,
    /// How the delay is randomised.
    pub jitter: Jitter,
}

/// Randomisation of delays, so that many clients that failed at the same moment do not retry at the same
/// moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// No randomisation, for a client that retries alone.
    None,
    /// 50 to 100 % of the step: half of it is fixed, half random.
    Equal,
    /// 75 to 125 % of the step, which stays the mean.
    Quarter,
}

/// Bound of the doublings: more would overflow, and no schedule is that long.
const DOUBLINGS_MAX: u32 = 20;

impl Backoff {
    /// The delay after this many consecutive failures, counted from 1. `random` is uniform in 0..1.
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
        let step = self.first.saturating_mul(1 << doublings).min(self.max);
        let random = random.clamp(0.0, 1.0);
        let share = match self.jitter {
            Jitter::None => return step,
            Jitter::Equal => 0.5 + 0.5 * random,
            Jitter::Quarter => 0.75 + 0.5 * random,
        };
        Duration::from_secs_f64(step.as_secs_f64() * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn with(jitter: Jitter) -> Backoff {
        Backoff { first: Duration::from_millis(100), max: Duration::from_secs(5), jitter }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let delays = [0, 1, 2, 3, 6, 7, u32::MAX].map(|failures| with(Jitter::None).delay(failures, 0.9));
        assert_eq!(delays.map(|delay| delay.as_millis()), [100, 100, 200, 400, 3_200, 5_000, 5_000]);
    }

    #[test]
    fn jitter_spreads_within_its_bounds() {
        for (jitter, low, high) in [(Jitter::Equal, 50, 100), (Jitter::Quarter, 75, 125)] {
            assert_eq!(with(jitter).delay(1, 0.0).as_millis(), low);
            assert_eq!(with(jitter).delay(1, 1.0).as_millis(), high);
            assert_ne!(with(jitter).delay(1, 0.2), with(jitter).delay(1, 0.7));
        }
    }
}
