//! Timers and thresholds of a link's circuits. Defaults are those of the ANSE paper where it has any.

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How often the work that waits is compared with what makes a circuit worth its while.
    pub check_interval: Duration,
    /// How often a give-back that was not confirmed is tried again, and the provider's list is wanted.
    pub reconciliation_interval: Duration,
    /// A circuit is asked for if the work that waits takes longer than this at the link's rate.
    pub work_threshold: Duration,
    /// So many checks in a row.
    pub checks_in_a_row: u32,
    /// A circuit is given back before its time when little is left to do; none keeps it until it expires.
    pub release: Option<ReleaseRule>,
    /// The rate of a way is what it carried over so long a time of transfers.
    pub rate_window: Duration,
    /// Another circuit is made before the one that there is expires; none: only after that.
    pub renewal: Option<RenewalRule>,
    /// A circuit that carries less than the plain way is left; none: it is kept.
    pub slowness: Option<SlownessRule>,
    /// Mbit/s asked for first; and the parts of it that are tried, one after the other, when there is not so
    /// much.
    pub mbit: u64,
    pub rate_steps: Vec<f64>,
    /// How long a circuit is asked for; none leaves it to the provider.
    pub lifetime: Option<Duration>,
    /// From the first request of a wish to its grant.
    pub request_timeout: Duration,
    /// Rest after a request that failed.
    pub request_cooldown: Duration,
    /// Rest after transfers that failed on a circuit.
    pub transfer_cooldown: Duration,
    /// How long the ends of a new circuit may take to answer.
    pub probe_timeout: Duration,
    /// Transfers under way may end on the circuit for so long after its use stopped.
    pub drain_timeout: Duration,
    /// Use stops so long before the circuit expires.
    pub expiry_margin: Duration,
    /// A circuit is left if so many transfers fail on it within the time, and more than the share.
    pub failures_min: u32,
    pub failure_share_min: f64,
    pub failure_window: Duration,
}

/// When little work is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseRule {
    /// Less than this at the link's rate,
    pub work_below: Duration,
    /// for so long,
    pub during: Duration,
    /// and not before the circuit is so old.
    pub age_min: Duration,
}

/// When another circuit is to follow one that expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalRule {
    /// So long before, and not in the first half of its life,
    pub before: Duration,
    /// if what waits takes no less than this at the circuit's rate.
    pub work_min: Duration,
}

/// When a circuit is no better than none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlownessRule {
    /// It carries less than this part of what the plain way carried just before,
    pub rate_share_min: f64,
    /// over so long a time of transfers.
    pub during: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            check_interval: MINUTE,
            reconciliation_interval: MINUTE,
            work_threshold: 5 * HOUR,
            checks_in_a_row: 1,
            release: None,
            renewal: Some(RenewalRule { before: 15 * MINUTE, work_min: HOUR }),
            rate_window: 3 * HOUR,
            slowness: Some(SlownessRule { rate_share_min: 0.8, during: 5 * MINUTE }),
            mbit: 1000,
            rate_steps: vec![1.0, 0.5, 0.25],
            lifetime: None,
            request_timeout: 10 * MINUTE,
            request_cooldown: HOUR,
            transfer_cooldown: HOUR,
            probe_timeout: MINUTE,
            drain_timeout: 5 * MINUTE,
            expiry_margin: MINUTE,
            failures_min: 3,
            failure_share_min: 0.5,
            failure_window: 10 * MINUTE,
        }
    }
}

impl Settings {
    /// All that is asked for, one after the other, in Mbit/s.
    pub fn rates(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.rate_steps.len()).filter_map(|step| self.step(self.mbit, step))
    }

    /// What of `mbit` is asked for at the given step, if there is such a step. Never less than 1 Mbit/s.
    pub(crate) fn step(&self, mbit: u64, step: usize) -> Option<u64> {
        let part = *self.rate_steps.get(step)?;
        let mbit = if part.is_finite() { (mbit as f64 * part.clamp(0.0, 1.0)) as u64 } else { 0 };
        Some(mbit.max(1))
    }
}
