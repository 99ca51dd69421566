//! Error of worlds whose rates are recomputed only once a simulated second: the first hour against the same
//! hour with exact rates.

use crate::Policy;
use crate::plan::Plan;
use crate::scenario::Rates;
use crate::world::World;

/// Length of the comparison, from the first request on.
const COMPARED_S: f64 = 3_600.0;
/// With a larger relative error a scenario has to use exact rates.
pub const RATE_ERROR_MAX: f64 = 0.01;

/// Bytes that flowed in that hour, those of files that were not yet complete too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateComparison {
    pub exact: f64,
    pub second: f64,
}

impl RateComparison {
    /// By what part they differ.
    pub fn error(&self) -> f64 {
        (self.second - self.exact).abs() / self.exact.max(1.0)
    }

    pub fn is_within_limit(&self) -> bool {
        self.error() <= RATE_ERROR_MAX
    }
}

/// Runs the hour twice.
pub fn compare_rates(plan: &Plan, policy: &Policy) -> RateComparison {
    let mut hour = plan.clone();
    let first = plan.work.requests.first().map_or(0.0, |request| request.at);
    hour.until = plan.until.min(first + COMPARED_S);
    let flowed = |rates| {
        let mut world = World::new(&hour, policy, Some(rates));
        world.run();
        world.flows.curve.bytes.iter().sum()
    };
    RateComparison { exact: flowed(Rates::Exact), second: flowed(Rates::Second) }
}
