//! Settings of the planner.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::CommunityName;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The highest priority.
pub(crate) const PRIORITY_MAX: u8 = 9;

/// Thresholds, back-offs and budgets of the planner.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSettings {
    /// Work below this priority gets no circuit.
    pub priority_floor: u8,
    /// Aging: priority rises by one for each such time of waiting, so that no work starves.
    pub aging_step: Duration,
    /// Time that a circuit must save,
    pub gain_min: Duration,
    /// as well as this share of the time without it,
    pub gain_share_min: f64,
    /// in so many consecutive plans.
    pub plans_in_a_row: u32,
    /// A circuit is released if the pending work takes less than this without it, in as many consecutive
    /// plans,
    pub release_below: Duration,
    /// and if it is at least this old.
    pub age_min: Duration,
    /// Preemption requires this multiple of the victim's gain.
    pub preemption_factor: f64,
    /// Another rate must differ by this factor to be worth a change.
    pub resize_factor: f64,
    /// A renewal is requested this long before expiry, if enough work is left.
    pub renew_before: Duration,
    /// Initial back-off after a failed request, doubled with each further one,
    pub cooldown: Duration,
    /// up to this.
    pub cooldown_max: Duration,
    /// Back-off after a circuit that was released before its end.
    pub cooldown_after_release: Duration,
    /// How long the best-effort rate from before a circuit counts after it.
    pub best_effort_memory: Duration,
    /// Gbit/s × hours that a community may book within `budget_window`; none means no limit.
    pub budget: Option<f64>,
    pub budgets: BTreeMap<CommunityName, f64>,
    pub budget_window: Duration,
    /// Suspension of a provider whose last circuits gained less than nothing in total.
    pub provider_suspension: Duration,
    /// Circuits before a provider can be suspended.
    pub provider_suspension_circuits: usize,
}

impl Default for PlanSettings {
    fn default() -> Self {
        PlanSettings {
            priority_floor: 5,
            aging_step: 6 * HOUR,
            gain_min: 30 * MINUTE,
            gain_share_min: 0.2,
            plans_in_a_row: 2,
            release_below: 5 * MINUTE,
            age_min: 10 * MINUTE,
            preemption_factor: 2.0,
            resize_factor: 2.0,
            renew_before: 15 * MINUTE,
            cooldown: HOUR,
            cooldown_max: 24 * HOUR,
            cooldown_after_release: HOUR,
            best_effort_memory: HOUR,
            budget: None,
            budgets: BTreeMap::new(),
            budget_window: 24 * HOUR,
            provider_suspension: 24 * HOUR,
            provider_suspension_circuits: 3,
        }
    }
}
