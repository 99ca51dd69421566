//! The processes of a simulated deployment: started, killed, stepped, and connected by the network.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use longhaul_agent::testing::{AgentRequest, SimulatedAgent, SimulatedStart, begin_join};
use longhaul_api::agent::{Report, WorkRequest};
use longhaul_api::native::{ChangeEvent, DatasetCreate, Health, ProblemView, SiteAdd, Subscribe};
use longhaul_api::steering::Terms;
use longhaul_catalog::{Catalog, MemoryDatabase};
use longhaul_model::{Fault, FaultCode, StorageName, SubscriptionId, Timestamp};
use longhaul_security::JoinToken;
use longhaul_service::{AgentPeer, Config, ServiceAnswer, SimulatedService, init_in_memory};
use tempfile::TempDir;
use tokio::sync::broadcast;

use crate::LeaseAudit;
use crate::network::Network;

/// When every run begins: 2026-01-01.
const BEGIN: Timestamp = Timestamp(1_767_225_600_000_000);
const SITES: [&str; 2] = ["alpha", "beta"];
const DATASET: &str = "run7";
const FILE_BYTES: u64 = 2_000_000;

/// When what happened.
pub type HistoryEntry = (Duration, String);

/// A message between an agent and the service. A process that was started again is another one: `agent_start`
/// and the service's calls are of one start.
enum Message {
    ToService { call: Call, request: Request },
    ToAgent { call: Call, answer: Answer },
}

#[derive(Clone, Copy)]
struct Call {
    id: u64,
    agent: &'static str,
    agent_start: u32,
}

enum Request {
    Report(Box<Report>),
    Poll(u64, WorkRequest),
    Abort(u64),
}

enum Answer {
    Service(Option<u64>, ServiceAnswer),
    /// The service is not there, or went away.
    Unreachable(Option<u64>),
}

struct AgentProcess {
    agent: SimulatedAgent,
    started: Duration,
}

pub struct Deployment {
    seed: u64,
    clock: Arc<AtomicI64>,
    now: Duration,
    directory: TempDir,
    config: Config,
    database: MemoryDatabase,
    /// The handle of the service that runs.
    catalog: Option<Catalog>,
    admin_token: String,
    service: Option<SimulatedService>,
    changes: Option<broadcast::Receiver<ChangeEvent>>,
    /// Requests at the service, with the number of the poll.
    at_service: BTreeMap<u64, (Call, Option<u64>)>,
    agents: BTreeMap<&'static str, AgentProcess>,
    starts: BTreeMap<&'static str, u32>,
    network: Network<Message>,
    calls: u64,
    pub audit: LeaseAudit,
    pub history: Vec<HistoryEntry>,
}

impl Deployment {
    /// A service without agents.
    pub fn new(seed: u64) -> Deployment {
        // In memory if the system allows: what agents make durable is written through.
        let shared_memory = Path::new("/dev/shm");
        let directory = tempfile::tempdir_in(shared_memory).or_else(|_| tempfile::tempdir()).unwrap();
        let config = Config {
            state_dir: directory.path().join("service"),
            listen: vec!["127.0.0.1:7443".parse().unwrap()],
            deployment: "one-thread".into(),
            ..Config::default()
        };
        let database = MemoryDatabase::new(BEGIN).unwrap();
        let made = init_in_memory(&config, &database, BEGIN).unwrap();
        let mut deployment = Deployment {
            seed,
            clock: Arc::new(AtomicI64::new(BEGIN.0)),
            now: Duration::ZERO,
            directory,
            config,
            database,
            catalog: None,
            admin_token: made.admin_token,
            service: None,
            changes: None,
            at_service: BTreeMap::new(),
            agents: BTreeMap::new(),
            starts: BTreeMap::new(),
            network: Network::new(seed),
            calls: 0,
            audit: LeaseAudit::default(),
            history: Vec::new(),
        };
        deployment.start_service();
        deployment
    }

    fn clock(&self) -> Arc<dyn Fn() -> Timestamp + Send + Sync> {
        let clock = self.clock.clone();
        Arc::new(move || Timestamp(clock.load(Ordering::Relaxed)))
    }

    fn note(&mut self, what: String) {
        self.history.push((self.now, what));
    }

    fn service(&self) -> &SimulatedService {
        self.service.as_ref().unwrap()
    }

    // ---- processes ------------------------------------------------------------------------------------

