//! The control protocol between agents and the service. All calls are made by the agent over mutual TLS
//! (`join` with a join token in place of a certificate):
//!
//! * `POST /api/v1/agent/join` — sends a join token and a signing request, gets a certificate and an
//!   identity;
//! * `POST /api/v1/agent/renew` — sends a signing request, gets a new certificate;
//! * `POST /api/v1/agent/report` — sends outcomes, progress and observations; facts have sequence numbers and
//!   are acknowledged once durable;
//! * `POST /api/v1/agent/work` — long poll for leases with permits, tasks, cancellations and settings.
//!
//! Times are by the service's clock unless a comment says otherwise; `now` in each reply lets the agent learn
//! it.

use std::sync::Arc;

use longhaul_model::{
    AgentId, AttemptId, CircuitUse, DatasetName, DigestOrigin, DigestSet, Epoch, Executor, Fault, Lfn, Mark,
    NameRules, SiteName, StageId, StorageKind, StorageName, TaskId, Timestamp, TrafficClass, TransferId,
    Verification,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

use crate::VersionRange;
use crate::circuits::{CircuitLink, CircuitOrder};
use crate::foreign::{ForeignCopy, MoverOffer};
use crate::pools::PoolReport;
use crate::probe::{PathSample, ProbeAsked, ProbeResult, UplinkSample};

/// `POST /api/v1/agent/join`: an agent asks to become a member of a site.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct JoinRequest {
    /// Protocol versions that the agent speaks.
    pub versions: VersionRange,
    /// Secret part of the join token.
    pub secret: String,
    /// PEM certificate signing request for a key that never leaves the agent.
    pub signing_request: String,
    /// Host name of the agent, shown to people.
    pub host: String,
}

/// The identity of an agent that joined, and what it needs to trust the deployment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JoinReply {
    /// Id of the agent, unique in the deployment.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Site that the agent belongs to.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// Name of the deployment; every certificate contains it.
    pub deployment: String,
    /// PEM certificate chain for the agent's key.
    pub certificate: String,
    /// PEM certificate of the deployment's CA.
    pub ca: String,
    /// PEM public key that verifies the signatures of permits.
    pub permit_key: String,
}

/// `POST /api/v1/agent/renew`: an agent asks for a new certificate.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RenewRequest {
    /// PEM certificate signing request; the key never leaves the agent.
    pub signing_request: String,
}

/// A new certificate for an agent.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RenewReply {
    /// PEM certificate chain for the agent's key.
    pub certificate: String,
    /// PEM certificate of the deployment's CA.
    pub ca: String,
}

/// One start of an agent on its state directory. A copied or wiped state directory shows as a number that
/// does not grow, or as an unexpected nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Incarnation {
    /// Counts the starts on this state directory; grows by one with each.
    pub number: u64,
    /// Random number drawn at the start.
    pub nonce: u64,
}

/// `POST /api/v1/agent/report`: outcomes, progress and observations of an agent.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Report {
    /// Protocol versions that the agent speaks.
    pub versions: VersionRange,
    /// The start of the agent that sends this report.
    pub incarnation: Incarnation,
    /// Time by the agent's own clock.
    #[schema(value_type = String)]
    pub now: Timestamp,
    /// Sent with the first report of an incarnation and whenever it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello: Option<Hello>,
    /// Facts that the service applies exactly once and in order. The agent keeps them until they are
    /// acknowledged.
    #[serde(default)]
    pub entries: Vec<Entry>,
    /// Progress of running attempts; may be lost.
    #[serde(default)]
    pub progress: Vec<Progress>,
    /// Capacity and health of the agent's storages; may be lost.
    #[serde(default)]
    pub spaces: Vec<StorageSpace>,
    /// Results of probes of peers since the last report; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeResult>,
    /// Counters of the site's uplinks since the last report; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<UplinkSample>,
    /// Observations of the paths from sources, made by transfers since the last report; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSample>,
    /// The present state of all links that may have circuits, sent from time to time; may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuits: Vec<CircuitLink>,
    /// What became of orders to fence other agents; may be lost: the service orders it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fences: Vec<FenceReport>,
    /// Files of stage orders that are on disk now, or do not come; repeated until a reply came. From protocol
    /// version 5 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staged: Vec<StageReport>,
    /// Asks for `ahead` in the reply.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask_ahead: bool,
    /// The agent stops: until its next start nobody can read from its storages or bring files there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
}

