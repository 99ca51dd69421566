//! Steering: terms of subscriptions, shares of communities and activities, allowed links, roles of storages,
//! and the audit log.

use longhaul_model::{ActivityName, CommunityName, SiteName, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// Terms of a subscription beside its priority.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Terms {
    /// Community whose share is charged; by default the dataset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
    /// Class of work within the community.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::ActivityName>)]
    pub activity: Option<ActivityName>,
    /// How sources are chosen: `best`, `orderly`, `queue`, `auto`, `success`, `throughput`,
    /// `file-throughput`, `pending-data`, `waiting-time`, `waiting-time-with-error` or `duration`; by default
    /// the setting of the target, or else of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::Strategy>)]
    pub strategy: Option<String>,
    /// Time by which all files shall be at the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::Time>)]
    pub deadline: Option<Timestamp>,
}

/// Changes of a subscription's terms: absent fields keep their value, `none` removes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TermsChange {
    /// Community whose share is charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::CommunityOrNone>)]
    pub community: Option<String>,
    /// Class of work within the community.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::ActivityOrNone>)]
    pub activity: Option<String>,
    /// How sources are chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::StrategyOrNone>)]
    pub strategy: Option<String>,
    /// Time by which all files shall be at the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::TimeOrNone>)]
    pub deadline: Option<String>,
}

/// Probability that a deadline is met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Promise {
    /// Probability, 0 to 1; absent without an estimate.
    pub chance: Option<f64>,
    /// The forecast in words, with its basis.
    pub words: String,
    /// Since when the deadline is more likely missed than met; absent if it is not.
    #[schema(value_type = Option<String>)]
    pub in_danger_since: Option<Timestamp>,
}

// ---- shares --------------------------------------------------------------------------------------------

/// Share of a community, or of one of its activities, when demand exceeds capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    /// A community, or `*`: each community that is not named.
    pub community: String,
    /// An activity; `*`: each activity that is not named, and work without one. Absent: the community as a
    /// whole.
    pub activity: Option<String>,
    /// Weight among communities, or among the activities of the community.
    pub weight: f64,
    /// Fraction, 0 to 1, of the community (for an activity) or of everything (for a community), while all
    /// named ones and one that is not named have work.
    pub part: f64,
}

/// `POST /api/v1/shares`: sets or removes a share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareChange {
    /// A community, or `*`: each community that is not named.
    #[schema(value_type = formats::CommunityOrAll)]
    pub community: String,
    /// An activity; `*`: each activity that is not named, and work without one. Absent: the community as a
    /// whole.
    #[serde(default)]
    #[schema(value_type = Option<formats::ActivityOrOthers>)]
    pub activity: Option<String>,
    /// Weight, 0 to 1,000,000; with 0 it gets only what no other can use. Absent: removes the entry.
    #[schema(value_type = Option<formats::Weight>)]
    pub weight: Option<f64>,
}

// ---- movers --------------------------------------------------------------------------------------------

/// A site whose agents offer to stream copies between foreign storages, or may do so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoverGrantView {
    /// Name of the site.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// Communities for which its agents may stream; `*`: all.
    pub communities: Vec<String>,
    /// Copies that its connected agents offer to stream at the same time.
    pub files: u32,
}

/// `POST /api/v1/movers`: allows the agents of a site to stream for a community, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoverGrantChange {
    /// Name of the site.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// A community, or `*`: all.
    #[schema(value_type = formats::CommunityOrAll)]
    pub community: String,
    /// Whether its agents may stream for the community.
    pub allowed: bool,
}

// ---- links ---------------------------------------------------------------------------------------------

/// `GET /api/v1/links`: between which storages files may go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinksView {
    /// True: from every storage to every other, and `links` is empty.
    pub open: bool,
    /// Allowed links, if not all are.
    pub links: Vec<AllowedLink>,
    /// Storages through which files may pass on their way to others.
    #[schema(value_type = Vec<formats::StorageName>)]
    pub relays: Vec<StorageName>,
    /// Links that carry test transfers only.
    #[serde(default)]
    pub uncommissioned: Vec<AllowedLink>,
}

/// A link over which files may go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AllowedLink {
    /// Source storage.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Target storage.
    #[schema(value_type = formats::StorageName)]
    pub target: StorageName,
}

/// `PUT /api/v1/links`: replaces the list of allowed links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinksSet {
    /// Allowed links; absent: from every storage to every other.
    pub links: Option<Vec<AllowedLink>>,
}

/// `PATCH /api/v1/links`: changes single links. `add` and `remove` require that a list of allowed links is
/// set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinksChange {
    /// Links to allow.
    #[serde(default)]
    pub add: Vec<AllowedLink>,
    /// Links to forbid.
    #[serde(default)]
    pub remove: Vec<AllowedLink>,
    /// Links that may carry all transfers again.
    #[serde(default)]
    pub commission: Vec<AllowedLink>,
    /// Links that may carry test transfers only.
    #[serde(default)]
    pub decommission: Vec<AllowedLink>,
}

/// `PATCH /api/v1/storages/{storage}`: absent fields keep their value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StorageChange {
    /// Whether files may pass through the storage on their way to others.
    #[serde(default)]
    pub relay: Option<bool>,
    /// How sources are chosen for files that go here, unless the subscription says; `none`: the service's
    /// setting.
    #[serde(default)]
    #[schema(value_type = Option<formats::StrategyOrNone>)]
    pub strategy: Option<String>,
    /// What happens to a subscription that the storage has no room for, with all that is promised already:
    /// `warn` accepts it with a warning, `refuse` refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::SpacePolicy>)]
    pub space_policy: Option<String>,
}

/// An entry of the audit log: a change of shares, links, storages or accounts, a log-in, or a refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Grows by one with each entry.
    pub id: u64,
    /// Time of the event.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Name of the credential, or the name given at the log-in.
    pub who: String,
    /// What happened, in words.
    pub what: String,
}

/// An access decision, allowed or refused; equal decisions within a short time are one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionEntry {
    /// Grows with each entry.
    pub id: u64,
    /// True if access was allowed, false if it was refused.
    pub allowed: bool,
    /// Time of the first of these decisions.
    #[schema(value_type = String)]
    pub since: Timestamp,
    /// Time of the last of these decisions.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Number of equal decisions, at least 1.
    pub times: u64,
    /// Name of the credential, or `nobody`.
    pub who: String,
    /// Kind of credential presented.
    pub credential: String,
    /// Address of the client.
    pub origin: String,
    /// The request: an operation of this API, `fts` with method and path, `page`, or `door` with a method.
    pub operation: String,
    /// Object of the operation.
    pub object: String,
    /// Reason for the refusal, or the right by which access was allowed.
    pub why: String,
    /// Site whose door decided; absent if the service did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::SiteName>)]
    pub site: Option<SiteName>,
    /// Storage that the request was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::StorageName>)]
    pub storage: Option<StorageName>,
}
