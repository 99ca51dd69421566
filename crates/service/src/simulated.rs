//! A whole service without threads and sockets, for tests: its loops are stepped, its time is the test's.
//!
//! It is wired by the same code as [`Service`](crate::Service). Left out are what needs sockets: HTTP,
//! brokers, archives of measurements, tape systems, renewal of tokens. Requests of agents are futures that
//! are polled between the steps of the loops, as the runtime would poll them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use longhaul_api::Problem;
use longhaul_api::agent::{Report, ReportReply, Work, WorkRequest};
use longhaul_catalog::{Catalog, MemoryDatabase};
use longhaul_control::brain::Brain;
use longhaul_control::commit_loop::CommitLoop;
use longhaul_control::event_loop::{EventLoop, LoopStep};
use longhaul_control::query_loop::QueryLoop;
use longhaul_jobs::JobLoop;
use longhaul_model::{Fault, FaultCode, Timestamp};
use parking_lot::Mutex;

use crate::housekeeping::{Housekeeping, SavesOn};
use crate::operations::AgentPeer;
use crate::recovery::recover_live_state;
use crate::state::{State, init_with};
use crate::wiring::{Wiring, public_url};
use crate::{Clock, Config, InitReply, Operations, messages};

/// The shortest time between two steps: a loop that wants to be stepped again at once gets on.
const STEP_US_MIN: i64 = 1;

/// Makes a new deployment with its catalog in `database`; keys are in `config.state_dir`.
pub fn init_in_memory(
    config: &Config,
    database: &MemoryDatabase,
    now: Timestamp,
) -> Result<InitReply, Fault> {
    init_with(config, || Ok(database.open(now)?), now)
}

/// A service that works only when it is stepped. Dropping it is a kill.
pub struct SimulatedService {
    clock: Clock,
    operations: Arc<Operations>,
    brain: Arc<Mutex<Brain>>,
    commit_loop: CommitLoop,
    query_loop: QueryLoop,
    job_loop: JobLoop,
    wakes: Wakes,
    housekeeping: Housekeeping,
    calls: Vec<Call>,
    /// Where copies of jobs would run. Nothing drives it.
    _runtime: tokio::runtime::Runtime,
}

/// When each loop wants to be stepped.
#[derive(Default)]
struct Wakes {
    brain: Option<Timestamp>,
    commit_loop: Option<Timestamp>,
    query_loop: Option<Timestamp>,
    job_loop: Option<Timestamp>,
    housekeeping: Option<Timestamp>,
}

/// A request under way.
struct Call {
    id: u64,
    /// When it is over by itself.
    until: Option<Timestamp>,
    answer: Pin<Box<dyn Future<Output = ServiceAnswer>>>,
}

/// What an agent's request is answered with.
#[derive(Debug)]
pub enum ServiceAnswer {
    Report(Result<ReportReply, Problem>),
    Work(Result<Arc<Work>, Problem>),
}

/// What a step came to.
#[derive(Debug)]
pub struct ServiceStep {
    /// Answers to requests, by the numbers that these were given.
    pub answers: Vec<(u64, ServiceAnswer)>,
    /// When to step again if no request comes before.
    pub wake_at: Option<Timestamp>,
}

