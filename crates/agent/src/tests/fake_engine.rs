//! An engine whose attempts begin and end when the test says so.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_engine::{
    AttemptOutcome, AttemptTimeline, Clock, Event, FetchBatch, FetchFile, Path, Snapshot, Success,
};
use longhaul_model::{
    AgentId, AttemptId, CircuitUse, DigestSet, Epoch, Fault, FaultCode, Mark, Timestamp, TrafficClass,
    TransferId, Verification,
};
use longhaul_security::Credentials;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::command::CircuitCommands;
use crate::mover::{Mover, MoverStart, PeerChannel};

/// A test that waits longer than this has failed.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// What the agent asked of the engine.
#[derive(Clone, Default)]
pub(crate) struct EngineCalls {
    pub fetched: Vec<FetchBatch>,
    pub cancelled: Vec<AttemptId>,
    pub limits: Option<(Option<u64>, Option<u64>)>,
    pub paths: Vec<(AgentId, Vec<Path>)>,
    pub renewed: Option<String>,
    pub refused: BTreeSet<AgentId>,
    pub stopped: bool,
}

/// A file of `size` bytes that is to be fetched, with a digest.
pub(crate) fn fetch_file(attempt: u64, size: u64) -> FetchFile {
    FetchFile {
        attempt: AttemptId(attempt),
        transfer: TransferId(attempt),
        epoch: Epoch(1),
        lfn: format!("f{attempt}").parse().unwrap(),
        size,
        digests: "crc32c:00000000".parse().unwrap(),
        verification: Verification::EndToEnd,
        priority: 5,
        replaces_damaged: false,
        tree: None,
    }
}

/// Files from a storage of agent 1, which may start at any time.
pub(crate) fn fetch_batch(source: &str, target: &str, files: Vec<FetchFile>) -> FetchBatch {
    FetchBatch {
        foreign: None,
        source_agent: AgentId(1),
        source_storage: source.parse().unwrap(),
        addresses: Vec::new(),
        spread: false,
        class: TrafficClass::Bulk,
        circuits: CircuitUse::Prefer,
        mark: Mark::default(),
        target_storage: target.parse().unwrap(),
        permit: "".into(),
        start_by: Timestamp::MAX,
        files,
        withheld: BTreeSet::new(),
        replicas: Vec::new(),
    }
}

#[derive(Clone)]
pub(crate) struct FakeEngine {
    calls: Arc<watch::Sender<EngineCalls>>,
    events: Arc<dyn Fn(Vec<Event>) + Send + Sync>,
    pub clock: Clock,
    /// Opens streams for calls to other agents; none: nobody answers.
    pub channels: Option<ChannelOpener>,
}

pub(crate) type ChannelOpener = Arc<dyn Fn(&[String]) -> Box<dyn PeerChannel> + Send + Sync>;

impl FakeEngine {
    pub fn start(start: MoverStart) -> FakeEngine {
        FakeEngine {
            calls: Arc::new(watch::Sender::new(EngineCalls::default())),
            events: start.events.into(),
            clock: start.clock,
            channels: None,
        }
    }

    /// One whose events nobody takes.
    pub fn silent() -> FakeEngine {
        FakeEngine {
            calls: Arc::new(watch::Sender::new(EngineCalls::default())),
            events: Arc::new(|_| {}),
            clock: Arc::new(|| Timestamp::ZERO),
            channels: None,
        }
    }

    pub fn calls(&self) -> EngineCalls {
        self.calls.borrow().clone()
    }

    pub async fn wait_until(&self, look: impl FnMut(&EngineCalls) -> bool) -> EngineCalls {
        let mut asked = self.calls.subscribe();
        timeout(WAIT_TIMEOUT, asked.wait_for(look)).await.expect("it never happened").unwrap().clone()
    }

    /// Attempts given so far, neither withheld nor cancelled.
    pub fn attempts(&self) -> Vec<AttemptId> {
        let asked = self.calls();
        let attempts = asked.fetched.iter().flat_map(FetchBatch::wanted).map(|file| file.attempt);
        attempts.filter(|attempt| !asked.cancelled.contains(attempt)).collect()
    }

    pub fn begin(&self, attempt: u64) {
        (self.events)(vec![Event::Started { attempt: AttemptId(attempt), at: (self.clock)() }]);
    }

    pub fn succeed(&self, attempts: &[u64]) {
        let success = Success {
            digests: DigestSet::default(),
            verification: Verification::EndToEnd,
            already_there: false,
        };
        self.finish(attempts, Ok(success));
    }

    pub fn finish(&self, attempts: &[u64], result: Result<Success, Fault>) {
        let now = (self.clock)();
        let finished = |&attempt: &u64| {
            Event::Finished(AttemptOutcome {
                attempt: AttemptId(attempt),
                transfer: TransferId(1_000 + attempt),
                epoch: Epoch(1),
                result: result.clone(),
                bytes_moved: 7,
                bytes_resent: 0,
                executor: None,
                times: AttemptTimeline {
                    received: now,
                    started: Some(now),
                    first_byte: None,
                    last_byte: None,
                    committed: None,
                },
                shares: Vec::new(),
            })
        };
        (self.events)(attempts.iter().map(finished).collect());
    }

    pub fn start_by(&self, attempt: u64) -> Timestamp {
        let asked = self.calls();
        let batch = asked
            .fetched
            .iter()
            .find(|batch| batch.files.iter().any(|file| file.attempt == AttemptId(attempt)));
        batch.expect("the attempt was given").start_by
    }
}

impl Mover for FakeEngine {
    fn data_addresses(&self) -> Vec<SocketAddr> {
        vec!["127.0.0.1:7470".parse().unwrap()]
    }
    fn fetch(&self, batch: FetchBatch) {
        self.calls.send_modify(|asked| asked.fetched.push(batch));
    }
    fn cancel(&self, attempts: &[AttemptId]) {
        self.calls.send_modify(|asked| asked.cancelled.extend(attempts));
    }
    fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>) {
        self.calls.send_modify(|asked| asked.limits = Some((in_bytes_per_s, out_bytes_per_s)));
    }
    fn set_paths(&self, source: AgentId, paths: Vec<Path>) -> Result<(), Fault> {
        self.calls.send_modify(|asked| asked.paths.push((source, paths)));
        Ok(())
    }
    fn commands_on_circuit(&self, _source: AgentId) -> CircuitCommands {
        CircuitCommands::default()
    }
    fn renew(&self, credentials: &Credentials) -> Result<(), Fault> {
        self.calls.send_modify(|asked| asked.renewed = Some(credentials.certificate_pem.clone()));
        Ok(())
    }
    fn refuse_peers(&self, peers: BTreeSet<AgentId>) {
        self.calls.send_modify(|asked| asked.refused = peers);
    }
    fn open_channel(&self, addresses: &[String]) -> Result<Box<dyn PeerChannel>, Fault> {
        let nobody = || Fault::new(FaultCode::Unreachable, "nobody answers");
        self.channels.as_ref().map(|open| open(addresses)).ok_or_else(nobody)
    }
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
    fn stop(self: Box<Self>) {
        self.calls.send_modify(|asked| asked.stopped = true);
    }
}
