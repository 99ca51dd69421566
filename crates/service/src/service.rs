//! Starting and stopping.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use longhaul_catalog::LiveTransferRow;
use longhaul_control::agents::{Agents, connection_events};
use longhaul_control::brain::{Brain, INPUTS_MAX, Input};
use longhaul_control::commit_loop::{CommitLoop, CommitWork};
use longhaul_control::live::Running;
use longhaul_control::metrics::Metrics;
use longhaul_control::query_loop::{self, ExpandQuery};
use longhaul_control::recorded::Recorded;
use longhaul_control::{Control, Kernel, SchedulerHandle, WriterHandle, deadlines, spawn, steering};
use longhaul_identity::{Identity, IdentitySettings};
use longhaul_jobs::by_circuit::CircuitBacklog;
use longhaul_jobs::{
    self as jobs, ConfigStore, ForeignMover, JobControl, JobSettings, Jobs, QueuedFiles, QueuedFilesSource,
    Tokens, Work,
};
use longhaul_model::{Fault, FaultCode, IdMaker, StorageId, Timestamp, TransferState};
use longhaul_netops::measured::{changes, puller};
use longhaul_netops::{Level, NetOps, NetOpsSettings, plan};
use longhaul_network::Link;
use longhaul_scheduler::{Scheduler, Settings};
use longhaul_security::{Credentials, grid_server_tls, service_server_tls};
use longhaul_storage_remote::Remote;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::context::ServiceContext;
use crate::http::{self, Http, Listening};
use crate::messages::{self, Messages};
use crate::state::State;
use crate::{Clock, Config, Operations};

/// What the network room believes, kept across restarts.
const KNOWLEDGE: &str = "network-knowledge";
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two prunings of history, and between two savings of what is believed.
const PRUNE_TICKS: u64 = 600;
const SAVE_TICKS: u64 = 60;
/// Between two looks at the authorities of users and at their communities.
const USERS_TICKS: u64 = 60;
/// What was decided is on disk after so many seconds.
const DECISIONS_TICKS: u64 = 2;
/// Delegated credentials that expired longer ago are forgotten; until then their users are told what
/// happened.
const DELEGATION_KEPT: Duration = Duration::from_secs(7 * 86_400);
/// Between two looks at what passed through relays.
const CLEAR_TICKS: u64 = 2;

/// A running service. Dropping it without [`Service::stop`] ends it in the midst of things, and loses nothing
/// either.
pub struct Service {
    operations: Arc<Operations>,
    addresses: Vec<SocketAddr>,
    http_address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    threads: Threads,
}

#[derive(Default)]
struct Threads {
    brain: Option<JoinHandle<Scheduler>>,
    commit_loop: Option<JoinHandle<()>>,
    query_loop: Option<JoinHandle<()>>,
    job_loop: Option<JoinHandle<()>>,
}

impl Service {
    /// Opens the state directory, takes up what was live, and listens. `pages` adds what is shown to
    /// browsers.
    pub async fn start(
        config: Config,
        clock: Clock,
        pages: impl FnOnce(&Arc<Operations>) -> Router,
    ) -> Result<Service, Fault> {
        // What is wrong with the configuration is told by the check that follows.
        let mover = jobs::mover(&config.jobs, &config.state_dir);
        Service::start_with(config, clock, mover, pages).await
    }

    /// As [`Service::start`]; copies of jobs are done by `mover`, and wait where there is none.
    pub async fn start_with(
        config: Config,
        clock: Clock,
        mover: Option<Arc<dyn ForeignMover>>,
        pages: impl FnOnce(&Arc<Operations>) -> Router,
    ) -> Result<Service, Fault> {
        config.check()?;
        let now = clock();
        let opening = config.clone();
        let state = tokio::task::spawn_blocking(move || State::open(&opening, now))
            .await
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
        let sockets = Sockets::bind(&config).await?;
        let remote = mover.as_ref().and_then(|mover| mover.remote());
        let jobs = Jobs::new();
        let (tokens, wanted) = Tokens::open(&config.fts)?;
        let (inputs, writing, questions) = (sync_channel(INPUTS_MAX), channel(), channel());
        let shared = Arc::new(share(
            &config,
            &clock,
            state,
            &sockets,
            (SchedulerHandle::new(inputs.0), WriterHandle::new(writing.0)),
            (jobs.0, tokens, remote.clone()),
        )?);
        let operations = Arc::new(Operations::new(shared.clone()));
        let mut threads = start_threads(&shared, inputs.1, writing.1, questions)?;
        let taking_up = shared.clone();
        tokio::task::spawn_blocking(move || take_up(&taking_up))
            .await
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
        messages::prepare(&shared)?;
        // After the limits and shares of all: what jobs wait for is ordered by them.
        let (job_control, runtime) = (shared.job_control.clone(), tokio::runtime::Handle::current());
        let job_loop = move || jobs::run(job_control, &jobs.1, mover, runtime);
        threads.job_loop = Some(spawn("job-loop", job_loop)?);
        let (stop, stopped) = watch::channel(false);
        let mut service = Service {
            addresses: sockets.secure_addresses.clone(),
            http_address: sockets.plain_address,
            operations,
            stop,
            tasks: JoinSet::new(),
            threads,
        };
        service.tasks.spawn(jobs::tape::run(shared.job_control.clone(), remote, stopped.clone()));
        service.tasks.spawn(jobs::run_tokens(shared.job_control.clone(), wanted, stopped.clone()));
        service.listen(sockets, pages, stopped)?;
        tracing::info!(deployment = shared.control.authority.deployment(), url = %shared.public_url,
            "service \
            started");
        Ok(service)
    }

