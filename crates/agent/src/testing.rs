//! An agent without threads and sockets, for tests: its loops are stepped, and the test carries its requests.
//!
//! Its storages are virtual and its mover is the null mover, so no bytes move. Left out are doors, probes,
//! uplinks, tape systems, circuits and the renewal of certificates. Start with [`SimulatedAgent::open`],
//! after [`begin_join`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_api::agent::{RenewReply, RenewRequest, Report, ReportReply, Work, WorkRequest};
use longhaul_engine::Clock;
use longhaul_model::{AgentId, Fault, FaultCode, SiteName, StorageName};
use longhaul_security::Credentials;

pub use crate::join::{PendingJoin, begin_join};

use crate::agent::Agent;
use crate::config::{Config, StorageConfig};
use crate::door_audit::AuditFlusher;
use crate::lease_expiry::ExpiryLoop;
use crate::measure::paths::PathMeasurement;
use crate::null_mover::{NullLinks, NullMover, NullMoverSteps};
use crate::report::Reporter;
use crate::service_api::{Reply, ServiceApi};
use crate::state_dir::{Identity, StateDir};
use crate::step::PeriodicLoop;
use crate::tasks::Tasks;
use crate::work::{PollAction, WorkPoller};

/// Rounds of requests in one step: an abort is followed by a hello, and that by a poll.
const REQUEST_ROUNDS: usize = 2;

/// How a simulated agent starts.
pub struct SimulatedStart<'a> {
    pub state_dir: &'a Path,
    /// Its only storage.
    pub storage: StorageName,
    /// What its null mover does: the text of a file of links.
    pub links: &'a str,
    /// This host's wall clock. It must not jump: it drives the mover too.
    pub clock: Clock,
    /// Seed of the jitter of retries.
    pub seed: u64,
}

/// All loops of one agent. Dropping it is a kill.
pub struct SimulatedAgent {
    reporter: Reporter,
    poller: WorkPoller,
    mover: NullMoverSteps,
    tasks: Arc<Tasks>,
    periodic: Vec<Box<dyn PeriodicLoop>>,
    /// Number of the last poll: the answer to an aborted one is not wanted.
    poll: u64,
    id: AgentId,
    site: SiteName,
}

/// What an agent sends to its service.
#[derive(Debug)]
pub enum AgentRequest {
    Report(Box<Report>),
    /// A long poll, with its number.
    Poll(u64, WorkRequest),
    /// The poll of this number is given up.
    AbortPoll(u64),
}

/// What a step came to.
#[derive(Debug, Default)]
pub struct AgentStep {
    pub requests: Vec<AgentRequest>,
    /// When to step again if no answer comes before.
    pub wake_at: Option<Duration>,
}

impl SimulatedAgent {
    /// Opens an agent that has joined with this state directory. Its time begins now.
    pub fn open(start: SimulatedStart<'_>) -> Result<SimulatedAgent, Fault> {
        let state = StateDir::open(start.state_dir)?;
        let identity = state.identity()?;
        let missing = || Fault::new(FaultCode::StateDirectory, "the agent has not joined");
        let identity = identity.ok_or_else(missing)?;
        let (agent, mover) = open_agent(start, state, identity, Arc::new(NoService))?;
        Ok(SimulatedAgent::new(agent, mover))
    }

    pub(crate) fn new(agent: Agent, mover: NullMoverSteps) -> SimulatedAgent {
        let Agent { context, expiry, watches, .. } = agent;
        let (engine, log, clock) = (context.engine.clone(), context.log.clone(), context.clock.clone());
        let (circuits, measurements) = (context.circuits.clone(), context.measurements.clone());
        let mut periodic: Vec<Box<dyn PeriodicLoop>> = vec![
            Box::new(AuditFlusher::new(context.door_audit.clone(), log.clone())),
            Box::new(PathMeasurement::new(engine.clone(), circuits, measurements, clock.clone())),
            Box::new(ExpiryLoop::new(expiry, engine, log, clock)),
        ];
        periodic.extend(watches.into_iter().map(|watch| Box::new(watch) as Box<dyn PeriodicLoop>));
        let identity = context.identity.lock();
        let (id, site) = (identity.agent, identity.site.clone());
        drop(identity);
        SimulatedAgent {
            reporter: Reporter::new(context.clone()),
            tasks: context.tasks.clone(),
            poller: WorkPoller::new(context),
            mover,
            periodic,
            poll: 0,
            id,
            site,
        }
    }

