//! Start, loops and end of an agent.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::agent::StorageKind;
use longhaul_engine::{Clock, Export};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::PermitVerifier;
use longhaul_storage::{Posix, Storage, Virtual};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::attempts::{Expiring, Outcomes};
use crate::circuits::{self, Circuits, CircuitsStart};
use crate::clock::ServiceClock;
use crate::config::Config;
use crate::config::uplinks::UplinkConfig;
use crate::context::AgentContext;
use crate::control::Control;
use crate::decided::Decided;
use crate::doors::Doors;
use crate::driver;
use crate::foreign::{self, Foreign};
use crate::hooks::{self, Hooks};
use crate::http::HttpControl;
use crate::ledger::Ledger;
use crate::measure::{self, Measures};
use crate::mover::{Mover, MoverHandle, Start, start_engine};
use crate::null_mover::{self, NullLinks};
use crate::outside_mover;
use crate::spaces::Spaces;
use crate::state_dir::{Identity, StateDir};
use crate::stop::Stop;
use crate::tape::{Sites, Tapes};
use crate::tasks::{Room, Tasks};
use crate::threads::{ended, guarded, locked};
use crate::{renew, report, work};

/// Between reports, until the service says otherwise.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often leases of an earlier run are looked at for expiry.
const EXPIRY_CHECK: Duration = Duration::from_secs(1);
/// Doors let requests under way end, within a little less.
const DOORS_GRACE: Duration = Duration::from_secs(7);
/// The stop waits this often and this long for steps that are under way.
const STOP_CHECKS_MAX: u32 = 1_000;
const STOP_CHECK: Duration = Duration::from_millis(10);

/// The site daemon.
pub struct Agent {
    shared: Arc<AgentContext>,
    uplinks: Vec<UplinkConfig>,
    expiring: Expiring,
    outcomes: Arc<Outcomes>,
    doors: Doors,
    /// Something of ours that must not fail has failed.
    broken: watch::Receiver<Option<Fault>>,
}

impl Agent {
    /// Runs the agent that has joined with `config.state_dir` until `shutdown` completes (then the result is
    /// `Ok`, and everything that is held goes on with the next start) or it cannot go on. `clock` is this
    /// host's.
    pub async fn run(config: Config, clock: Clock, shutdown: impl Future<Output = ()>) -> Result<(), Fault> {
        config.check()?;
        let state = StateDir::open(&config.state_dir)?;
        let identity = state.identity()?.ok_or_else(|| {
            let detail =
                format!("{} has no identity: run `longhaul agent join` first", config.state_dir.display());
            Fault::new(FaultCode::StateDirectory, detail)
        })?;
        let url = config.service_url.as_deref().unwrap_or(&identity.service_url);
        let control = Arc::new(HttpControl::new(url, &identity.credentials())?);
        let agent = tokio::task::spawn_blocking(move || {
            let links = config.null_mover.as_deref().map(NullLinks::read).transpose()?;
            Agent::start(config, clock, state, identity, control, |start| match links {
                Some(links) => null_mover::start(links, start),
                None => start_engine(start),
            })
        });
        agent.await.map_err(|error| ended("the start", error))??.run_until(shutdown).await
    }

