//! What agents report, applied to a catalog by the commit loop: a whole service in this thread, on a database
//! in memory.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use longhaul_api::AGENT_PROTOCOL;
use longhaul_api::agent::{Fact, Hello, Incarnation, JoinRequest, Report, StorageOffer, Work, WorkRequest};
use longhaul_api::native::{DatasetCreate, FileReplica, SiteAdd, Subscribe, VerificationRequest};
use longhaul_api::steering::Terms;
use longhaul_catalog::MemoryDatabase;
use longhaul_model::{AttemptId, Lfn, NameRules, StorageKind, StorageName, TaskId, Timestamp};
use longhaul_security::{JoinToken, new_signing_request};
use longhaul_service::{AgentPeer, Config, ServiceAnswer, SimulatedService, init_in_memory};
use tempfile::TempDir;

/// The wall clock at the start.
const NOW: Timestamp = Timestamp(1_767_225_600_000_000);
const DATASET: &str = "run7";
const FILES: [&str; 2] = ["run7/f0", "run7/f1"];
const INCARNATION: Incarnation = Incarnation { number: 1, nonce: 11 };

/// A report of beta's agent, whatever its certificate does not say: alpha's files stay as they are, and the
/// service goes on.
pub fn agent_reports(bytes: &[u8]) {
    let Ok(mut report) = serde_json::from_slice::<Report>(bytes) else { return };
    let mut world = World::new();
    world.complete(&mut report);
    let before = world.replicas_at("alpha");
    let beta = world.beta.clone();
    // Answered or refused: what counts is what follows.
    drop(world.report(&beta, report));
    assert_eq!(world.replicas_at("alpha"), before);
    let alpha = world.alpha.clone();
    let answer = world.report(&alpha, empty_report());
    assert!(matches!(answer, ServiceAnswer::Report(Ok(_))), "{answer:?}");
    for check in world.database.open(NOW).expect("it is in memory").check().expect("it is in memory") {
        assert_eq!(check.violations, 0, "{}: {:?}", check.name, check.examples);
    }
}

