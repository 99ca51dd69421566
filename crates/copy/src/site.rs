//! One process's part in the small deployment that a shared secret defines: an engine with its own
//! credentials, and a router that passes its events to the job that owns them.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_engine::{
    AttemptOutcome, Config, Engine, Event, Export, FetchBatch, FetchFile, ForeignDeployment, PathProfile,
    Replica, Responder,
};
use longhaul_model::{
    AgentId, AttemptId, DataSecurity, DigestSet, Epoch, Fault, IdMaker, Lfn, NameRules, SiteName,
    StorageName, TrafficClass, TransferId, Tree, Verification,
};
use longhaul_security::{Access, Permit, SharedAuthority, SharedSecret, list_digest};
use longhaul_storage::Storage;
use parking_lot::{Mutex, MutexGuard};

use crate::clock::now;
use crate::options::Options;

/// Name of the export that serves files.
pub(crate) const EXPORT: &str = "export";
/// Name of the storage that receives files.
pub(crate) const TARGET: &str = "target";
/// Streams to one source; the engine opens fewer where the path needs no more.
const STREAMS_DEFAULT: usize = 8;
const NETWORK_THREADS: usize = 2;
/// Memory for a site that only sends requests.
const QUERY_MEMORY_BYTES: u64 = 2 << 20;
/// A copy may wait in a queue for days.
const PERMIT_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

/// # Panics
/// If one of our own constants is not a valid name.
pub(crate) fn storage_name(text: &str) -> StorageName {
    match text.parse() {
        Ok(name) => name,
        Err(error) => unreachable!("{error}"),
    }
}

pub(crate) struct SiteConfig {
    pub(crate) agent: AgentId,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) state_dir: PathBuf,
    pub(crate) memory_bytes: u64,
    pub(crate) streams: Option<usize>,
    pub(crate) bind: Vec<IpAddr>,
    pub(crate) responder: Option<Arc<dyn Responder>>,
    pub(crate) data_security: DataSecurity,
    pub(crate) access: Access,
}

impl SiteConfig {
    /// A site that serves nothing and keeps its journals in `state`.
    pub(crate) fn client(
        agent: AgentId,
        options: &Options,
        security: DataSecurity,
        state: &Path,
    ) -> SiteConfig {
        SiteConfig {
            agent,
            listen: Vec::new(),
            state_dir: state.to_owned(),
            memory_bytes: options.memory_bytes,
            streams: options.streams,
            bind: options.bind.clone(),
            responder: None,
            data_security: security,
            access: Access::default(),
        }
    }

    /// A site that only sends requests.
    pub(crate) fn query_only(agent: AgentId, state: &Path) -> SiteConfig {
        let options = Options { memory_bytes: QUERY_MEMORY_BYTES, ..Options::default() };
        SiteConfig::client(agent, &options, DataSecurity::Tls, state)
    }
}

pub(crate) struct Site {
    engine: Engine,
    authority: SharedAuthority,
    agent: AgentId,
    router: Arc<EventRouter>,
}

/// Where the files of a fetch come from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) agent: AgentId,
    /// Addresses to dial; empty if the source offers streams itself.
    pub(crate) addresses: Vec<String>,
    /// Traffic class of its streams.
    pub(crate) class: TrafficClass,
    /// Its deployment, if it is not the site's own.
    pub(crate) guest: Option<Arc<Guest>>,
    /// Further servers to read files with a tree from.
    pub(crate) replicas: Vec<ReplicaSource>,
}

/// Another server with the same files.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaSource {
    pub(crate) agent: AgentId,
    pub(crate) addresses: Vec<String>,
    pub(crate) guest: Option<Arc<Guest>>,
    /// Maps the source's names to those of this server.
    pub(crate) path_mapping: PathMapping,
}

/// Maps a path and what is beneath it from one server to another; empty is the root.
#[derive(Clone, Debug)]
pub(crate) struct PathMapping {
    pub(crate) from: String,
    pub(crate) to: String,
}

