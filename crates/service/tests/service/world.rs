//! A real service on loopback, and agents that follow a script: they speak the protocol over real TLS with
//! real certificates, but move no bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use longhaul_api::agent::*;
use longhaul_api::client::Client;
use longhaul_api::native::*;
use longhaul_api::steering::Terms;
use longhaul_api::{AGENT_PROTOCOL, Problem, routes};
use longhaul_model::{AgentId, AttemptId, DigestSet, NameRules, StorageKind, Timestamp, Verification};
use longhaul_security::{
    Credentials, JoinToken, agent_client_tls, join_client_tls, new_signing_request, people_client_tls,
};
use longhaul_service::{Clocks, Config, HttpLimits, Service, init};
pub use longhaul_testkit::until;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

pub struct World {
    pub directory: TempDir,
    pub config: Config,
    pub admin_token: String,
    pub ca_pem: String,
    /// Added to the real time, in seconds.
    pub shift_s: Arc<AtomicI64>,
    service: Option<Service>,
    /// Ports stay ours over restarts: nobody else gets one that a socket is bound to.
    _ports: [TcpSocket; 2],
}

/// A socket with a port of its own that never listens: whoever asks for the port by its number may.
fn hold_port() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    socket
}

impl World {
    pub async fn new() -> World {
        World::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> World {
        // What the service says, for whoever looks into a failing test.
        if std::env::var_os("LONGHAUL_TEST_LOG").is_some() {
            let _ =
                tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_test_writer().try_init();
        }
        let directory = tempfile::tempdir().unwrap();
        let [secure, plain] = [(); 2].map(|()| hold_port());
        let mut config = Config {
            state_dir: directory.path().join("state"),
            listen: vec![secure.local_addr().unwrap()],
            http: Some(plain.local_addr().unwrap()),
            deployment: "test".into(),
            report_every_ms: 100,
            // A starved machine reaches no limit of time: a test of one sets it.
            limits: HttpLimits { head_ms: 120_000, stall_ms: 120_000, ..HttpLimits::default() },
            ..Config::default()
        };
        change(&mut config);
        let shift_s = Arc::new(AtomicI64::new(0));
        let made = init(&config, (clock(&shift_s))()).unwrap();
        let mut world = World {
            directory,
            config,
            admin_token: made.admin_token,
            ca_pem: made.ca_pem,
            shift_s,
            service: None,
            _ports: [secure, plain],
        };
        world.start().await;
        world
    }

    pub async fn start(&mut self) {
        let clock = clock(&self.shift_s);
        self.start_by(clock).await;
    }

    /// Starts by clocks of the test.
    pub async fn start_by(&mut self, clocks: impl Into<Clocks>) {
        let service = Service::start(self.config.clone(), clocks, |_| Router::new()).await;
        self.service = Some(service.unwrap_or_else(|fault| panic!("{fault}")));
    }

    pub async fn stop(&mut self) {
        self.service.take().unwrap().stop().await;
    }

    pub async fn restart(&mut self) {
        self.stop().await;
        self.start().await;
    }

    /// Ends the service in the midst of things, and starts it again as soon as it has let go of its
    /// directory.
    pub async fn crash(&mut self) {
        drop(self.service.take());
        for _ in 0..10_000 {
            match Service::start(self.config.clone(), clock(&self.shift_s), |_| Router::new()).await {
                Ok(service) => return self.service = Some(service),
                Err(fault) => assert!(fault.detail.contains("another service"), "{fault}"),
            }
            tokio::task::yield_now().await;
        }
        panic!("the directory stays locked");
    }

    pub fn service(&self) -> &Service {
        self.service.as_ref().unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.service().addresses()[0]
    }

    pub fn http_address(&self) -> SocketAddr {
        self.service().http_address().unwrap()
    }

    /// What our own client has no name for: status, and the answer if it is JSON.
    pub async fn request(&self, token: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer \
                {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.http_address(),
            body.len()
        );
        let mut stream = TcpStream::connect(self.http_address()).await.unwrap();
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    pub fn person(&self, token: Option<&str>) -> Client {
        let url = format!("https://localhost:{}", self.address().port());
        let tls = people_client_tls(&self.ca_pem).unwrap();
        Client::new(&url, tls, token.map(str::to_owned)).unwrap()
    }

    pub fn admin(&self) -> Client {
        self.person(Some(&self.admin_token))
    }

    pub async fn join_token(&self, site: &str) -> JoinToken {
        let add = SiteAdd { name: site.parse().unwrap(), token_seconds: None, storages: Vec::new() };
        let added: SiteAdded = self.admin().request(&routes::SITE_ADD).json(&add).send().await.unwrap();
        added.join_token.parse().unwrap()
    }

    pub async fn agent(&self, site: &str) -> Agent {
        let token = self.join_token(site).await;
        Agent::join(&token, site).await.unwrap()
    }

    /// A dataset of `files` files that are all at `storage`.
    pub async fn dataset(&self, name: &str, storage: &str, files: usize) {
        let create = DatasetCreate { name: name.parse().unwrap(), community: None };
        let _: DatasetView =
            self.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
        let lines: String = (0..files).map(|n| manifest_line(&format!("{name}/f{n:05}"), 1_000)).collect();
        let registered = self.register(name, Some(storage), lines).await.unwrap();
        assert_eq!(registered.files_added, files as u64);
    }

    pub async fn register(
        &self,
        name: &str,
        storage: Option<&str>,
        manifest: String,
    ) -> Result<Registered, Problem> {
        let request =
            self.admin().request(&routes::DATASET_ADD_FILES).parameter(name).maybe("storage", storage);
        request.upload(std::io::Cursor::new(manifest.into_bytes())).send().await
    }

    pub async fn subscribe(&self, dataset: &str, storage: &str) -> SubscriptionView {
        let wish = Subscribe {
            dataset: dataset.parse().unwrap(),
            block: None,
            storage: storage.parse().unwrap(),
            priority: None,
            verification: None,
            custodial: false,
            terms: Terms::default(),
        };
        self.admin().request(&routes::SUBSCRIPTION_CREATE).json(&wish).send().await.unwrap()
    }

    pub async fn subscription(&self, id: impl ToString) -> SubscriptionView {
        self.admin().request(&routes::SUBSCRIPTION_SHOW).parameter(id).send().await.unwrap()
    }

    pub async fn problems(&self) -> Vec<ProblemView> {
        let page: Page<ProblemView> = self.admin().request(&routes::PROBLEM_LIST).send().await.unwrap();
        page.items
    }

    /// Every test ends with this: the invariants hold.
    pub async fn assert_sound(&self) {
        let report: CheckReport = self.admin().request(&routes::CHECK).send().await.unwrap();
        assert!(report.sound, "{report:?}");
    }
}

pub fn manifest_line(lfn: &str, size: u64) -> String {
    format!("{{\"lfn\":{lfn:?},\"size\":{size},\"digests\":[\"adler32:03da0195\"]}}\n")
}

pub fn clock(shift_s: &Arc<AtomicI64>) -> longhaul_service::Clock {
    let shift_s = shift_s.clone();
    Arc::new(move || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp(since.as_micros() as i64 + shift_s.load(Ordering::Relaxed) * 1_000_000)
    })
}

pub struct Agent {
    pub id: AgentId,
    pub client: Client,
    pub credentials: Credentials,
    pub incarnation: Incarnation,
    pub storages: Vec<StorageOffer>,
    pub sequence: u64,
    pub received: u64,
    /// Its clock minus the real one, seconds.
    pub clock_off_s: i64,
    pub url: String,
}

impl Agent {
    pub async fn join(token: &JoinToken, site: &str) -> Result<Agent, Problem> {
        let (signing_request, key_pem) = new_signing_request().unwrap();
        let client = Client::new(&token.url, join_client_tls(&token.ca_fingerprint).unwrap(), None)?;
        let request = JoinRequest {
            versions: AGENT_PROTOCOL,
            secret: token.secret.clone(),
            signing_request,
            host: "host.example".into(),
        };
        let reply: JoinReply = client.request(&routes::AGENT_JOIN).json(&request).send().await?;
        assert_eq!(reply.site.as_str(), site);
        let credentials = Credentials { certificate_pem: reply.certificate, key_pem, ca_pem: reply.ca };
        Ok(Agent {
            id: reply.agent,
            client: Client::new(&token.url, agent_client_tls(&credentials).unwrap(), None)?,
            credentials,
            incarnation: Incarnation { number: 1, nonce: 11 },
            storages: vec![StorageOffer {
                name: site.parse().unwrap(),
                kind: StorageKind::Posix,
                rules: NameRules::default(),
                writable: true,
                case_insensitive: false,
                root_mark: None,
                shared: false,
            }],
            sequence: 0,
            received: 0,
            clock_off_s: 0,
            url: token.url.clone(),
        })
    }

