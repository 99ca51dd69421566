//! What the engine takes and gives: configuration, work, events, progress.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{
    AgentId, AttemptId, CircuitUse, DataSecurity, DigestSet, Epoch, Fault, Lfn, Mark, NameRules, StorageName,
    Timestamp, TrafficClass, TransferId, Tree, Verification,
};
use longhaul_security::Access;
use longhaul_storage::Storage;
pub use longhaul_wire::receiver::PathSnapshot;

use crate::foreign_deployment::ForeignDeployment;

/// A storage that peers may read from, and that fetched files may be written to if it is writable.
#[derive(Clone)]
pub struct Export {
    pub storage: Arc<dyn Storage>,
    pub rules: NameRules,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub agent: AgentId,
    pub deployment: String,
    /// Where to accept streams of other agents; empty if this agent serves nothing.
    pub listen: Vec<SocketAddr>,
    /// The journals lie here. One engine per directory.
    pub state_dir: PathBuf,
    /// Buffers in user space plus the socket buffers of the kernel.
    pub memory_bytes: u64,
    /// Most TCP connections to one source agent.
    pub streams_per_session: usize,
    /// So many, whatever the path is like; else as many as it needs.
    pub fixed_streams: bool,
    /// Addresses of ours from which data streams are opened, from all of them at once: a host with several
    /// uplinks, which routes by source address, so uses them together. Empty: the kernel's choice.
    pub local_addresses: Vec<IpAddr>,
    /// Event loops, each over many streams.
    pub network_threads: usize,
    /// Processor cores for the threads that move data, in turn; empty: the system's choice.
    pub cores: Vec<usize>,
    /// What others may see of the data that we send and fetch.
    pub data_security: DataSecurity,
    /// Options of data sockets.
    pub path: PathProfile,
    /// Answers calls of peers; without it, streams for calls are refused.
    pub responder: Option<Arc<dyn Responder>>,
    /// Who may dial us.
    pub access: Access,
    /// Whether streams are marked, and how. None: not at all, whatever comes with the work.
    pub marking: Option<Marking>,
}

/// What is done about the marks that come with work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marking {
    /// IPv6 packets bear it.
    pub flow_label: bool,
    /// The class goes into packets, also of what peers fetch from us.
    pub dscp: bool,
    /// Who is told of flows.
    pub collectors: Vec<SocketAddr>,
    /// The target of a flow is told as well, at this port, when we are its source.
    pub target_port: Option<u16>,
    /// How often, beside the beginning and the end.
    pub firefly_interval: Option<Duration>,
    /// Who tells.
    pub host: String,
}

/// What the sockets of a path are set to. What is not set is left to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathProfile {
    /// Congestion control, by the kernel's name for it.
    pub congestion: Option<String>,
    /// No stream sends faster.
    pub pacing_bytes_per_s: Option<u64>,
    /// Buffers of the kernel in bytes. One that is set does not adapt itself any more.
    pub receive_buffer: Option<u32>,
    pub send_buffer: Option<u32>,
    /// Records of a stream after which its keys are renewed, if sooner than the cipher asks for (2^24).
    pub records_per_key: Option<u64>,
}

/// Ways to one source that can be set.
pub(crate) const PATHS_MAX: usize = 16;

/// One way to a source, for [`crate::Engine::set_paths`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The source's, `host:port`.
    pub address: String,
    /// Ours; none is the kernel's choice. Where a host routes by source address, this chooses the way.
    pub local: Option<IpAddr>,
    /// Streams are opened in proportion to it. What a stream then carries follows from how fast it answers.
    pub weight: u32,
    /// Used only while none of the others answers.
    pub spare: bool,
    /// What all streams from the source may send this way together, IP packets counted whole: what a circuit
    /// was booked for.
    pub reserved_bytes_per_s: Option<u64>,
    /// Of the sockets that are opened from now on; none is the engine's.
    pub profile: Option<PathProfile>,
}

impl Path {
    pub fn new(address: impl Into<String>) -> Path {
        Path {
            address: address.into(),
            local: None,
            weight: 1,
            spare: false,
            reserved_bytes_per_s: None,
            profile: None,
        }
    }

    /// One way, booked for so much if that is to be kept to, and others that stand by.
    pub fn with_spares(
        address: SocketAddr,
        local: Option<IpAddr>,
        booked_bytes_per_s: Option<u64>,
        spare: &[String],
    ) -> Vec<Path> {
        let first =
            Path { local, reserved_bytes_per_s: booked_bytes_per_s, ..Path::new(address.to_string()) };
        let spare = spare.iter().map(|plain| Path { spare: true, ..Path::new(plain) });
        [first].into_iter().chain(spare).take(PATHS_MAX).collect()
    }
}

/// Answers the calls that peers make with [`crate::Channel::call`].
pub trait Responder: Send + Sync {
    /// May block; called on a few threads of the engine's. Answers longer than
    /// [`longhaul_wire::limits::CALL_BYTES_MAX`] are not sent, the caller gets a fault instead.
    fn answer(&self, peer: AgentId, request: Vec<u8>) -> Vec<u8>;

    /// The last call stream of the peer is closed, and none of its calls is being answered. If it comes back,
    /// its calls wait until this returns. Not called when the engine ends.
    fn gone(&self, peer: AgentId) {
        let _ = peer;
    }
}

impl std::fmt::Debug for dyn Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Responder")
    }
}

/// The time, on the service's clock as far as it is known.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