impl SimulatedService {
    /// Opens the state directory and takes up what was live.
    pub fn open(config: Config, clock: Clock, catalog: Catalog) -> Result<SimulatedService, Fault> {
        config.check()?;
        let state = State::open_with(&config, || Ok(catalog))?;
        let public_url = public_url(&config, &config.listen);
        let wiring = Wiring::open(&config, &clock.clone().into(), state, public_url, None)?;
        let Wiring { shared, brain, commit_loop, query_loop, work, tokens_wanted: _ } = wiring;
        let operations = Arc::new(Operations::new_inline(shared.clone()));
        let brain = Arc::new(Mutex::new(brain));
        let (stepped, time) = (brain.clone(), clock.clone());
        shared.kernel.scheduler.set_inline(move || {
            let mut brain = stepped.lock();
            while brain.inputs().load(Brain::BATCH_MAX) {
                brain.step(time());
            }
        });
        recover_live_state(&shared)?;
        messages::prepare(&shared)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| Fault::new(FaultCode::Internal, error.to_string()))?;
        let job_loop = JobLoop::new(shared.job_control.clone(), work, None, runtime.handle().clone());
        let wakes = Wakes {
            brain: brain.lock().first_wake(),
            commit_loop: commit_loop.first_wake(),
            query_loop: query_loop.first_wake(),
            job_loop: job_loop.first_wake(),
            housekeeping: Some(clock()),
        };
        Ok(SimulatedService {
            clock,
            operations,
            brain,
            commit_loop,
            query_loop,
            job_loop,
            wakes,
            housekeeping: Housekeeping::new(shared, SavesOn::SteppingThread),
            calls: Vec::new(),
            _runtime: runtime,
        })
    }

    /// What people ask. What waits for the commit loop is answered when it is stepped.
    pub fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// An agent's report has arrived. It is answered by a later step, under the number `id`.
    pub fn report(&mut self, id: u64, peer: AgentPeer, report: Report) {
        let operations = self.operations.clone();
        let answer =
            Box::pin(async move { ServiceAnswer::Report(operations.agent_report(&peer, report).await) });
        self.calls.push(Call { id, until: None, answer });
    }

    /// An agent polls for work.
    pub fn poll_work(&mut self, id: u64, peer: AgentPeer, request: WorkRequest) {
        let (operations, clock) = (self.operations.clone(), self.clock.clone());
        let until = clock().plus(operations.poll_wait(&request));
        let over = std::future::poll_fn(move |_| match clock() < until {
            true => Poll::Pending,
            false => Poll::Ready(()),
        });
        let answer =
            Box::pin(
                async move { ServiceAnswer::Work(operations.agent_work_until(&peer, &request, over).await) },
            );
        self.calls.push(Call { id, until: Some(until), answer });
    }

    /// The caller of a request has gone away.
    pub fn abort(&mut self, id: u64) {
        self.calls.retain(|call| call.id != id);
    }

    /// Lets everything work until there is nothing left to do now.
    pub fn step(&mut self) -> ServiceStep {
        let now = (self.clock)();
        let mut answers = Vec::new();
        loop {
            // First the requests: what they hand to the loops is worked on in the same round.
            let mut has_worked = self.poll_calls(&mut answers);
            if self.wakes.housekeeping.is_some_and(|due| due <= now) {
                self.wakes.housekeeping = Some(self.housekeeping.step(now));
                has_worked = true;
            }
            has_worked |= step_if_due(&mut *self.brain.lock(), &mut self.wakes.brain, now);
            has_worked |= step_if_due(&mut self.query_loop, &mut self.wakes.query_loop, now);
            has_worked |= step_if_due(&mut self.commit_loop, &mut self.wakes.commit_loop, now);
            has_worked |= step_if_due(&mut self.job_loop, &mut self.wakes.job_loop, now);
            if !has_worked {
                return ServiceStep { answers, wake_at: self.wake_at() };
            }
        }
    }

    /// Polls every request once; returns whether one was answered.
    fn poll_calls(&mut self, answers: &mut Vec<(u64, ServiceAnswer)>) -> bool {
        let answered = answers.len();
        // All are polled after each step: nobody needs to be woken.
        let mut context = Context::from_waker(Waker::noop());
        self.calls.retain_mut(|call| match call.answer.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                answers.push((call.id, answer));
                false
            }
        });
        answers.len() > answered
    }

    fn wake_at(&self) -> Option<Timestamp> {
        let Wakes { brain, commit_loop, query_loop, job_loop, housekeeping } = self.wakes;
        let loops = [brain, commit_loop, query_loop, job_loop, housekeeping];
        loops.into_iter().flatten().chain(self.calls.iter().filter_map(|call| call.until)).min()
    }
}

/// Steps a loop if it has an input or its time has come; returns whether it was.
fn step_if_due<L: EventLoop>(event_loop: &mut L, wake_at: &mut Option<Timestamp>, now: Timestamp) -> bool {
    if !event_loop.inputs().load(L::BATCH_MAX) && wake_at.is_none_or(|due| due > now) {
        return false;
    }
    *wake_at = match event_loop.step(now) {
        LoopStep::Wait { until } => until.map(|until| until.max(Timestamp(now.0 + STEP_US_MIN))),
        LoopStep::Stop => None,
    };
    true
}