    pub fn start_service(&mut self) {
        let clock = self.clock();
        let catalog = self.database.open(clock()).unwrap();
        self.catalog = Some(catalog.clone());
        let service = SimulatedService::open(self.config.clone(), clock, catalog).unwrap();
        self.changes = Some(service.operations().changes());
        self.service = Some(service);
        self.note("service starts".into());
    }

    pub fn kill_service(&mut self) {
        drop((self.service.take(), self.catalog.take()));
        self.note("service is killed".into());
        for (call, poll) in std::mem::take(&mut self.at_service).into_values() {
            self.network.send(self.now, Message::ToAgent { call, answer: Answer::Unreachable(poll) });
        }
    }

    /// Makes both sites; an agent joins at each, and starts.
    pub fn join_agents(&mut self) {
        for site in SITES {
            let add = SiteAdd { name: site.parse().unwrap(), token_seconds: None, storages: Vec::new() };
            let operations = self.service().operations();
            let admin = operations.identity().caller_of_token(&self.admin_token).unwrap();
            let added = operations.site_add(&admin, &add).unwrap();
            let token: JoinToken = added.join_token.parse().unwrap();
            let host = format!("{site}.example");
            let (pending, request) = begin_join(None, &token, &self.state_dir(site), host).unwrap();
            let reply = self.service().operations().agent_join(&request).unwrap();
            assert_eq!(pending.finish(reply).unwrap().site.as_str(), site);
            self.start_agent(site);
        }
    }

    /// The database takes no writes any more, or takes them again.
    pub fn set_read_only(&mut self, is_read_only: bool) {
        self.catalog.as_ref().unwrap().set_read_only(is_read_only).unwrap();
        self.note(format!("the database is read-only: {is_read_only}"));
    }

    fn state_dir(&self, site: &str) -> std::path::PathBuf {
        self.directory.path().join(site)
    }

    pub fn start_agent(&mut self, site: &'static str) {
        let links = format!(
            "seed = {}\n[default]\nrate = '1MB'\noverhead_ms = 400\nfailure_rate = 0.1\nfailure = 'target'\n",
            self.seed
        );
        let start = SimulatedStart {
            state_dir: &self.state_dir(site),
            storage: site.parse().unwrap(),
            links: &links,
            clock: self.clock(),
            seed: self.seed,
        };
        let agent = SimulatedAgent::open(start).unwrap();
        self.agents.insert(site, AgentProcess { agent, started: self.now });
        *self.starts.entry(site).or_default() += 1;
        self.note(format!("{site} starts"));
    }

    pub fn kill_agent(&mut self, site: &'static str) {
        assert!(self.agents.remove(site).is_some());
        self.note(format!("{site} is killed"));
        let of_agent = |(call, _): &(Call, Option<u64>)| call.agent == site;
        let gone: Vec<u64> =
            self.at_service.iter().filter(|(_, held)| of_agent(held)).map(|(id, _)| *id).collect();
        for id in gone {
            self.abort(id);
        }
    }

    fn abort(&mut self, id: u64) {
        self.at_service.remove(&id);
        if let Some(service) = &mut self.service {
            service.abort(id);
        }
    }

    // ---- what an administrator does -------------------------------------------------------------------

    /// Makes an empty dataset, or says why not.
    pub fn create_dataset(&self, name: &str) -> Result<(), FaultCode> {
        let operations = self.service().operations();
        let admin = operations.identity().caller_of_token(&self.admin_token).unwrap();
        let create = DatasetCreate { name: name.parse().unwrap(), community: None };
        operations.dataset_create(&admin, create).map(drop).map_err(|problem| problem.code)
    }

    /// Whether the service says that it works, and why not.
    pub fn readiness(&self) -> Health {
        self.service().operations().readyz()
    }

