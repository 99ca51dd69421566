//! The engine's interface: configuration, work, events, progress.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{
    AgentId, AttemptId, CircuitUse, DataSecurity, DigestSet, Epoch, Executor, Fault, Lfn, Mark, NameRules,
    StorageName, Timestamp, TrafficClass, TransferId, Tree, Verification,
};
use longhaul_security::Access;
use longhaul_storage::Storage;
pub use longhaul_wire::receiver::PathSnapshot;

use crate::foreign_deployment::ForeignDeployment;

/// A storage that peers may read from, and that files may be fetched into if it is writable.
#[derive(Clone)]
pub struct Export {
    pub storage: Arc<dyn Storage>,
    pub rules: NameRules,
}

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    pub agent: AgentId,
    pub deployment: String,
    /// Addresses for streams of other agents; empty if this agent serves nothing.
    pub listen: Vec<SocketAddr>,
    /// Directory of the journals. One engine per directory.
    pub state_dir: PathBuf,
    /// Buffers in user space plus the kernel's socket buffers.
    pub memory_bytes: u64,
    /// Maximum number of TCP connections to one source agent.
    pub streams_per_session: usize,
    /// Always open the maximum number of streams, instead of tuning it to the path.
    pub fixed_streams: bool,
    /// Local addresses from which data streams are opened, all in parallel: a multihomed host that routes by
    /// source address uses all its uplinks. Empty: the kernel's choice.
    pub local_addresses: Vec<IpAddr>,
    /// Event loops, each serving many streams.
    pub network_threads: usize,
    /// CPU cores for the threads that move data, in turn; empty: the system's choice.
    pub cores: Vec<usize>,
    /// What third parties may see of the data that we send and fetch.
    pub data_security: DataSecurity,
    /// Options of data sockets.
    pub path: PathProfile,
    /// Answers calls of peers; without it, call streams are refused.
    pub responder: Option<Arc<dyn Responder>>,
    /// Allow lists for peers that dial us.
    pub access: Access,
    /// How streams are marked. None: not at all, whatever mark the work has.
    pub marking: Option<Marking>,
}

impl Config {
    /// An engine that serves nothing, and fetches by two streams with 64 MiB of memory and a network thread.
    pub fn new(agent: AgentId, deployment: impl Into<String>, state_dir: impl Into<PathBuf>) -> Config {
        Config {
            agent,
            deployment: deployment.into(),
            listen: Vec::new(),
            state_dir: state_dir.into(),
            memory_bytes: 64 << 20,
            streams_per_session: 2,
            fixed_streams: false,
            local_addresses: Vec::new(),
            network_threads: 1,
            cores: Vec::new(),
            data_security: DataSecurity::Tls,
            path: PathProfile::default(),
            responder: None,
            access: Access::default(),
            marking: None,
        }
    }
}

/// Which of the marks that come with work are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marking {
    /// Set the IPv6 flow label.
    pub flow_label: bool,
    /// Set the DSCP, also on streams from which peers fetch.
    pub dscp: bool,
    /// Collectors of fireflies.
    pub collectors: Vec<SocketAddr>,
    /// Also send fireflies to the target of a flow, at this port, when we are its source.
    pub target_port: Option<u16>,
    /// Interval of fireflies between the first and the last.
    pub firefly_interval: Option<Duration>,
    /// Host name in fireflies.
    pub host: String,
}

/// Socket options of a path. Options that are not set are left to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathProfile {
    /// Congestion control, by the kernel's name.
    pub congestion: Option<String>,
    /// Pacing rate per stream.
    pub pacing_bytes_per_s: Option<u64>,
    /// Size of the kernel's receive buffer in bytes. Setting it disables autotuning.
    pub receive_buffer: Option<u32>,
    /// Size of the kernel's send buffer in bytes. Setting it disables autotuning.
    pub send_buffer: Option<u32>,
    /// Records of a stream after which its keys are updated, if sooner than the cipher requires (2^24).
    pub records_per_key: Option<u64>,
}

