//! Removed sites, storages and agents.

use longhaul_model::{
    AgentId, BlockId, DatasetName, SiteId, SiteName, StorageId, StorageName, SubscriptionId, TaskId,
};

use crate::{CancelledTransfer, LiveTransferRow, RefusalResult, SiteRow};

/// What depends on a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConcerns {
    pub id: StorageId,
    pub name: StorageName,
    pub site: SiteId,
    pub site_name: SiteName,
    pub datasets: Vec<DatasetAtStorage>,
    /// Transfers to it that an agent carries out.
    pub leases_in: u64,
    /// Transfers of other storages' agents that read from it.
    pub leases_out: u64,
    /// Open tasks there.
    pub tasks: u64,
    /// Subscriptions to it that are not cancelled: active and suspended ones, a page at most.
    pub subscriptions: Vec<SubscriptionId>,
}

/// What a storage holds of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetAtStorage {
    pub dataset: DatasetName,
    pub files: u64,
    pub bytes: u64,
    /// Files of which no other storage has a good copy.
    pub last_replicas: u64,
}

/// What became of a storage's work and replicas when it was removed.
#[derive(Clone, Debug)]
pub struct StorageRemoval {
    pub concerns: StorageConcerns,
    /// Transfers from it that wait again, for another source.
    pub released: Vec<LiveTransferRow>,
    /// Transfers to it, on their way elsewhere.
    pub cancelled: Vec<CancelledTransfer>,
    pub tasks: Vec<TaskId>,
    /// Blocks of which it held something.
    pub blocks: Vec<BlockId>,
}

/// What became of an agent's work and storages when it was removed.
#[derive(Clone, Debug)]
pub struct AgentRemoval {
    pub refused: RefusalResult,
    /// Storages that nothing depended on: they went with it.
    pub storages: Vec<StorageRemoval>,
}

/// What depends on a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteConcerns {
    pub site: SiteRow,
    pub agents: Vec<AgentId>,
    /// A copy at another storage of the site is no other good copy: it goes, too.
    pub storages: Vec<StorageConcerns>,
}

/// What became of a site's agents and storages when it was removed.
#[derive(Clone, Debug)]
pub struct SiteRemoval {
    pub site: SiteRow,
    pub agents: Vec<(AgentId, RefusalResult)>,
    pub storages: Vec<StorageRemoval>,
}

impl StorageConcerns {
    /// Whether nothing is there, nothing is to come and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.datasets.is_empty()
            && self.subscriptions.is_empty()
            && self.tasks == 0
            && self.leases_in == 0
            && self.leases_out == 0
    }

    pub fn files(&self) -> u64 {
        self.datasets.iter().map(|held| held.files).fold(0, u64::saturating_add)
    }

    pub fn bytes(&self) -> u64 {
        self.datasets.iter().map(|held| held.bytes).fold(0, u64::saturating_add)
    }

    pub fn last_replicas(&self) -> u64 {
        self.datasets.iter().map(|held| held.last_replicas).fold(0, u64::saturating_add)
    }
}