    /// The same certificate and state on another start.
    pub fn started_again(&self, number: u64, nonce: u64) -> Agent {
        Agent {
            id: self.id,
            client: Client::new(&self.url, agent_client_tls(&self.credentials).unwrap(), None).unwrap(),
            credentials: self.credentials.clone(),
            incarnation: Incarnation { number, nonce },
            storages: self.storages.clone(),
            sequence: self.sequence,
            received: self.received,
            clock_off_s: self.clock_off_s,
            url: self.url.clone(),
        }
    }

    pub fn now(&self) -> Timestamp {
        clock(&Arc::new(AtomicI64::new(self.clock_off_s)))()
    }

    pub fn empty_report(&self) -> Report {
        Report {
            versions: AGENT_PROTOCOL,
            incarnation: self.incarnation,
            now: self.now(),
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

    pub async fn report(&self, report: &Report) -> Result<ReportReply, Problem> {
        self.client.request(&routes::AGENT_REPORT).json(report).send().await
    }

    pub async fn hello(&self, held: &[AttemptId]) -> Result<ReportReply, Problem> {
        self.report(&Report { hello: Some(self.who(held)), ..self.empty_report() }).await
    }

    /// What a hello says.
    pub fn who(&self, held: &[AttemptId]) -> Hello {
        Hello {
            host: "host.example".into(),
            version: "0.1.0".into(),
            data_addresses: vec!["127.0.0.1:9".into()],
            storages: self.storages.clone(),
            held: held.to_vec(),
            mover: None,
        }
    }

    /// One poll; what was received before is acknowledged with it.
    pub async fn poll(&self, wait: Duration) -> Result<Work, Problem> {
        let request = WorkRequest {
            versions: AGENT_PROTOCOL,
            incarnation: self.incarnation,
            received: self.received,
            wait_ms: wait.as_millis() as u32,
        };
        self.client.request(&routes::AGENT_WORK).json(&request).send().await
    }

    /// Takes parcels until `enough` leases are there.
    pub async fn leases(&mut self, enough: usize) -> Vec<(Arc<LeaseBatch>, Lease)> {
        let mut leases = Vec::new();
        while leases.len() < enough {
            let work = self.poll(Duration::from_secs(20)).await.unwrap();
            assert!(work.number > self.received, "no work within 20 s, have {}", leases.len());
            self.received = work.number;
            for batch in work.batches.into_iter().map(Arc::new) {
                leases.extend(batch.leases.iter().map(|lease| (batch.clone(), lease.clone())));
            }
        }
        leases
    }

    /// Takes parcels until one holds an order to fence another agent.
    pub async fn fence_order(&mut self) -> FenceOrder {
        loop {
            let work = self.poll(Duration::from_secs(20)).await.unwrap();
            assert!(work.number > self.received, "no order within 20 s");
            self.received = work.number;
            if let Some(order) = work.fences.into_iter().next() {
                return order;
            }
        }
    }

    /// The next parcel.
    pub async fn work(&mut self) -> Work {
        let work = self.poll(Duration::from_secs(20)).await.unwrap();
        assert!(work.number > self.received, "no work within 20 s");
        self.received = work.number;
        work
    }

    /// Takes parcels until one holds an order to bring files from tape.
    pub async fn stage_order(&mut self) -> StageOrder {
        loop {
            if let Some(order) = self.work().await.stages.into_iter().next() {
                return order;
            }
        }
    }

    /// Takes parcels until one holds a task.
    pub async fn task(&mut self) -> Task {
        loop {
            let work = self.poll(Duration::from_secs(20)).await.unwrap();
            assert!(work.number > self.received, "no task within 20 s");
            self.received = work.number;
            if let Some(task) = work.tasks.into_iter().next() {
                return task;
            }
        }
    }

    pub fn entry(&mut self, fact: Fact) -> Entry {
        self.sequence += 1;
        Entry { sequence: self.sequence, fact }
    }

    pub fn done(&mut self, lease: &Lease) -> Entry {
        self.outcome(lease, None)
    }

    pub fn outcome(&mut self, lease: &Lease, fault: Option<longhaul_model::Fault>) -> Entry {
        let now = self.now();
        let times = AttemptTimes {
            received: now,
            started: Some(now),
            first_byte: Some(now),
            last_byte: Some(now),
            committed: fault.is_none().then_some(now),
        };
        let outcome = Outcome {
            attempt: lease.attempt,
            epoch: lease.epoch,
            digests: if fault.is_none() { lease.digests.clone() } else { DigestSet::default() },
            bytes_moved: if fault.is_none() { lease.size } else { 0 },
            fault,
            verification: Verification::EndToEnd,
            already_there: false,
            bytes_resent: 0,
            executor: None,
            times,
        };
        self.entry(Fact::Outcome(outcome))
    }

    pub async fn send(&self, entries: Vec<Entry>) -> Result<ReportReply, Problem> {
        self.report(&Report { entries, ..self.empty_report() }).await
    }
}