/// Most paths that can be set to one source.
pub(crate) const PATHS_MAX: usize = 16;

/// A network path to a source, for [`crate::Engine::set_paths`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The source's `host:port`.
    pub address: String,
    /// Our address; none is the kernel's choice. Where a host routes by source address, this selects the
    /// path.
    pub local: Option<IpAddr>,
    /// Streams are opened in proportion to it. The traffic of each stream then follows its rate.
    pub weight: u32,
    /// Used only while no other path answers.
    pub spare: bool,
    /// Reserved bandwidth of a circuit: what all streams from the source may send over this path together,
    /// counting whole IP packets.
    pub reserved_bytes_per_s: Option<u64>,
    /// Socket options for new connections; none uses the engine's.
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

    /// One path, with its reserved rate if that is to be enforced, and spare paths.
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
    /// May block; called on a few of the engine's threads. An answer longer than
    /// [`longhaul_wire::limits::CALL_BYTES_MAX`] is not sent: the caller gets a fault instead.
    fn answer(&self, peer: AgentId, request: Vec<u8>) -> Vec<u8>;

    /// The last call stream of the peer is closed, and none of its calls is running. If it returns, its calls
    /// wait until this returns. Not called when the engine ends.
    fn gone(&self, peer: AgentId) {
        let _ = peer;
    }
}

impl std::fmt::Debug for dyn Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Responder")
    }
}

/// The time on the service's clock, as far as known.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A file to fetch.
#[derive(Clone, Debug)]
pub struct FetchFile {
    pub attempt: AttemptId,
    pub transfer: TransferId,
    pub epoch: Epoch,
    pub lfn: Lfn,
    pub size: u64,
    /// The catalog's digests.
    pub digests: DigestSet,
    pub verification: Verification,
    /// Higher goes first.
    pub priority: u8,
    /// The target's file of that name is known to be damaged: a file that does not have the digests, or
    /// cannot be read, is replaced once the new one is verified. Without digests nothing is replaced.
    pub replaces_damaged: bool,
    /// Hash tree of the file: each chunk is verified on arrival, so it does not matter which source sends it,
    /// and a wrong one is fetched from another.
    pub tree: Option<Arc<Tree>>,
}

/// Files of one source storage for one target storage, under one permit.
#[derive(Clone, Debug)]
pub struct FetchBatch {
    /// Set if the source belongs to another deployment than the engine.
    pub foreign: Option<ForeignDeployment>,
    pub source_agent: AgentId,
    pub source_storage: StorageName,
    /// `host:port`, best first. Empty: the source dials, see [`crate::Engine::offer`].
    pub addresses: Vec<String>,
    /// Use all addresses that answer, not only the first.
    pub spread: bool,
    /// Priority against other traffic. Each class has its own streams.
    pub class: TrafficClass,
    /// Mark of the packets, if the engine marks. Each mark has its own streams.
    pub mark: Mark,
    /// Whether to use the paths of [`crate::Engine::set_paths`]. Each choice has its own streams.
    pub circuits: CircuitUse,
    pub target_storage: StorageName,
    pub permit: Arc<str>,
    /// Files that have not started by then fail.
    pub start_by: Timestamp,
    pub files: Vec<FetchFile>,
    /// Those of the files that are only listed, because the permit is for the whole list: they are not
    /// fetched, and no event follows for them.
    pub withheld: BTreeSet<AttemptId>,
    /// Further sources for those of the files that have a hash tree.
    pub replicas: Vec<Replica>,
}

impl FetchBatch {
    /// The files that are to be fetched.
    pub fn wanted(&self) -> impl Iterator<Item = &FetchFile> {
        self.files.iter().filter(|file| !self.withheld.contains(&file.attempt))
    }
}

/// Another source of the files of a batch.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Set if it belongs to another deployment than the engine.
    pub foreign: Option<ForeignDeployment>,
    pub agent: AgentId,
    pub storage: StorageName,
    pub addresses: Vec<String>,
    pub permit: Arc<str>,
    /// Names of the files there, in the order of the batch.
    pub names: Vec<Lfn>,
}

