//! Worlds in which the real scheduler decides: sites, links, failures and work from a scenario; files that flow; and
//! what came of it. Pure: time is counted, numbers follow from the seed, and the same scenario, strategy and seed give
//! the same report, byte for byte.
//!
//! It calls `handle` and `poll_decision` of [`longhaul_scheduler::Scheduler`] as the service does, and chooses no source,
//! no order and no concurrency itself.
//!
//! Start with [`Scenario::parse`], [`Plan::new`] and [`simulate`]. A scenario is read (`scenario`), made a plan (`plan`,
//! `layout`, `workload`, `failures`), and run (`world`; `service`, `agents`, `weather` are its parts; `flows` and
//! `fluid` move the bytes); `report` says what came of it, `bound` what nobody could beat.

mod agents;
pub mod bound;
mod due;
mod failures;
mod flows;
pub mod generate;
pub mod fluid;
mod holdings;
mod layout;
mod measure;
pub mod plan;
pub mod plots;
pub mod quantity;
pub mod random;
pub mod report;
pub mod scenario;
mod service;
mod weather;
mod workload;
mod world;

use longhaul_scheduler::{Settings, Strategy};

pub use plan::Plan;
pub use report::{Report, Summary};
pub use scenario::{Mistake, Rates, Scenario};

/// A way to schedule: its name in reports, and what the scheduler is told.
#[derive(Clone, Debug)]
pub struct Way {
    pub name: String,
    pub settings: Settings,
}

impl Way {
    pub fn of(strategy: Strategy) -> Self {
        Way { name: strategy.name().to_owned(), settings: Settings { strategy, ..Settings::default() } }
    }
}

/// Runs a world to its end. `rates`: in place of the scenario's.
pub fn simulate(plan: &Plan, way: &Way, rates: Option<Rates>) -> Report {
    let mut world = world::World::new(plan, way.settings.clone(), rates);
    world.run();
    let unfinished = world.files_left;
    let waits = if unfinished > 0 { world.waits() } else { Vec::new() };
    let certificate = bound::certify(plan, &world.measure.history);
    report::report(
        plan,
        &way.name,
        world.measure,
        &world.flows.through,
        unfinished,
        waits,
        certificate,
        world.flows.calculations,
    )
}