impl PathMapping {
    /// Maps a name; none if it is not beneath `from`.
    pub(crate) fn apply(&self, name: &str) -> Option<Lfn> {
        let rest = match self.from.as_str() {
            "" => name,
            from if from == name => "",
            from => name.strip_prefix(from)?.strip_prefix('/')?,
        };
        let slash = if self.to.is_empty() || rest.is_empty() { "" } else { "/" };
        Lfn::parse(&format!("{}{slash}{rest}", self.to)).ok()
    }
}

/// Our membership in another server's deployment.
pub(crate) struct Guest {
    authority: SharedAuthority,
    pub(crate) membership: ForeignDeployment,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.membership)
    }
}

/// One file for the engine to fetch.
#[derive(Clone, Debug)]
pub(crate) struct FetchItem {
    pub(crate) attempt: AttemptId,
    pub(crate) name: Lfn,
    pub(crate) size: u64,
    pub(crate) tree: Option<Arc<Tree>>,
}

/// Called with finished attempts, in groups, from a thread of the engine.
type FinishedCallback = Arc<dyn Fn(Vec<AttemptOutcome>) + Send + Sync>;

#[derive(Default)]
struct EventRouter {
    inner: Mutex<RouterState>,
    jobs: AtomicU64,
}

#[derive(Default)]
struct RouterState {
    attempts: HashMap<AttemptId, u64>,
    jobs: HashMap<u64, FinishedCallback>,
    ids: IdMaker,
}

impl EventRouter {
    fn lock(&self) -> MutexGuard<'_, RouterState> {
        self.inner.lock()
    }

    /// Sorts events by job and calls each job's callback.
    fn dispatch(&self, events: Vec<Event>) {
        let mut by_job: HashMap<u64, Vec<AttemptOutcome>> = HashMap::new();
        let mut inner = self.lock();
        for event in events {
            if let Event::Finished(finished) = event
                && let Some(job) = inner.attempts.remove(&finished.attempt)
            {
                by_job.entry(job).or_default().push(finished);
            }
        }
        let told: Vec<(FinishedCallback, Vec<AttemptOutcome>)> = by_job
            .into_iter()
            .filter_map(|(job, finished)| Some((inner.jobs.get(&job)?.clone(), finished)))
            .collect();
        drop(inner);
        told.into_iter().for_each(|(tell, finished)| tell(finished));
    }
}

impl Site {
    pub(crate) fn agent(&self) -> AgentId {
        self.agent
    }

    pub(crate) fn start(
        secret: &SharedSecret,
        config: SiteConfig,
        exports: Vec<Arc<dyn Storage>>,
    ) -> Result<Arc<Site>, Fault> {
        let authority = secret.authority(now())?;
        let site: SiteName = storage_site();
        let credentials = authority.credentials(config.agent, &site, now())?;
        let desk = Arc::new(EventRouter::default());
        let events = desk.clone();
        let engine_config = Config {
            agent: config.agent,
            deployment: authority.deployment().to_owned(),
            listen: config.listen,
            state_dir: config.state_dir,
            memory_bytes: config.memory_bytes,
            streams_per_session: config.streams.unwrap_or(STREAMS_DEFAULT),
            fixed_streams: config.streams.is_some(),
            local_addresses: config.bind,
            network_threads: NETWORK_THREADS,
            cores: Vec::new(),
            data_security: config.data_security,
            path: PathProfile::default(),
            responder: config.responder,
            access: config.access,
            marking: None,
        };
        let exports =
            exports.into_iter().map(|storage| Export { storage, rules: NameRules::default() }).collect();
        let engine = Engine::start(
            engine_config,
            &credentials,
            authority.permit_verifier()?,
            exports,
            Arc::new(now),
            move |group| events.dispatch(group),
        )?;
        Ok(Arc::new(Site { engine, authority, agent: config.agent, router: desk }))
    }

