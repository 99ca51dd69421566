//! What the planner is told to keep to.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::CommunityName;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The highest priority there is.
pub(crate) const PRIORITY_MAX: u8 = 9;

#[derive(Clone, Debug, PartialEq)]
pub struct PlanSettings {
    /// Work below this priority asks for no circuit.
    pub priority_floor: u8,
    /// Work counts as one priority higher for each such time that it has waited, so that it does not wait
    /// forever.
    pub aging_step: Duration,
    /// A circuit must save so much time,
    pub gain_min: Duration,
    /// and such a part of the time that the work takes without it,
    pub gain_share_min: f64,
    /// in so many plans in a row.
    pub plans_in_a_row: u32,
    /// A circuit is given back if what waits takes less without it, in as many plans in a row,
    pub release_below: Duration,
    /// and not before it is so old.
    pub age_min: Duration,
    /// Another link takes the room of a circuit if its gain from it is so many times as large.
    pub preemption_factor: f64,
    /// Another rate must be larger or smaller by this factor to be worth a change.
    pub resize_factor: f64,
    /// The next circuit is asked for so long before one expires, if there is still enough to do.
    pub renew_before: Duration,
    /// A link rests so long after a request that failed, twice as long after each further one,
    pub cooldown: Duration,
    /// at the most.
    pub cooldown_max: Duration,
    /// And so long after a circuit that was given back before its time.
    pub cooldown_after_release: Duration,
    /// What a link carried without a circuit is remembered for so long after one.
    pub best_effort_memory: Duration,
    /// Gbit/s times hours that a community may book within `budget_window`; none: as much as there is.
    pub budget: Option<f64>,
    pub budgets: BTreeMap<CommunityName, f64>,
    pub budget_window: Duration,
    /// A provider whose last circuits gained less than nothing, all together, is not asked for so long.
    pub provider_suspension: Duration,
    /// After so many circuits at the earliest.
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
