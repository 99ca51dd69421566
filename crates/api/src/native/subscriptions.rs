//! Subscriptions: keep a dataset or block at a storage, with progress and expected completion.

use longhaul_model::{
    BlockName, CommunityName, DatasetName, StorageName, SubscriptionId, SubscriptionState, Timestamp,
    Verification,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

use super::VerifiedCount;
use crate::steering::{Promise, Terms, TermsChange};

/// `POST /api/v1/subscriptions`: keeps a dataset or block at a storage. With an `Idempotency-Key` header, a
/// repetition returns the first answer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    /// Dataset to keep.
    #[schema(value_type = formats::DatasetName)]
    pub dataset: DatasetName,
    /// Only this block; by default the whole dataset, including files added later.
    #[serde(default)]
    #[schema(value_type = Option<formats::BlockName>)]
    pub block: Option<BlockName>,
    /// Target storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Order within the activity, on the scale of subscriptions: 1 (least) to 9; default 5.
    #[serde(default)]
    #[schema(value_type = Option<formats::SubscriptionPriority>)]
    pub priority: Option<u8>,
    /// How thoroughly to verify each file; default `end-to-end`.
    #[serde(default)]
    #[schema(value_type = Option<formats::Verification>)]
    pub verification: Option<Verification>,
    /// True: kept on purpose. Its cancellation needs the consent of two people: one who manages the data's
    /// community, and one who manages the storage's site.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub custodial: bool,
    /// Community, activity, strategy and deadline.
    #[serde(flatten)]
    pub terms: Terms,
}

/// `PATCH /api/v1/subscriptions/{id}`: absent fields keep their value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionChange {
    /// Suspends, resumes or cancels the subscription. A custodial one is cancelled when two people in two
    /// roles have asked for it; the first is shown in `cancel_consent`, and resuming withdraws it.
    #[serde(default)]
    #[schema(value_type = Option<formats::SubscriptionState>)]
    pub state: Option<SubscriptionState>,
    /// New priority, on the scale of subscriptions: 1 (least) to 9.
    #[serde(default)]
    #[schema(value_type = Option<formats::SubscriptionPriority>)]
    pub priority: Option<u8>,
    /// Changes of community, activity, strategy and deadline.
    #[serde(flatten)]
    pub terms: TermsChange,
}

/// A subscription with its progress.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionView {
    /// Id of the subscription.
    #[schema(value_type = formats::SubscriptionId)]
    pub id: SubscriptionId,
    /// Dataset to keep at the storage.
    #[schema(value_type = formats::DatasetName)]
    pub dataset: DatasetName,
    /// Only this block; absent: the whole dataset.
    #[schema(value_type = Option<String>)]
    pub block: Option<BlockName>,
    /// Target storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// `active`, `suspended` or `cancelled`.
    #[schema(value_type = formats::SubscriptionState)]
    pub state: SubscriptionState,
    /// Order within the activity, on the scale of subscriptions: 1 (least) to 9.
    pub priority: u8,
    /// How thoroughly each file is verified.
    #[schema(value_type = formats::Verification)]
    pub verification: Verification,
    /// Community whose share is charged: by the terms, or else by the dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub charged_to: Option<CommunityName>,
    /// Community, activity, strategy and deadline.
    #[serde(flatten)]
    pub terms: Terms,
    /// True: its cancellation needs the consent of two people.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub custodial: bool,
    /// The consent to its cancellation that stands; absent if nobody has consented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_consent: Option<CancelConsent>,
    /// Probability that the deadline is met; absent without a deadline or once complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// Time when the subscription was created.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Files that the subscription covers.
    pub files_wanted: u64,
    /// Size of these files together, in bytes.
    pub bytes_wanted: u64,
    /// Those of the files that are at the storage.
    pub files_present: u64,
    /// Size of the files at the storage, in bytes.
    pub bytes_present: u64,
    /// True if every file is at the storage.
    pub complete: bool,
    /// Time when the subscription became complete.
    #[schema(value_type = Option<String>)]
    pub completed: Option<Timestamp>,
    /// Goodput over the last ten seconds, in verified durable bytes per second.
    pub rate_now: f64,
    /// Mean goodput since the first byte that came for it, in verified durable bytes per second.
    pub rate_average: f64,
    /// Files under way now.
    pub files_running: u64,
    /// Failed attempts since it was created, until it was cancelled. A subscription to a dataset and one to a
    /// block of it, at the same storage, both count those of the block's files.
    pub retries: u64,
    /// Files given up after a failure.
    pub failed_files: u64,
    /// Files that arrived since it was created, until it was cancelled, by source.
    pub sources: Vec<SourceShare>,
    /// Why the storage has no room for all that is promised there; absent if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space_warning: Option<String>,
    /// Expected completion.
    pub expected: Expected,
    /// Files counted by how they were verified.
    pub verified: Vec<VerifiedCount>,
}

/// One person's consent to the cancellation of a custodial subscription. It lasts for seven days.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelConsent {
    /// Name of the person who has consented.
    pub who: String,
    /// Time of the consent.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// The missing one: a manager of this community or of this site.
    pub missing: String,
}

/// What came from one source.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SourceShare {
    /// Source storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Files that arrived from it.
    pub files: u64,
    /// Bytes that arrived from it.
    pub bytes: u64,
}

/// Expected completion, or why there is no estimate, and what delays it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Expected {
    /// Completion is as likely before this time as after it.
    #[schema(value_type = Option<String>)]
    pub median: Option<Timestamp>,
    /// Completion is before this time with a probability of 90 %.
    #[schema(value_type = Option<String>)]
    pub ninety: Option<Timestamp>,
    /// Why there is no estimate; absent if there is one.
    pub why_none: Option<String>,
    /// What delays completion, in words, most important first.
    pub held_up_by: Vec<String>,
    /// Files that the estimate leaves out, since they cannot come now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckFiles>,
}

/// Files that cannot come until somebody acts, or what is away returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StuckFiles {
    /// Their number.
    pub files: u64,
    /// Why they cannot come, in words, with the number of files of each reason.
    pub why: String,
}
