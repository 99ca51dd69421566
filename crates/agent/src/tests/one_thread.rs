//! Two agents and their services in one thread, on a simulated clock: every loop is stepped, every message
//! takes its time, and the same seed gives the same history.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{RenewReply, Report, ReportReply, Task, TaskKind, Work, WorkRequest};
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, TaskId};
use tempfile::TempDir;

use super::fake_service::FakeService;
use super::{Deployment, TestClock, lease};
use crate::agent::Agent;
use crate::certificate_renewal::CertificateRenewal;
use crate::null_mover::NullMoverSteps;
use crate::state_dir::StateDir;
use crate::step::{AgentTime, Step};
use crate::testing::{AgentRequest, SimulatedAgent, SimulatedStart, open_agent};

/// How long a message travels.
const LATENCY: Duration = Duration::from_millis(20);

/// A message on its way; the number is the agent's.
enum Message {
    Report(usize, Report),
    ReportReply(usize, Result<ReportReply, Fault>),
    Poll(usize, u64, WorkRequest),
    Work(usize, u64, Result<Work, Fault>),
}

/// A long poll that the service holds.
struct HeldPoll {
    number: u64,
    request: WorkRequest,
    until: AgentTime,
}

struct Simulation {
    clock: TestClock,
    now: AgentTime,
    agents: Vec<SimulatedAgent>,
    _directories: Vec<TempDir>,
    services: Vec<Arc<FakeService>>,
    held_polls: Vec<Option<HeldPoll>>,
    /// By the time of arrival, and in the order in which they were sent.
    messages: BTreeMap<(AgentTime, u64), Message>,
    sent: u64,
    /// When which message was sent.
    history: Vec<(AgentTime, &'static str, usize)>,
}

/// An agent without threads, with a virtual storage and a mover that moves nothing.
fn open(
    deployment: &Deployment,
    id: u64,
    name: &str,
    service: Arc<FakeService>,
) -> (Agent, NullMoverSteps, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let start = SimulatedStart {
        state_dir: directory.path(),
        storage: name.parse().unwrap(),
        links: "[default]\nrate = '1MB'\noverhead_ms = 400\nfailure_rate = 0.1\nfailure = 'target'\n",
        clock: deployment.clock.ahead(0),
        seed: 7 * id,
    };
    let state = StateDir::open(directory.path()).unwrap();
    let (agent, mover) = open_agent(start, state, deployment.identity(id, name), service).unwrap();
    (agent, mover, directory)
}

impl Simulation {
    fn new(deployment: &Deployment) -> Simulation {
        let clock = deployment.clock.clone();
        let services = vec![FakeService::new(&clock, false), FakeService::new(&clock, false)];
        let agents = [(1, "alpha"), (2, "beta")].into_iter().zip(&services);
        let agents = agents.map(|((id, name), service)| {
            let (agent, mover, directory) = open(deployment, id, name, service.clone());
            (SimulatedAgent::new(agent, mover), directory)
        });
        let (agents, directories) = agents.unzip();
        Simulation {
            clock,
            now: AgentTime::ZERO,
            agents,
            _directories: directories,
            services,
            held_polls: vec![None, None],
            messages: BTreeMap::new(),
            sent: 0,
            history: Vec::new(),
        }
    }

    fn run_until(&mut self, end: AgentTime) {
        loop {
            let next = self.step_all();
            let next = next.into_iter().chain(self.messages.keys().next().map(|(time, _)| *time)).min();
            let Some(next) = next.filter(|next| *next < end) else { break };
            self.advance(next);
            while let Some(message) = self.messages.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let message = message.remove();
                self.deliver(message);
            }
        }
        self.advance(end);
    }

    fn advance(&mut self, to: AgentTime) {
        let micros = to.saturating_sub(self.now).as_micros() as i64;
        self.clock.0.fetch_add(micros, std::sync::atomic::Ordering::SeqCst);
        self.now = self.now.max(to);
    }

    fn send(&mut self, message: Message) {
        let shown = match &message {
            Message::Report(agent, _) => ("report", *agent),
            Message::ReportReply(agent, _) => ("reply", *agent),
            Message::Poll(agent, ..) => ("poll", *agent),
            Message::Work(agent, ..) => ("work", *agent),
        };
        self.history.push((self.now, shown.0, shown.1));
        self.sent += 1;
        self.messages.insert((self.now + LATENCY, self.sent), message);
    }

    /// Steps everything that has something to do now; when something has to be done next.
    fn step_all(&mut self) -> Option<AgentTime> {
        let now = self.now;
        let mut wakes = Vec::new();
        for number in 0..self.agents.len() {
            let step = self.agents[number].step(now);
            wakes.extend(step.wake_at);
            for request in step.requests {
                match request {
                    AgentRequest::Report(report) => self.send(Message::Report(number, *report)),
                    AgentRequest::Poll(poll, request) => self.send(Message::Poll(number, poll, request)),
                    AgentRequest::AbortPoll(_) => self.held_polls[number] = None,
                }
            }
            wakes.extend(self.answer_poll(number));
        }
        wakes.into_iter().filter(|wake| *wake > now).min()
    }

