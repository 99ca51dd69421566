//! A deployment of agents in one process, for the tests and the example.

pub mod fake;
pub mod relay;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_engine::{AttemptOutcome, Config, Engine, Event, Export, FetchBatch, FetchFile, Snapshot};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::tree::{chunk_value, values_of};
use longhaul_model::{
    AgentId, Algorithm, AttemptId, DigestSet, Epoch, Hasher, NameRules, StorageName, Timestamp, TrafficClass,
    TransferId, Tree, Verification,
};
use longhaul_security::{Authority, Credentials, Permit, PermitVerifier, list_digest, new_signing_request};
use longhaul_storage::memory::FaultyStore;
use longhaul_storage::{FlushPolicy, Posix, PosixOptions, PosixTuning, Storage};
pub use longhaul_testkit::content;
use longhaul_testkit::wait_until;

/// The timeout of every wait in the tests.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// All receive buffers of an agent here: what it can have requested at once.
pub const IN_FLIGHT_MAX: u64 = 24 * CHUNK_BYTES as u64;

pub fn now() -> Timestamp {
    Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64)
}

pub struct Deployment {
    pub directory: PathBuf,
    pub authority: Authority,
    _temporary: Option<tempfile::TempDir>,
}

impl Deployment {
    pub fn new() -> Deployment {
        let temporary = tempfile::tempdir().unwrap();
        let mut deployment = Deployment::at(temporary.path());
        deployment._temporary = Some(temporary);
        deployment
    }

    /// In a persistent directory; an existing certificate authority is reused.
    pub fn at(directory: &Path) -> Deployment {
        let home = directory.join("authority");
        let authority = if home.exists() {
            Authority::open(&home).unwrap()
        } else {
            Authority::create(&home, "test", now()).unwrap()
        };
        Deployment { directory: directory.to_owned(), authority, _temporary: None }
    }

    pub fn credentials(&self, agent: AgentId) -> Credentials {
        let (request, key_pem) = new_signing_request().unwrap();
        let issued = self.authority.issue_agent(&request, agent, &"site".parse().unwrap(), now()).unwrap();
        Credentials {
            certificate_pem: issued.certificate_pem,
            key_pem,
            ca_pem: self.authority.ca_pem().to_owned(),
        }
    }

    pub fn permits(&self) -> PermitVerifier {
        PermitVerifier::new(&self.authority.permit_key_pem()).unwrap()
    }

    pub fn posix(&self, name: &str) -> Arc<dyn Storage> {
        self.posix_in(name, PosixTuning::default())
    }

    pub fn posix_in(&self, name: &str, tuning: PosixTuning) -> Arc<dyn Storage> {
        let root = self.directory.join(name);
        std::fs::create_dir_all(&root).unwrap();
        let flush = FlushPolicy::FileAndDirectory;
        let options = PosixOptions { name: name.parse().unwrap(), root, work: None, writable: true, flush };
        Arc::new(Posix::open_in(options, tuning).unwrap())
    }

    pub fn agent(&self, number: u64, storage: Arc<dyn Storage>) -> Agent {
        self.agent_with(number, vec![storage], |_| {})
    }

    pub fn agent_with(
        &self,
        number: u64,
        storages: Vec<Arc<dyn Storage>>,
        change: impl FnOnce(&mut Config),
    ) -> Agent {
        let agent = AgentId(number);
        let mut config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            ..Config::new(agent, "test", self.directory.join(format!("state-{number}")))
        };
        change(&mut config);
        let (send, events) = channel();
        let send = Mutex::new(send);
        let exports =
            storages.into_iter().map(|storage| Export { storage, rules: NameRules::default() }).collect();
        let engine = Engine::start(
            config,
            &self.credentials(agent),
            self.permits(),
            exports,
            Arc::new(now),
            move |group| group.into_iter().for_each(|event| drop(send.lock().unwrap().send(event))),
        )
        .unwrap();
        Agent { agent, engine, events: Mutex::new(events) }
    }

    pub fn permit(&self, batch: &FetchBatch, target: AgentId, change: impl FnOnce(&mut Permit)) -> Arc<str> {
        let mut permit = Permit {
            deployment: "test".into(),
            target_agent: target,
            source_agent: batch.source_agent,
            source_storage: batch.source_storage.clone(),
            list_digest: list_digest(batch.files.iter().map(|file| (file.attempt, &file.lfn, file.size))),
            expires: now() + Duration::from_secs(600),
        };
        change(&mut permit);
        self.authority.sign_permit(&permit)
    }

    /// A batch of these files, with a valid permit.
    pub fn batch(
        &self,
        source: &Agent,
        from: &str,
        target: &Agent,
        to: &str,
        files: Vec<FetchFile>,
    ) -> FetchBatch {
        let mut batch = FetchBatch {
            foreign: None,
            source_agent: source.agent,
            source_storage: from.parse::<StorageName>().unwrap(),
            addresses: source.addresses(),
            spread: false,
            class: TrafficClass::default(),
            circuits: Default::default(),
            mark: longhaul_model::Mark::default(),
            target_storage: to.parse().unwrap(),
            permit: "".into(),
            start_by: now() + Duration::from_secs(600),
            files,
            withheld: Default::default(),
            replicas: Vec::new(),
        };
        batch.permit = self.permit(&batch, target.agent, |_| {});
        batch
    }
}