    /// Opens everything and goes on with what an earlier run held, whether or not the service is there.
    pub(crate) fn start(
        config: Config,
        clock: Clock,
        state: StateDir,
        identity: Identity,
        control: Arc<dyn Control>,
        start_mover: impl FnOnce(Start) -> Result<Box<dyn Mover>, Fault>,
    ) -> Result<Agent, Fault> {
        let sites = Sites::of(&config.storages)?;
        let exports = open_storages(&config, &sites)?;
        let hooks = Hooks::of(&config.storages)?.map(Arc::new);
        let circuits = Arc::new(Circuits::read(&config.circuits)?);
        let storages: Vec<_> = exports.iter().map(|export| export.storage.clone()).collect();
        let own = identity.credentials();
        let mut doors =
            Doors::prepare(&config.doors, &storages, &own, identity.agent.0, state.doors(), clock())?;
        let incarnation = state.next_incarnation()?;
        let ledger = Arc::new(Ledger::open(state.path())?);
        let clock = ServiceClock::new(clock, ledger.clock_offset());
        let tapes = Arc::new(Tapes::open(sites, &state.tapes(), &clock)?);
        doors.on_tape(&tapes, &identity.site);
        let stop = Stop::default();
        let (break_down, broken) = watch::channel(None);

        let spaces = Spaces::watch(&storages, Duration::from_secs(config.space_check_s.into()));
        let outcomes = Arc::new(Outcomes {
            ledger: ledger.clone(),
            circuits: circuits.clone(),
            spaces: spaces.clone(),
            tapes: tapes.clone(),
            stop: stop.clone(),
        });
        let take = outcomes.clone();
        let events = move |events| {
            if let Err(fault) = guarded("keeping outcomes", || take.take(events)) {
                break_down.send_replace(Some(fault));
            }
        };
        let start = Start {
            config: engine_config(&config, &state, &identity),
            credentials: identity.credentials(),
            permits: PermitVerifier::new(&identity.permit_key)?,
            exports: exports.clone(),
            clock: clock.for_engine(),
            events: Box::new(events),
        };
        // Hooks outside: they are asked about every file, whoever moves it.
        let start_mover =
            |start: Start| outside_mover::start(&config.storages, state.movers(), start, start_mover);
        let engine: MoverHandle = Arc::new(match &hooks {
            Some(hooks) => hooks::start(hooks.clone(), start, start_mover)?,
            None => start_mover(start)?,
        });
        let host = host_name();
        let data_addresses = config.data_addresses(&engine.data_addresses(), &host);
        // Promise 8: before anything is resumed, and whether the service answers or not.
        let moves = config.mover.files > 0;
        let foreign =
            moves.then(|| Foreign::new(&config.mover, outcomes.clone(), clock.clone())).transpose()?;
        let foreign = foreign.map(Arc::new);
        if let Some(settings) = ledger.settings() {
            engine.set_limits(settings.in_bytes_per_s, settings.out_bytes_per_s);
            if let Some(foreign) = &foreign {
                foreign.set_limits(settings.in_bytes_per_s, settings.out_bytes_per_s);
            }
        }
        foreign::fail_held(&ledger)?;
        let (resumed, tasks_left) = ledger.resumed();
        let expiring = Expiring::resume(engine.as_ref().as_ref(), &circuits, resumed);
        let offers = config.storages.iter().zip(&storages).map(|(storage, open)| {
            let can = open.capabilities();
            storage.offer(storage.writable && can.writable, can.case_insensitive)
        });
        let offers = offers.collect();
        let room = Room {
            exports,
            hooks,
            ledger: ledger.clone(),
            scans: state.scans(),
            digest_threads: config.digest_threads(),
            stop: stop.clone(),
        };
        let tasks = Tasks::start(room, tasks_left)?;
        tracing::info!(
            agent = %identity.agent, site = %identity.site, incarnation = incarnation.number,
            addresses = ?data_addresses, leases = ledger.leases_held(), facts = ledger.facts_pending(), "agent started"
        );
        let decided = Arc::new(Decided::new(clock.clone()));
        if !circuits.is_empty() {
            circuits.start(CircuitsStart {
                directory: &state.circuits()?,
                agent: identity.agent,
                seed: incarnation.nonce,
                engine: &engine,
                clock: &clock,
            })?;
        }
        let shared = AgentContext {
            state,
            identity: Mutex::new(identity),
            incarnation,
            host,
            data_addresses,
            offers,
            clock,
            ledger,
            engine,
            spaces,
            tasks,
            control,
            greeted: watch::Sender::new(false),
            gate: tokio::sync::Mutex::new(()),
            report_every: watch::Sender::new(REPORT_EVERY),
            measures: Arc::new(Measures::new(config.probes)),
            circuits,
            tapes,
            foreign,
            decided,
            stop,
        };
        Ok(Agent { shared: Arc::new(shared), uplinks: config.uplinks, expiring, outcomes, doors, broken })
    }