    /// Answers the poll that is held, if there is work or its time is over; else when that will be.
    fn answer_poll(&mut self, number: usize) -> Option<AgentTime> {
        let held = self.held_polls[number].take()?;
        let answer = match self.services[number].next_work(&held.request).transpose() {
            Some(answer) => answer,
            None if self.now >= held.until => Ok(Work { now: self.clock.now(), ..Work::default() }),
            None => return Some(self.held_polls[number].insert(held).until),
        };
        self.send(Message::Work(number, held.number, answer));
        None
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Report(number, report) => {
                let reply = self.services[number].answer(report);
                self.send(Message::ReportReply(number, reply));
            }
            Message::ReportReply(number, reply) => {
                self.agents[number].on_report_reply(self.now, reply).unwrap();
            }
            Message::Poll(agent, number, request) => {
                let until = self.now + Duration::from_millis(request.wait_ms.into());
                self.held_polls[agent] = Some(HeldPoll { number, request, until });
            }
            Message::Work(agent, number, work) => {
                self.agents[agent].on_work(self.now, number, work).unwrap();
            }
        }
    }
}

/// Messages by time, kind and number of entries.
type History = Vec<(AgentTime, &'static str, usize)>;

/// What a run came to: the ends of beta's attempts, and the history of messages.
fn run() -> (Vec<(AttemptId, bool)>, History) {
    let deployment = Deployment::new();
    let mut simulation = Simulation::new(&deployment);
    let beta = simulation.services[1].clone();
    let s = Duration::from_secs;
    simulation.run_until(s(2));
    let leases = (1..=200).map(|attempt| lease(attempt, &format!("f{attempt}"), b"0123456")).collect();
    beta.lease(vec![deployment.batch(vec!["192.0.2.1:7470".into()], leases)]);
    let kind = TaskKind::Verify { files: Vec::new() };
    beta.task(Task { id: TaskId(5), storage: "beta".parse().unwrap(), kind });
    simulation.run_until(s(20));
    beta.restart();
    simulation.run_until(s(30));
    beta.change(|state| state.away = true);
    simulation.run_until(s(60));
    beta.change(|state| state.away = false);
    simulation.run_until(s(120));
    let ended = beta.change(|state| {
        assert_eq!(state.hellos.len(), 2, "one for each start of the service");
        assert_eq!(state.tasks_done(), [TaskId(5)]);
        let outcomes = state.outcomes().into_iter();
        outcomes.map(|outcome| (outcome.attempt, outcome.fault.is_none())).collect::<Vec<_>>()
    });
    (ended, simulation.history)
}

/// Promise 5, in two simulated minutes: each outcome is reported once, although the service restarts and is
/// away.
#[test]
fn two_agents_are_simulated_in_one_thread_and_always_in_the_same_way() {
    let (ended, history) = run();
    let mut attempts: Vec<AttemptId> = ended.iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(attempts.len(), 200);
    attempts.dedup();
    assert_eq!(attempts, (1..=200).map(AttemptId).collect::<Vec<_>>(), "each once, in order");
    let failed = ended.iter().filter(|(_, good)| !good).count();
    assert!((5..40).contains(&failed), "a tenth of them: {failed}");
    let reports = history.iter().filter(|(_, what, agent)| (*what, *agent) == ("report", 0)).count();
    assert!((100..=130).contains(&reports), "alpha has nothing to tell but once a second: {reports}");
    let again = run();
    assert_eq!(again.0, ended);
    assert!(again.1 == history, "the same seed is the same history");
}

/// A certificate is renewed long before it expires, and a failed renewal is tried again.
#[test]
fn a_certificate_is_renewed_when_it_is_due_and_after_a_failure() {
    let deployment = Deployment::new();
    let service = FakeService::new(&deployment.clock, false);
    let (agent, _mover, _directory) = open(&deployment, 2, "beta", service.clone());
    let context = agent.context.clone();
    let mut renewal = CertificateRenewal::new(context.clone());
    let s = Duration::from_secs;
    assert_eq!(renewal.step(s(0)).wake_at, Some(s(600)), "it is young");
    deployment.clock.advance(70 * 86_400);
    assert!(renewal.step(s(599)).send.is_none());
    assert!(renewal.step(s(600)).send.is_some());
    assert!(renewal.step(s(600)).send.is_none() && renewal.step(s(1_200)).wake_at.is_none(), "in flight");
    renewal.on_reply(Err(Fault::new(FaultCode::Unreachable, "connection refused"))).unwrap();
    let Step { send: Some(request), .. } = renewal.step(s(1_200)) else { panic!("it is tried again") };
    let (site, now) = ("beta".parse().unwrap(), deployment.clock.now());
    let issued = deployment.authority.issue_agent(&request.signing_request, AgentId(2), &site, now).unwrap();
    let certificate = issued.certificate_pem;
    let ca = deployment.authority.ca_pem().to_owned();
    renewal.on_reply(Ok(RenewReply { certificate: certificate.clone(), ca })).unwrap();
    assert_eq!(context.identity.lock().certificate, certificate);
    assert_eq!(service.change(|state| state.renewed.take()).unwrap().certificate, certificate);
    assert_eq!(renewal.step(s(1_800)).wake_at, Some(s(2_400)), "it is young again");
}