/// A deployment of two sites: alpha has a dataset, beta wants it.
struct World {
    service: SimulatedService,
    database: MemoryDatabase,
    clock: Arc<AtomicI64>,
    alpha: AgentPeer,
    beta: AgentPeer,
    /// Beta holds their leases.
    attempts: Vec<AttemptId>,
    /// A verification at alpha.
    verification: TaskId,
    calls: u64,
    _directory: TempDir,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().expect("there is a disk");
        let config = Config {
            state_dir: directory.path().join("service"),
            listen: vec!["127.0.0.1:7443".parse().expect("it is an address")],
            deployment: "fuzzed".into(),
            ..Config::default()
        };
        let database = MemoryDatabase::new(NOW).expect("it is in memory");
        let made = init_in_memory(&config, &database, NOW).expect("nothing is there");
        let catalog = database.open(NOW).expect("it is in memory");
        let clock = Arc::new(AtomicI64::new(NOW.0));
        let time = clock.clone();
        let time = Arc::new(move || Timestamp(time.load(Ordering::Relaxed)));
        let service = SimulatedService::open(config, time, catalog).expect("it was made");
        let [alpha, beta] = ["alpha", "beta"].map(|site| join(&service, &made.admin_token, site));
        let mut world = World {
            service,
            database,
            clock,
            alpha,
            beta,
            attempts: Vec::new(),
            verification: TaskId(0),
            calls: 0,
            _directory: directory,
        };
        for peer in [world.alpha.clone(), world.beta.clone()] {
            let hello = Some(hello(peer.site.as_str()));
            drop(world.report(&peer, Report { hello, ..empty_report() }));
        }
        world.order(&made.admin_token);
        world
    }

    /// Alpha's dataset, and beta's wish.
    fn order(&mut self, token: &str) {
        let operations = self.service.operations().clone();
        let admin = operations.identity().caller_of_token(token).expect("it is the administrator's");
        let name = || DATASET.parse().expect("it is a name");
        operations
            .dataset_create(&admin, DatasetCreate { name: name(), community: None })
            .expect("it is new");
        let mut manifest = tempfile::tempfile().expect("there is a disk");
        for lfn in FILES {
            writeln!(manifest, r#"{{"lfn":{lfn:?},"size":1000,"digests":["adler32:03da0195"]}}"#)
                .expect("there is a disk");
        }
        let alpha: StorageName = "alpha".parse().expect("it is a name");
        operations.dataset_add_files(&admin, &name(), Some(&alpha), manifest).expect("it is a manifest");
        let wish = Subscribe {
            dataset: name(),
            block: None,
            storage: "beta".parse().expect("it is a name"),
            priority: None,
            verification: None,
            custodial: false,
            terms: Terms::default(),
        };
        operations.subscription_create(&admin, &wish).expect("both are there");
        let request = VerificationRequest { dataset: name(), storage: alpha };
        self.verification = operations.verification_create(&admin, &request).expect("it is there").id;
        self.poll_leases();
    }

    /// Beta asks for work until it has its leases; the first work is settings.
    fn poll_leases(&mut self) {
        for received in 0..3 {
            let work = self.poll(received);
            let leases = work.batches.iter().flat_map(|batch| &batch.leases);
            self.attempts.extend(leases.map(|lease| lease.attempt));
            if !self.attempts.is_empty() {
                break;
            }
        }
        assert_eq!(self.attempts.len(), FILES.len());
    }

    /// Lets the time pass until there is work.
    fn poll(&mut self, received: u64) -> Arc<Work> {
        self.calls += 1;
        let wait_ms = 60_000;
        let request = WorkRequest { versions: AGENT_PROTOCOL, incarnation: INCARNATION, received, wait_ms };
        self.service.poll_work(self.calls, self.beta.clone(), request);
        let answered = (0..wait_ms).find_map(|_| {
            let step = self.service.step();
            self.clock.store(step.wake_at.unwrap_or(NOW).0, Ordering::Relaxed);
            step.answers.into_iter().next()
        });
        let Some((_, ServiceAnswer::Work(Ok(work)))) = answered else { panic!("{answered:?}") };
        work
    }

    /// Puts in what no bytes could guess: facts are in order, and ids below ten stand for real ones.
    fn complete(&self, report: &mut Report) {
        report.versions = AGENT_PROTOCOL;
        report.incarnation = INCARNATION;
        for (sequence, entry) in (1..).zip(&mut report.entries) {
            entry.sequence = sequence;
            match &mut entry.fact {
                Fact::Outcome(outcome) => self.complete_attempt(&mut outcome.attempt),
                Fact::Scanned { task, .. } | Fact::Checked { task, .. } | Fact::TaskDone { task, .. }
                    if task.0 < 10 =>
                {
                    *task = self.verification;
                }
                _ => {}
            }
        }
        report.progress.iter_mut().for_each(|one| self.complete_attempt(&mut one.attempt));
        let held = report.hello.iter_mut().flat_map(|hello| &mut hello.held);
        held.for_each(|attempt| self.complete_attempt(attempt));
    }

    fn complete_attempt(&self, attempt: &mut AttemptId) {
        if attempt.0 < 10 {
            *attempt = self.attempts[attempt.0 as usize % self.attempts.len()];
        }
    }

    fn report(&mut self, peer: &AgentPeer, report: Report) -> ServiceAnswer {
        self.calls += 1;
        self.service.report(self.calls, peer.clone(), report);
        let mut answers = self.service.step().answers;
        answers.pop().expect("a report is answered at once").1
    }

    /// As people see them.
    fn replicas_at(&self, storage: &str) -> serde_json::Value {
        let lfns = FILES.map(|lfn| lfn.parse::<Lfn>().expect("it is a name"));
        let found = lfns.iter().map(|lfn| self.service.operations().replica_of_file(lfn));
        let there = |replicas: Vec<FileReplica>| -> Vec<FileReplica> {
            replicas.into_iter().filter(|replica| replica.storage.as_str() == storage).collect()
        };
        let shown: Vec<_> = found.map(|found| there(found.expect("it is registered").replicas)).collect();
        serde_json::to_value(shown).expect("it is what the API answers")
    }
}

fn join(service: &SimulatedService, token: &str, site: &str) -> AgentPeer {
    let operations = service.operations();
    let admin = operations.identity().caller_of_token(token).expect("it is the administrator's");
    let name = site.parse().expect("it is a name");
    let add = SiteAdd { name, token_seconds: None, storages: Vec::new() };
    let added = operations.site_add(&admin, &add).expect("it is new");
    let token: JoinToken = added.join_token.parse().expect("it is a join token");
    let (signing_request, _) = new_signing_request().expect("there is randomness");
    let host = format!("{site}.example");
    let request =
        JoinRequest { versions: AGENT_PROTOCOL, secret: token.secret.clone(), signing_request, host };
    let reply = operations.agent_join(&request).expect("it may join");
    AgentPeer { agent: reply.agent, site: reply.site }
}

fn hello(site: &str) -> Hello {
    Hello {
        host: format!("{site}.example"),
        version: "0.1.0".into(),
        data_addresses: vec!["127.0.0.1:9".into()],
        storages: vec![StorageOffer {
            name: site.parse().expect("it is a name"),
            kind: StorageKind::Posix,
            rules: NameRules::default(),
            writable: true,
            case_insensitive: false,
            root_mark: None,
            shared: false,
        }],
        held: Vec::new(),
        mover: None,
    }
}

fn empty_report() -> Report {
    Report {
        versions: AGENT_PROTOCOL,
        incarnation: INCARNATION,
        now: NOW,
        hello: None,
        entries: Vec::new(),
        progress: Vec::new(),
        spaces: Vec::new(),
        probes: Vec::new(),
        uplinks: Vec::new(),
        paths: Vec::new(),
        circuits: Vec::new(),
        fences: Vec::new(),
        staged: Vec::new(),
        ask_ahead: false,
        ending: false,
    }
}
