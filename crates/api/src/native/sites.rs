//! Sites with their storages, agents and limits.

use longhaul_model::units;
use longhaul_model::{
    AgentId, DatasetName, Fault, RegionName, SiteName, StorageKind, StorageName, SubscriptionId, Timestamp,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;
use crate::pools::PoolReport;

use crate::commissioning::LinkCommission;

/// `POST /api/v1/sites`: creates a site, and a token with which one agent can join it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SiteAdd {
    /// Name of the site, unique in the deployment.
    #[schema(value_type = formats::SiteName)]
    pub name: SiteName,
    /// Seconds until the token expires; default one day.
    #[serde(default)]
    #[schema(value_type = Option<formats::JoinTokenSeconds>)]
    pub token_seconds: Option<u64>,
    /// Storage names to allow to the site, beside those that begin with its own name; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::StorageName>)]
    pub storages: Vec<StorageName>,
}

/// `POST /api/v1/sites/{site}/join-tokens`: creates a token for one more agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinTokenCreate {
    /// Seconds until the token expires; default one day.
    #[serde(default)]
    #[schema(value_type = Option<formats::JoinTokenSeconds>)]
    pub token_seconds: Option<u64>,
}

/// A join token for an agent of a site.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct SiteAdded {
    /// Name of the site.
    #[schema(value_type = formats::SiteName)]
    pub name: SiteName,
    /// Secret with which one agent finds, trusts and joins the service, once.
    pub join_token: String,
    /// Time when the token expires.
    #[schema(value_type = String)]
    pub expires: Timestamp,
}

/// Whether a site takes part in transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SiteState {
    /// Transfers from and to the site start and run.
    Open,
    /// No transfers start; running ones finish.
    Draining,
    /// No transfers start; leases that wait at the agents are recalled.
    Paused,
}

/// `PATCH /api/v1/sites/{name}`: absent fields keep their value.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SiteChange {
    /// New state of the site.
    #[serde(default)]
    pub state: Option<SiteState>,
    /// Reason for the state, shown to everyone who waits for this site.
    #[serde(default)]
    #[schema(value_type = Option<formats::ReasonOrEmpty>)]
    pub reason: Option<String>,
    /// New limits, in place of all former ones.
    #[serde(default)]
    pub limits: Option<SiteLimitsSet>,
    /// Region where the site lies; empty takes it out of its region.
    #[serde(default)]
    #[schema(value_type = Option<formats::RegionOrEmpty>)]
    pub region: Option<String>,
}

/// Limits of a site; an absent one means not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SiteLimits {
    /// Files under way to the site at the same time.
    #[serde(default)]
    pub active_in: Option<u32>,
    /// Files under way from the site at the same time.
    #[serde(default)]
    pub active_out: Option<u32>,
    /// Rate into the site in bytes per second.
    #[serde(default)]
    pub in_bytes_per_s: Option<u64>,
    /// Rate out of the site in bytes per second.
    #[serde(default)]
    pub out_bytes_per_s: Option<u64>,
}

/// New limits of a site; an absent one means not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SiteLimitsSet {
    /// Files under way to the site at the same time.
    #[serde(default)]
    pub active_in: Option<u32>,
    /// Files under way from the site at the same time.
    #[serde(default)]
    pub active_out: Option<u32>,
    /// Rate into the site in bytes per second.
    #[serde(default)]
    #[schema(value_type = Option<formats::BytesPerSecond>)]
    pub in_bytes_per_s: Option<u64>,
    /// Rate out of the site in bytes per second.
    #[serde(default)]
    #[schema(value_type = Option<formats::BytesPerSecond>)]
    pub out_bytes_per_s: Option<u64>,
}

impl From<SiteLimits> for SiteLimitsSet {
    fn from(limits: SiteLimits) -> Self {
        SiteLimitsSet {
            active_in: limits.active_in,
            active_out: limits.active_out,
            in_bytes_per_s: limits.in_bytes_per_s,
            out_bytes_per_s: limits.out_bytes_per_s,
        }
    }
}

