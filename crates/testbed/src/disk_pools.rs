//! A storage of several disks of different speeds: how much of what they can take together is taken, and what
//! the draining of one costs those who write.
//!
//! Two real engines move real files over loopback, in this process. The disks are emulated: each is a
//! directory whose writes take as long as they would at its rate, one after the other. Start with
//! [`Experiment::run`].

mod outcome;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use longhaul_engine::{Config, Engine, Event, Export, FetchBatch, FetchFile};
use longhaul_model::{
    AgentId, Algorithm, AttemptId, DigestSet, Epoch, Hasher, PoolState, Timestamp, TransferId, Verification,
};
use longhaul_security::{Authority, Credentials, Permit, PermitVerifier, list_digest, new_signing_request};
use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::{
    FlushPolicy, PoolOptions, PooledStorage, Posix, PosixOptions, Relocation, Storage, TempName,
};

use crate::{Random, tree};

pub use outcome::Outcome;
use outcome::Sample;

type Failure = Box<dyn Error + Send + Sync>;

const SOURCE: AgentId = AgentId(1);
const TARGET: AgentId = AgentId(2);
const TARGET_STORAGE: &str = "beta";
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// An experiment that takes longer is stuck.
const WITHIN: Duration = Duration::from_secs(600);

/// What is measured.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub pools: usize,
    /// Rate of each disk but the last.
    pub bytes_per_s: u64,
    /// The last disk is so many times slower.
    pub slower_times: u64,
    pub files: usize,
    pub file_bytes: u64,
    /// Files in the first pool, which is drained while the others are written; 0: none is drained.
    pub drained_files: usize,
}

impl Default for Experiment {
    fn default() -> Self {
        let (bytes_per_s, file_bytes) = (10_000_000, 4_000_000);
        Experiment { pools: 8, bytes_per_s, slower_times: 4, files: 540, file_bytes, drained_files: 0 }
    }
}

/// A disk that takes bytes at a rate, one write after the other.
struct EmulatedDisk {
    bytes_per_s: u64,
    free_at: Mutex<Instant>,
    written: AtomicU64,
}

impl EmulatedDisk {
    fn new(bytes_per_s: u64) -> Arc<EmulatedDisk> {
        Arc::new(EmulatedDisk {
            bytes_per_s,
            free_at: Mutex::new(Instant::now()),
            written: AtomicU64::new(0),
        })
    }

