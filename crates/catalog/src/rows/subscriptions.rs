//! Subscriptions, what they still lack, and how far they are.

use longhaul_model::{
    ActivityName, AttemptId, BlockId, BlockName, CommunityName, DatasetId, DatasetName, StorageId,
    StorageName, SubscriptionId, SubscriptionState, Timestamp, TransferId, Verification,
};

use super::datasets::VerificationCounts;

#[derive(Clone, Debug)]
pub struct NewSubscription {
    /// Used if a subscription comes into being.
    pub id: SubscriptionId,
    pub dataset: DatasetId,
    /// Only this block; default: the whole dataset, and what is added to it later.
    pub block: Option<BlockId>,
    pub target: StorageId,
    /// 1 (least) to 9.
    pub priority: u8,
    pub verification: Verification,
    pub terms: Terms,
}

/// What a subscription asks for beside its priority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Whose share it is charged to; none: that of the dataset's community.
    pub community: Option<CommunityName>,
    pub activity: Option<ActivityName>,
    /// How sources are chosen, by name; none: as the target or the service has it.
    pub strategy: Option<String>,
    /// When all of it should be there.
    pub deadline: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRow {
    pub id: SubscriptionId,
    pub dataset: DatasetId,
    pub dataset_name: DatasetName,
    pub community: CommunityName,
    pub block: Option<BlockId>,
    pub block_name: Option<BlockName>,
    pub target: StorageId,
    pub target_name: StorageName,
    pub state: SubscriptionState,
    pub priority: u8,
    pub verification: Verification,
    pub terms: Terms,
    pub created: Timestamp,
    /// When it last became complete; none while it is not.
    pub completed: Option<Timestamp>,
}

/// What a filter leaves out does not matter.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionFilter {
    pub dataset: Option<DatasetId>,
    pub target: Option<StorageId>,
    pub state: Option<SubscriptionState>,
    /// Oldest first, beginning after this one.
    pub after: Option<SubscriptionId>,
    /// Bounded by [`crate::PAGE_ROWS_MAX`].
    pub limit: usize,
}

/// What is absent stays.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionPatch {
    pub state: Option<SubscriptionState>,
    pub priority: Option<u8>,
    pub terms: TermsPatch,
}

/// What is absent stays; `Some(None)` takes it away.
#[derive(Clone, Debug, Default)]
pub struct TermsPatch {
    pub community: Option<Option<CommunityName>>,
    pub activity: Option<Option<ActivityName>>,
    pub strategy: Option<Option<String>>,
    pub deadline: Option<Option<Timestamp>>,
}

/// What one active subscription lacks in one block. A row exists exactly as long as something lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandRow {
    pub subscription: SubscriptionId,
    pub dataset: DatasetId,
    pub block: BlockId,
    pub target: StorageId,
    pub priority: u8,
    pub verification: Verification,
    /// Of the dataset.
    pub community: CommunityName,
    /// With the strategy of the target where the subscription names none.
    pub terms: Terms,
    /// When the subscription was made.
    pub created: Timestamp,
    pub files_missing: u64,
    pub bytes_missing: u64,
}

/// What adding or changing a subscription did.
#[derive(Clone, Debug)]
pub struct SubscriptionResult {
    pub subscription: SubscriptionRow,
    /// False if the same wish existed already and is returned, or nothing changed.
    pub changed: bool,
    /// All its demands as they are now.
    pub demands: Vec<DemandRow>,
    /// Blocks it wanted before and wants no more.
    pub demands_gone: Vec<BlockId>,
    /// Transfers that served nobody else; they are cancelled in the catalog, their agents are to be told.
    pub cancelled: Vec<CancelledTransfer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelledTransfer {
    pub transfer: TransferId,
    pub file: longhaul_model::FileId,
    pub block: BlockId,
    pub target: StorageId,
    /// The lease to take back, if it had one.
    pub lease: Option<(AttemptId, longhaul_model::AgentId)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionProgress {
    pub files_wanted: u64,
    pub bytes_wanted: u64,
    /// Good ones only.
    pub files_present: u64,
    pub bytes_present: u64,
    pub complete: bool,
    pub verified: VerificationCounts,
    /// Live transfers with a lease; waiting ones; those whose last try ended in a fault that no retry mends.
    pub files_leased: u64,
    pub files_waiting: u64,
    pub files_failed: u64,
    /// Attempts that failed.
    pub retries: u64,
    /// Of what arrived by transfer, by source.
    pub sources: Vec<SourceTotals>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTotals {
    pub source: StorageId,
    pub source_name: StorageName,
    pub files: u64,
    pub bytes: u64,
    pub attempts_failed: u64,
}

/// The whole catalog in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub datasets: u64,
    pub files: u64,
    pub bytes: u64,
    /// Delivered by transfers since the beginning.
    pub files_done: u64,
    pub bytes_done: u64,
    pub transfers_leased: u64,
    pub transfers_waiting: u64,
    /// Failed attempts by blame, since the beginning.
    pub failures: Vec<(longhaul_model::Blame, u64)>,
    pub links: Vec<LinkTotals>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTotals {
    pub source: StorageId,
    pub target: StorageId,
    pub files: u64,
    pub bytes: u64,
    pub attempts_failed: u64,
}