/// What one of a file's sources contributed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceShare {
    /// Correct bytes.
    pub bytes: u64,
    /// Ranges of wrong bytes: offset and length, in order.
    pub wrong: Vec<(u64, u64)>,
    /// Why the source was excluded.
    pub excluded: Option<Fault>,
}

/// A notification to the owner of the engine.
#[derive(Clone, Debug)]
pub enum Event {
    /// The lease is used: from here on the attempt ends with [`Event::Finished`].
    Started {
        attempt: AttemptId,
        at: Timestamp,
    },
    Finished(AttemptOutcome),
}

/// The outcome of an attempt. Exactly one for each file given to `fetch`, except cancelled ones.
#[derive(Clone, Debug)]
pub struct AttemptOutcome {
    pub attempt: AttemptId,
    pub transfer: TransferId,
    pub epoch: Epoch,
    pub result: Result<Success, Fault>,
    /// Payload that crossed the network.
    pub bytes_moved: u64,
    /// Part of it that had to be sent again.
    pub bytes_resent: u64,
    pub times: AttemptTimeline,
    /// For a file with a hash tree: the batch's source, then its replicas in order.
    pub shares: Vec<SourceShare>,
    /// The party that moved the bytes; none if nobody did.
    pub executor: Option<Executor>,
}

/// A file that is complete at the target.
#[derive(Clone, Debug)]
pub struct Success {
    /// Digests of the bytes handed to the storage.
    pub digests: DigestSet,
    pub verification: Verification,
    /// The target held the right file already; nothing was moved.
    pub already_there: bool,
}

/// Timeline of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptTimeline {
    pub received: Timestamp,
    pub started: Option<Timestamp>,
    pub first_byte: Option<Timestamp>,
    pub last_byte: Option<Timestamp>,
    /// Verified, under its final name, and flushed.
    pub committed: Option<Timestamp>,
}

/// The engine's current state, for progress reports and metrics.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Attempts in progress, with the bytes written.
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
    /// Credits for out-of-order chunks, for append-only storages.
    pub reorder_total: usize,
    /// Most of them ever in use at once.
    pub reorder_peak: usize,
    /// Streams refused since the start because of the peer's address.
    pub refused_addresses: u64,
    /// Streams refused since the start because of the subject of the peer's certificate.
    pub refused_subjects: u64,
    /// One per source that we fetch from.
    pub sessions: Vec<SessionSnapshot>,
    pub devices: Vec<DeviceSnapshot>,
    /// None if marking is off.
    pub marking: Option<MarkingSnapshot>,
}

/// Marking statistics since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkingSnapshot {
    pub marks: Vec<MarkSnapshot>,
    pub fireflies_sent: u64,
    /// Fireflies that the kernel did not accept at once.
    pub fireflies_dropped: u64,
    /// IPv6 streams with a SciTag but without its flow label.
    pub streams_unlabelled: u64,
}

/// Payload under one mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkSnapshot {
    pub mark: Mark,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// A disk, or what stands for one.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSnapshot {
    /// The storages on it.
    pub storages: Vec<StorageName>,
    /// Parallel reads, and as many writes.
    pub parallel: u16,
    /// Share of that in use: less than 1 while local users come first.
    pub share: f64,
    /// Operations delayed because of that.
    pub waiting: usize,
    /// Why the share is reduced.
    pub reason: Option<String>,
}

/// A session and its path.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSnapshot {
    pub source: AgentId,
    pub class: TrafficClass,
    pub circuits: CircuitUse,
    /// There are further sources, and the path figures cover all of them.
    pub multi_source: bool,
    /// Start of the session, in time since the engine's start: distinguishes it from its predecessor.
    pub started: Duration,
    /// Remote addresses of its streams; none if the source dialled.
    pub addresses: Vec<SocketAddr>,
    pub path: PathSnapshot,
}
