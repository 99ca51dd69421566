//! What the scheduler is told. Events may come twice, late or about unknown things: such events change
//! nothing.
//!
//! After a start the order is: sites, storages, demands, live transfers ([`Event::Adopt`]), and then agents
//! as they say hello. Nothing is leased to an agent before [`Event::Agent`] says that it is connected.

use crate::circuits::LinkCircuit;
use crate::limits::Limits;
use crate::link_shares::LinkShares;
use crate::shares::{Party, Shares};
use crate::strategy::Strategy;
use longhaul_model::{
    AgentId, AttemptId, BlockId, Epoch, Fault, FileId, SiteId, SiteName, StorageId, StorageName,
    SubscriptionId, Timestamp, TransferId,
};
use longhaul_network::RegionId;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A site is new or has changed.
    Site(SiteInfo),
    /// In which region a site lies, or that nobody says. What links between two regions have in common is
    /// believed of links between them that are new.
    Region { site: SiteId, region: Option<RegionId> },
    /// A storage is new or has changed; also whenever an agent reports trouble or its end.
    Storage(StorageInfo),
    /// Which agent works for a storage, and whether it is in contact.
    Agent { storage: StorageId, agent: Option<AgentId>, connected: bool },
    /// An agent said hello and holds these leases: all others of it are released.
    #[serde(rename = "Held")]
    HeldLeases { agent: AgentId, attempts: Vec<AttemptId> },
    /// The links there are, in place of what was said before; none: from every storage to every other, as at
    /// first.
    Links(Option<Vec<(StorageId, StorageId)>>),
    /// What communities and activities are entitled to, in place of what was said before.
    Shares(Shares),
    /// What communities are entitled to on links that have weights of their own, in place of what was said
    /// before.
    LinkShares(Vec<LinkShares>),
    /// Limits beyond those of sites, and links that are not commissioned, in place of what was said before.
    Limits(Limits),
    /// The links that go by circuits, in place of what was said before.
    Circuits(Vec<LinkCircuit>),
    /// A demand is new, or its priority or what it lacks has changed (growing datasets).
    Demand(Demand),
    /// Cancelled, suspended, or complete.
    DemandGone { id: DemandId },
    /// The same for all demands of a subscription.
    SubscriptionGone { subscription: SubscriptionId },
    /// The deadline of a subscription is in danger, or is so no more: meanwhile it goes before all else of
    /// its activity. Means nothing for one without a deadline.
    #[serde(rename = "Hurry")]
    Expedite {
        subscription: SubscriptionId,
        #[serde(rename = "hurry")]
        expedite: bool,
    },
    /// The answer to [`crate::Decision::Expand`]: files missing at the target, in the order of their ids.
    /// `exhausted`: there are none after these.
    Files { demand: DemandId, files: Vec<WantedFile>, exhausted: bool },
    /// [`crate::Decision::Expand`] could not be answered now; it is repeated after a while.
    ExpandFailed { demand: DemandId },
    /// A file is at a storage now. Implied by a successful [`Event::Outcome`]; saying it again does no harm.
    ReplicaAdded { file: FileId, storage: StorageId },
    /// A file is no longer usable at a storage.
    ReplicaLost { file: FileId, storage: StorageId },
    /// Files of a block that the answers to [`crate::Decision::Expand`] left out can be had now: the block is
    /// expanded again for this target.
    FilesReadable { block: BlockId, target: StorageId },
    /// Every file of a block is at a storage now.
    BlockComplete { block: BlockId, storage: StorageId },
    /// No file of a block is usable at a storage any more.
    BlockLost { block: BlockId, storage: StorageId },
    /// A transfer that was live before the service restarted.
    Adopt(AdoptedTransfer),
    /// An attempt has begun at its agent.
    Started { attempt: AttemptId },
    /// Bytes of an attempt that have arrived; cumulative.
    Progress { attempt: AttemptId, bytes_done: u64 },
    /// The end of an attempt, already durable. If a file arrives under a lease that was just being taken
    /// back, the attempt is unknown here: then the next lease of that transfer, which the catalog refuses
    /// since the file is there, is answered with a successful outcome, or [`Event::ReplicaAdded`] is told at
    /// once.
    Outcome(Outcome),
    /// A lease that its agent does not hold: it goes back to the queue.
    LeaseReleased { attempt: AttemptId },
    /// Somebody removed what stood in the way: a waiting transfer rests no longer after its failures.
    TryNow { transfer: TransferId },
}

/// One subscription's wish for one block at the subscription's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DemandId {
    pub subscription: SubscriptionId,
    pub block: BlockId,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Demand {
    pub id: DemandId,
    pub target: StorageId,
    /// 1 (least) to 9; others are taken as the nearest of these.
    pub priority: u8,
    /// The party whose share it is charged to.
    pub party: Party,
    /// When the subscription was made: the age of its demands.
    pub created: Timestamp,
    /// When all of the subscription should be there.
    pub deadline: Option<Timestamp>,
    /// None: as [`crate::Settings::strategy`] says.
    pub strategy: Option<Strategy>,
    /// What is missing at the target now, transfers under way included.
    pub files_left: u64,
    pub bytes_left: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedFile {
    pub file: FileId,
    pub size: u64,
    /// Storages with a usable replica now.
    pub sources: Vec<StorageId>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteInfo {
    pub id: SiteId,
    pub name: SiteName,
    pub state: SiteState,
    /// Why it is not open, in the words of who closed it.
    pub reason: Option<String>,
    pub limits: SiteLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteState {
    Open,
    /// Nothing new is leased; what is leased goes on.
    Draining,
    /// Nothing new is leased; what is leased and has not begun is taken back.
    Paused,
}

/// None is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteLimits {
    pub active_in: Option<u32>,
    pub active_out: Option<u32>,
    /// Leases keep to them, in the order of shares and priorities; agents enforce them byte by byte.
    pub in_bytes_per_s: Option<u64>,
    pub out_bytes_per_s: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StorageInfo {
    pub id: StorageId,
    pub name: StorageName,
    pub site: SiteId,
    pub writable: bool,
    /// Files may pass through it on their way to others, and stay there until then.
    pub relay: bool,
    /// Why it takes no files now, as its agent reports it.
    pub trouble: Option<Fault>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AdoptedTransfer {
    pub transfer: TransferId,
    pub file: FileId,
    pub block: BlockId,
    pub target: StorageId,
    pub size: u64,
    pub sources: Vec<StorageId>,
    /// Attempts that have ended.
    pub attempts: u32,
    /// Epoch of the last lease.
    pub epoch: Epoch,
    pub not_before: Option<Timestamp>,
    pub lease: Option<AdoptedLease>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct AdoptedLease {
    pub attempt: AttemptId,
    pub source: StorageId,
    /// The agent that holds it.
    pub agent: AgentId,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub attempt: AttemptId,
    pub epoch: Epoch,
    /// None: the file is at the target, verified and durable.
    pub fault: Option<Fault>,
    /// Payload that crossed the wire; less than the size when a transfer was resumed or was there already.
    pub bytes_moved: u64,
}
