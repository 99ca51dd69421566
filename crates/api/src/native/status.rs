//! The overview of a deployment: its state, rates over time, changes, invariants and health.

use longhaul_model::{Blame, Fault, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SubscriptionView;

/// `GET /api/v1/status`: what moves, what waits, what is wrong.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub deployment: String,
    pub version: String,
    #[schema(value_type = String)]
    pub now: Timestamp,
    #[schema(value_type = String)]
    pub started: Timestamp,
    pub rate_now: f64,
    pub files_done: u64,
    pub bytes_done: u64,
    pub transfers_running: u64,
    pub transfers_waiting: u64,
    pub subscriptions: Vec<SubscriptionView>,
    pub links: Vec<LinkView>,
    pub problems: Vec<ProblemView>,
    /// Failed attempts by blame, since the beginning.
    pub failures_by_blame: Vec<BlameCount>,
    /// Goodput in steps of `history_step_s`, oldest first, ending now.
    pub history: Vec<f64>,
    pub history_step_s: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    #[schema(value_type = String)]
    pub source: StorageName,
    #[schema(value_type = String)]
    pub target: StorageName,
    pub rate_now: f64,
    pub active: u64,
    pub files_done: u64,
    pub bytes_done: u64,
    pub attempts_failed: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlameCount {
    #[schema(value_type = String)]
    pub blame: Blame,
    pub count: u64,
}

/// Equal faults, counted together.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProblemView {
    #[schema(value_type = Object)]
    pub fault: Fault,
    /// The storage it is about.
    #[schema(value_type = Option<String>)]
    pub storage: Option<StorageName>,
    pub count: u64,
    #[schema(value_type = String)]
    pub first_seen: Timestamp,
    #[schema(value_type = String)]
    pub last_seen: Timestamp,
    pub remedy: String,
    pub examples: Vec<String>,
    /// Whether anything still waits because of it.
    pub open: bool,
}

/// `GET /api/v1/history/rates`: verified bytes per second in steps, oldest first, the last one ending at
/// `until`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RateHistory {
    pub step_s: u32,
    #[schema(value_type = String)]
    pub until: Timestamp,
    /// All links together.
    pub total: Vec<f64>,
    pub links: Vec<LinkRates>,
}

/// One link of a [`RateHistory`], with the same steps.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkRates {
    #[schema(value_type = String)]
    pub source: StorageName,
    #[schema(value_type = String)]
    pub target: StorageName,
    pub bytes_per_s: Vec<f64>,
}

/// One event of `GET /api/v1/events`: something changed; read it again to see how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeEvent {
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// What kind of thing; also the name of the event.
    pub kind: ChangeKind,
    /// Its name or id; none if several changed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    Status,
    Dataset,
    Subscription,
    Transfer,
    Task,
    Site,
    Problem,
    /// A link or path is not what it was, or is again; `id` is `SOURCE:TARGET`.
    Network,
}

/// `GET /api/v1/check`: the invariants of the state.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckReport {
    pub checks: Vec<CheckResult>,
    pub sound: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckResult {
    pub name: String,
    pub violations: u64,
    pub examples: Vec<String>,
}

/// `GET /healthz` and `GET /readyz`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub ok: bool,
    pub reasons: Vec<HealthReason>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HealthReason {
    pub part: String,
    pub ok: bool,
    pub detail: String,
}
