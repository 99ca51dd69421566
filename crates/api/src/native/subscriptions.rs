//! Subscriptions: keep a dataset or block at a storage, with progress and expected completion.

use longhaul_model::{
    BlockName, CommunityName, DatasetName, StorageName, SubscriptionId, SubscriptionState, Timestamp,
    Verification,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::VerifiedCount;
use crate::steering::{Promise, Terms, TermsChange};

/// `POST /api/v1/subscriptions`. With an `Idempotency-Key` header a repetition returns the first answer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Subscribe {
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    /// Only this block; default: the whole dataset, and what is added to it later.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub block: Option<BlockName>,
    #[schema(value_type = String)]
    pub storage: StorageName,
    /// 1 (least) to 9; default 5.
    #[serde(default)]
    pub priority: Option<u8>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub verification: Option<Verification>,
    #[serde(flatten)]
    pub terms: Terms,
}

/// `PATCH /api/v1/subscriptions/{id}`: what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionChange {
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub state: Option<SubscriptionState>,
    #[serde(default)]
    pub priority: Option<u8>,
    #[serde(flatten)]
    pub terms: TermsChange,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SubscriptionView {
    #[schema(value_type = String)]
    pub id: SubscriptionId,
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = Option<String>)]
    pub block: Option<BlockName>,
    #[schema(value_type = String)]
    pub storage: StorageName,
    #[schema(value_type = String)]
    pub state: SubscriptionState,
    pub priority: u8,
    #[schema(value_type = String)]
    pub verification: Verification,
    /// The community whose share is charged, by its terms or by its dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub charged_to: Option<CommunityName>,
    #[serde(flatten)]
    pub terms: Terms,
    /// The chance that the deadline is met; absent once it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    #[schema(value_type = String)]
    pub created: Timestamp,
    pub files_wanted: u64,
    pub bytes_wanted: u64,
    pub files_present: u64,
    pub bytes_present: u64,
    pub complete: bool,
    #[schema(value_type = Option<String>)]
    pub completed: Option<Timestamp>,
    /// Verified durable bytes per second: over the last ten seconds, and since the first byte.
    pub rate_now: f64,
    pub rate_average: f64,
    pub files_running: u64,
    pub retries: u64,
    pub failed_files: u64,
    /// Files that arrived, by source.
    pub sources: Vec<SourceShare>,
    pub expected: Expected,
    /// Files by how they were verified.
    pub verified: Vec<VerifiedCount>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SourceShare {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub files: u64,
    pub bytes: u64,
}

/// When it will be there, or why nobody can say; and what holds it up.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Expected {
    /// As likely earlier as later.
    #[schema(value_type = Option<String>)]
    pub median: Option<Timestamp>,
    /// Nine in ten are earlier.
    #[schema(value_type = Option<String>)]
    pub ninety: Option<Timestamp>,
    /// Why there is no estimate.
    pub why_none: Option<String>,
    /// In words, most important first.
    pub held_up_by: Vec<String>,
}