/// Introduces an agent and its present incarnation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Hello {
    /// Host name of the agent, shown to people.
    pub host: String,
    /// Version of the agent's program.
    pub version: String,
    /// Addresses `host:port` where other agents reach this one's data port.
    pub data_addresses: Vec<String>,
    /// Storages that the agent serves.
    pub storages: Vec<StorageOffer>,
    /// Leases that this agent holds, running or queued. The service drops all its other leases.
    #[schema(value_type = Vec<formats::AttemptId>)]
    pub held: Vec<AttemptId>,
    /// Present if the agent may copy between foreign storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<MoverOffer>,
}

/// A storage that an agent serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StorageOffer {
    /// Name of the storage, unique in the deployment.
    #[schema(value_type = formats::StorageName)]
    pub name: StorageName,
    /// What holds the files. Agents that predate this field serve only posix storages.
    #[serde(default)]
    #[schema(value_type = formats::StorageKind)]
    pub kind: StorageKind,
    /// Name rules: how logical file names become names in the storage, and back.
    #[schema(value_type = Object)]
    pub rules: NameRules,
    /// Whether files can be written and deleted.
    pub writable: bool,
    /// Whether names that differ only in case are the same file.
    pub case_insensitive: bool,
    /// The random number of the mark in the storage's root; absent without a mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_mark: Option<String>,
    /// Other agents of the site may serve the same root at the same time: those that offer a storage of this
    /// name as shared, with the same mark.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// A fact with its sequence number.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Grows by one with each fact of the agent's state directory, from 1.
    pub sequence: u64,
    /// The fact itself.
    pub fact: Fact,
}

/// Something that happened at an agent and that the service must not miss.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Fact {
    /// An attempt ended.
    Outcome(Outcome),
    /// A scan found a batch of files, or left some out.
    Scanned {
        /// The scan.
        #[schema(value_type = formats::TaskId)]
        task: TaskId,
        /// Files to register.
        found: Vec<FoundFile>,
        /// Entries that are not registered, with reasons.
        left_out: Vec<LeftOut>,
    },
    /// A verification or deletion handled a batch of files.
    Checked {
        /// The verification or deletion.
        #[schema(value_type = formats::TaskId)]
        task: TaskId,
        /// The files, each with its fault if there was one.
        files: Vec<CheckedFile>,
    },
    /// A task ended; no fact of that task follows.
    TaskDone {
        /// The task that ended.
        #[schema(value_type = formats::TaskId)]
        task: TaskId,
        /// Why the task failed; absent if it succeeded.
        #[schema(value_type = Option<Object>)]
        fault: Option<Fault>,
    },
    /// The agent's doors allowed or refused access. From protocol version 3 on.
    Decided {
        /// The decisions, equal ones counted together.
        decisions: Vec<DoorDecision>,
    },
}

/// Equal access decisions of a door within a short time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoorDecision {
    /// Storage whose door decided.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// True if access was allowed, false if it was refused.
    pub allowed: bool,
    /// Time of the first of these decisions, by the service's clock.
    #[schema(value_type = String)]
    pub since: Timestamp,
    /// Time of the last of these decisions, by the service's clock.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Number of equal decisions, at least 1.
    pub times: u64,
    /// Subject of the certificate, holder of the token, or `nobody`.
    pub who: String,
    /// Kind of credential presented; never the credential itself.
    pub credential: String,
    /// Address of the client.
    pub origin: String,
    /// The word `door`, then the method of the request.
    pub operation: String,
    /// Path that the request was about.
    pub object: String,
    /// Reason for the refusal, or the right by which access was allowed.
    pub why: String,
}

/// The end of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// The attempt that ended.
    #[schema(value_type = formats::AttemptId)]
    pub attempt: AttemptId,
    /// Epoch of its lease; an outcome with an older epoch is ignored.
    #[schema(value_type = u64)]
    pub epoch: Epoch,
    /// Why the attempt failed; absent if it succeeded.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    /// Digests computed from the bytes that were handed to the storage; present if the attempt succeeded.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    /// How thoroughly the file was verified.
    #[schema(value_type = formats::Verification)]
    pub verification: Verification,
    /// True if the target already held the right file and nothing was moved.
    #[serde(default)]
    pub already_there: bool,
    /// Payload bytes that crossed the wire in this attempt.
    pub bytes_moved: u64,
    /// Those of `bytes_moved` that were sent more than once.
    pub bytes_resent: u64,
    /// When the attempt passed its phases.
    pub times: AttemptTimes,
    /// The party that moved the bytes; absent if nobody did, and from agents of release 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::Executor>)]
    pub executor: Option<Executor>,
}