    /// Takes as long as the disk would.
    fn write(&self, bytes: usize) {
        let ends = {
            let mut free_at = self.free_at.lock().unwrap_or_else(|held| held.into_inner());
            let seconds = bytes as f64 / self.bytes_per_s as f64;
            *free_at = (*free_at).max(Instant::now()) + Duration::from_secs_f64(seconds);
            *free_at
        };
        std::thread::sleep(ends.saturating_duration_since(Instant::now()));
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Experiment {
    /// Rates of all disks that take new files, together.
    pub fn bytes_per_s_of_all(&self) -> u64 {
        let rates = (0..self.pools).skip(usize::from(self.drained_files > 0));
        rates.map(|number| self.rate_of(number)).sum()
    }

    fn rate_of(&self, number: usize) -> u64 {
        if number + 1 == self.pools { self.bytes_per_s / self.slower_times.max(1) } else { self.bytes_per_s }
    }

    /// Brings all files to the pools.
    ///
    /// # Errors
    /// What could not be set up, or did not end.
    pub fn run(&self) -> Result<Outcome, String> {
        self.measure().map_err(|error| error.to_string())
    }

    fn measure(&self) -> Result<Outcome, Failure> {
        let home = tempfile::Builder::new().prefix("longhaul-pools-").tempdir()?;
        let content = tree::content(&mut Random::new(34), self.file_bytes);
        let mut hasher = Hasher::new([Algorithm::Crc32c]);
        hasher.update(&content);
        let digests = hasher.finish();
        let source = self.fill_source(home.path(), &content)?;
        let (storage, disks) = self.open_pools(home.path(), &content)?;
        let authority = Authority::create(&home.path().join("authority"), "pools", now())?;
        let root = Posix::open(options("alpha", source, false)?)?;
        let (from, _events) = start(SOURCE, Arc::new(root), home.path(), &authority)?;
        let (to, events) = start(TARGET, storage.clone(), home.path(), &authority)?;
        let batch = self.batch(&from, &authority, &digests)?;
        let begun = Instant::now();
        to.fetch(batch);
        let stop = AtomicBool::new(false);
        let (seconds, samples, drained_files) = std::thread::scope(|scope| -> Result<_, Failure> {
            let sampling = scope.spawn(|| sample(&disks, begun, &stop));
            let draining = scope.spawn(|| drain(&storage, &stop));
            let ended = self.await_all(&events, begun);
            let seconds = begun.elapsed().as_secs_f64();
            stop.store(true, Ordering::Release);
            let samples = sampling.join().map_err(|_| "the samples were not taken")?;
            let drained = draining.join().map_err(|_| "the pool was not drained")??;
            ended?;
            Ok((seconds, samples, drained))
        })?;
        let written: Vec<u64> = disks.iter().map(|disk| disk.written.load(Ordering::Relaxed)).collect();
        let right_files = self.count_right(&storage, &content)?;
        Ok(Outcome { experiment: self.clone(), seconds, written, drained_files, right_files, samples })
    }

    /// One file under many names: what is read is in memory.
    fn fill_source(&self, home: &Path, content: &[u8]) -> Result<PathBuf, Failure> {
        let root = home.join("source");
        fs::create_dir(&root)?;
        fs::write(root.join("f0"), content)?;
        (1..self.files)
            .try_for_each(|number| fs::hard_link(root.join("f0"), root.join(format!("f{number}"))))?;
        Ok(root)
    }

    fn open_pools(
        &self,
        home: &Path,
        content: &[u8],
    ) -> Result<(Arc<PooledStorage>, Vec<Arc<EmulatedDisk>>), Failure> {
        let disks: Vec<_> = (0..self.pools).map(|number| EmulatedDisk::new(self.rate_of(number))).collect();
        let mut pools = Vec::new();
        for (number, disk) in disks.iter().enumerate() {
            let root = home.join(format!("disk{number}"));
            fs::create_dir(&root)?;
            let is_drained = number == 0 && self.drained_files > 0;
            for file in 0..if is_drained { self.drained_files } else { 0 } {
                fs::write(root.join(format!("old{file}")), content)?;
            }
            let inner = Arc::new(Posix::open(options(TARGET_STORAGE, root, true)?)?);
            let hooked = HookedStorage::new(inner, |_| ());
            let disk = disk.clone();
            hooked.set_bytes_hook(move |bytes| disk.write(bytes));
            // All directories are of one file system, and stand for disks of their own.
            hooked.set_device(number as u64 + 1);
            let storage: Arc<dyn Storage> = hooked;
            pools.push(PoolOptions {
                name: format!("disk{number}"),
                open: Box::new(move || Ok(storage.clone())),
                state: if is_drained { PoolState::Draining } else { PoolState::Open },
            });
        }
        let begun = Instant::now();
        let clock = Arc::new(move || begun.elapsed());
        Ok((Arc::new(PooledStorage::open(TARGET_STORAGE.parse()?, pools, clock)?), disks))
    }

    fn batch(
        &self,
        from: &Engine,
        authority: &Authority,
        digests: &DigestSet,
    ) -> Result<FetchBatch, Failure> {
        let file = |number: usize| -> Result<FetchFile, Failure> {
            Ok(FetchFile {
                attempt: AttemptId(number as u64 + 1),
                transfer: TransferId(number as u64 + 1),
                epoch: Epoch(1),
                lfn: format!("f{number}").parse()?,
                size: self.file_bytes,
                digests: digests.clone(),
                verification: Verification::EndToEnd,
                priority: 1,
                replaces_damaged: false,
                tree: None,
            })
        };
        let files = (0..self.files).map(file).collect::<Result<Vec<_>, _>>()?;
        let expires = now() + 2 * WITHIN;
        let permit = authority.sign_permit(&Permit {
            deployment: "pools".to_owned(),
            target_agent: TARGET,
            source_agent: SOURCE,
            source_storage: "alpha".parse()?,
            list_digest: list_digest(files.iter().map(|file| (file.attempt, &file.lfn, file.size))),
            expires,
        });
        Ok(FetchBatch {
            foreign: None,
            source_agent: SOURCE,
            source_storage: "alpha".parse()?,
            addresses: from.data_addresses().iter().map(ToString::to_string).collect(),
            spread: false,
            class: Default::default(),
            mark: Default::default(),
            circuits: Default::default(),
            target_storage: TARGET_STORAGE.parse()?,
            permit,
            start_by: expires,
            files,
            withheld: BTreeSet::new(),
            replicas: Vec::new(),
        })
    }

    fn await_all(&self, events: &Receiver<Event>, begun: Instant) -> Result<(), Failure> {
        let mut left = self.files;
        while left > 0 {
            let event = events.recv_timeout(WITHIN.saturating_sub(begun.elapsed()))?;
            if let Event::Finished(outcome) = event {
                outcome.result?;
                left -= 1;
            }
        }
        Ok(())
    }

    /// Files that lie in one pool, with the bytes that they should have.
    fn count_right(&self, storage: &PooledStorage, content: &[u8]) -> Result<usize, Failure> {
        let mut right = 0;
        for number in 0..self.files {
            let at = longhaul_model::Pfn::new(TARGET_STORAGE.parse()?, &format!("f{number}"))?;
            let file = storage.open(&at)?;
            let mut bytes = vec![0; content.len()];
            file.read_exact_at(&mut bytes, 0)?;
            right += usize::from(bytes == content && file.identity().size == self.file_bytes);
        }
        Ok(right)
    }
}

/// Moves files out of pools that are drained, as an agent does, until all is written; how many.
fn drain(storage: &PooledStorage, stop: &AtomicBool) -> Result<usize, Failure> {
    let mut moved = 0;
    for pool in storage.draining() {
        for at in storage.files_in(pool, |_| false)? {
            if stop.load(Ordering::Acquire) {
                break;
            }
            let mut name = [0xdd; 16];
            name[..8].copy_from_slice(&(moved as u64).to_be_bytes());
            let ended = storage.relocate(pool, &at, &TempName::from_bytes(name))?;
            moved += usize::from(ended == Relocation::Moved);
        }
    }
    Ok(moved)
}

/// Looks from time to time what each disk has written.
fn sample(disks: &[Arc<EmulatedDisk>], begun: Instant, stop: &AtomicBool) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let written = disks.iter().map(|disk| disk.written.load(Ordering::Relaxed)).collect();
        samples.push(Sample { seconds: begun.elapsed().as_secs_f64(), written });
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    samples
}

fn options(name: &str, root: PathBuf, writable: bool) -> Result<PosixOptions, Failure> {
    Ok(PosixOptions { name: name.parse()?, root, work: None, writable, flush: FlushPolicy::None })
}

type Started = Result<(Engine, Receiver<Event>), Failure>;

fn start(agent: AgentId, storage: Arc<dyn Storage>, home: &Path, authority: &Authority) -> Started {
    let (request, key_pem) = new_signing_request()?;
    let certificate_pem = authority.issue_agent(&request, agent, &"site".parse()?, now())?.certificate_pem;
    let credentials = Credentials { certificate_pem, key_pem, ca_pem: authority.ca_pem().to_owned() };
    let state = home.join(format!("engine{}", agent.0));
    let config = Config { listen: vec!["127.0.0.1:0".parse()?], ..Config::new(agent, "pools", state) };
    let permits = PermitVerifier::new(&authority.permit_key_pem())?;
    let exports = vec![Export { storage, rules: Default::default() }];
    let (send, events) = channel();
    let send = Mutex::new(send);
    let deliver = move |group: Vec<Event>| {
        let send = send.lock().unwrap_or_else(|held| held.into_inner());
        group.into_iter().for_each(|event| drop(send.send(event)));
    };
    Ok((Engine::start(config, &credentials, permits, exports, Arc::new(now), deliver)?, events))
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(since.as_micros() as i64)
}
