//! Subscriptions, their demands and their progress.

use longhaul_model::{
    ActivityName, AttemptId, BlockId, BlockName, CommunityName, DatasetId, DatasetName, StorageId,
    StorageName, SubscriptionId, SubscriptionState, Timestamp, TransferId, Verification,
};

use super::datasets::VerificationCounts;
use crate::custody::CancelConsent;

#[derive(Clone, Debug)]
pub struct NewSubscription {
    /// The id of the subscription, if one is created.
    pub id: SubscriptionId,
    pub dataset: DatasetId,
    /// Only this block; default: the whole dataset, and what is added to it later.
    pub block: Option<BlockId>,
    pub target: StorageId,
    /// 1 (least) to 9.
    pub priority: u8,
    pub verification: Verification,
    pub terms: Terms,
    /// Its cancellation needs two people.
    pub custodial: bool,
}

/// Further terms of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The community whose share it is charged to; none: that of the dataset.
    pub community: Option<CommunityName>,
    pub activity: Option<ActivityName>,
    /// The strategy by which sources are chosen; none: that of the target or the service.
    pub strategy: Option<String>,
    /// When all of the data should be there.
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
    pub custodial: bool,
    /// Somebody has consented to its cancellation, and another has to.
    pub consent: Option<CancelConsent>,
    pub created: Timestamp,
    /// When it last became complete; none while it is not.
    pub completed: Option<Timestamp>,
}

/// A filter for subscriptions; None matches everything.
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

/// Changes of a subscription; None leaves a field as it is.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionPatch {
    pub state: Option<SubscriptionState>,
    pub priority: Option<u8>,
    pub terms: TermsPatch,
    /// The consent of the person who cancels it: a custodial one needs those of two.
    pub consent: Option<CancelConsent>,
}

/// Changes of terms; None leaves a field as it is, `Some(None)` removes it.
#[derive(Clone, Debug, Default)]
pub struct TermsPatch {
    pub community: Option<Option<CommunityName>>,
    pub activity: Option<Option<ActivityName>>,
    pub strategy: Option<Option<String>>,
    pub deadline: Option<Option<Timestamp>>,
}

/// A demand: what one active subscription lacks of one block. The row exists exactly as long as something is
/// lacking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandRow {
    pub subscription: SubscriptionId,
    pub dataset: DatasetId,
    pub block: BlockId,
    pub target: StorageId,
    pub priority: u8,
    pub verification: Verification,
    /// The dataset's community.
    pub community: CommunityName,
    /// The subscription's terms, with the target's strategy where it names none.
    pub terms: Terms,
    /// When the subscription was created.
    pub created: Timestamp,
    pub files_missing: u64,
    pub bytes_missing: u64,
}

/// The result of adding or changing a subscription.
#[derive(Clone, Debug)]
pub struct SubscriptionResult {
    pub subscription: SubscriptionRow,
    /// False if the same subscription existed already, or nothing changed.
    pub changed: bool,
    /// All its present demands.
    pub demands: Vec<DemandRow>,
    /// Blocks that it no longer demands.
    pub demands_gone: Vec<BlockId>,
    /// Transfers that served no other subscription: cancelled in the catalog, their agents must be told.
    pub cancelled: Vec<CancelledTransfer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelledTransfer {
    pub transfer: TransferId,
    pub file: longhaul_model::FileId,
    pub block: BlockId,
    pub target: StorageId,
    /// The lease to revoke, if it had one.
    pub lease: Option<(AttemptId, longhaul_model::AgentId)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionProgress {
    pub files_wanted: u64,
    pub bytes_wanted: u64,
    /// Good replicas only.
    pub files_present: u64,
    pub bytes_present: u64,
    pub complete: bool,
    pub verified: VerificationCounts,
    /// Live transfers with a lease.
    pub files_leased: u64,
    pub files_waiting: u64,
    pub files_failed: u64,
    /// Failed attempts since its creation, until its cancellation.
    pub retries: u64,
    /// Totals of what arrived by transfer since its creation, until its cancellation, by source.
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

/// Totals of the whole catalog.
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