/// When an attempt passed its phases, by the service's clock.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AttemptTimes {
    /// The agent received the lease.
    #[schema(value_type = String)]
    pub received: Timestamp,
    /// The agent started the attempt.
    #[schema(value_type = Option<String>)]
    pub started: Option<Timestamp>,
    /// The first payload byte arrived.
    #[schema(value_type = Option<String>)]
    pub first_byte: Option<Timestamp>,
    /// The last payload byte arrived.
    #[schema(value_type = Option<String>)]
    pub last_byte: Option<Timestamp>,
    /// The file was verified, flushed, and put under its final name.
    #[schema(value_type = Option<String>)]
    pub committed: Option<Timestamp>,
}

/// A file that a scan found.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FoundFile {
    /// Logical file name that the name rules give.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Size in bytes.
    pub size: u64,
    /// Digests of the algorithms that the scan was asked for: all if they were computed, some if they were
    /// told.
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    /// Whether the digests were computed from the bytes, or told by the storage's server.
    #[serde(default)]
    #[schema(value_type = formats::DigestOrigin)]
    pub origin: DigestOrigin,
}

/// An entry of a directory that a scan did not register, with the reason.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeftOut {
    /// Path relative to the storage's root, escaped since it may not be UTF-8.
    pub path: String,
    /// Class of the reason, for counting.
    pub reason: LeftOutReason,
    /// Particulars of the reason, for people.
    pub detail: String,
}

/// Why a scan did not register an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LeftOutReason {
    /// A symbolic link whose target lies outside the tree or does not exist.
    LinkLeadsOut,
    /// A symbolic link that cannot be followed.
    BrokenLink,
    /// A block or character device.
    Device,
    /// A Unix domain socket.
    Socket,
    /// A named pipe.
    Fifo,
    /// The name is not valid UTF-8.
    NotUtf8,
    /// The name rules give no logical file name, or not a valid one.
    NameRules,
    /// A directory without entries.
    EmptyDirectory,
    /// Opening or reading the entry failed.
    Unreadable,
    /// The file changed while its digests were computed.
    ChangedWhileReading,
}

/// A file that a verification or deletion handled.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckedFile {
    /// Logical name of the file.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Why the file is not good, or could not be deleted; absent if all is well.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
}

/// How far a running attempt is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// The running attempt.
    #[schema(value_type = formats::AttemptId)]
    pub attempt: AttemptId,
    /// Bytes of the file that are verified and written.
    pub bytes_done: u64,
}

/// Capacity and health of a storage.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StorageSpace {
    /// The storage, one of those the agent serves.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Size of the storage in bytes.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Why the storage accepts no files at present; absent if it does.
    #[schema(value_type = Option<Object>)]
    pub trouble: Option<Fault>,
    /// The pools that the storage consists of; absent if it is one file system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolReport>,
}

/// The service's answer to a report.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReportReply {
    /// Protocol version to use from now on.
    pub version: u16,
    /// Every entry up to and including this one is durable at the service.
    pub acknowledged: u64,
    /// Time by the service's clock.
    #[schema(value_type = String)]
    pub now: Timestamp,
    /// Asks for `hello` in the next report: the service restarted and does not know this incarnation's
    /// storages.
    #[serde(default)]
    pub say_hello: bool,
    /// Peers to probe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<ProbeAsked>,
    /// Work queued for the agent beyond its leases, if the report asked for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ahead: Vec<LinkAhead>,
    /// All open requests of people about the agent's circuits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuits: Vec<CircuitOrder>,
    /// True if the service plans circuits: the agent then requests none by itself.
    #[serde(default)]
    pub circuits_planned: bool,
    /// Third-party copies that use the agent's circuits now; a circuit under such copies is not released.
    /// Links not listed carry none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuit_copies: Vec<CircuitCopies>,
    /// Peers at the other ends of requested circuits, for which there may be no lease yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circuit_peers: Vec<SourcePeer>,
    /// Agents whose certificates are refused though they are still valid: nothing is exchanged with them. All
    /// of them, each time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::AgentId>)]
    pub refused: Vec<AgentId>,
    /// Storages that the last hello offered and that are not served: most, since their names are neither the
    /// site's nor confirmed by an administrator. When one is missing here that the reply to that hello named,
    /// nothing is in its way any more: the agent says hello again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<formats::StorageName>)]
    pub unconfirmed: Vec<StorageName>,
    /// True if another agent of the site took over a storage of the last hello while this one was silent:
    /// this one says hello again, and goes on with all that it does. The reply to that hello lists what the
    /// other one serves among `unconfirmed`.
    #[serde(default)]
    pub offer_again: bool,
}

