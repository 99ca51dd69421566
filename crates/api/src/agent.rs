//! What an agent and the service say to each other. Three calls, all made by the agent over mutual TLS
//! (the first one with a join token instead of a certificate):
//!
//! * `POST /api/v1/agent/join`   — a join token and a signing request in, a certificate and an identity out;
//! * `POST /api/v1/agent/report` — outcomes, progress, observations under sequence numbers; acknowledged once
//!   durable;
//! * `POST /api/v1/agent/work` — a long poll: leases with permits, tasks, cancellations, settings, as soon as
//!   there are any.
//!
//! Times are the service's clock; `now` in each reply lets the agent learn it.

use std::sync::Arc;

use longhaul_model::{
    AgentId, AttemptId, CircuitUse, DatasetName, DigestSet, Epoch, Fault, Lfn, Mark, NameRules, SiteName,
    StorageName, TaskId, Timestamp, TrafficClass, TransferId, Verification,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::VersionRange;
use crate::circuits::{CircuitLink, CircuitOrder};
use crate::foreign::{ForeignCopy, MoverOffer};
use crate::probe::{PathSample, ProbeAsked, ProbeResult, UplinkSample};

#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct JoinRequest {
    pub versions: VersionRange,
    /// The secret part of the join token.
    pub secret: String,
    /// PEM certificate signing request for a key that never leaves the agent.
    pub signing_request: String,
    /// Host name, for people.
    pub host: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JoinReply {
    #[schema(value_type = String)]
    pub agent: AgentId,
    #[schema(value_type = String)]
    pub site: SiteName,
    /// Names the deployment; also in every certificate.
    pub deployment: String,
    /// PEM chain for the agent's key.
    pub certificate: String,
    /// PEM of the deployment's CA.
    pub ca: String,
    /// PEM of the key that signs permits.
    pub permit_key: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RenewRequest {
    pub signing_request: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RenewReply {
    pub certificate: String,
    pub ca: String,
}

/// One start of an agent on its state directory: `number` grows by one with each start, `nonce` is random, so
/// that a copied or wiped directory shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Incarnation {
    pub number: u64,
    pub nonce: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Report {
    pub versions: VersionRange,
    pub incarnation: Incarnation,
    /// The agent's own clock.
    #[schema(value_type = String)]
    pub now: Timestamp,
    /// Sent with the first report of an incarnation and whenever it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello: Option<Hello>,
    /// Facts that must be applied exactly once, in order. Kept by the agent until acknowledged.
    #[serde(default)]
    pub entries: Vec<Entry>,
    /// The present state of running attempts; may be lost.
    #[serde(default)]
    pub progress: Vec<Progress>,
    /// The present state of the agent's storages; may be lost.
    #[serde(default)]
    pub spaces: Vec<StorageSpace>,
    /// What was found on the ways to peers since the last report; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeResult>,
    /// Counters of the site's uplinks since the last report; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<UplinkSample>,
    /// What transfers showed of the ways from their sources since the last report; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSample>,
    /// The present state of all links that may have circuits, now and then; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuits: Vec<CircuitLink>,
    /// The answer shall hold [`ReportReply::ahead`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask_ahead: bool,
}

/// Introduces an agent and its present incarnation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Hello {
    pub host: String,
    /// Program version.
    pub version: String,
    /// `host:port` where other agents reach this one's data port.
    pub data_addresses: Vec<String>,
    pub storages: Vec<StorageOffer>,
    /// Leases this agent holds (running or queued): the service forgets all others of this agent.
    #[schema(value_type = Vec<String>)]
    pub held: Vec<AttemptId>,
    /// It may be given copies between storages of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<MoverOffer>,
}

/// What lies behind a storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StorageKind {
    /// A directory of the agent's host.
    #[default]
    Posix,
    /// Nothing: what is read is made, what is written is checked and dropped. For tests.
    Virtual,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StorageOffer {
    #[schema(value_type = String)]
    pub name: StorageName,
    /// Agents from before there was a choice have posix ones.
    #[serde(default)]
    pub kind: StorageKind,
    #[schema(value_type = Object)]
    pub rules: NameRules,
    pub writable: bool,
    /// Two names that differ in case only are one file there.
    pub case_insensitive: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Counts up by one within the agent's state directory, from 1.
    pub sequence: u64,
    pub fact: Fact,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Fact {
    Outcome(Outcome),
    /// A batch of files that a scan found, or of problems it met.
    Scanned {
        #[schema(value_type = String)]
        task: TaskId,
        found: Vec<FoundFile>,
        left_out: Vec<LeftOut>,
    },
    /// Files of a verify or delete task, with what was found.
    Checked {
        #[schema(value_type = String)]
        task: TaskId,
        files: Vec<CheckedFile>,
    },
    /// The last fact of a task.
    TaskDone {
        #[schema(value_type = String)]
        task: TaskId,
        #[schema(value_type = Option<Object>)]
        fault: Option<Fault>,
    },
    /// Decisions of the agent's doors: who was allowed or refused what. From version 3 on.
    Decided {
        decisions: Vec<DoorDecision>,
    },
}

/// Equal decisions of a short while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoorDecision {
    /// At whose door.
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub allowed: bool,
    /// The first and the last of them, on the service's clock.
    #[schema(value_type = String)]
    pub since: Timestamp,
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// How many there were.
    pub times: u64,
    /// Subject of a certificate, holder of a token, or `nobody`.
    pub who: String,
    /// What kind of credential was shown; never the credential.
    pub credential: String,
    /// The address that they came from.
    pub origin: String,
    /// `door` and a method.
    pub operation: String,
    /// The thing that the operation was asked of.
    pub object: String,
    /// The reason of a refusal, else the right by which it was allowed.
    pub why: String,
}

/// The end of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    #[schema(value_type = String)]
    pub attempt: AttemptId,
    #[schema(value_type = u64)]
    pub epoch: Epoch,
    /// Absent if it succeeded.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    /// What the bytes handed to the storage were found to have; present if it succeeded.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    #[schema(value_type = String)]
    pub verification: Verification,
    /// The target held the right file already; nothing was moved.
    #[serde(default)]
    pub already_there: bool,
    /// Payload that crossed the wire in this attempt, and of it what had to be sent again.
    pub bytes_moved: u64,
    pub bytes_resent: u64,
    pub times: AttemptTimes,
}

/// When an attempt passed its phases, on the service's clock.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AttemptTimes {
    #[schema(value_type = String)]
    pub received: Timestamp,
    #[schema(value_type = Option<String>)]
    pub started: Option<Timestamp>,
    #[schema(value_type = Option<String>)]
    pub first_byte: Option<Timestamp>,
    #[schema(value_type = Option<String>)]
    pub last_byte: Option<Timestamp>,
    /// Verified, under its final name, and flushed.
    #[schema(value_type = Option<String>)]
    pub committed: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FoundFile {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
}

/// Something a scan did not register, with the reason. `path` is escaped: it may be no UTF-8 at all.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeftOut {
    pub path: String,
    pub reason: LeftOutReason,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LeftOutReason {
    /// A symbolic link whose target lies outside the tree, or is absent.
    LinkLeadsOut,
    BrokenLink,
    Device,
    Socket,
    Fifo,
    NotUtf8,
    NameRules,
    EmptyDirectory,
    Unreadable,
    ChangedWhileReading,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckedFile {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Absent if the file is there and equal, or (deletion) is gone now.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    #[schema(value_type = String)]
    pub attempt: AttemptId,
    pub bytes_done: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StorageSpace {
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Why the storage takes no files now, if so.
    #[schema(value_type = Option<Object>)]
    pub trouble: Option<Fault>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReportReply {
    /// Version to use from now on.
    pub version: u16,
    /// Every entry up to and including this one is durable at the service.
    pub acknowledged: u64,
    #[schema(value_type = String)]
    pub now: Timestamp,
    /// The service does not know this incarnation's storages (it was restarted): send `hello` again.
    #[serde(default)]
    pub say_hello: bool,
    /// Peers to look at, when it is their turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<ProbeAsked>,
    /// What waits for the agent beyond its leases, if it asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ahead: Vec<LinkAhead>,
    /// All that people want of the agent's circuits now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuits: Vec<CircuitOrder>,
    /// The service decides whether work is worth a circuit: the agent asks for none because of it.
    #[serde(default)]
    pub circuits_planned: bool,
    /// Copies between storages of others that go by the agent's circuits now: none is given back under them.
    /// A link that is not named has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuit_copies: Vec<CircuitCopies>,
    /// Where the circuits lead that people want: there may be no lease from there yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuit_peers: Vec<SourcePeer>,
}

/// Copies that use the circuit of a link beside the agent's own streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitCopies {
    #[schema(value_type = String)]
    pub source: StorageName,
    pub copies: u32,
}

/// The queue of one link, as far as it can be said before a source is chosen for each file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkAhead {
    #[schema(value_type = String)]
    pub source: StorageName,
    #[schema(value_type = String)]
    pub target: StorageName,
    /// Leased or not.
    pub bytes: u64,
    /// What the link is expected to carry.
    pub bytes_per_s: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkRequest {
    pub versions: VersionRange,
    pub incarnation: Incarnation,
    /// Number of the last [`Work`] that is safe in the agent's state; the service repeats what came after it.
    pub received: u64,
    /// The service answers empty-handed after this long at the latest.
    pub wait_ms: u32,
}

/// One parcel of work. Repeated under the same number until the agent asks with `received` ≥ `number`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Work {
    pub number: u64,
    #[schema(value_type = String)]
    pub now: Timestamp,
    #[serde(default)]
    pub batches: Vec<LeaseBatch>,
    #[serde(default)]
    pub tasks: Vec<Task>,
    /// Leases to give up: drop them if waiting, stop them if running; no outcome is needed.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub cancel: Vec<AttemptId>,
    /// Leases that would be done sooner elsewhere: an attempt that has not begun ends with the error "given
    /// back", one that has goes on. From version 2 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub give_back: Vec<AskedBack>,
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub cancel_tasks: Vec<TaskId>,
    /// Copies between storages of others, for agents that offer to make them. They end as leases do, by an
    /// [`Outcome`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<ForeignCopy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<AgentSettings>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AskedBack {
    #[schema(value_type = String)]
    pub attempt: AttemptId,
    /// In a sentence, for people.
    pub why: String,
}

/// Leases of one agent for files of one source, under one permit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeaseBatch {
    pub source: SourcePeer,
    #[schema(value_type = String)]
    pub target_storage: StorageName,
    /// Signed; the source checks it against the list of files (`security::Permit`).
    #[schema(value_type = String)]
    pub permit: Arc<str>,
    /// An attempt not begun by then must not begin.
    #[schema(value_type = String)]
    pub start_by: Timestamp,
    pub leases: Vec<Lease>,
    /// The traffic class of all leases of the batch.
    #[serde(default, skip_serializing_if = "is_usual")]
    #[schema(value_type = String)]
    pub class: TrafficClass,
    /// What their packets bear, where the agents of both ends mark.
    #[serde(default, skip_serializing_if = "Mark::is_none")]
    #[schema(value_type = Object)]
    pub mark: Mark,
    /// Whether they go by a circuit.
    #[serde(default, skip_serializing_if = "is_usual")]
    #[schema(value_type = String)]
    pub circuits: CircuitUse,
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourcePeer {
    #[schema(value_type = String)]
    pub agent: AgentId,
    #[schema(value_type = String)]
    pub storage: StorageName,
    /// `host:port`, best first.
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    #[schema(value_type = String)]
    pub attempt: AttemptId,
    #[schema(value_type = String)]
    pub transfer: TransferId,
    #[schema(value_type = u64)]
    pub epoch: Epoch,
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    #[schema(value_type = String)]
    pub verification: Verification,
    /// Higher goes first within the agent.
    pub priority: u8,
}

/// Work that moves no bytes between sites.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Task {
    #[schema(value_type = String)]
    pub id: TaskId,
    #[schema(value_type = String)]
    pub storage: StorageName,
    pub kind: TaskKind,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TaskKind {
    /// Walk a directory of the storage and digest every file in it.
    Scan {
        #[schema(value_type = String)]
        dataset: DatasetName,
        /// Relative to the storage's root; empty for the whole.
        path: String,
        #[schema(value_type = Vec<String>)]
        algorithms: Vec<longhaul_model::Algorithm>,
    },
    /// Read each file again and compare.
    Verify { files: Vec<ExpectedFile> },
    /// Remove each file, if it is still what the catalog says.
    Delete { files: Vec<ExpectedFile> },
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ExpectedFile {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
}

/// What the service tells an agent about its own site. Sent when it changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentSettings {
    /// Reports at least this often.
    pub report_every_ms: u32,
    /// Bytes per second in and out of this agent; none is no limit.
    pub in_bytes_per_s: Option<u64>,
    pub out_bytes_per_s: Option<u64>,
}

crate::hides_secrets!(JoinRequest);