/// A site with its storages, agents and traffic.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteView {
    /// Name of the site, unique in the deployment.
    #[schema(value_type = formats::SiteName)]
    pub name: SiteName,
    /// Whether the site takes part in transfers.
    pub state: SiteState,
    /// Reason for the state, if someone gave one.
    pub reason: Option<String>,
    /// Limits of the site.
    pub limits: SiteLimits,
    /// Region where the site lies. A new link between two regions is expected to perform like those that
    /// exist between them.
    #[schema(value_type = Option<formats::RegionName>)]
    #[serde(default)]
    pub region: Option<RegionName>,
    /// Storages of the site.
    pub storages: Vec<StorageView>,
    /// Storage names that an administrator allowed to the site, whether it has such storages or not. Names
    /// that begin with the site's own need no allowance.
    #[serde(default)]
    #[schema(value_type = Vec<formats::StorageName>)]
    pub storage_names: Vec<StorageName>,
    /// Agents of the site.
    pub agents: Vec<AgentView>,
    /// Goodput into the site now, in bytes per second.
    pub rate_in: f64,
    /// Goodput out of the site now, in bytes per second.
    pub rate_out: f64,
    /// Files under way to the site.
    pub active_in: u64,
    /// Files under way from the site.
    pub active_out: u64,
    /// Files that wait for transfer to the site.
    pub queued_files: u64,
    /// Size of these files together, in bytes.
    pub queued_bytes: u64,
    /// Results of test transfers with other sites; empty in lists of sites.
    #[serde(default)]
    pub links: Vec<LinkCommission>,
}

/// A storage with its space and contents.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StorageView {
    /// Name of the storage, unique in the deployment.
    #[schema(value_type = formats::StorageName)]
    pub name: StorageName,
    /// Site that the storage belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::SiteName>)]
    pub site: Option<SiteName>,
    /// What holds the files, by the latest report of its agent since the service started.
    #[serde(default)]
    #[schema(value_type = formats::StorageKind)]
    pub kind: StorageKind,
    /// Whether files can be written and deleted.
    pub writable: bool,
    /// Size of the storage in bytes.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Files registered at the storage.
    pub files: u64,
    /// Size of the registered files, in bytes.
    pub bytes: u64,
    /// Why the storage accepts no files at present; absent if it does.
    #[schema(value_type = Option<Object>)]
    pub trouble: Option<Fault>,
    /// Whether files may pass through it on their way to other storages.
    #[serde(default)]
    pub relay: bool,
    /// How sources are chosen for files that go here, unless the subscription says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Bytes that are promised to subscriptions and jobs and still have to come; absent in lists of sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised_bytes: Option<u64>,
    /// What happens to a subscription that the free space has no room for: `warn` or `refuse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space_policy: Option<String>,
    /// Version of the name rules.
    pub rules_version: u32,
    /// The connected agents that serve it, where several may: first the one that does its tasks. Absent where
    /// it has one agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<formats::AgentId>>)]
    pub agents: Option<Vec<AgentId>>,
    /// What subscriptions want from tape; absent where nothing is wanted, and in lists of sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tape_queue: Option<TapeQueue>,
    /// The pools that it consists of, by the latest report of its agent; absent if it is one file system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolReport>,
}

/// Files that subscriptions want from the tape behind a storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TapeQueue {
    /// Files that are not ordered from the tape system yet.
    pub waiting_files: u64,
    /// Their size in bytes.
    pub waiting_bytes: u64,
    /// Files that the tape system was asked for and that are not on disk.
    pub ordered_files: u64,
    /// Their size in bytes.
    pub ordered_bytes: u64,
    /// Files on disk, kept there until they are read.
    pub staged_files: u64,
    /// Their size in bytes.
    pub staged_bytes: u64,
    /// Files among the waiting and ordered ones that did not come at least once.
    pub failing_files: u64,
    /// When the file was ordered that has been ordered for longest and is not on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub oldest_order: Option<Timestamp>,
    /// The last file that did not come, and why; one sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
}