    pub(crate) async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), Fault> {
        let Agent { shared, uplinks, expiring, outcomes, doors, mut broken } = self;
        let (close, closed) = watch::channel(false);
        let alive = Arc::downgrade(&shared);
        let credentials = move || alive.upgrade().map(|shared| locked(&shared.identity).credentials());
        let mut doors =
            tokio::spawn(doors.run(credentials, shared.clock.clone(), shared.decided.clone(), closed));
        let mut loops = JoinSet::new();
        loops.spawn(report::run(shared.clone()));
        loops.spawn(work::run(shared.clone()));
        loops.spawn(renew::run(shared.clone()));
        let (engine, circuits, ledger) =
            (shared.engine.clone(), shared.circuits.clone(), shared.ledger.clone());
        let (measures, clock) = (shared.measures.clone(), shared.clock.clone());
        loops.spawn(measure::probes::run(measures.clone(), clock.clone()));
        loops.spawn(measure::uplinks::run(uplinks, measures.clone(), clock.clone()));
        loops.spawn(measure::paths::run(engine.clone(), circuits.clone(), measures, clock));
        if !circuits.is_empty() {
            loops.spawn(circuits::look::run(circuits, engine, ledger.clone()));
        }
        loops.spawn(driver::run_audit(shared.clone()));
        if !shared.tapes.is_empty() {
            loops.spawn(shared.tapes.clone().run());
        }
        if let Some(foreign) = &shared.foreign {
            loops.spawn(foreign.clone().watch());
        }
        loops.spawn(expire(shared.clone(), outcomes, expiring));
        let result = tokio::select! {
            () = shutdown => Ok(()),
            Some(ended_loop) = loops.join_next() => Err(ended_loop.unwrap_or_else(|error| ended("a loop", error))),
            ended_doors = &mut doors => Err(match ended_doors {
                Ok(Err(fault)) => fault,
                other => ended("the doors", format!("{other:?}")),
            }),
            Ok(fault) = broken.wait_for(Option::is_some) => Err(fault.clone().unwrap_or_else(|| ended("the \
                engine", "it broke"))),
        };
        close.send_replace(true);
        if let Some(foreign) = &shared.foreign {
            // While reports still go out.
            foreign.end().await;
        }
        if !doors.is_finished() && tokio::time::timeout(DOORS_GRACE, &mut doors).await.is_err() {
            doors.abort();
        }
        loops.shutdown().await;
        let stopped = tokio::task::spawn_blocking(move || stop(shared)).await;
        stopped.map_err(|error| ended("the stop", error))?;
        match &result {
            Ok(()) => tracing::info!("agent stopped"),
            Err(fault) => tracing::error!(%fault, "agent cannot go on"),
        }
        result
    }
}

fn stop(shared: Arc<AgentContext>) {
    // The doors are closed: nothing is decided any more.
    if let Err(fault) = shared.decided.hand_over(&shared.ledger) {
        tracing::warn!(%fault, "what the doors decided last is not told");
    }
    // While its streams still move.
    shared.circuits.end();
    shared.stop.set();
    shared.spaces.stop();
    shared.tasks.join();
    // A step that was under way away from the loops ends by itself: a write to the ledger, at most.
    let mut engine = shared.engine.clone();
    drop(shared);
    for _ in 0..STOP_CHECKS_MAX {
        match Arc::try_unwrap(engine) {
            Ok(last) => return last.stop(),
            Err(used) => engine = used,
        }
        std::thread::sleep(STOP_CHECK);
    }
    tracing::error!("a step does not end; the engine is left running");
}

fn open_storages(config: &Config, sites: &Sites) -> Result<Vec<Export>, Fault> {
    let open = |storage: &crate::config::StorageConfig| {
        let open: Arc<dyn Storage> = match storage.kind {
            StorageKind::Posix => Arc::new(Posix::open_in(storage.posix(), storage.manner())?),
            StorageKind::Virtual => Arc::new(Virtual::new(storage.name.clone(), storage.writable)),
        };
        Ok(Export { storage: sites.around(open), rules: storage.name_rules() })
    };
    config.storages.iter().map(open).collect()
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

/// See [`Expiring`]. Ends its work, not itself, when nothing is left to expire.
async fn expire(shared: Arc<AgentContext>, outcomes: Arc<Outcomes>, mut expiring: Expiring) -> Fault {
    while !expiring.is_empty() {
        let expired = expiring.expired(shared.clock.now(), &shared.ledger);
        let attempts: Vec<_> = expired.iter().map(|outcome| outcome.attempt).collect();
        shared.engine.cancel(&attempts);
        let keep = outcomes.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || keep.keep(&expired)).await {
            return ended("expiry", error);
        }
        tokio::time::sleep(EXPIRY_CHECK).await;
    }
    std::future::pending().await
}

/// For people; and for other agents, if the administrator names no address.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".into(),
        name => name.into(),
    }
}
