//! Transfers: what is asked about them and told of them.

use longhaul_model::{
    AttemptId, DatasetName, DigestSet, Fault, Lfn, StorageName, Timestamp, TransferId, TransferState,
    Verification,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::AttemptTimes;

/// Query of `GET /api/v1/transfers`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TransferQuery {
    #[schema(value_type = Option<String>)]
    pub dataset: Option<DatasetName>,
    #[schema(value_type = Option<String>)]
    pub source: Option<StorageName>,
    #[schema(value_type = Option<String>)]
    pub target: Option<StorageName>,
    #[schema(value_type = Option<String>)]
    pub state: Option<TransferState>,
    pub limit: Option<u32>,
    pub after: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TransferView {
    #[schema(value_type = String)]
    pub id: TransferId,
    #[schema(value_type = String)]
    pub dataset: DatasetName,
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    #[schema(value_type = String)]
    pub target: StorageName,
    /// The source of the present or last attempt.
    #[schema(value_type = Option<String>)]
    pub source: Option<StorageName>,
    #[schema(value_type = String)]
    pub state: TransferState,
    pub attempts: u32,
    pub bytes_done: u64,
    #[schema(value_type = String)]
    pub changed: Timestamp,
    /// Why it waits, in words with a number, if it does.
    pub waits_for: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    #[schema(value_type = Option<String>)]
    pub verification: Option<Verification>,
}

/// `GET /api/v1/transfers/{id}`: everything about one transfer, and why.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TransferDetail {
    pub transfer: TransferView,
    pub attempts: Vec<AttemptView>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    #[schema(value_type = String)]
    pub id: AttemptId,
    #[schema(value_type = String)]
    pub source: StorageName,
    #[schema(value_type = String)]
    pub chosen: Timestamp,
    /// Why this source, and what the others would have cost.
    pub choice: Choice,
    pub times: AttemptTimes,
    pub bytes_moved: u64,
    pub bytes_resent: u64,
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    #[schema(value_type = Option<String>)]
    pub verification: Option<Verification>,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    pub already_there: bool,
    /// In words: where the time went.
    pub finished: bool,
}

/// Inputs and runners-up of one choice of a source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Choice {
    /// The decisive reason, in words.
    pub reason: String,
    /// The storages after the source, if the target is only on the way to another one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub way: Vec<StorageName>,
    /// The community whose share was charged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub charged_to: String,
    pub candidates: Vec<Candidate>,
    /// How long it waited in the queue, in microseconds, and behind what.
    pub waited_us: u64,
    pub waited_for: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Candidate {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub chosen: bool,
    /// Expected time to finish, microseconds from the choice; none if unusable.
    pub finish_us: Option<u64>,
    pub rate_bytes_per_s: f64,
    /// What the rate is expected from, after "by".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rate_by: String,
    /// Work given to this source before, not yet done.
    pub bytes_ahead: u64,
    /// Share of recent attempts from it that failed, 0 to 1.
    pub failure_share: f64,
    /// Why it could not be used, if so.
    pub unusable: Option<String>,
}