impl TapeQueue {
    /// The queue in a few words, for people.
    pub fn words(&self, now: Timestamp) -> String {
        let sum = |files: u64, bytes: u64, state: &str| {
            (files > 0).then(|| {
                format!("{} {state} ({})", units::plural(files, "file", "files"), units::bytes(bytes))
            })
        };
        let since = self.oldest_order.map(|at| format!(", the first {} ago", units::duration(now.since(at))));
        let ordered = sum(self.ordered_files, self.ordered_bytes, "ordered");
        let parts = [
            ordered.map(|ordered| ordered + &since.unwrap_or_default()),
            sum(self.waiting_files, self.waiting_bytes, "waiting"),
            sum(self.staged_files, self.staged_bytes, "on disk"),
            self.last_failure.as_ref().filter(|_| self.failing_files > 0).map(|why| {
                format!("{} not come so far: {why}", units::plural(self.failing_files, "has", "have"))
            }),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// `POST /api/v1/agents/{agent}/refusal`: refuses all certificates of an agent. With `dry_run`, the default,
/// it only shows what that would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRefusal {
    /// Why, for whoever meets the refusal.
    #[schema(value_type = formats::Reason)]
    pub reason: String,
    /// True, the default: refuse nothing, only preview.
    #[serde(default = "yes")]
    pub dry_run: bool,
}

fn yes() -> bool {
    true
}

/// What the refusal of an agent means, or would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AgentRefused {
    /// The agent.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Site of the agent.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// True if it is refused now.
    pub refused: bool,
    /// Time when its latest certificate expires.
    #[schema(value_type = String)]
    pub certificate_expires: Timestamp,
    /// Storages that the agent serves. They keep their files, but nobody reaches them until another agent of
    /// the site offers them.
    #[schema(value_type = Vec<formats::StorageName>)]
    pub storages: Vec<StorageName>,
    /// Files registered at these storages.
    pub files: u64,
    /// Size of these files together, in bytes.
    pub bytes: u64,
    /// Transfers that the agent carries out: they are given back, and wait for the next agent.
    pub leases_in: u64,
    /// Transfers of other agents that read from its storages: they get another source, or wait.
    pub leases_out: u64,
    /// Tasks at its storages: they wait for the next agent.
    pub tasks: u64,
    /// Active subscriptions to its storages: they wait for the next agent.
    pub subscriptions: u64,
}

/// `POST /api/v1/agents/{agent}/removal`: removes an agent that is gone for good. With `dry_run`, the
/// default, it only shows what that would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRemoval {
    /// True, the default: remove nothing, only preview.
    #[serde(default = "yes")]
    pub dry_run: bool,
}

/// What the removal of an agent means, or would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AgentRemoved {
    /// The agent.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Site of the agent.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// True if it is removed now.
    pub removed: bool,
    /// True if it is connected and not refused: as long as it is, it stays.
    pub connected: bool,
    /// Storages that stay with the site, for another agent.
    #[schema(value_type = Vec<formats::StorageName>)]
    pub storages: Vec<StorageName>,
    /// Storages that nothing depends on: they go with the agent.
    #[schema(value_type = Vec<formats::StorageName>)]
    pub storages_removed: Vec<StorageName>,
    /// Files registered at its storages.
    pub files: u64,
    /// Size of these files together, in bytes.
    pub bytes: u64,
    /// Transfers that the agent carries out: they are given back, and wait for the next agent.
    pub leases_in: u64,
    /// Transfers of other agents that read from its storages: they get another source, or wait.
    pub leases_out: u64,
    /// Tasks at its storages: they wait for the next agent.
    pub tasks: u64,
    /// Active subscriptions to its storages: they wait for the next agent.
    pub subscriptions: u64,
}

/// `PUT /api/v1/storages/{storage}/site`: allows a site, and no other, to have a storage of this name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StorageAllow {
    /// The site.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
}

/// A storage name that is allowed to a site.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StorageAllowed {
    /// Name of the storage, which may not be there yet.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// The only site that may have it.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
}

