//! What a world loses where rates are recomputed once a simulated second only: its first hour, and the same
//! hour with exact ones.

use crate::Way;
use crate::plan::Plan;
use crate::scenario::Rates;
use crate::world::World;

/// From the first request on.
const HOUR_S: f64 = 3_600.0;
/// More than this part, and a scenario has to take exact rates.
pub const ERROR_MAX: f64 = 0.01;

/// Bytes that flowed in that hour, those of files that were not yet complete too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hour {
    pub exact: f64,
    pub second: f64,
}

impl Hour {
    /// By what part they differ.
    pub fn error(&self) -> f64 {
        (self.second - self.exact).abs() / self.exact.max(1.0)
    }

    pub fn is_near(&self) -> bool {
        self.error() <= ERROR_MAX
    }
}

/// Runs the hour twice.
pub fn compare_rates(plan: &Plan, way: &Way) -> Hour {
    let mut hour = plan.clone();
    let first = plan.work.requests.first().map_or(0.0, |request| request.at);
    hour.until = plan.until.min(first + HOUR_S);
    let flowed = |rates| {
        let mut world = World::new(&hour, way, Some(rates));
        world.run();
        world.flows.curve.bytes.iter().sum()
    };
    Hour { exact: flowed(Rates::Exact), second: flowed(Rates::Second) }
}