    /// A dataset whose files are at a storage, or nowhere.
    pub fn register(&mut self, files: usize, storage: Option<&str>) {
        let operations = self.service().operations().clone();
        let name = DATASET.parse().unwrap();
        let admin = operations.identity().caller_of_token(&self.admin_token).unwrap();
        operations.dataset_create(&admin, DatasetCreate { name, community: None }).unwrap();
        let mut manifest = tempfile::tempfile().unwrap();
        for number in 0..files {
            let lfn = file_name(number);
            writeln!(manifest, r#"{{"lfn":{lfn:?},"size":{FILE_BYTES},"digests":["adler32:03da0195"]}}"#)
                .unwrap();
        }
        let storage: Option<StorageName> = storage.map(|name| name.parse().unwrap());
        let name = DATASET.parse().unwrap();
        let added = operations.dataset_add_files(&admin, &name, storage.as_ref(), manifest).unwrap();
        assert_eq!(added.files_added, files as u64);
    }

    /// Beta wants the dataset.
    pub fn subscribe(&mut self) -> SubscriptionId {
        let operations = self.service().operations().clone();
        let admin = operations.identity().caller_of_token(&self.admin_token).unwrap();
        let wish = Subscribe {
            dataset: DATASET.parse().unwrap(),
            block: None,
            storage: "beta".parse().unwrap(),
            priority: None,
            verification: None,
            custodial: false,
            terms: Terms::default(),
        };
        operations.subscription_create(&admin, &wish).unwrap().id
    }

    pub fn files_present(&self, subscription: SubscriptionId) -> u64 {
        self.service().operations().subscription_show(subscription).unwrap().files_present
    }

    /// What an administrator sees to be wrong.
    pub fn problems(&self) -> Vec<ProblemView> {
        self.service().operations().status().unwrap().problems
    }

    /// Every file is at beta once, and the catalog is sound and idle.
    pub fn check_complete(&self, subscription: SubscriptionId, files: usize) {
        let operations = self.service().operations();
        let shown = operations.subscription_show(subscription).unwrap();
        assert!(shown.complete && shown.completed.is_some(), "{shown:?}");
        assert_eq!((shown.files_present, shown.files_wanted), (files as u64, files as u64));
        for number in 0..files {
            let found = operations.replica_of_file(&file_name(number).parse().unwrap()).unwrap();
            let at_beta = found.replicas.iter().filter(|replica| replica.storage.as_str() == "beta");
            assert_eq!(at_beta.filter(|replica| !replica.suspect).count(), 1, "{found:?}");
            assert_eq!(found.replicas.len(), 2, "{found:?}");
        }
        let catalog = self.database.open(BEGIN).unwrap();
        assert!(catalog.live_transfers().unwrap().is_empty(), "nothing is left to do");
        for check in catalog.check().unwrap() {
            assert_eq!(check.violations, 0, "{}: {:?}", check.name, check.examples);
        }
    }

    // ---- time -----------------------------------------------------------------------------------------

    /// Lets everything happen that is due before `end`.
    pub fn run_until(&mut self, end: Duration) {
        loop {
            let woken = self.step_all();
            let next = woken.into_iter().chain(self.network.next_arrival()).min();
            let Some(next) = next.filter(|next| *next < end) else { break };
            self.advance(next);
            while let Some(message) = self.network.receive(self.now) {
                self.deliver(message);
            }
        }
        self.advance(end);
    }

    fn advance(&mut self, to: Duration) {
        self.now = self.now.max(to);
        self.clock.store(BEGIN.0 + self.now.as_micros() as i64, Ordering::Relaxed);
    }

    /// Steps every process; when the next one wants to be stepped.
    fn step_all(&mut self) -> Option<Duration> {
        let mut wakes = Vec::new();
        for site in SITES {
            let Some(process) = self.agents.get_mut(site) else { continue };
            let step = process.agent.step(self.now - process.started);
            wakes.extend(step.wake_at.map(|wake| process.started + wake));
            for request in step.requests {
                self.send_request(site, request);
            }
        }
        if let Some(service) = &mut self.service {
            let step = service.step();
            wakes.extend(step.wake_at.map(|wake| wake.since(BEGIN)));
            for (id, answer) in step.answers {
                let (call, poll) = self.at_service.remove(&id).unwrap();
                self.send_answer(call, poll, answer);
            }
            self.note_changes();
        }
        wakes.into_iter().map(|wake| wake.max(self.now + Duration::from_micros(1))).min()
    }

    fn note_changes(&mut self) {
        while let Some(Ok(change)) = self.changes.as_mut().map(broadcast::Receiver::try_recv) {
            self.note(format!("{:?} {} changes", change.kind, change.id.unwrap_or_default()));
        }
    }

    // ---- messages -------------------------------------------------------------------------------------

    fn send_request(&mut self, agent: &'static str, request: AgentRequest) {
        let request = match request {
            AgentRequest::Report(report) => {
                let said_hello = if report.hello.is_some() { "hello, " } else { "" };
                let (entries, running) = (report.entries.len(), report.progress.len());
                self.note(format!("{agent} reports {said_hello}{entries} facts, {running} running"));
                Request::Report(report)
            }
            AgentRequest::Poll(number, request) => {
                self.note(format!("{agent} polls behind {}", request.received));
                Request::Poll(number, request)
            }
            AgentRequest::AbortPoll(number) => Request::Abort(number),
        };
        self.calls += 1;
        let call = Call { id: self.calls, agent, agent_start: self.starts[agent] };
        self.network.send(self.now, Message::ToService { call, request });
    }

    fn send_answer(&mut self, call: Call, poll: Option<u64>, answer: ServiceAnswer) {
        let agent = call.agent;
        match &answer {
            ServiceAnswer::Report(Ok(reply)) => self.note(format!(
                "service acknowledges {} of {agent}, asks for a hello: {}",
                reply.acknowledged, reply.say_hello
            )),
            ServiceAnswer::Work(Ok(work)) => {
                let leases: usize = work.batches.iter().map(|batch| batch.leases.len()).sum();
                let cancelled = work.cancel.len();
                self.note(format!("service gives {agent} {leases} leases, cancels {cancelled}"));
            }
            ServiceAnswer::Report(Err(problem)) | ServiceAnswer::Work(Err(problem)) => {
                self.note(format!("service refuses {agent}: {:?}", problem.code));
            }
        }
        let answer = Answer::Service(poll, answer);
        self.network.send(self.now, Message::ToAgent { call, answer });
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::ToService { call, request } => self.deliver_to_service(call, request),
            Message::ToAgent { call, answer } => self.deliver_to_agent(call, answer),
        }
    }