/// Third-party copies that use the circuit of a link beside the agent's own streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitCopies {
    /// Source storage of the link.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Number of copies under way.
    pub copies: u32,
}

/// Queued work of one link, as far as it is known before a source is chosen for each file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkAhead {
    /// Source storage of the link.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Target storage of the link, served by the agent.
    #[schema(value_type = formats::StorageName)]
    pub target: StorageName,
    /// Queued bytes, leased or not.
    pub bytes: u64,
    /// Expected rate of the link in bytes per second.
    pub bytes_per_s: f64,
}

/// `POST /api/v1/agent/work`: a long poll for work.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkRequest {
    /// Protocol versions that the agent speaks.
    pub versions: VersionRange,
    /// The start of the agent that asks.
    pub incarnation: Incarnation,
    /// Number of the last work that is durable in the agent's state; the service repeats all later ones.
    pub received: u64,
    /// Longest time to wait for work, in milliseconds; the reply is empty after it.
    pub wait_ms: u32,
}

/// Work for an agent. The service repeats it under the same number until the agent asks with `received` ≥
/// `number`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Work {
    /// Grows by one with each reply that has work.
    pub number: u64,
    /// Time by the service's clock.
    #[schema(value_type = String)]
    pub now: Timestamp,
    /// New leases, by source and permit.
    #[serde(default)]
    pub batches: Vec<LeaseBatch>,
    /// New scans, verifications and deletions.
    #[serde(default)]
    pub tasks: Vec<Task>,
    /// Leases to give up: drop those that wait, stop those that run. The service expects no outcome.
    #[serde(default)]
    #[schema(value_type = Vec<formats::AttemptId>)]
    pub cancel: Vec<AttemptId>,
    /// Leases that would finish sooner elsewhere: an attempt that has not begun ends with the error "given
    /// back", a running one goes on. From protocol version 2 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub give_back: Vec<AskedBack>,
    /// Tasks to stop.
    #[serde(default)]
    #[schema(value_type = Vec<formats::TaskId>)]
    pub cancel_tasks: Vec<TaskId>,
    /// Copies between foreign storages, for agents that offer to make them. Like leases, each ends with an
    /// outcome.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<ForeignCopy>,
    /// Other agents to fence in roots that this agent shares with them. From protocol version 4 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fences: Vec<FenceOrder>,
    /// Files to bring from tape. From protocol version 5 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageOrder>,
    /// Files of stage orders that nobody needs on disk any more. From protocol version 5 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub releases: Vec<StageRelease>,
    /// The agent's settings; present when they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<AgentSettings>,
}

/// Asks an agent to see to it that another one, which is silent, brings nothing more to a final name in a
/// root that both share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct FenceOrder {
    /// The shared storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// The agent to fence.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Fence it also if it holds its lock in the root, which says that it runs.
    #[serde(default)]
    pub even_if_locked: bool,
}

/// What became of a [`FenceOrder`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FenceReport {
    /// The shared storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// The agent that was to be fenced.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Why it is not fenced, one sentence for people; absent: it is, and all that it holds there is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// Files of a tape-backed storage that are to be brought to disk and kept there until they are read. The
/// service repeats the orders that go on at the beginning of each session; an order that the agent knows
/// changes nothing, and those that are not repeated end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageOrder {
    /// The storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Number of the order, unique in the deployment.
    #[schema(value_type = formats::StageId)]
    pub order: StageId,
    /// The files.
    #[schema(value_type = Vec<String>)]
    pub lfns: Vec<Lfn>,
    /// How long each file stays on disk after it came, in seconds; the site may have a lower limit.
    pub pin_s: u32,
}

/// Files of a [`StageOrder`] that nobody needs any more: those on disk may leave it, the others need not be
/// brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageRelease {
    /// The storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Number of the order.
    #[schema(value_type = formats::StageId)]
    pub order: StageId,
    /// The files.
    #[schema(value_type = Vec<String>)]
    pub lfns: Vec<Lfn>,
}

/// A file of a [`StageOrder`] that is on disk, or does not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageReport {
    /// The storage.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Number of the order.
    #[schema(value_type = formats::StageId)]
    pub order: StageId,
    /// The file.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Why it does not come, one sentence for people; absent: it is on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// A lease that the service recalls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AskedBack {
    /// The attempt to give back if it has not begun.
    #[schema(value_type = formats::AttemptId)]
    pub attempt: AttemptId,
    /// Reason, one sentence for people.
    pub why: String,
}