    fn listen(
        &mut self,
        sockets: Sockets,
        pages: impl FnOnce(&Arc<Operations>) -> Router,
        stopped: watch::Receiver<bool>,
    ) -> Result<(), Fault> {
        let shared = &self.operations.shared;
        let limits = shared.config.limits.clone();
        let plain_hosts = self.http_address.map(plain_hosts).unwrap_or_default();
        let http = Arc::new(Http::new(self.operations.clone(), plain_hosts, stopped.clone()));
        let router = http::router(&http, pages(&self.operations));
        let tls = Arc::new(RwLock::new(acceptor(shared)?));
        let connections = Arc::new(Semaphore::new(limits.connections as usize));
        let deployment: Arc<str> = shared.control.authority.deployment().into();
        let secure = sockets.secure.into_iter().map(|listener| (listener, Some(tls.clone())));
        for (listener, tls) in secure.chain(sockets.plain.map(|listener| (listener, None))) {
            let listening = Listening {
                listener,
                tls,
                deployment: deployment.clone(),
                users: shared.identity.users().clone(),
                clock: shared.kernel.clock.clone(),
                router: router.clone(),
                limits: limits.clone(),
                connections: connections.clone(),
                stop: stopped.clone(),
            };
            self.tasks.spawn(listening.run());
        }
        for (place, archive) in shared.config.perfsonar.iter().enumerate() {
            self.tasks.spawn(puller::run(shared.netops.clone(), place, archive.clone(), stopped.clone()));
        }
        if shared.config.circuits.level == Level::Service {
            self.tasks.spawn(plan::run(shared.netops.clone(), stopped.clone()));
        }
        self.tasks.spawn(messages::run(shared.clone(), stopped.clone()));
        self.tasks.spawn(tick(shared.clone(), tls, stopped));
        Ok(())
    }

    pub fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// Where agents and people connect with TLS: the ports as they were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Of the plain listener for browsers on this machine.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// How agents reach this service, as join tokens say.
    pub fn public_url(&self) -> &str {
        &self.operations.shared.public_url
    }

    /// Answers what is being asked, finishes what is being written, and ends.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        self.operations.shared.control.agents.wake_all();
        while self.tasks.join_next().await.is_some() {}
        let shared = self.operations.shared.clone();
        let mut threads = std::mem::take(&mut self.threads);
        let ended = tokio::task::spawn_blocking(move || threads.end(&shared)).await;
        if let Err(error) = ended {
            tracing::error!(%error, "stopping");
        }
        tracing::info!("service stopped");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let shared = &self.operations.shared;
        // After `stop` nobody listens any more. Otherwise the threads end by themselves.
        shared.kernel.scheduler.try_tell(Input::Stop);
        shared.job_control.jobs.send(Work::Stop);
        let _ = shared.kernel.writer.send(CommitWork::Stop);
    }
}

impl Threads {
    /// The scheduler loop first, since it gives the commit loop work; then the commit loop, which finishes what
    /// it has.
    fn end(&mut self, shared: &ServiceContext) {
        shared.kernel.tell(Input::Stop);
        let scheduler = self.brain.take().and_then(|brain| brain.join().ok());
        let _ = shared.kernel.writer.send(CommitWork::Stop);
        drop(self.commit_loop.take().map(JoinHandle::join));
        drop(self.query_loop.take().map(JoinHandle::join));
        shared.job_control.jobs.send(Work::Stop);
        drop(self.job_loop.take().map(JoinHandle::join));
        write_decisions(shared);
        if let Some(scheduler) = scheduler {
            save_knowledge(shared, &scheduler);
        }
    }
}

