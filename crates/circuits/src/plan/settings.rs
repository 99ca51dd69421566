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
    pub floor: u8,
    /// Work counts as one priority higher for each such time that it has waited, so that it does not wait
    /// forever.
    pub age_step: Duration,
    /// A circuit must save so much time,
    pub gain: Duration,
    /// and such a part of the time that the work takes without it,
    pub gain_share: f64,
    /// in so many plans in a row.
    pub checks: u32,
    /// A circuit is given back if what waits takes less without it, in as many plans in a row,
    pub leave: Duration,
    /// and not before it is so old.
    pub hold: Duration,
    /// Another link takes the room of a circuit if its gain from it is so many times as large.
    pub swap: f64,
    /// Another rate must be larger or smaller by this factor to be worth a change.
    pub resize: f64,
    /// The next circuit is asked for so long before one expires, if there is still enough to do.
    pub renew_before: Duration,
    /// A link rests so long after a request that failed, twice as long after each further one,
    pub rest: Duration,
    /// at the most.
    pub rest_max: Duration,
    /// And so long after a circuit that was given back before its time.
    pub rest_after: Duration,
    /// What a link carried without a circuit is remembered for so long after one.
    pub plain_memory: Duration,
    /// Gbit/s times hours that a community may book within `budget_window`; none: as much as there is.
    pub budget: Option<f64>,
    pub budgets: BTreeMap<CommunityName, f64>,
    pub budget_window: Duration,
    /// A provider whose last circuits gained less than nothing, all together, is not asked for so long.
    pub off: Duration,
    /// After so many circuits at the earliest.
    pub off_after: usize,
}

impl Default for PlanSettings {
    fn default() -> Self {
        PlanSettings {
            floor: 5,
            age_step: 6 * HOUR,
            gain: 30 * MINUTE,
            gain_share: 0.2,
            checks: 2,
            leave: 5 * MINUTE,
            hold: 10 * MINUTE,
            swap: 2.0,
            resize: 2.0,
            renew_before: 15 * MINUTE,
            rest: HOUR,
            rest_max: 24 * HOUR,
            rest_after: HOUR,
            plain_memory: HOUR,
            budget: None,
            budgets: BTreeMap::new(),
            budget_window: 24 * HOUR,
            off: 24 * HOUR,
            off_after: 3,
        }
    }
}