/// Leases of one agent for files from one source, under one permit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeaseBatch {
    /// Agent and storage to pull the files from.
    pub source: SourcePeer,
    /// Storage of the receiving agent to write to.
    #[schema(value_type = formats::StorageName)]
    pub target_storage: StorageName,
    /// Signed permit that the agent presents to the source, which checks the list of files against it
    /// (`security::Permit`).
    #[schema(value_type = String)]
    pub permit: Arc<str>,
    /// Attempts that have not begun by this time must not begin.
    #[schema(value_type = String)]
    pub start_by: Timestamp,
    /// The leases, one for each file.
    pub leases: Vec<Lease>,
    /// Traffic class of all leases in the batch.
    #[serde(default, skip_serializing_if = "is_usual")]
    #[schema(value_type = formats::TrafficClass)]
    pub class: TrafficClass,
    /// Flow mark for the packets, used where the agents of both ends mark.
    #[serde(default, skip_serializing_if = "Mark::is_none")]
    #[schema(value_type = Object)]
    pub mark: Mark,
    /// Whether the attempts use a circuit.
    #[serde(default, skip_serializing_if = "is_usual")]
    #[schema(value_type = formats::CircuitUse)]
    pub circuits: CircuitUse,
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An agent to pull files from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourcePeer {
    /// Id of the source's agent; its certificate must contain it.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Storage that holds the files.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Addresses `host:port` of its data port, best first.
    pub addresses: Vec<String>,
}

/// The right to start one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// The attempt that may start.
    #[schema(value_type = formats::AttemptId)]
    pub attempt: AttemptId,
    /// The transfer that the attempt belongs to.
    #[schema(value_type = formats::TransferId)]
    pub transfer: TransferId,
    /// Fencing token: outcomes with an older epoch are ignored.
    #[schema(value_type = u64)]
    pub epoch: Epoch,
    /// Logical name of the file.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Expected size in bytes.
    pub size: u64,
    /// Digests that the received bytes must have.
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    /// How thoroughly to verify the file.
    #[schema(value_type = formats::Verification)]
    pub verification: Verification,
    /// Order within the agent, on the scale of subscriptions (1 to 9); higher goes first.
    pub priority: u8,
    /// The target's own file of that name is known to be damaged: one without the digests is replaced by what
    /// is received, once that is verified. An agent that does not know this ends the attempt with the error
    /// "name clash".
    #[serde(default, skip_serializing_if = "is_usual")]
    pub replaces_damaged: bool,
}

/// Work at a storage that moves no bytes between sites.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Id to report facts under.
    #[schema(value_type = formats::TaskId)]
    pub id: TaskId,
    /// Storage of the agent to work on.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// What to do.
    pub kind: TaskKind,
}

/// Kind of a task, with its files.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TaskKind {
    /// Walk a directory and compute digests of every file in it.
    Scan {
        /// Dataset that gets the files.
        #[schema(value_type = formats::DatasetName)]
        dataset: DatasetName,
        /// Directory relative to the storage's root; empty for the root.
        path: String,
        /// Digests to compute.
        #[schema(value_type = Vec<String>)]
        algorithms: Vec<longhaul_model::Algorithm>,
        /// `told`: a digest that the storage's server tells will do, and only files of which it tells none
        /// are read.
        #[serde(default)]
        #[schema(value_type = formats::DigestOrigin)]
        digests: DigestOrigin,
    },
    /// Read each file again and compare size and digests.
    Verify {
        /// Files to read and compare.
        files: Vec<ExpectedFile>,
    },
    /// Delete each file, provided that it still is what the catalog says.
    Delete {
        /// Files to delete.
        files: Vec<ExpectedFile>,
    },
}

/// A file as the catalog describes it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ExpectedFile {
    /// Logical name of the file.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Size in bytes.
    pub size: u64,
    /// Digests that the file must have.
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
}

/// Settings of an agent, given by the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentSettings {
    /// Longest interval between two reports, in milliseconds.
    pub report_every_ms: u32,
    /// Highest rate into this agent in bytes per second; absent if not limited.
    pub in_bytes_per_s: Option<u64>,
    /// Highest rate out of this agent in bytes per second; absent if not limited.
    pub out_bytes_per_s: Option<u64>,
}

crate::hides_secrets!(JoinRequest);