    /// Registers a storage as a target; what is needed to resume is kept in `state`.
    pub(crate) fn add_target(&self, storage: Arc<dyn Storage>, state: &Path) -> Result<(), Fault> {
        self.engine.add_target(Export { storage, rules: NameRules::default() }, state)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Opens a job: `told` is called with its finished attempts.
    pub(crate) fn open_job(&self, told: impl Fn(Vec<AttemptOutcome>) + Send + Sync + 'static) -> u64 {
        let job = self.router.jobs.fetch_add(1, Ordering::Relaxed);
        self.router.lock().jobs.insert(job, Arc::new(told));
        job
    }

    /// Drops a job's callback.
    pub(crate) fn close_job(&self, job: u64) {
        let mut inner = self.router.lock();
        inner.jobs.remove(&job);
        inner.attempts.retain(|_, of| *of != job);
    }

    pub(crate) fn new_attempt(&self) -> AttemptId {
        self.router.lock().ids.next(now())
    }

    /// Hands files to the engine under a permit that we sign ourselves: both ends hold the key.
    pub(crate) fn fetch(
        &self,
        job: u64,
        source: &Source,
        target: &StorageName,
        verification: Verification,
        files: &[FetchItem],
    ) {
        let names: Vec<Lfn> = files.iter().map(|file| file.name.clone()).collect();
        let mut inner = self.router.lock();
        inner.attempts.extend(files.iter().map(|file| (file.attempt, job)));
        drop(inner);
        self.engine.fetch(FetchBatch {
            foreign: source.guest.as_ref().map(|guest| guest.membership.clone()),
            source_agent: source.agent,
            source_storage: storage_name(EXPORT),
            addresses: source.addresses.clone(),
            spread: false,
            class: source.class,
            circuits: Default::default(),
            mark: longhaul_model::Mark::default(),
            target_storage: target.clone(),
            permit: self.permit(source.guest.as_deref(), source.agent, files, &names),
            start_by: now() + PERMIT_LIFETIME,
            files: files.iter().map(|file| fetch_file(file, verification)).collect(),
            withheld: BTreeSet::new(),
            replicas: source.replicas.iter().map(|replica| self.replica(replica, files)).collect(),
        });
    }

    fn replica(&self, replica: &ReplicaSource, files: &[FetchItem]) -> Replica {
        // A name that is invalid there is requested anyway and found missing.
        let name = |file: &FetchItem| {
            replica.path_mapping.apply(file.name.as_str()).unwrap_or_else(|| file.name.clone())
        };
        let names: Vec<Lfn> = files.iter().map(name).collect();
        Replica {
            foreign: replica.guest.as_ref().map(|guest| guest.membership.clone()),
            agent: replica.agent,
            storage: storage_name(EXPORT),
            addresses: replica.addresses.clone(),
            permit: self.permit(replica.guest.as_deref(), replica.agent, files, &names),
            names,
        }
    }

    /// Signs a permit to read these files of a server, under the names they have there.
    fn permit(&self, guest: Option<&Guest>, source: AgentId, files: &[FetchItem], names: &[Lfn]) -> Arc<str> {
        let authority = guest.map_or(&self.authority, |guest| &guest.authority);
        let listed = files.iter().zip(names).map(|(file, name)| (file.attempt, name, file.size));
        authority.sign_permit(&Permit {
            deployment: authority.deployment().to_owned(),
            target_agent: self.agent,
            source_agent: source,
            source_storage: storage_name(EXPORT),
            list_digest: list_digest(listed),
            expires: now() + PERMIT_LIFETIME,
        })
    }

    /// Joins the deployment of another server.
    pub(crate) fn guest(&self, secret: &SharedSecret) -> Result<Guest, Fault> {
        let authority = secret.authority(now())?;
        let credentials = authority.credentials(self.agent, &storage_site(), now())?;
        let membership = self.engine.join_deployment(authority.deployment(), &credentials)?;
        Ok(Guest { authority, membership })
    }
}

fn fetch_file(file: &FetchItem, verification: Verification) -> FetchFile {
    FetchFile {
        attempt: file.attempt,
        transfer: TransferId(file.attempt.0),
        epoch: Epoch(1),
        lfn: file.name.clone(),
        size: file.size,
        // No digest is registered: the source's own digest is compared, or each chunk with the tree.
        digests: file.tree.iter().map(|tree| tree.root()).collect::<DigestSet>(),
        tree: file.tree.clone(),
        verification,
        priority: 0,
        replaces_damaged: false,
    }
}

fn storage_site() -> SiteName {
    match "copy".parse() {
        Ok(site) => site,
        Err(error) => unreachable!("{error}"),
    }
}
