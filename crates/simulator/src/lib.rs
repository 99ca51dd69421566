//! Worlds in which the real scheduler decides: sites, links, failures and work from a scenario; files that
//! flow; and what came of it. Pure: time is counted, numbers follow from the seed, and the same scenario,
//! strategy and seed give the same report, byte for byte.
//!
//! It calls `handle` and `poll_decision` of [`longhaul_scheduler::Scheduler`] as the service does, and
//! chooses no source, no order and no concurrency itself.
//!
//! Start with [`Scenario::parse`], [`Plan::new`] and [`simulate`]. A scenario is read (`scenario`), made a
//! plan (`plan`, `layout`, `workload`, `failures`), and run (`world`; `service`, `agents`, `events` are its
//! parts; `flows` and `fluid` move the bytes); `report` says what came of it, `bound` what nobody could beat
//! (`proof` writes it down). What a real service recorded is told to the scheduler once more by `replay`.

mod agents;
pub mod bound;
mod catalog;
mod circuit_provider;
mod circuits;
pub mod criteria;
mod events;
mod failures;
mod flows;
pub mod fluid;
pub mod generate;
pub mod knowledge_report;
mod layout;
mod metrics;
pub mod plan;
pub mod plots;
mod probes;
mod proof;
pub mod quantity;
pub mod random;
pub mod rate_error;
pub mod replay;
pub mod report;
pub mod scenario;
mod service;
mod tape_bound;
mod timer_heap;
mod tree;
mod workload;
mod world;

use longhaul_model::Timestamp;
use longhaul_scheduler::{Backoff, Rules, Scheduler, Settings, Strategy, UnknownStrategy};

use crate::quantity::Span;
pub use plan::Plan;
pub use report::{Report, Summary};
pub use scenario::{CircuitLevel, Rates, Scenario, ScenarioError};

/// Largest fixed number of files at once on a link that a policy may ask for.
const CONCURRENCY_FIXED_MAX: u32 = 256;

/// A scheduling policy: its name in reports, and the settings of the scheduler.
#[derive(Clone, Debug)]
pub struct Policy {
    pub name: String,
    pub settings: Settings,
    /// Fixed number of files at once on each link, in place of the tuned one.
    pub concurrency: Option<u32>,
}

impl Policy {
    /// A strategy by our rules of order and concurrency; `NAME/fts3`: by FTS3's; `NAME/legacy`: with the
    /// backoff of PhEDEx after failures; `NAME/ask-back`: leases are recalled from a link that became slow;
    /// `NAME/at-once-N`: with a fixed number of files at once on each link.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split('/');
        let strategy: Strategy =
            parts.next().unwrap_or_default().parse().map_err(|why: UnknownStrategy| why.to_string())?;
        let mut settings = Settings { strategy, ..Settings::default() };
        let mut at_once = None;
        for part in parts {
            let number = part.strip_prefix("at-once-").and_then(|number| number.parse().ok());
            match part {
                "fts3" => settings.rules = Rules::Fts3,
                "legacy" => settings.backoff = Backoff::Legacy,
                "ask-back" => settings.lease_recall = true,
                _ if number.is_some_and(|number| (1..=CONCURRENCY_FIXED_MAX).contains(&number)) => {
                    at_once = number
                }
                _ => {
                    return Err(format!(
                        "`{text}`: after a strategy come /fts3 (its rules of order and concurrency), /legacy \
                            (the pauses of PhEDEx), /ask-back (leases are asked back from a link that became \
                            slow) and /at-once-N (N files at once on each link, 1 to {CONCURRENCY_FIXED_MAX})"
                    ));
                }
            }
        }
        if let Some(number) = at_once {
            // Fewer are not enough, however much work they are; the limit of each link keeps it from having
            // more.
            (settings.lease_files_always, settings.lease_bytes_min) = (number, u64::MAX);
            settings.target_files_always = u32::MAX;
        }
        Ok(Policy { name: text.to_owned(), settings, concurrency: at_once })
    }

    /// Ours, the nine of FTS3, and these with its own rules.
    pub fn all() -> Vec<Self> {
        let names = Strategy::ALL.iter().map(|strategy| strategy.name().to_owned());
        let nine = Strategy::ALL.iter().filter(|strategy| **strategy != Strategy::Best);
        let theirs = nine.map(|strategy| format!("{}/fts3", strategy.name()));
        names.chain(theirs).filter_map(|name| Policy::parse(&name).ok()).collect()
    }
}

/// Runs a world to its end. `rates`: in place of the scenario's.
pub fn simulate(plan: &Plan, policy: &Policy, rates: Option<Rates>) -> Report {
    let mut world = world::World::new(plan, policy, rates);
    world.run();
    build_report(plan, policy, world)
}

/// State of a running world, for observers.
pub struct Snapshot<'a> {
    /// Since the beginning; and by the service's clock.
    pub seconds: f64,
    pub now: Timestamp,
    pub scheduler: &'a Scheduler,
    /// What went through each capacity of the layout so far, in bytes.
    pub bytes_through: &'a [f64],
}

/// Runs a world to its end, with a snapshot at every interval.
pub fn simulate_observed(
    plan: &Plan,
    policy: &Policy,
    every: Span,
    look: &mut dyn FnMut(&Snapshot<'_>),
) -> Report {
    let mut world = world::World::new(plan, policy, None);
    let mut until = 0.0;
    while !world.is_over() {
        until += every.0.max(1.0);
        world.run_until(until);
        let through = &world.flows.through;
        let (seconds, now) = (until.min(plan.until), world.service_time());
        look(&Snapshot { seconds, now, scheduler: &world.scheduler, bytes_through: through });
    }
    world.run();
    build_report(plan, policy, world)
}

fn build_report(plan: &Plan, policy: &Policy, mut world: world::World<'_>) -> Report {
    let unfinished = world.files_left;
    let waits = if unfinished > 0 { world.explain_waits() } else { Vec::new() };
    let certificate = world.certificate();
    let learned = world.take_knowledge_report();
    let circuits =
        (plan.circuits.level != scenario::CircuitLevel::None).then(|| world.circuits.summary.clone());
    report::report(
        plan,
        &policy.name,
        world.metrics,
        &world.flows.through,
        unfinished,
        waits,
        certificate,
        world.flows.recomputations,
        world.flows.utilization_max,
        world.flows.curve,
        learned,
        circuits,
    )
}
