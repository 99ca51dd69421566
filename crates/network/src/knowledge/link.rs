//! What is kept of one link, and of each side of a storage.

use longhaul_model::{Blame, Timestamp};
use serde::{Deserialize, Serialize};

use crate::belief::{Belief, Slow};
use crate::meter::{Meter, Sample};

/// Failures count half after this; attempts beyond the most recent so many do not count.
const FAILURE_HALF_LIFE_S: f64 = 600.0;
pub(super) const FAILURE_TRIES_MAX: f64 = 100.0;
/// Trust in a link before its first attempts, in attempts that succeeded.
const FAILURE_PRIOR_TRIES: f64 = 3.0;

#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    pub belief: Belief,
    pub slow: Slow,
    pub meter: Meter,
    pub trouble: Trouble,
    pub rate_last: f64,
}

impl LinkState {
    pub(super) fn believe(&mut self, bytes_per_s: f64, weight: f64, now: Timestamp) {
        self.belief.observe(bytes_per_s, weight, now);
        self.slow.observe(bytes_per_s, weight, now);
    }
}

/// One side of a storage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndState {
    /// What all its links give together.
    pub total: Belief,
    pub meter: Meter,
    pub total_last: f64,
    pub pace: Pace,
}

/// What a target took lately; follows a rise at once and a fall slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    pub bytes_per_s: f64,
    pub files_per_s: f64,
}

impl Pace {
    pub(super) fn follow(&mut self, sample: Sample) {
        let next = |old: f64, new: f64| if new > old { new } else { 0.7 * old + 0.3 * new };
        self.bytes_per_s = next(self.bytes_per_s, sample.bytes_per_s);
        self.files_per_s = next(self.files_per_s, sample.files_per_s);
    }
}

/// Attempts of late, and how many failed by whose fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trouble {
    tries: f64,
    failures: [f32; Blame::ALL.len()],
    last: Timestamp,
}

impl Trouble {
    pub(super) fn count(&mut self, failed: Option<Blame>, now: Timestamp) {
        let kept = self.kept(now).min((FAILURE_TRIES_MAX - 1.0) / self.tries.max(1.0));
        self.tries = self.tries * kept + 1.0;
        self.failures = self.failures.map(|failures| (f64::from(failures) * kept) as f32);
        if let Some(slot) = failed.and_then(|blame| self.failures.get_mut(blame as usize)) {
            *slot += 1.0;
        }
        self.last = self.last.max(now);
    }

    fn kept(&self, now: Timestamp) -> f64 {
        (-now.since(self.last).as_secs_f64() / FAILURE_HALF_LIFE_S).exp2()
    }

    pub(super) fn share(&self, now: Timestamp) -> f64 {
        self.shares(now).iter().sum::<f64>().clamp(0.0, 1.0)
    }

    pub(super) fn shares(&self, now: Timestamp) -> [f64; Blame::ALL.len()] {
        let kept = self.kept(now);
        self.failures.map(|failures| {
            (f64::from(failures) * kept / (self.tries * kept + FAILURE_PRIOR_TRIES)).clamp(0.0, 1.0)
        })
    }

    /// Numbers read from outside are made sound.
    pub(super) fn sound(mut self) -> Self {
        self.tries = if self.tries.is_finite() { self.tries.clamp(0.0, FAILURE_TRIES_MAX) } else { 0.0 };
        let most = (self.tries / self.failures.len() as f64) as f32;
        let sum: f32 = self.failures.iter().sum();
        let possible = self.failures.iter().all(|failures| failures.is_finite() && *failures >= 0.0);
        if !possible {
            self.failures = [0.0; Blame::ALL.len()];
        } else if f64::from(sum) > self.tries {
            self.failures = self.failures.map(|failures| failures.min(most));
        }
        self
    }
}
