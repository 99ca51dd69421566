//! What people and programs ask of the service and get back: `/api/v1`, except the agent's calls.
//!
//! Lists are pages: `limit` items at the most, `next` is the cursor of the following page.

mod transfers;

use longhaul_model::{
    AgentId, Algorithm, BlockName, CommunityName, DatasetName, Digest, DigestSet, Fault, Lfn, RegionName,
    SiteName, StorageName, SubscriptionId, SubscriptionState, TaskId, Timestamp, Verification,
};
use serde::{Deserialize, Serialize};
pub use transfers::*;
use utoipa::ToSchema;

use crate::agent::{LeftOut, LeftOutReason, StorageKind};
use crate::commissioning::LinkCommission;
use crate::steering::{Promise, Terms, TermsChange};

/// One page of a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

// ---- datasets ------------------------------------------------------------------------------------------

/// `POST /api/v1/datasets`: makes an empty dataset, or returns the one of that name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DatasetCreate {
    #[schema(value_type = String)]
    pub name: DatasetName,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DatasetView {
    #[schema(value_type = String)]
    pub name: DatasetName,
    #[schema(value_type = String)]
    pub community: CommunityName,
    pub open: bool,
    pub files: u64,
    pub bytes: u64,
    pub blocks: u64,
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// How many were left out at registration, by reason.
    pub left_out: Vec<LeftOutCount>,
    /// Where it is: one row per storage that holds at least one file of it.
    pub replicas: Vec<ReplicaView>,
    /// Scan under way, if any.
    pub scan: Option<TaskView>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeftOutCount {
    pub reason: LeftOutReason,
    pub count: u64,
    /// The first few.
    pub examples: Vec<LeftOut>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlockView {
    #[schema(value_type = String)]
    pub name: BlockName,
    pub open: bool,
    pub files: u64,
    pub bytes: u64,
    pub replicas: Vec<ReplicaView>,
}

/// A file of a dataset, as listed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileView {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    #[schema(value_type = String)]
    pub block: BlockName,
    pub size: u64,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
}

/// `POST /api/v1/datasets/{name}/scan`: have the storage's agent register what it finds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScanRequest {
    #[schema(value_type = String)]
    pub storage: StorageName,
    /// Relative to the storage's root; empty for the whole.
    #[serde(default)]
    pub path: String,
    /// Default: adler32 and crc32c.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub algorithms: Vec<Algorithm>,
}

/// `POST /api/v1/datasets/{name}/files?storage=NAME`: a manifest, one [`ManifestLine`] a line
/// (`application/x-ndjson`); all or nothing. With `storage` the files are taken to be there already.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestLine {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    /// Name of the block after the `#`; by default blocks are cut by number of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    pub files_added: u64,
    pub bytes_added: u64,
    /// Registered before with the same size and digests.
    pub files_known: u64,
}

// ---- replicas ------------------------------------------------------------------------------------------

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub files: u64,
    pub bytes: u64,
    pub complete: bool,
    pub suspect_files: u64,
    /// How many were verified how; files registered in place count as registered.
    pub verified: Vec<VerifiedCount>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VerifiedCount {
    /// `registered`, `wire`, `end-to-end` or `readback`.
    pub how: String,
    pub files: u64,
}

/// `POST /api/v1/deletions`: removes replicas; `dry_run` (the default) only tells.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletionRequest {
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = String)]
    pub storage: StorageName,
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// Delete even the last good replica.
    #[serde(default)]
    pub force: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletionReply {
    pub files: u64,
    pub bytes: u64,
    /// Files among these that have no other good replica.
    pub last_replicas: u64,
    /// Subscriptions that would bring them back, and so forbid it.
    #[schema(value_type = Vec<String>)]
    pub subscriptions: Vec<SubscriptionId>,
    /// Absent for a dry run.
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskId>,
}

/// `POST /api/v1/verifications`: the storage's agent reads every file of the dataset again and compares.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VerificationRequest {
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = String)]
    pub storage: StorageName,
}

