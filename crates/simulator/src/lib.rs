//! Worlds in which the real scheduler decides: sites, links, failures and work from a scenario; files that flow; and
//! what came of it. Pure: time is counted, numbers follow from the seed, and the same scenario, strategy and seed give
//! the same report, byte for byte.
//!
//! It calls `handle` and `poll_decision` of [`longhaul_scheduler::Scheduler`] as the service does, and chooses no source,
//! no order and no concurrency itself.
//!
//! Start with [`Scenario::parse`], [`Plan::new`] and [`simulate`]. A scenario is read (`scenario`), made a plan (`plan`,
//! `layout`, `workload`, `failures`), and run (`world`; `service`, `agents`, `weather` are its parts; `flows` and
//! `fluid` move the bytes); `report` says what came of it, `bound` what nobody could beat (`proof` writes it down). What a
//! real service recorded is told to the scheduler once more by `replay`.

mod agents;
pub mod bars;
mod booked;
pub mod bound;
mod circuits;
mod due;
mod failures;
mod flows;
pub mod fluid;
pub mod generate;
mod holdings;
mod layout;
pub mod learned;
mod measure;
pub mod plan;
pub mod plots;
pub mod quantity;
mod proof;
pub mod random;
pub mod replay;
pub mod report;
pub mod scenario;
mod service;
mod weather;
mod workload;
mod world;

use longhaul_scheduler::{Backoff, Rules, Settings, Strategy, UnknownStrategy};

pub use plan::Plan;
pub use report::{Report, Summary};
pub use scenario::{Level, Mistake, Rates, Scenario};

/// A way to schedule: its name in reports, and what the scheduler is told.
#[derive(Clone, Debug)]
pub struct Way {
    pub name: String,
    pub settings: Settings,
}

impl Way {
    /// A strategy by our rules of order and concurrency; `NAME/fts3`: by FTS3's; `NAME/legacy`: with the pauses of
    /// PhEDEx after failures; `NAME/ask-back`: leases are asked back from a link that became slow.
    pub fn named(text: &str) -> Result<Self, String> {
        let mut parts = text.split('/');
        let strategy: Strategy =
            parts.next().unwrap_or_default().parse().map_err(|why: UnknownStrategy| why.to_string())?;
        let mut settings = Settings { strategy, ..Settings::default() };
        for part in parts {
            match part {
                "fts3" => settings.rules = Rules::Fts3,
                "legacy" => settings.backoff = Backoff::Legacy,
                "ask-back" => settings.second_thoughts = true,
                _ => {
                    return Err(format!(
                        "`{text}`: after a strategy come /fts3 (its rules of order and concurrency), /legacy (the pauses of PhEDEx) and /ask-back (leases are asked back from a link that became slow)"
                    ));
                }
            }
        }
        Ok(Way { name: text.to_owned(), settings })
    }

    /// Ours, the nine of FTS3, and these with its own rules.
    pub fn all() -> Vec<Self> {
        let names = Strategy::ALL.iter().map(|strategy| strategy.name().to_owned());
        let nine = Strategy::ALL.iter().filter(|strategy| **strategy != Strategy::Best);
        let theirs = nine.map(|strategy| format!("{}/fts3", strategy.name()));
        names.chain(theirs).filter_map(|name| Way::named(&name).ok()).collect()
    }
}

/// Runs a world to its end. `rates`: in place of the scenario's.
pub fn simulate(plan: &Plan, way: &Way, rates: Option<Rates>) -> Report {
    let mut world = world::World::new(plan, way.settings.clone(), rates);
    world.run();
    let unfinished = world.files_left;
    let waits = if unfinished > 0 { world.waits() } else { Vec::new() };
    let certificate = world.certificate();
    let learned = world.take_learned();
    let circuits = (plan.circuits.level != scenario::Level::None).then(|| world.circuits.summary.clone());
    report::report(
        plan,
        &way.name,
        world.measure,
        &world.flows.through,
        unfinished,
        waits,
        certificate,
        world.flows.calculations,
        world.flows.fullest,
        world.flows.curve,
        learned,
        circuits,
    )
}