pub struct Agent {
    pub agent: AgentId,
    pub engine: Engine,
    events: Mutex<Receiver<Event>>,
}

impl Agent {
    pub fn addresses(&self) -> Vec<String> {
        self.engine.data_addresses().iter().map(ToString::to_string).collect()
    }

    pub fn event(&self) -> Event {
        self.events.lock().unwrap().recv_timeout(WAIT_TIMEOUT).expect("an event of the engine")
    }

    /// Waits for the ends of this many attempts.
    pub fn finished(&self, count: usize) -> Vec<AttemptOutcome> {
        let mut finished = Vec::new();
        while finished.len() < count {
            if let Event::Finished(end) = self.event() {
                finished.push(end);
            }
        }
        finished.sort_by_key(|end| end.attempt);
        finished
    }

    /// Fetches a batch, and requests nothing of it before the agent is ready: a stream that is up late finds
    /// as much work as the first one. (One byte a second lets a single chunk through.)
    pub fn fetch_when(&self, batch: FetchBatch, is_ready: impl Fn(&Snapshot) -> bool) {
        self.engine.set_limits(Some(1), None);
        self.engine.fetch(batch);
        wait_until(|| is_ready(&self.engine.snapshot()), || format!("{:?}", self.engine.snapshot()));
        self.engine.set_limits(None, None);
    }

    /// Waits until an attempt has begun.
    pub fn started(&self) -> AttemptId {
        loop {
            if let Event::Started { attempt, .. } = self.event() {
                return attempt;
            }
        }
    }
}

/// Most bytes of an attempt that may have come twice though no stream broke. It usually takes no second.
pub fn resent_max(end: &AttemptOutcome) -> u64 {
    let times = &end.times;
    let took = times.started.zip(times.last_byte).map(|(started, last)| last.since(started));
    longhaul_testkit::resent_max(took.unwrap_or_default(), IN_FLIGHT_MAX)
}

/// Asserts that so many bytes had to be moved, and nothing without need a second time.
#[track_caller]
pub fn assert_moved(end: &AttemptOutcome, bytes: usize) {
    let bytes = bytes as u64;
    assert!((bytes..=bytes + resent_max(end)).contains(&end.bytes_moved), "{bytes} bytes: {end:?}");
}

pub fn digests(bytes: &[u8], algorithms: &[Algorithm]) -> DigestSet {
    let mut hasher = Hasher::new(algorithms.iter().copied());
    hasher.update(bytes);
    hasher.finish()
}

pub fn store(name: &str) -> FaultyStore {
    FaultyStore::new(name.parse().unwrap())
}

/// Puts a file with content of its own into a store.
pub fn put(store: &FaultyStore, number: u64, len: usize) -> FetchFile {
    let bytes = content(number, len);
    let lfn = format!("f{number}");
    store.put(&lfn, &bytes);
    wish(number, &lfn, &bytes)
}

/// Runs the ignored test of that name in a child process, which has to kill itself.
pub fn killed_child(test: &str, environment: &[(&str, &OsStr)]) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(9), "{}", String::from_utf8_lossy(&child.stderr));
}

pub fn wish(number: u64, lfn: &str, bytes: &[u8]) -> FetchFile {
    FetchFile {
        attempt: AttemptId(number),
        transfer: TransferId(number + 1_000_000),
        epoch: Epoch(1),
        lfn: lfn.parse().unwrap(),
        size: bytes.len() as u64,
        digests: digests(bytes, &[Algorithm::Adler32]),
        verification: Verification::EndToEnd,
        priority: 1,
        replaces_damaged: false,
        tree: None,
    }
}

/// The hash tree of some bytes.
pub fn tree(bytes: &[u8]) -> Arc<Tree> {
    let chunk = CHUNK_BYTES as usize;
    let size = bytes.len() as u64;
    let value = |place: usize| {
        let part = &bytes[place * chunk..bytes.len().min((place + 1) * chunk)];
        chunk_value((place * chunk) as u64, part, size)
    };
    Arc::new(Tree::from_values(size, (0..values_of(size) as usize).map(value).collect()).unwrap())
}