/// A scan, verification or deletion as it goes on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    #[schema(value_type = String)]
    pub id: TaskId,
    /// `scan`, `verify`, `delete`, or `clear` (a relay's copies that nobody waits for any more).
    pub kind: String,
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub done: bool,
    pub files_done: u64,
    pub bytes_done: u64,
    pub files_bad: u64,
    /// The first hundred.
    pub problems: Vec<TaskProblem>,
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Why it has not begun or does not go on, if so.
    pub waits_for: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskProblem {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    #[schema(value_type = Object)]
    pub fault: Fault,
}

// ---- subscriptions -------------------------------------------------------------------------------------

/// `POST /api/v1/subscriptions`. With an `Idempotency-Key` header a repetition returns the first answer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Subscribe {
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    /// Only this block; default: the whole dataset, and what is added to it later.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub block: Option<BlockName>,
    #[schema(value_type = String)]
    pub storage: StorageName,
    /// 1 (least) to 9; default 5.
    #[serde(default)]
    pub priority: Option<u8>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub verification: Option<Verification>,
    #[serde(flatten)]
    pub terms: Terms,
}

/// `PATCH /api/v1/subscriptions/{id}`: what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionChange {
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub state: Option<SubscriptionState>,
    #[serde(default)]
    pub priority: Option<u8>,
    #[serde(flatten)]
    pub terms: TermsChange,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionView {
    #[schema(value_type = String)]
    pub id: SubscriptionId,
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = Option<String>)]
    pub block: Option<BlockName>,
    #[schema(value_type = String)]
    pub storage: StorageName,
    #[schema(value_type = String)]
    pub state: SubscriptionState,
    pub priority: u8,
    #[schema(value_type = String)]
    pub verification: Verification,
    /// The community whose share is charged, by its terms or by its dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub charged_to: Option<CommunityName>,
    #[serde(flatten)]
    pub terms: Terms,
    /// The chance that the deadline is met; absent once it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    #[schema(value_type = String)]
    pub created: Timestamp,
    pub files_wanted: u64,
    pub bytes_wanted: u64,
    pub files_present: u64,
    pub bytes_present: u64,
    pub complete: bool,
    #[schema(value_type = Option<String>)]
    pub completed: Option<Timestamp>,
    /// Verified durable bytes per second: over the last ten seconds, and since the first byte.
    pub rate_now: f64,
    pub rate_average: f64,
    pub files_running: u64,
    pub retries: u64,
    pub failed_files: u64,
    /// Files that arrived, by source.
    pub sources: Vec<SourceShare>,
    pub expected: Expected,
    /// Files by how they were verified.
    pub verified: Vec<VerifiedCount>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SourceShare {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub files: u64,
    pub bytes: u64,
}

/// When it will be there, or why nobody can say; and what holds it up.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Expected {
    /// As likely earlier as later.
    #[schema(value_type = Option<String>)]
    pub median: Option<Timestamp>,
    /// Nine in ten are earlier.
    #[schema(value_type = Option<String>)]
    pub ninety: Option<Timestamp>,
    /// Why there is no estimate.
    pub why_none: Option<String>,
    /// In words, most important first.
    pub held_up_by: Vec<String>,
}

// ---- sites ---------------------------------------------------------------------------------------------

/// `POST /api/v1/sites`: makes a site, and a token with which one agent can join it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteAdd {
    #[schema(value_type = String)]
    pub name: SiteName,
    /// Seconds until the token expires; default one day.
    #[serde(default)]
    pub token_seconds: Option<u64>,
}

