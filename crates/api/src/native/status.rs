//! The overview of a deployment: its state, rates over time, changes, invariants and health.

use longhaul_model::{Blame, Fault, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

use super::SubscriptionView;

/// `GET /api/v1/status`: what moves, what waits, and what is wrong.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Name of the deployment.
    pub deployment: String,
    /// Version of the service's program.
    pub version: String,
    /// Time by the service's clock.
    #[schema(value_type = String)]
    pub now: Timestamp,
    /// Time when the service started.
    #[schema(value_type = String)]
    pub started: Timestamp,
    /// Goodput of all links together, in verified durable bytes per second.
    pub rate_now: f64,
    /// Files transferred since the deployment was created.
    pub files_done: u64,
    /// Bytes of these files.
    pub bytes_done: u64,
    /// Transfers under way.
    pub transfers_running: u64,
    /// Transfers that wait for a lease.
    pub transfers_waiting: u64,
    /// Active and suspended subscriptions, incomplete ones first; only the first ones if there are many.
    pub subscriptions: Vec<SubscriptionView>,
    /// Active and suspended subscriptions beyond these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub subscriptions_more: u64,
    /// Links with traffic now or earlier.
    pub links: Vec<LinkView>,
    /// Open and recent problems.
    pub problems: Vec<ProblemView>,
    /// Failed attempts by blame, since the deployment was created.
    pub failures_by_blame: Vec<BlameCount>,
    /// Goodput in steps of `history_step_s`, in bytes per second, oldest first, ending now.
    pub history: Vec<f64>,
    /// Length of a step, in seconds.
    pub history_step_s: u32,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Traffic of a link.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// Source storage.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Target storage.
    #[schema(value_type = formats::StorageName)]
    pub target: StorageName,
    /// Goodput now, in verified durable bytes per second.
    pub rate_now: f64,
    /// Files under way.
    pub active: u64,
    /// Files transferred since the deployment was created.
    pub files_done: u64,
    /// Bytes of these files.
    pub bytes_done: u64,
    /// Failed attempts since the deployment was created.
    pub attempts_failed: u64,
}

/// Failed attempts with the same blame.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlameCount {
    /// Party that has to act.
    #[schema(value_type = formats::Blame)]
    pub blame: Blame,
    /// Number of attempts.
    pub count: u64,
}

/// Equal faults, counted together.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProblemView {
    /// The fault.
    #[schema(value_type = Object)]
    pub fault: Fault,
    /// Storage with the problem, if it is about one.
    #[schema(value_type = Option<formats::StorageName>)]
    pub storage: Option<StorageName>,
    /// Number of equal faults.
    pub count: u64,
    /// Time of the first.
    #[schema(value_type = String)]
    pub first_seen: Timestamp,
    /// Time of the latest.
    #[schema(value_type = String)]
    pub last_seen: Timestamp,
    /// What to do next.
    pub remedy: String,
    /// Some of the files or hosts concerned.
    pub examples: Vec<String>,
    /// True while anything waits because of it.
    pub open: bool,
}

/// `GET /api/v1/history/rates`: goodput in steps, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RateHistory {
    /// Length of a step, in seconds.
    pub step_s: u32,
    /// End of the last step.
    #[schema(value_type = String)]
    pub until: Timestamp,
    /// Verified durable bytes per second of all links together, one value for each step.
    pub total: Vec<f64>,
    /// The same for each link.
    pub links: Vec<LinkRates>,
}

/// Rates of one link, with the same steps as the history.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkRates {
    /// Source storage.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Target storage.
    #[schema(value_type = formats::StorageName)]
    pub target: StorageName,
    /// Verified durable bytes per second, one value for each step.
    pub bytes_per_s: Vec<f64>,
}

/// One event of `GET /api/v1/events`: something changed; read it again to see how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeEvent {
    /// Time of the change.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Kind of thing that changed; also the name of the event.
    pub kind: ChangeKind,
    /// Name or id of the thing; absent if several changed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Kind of thing that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// The overview.
    Status,
    /// A dataset, its blocks, files or replicas.
    Dataset,
    /// A subscription or its progress.
    Subscription,
    /// A transfer.
    Transfer,
    /// A scan, verification or deletion.
    Task,
    /// A site, its storages or agents.
    Site,
    /// A problem came or went.
    Problem,
    /// The performance of a link or path changed; `id` is `SOURCE:TARGET`.
    Network,
}

/// `GET /api/v1/check`: whether the stored state is consistent.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckReport {
    /// One result for each invariant.
    pub checks: Vec<CheckResult>,
    /// True if no invariant is violated.
    pub sound: bool,
}

/// Result of checking one invariant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckResult {
    /// Name of the invariant.
    pub name: String,
    /// Number of violations; 0 is good.
    pub violations: u64,
    /// The first few violations.
    pub examples: Vec<String>,
}

/// `GET /healthz` and `GET /readyz`: whether the service works.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// True if every part works.
    pub ok: bool,
    /// State of each part.
    pub reasons: Vec<HealthReason>,
}

/// State of one part of the service.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HealthReason {
    /// Part of the service, such as `catalog`.
    pub part: String,
    /// True if the part works.
    pub ok: bool,
    /// Explanation for people.
    pub detail: String,
    /// Milliseconds since the last turn, where the part is a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_turn_age_ms: Option<u64>,
}
