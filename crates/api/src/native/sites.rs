//! Sites with their storages, agents and limits.

use longhaul_model::{AgentId, Fault, RegionName, SiteName, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::StorageKind;
use crate::commissioning::LinkCommission;

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

crate::hides_secrets!(SiteAdded);
