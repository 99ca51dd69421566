//! Timers and thresholds of a link's circuits. Defaults are those of the ANSE paper where it has any.

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Settings of one link's circuits.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Interval of the workload check.
    pub check_interval: Duration,
    /// Interval of repeated teardowns and of reconciliation with the provider's list.
    pub reconciliation_interval: Duration,
    /// A circuit is requested if the pending work takes longer than this.
    pub work_threshold: Duration,
    /// Consecutive checks that must pass.
    pub checks_in_a_row: u32,
    /// When a circuit is released before its end; none keeps it until it expires.
    pub release: Option<ReleaseRule>,
    /// Window of the rate measurement, in busy time.
    pub rate_window: Duration,
    /// When a replacement is requested before expiry; none: only after it.
    pub renewal: Option<RenewalRule>,
    /// When a circuit slower than the best-effort path is dropped; none keeps it.
    pub slowness: Option<SlownessRule>,
    /// Mbit/s requested first.
    pub mbit: u64,
    /// Shares of it that are tried in turn when less is available.
    pub rate_steps: Vec<f64>,
    /// Lifetime requested; none leaves it to the provider.
    pub lifetime: Option<Duration>,
    /// Timeout from the first request to the grant.
    pub request_timeout: Duration,
    /// Cool-down after a failed request.
    pub request_cooldown: Duration,
    /// Cool-down after transfers failed on a circuit.
    pub transfer_cooldown: Duration,
    /// Timeout of the probes of a new circuit's endpoints.
    pub probe_timeout: Duration,
    /// Time for transfers under way to finish on the circuit after its use stopped.
    pub drain_timeout: Duration,
    /// Use stops this long before the circuit expires.
    pub expiry_margin: Duration,
    /// A circuit is dropped if so many transfers fail on it,
    pub failures_min: u32,
    /// and more than this share,
    pub failure_share_min: f64,
    /// within this time.
    pub failure_window: Duration,
}

/// When little work is left:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseRule {
    /// it takes less than this at the link's rate,
    pub work_below: Duration,
    /// for this long,
    pub during: Duration,
    /// and the circuit is at least this old.
    pub age_min: Duration,
}

/// When an expiring circuit is renewed:
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalRule {
    /// this long before expiry, but not in the first half of its life,
    pub before: Duration,
    /// if the pending work takes at least this at the circuit's rate.
    pub work_min: Duration,
}

/// When a circuit is no better than none:
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlownessRule {
    /// it carries less than this share of the best-effort rate just before,
    pub rate_share_min: f64,
    /// over this long a time of transfers.
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
    /// The rates requested in turn, in Mbit/s.
    pub fn rates(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.rate_steps.len()).filter_map(|step| self.step(self.mbit, step))
    }

    /// Rate at the given step of `mbit`, if there is such a step. Never less than 1 Mbit/s.
    pub(crate) fn step(&self, mbit: u64, step: usize) -> Option<u64> {
        let part = *self.rate_steps.get(step)?;
        let mbit = if part.is_finite() { (mbit as f64 * part.clamp(0.0, 1.0)) as u64 } else { 0 };
        Some(mbit.max(1))
    }
}