#[derive(Clone, Debug)]
pub struct FetchFile {
    pub attempt: AttemptId,
    pub transfer: TransferId,
    pub epoch: Epoch,
    pub lfn: Lfn,
    pub size: u64,
    /// What the catalog promises.
    pub digests: DigestSet,
    pub verification: Verification,
    /// Higher goes first.
    pub priority: u8,
    /// Each chunk is compared with it on arrival. Then it makes no difference who sends a chunk, and one that
    /// is wrong is asked for elsewhere.
    pub tree: Option<Arc<Tree>>,
}

/// Files of one source storage for one target storage, under one permit.
#[derive(Clone, Debug)]
pub struct FetchBatch {
    /// If the source is of another deployment than the engine.
    pub foreign: Option<ForeignDeployment>,
    pub source_agent: AgentId,
    pub source_storage: StorageName,
    /// `host:port`, best first. None: the source dials, see [`crate::Engine::offer`].
    pub addresses: Vec<String>,
    /// Use all addresses that answer, not only the one that answers first.
    pub spread: bool,
    /// Beside other traffic. Each class has streams of its own.
    pub class: TrafficClass,
    /// What packets bear; each mark has streams of its own too. Nothing, unless the engine is to mark.
    pub mark: Mark,
    /// Whether they go by what [`crate::Engine::set_paths`] has set: each use has streams of its own as well.
    pub circuits: CircuitUse,
    pub target_storage: StorageName,
    pub permit: Arc<str>,
    /// What has not begun by then must not begin.
    pub start_by: Timestamp,
    pub files: Vec<FetchFile>,
    /// Where those of the files that have a tree are taken from at the same time.
    pub replicas: Vec<Replica>,
}

/// Another source of the files of a batch.
#[derive(Clone, Debug)]
pub struct Replica {
    /// None: it is of the engine's own deployment.
    pub foreign: Option<ForeignDeployment>,
    pub agent: AgentId,
    pub storage: StorageName,
    pub addresses: Vec<String>,
    pub permit: Arc<str>,
    /// What the files are called there, in the order of the batch.
    pub names: Vec<Lfn>,
}

/// What one of the sources of a file brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceShare {
    /// Right ones.
    pub bytes: u64,
    /// Of bytes that were not those of the file: offset and length, in order.
    pub wrong: Vec<(u64, u64)>,
    /// Why it was not asked any more.
    pub excluded: Option<Fault>,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// The lease is used: from here on the attempt ends with [`Event::Finished`].
    Started {
        attempt: AttemptId,
        at: Timestamp,
    },
    Finished(AttemptOutcome),
}

/// The end of an attempt. Exactly one for each file given to `fetch`, except those cancelled.
#[derive(Clone, Debug)]
pub struct AttemptOutcome {
    pub attempt: AttemptId,
    pub transfer: TransferId,
    pub epoch: Epoch,
    pub result: Result<Success, Fault>,
    /// Payload that crossed the wire, and of it what had to be sent again.
    pub bytes_moved: u64,
    pub bytes_resent: u64,
    pub times: AttemptTimeline,
    /// Of a file with a tree: of the batch's source, and of its replicas in their order.
    pub shares: Vec<SourceShare>,
}

#[derive(Clone, Debug)]
pub struct Success {
    /// What the bytes handed to the storage were found to have.
    pub digests: DigestSet,
    pub verification: Verification,
    /// The target held the right file already; nothing was moved.
    pub already_there: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptTimeline {
    pub received: Timestamp,
    pub started: Option<Timestamp>,
    pub first_byte: Option<Timestamp>,
    pub last_byte: Option<Timestamp>,
    /// Verified, under its final name, and flushed.
    pub committed: Option<Timestamp>,
}

/// The present state, for progress reports and metrics.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Attempts that have begun, with the bytes that are written.
    pub running: Vec<(AttemptId, u64)>,
    pub waiting: usize,
    /// Payload since the start.
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub buffers_total: usize,
    pub buffers_used: usize,
    /// Most buffers ever in use at once.
    pub buffers_peak: usize,
    pub streams_in: usize,
    pub streams_out: usize,
    /// Places for chunks that come before their turn, at storages that only append, and the most ever taken.
    pub reorder_total: usize,
    pub reorder_peak: usize,
    /// Streams that were refused since the start: by their address, and by the name in their certificate.
    pub refused_addresses: u64,
    pub refused_subjects: u64,
    /// With each source that we fetch from.
    pub sessions: Vec<SessionSnapshot>,
    pub devices: Vec<DeviceSnapshot>,
    /// None: nothing is marked.
    pub marking: Option<MarkingSnapshot>,
}

/// What was marked since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkingSnapshot {
    pub marks: Vec<MarkSnapshot>,
    pub fireflies_sent: u64,
    /// The kernel did not take them at once.
    pub fireflies_dropped: u64,
    /// Of IPv6, with a SciTag, and without its flow label.
    pub streams_unlabelled: u64,
}

/// Payload that passed under one mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkSnapshot {
    pub mark: Mark,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// A disk, or what stands for one.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSnapshot {
    /// Those that lie on it.
    pub storages: Vec<StorageName>,
    /// Reads, and as many writes, at once.
    pub parallel: u16,
    /// What of that is used: less than 1 while local users of the disk come first.
    pub share: f64,
    /// Operations that wait because of that.
    pub waiting: usize,
    /// Why it is less.
    pub reason: Option<String>,
}

/// One session and its path.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSnapshot {
    pub source: AgentId,
    pub class: TrafficClass,
    pub circuits: CircuitUse,
    /// Others bring the same files too, and the path is that of all of them.
    pub multi_source: bool,
    /// When it began, since the engine did: tells it from one before.
    pub started: Duration,
    /// Where its streams go to; none if the source dialled.
    pub addresses: Vec<SocketAddr>,
    pub path: PathSnapshot,
}