/// Sockets are taken before anything else is told, so that the ports are known.
struct Sockets {
    secure: Vec<TcpListener>,
    secure_addresses: Vec<SocketAddr>,
    plain: Option<TcpListener>,
    plain_address: Option<SocketAddr>,
}

impl Sockets {
    async fn bind(config: &Config) -> Result<Sockets, Fault> {
        let mut secure = Vec::new();
        for &address in &config.listen {
            secure.push(bind(address).await?);
        }
        let plain = match config.http {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let address = |listener: &TcpListener| listener.local_addr().ok();
        Ok(Sockets {
            secure_addresses: secure.iter().filter_map(address).collect(),
            plain_address: plain.as_ref().and_then(address),
            secure,
            plain,
        })
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Fault> {
    TcpListener::bind(address).await.map_err(|error| {
        Fault::new(
            FaultCode::BadRequest,
            format!("cannot listen on {address}: {error}; choose another address"),
        )
        .with_source(error)
    })
}

fn plain_hosts(address: SocketAddr) -> Vec<String> {
    vec![address.to_string(), format!("localhost:{}", address.port())]
}

fn share(
    config: &Config,
    clock: &Clock,
    state: State,
    sockets: &Sockets,
    (scheduler, writer): (SchedulerHandle, WriterHandle),
    (jobs, tokens, remote): (Jobs, Tokens, Option<Arc<Remote>>),
) -> Result<ServiceContext, Fault> {
    let last_id = state.catalog.last_id()?;
    let agents = Agents::default();
    state.catalog.agents()?.into_iter().for_each(|row| agents.add(row));
    let public_url = public_url(config, &sockets.secure_addresses);
    let (vault, metrics) = (Arc::new(state.vault), Arc::new(Metrics::default()));
    let config_store = Arc::new(ConfigStore::new(state.catalog.clone()));
    let identity = Arc::new(Identity::open(
        IdentitySettings {
            deployment: config.deployment.clone(),
            fts: config.fts.clone(),
            login: config.login.clone(),
            names: config.names.clone(),
            public_url: public_url.clone(),
            wait: config.limits.wait(),
        },
        clock.clone(),
        state.catalog.clone(),
        vault.clone(),
        config_store.clone(),
        metrics.clone(),
    )?);
    let kernel = Arc::new(Kernel::new(
        clock.clone(),
        IdMaker::after(last_id),
        state.catalog,
        vault,
        metrics,
        scheduler,
        writer,
    ));
    let control = Arc::new(Control::new(
        kernel.clone(),
        state.authority,
        agents,
        config.marking.table()?,
        jobs.stream_ledger.clone(),
        config.report_every_ms,
    ));
    let hosts = config.circuits.hosts.clone();
    let backlog = Arc::new(CircuitBacklog::new(kernel.clone(), control.clone(), hosts));
    let settings =
        NetOpsSettings { circuits: config.circuits.clone(), probe_interval_s: config.probe_every_s };
    let (kernel_of_net, control_of_net) = (kernel.clone(), control.clone());
    let netops = NetOps::open(kernel_of_net, control_of_net, settings, &config.perfsonar, backlog.clone())?;
    let netops = Arc::new(netops);
    let messages = Arc::new(Messages::default());
    let host: Option<::http::Uri> = public_url.parse().ok();
    let host = host.and_then(|url| url.host().map(str::to_owned)).unwrap_or_default();
    let job_control = JobControl {
        kernel: kernel.clone(),
        control: control.clone(),
        identity: identity.clone(),
        netops: netops.clone(),
        settings: JobSettings { jobs: config.jobs.clone(), fts: config.fts.clone(), host },
        config_store,
        jobs,
        tokens,
        queued: QueuedFiles::default(),
        backlog,
        listener: messages.clone(),
    };
    Ok(ServiceContext {
        kernel,
        control,
        job_control: Arc::new(job_control),
        remote,
        identity,
        public_url,
        config: config.clone(),
        started: clock(),
        netops,
        messages,
        _lock: state.lock,
    })
}

fn public_url(config: &Config, addresses: &[SocketAddr]) -> String {
    if !config.public_url.is_empty() {
        return config.public_url.trim_end_matches('/').to_owned();
    }
    match addresses.first() {
        Some(address) if address.ip().is_unspecified() => format!("https://localhost:{}", address.port()),
        Some(address) => format!("https://{address}"),
        None => String::new(),
    }
}

fn start_threads(
    shared: &Arc<ServiceContext>,
    inputs: Receiver<Input>,
    work: Receiver<CommitWork>,
    (queries, questions): (Sender<ExpandQuery>, Receiver<ExpandQuery>),
) -> Result<Threads, Fault> {
    let kept = shared.kernel.catalog.setting(KNOWLEDGE)?;
    let settings = Settings {
        lease_length: shared.config.lease(),
        strategy: shared.config.strategy()?,
        lease_recall: shared.config.ask_back,
        ..Settings::default()
    };
    let last_id = shared.kernel.catalog.last_id()?;
    let mut scheduler = Recorded::new(settings, kept.as_deref(), last_id);
    if let Some(directory) = &shared.config.record_dir {
        let bounds = (directory.as_path(), shared.config.record_bytes);
        scheduler.record(kept, last_id, bounds, shared.control.recording.clone(), shared.kernel.now())?;
    }
    let kernel = &shared.kernel;
    let executor = shared.job_control.jobs.executor();
    let brain = Brain::new(scheduler, kernel.clock.clone(), kernel.writer.clone(), queries, executor);
    let commit_loop = CommitLoop::new(shared.control.clone());
    let (catalog, scheduler, clock) =
        (kernel.catalog.clone(), kernel.scheduler.clone(), kernel.clock.clone());
    let source = QueuedFilesSource { catalog: catalog.clone() };
    let query_loop = move || query_loop::run(&catalog, &source, &questions, &scheduler, &clock);
    Ok(Threads {
        brain: Some(spawn("brain", move || brain.run(&inputs))?),
        commit_loop: Some(spawn("commit-loop", move || commit_loop.run(&work))?),
        query_loop: Some(spawn("query-loop", query_loop)?),
        job_loop: None,
    })
}

/// After a start: names, demands, and the transfers that were live.
fn take_up(shared: &ServiceContext) -> Result<(), Fault> {
    shared.kernel.refresh_directory()?;
    shared.kernel.tell(Input::Events(steering::events(
        &shared.kernel.catalog,
        &shared.control.marks,
        &*shared.job_control.config_store,
        shared.kernel.now(),
    )?));
    let demands = shared.kernel.catalog.demands()?;
    let live = shared.kernel.catalog.live_transfers()?;
    tracing::info!(demands = demands.len(), transfers = live.len(), "taking up");
    shared.kernel.tell(Input::Demands { now: demands, gone: Vec::new() });
    for row in live {
        let sources = match shared.kernel.catalog.replicas_of_file(&row.lfn)? {
            Some((_, replicas)) => {
                let good =
                    replicas.into_iter().filter(|replica| replica.suspect.is_none() && !replica.deleting);
                good.map(|replica| replica.storage).collect()
            }
            None => Vec::new(),
        };
        adopt(shared, row, sources);
    }
    plan::take_up(&shared.netops)?;
    Ok(())
}

fn adopt(shared: &ServiceContext, row: LiveTransferRow, sources: Vec<StorageId>) {
    if row.state == TransferState::Leased {
        let running = Running {
            transfer: row.transfer,
            link: Link { source: row.source, target: row.target },
            agent: row.agent,
            subscription: row.subscription,
            lfn: row.lfn.clone(),
            size: row.size,
            bytes_done: None,
            started: false,
            // It was leased by an earlier start.
            mark: longhaul_model::Mark::default(),
        };
        shared.control.live.leased(row.attempt, running);
    }
    if let Some(fault) = &row.fault {
        shared.control.live.failed(
            row.transfer,
            fault,
            shared.kernel.directory().name(row.source),
            row.lfn.shown(),
            row.changed,
        );
    }
    shared.kernel.tell(Input::Adopt(Box::new(row), sources));
}

fn acceptor(shared: &ServiceContext) -> Result<TlsAcceptor, Fault> {
    let mut names = shared.config.names.clone();
    names.push("localhost".to_owned());
    names.extend(
        shared
            .config
            .listen
            .iter()
            .filter(|address| !address.ip().is_unspecified())
            .map(|address| address.ip().to_string()),
    );
    let host = shared
        .public_url
        .strip_prefix("https://")
        .and_then(|rest| rest.parse::<::http::uri::Authority>().ok());
    names.extend(host.map(|authority| authority.host().trim_matches(['[', ']']).to_owned()));
    names.sort();
    names.dedup();
    let pair = shared.control.authority.issue_service(&names, shared.kernel.now())?;
    let credentials = Credentials {
        certificate_pem: pair.certificate_pem,
        key_pem: pair.key_pem,
        ca_pem: shared.control.authority.ca_pem().to_owned(),
    };
    let tls = match shared.identity.users().trust() {
        Some(_) => grid_server_tls(&credentials)?,
        None => service_server_tls(&credentials)?,
    };
    Ok(TlsAcceptor::from(tls))
}

/// Once a second: who is connected, what changed, and now and then the housekeeping.
async fn tick(shared: Arc<ServiceContext>, tls: http::Acceptor, mut stop: watch::Receiver<bool>) {
    let mut ticks: u64 = 0;
    let mut issued = shared.kernel.now();
    loop {
        tokio::select! {
            _ = tokio::time::sleep(TICK) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        ticks += 1;
        let now = shared.kernel.now();
        shared.kernel.changes.tick(now);
        if now.since(issued) > CERTIFICATE_LIFE
            && let Ok(renewed) = acceptor(&shared)
        {
            *tls.write().unwrap_or_else(std::sync::PoisonError::into_inner) = renewed;
            issued = now;
        }
        if ticks.is_multiple_of(USERS_TICKS) {
            let shared = shared.clone();
            tokio::spawn(async move { shared.identity.refresh_issuers().await });
        }
        let shared = shared.clone();
        let work = tokio::task::spawn_blocking(move || housekeeping(&shared, ticks));
        if let Err(error) = work.await {
            tracing::error!(%error, "housekeeping");
        }
    }
}

/// The service's own certificate is replaced this often; new connections get the new one.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 3_600);

fn housekeeping(shared: &ServiceContext, ticks: u64) {
    let now = shared.kernel.now();
    for (agent, site, storages, connected) in shared.control.agents.transitions(now) {
        tracing::info!(%agent, %site, connected, "agent");
        shared.kernel.tell(Input::Events(connection_events(agent, storages, connected)));
        shared.kernel.changes.touch(longhaul_api::native::ChangeKind::Site, site, now);
    }
    if ticks.is_multiple_of(deadlines::LOOK_EVERY.as_secs())
        && let Err(error) = deadlines::watch(&shared.control)
    {
        tracing::warn!(%error, "deadlines could not be looked at");
    }
    if ticks.is_multiple_of(deadlines::LOOK_EVERY.as_secs()) {
        changes::watch(&shared.netops);
    }
    if ticks.is_multiple_of(CLEAR_TICKS) {
        // Through the commit loop: what leaves the catalog and what comes into it stay in order.
        let _ = shared.kernel.writer.send(CommitWork::ClearRelays);
    }
    if ticks.is_multiple_of(SAVE_TICKS) {
        let keep = shared.kernel.catalog.clone();
        let save = Input::Ask(Box::new(move |scheduler: &mut Recorded, _: Timestamp| {
            let text = serde_json::to_string(scheduler.knowledge()).unwrap_or_default();
            // Not on the scheduler loop's thread, which never waits for the disk.
            drop(spawn("knowledge-saver", move || keep.set_setting(KNOWLEDGE, &text)));
        }));
        shared.kernel.tell(save);
    }
    if ticks.is_multiple_of(DECISIONS_TICKS) {
        write_decisions(shared);
    }
    if ticks.is_multiple_of(USERS_TICKS) {
        shared.identity.users().reload(now);
    }
    if ticks.is_multiple_of(PRUNE_TICKS) {
        if let Err(error) = shared.kernel.catalog.forget_delegations(now - DELEGATION_KEPT) {
            tracing::warn!(%error, "delegated credentials that expired could not be removed");
        }
        let older_than = now - Duration::from_secs(u64::from(shared.config.history_days) * 86_400);
        while let Ok(1..) = shared.kernel.catalog.prune_history(older_than, shared.config.history_rows) {}
    }
}

fn write_decisions(shared: &ServiceContext) {
    if let Err(error) = shared.identity.write_audit_log() {
        tracing::warn!(%error, "decisions wait to be written");
    }
}

fn save_knowledge(shared: &ServiceContext, scheduler: &Scheduler) {
    let text = serde_json::to_string(scheduler.knowledge()).unwrap_or_default();
    if let Err(error) = shared.kernel.catalog.set_setting(KNOWLEDGE, &text) {
        tracing::warn!(%error, "what is believed of the network could not be kept");
    }
}
