//! Lifecycle of an agent: opens its parts, drives its loops, shuts down in order.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longhaul_doctor::facts::Traffic;
use longhaul_engine::{Clock, Export};
use longhaul_model::{AgentId, Fault, FaultCode, StorageKind};
use longhaul_security::PermitVerifier;
use longhaul_storage::{PooledStorage, Posix, Storage, Virtual, WriterId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::circuits::sampler::LinkSampler;
use crate::circuits::{Circuits, CircuitsStart};
use crate::clock::{MonotonicClock, ServiceClock};
use crate::command_mover;
use crate::config::Config;
use crate::config::uplinks::UplinkConfig;
use crate::context::AgentContext;
use crate::door_audit::{AuditFlusher, DoorAudit};
use crate::doors::Doors;
use crate::driver::{self, run_periodic, run_periodic_blocking};
use crate::foreign::{self, ForeignMover, SilenceWatch};
use crate::hooks::{self, Hooks};
use crate::http_service_api::HttpServiceApi;
use crate::lease_expiry::{ExpiryLoop, LeaseExpiry};
use crate::measure::paths::PathMeasurement;
use crate::measure::uplinks::UplinkMeasurement;
use crate::measure::{self, Measurements};
use crate::mover::{Mover, MoverHandle, MoverStart, start_engine};
use crate::null_mover::{self, NullLinks};
use crate::outbox_log::OutboxLog;
use crate::outcomes::OutcomeRecorder;
use crate::pool_drain::PoolDrain;
use crate::report::final_report;
use crate::root_marks::{RootCheck, RootMarks};
use crate::service_api::ServiceApi;
use crate::service_session::ServiceSession;
use crate::shared_roots::{SharedRootCheck, SharedRoots};
use crate::state_dir::{Identity, StateDir, random_u64};
use crate::stop::StopFlag;
use crate::storage_health::{StorageHealth, StorageWatch};
use crate::tape::{StageOrders, StageOrdersCheck, TapeSystems, Tapes};
use crate::tasks::{TaskContext, Tasks};
use crate::third_party::{self, StorageServers};
use crate::threads::{ended_fault, guarded};

/// Interval between reports until the service sets another.
const REPORT_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// How long doors may take to finish the requests under way; they give up a little earlier themselves.
const DOORS_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(7);
/// How long an agent that stops waits for the service to take note of it.
const STOP_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The shutdown waits at most this many times [`STOP_CHECK_INTERVAL`] for steps that are under way.
const STOP_CHECKS_MAX: u32 = 1_000;
/// Interval of those checks: short, since steps are.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A future that is compiled here and not once more in every crate that awaits it (decision 0036).
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The site daemon.
pub struct Agent {
    pub(crate) context: Arc<AgentContext>,
    uplinks: Vec<UplinkConfig>,
    pub(crate) expiry: LeaseExpiry,
    doors: Doors,
    pub(crate) watches: Vec<StorageWatch>,
    drains: Vec<PoolDrain>,
    /// Set when recording the engine's events has panicked: the agent cannot go on.
    broken: watch::Receiver<Option<Fault>>,
}

impl Agent {
    /// Runs the agent that has joined with `config.state_dir` until `shutdown` completes (returns `Ok`, and
    /// all leases go on with the next start) or until it cannot go on. `clock` is this host's, and never
    /// steps.
    pub fn run(
        config: Config,
        clock: Clock,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<Result<(), Fault>> {
        Agent::run_boxed(config, clock, Box::pin(shutdown))
    }

    fn run_boxed(config: Config, clock: Clock, shutdown: BoxFuture<()>) -> BoxFuture<Result<(), Fault>> {
        Box::pin(Agent::open_and_run(config, clock, shutdown))
    }

    async fn open_and_run(config: Config, clock: Clock, shutdown: BoxFuture<()>) -> Result<(), Fault> {
        config.check()?;
        let state = StateDir::open(&config.state_dir)?;
        let identity = state.identity()?.ok_or_else(|| {
            let detail =
                format!("{} has no identity: run `longhaul agent join` first", config.state_dir.display());
            Fault::new(FaultCode::StateDirectory, detail)
        })?;
        let url = config.service_url.as_deref().unwrap_or(&identity.service_url);
        let service = Arc::new(HttpServiceApi::new(url, &identity.credentials())?);
        let agent = tokio::task::spawn_blocking(move || {
            let links = config.null_mover.as_deref().map(NullLinks::read).transpose()?;
            Agent::start(config, clock, state, identity, service, |start| match links {
                Some(links) => null_mover::start(links, start),
                None => start_engine(start),
            })
        });
        agent.await.map_err(|error| ended_fault("the start", error))??.run_until(shutdown).await
    }

    /// Opens the agent and starts its threads.
    pub(crate) fn start(
        config: Config,
        clock: Clock,
        state: StateDir,
        identity: Identity,
        service: Arc<dyn ServiceApi>,
        start_mover: impl FnOnce(MoverStart) -> Result<Box<dyn Mover>, Fault>,
    ) -> Result<Agent, Fault> {
        let mut agent = Agent::open(config, clock, state, identity, service, start_mover)?;
        agent.spawn_threads()?;
        Ok(agent)
    }

    /// Opens everything and resumes the leases of an earlier run, whether or not the service answers. Starts
    /// no thread of the agent's own.
    pub(crate) fn open(
        config: Config,
        clock: Clock,
        state: StateDir,
        identity: Identity,
        service: Arc<dyn ServiceApi>,
        start_mover: impl FnOnce(MoverStart) -> Result<Box<dyn Mover>, Fault>,
    ) -> Result<Agent, Fault> {
        let sites = TapeSystems::from_storages(&config.storages)?;
        let OpenStorages { exports, servers, shared, pooled } =
            open_storages(&config, &sites, identity.agent)?;
        let hooks = Hooks::from_storages(&config.storages)?.map(Arc::new);
        let circuits = Arc::new(Circuits::read(&config.circuits)?);
        let storages: Vec<_> = exports.iter().map(|export| export.storage.clone()).collect();
        let own = identity.credentials();
        let mut doors =
            Doors::prepare(&config.doors, &storages, &own, identity.agent.0, state.doors(), clock())?;
        let incarnation = state.next_incarnation()?;
        let log = Arc::new(OutboxLog::open(state.path())?);
        // Before anything looks into the work directories, and before anything is resumed.
        shared.recover_at_start(&log)?;
        let drains = pooled.into_iter().filter_map(|storage| PoolDrain::start(storage, identity.agent));
        let drains = drains.collect();
        let clock = ServiceClock::new(clock, log.clock_offset());
        let tapes = Arc::new(Tapes::open(sites, &state.tapes(), &clock)?);
        doors.attach_tapes(&tapes, &identity.site);
        let stop = StopFlag::default();
        let (break_down, broken) = watch::channel(None);

        let period = Duration::from_secs(config.space_check_s.into());
        let (storage_health, watches) = StorageHealth::new(&storages, period);
        let outcomes = Arc::new(OutcomeRecorder {
            log: log.clone(),
            circuits: circuits.clone(),
            storage_health: storage_health.clone(),
            tapes: tapes.clone(),
            stop: stop.clone(),
        });
        let take = outcomes.clone();
        let events = move |events| {
            if let Err(fault) = guarded("keeping outcomes", || take.record_events(events)) {
                break_down.send_replace(Some(fault));
            }
        };
        let start = MoverStart {
            config: engine_config(&config, &state, &identity),
            credentials: identity.credentials(),
            permits: PermitVerifier::new(&identity.permit_key)?,
            exports: exports.clone(),
            clock: clock.for_engine(),
            events: Box::new(events),
        };
        // Hooks are outermost: they see every file, whoever moves it.
        let start_mover =
            |start: MoverStart| third_party::start(&config.storages, &servers, start, start_mover);
        let start_mover =
            |start: MoverStart| command_mover::start(&config.storages, state.movers(), start, start_mover);
        let engine: MoverHandle = Arc::new(match &hooks {
            Some(hooks) => hooks::start(hooks.clone(), start, start_mover)?,
            None => start_mover(start)?,
        });
        let host = host_name();
        let data_addresses = config.data_addresses(&engine.data_addresses(), &host);
        // Promise 8: before anything is resumed, and whether the service answers or not.
        let moves = config.mover.files > 0;
        let foreign =
            moves.then(|| ForeignMover::new(&config.mover, outcomes.clone(), clock.clone())).transpose()?;
        let foreign = foreign.map(Arc::new);
        if let Some(settings) = log.settings() {
            engine.set_limits(settings.in_bytes_per_s, settings.out_bytes_per_s);
            if let Some(foreign) = &foreign {
                foreign.set_limits(settings.in_bytes_per_s, settings.out_bytes_per_s);
            }
        }
        foreign::fail_held(&log)?;
        let (resumed, tasks_left) = log.resumed();
        let expiry = LeaseExpiry::resume(engine.as_ref().as_ref(), &circuits, resumed);
        let roots = Arc::new(RootMarks::open(&config.storages, &exports, &identity.deployment, &state)?);
        let offers = config.storages.iter().zip(&storages).map(|(storage, open)| {
            let can = open.capabilities();
            storage.offer(storage.writable && can.writable, can.case_insensitive)
        });
        let offers = offers.collect();
        let room = TaskContext {
            exports,
            hooks,
            log: log.clone(),
            roots: roots.clone(),
            scans: state.scans(),
            digest_threads: config.digest_threads(),
            stop: stop.clone(),
        };
        let tasks = Tasks::new(room, tasks_left);
        tracing::info!(
            agent = %identity.agent, site = %identity.site, incarnation = incarnation.number,
            addresses = ?data_addresses, leases = log.leases_held(), facts = log.facts_pending(),
            "agent started"
        );
        let door_audit = Arc::new(DoorAudit::new(clock.clone()));
        if !circuits.is_empty() {
            circuits.start(CircuitsStart {
                directory: &state.circuits()?,
                agent: identity.agent,
                seed: incarnation.nonce,
                engine: &engine,
                clock: &clock,
            })?;
        }
        let context = AgentContext {
            state,
            identity: Mutex::new(identity),
            incarnation,
            host,
            data_addresses,
            offers,
            roots,
            shared_roots: shared,
            clock,
            monotonic: MonotonicClock::start(),
            log,
            engine,
            storage_health,
            tasks,
            service,
            session: ServiceSession::new(),
            random: Box::new(|| random_u64().unwrap_or_default()),
            report_interval: watch::Sender::new(REPORT_INTERVAL_DEFAULT),
            measurements: Arc::new(Measurements::new(config.probes)),
            circuits,
            stage_orders: StageOrders::new(tapes.clone()),
            tapes,
            foreign,
            door_audit,
            stop,
        };
        let context = Arc::new(context);
        Ok(Agent { context, uplinks: config.uplinks, expiry, doors, watches, drains, broken })
    }

    /// Starts the threads for work that waits for disks.
    fn spawn_threads(&mut self) -> Result<(), Fault> {
        self.context.tasks.spawn()?;
        self.watches.drain(..).for_each(StorageWatch::spawn);
        Ok(())
    }

    pub(crate) async fn run_until(self, shutdown: BoxFuture<()>) -> Result<(), Fault> {
        let Agent { context, uplinks, expiry, doors, watches: _, drains, mut broken } = self;
        let (close, closed) = watch::channel(false);
        let alive = Arc::downgrade(&context);
        let credentials = move || alive.upgrade().map(|context| context.identity.lock().credentials());
        let mut doors =
            tokio::spawn(doors.run(credentials, context.clock.clone(), context.door_audit.clone(), closed));
        let mut loops = JoinSet::new();
        loops.spawn(driver::run_reports(context.clone()));
        loops.spawn(driver::run_work(context.clone()));
        loops.spawn(driver::run_renewal(context.clone()));
        let (engine, circuits, log) = (context.engine.clone(), context.circuits.clone(), context.log.clone());
        let (measurements, clock) = (context.measurements.clone(), context.clock.clone());
        let monotonic = context.monotonic;
        loops.spawn(measure::probes::run(measurements.clone(), clock.clone()));
        let read = Box::new(|interface: &str| Traffic::read(Path::new("/"), interface));
        let uplinks = UplinkMeasurement::new(uplinks, read, measurements.clone(), clock.clone());
        loops.spawn(run_periodic(monotonic, uplinks));
        let paths = PathMeasurement::new(engine.clone(), circuits.clone(), measurements, clock.clone());
        loops.spawn(run_periodic(monotonic, paths));
        if !circuits.is_empty() {
            loops.spawn(run_periodic(monotonic, LinkSampler::new(circuits, engine.clone(), log.clone())));
        }
        loops.spawn(run_periodic_blocking(context.clone(), RootCheck::new(context.clone())));
        if !context.shared_roots.is_empty() {
            loops.spawn(run_periodic_blocking(context.clone(), SharedRootCheck::new(context.clone())));
        }
        let audit = AuditFlusher::new(context.door_audit.clone(), log.clone());
        loops.spawn(run_periodic_blocking(context.clone(), audit));
        if !context.tapes.is_empty() {
            loops.spawn(context.tapes.clone().run());
            loops.spawn(run_periodic_blocking(context.clone(), StageOrdersCheck::new(context.clone())));
        }
        for drain in drains {
            loops.spawn(run_periodic_blocking(context.clone(), drain));
        }
        if let Some(foreign) = &context.foreign {
            loops.spawn(run_periodic(monotonic, SilenceWatch::new(foreign.clone())));
        }
        let expiry = ExpiryLoop::new(expiry, engine, log, clock);
        loops.spawn(run_periodic_blocking(context.clone(), expiry));
        let result = tokio::select! {
            () = shutdown => Ok(()),
            Some(ended_loop) = loops.join_next() => {
                Err(ended_loop.unwrap_or_else(|error| ended_fault("a loop", error)))
            }
            ended_doors = &mut doors => Err(match ended_doors {
                Ok(Err(fault)) => fault,
                other => ended_fault("the doors", format!("{other:?}")),
            }),
            Ok(fault) = broken.wait_for(Option::is_some) => {
                Err(fault.clone().unwrap_or_else(|| ended_fault("the engine", "it broke")))
            }
        };
        close.send_replace(true);
        if let Some(foreign) = &context.foreign {
            // Before the report loop ends, so that the service still hears of it.
            foreign.shut_down().await;
        }
        if !doors.is_finished() && tokio::time::timeout(DOORS_SHUTDOWN_TIMEOUT, &mut doors).await.is_err() {
            doors.abort();
        }
        loops.shutdown().await;
        if context.session.is_greeted() {
            report_stop(&context).await;
        }
        let stopped = tokio::task::spawn_blocking(move || stop(context)).await;
        stopped.map_err(|error| ended_fault("the stop", error))?;
        match &result {
            Ok(()) => tracing::info!("agent stopped"),
            Err(fault) => tracing::error!(fault = %fault.chain(), "agent cannot go on"),
        }
        result
    }
}

/// Says that the agent stops, so that others need not find out by failures. A service that does not answer
/// notices by itself after a while.
async fn report_stop(context: &AgentContext) {
    let report = context.service.report(final_report(context));
    match tokio::time::timeout(STOP_REPORT_TIMEOUT, report).await {
        Ok(Ok(_)) => {}
        Ok(Err(fault)) => tracing::info!(fault = %fault.chain(), "the service does not know that we stop"),
        Err(_) => tracing::info!("the service does not know that we stop: it does not answer"),
    }
}

fn stop(context: Arc<AgentContext>) {
    // The doors are closed: there are no further decisions.
    if let Err(fault) = context.door_audit.flush(&context.log) {
        tracing::warn!(fault = %fault.chain(), "the last decisions of doors were not recorded");
    }
    // Circuits are released while their streams can still move away.
    context.circuits.release_all();
    context.stop.set();
    context.storage_health.stop();
    context.tasks.join();
    // A step may still be running off the event loop; it ends by itself after a write to the outbox log at
    // most.
    let mut engine = context.engine.clone();
    drop(context);
    for _ in 0..STOP_CHECKS_MAX {
        match Arc::try_unwrap(engine) {
            Ok(last) => return last.stop(),
            Err(used) => engine = used,
        }
        std::thread::sleep(STOP_CHECK_INTERVAL);
    }
    tracing::error!("a step does not end; the engine is left running");
}

struct OpenStorages {
    exports: Vec<Export>,
    /// Those that servers hold.
    servers: StorageServers,
    /// Those to which other agents write as well.
    shared: SharedRoots,
    /// Those that consist of pools.
    pooled: Vec<Arc<PooledStorage>>,
}

fn open_storages(config: &Config, sites: &TapeSystems, agent: AgentId) -> Result<OpenStorages, Fault> {
    let (mut exports, mut servers) = (Vec::with_capacity(config.storages.len()), StorageServers::new());
    let (mut shared, mut pooled) = (SharedRoots::default(), Vec::new());
    for storage in &config.storages {
        let open: Arc<dyn Storage> = match storage.kind {
            StorageKind::Posix if !storage.pools.is_empty() => {
                let open = Arc::new(storage.open_pools()?);
                pooled.push(open.clone());
                open
            }
            StorageKind::Posix if storage.shared && storage.writable => {
                let writer = WriterId(agent.0);
                let open = Arc::new(Posix::open_shared(storage.posix(), storage.posix_tuning(), writer)?);
                shared.add(storage.name.clone(), open.clone());
                open
            }
            StorageKind::Posix | StorageKind::Tape => {
                Arc::new(Posix::open_in(storage.posix(), storage.posix_tuning())?)
            }
            StorageKind::Webdav | StorageKind::S3 => {
                let server = Arc::new(storage.open_remote()?);
                servers.insert(storage.name.clone(), server.clone());
                server
            }
            StorageKind::Virtual => Arc::new(Virtual::new(storage.name.clone(), storage.writable)),
        };
        exports.push(Export { storage: sites.wrap(open), rules: storage.name_rules() });
    }
    Ok(OpenStorages { exports, servers, shared, pooled })
}

fn engine_config(config: &Config, state: &StateDir, identity: &Identity) -> longhaul_engine::Config {
    longhaul_engine::Config {
        agent: identity.agent,
        deployment: identity.deployment.clone(),
        listen: config.listen.clone(),
        state_dir: state.engine(),
        memory_bytes: config.memory_bytes,
        streams_per_session: config.streams_per_session,
        fixed_streams: false,
        local_addresses: config.bind.clone(),
        network_threads: config.network_threads(),
        cores: config.data_cores.clone(),
        data_security: config.data_security,
        path: longhaul_engine::PathProfile::default(),
        responder: None,
        access: config.access(),
        marking: config.marking.marking(&host_name()),
    }
}

/// This host's name: shown to people, and dialled by other agents if no address is configured.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".into(),
        name => name.into(),
    }
}