    fn deliver_to_service(&mut self, call: Call, request: Request) {
        let poll = match &request {
            Request::Report(_) => None,
            Request::Poll(number, _) => Some(*number),
            Request::Abort(number) => {
                let is_aborted = |(held, poll): &(Call, Option<u64>)| {
                    (held.agent, held.agent_start, *poll) == (call.agent, call.agent_start, Some(*number))
                };
                let held = self.at_service.iter().find(|(_, held)| is_aborted(held)).map(|(id, _)| *id);
                return held.into_iter().for_each(|id| self.abort(id));
            }
        };
        let Some(service) = &mut self.service else {
            let answer = Answer::Unreachable(poll);
            return self.network.send(self.now, Message::ToAgent { call, answer });
        };
        // The certificate stays the same over starts of the agent.
        let peer = match self.agents.get(call.agent) {
            Some(process) => AgentPeer { agent: process.agent.id(), site: process.agent.site().clone() },
            // It was killed: its connection is gone.
            None => return,
        };
        match request {
            Request::Report(report) => {
                report.entries.iter().for_each(|entry| self.audit.on_entry(entry.sequence, &entry.fact));
                service.report(call.id, peer, *report);
            }
            Request::Poll(_, request) => service.poll_work(call.id, peer, request),
            Request::Abort(_) => {}
        }
        self.at_service.insert(call.id, (call, poll));
    }

    fn deliver_to_agent(&mut self, call: Call, answer: Answer) {
        if call.agent_start != self.starts[call.agent] {
            return;
        }
        let Some(process) = self.agents.get_mut(call.agent) else { return };
        let now = self.now - process.started;
        let unreachable = || Fault::new(FaultCode::Unreachable, "connection refused");
        let refused = |problem: longhaul_api::Problem| Fault::new(problem.code, problem.detail);
        let done = match answer {
            Answer::Service(_, ServiceAnswer::Report(reply)) => {
                process.agent.on_report_reply(now, reply.map_err(refused))
            }
            Answer::Service(poll, ServiceAnswer::Work(work)) => {
                if let Ok(work) = &work {
                    self.audit.on_work(work);
                }
                let work = work.map(|work| (*work).clone()).map_err(refused);
                process.agent.on_work(now, poll.unwrap(), work)
            }
            Answer::Unreachable(None) => process.agent.on_report_reply(now, Err(unreachable())),
            Answer::Unreachable(Some(poll)) => process.agent.on_work(now, poll, Err(unreachable())),
        };
        done.unwrap_or_else(|fault| panic!("{} cannot go on: {fault}", call.agent));
    }
}

fn file_name(number: usize) -> String {
    format!("{DATASET}/f{number:04}")
}
