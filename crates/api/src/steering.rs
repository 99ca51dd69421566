//! How people steer what moves: whose share a wish is charged to and when it shall be fulfilled, what
//! communities and activities are entitled to, which links there are, and what storages are for.

use longhaul_model::{ActivityName, CommunityName, SiteName, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a subscription asks for beside its priority.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Terms {
    /// The community whose share is charged; default: the dataset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub activity: Option<ActivityName>,
    /// How sources are chosen: `best`, `orderly`, `queue`, `auto`, `success`, `throughput`,
    /// `file-throughput`, `pending-data`, `waiting-time`, `waiting-time-with-error` or `duration`; default:
    /// as the target or the service has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// When all of it shall be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub deadline: Option<Timestamp>,
}

/// The same to be changed: what is absent stays, `none` takes it away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TermsChange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub community: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
}

/// How likely a deadline is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Promise {
    /// 0 to 1; none without an estimate.
    pub chance: Option<f64>,
    /// In words, with what it rests on.
    pub words: String,
    /// Since when it is more likely missed than kept, if it is.
    #[schema(value_type = Option<String>)]
    pub in_danger_since: Option<Timestamp>,
}

// ---- shares --------------------------------------------------------------------------------------------

/// What one community, or one activity of it, is entitled to when more is wanted than there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    /// `*`: each community that is not named.
    pub community: String,
    /// None: the community as a whole; `*`: each activity that is not named, and work without one.
    pub activity: Option<String>,
    pub weight: f64,
    /// Fraction of its community (for an activity) or of all (for a community), 0 to 1, while all that are
    /// named and one that is not want something.
    pub part: f64,
}

/// `POST /api/v1/shares`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareChange {
    /// `*`: each community that is not named.
    pub community: String,
    /// None: the community as a whole; `*`: each activity that is not named, and work without one.
    #[serde(default)]
    pub activity: Option<String>,
    /// 0 to 1,000,000; 0 gets only what nobody else can use. None: named no more.
    pub weight: Option<f64>,
}

// ---- links ---------------------------------------------------------------------------------------------

/// `GET /api/v1/links`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinksView {
    /// True: from every storage to every other, and `links` is empty.
    pub open: bool,
    pub links: Vec<AllowedLink>,
    /// Storages through which files may pass.
    #[schema(value_type = Vec<String>)]
    pub relays: Vec<StorageName>,
    /// Links that carry test transfers only.
    #[serde(default)]
    pub uncommissioned: Vec<AllowedLink>,
}

/// Files may go from one storage to the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct AllowedLink {
    #[schema(value_type = String)]
    pub source: StorageName,
    #[schema(value_type = String)]
    pub target: StorageName,
}

/// `PUT /api/v1/links`: in place of what was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinksSet {
    /// None: from every storage to every other.
    pub links: Option<Vec<AllowedLink>>,
}

/// `PATCH /api/v1/links`: `add` and `remove` where only listed links are used, the others always.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinksChange {
    #[serde(default)]
    pub add: Vec<AllowedLink>,
    #[serde(default)]
    pub remove: Vec<AllowedLink>,
    /// May carry everything again.
    #[serde(default)]
    pub commission: Vec<AllowedLink>,
    /// May carry test transfers only.
    #[serde(default)]
    pub decommission: Vec<AllowedLink>,
}

/// `PATCH /api/v1/storages/{storage}`: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StorageChange {
    /// Whether files may pass through it on their way to others.
    #[serde(default)]
    pub relay: Option<bool>,
    /// How sources of what goes there are chosen where a subscription does not say; `none`: as the service
    /// has it.
    #[serde(default)]
    pub strategy: Option<String>,
}

/// One entry of the audit log: a change of shares, links, storages or accounts, a log-in, or a refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    pub id: u64,
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Name of the credential, or of whoever wanted to log in.
    pub who: String,
    pub what: String,
}

/// One decision of access, allowed or refused; equal decisions within a short time are one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionEntry {
    pub id: u64,
    pub allowed: bool,
    /// The first of them.
    #[schema(value_type = String)]
    pub since: Timestamp,
    /// The last.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// How many there were.
    pub times: u64,
    /// Name of the credential, or `nobody`.
    pub who: String,
    /// What kind of credential was shown.
    pub credential: String,
    /// The address that they came from.
    pub origin: String,
    /// What was asked for: an operation of this description, `fts` with method and path, `page`, or `door`
    /// with a method.
    pub operation: String,
    /// The thing that the operation was asked of.
    pub object: String,
    /// The reason of a refusal, else the right by which it was allowed.
    pub why: String,
    /// At which site's door, and about which of its storages; none: by the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub site: Option<SiteName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub storage: Option<StorageName>,
}
