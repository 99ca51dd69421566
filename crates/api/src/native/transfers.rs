//! Transfers and their attempts, with the reasons for each choice of a source.

use longhaul_model::{
    AttemptId, DatasetName, DigestSet, Executor, Fault, Lfn, StorageName, Timestamp, TransferId,
    TransferState, Verification,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

use crate::agent::AttemptTimes;

/// Query of `GET /api/v1/transfers`; each field narrows the list.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TransferQuery {
    /// Only this dataset.
    #[schema(value_type = Option<formats::DatasetName>)]
    pub dataset: Option<DatasetName>,
    /// Only from this storage.
    #[schema(value_type = Option<formats::StorageName>)]
    pub source: Option<StorageName>,
    /// Only to this storage.
    #[schema(value_type = Option<formats::StorageName>)]
    pub target: Option<StorageName>,
    /// Only in this state.
    #[schema(value_type = Option<formats::TransferState>)]
    pub state: Option<TransferState>,
    /// Items of a page.
    pub limit: Option<u32>,
    /// Cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// A transfer of one file to one storage.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TransferView {
    /// Id of the transfer.
    #[schema(value_type = formats::TransferId)]
    pub id: TransferId,
    /// Dataset of the file.
    #[schema(value_type = formats::DatasetName)]
    pub dataset: DatasetName,
    /// Logical name of the file.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Size in bytes.
    pub size: u64,
    /// Target storage.
    #[schema(value_type = formats::StorageName)]
    pub target: StorageName,
    /// Source storage of the present or latest attempt; absent before the first.
    #[schema(value_type = Option<formats::StorageName>)]
    pub source: Option<StorageName>,
    /// `waiting`, `leased`, `done`, `failed` or `cancelled`.
    #[schema(value_type = formats::TransferState)]
    pub state: TransferState,
    /// Attempts so far.
    pub attempts: u32,
    /// Bytes of the file that have arrived and are verified.
    pub bytes_done: u64,
    /// Time of the last change.
    #[schema(value_type = String)]
    pub changed: Timestamp,
    /// Why the transfer waits, with numbers; absent if it does not wait.
    pub waits_for: Option<String>,
    /// Why the latest attempt failed, if it did.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    /// How the file was verified, once it has arrived.
    #[schema(value_type = Option<formats::Verification>)]
    pub verification: Option<Verification>,
}

/// `GET /api/v1/transfers/{id}`: a transfer with all its attempts.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TransferDetail {
    /// The transfer.
    pub transfer: TransferView,
    /// All attempts so far.
    pub attempts: Vec<AttemptView>,
}

/// One attempt of a transfer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// Id of the attempt.
    #[schema(value_type = formats::AttemptId)]
    pub id: AttemptId,
    /// Source storage.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Time when the source was chosen.
    #[schema(value_type = String)]
    pub chosen: Timestamp,
    /// Why this source was chosen, with the expected times of the others.
    pub choice: Choice,
    /// When the attempt passed its phases.
    pub times: AttemptTimes,
    /// Payload bytes that crossed the wire.
    pub bytes_moved: u64,
    /// Those of `bytes_moved` that were sent more than once.
    pub bytes_resent: u64,
    /// Why the attempt failed; absent if it did not.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    /// How the file was verified, if the attempt succeeded.
    #[schema(value_type = Option<formats::Verification>)]
    pub verification: Option<Verification>,
    /// Digests computed from the received bytes.
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    /// The party that moved the bytes, once the attempt has ended; absent if nobody did, or an agent of
    /// release 0.1 reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::Executor>)]
    pub executor: Option<Executor>,
    /// True if the target already held the right file and nothing was moved.
    pub already_there: bool,
    /// True once the attempt has ended, well or not.
    pub finished: bool,
}

/// The choice of a source, with its inputs and the other candidates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Choice {
    /// Decisive reason, in words.
    pub reason: String,
    /// All storages of the route after the source, if the target of this hop is a relay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::StorageName>)]
    pub way: Vec<StorageName>,
    /// Community whose share was charged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub charged_to: String,
    /// All candidates, including those that could not be used.
    pub candidates: Vec<Candidate>,
    /// Time in the queue, in microseconds.
    pub waited_us: u64,
    /// What the transfer waited for, in words.
    pub waited_for: String,
}

/// A source that was considered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Candidate {
    /// Source storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// True for the chosen source.
    pub chosen: bool,
    /// Expected time to finish, in microseconds after the choice; absent if unusable.
    pub finish_us: Option<u64>,
    /// Expected rate in bytes per second.
    pub rate_bytes_per_s: f64,
    /// Origin of the expected rate, as a phrase that follows "by".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rate_by: String,
    /// Bytes assigned to this source earlier and not yet done.
    pub bytes_ahead: u64,
    /// Share of recent attempts from it that failed, 0 to 1.
    pub failure_share: f64,
    /// Why the source could not be used; absent if it could.
    pub unusable: Option<String>,
}