    pub fn id(&self) -> AgentId {
        self.id
    }

    pub fn site(&self) -> &SiteName {
        &self.site
    }

    /// Does everything that is due `now`, which counts from the agent's start.
    pub fn step(&mut self, now: Duration) -> AgentStep {
        let (mut requests, mut wakes) = (Vec::new(), Vec::new());
        wakes.extend(self.mover.step(now));
        while self.tasks.run_next() {}
        wakes.extend(self.periodic.iter_mut().filter_map(|periodic| periodic.step(now)));
        for _ in 0..REQUEST_ROUNDS {
            let report = self.reporter.step(now);
            wakes.extend(report.wake_at);
            requests.extend(report.send.map(|report| AgentRequest::Report(Box::new(report))));
            let poll = self.poller.step(now);
            wakes.extend(poll.wake_at);
            match poll.send {
                Some(PollAction::Request(request)) => {
                    self.poll += 1;
                    requests.push(AgentRequest::Poll(self.poll, request));
                }
                Some(PollAction::Abort) => requests.push(AgentRequest::AbortPoll(self.poll)),
                None => {}
            }
        }
        AgentStep { requests, wake_at: wakes.into_iter().filter(|wake| *wake > now).min() }
    }

    /// The answer to the last report. An error is final: the agent cannot go on.
    pub fn on_report_reply(&mut self, now: Duration, reply: Result<ReportReply, Fault>) -> Result<(), Fault> {
        self.reporter.on_reply(now, reply)
    }

    /// The answer to the poll of this number. An error is final: the agent cannot go on.
    pub fn on_work(&mut self, now: Duration, poll: u64, work: Result<Work, Fault>) -> Result<(), Fault> {
        if poll != self.poll {
            return Ok(());
        }
        self.poller.on_reply(now, work)
    }
}

/// Opens an agent with a virtual storage and a mover that moves nothing; starts no thread.
pub(crate) fn open_agent(
    start: SimulatedStart<'_>,
    state: StateDir,
    identity: Identity,
    service: Arc<dyn ServiceApi>,
) -> Result<(Agent, NullMoverSteps), Fault> {
    let config = Config::new(start.state_dir, vec![StorageConfig::new_virtual(start.storage)]);
    let wrong = |why| Fault::new(FaultCode::BadRequest, why);
    let links = NullLinks::parse(start.links).map_err(wrong)?;
    let (wall, begun) = (start.clock.clone(), (start.clock)());
    let mut steps = None;
    let start_mover = |mover_start| {
        let now = Box::new(move || wall().since(begun));
        let (mover, mover_steps) = NullMover::new(links, mover_start, now);
        steps = Some(mover_steps);
        Ok(Box::new(mover) as _)
    };
    let mut agent = Agent::open(config, start.clock, state, identity, service, start_mover)?;
    if let Some(context) = Arc::get_mut(&mut agent.context) {
        let (seed, drawn) = (start.seed, AtomicU64::new(0));
        context.random = Box::new(move || mix(seed, drawn.fetch_add(1, Ordering::Relaxed)));
    }
    let steps = steps.ok_or_else(|| Fault::new(FaultCode::Internal, "the agent has no mover"))?;
    Ok((agent, steps))
}

/// The `n`-th number of a seed (splitmix64, Steele et al. 2014).
fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The test carries all requests itself.
struct NoService;

impl NoService {
    fn refuse<T: Send + 'static>() -> Reply<'static, T> {
        Box::pin(std::future::ready(Err(Fault::new(
            FaultCode::Unreachable,
            "a simulated agent dials nobody",
        ))))
    }
}

impl ServiceApi for NoService {
    fn report(&self, _report: Report) -> Reply<'_, ReportReply> {
        NoService::refuse()
    }

    fn work(&self, _request: WorkRequest) -> Reply<'_, Work> {
        NoService::refuse()
    }

    fn renew(&self, _request: RenewRequest) -> Reply<'_, RenewReply> {
        NoService::refuse()
    }

    fn use_credentials(&self, _credentials: &Credentials) -> Result<(), Fault> {
        Ok(())
    }
}
