//! Sites, agents, storages and tokens.

use longhaul_model::{
    AgentId, CommunityName, Fault, NameRules, RegionName, SiteId, SiteName, StorageId, StorageKind,
    StorageName, Timestamp,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteState {
    Open,
    /// Nothing starts; running transfers finish.
    Draining,
    /// Nothing starts, and leases that have not begun are revoked.
    Paused,
}

/// Limits of a site; None is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteLimits {
    pub active_in: Option<u32>,
    pub active_out: Option<u32>,
    pub in_bytes_per_s: Option<u64>,
    pub out_bytes_per_s: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRow {
    pub id: SiteId,
    pub name: SiteName,
    pub state: SiteState,
    /// Why it is not open, shown to everyone who waits for it.
    pub reason: Option<String>,
    pub limits: SiteLimits,
    /// Sites of one region are assumed to have similar links.
    pub region: Option<RegionName>,
    pub created: Timestamp,
}

/// Changes of a site; None leaves a field as it is.
#[derive(Clone, Debug, Default)]
pub struct SitePatch {
    pub state: Option<SiteState>,
    /// `Some(None)` removes the reason.
    pub reason: Option<Option<String>>,
    pub limits: Option<SiteLimits>,
    /// `Some(None)` removes the region.
    pub region: Option<Option<RegionName>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRow {
    pub id: AgentId,
    pub site: SiteId,
    pub site_name: SiteName,
    pub host: String,
    /// Program version; empty before the first hello.
    pub version: String,
    /// The incarnation of the last accepted hello; 0 before the first.
    pub incarnation: Incarnation,
    pub addresses: Vec<String>,
    pub certificate_expires: Timestamp,
    /// Every item up to this sequence number is applied.
    pub acknowledged: u64,
    pub created: Timestamp,
    pub last_hello: Option<Timestamp>,
}

/// One start of an agent on its state directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incarnation {
    pub number: u64,
    pub nonce: u64,
}

/// What happens to a subscription that its target has no room for, with all that was promised before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpacePolicy {
    /// It is accepted with a warning: space may come in time.
    #[default]
    Warn,
    Refuse,
}

/// A storage as an agent offers it in its hello.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageOfferRow {
    pub name: StorageName,
    pub kind: StorageKind,
    pub rules: NameRules,
    pub writable: bool,
    pub case_insensitive: bool,
    /// The number of the mark in the root, if other agents may serve that root, too.
    pub shared_root: Option<String>,
}

/// What became of a hello's storages.
#[derive(Clone, Debug, PartialEq)]
pub struct HelloResult {
    /// Those that the agent serves from now on.
    pub storages: Vec<StorageRow>,
    /// Those that were left out, since their names are not the site's, or the site has too many.
    pub unconfirmed: Vec<StorageName>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StorageRow {
    pub id: StorageId,
    pub name: StorageName,
    pub site: SiteId,
    pub site_name: SiteName,
    /// The agent that offered it last; of several that serve it, the one that does its tasks.
    pub agent: AgentId,
    /// The number of the mark in the root that several agents may serve; none if one does.
    pub shared_root: Option<String>,
    /// As that agent offered it.
    pub kind: StorageKind,
    pub rules: NameRules,
    pub writable: bool,
    pub case_insensitive: bool,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Why it accepts no files now, if so.
    pub trouble: Option<Fault>,
    /// Replicas recorded here.
    pub files: u64,
    pub bytes: u64,
    /// Files may pass through it on their way to other storages.
    pub relay: bool,
    /// The strategy by which sources are chosen where a subscription names none.
    pub strategy: Option<String>,
    pub space_policy: SpacePolicy,
}

/// Changes of a storage; None leaves a field as it is, `Some(None)` removes it.
#[derive(Clone, Debug, Default)]
pub struct StoragePatch {
    pub relay: Option<bool>,
    pub strategy: Option<Option<String>>,
    pub space_policy: Option<SpacePolicy>,
}

/// The present state of a storage, as its agent reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct SpaceRow {
    pub storage: StorageId,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub trouble: Option<Fault>,
}

/// Why a join token was not redeemed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    #[error("the join token is unknown")]
    Unknown,
    #[error("the join token was used at {0}")]
    Used(Timestamp),
    #[error("the join token expired at {0}")]
    Expired(Timestamp),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiTokenRow {
    pub hash: [u8; 32],
    pub name: String,
    /// `admin`, `manager`, `viewer` or `observer`.
    pub role: String,
    pub expires: Option<Timestamp>,
    pub created: Timestamp,
    /// The scopes that confine it, as written. None: everything that its role allows.
    pub scopes: Option<String>,
    /// The only community for which it may act.
    pub community: Option<CommunityName>,
    /// The sites that its holder manages, as written.
    pub sites: Option<String>,
}

/// An API token to add.
#[derive(Clone, Debug)]
pub struct NewApiToken {
    pub hash: [u8; 32],
    pub name: String,
    pub role: String,
    pub expires: Option<Timestamp>,
    pub scopes: Option<String>,
    pub community: Option<CommunityName>,
    pub sites: Option<String>,
}
