//! Executors: who carries out leases beside the engines of agents.
//!
//! The scheduler has one queue for subscriptions and jobs. What it decides for subscriptions goes to agents,
//! through the commit loop. Ids with the upper half's bit set ([`of_jobs`]) belong to another executor, which
//! the loops know by these traits only.
//!
//! [`of_jobs`]: longhaul_model::job::of_jobs

use std::collections::BTreeSet;

use longhaul_model::{AgentId, AttemptId, Timestamp};
use longhaul_scheduler::{CancelWhy, Lease, WantedFile};

use crate::query_loop::ExpandQuery;

/// Takes the leases of one executor from the scheduler loop. It must not block.
pub trait Executor: Send {
    /// The agent that stands for the executor in the scheduler.
    fn agent(&self) -> AgentId;

    /// Hands over a lease, with the reasons of the decision as JSON.
    fn take(&mut self, lease: Lease, choice: String);

    /// Takes a lease back that must not go on.
    fn take_back(&mut self, attempt: AttemptId, why: CancelWhy);
}

/// Answers the query loop for demands whose files are not in blocks.
pub trait DemandSource: Send {
    /// Files of a demand, and whether there are no more behind them; none if that cannot be said now.
    fn expand(&self, query: &ExpandQuery, now: Timestamp) -> Option<(Vec<WantedFile>, bool)>;
}

/// Streams that agents carry out for another executor, outside of the catalog's leases.
pub trait AgentStreams: Send + Sync {
    /// An agent said hello and holds these attempts: streams that are not among them are over. Returns those
    /// that go on.
    fn reconcile(&self, agent: AgentId, held: &BTreeSet<AttemptId>) -> Vec<AttemptId>;
}

/// Limits and shares on storages of other executors, beside those of the deployment's own storages.
pub trait LinkPolicy: Send + Sync {
    /// Adds limits to those that are set for all.
    fn limit(
        &self,
        now: Timestamp,
        limits: &mut longhaul_scheduler::Limits,
    ) -> Result<(), longhaul_catalog::CatalogError>;

    /// Weights of communities on single links.
    fn link_shares(&self) -> Result<Vec<longhaul_scheduler::LinkShares>, longhaul_catalog::CatalogError>;
}