/// `POST /api/v1/storages/{storage}/removal`: removes a storage for good. With `dry_run`, the default, it
/// only shows what that would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StorageRemoval {
    /// True, the default: remove nothing, only preview.
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// True: remove the storage even if it has the last good replica of a file.
    #[serde(default)]
    pub force: bool,
}

/// What the removal of a storage means, or would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StorageRemoved {
    /// The storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Site of the storage.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// True if it is removed now.
    pub removed: bool,
    /// The connected agent that serves the storage, if there is one: as long as it does, the storage stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::AgentId>)]
    pub served_by: Option<AgentId>,
    /// Datasets of which the storage has files. The files stay where they are, but the service forgets them.
    pub datasets: Vec<RemovedReplicas>,
    /// Files registered at the storage.
    pub files: u64,
    /// Size of these files together, in bytes.
    pub bytes: u64,
    /// Files of which no other storage has a good replica: they need `force`.
    pub last_replicas: u64,
    /// Transfers to the storage that are under way: they end.
    pub leases_in: u64,
    /// Transfers of other storages that read from it: they get another source, or wait.
    pub leases_out: u64,
    /// Tasks at the storage: they end.
    pub tasks: u64,
    /// Active and suspended subscriptions to the storage: as long as there is one, the storage stays.
    #[schema(value_type = Vec<formats::SubscriptionId>)]
    pub subscriptions: Vec<SubscriptionId>,
}

/// What a storage that is removed has of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RemovedReplicas {
    /// The dataset.
    #[schema(value_type = formats::DatasetName)]
    pub dataset: DatasetName,
    /// Files of the dataset that are registered at the storage.
    pub files: u64,
    /// Size of these files together, in bytes.
    pub bytes: u64,
    /// Files of which no other storage has a good replica.
    pub last_replicas: u64,
}

/// `POST /api/v1/sites/{site}/removal`: removes a site for good, with its agents and storages. With
/// `dry_run`, the default, it only shows what that would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SiteRemoval {
    /// True, the default: remove nothing, only preview.
    #[serde(default = "yes")]
    pub dry_run: bool,
    /// True: remove the site even if it has the last good replica of a file.
    #[serde(default)]
    pub force: bool,
}

/// What the removal of a site means, or would mean.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteRemoved {
    /// The site.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// True if it is removed now.
    pub removed: bool,
    /// Agents of the site: their certificates are refused from then on.
    #[schema(value_type = Vec<formats::AgentId>)]
    pub agents: Vec<AgentId>,
    /// Those that are connected and not refused: as long as there is one, the site stays.
    #[schema(value_type = Vec<formats::AgentId>)]
    pub connected: Vec<AgentId>,
    /// Storages of the site, with what is there and under way. A replica at another storage of the site is no
    /// other good replica here, since it goes, too.
    pub storages: Vec<StorageRemoved>,
}

/// An agent of a site.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AgentView {
    /// Id of the agent, unique in the deployment.
    #[schema(value_type = formats::AgentId)]
    pub id: AgentId,
    /// Host name of the agent.
    pub host: String,
    /// Version of the agent's program.
    pub version: String,
    /// Number of starts of the agent on its state directory.
    pub incarnation: u64,
    /// Time of the last report.
    #[schema(value_type = Option<String>)]
    pub last_contact: Option<Timestamp>,
    /// True if the agent reported recently.
    pub connected: bool,
    /// Addresses `host:port` where other agents reach its data port.
    pub data_addresses: Vec<String>,
    /// The agent's clock minus the service's, in milliseconds.
    pub clock_offset_ms: i64,
    /// Time when the agent's certificate expires.
    #[schema(value_type = Option<String>)]
    pub certificate_expires: Option<Timestamp>,
    /// Copies between foreign storages that it streams, if its site allows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<MoverView>,
    /// Time since which the agent's certificates are refused, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub refused_since: Option<Timestamp>,
}

/// Copies between foreign storages that an agent streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoverView {
    /// Copies under way.
    pub busy: u32,
    /// Most copies at the same time.
    pub files: u32,
}

crate::hides_secrets!(SiteAdded);
