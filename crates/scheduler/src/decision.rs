//! What the scheduler decides, with the inputs of each choice of a source.

use std::time::Duration;

use longhaul_model::{
    AgentId, AttemptId, BlockId, Epoch, Fault, FileId, StorageId, StorageName, Timestamp, TransferId,
};
use serde::{Deserialize, Serialize};

use crate::event::DemandId;
use crate::limits::LimitKind;
use crate::link_shares::LinkWeight;
use crate::strategy::Strategy;

/// An output of the scheduler. The service makes decisions durable in order, before they leave the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// Answer with [`crate::Event::Files`]: up to `limit` files of `block` with ids after `after` that are
    /// missing at `target` and have no live transfer there and none that failed for good; or with
    /// [`crate::Event::ExpandFailed`]. At most one is outstanding per demand.
    Expand { demand: DemandId, block: BlockId, target: StorageId, after: Option<FileId>, limit: u32 },
    /// An agent gets the right to run one attempt.
    Lease(Lease),
    /// A lease is taken back: tell `agent`. Outcomes that still come for it change nothing here.
    Cancel { transfer: TransferId, attempt: AttemptId, agent: AgentId, why: CancelWhy },
    /// A lease is recalled, since its link has become slow: tell its agent. If it has not begun it ends with
    /// [`longhaul_model::FaultCode::GivenBack`]; otherwise it goes on.
    #[serde(rename = "GiveBack")]
    Recall(LeaseRecall),
    /// A live transfer of before the restart that nobody wants and no agent holds.
    Drop { transfer: TransferId },
    /// The source's replica is not what the catalog says; no transfer uses it until
    /// [`crate::Event::ReplicaAdded`].
    Suspect { transfer: TransferId, file: FileId, source: StorageId, fault: Fault },
    /// The transfer has failed for good; a person must act and ask again.
    Fail { transfer: TransferId, file: FileId, target: StorageId, fault: Fault },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelWhy {
    /// No demand wants the transfer any more; it is over.
    Unwanted,
    /// A site was paused; the transfer goes back to the queue.
    SitePaused,
}

/// Numbers only; [`crate::Scheduler::explain_recall`] puts them in words.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecall {
    pub transfer: TransferId,
    pub attempt: AttemptId,
    pub agent: AgentId,
    pub source: StorageId,
    /// What the link gives now, failures counted in, and after how long the file would come.
    pub rate_bytes_per_s: f64,
    pub finish: Duration,
    /// The same from the source from which it would come first.
    pub other: StorageId,
    pub other_finish: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    pub transfer: TransferId,
    pub attempt: AttemptId,
    pub epoch: Epoch,
    pub file: FileId,
    pub block: BlockId,
    pub size: u64,
    pub source: StorageId,
    pub source_agent: AgentId,
    pub target: StorageId,
    /// The agent that runs it, at the target.
    pub agent: AgentId,
    pub priority: u8,
    /// Number of this try of the transfer, from 1.
    pub try_number: u32,
    pub chosen: Timestamp,
    /// An attempt not begun by then must not begin.
    pub start_by: Timestamp,
    pub choice: Choice,
}

/// Inputs and runners-up of one choice. Numbers only, since there are many; [`crate::Scheduler::explain`]
/// puts it in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The rule by which the source was chosen.
    pub strategy: Strategy,
    /// The chosen one first, then by expected finish, unusable ones last; at most
    /// [`crate::settings::CANDIDATES_MAX`].
    pub candidates: Vec<Candidate>,
    /// How long it waited since it could have been leased first, or since the last attempt ended.
    pub waited: Duration,
    /// Files of the same target leased while it waited.
    pub leased_before: u64,
    /// Where others wanted the same link, and it has weights of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_weight: Option<LinkWeight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    pub storage: StorageId,
    /// Expected time to finish from the choice, failures counted in.
    pub finish: Duration,
    pub rate_bytes_per_s: f64,
    /// Given to this source before, for any target, and not yet done.
    pub bytes_ahead: u64,
    /// Share of recent attempts over this link that failed, 0 to 1.
    pub failure_share: f64,
    /// What the strategy goes by, the lower the better (see [`Strategy`]); 0 under [`Strategy::Best`].
    pub rank: f64,
    /// The link goes by a circuit.
    #[serde(default)]
    pub by_circuit: bool,
    pub unusable: Option<Unusable>,
}

/// Why a replica could not be read from at the time of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unusable {
    /// No agent serves the storage now.
    NotConnected,
    SiteDraining,
    SitePaused,
    /// The site's limit on attempts out, all in use.
    ActiveOut {
        limit: u32,
    },
    /// Enough has been given to this link.
    WindowFull {
        files: u32,
        bytes: u64,
    },
    /// It failed for this file and is in backoff.
    #[serde(rename = "Resting")]
    InBackoff {
        until: Timestamp,
    },
    /// It could not be reached lately; tried again, once, at that time.
    Unreachable {
        until: Timestamp,
    },
    /// There is no link from it to the target.
    NoLink,
    /// The link carries test transfers only.
    NotCommissioned,
    /// The work goes by circuits only, and the link has none.
    NoCircuit,
    /// A limit on files at once, all in use.
    LimitActive {
        of: LimitKind,
        limit: u32,
    },
    /// A limit on bytes per second, all in use until then.
    LimitRate {
        of: LimitKind,
        bytes_per_s: u64,
        until: Timestamp,
    },
    /// The service knows no such storage.
    Unknown,
}

/// [`Choice`] in words, with the fields that the API shows.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceExplanation {
    pub reason: String,
    pub candidates: Vec<CandidateExplanation>,
    pub waited: Duration,
    pub waited_for: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CandidateExplanation {
    pub id: StorageId,
    pub storage: StorageName,
    pub chosen: bool,
    /// None if unusable.
    pub finish: Option<Duration>,
    pub rate_bytes_per_s: f64,
    pub bytes_ahead: u64,
    pub failure_share: f64,
    pub unusable: Option<String>,
}