/// `POST /api/v1/sites/{site}/join-tokens`
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct JoinTokenCreate {
    /// Seconds until the token expires; default one day.
    #[serde(default)]
    pub token_seconds: Option<u64>,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct SiteAdded {
    #[schema(value_type = String)]
    pub name: SiteName,
    /// Everything an agent needs to find, trust and join the service once. Secret.
    pub join_token: String,
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SiteState {
    Open,
    /// Nothing starts; what runs is finished.
    Draining,
    /// Nothing starts and what waits at the agent is taken back.
    Paused,
}

/// `PATCH /api/v1/sites/{name}`: what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SiteChange {
    #[serde(default)]
    pub state: Option<SiteState>,
    /// Why, for everyone who waits for this site.
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub limits: Option<SiteLimits>,
    /// Where it lies; empty: nobody says.
    #[serde(default)]
    pub region: Option<String>,
}

/// A site's limits; none is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SiteLimits {
    #[serde(default)]
    pub active_in: Option<u32>,
    #[serde(default)]
    pub active_out: Option<u32>,
    #[serde(default)]
    pub in_bytes_per_s: Option<u64>,
    #[serde(default)]
    pub out_bytes_per_s: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteView {
    #[schema(value_type = String)]
    pub name: SiteName,
    pub state: SiteState,
    pub reason: Option<String>,
    pub limits: SiteLimits,
    /// Where it lies. What links between two regions give is believed of those between them that are new.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    pub region: Option<RegionName>,
    pub storages: Vec<StorageView>,
    pub agents: Vec<AgentView>,
    pub rate_in: f64,
    pub rate_out: f64,
    pub active_in: u64,
    pub active_out: u64,
    pub queued_files: u64,
    pub queued_bytes: u64,
    /// What test transfers said of its links with other sites; not in lists of sites.
    #[serde(default)]
    pub links: Vec<LinkCommission>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StorageView {
    #[schema(value_type = String)]
    pub name: StorageName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub site: Option<SiteName>,
    /// As its agent said when it was last in contact with this start of the service.
    #[serde(default)]
    pub kind: StorageKind,
    pub writable: bool,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub files: u64,
    pub bytes: u64,
    /// Why it takes no files now, if so.
    #[schema(value_type = Option<Object>)]
    pub trouble: Option<Fault>,
    /// Files may pass through it on their way to others.
    #[serde(default)]
    pub relay: bool,
    /// How sources of what goes there are chosen where a subscription does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    pub rules_version: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AgentView {
    #[schema(value_type = String)]
    pub id: AgentId,
    pub host: String,
    pub version: String,
    pub incarnation: u64,
    #[schema(value_type = Option<String>)]
    pub last_contact: Option<Timestamp>,
    pub connected: bool,
    pub data_addresses: Vec<String>,
    /// Its clock minus the service's.
    pub clock_offset_ms: i64,
    #[schema(value_type = Option<String>)]
    pub certificate_expires: Option<Timestamp>,
    /// Copies between storages of others that it streams, where its site lets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<MoverView>,
}

/// What an agent streams between storages of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoverView {
    /// Now, and at most.
    pub busy: u32,
    pub files: u32,
}

// ---- overview ------------------------------------------------------------------------------------------

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
    pub blame: longhaul_model::Blame,
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

/// `GET /api/v1/whoami`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Areas that the credential is confined to; none: all that the role may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// For whose jobs alone it is good; of a manager, whose shares, subscriptions and jobs are theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    /// The sites that a manager manages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
}

/// `POST /api/v1/tokens`
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TokenCreate {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Areas that it is confined to (`jobs`, `data`, `sites`, `steering`, `network`, `access`), each with
    /// `:read` behind it for looking only; none: all that its role may.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// For whose jobs alone it is good; of a manager, whose shares, subscriptions and jobs are theirs.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    /// The sites that a manager manages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
}

/// An API token without its secret.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    #[schema(value_type = String)]
    pub created: Timestamp,
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Areas that it is confined to; none: all that its role may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// For whose jobs alone it is good; of a manager, whose shares, subscriptions and jobs are theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    /// The sites that a manager manages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sites: Vec<SiteName>,
}

/// `POST /api/v1/session`: an API token or a one-time login token in, a cookie out.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginRequest {
    pub token: String,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginReply {
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    /// To be sent as `X-CSRF-Token` with every request of this session that changes something.
    pub csrf_token: String,
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

/// `POST /api/v1/session/tokens`: opens one login session, once, within minutes.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct LoginToken {
    pub token: String,
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// Shown this once.
    pub token: String,
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
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

/// A file's replicas, for `replica list --file`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileReplicas {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    pub replicas: Vec<FileReplica>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileReplica {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub suspect: bool,
    /// `registered`, `wire`, `end-to-end` or `readback`.
    pub verified: String,
    #[schema(value_type = Option<String>)]
    pub digest: Option<Digest>,
}

crate::hides_secrets!(SiteAdded, TokenCreated, LoginRequest, LoginReply, LoginToken);
