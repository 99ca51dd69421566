//! Jobs from end to end: submitted at the desk, ordered by the scheduler, copied between two HTTP servers,
//! and each file ends once, whatever happens to the service.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::world::{World, until};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http::{Method, StatusCode};
use longhaul_api::client::Client;
use longhaul_api::jobs::{JobChange, JobDetail, JobFileSubmit, JobSubmit, JobView};
use longhaul_api::native::{Page, TokenCreate, TokenCreated};
use longhaul_api::routes::Route;
use longhaul_api::{Problem, routes};
use longhaul_catalog::{JobCancelResult, JobFileRow, JobRow, NewJob, NewJobFile, SubmitResult};
use longhaul_model::job::CANCELED_BY_USER;
use longhaul_model::{JobFileState, JobId, JobKind, JobState, Timestamp};
use longhaul_testkit::until_met;
use serde_json::{Value, json};
use tokio::sync::watch;

/// A plain storage: keeps files, renames them, and copies to nobody.
pub struct Storage {
    files: Mutex<BTreeMap<String, Bytes>>,
    /// Reads wait while this says so.
    closed: watch::Sender<bool>,
    reads: AtomicU32,
    /// So many reads are answered with 503 first.
    refusals: AtomicU32,
    /// Files that came to each name.
    arrivals: Mutex<BTreeMap<String, u32>>,
}

impl Storage {
    pub async fn start() -> (Arc<Storage>, String) {
        let storage = Arc::new(Storage {
            files: Mutex::default(),
            closed: watch::Sender::new(false),
            reads: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            arrivals: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(storage.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (storage, url)
    }

    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.files.lock().unwrap().insert(path.to_owned(), Bytes::copy_from_slice(bytes));
    }

    pub fn get(&self, path: &str) -> Option<Bytes> {
        self.files.lock().unwrap().get(path).cloned()
    }

    /// So many reads are answered with 503 from now on.
    pub fn refuses(&self, reads: u32) {
        self.refusals.store(reads, Ordering::SeqCst);
    }

    fn close(&self, closed: bool) {
        self.closed.send_replace(closed);
    }

    fn came(&self, path: &str, bytes: Bytes) {
        self.files.lock().unwrap().insert(path.to_owned(), bytes);
        *self.arrivals.lock().unwrap().entry(path.to_owned()).or_default() += 1;
    }
}

fn status(status: StatusCode) -> Response {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

async fn answer(State(storage): State<Arc<Storage>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let (head, body) = request.into_parts();
    match (&head.method, head.method.as_str()) {
        (&Method::HEAD, _) => match storage.get(&path) {
            Some(bytes) => {
                let answer = Response::builder().header("content-length", bytes.len());
                answer.body(Body::empty()).unwrap()
            }
            None => status(StatusCode::NOT_FOUND),
        },
        (&Method::GET, _) => {
            storage.reads.fetch_add(1, Ordering::SeqCst);
            let refuse = |left: u32| left.checked_sub(1);
            if storage.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse).is_ok() {
                return status(StatusCode::SERVICE_UNAVAILABLE);
            }
            storage.closed.subscribe().wait_for(|closed| !closed).await.unwrap();
            storage
                .get(&path)
                .map_or_else(|| status(StatusCode::NOT_FOUND), |bytes| Response::new(bytes.into()))
        }
        (&Method::PUT, _) => {
            let Ok(bytes) = to_bytes(body, 1 << 20).await else { return status(StatusCode::BAD_REQUEST) };
            storage.came(&path, bytes);
            status(StatusCode::CREATED)
        }
        (&Method::DELETE, _) => match storage.files.lock().unwrap().remove(&path) {
            Some(_) => status(StatusCode::NO_CONTENT),
            None => status(StatusCode::NOT_FOUND),
        },
        (_, "MKCOL") => status(StatusCode::CREATED),
        (_, "MOVE") => {
            let to: http::Uri = head.headers["destination"].to_str().unwrap().parse().unwrap();
            let Some(bytes) = storage.files.lock().unwrap().remove(&path) else {
                return status(StatusCode::NOT_FOUND);
            };
            storage.came(to.path(), bytes);
            status(StatusCode::CREATED)
        }
        _ => status(StatusCode::METHOD_NOT_ALLOWED),
    }
}

/// A service that may use storages of this machine, and two of them.
pub struct Play {
    pub world: World,
    source: Arc<Storage>,
    pub target: Arc<Storage>,
    from: String,
    to: String,
    jobs: u32,
}

impl Play {
    pub async fn new() -> Play {
        let world = World::with(|config| config.jobs.allow_networks = vec!["127.0.0.0/8".into()]).await;
        let ((source, from), (target, to)) = (Storage::start().await, Storage::start().await);
        Play { world, source, target, from, to, jobs: 0 }
    }

    fn file(&self, index: u32, source: &str, target: &str, state: JobFileState) -> NewJobFile {
        NewJobFile {
            index,
            source: source.to_owned(),
            target: target.to_owned(),
            size: None,
            checksum: None,
            activity: "default".into(),
            state,
            details: "{}".into(),
        }
    }

    pub async fn submit(&mut self, kind: JobKind, details: &str, files: Vec<NewJobFile>) -> JobId {
        self.submit_for("higgs", kind, details, files).await
    }

    async fn submit_for(&mut self, vo: &str, kind: JobKind, details: &str, files: Vec<NewJobFile>) -> JobId {
        self.jobs += 1;
        let id = JobId(u128::from(self.jobs) << 8);
        let job = NewJob {
            id,
            kind,
            vo: vo.into(),
            user: "/CN=alice".into(),
            credential: "none".into(),
            priority: 3,
            strategy: "best".into(),
            submitted: Timestamp(1),
            expires: None,
            details: details.into(),
            refuse_duplicates: false,
            files,
        };
        let answers = self.world.service().operations().jobs().submit(vec![job]).await.unwrap();
        assert_eq!(answers, [SubmitResult::Created]);
        id
    }

    /// Files that the source has, to names of the target.
    pub fn plain(&self, count: u32) -> Vec<NewJobFile> {
        let one = |at| {
            let path = format!("/d{}/f{at}", self.jobs);
            self.source.put(&path, format!("content of {path}").as_bytes());
            let (source, target) = (format!("{}{path}", self.from), format!("{}{path}", self.to));
            self.file(at, &source, &target, JobFileState::Submitted)
        };
        (0..count).map(one).collect()
    }

    pub fn job(&self, id: JobId) -> (JobRow, Vec<JobFileRow>) {
        self.world.service().operations().job(id).unwrap().unwrap()
    }

    async fn until(&self, what: &str, met: impl Fn(&Play) -> bool) {
        until_met(what, || met(self)).await;
    }

    /// Looks at a job until a file of it waits because of this.
    async fn waits_for(&self, id: JobId, why: &str) {
        let client = self.world.admin();
        until(why, async || {
            let job: JobDetail = client.request(&routes::JOB_SHOW).parameter(id).send().await.unwrap();
            let waits: Vec<&str> = job.files.iter().filter_map(|file| file.waits_for.as_deref()).collect();
            waits.iter().any(|waits| waits.contains(why)).then_some(()).ok_or_else(|| format!("{waits:?}"))
        })
        .await;
    }

    pub async fn ended(&self, id: JobId) -> (JobRow, Vec<JobFileRow>) {
        self.until("the end of a job", |play| play.job(id).0.state.is_terminal()).await;
        self.job(id)
    }

    /// As it stands at the target, under that path.
    pub fn arrived(&self, path: &str) {
        let bytes = self.target.get(path).unwrap_or_else(|| panic!("{path} is not there"));
        assert_eq!(bytes, format!("content of {path}").as_bytes());
        assert_eq!(self.target.arrivals.lock().unwrap()[path], 1, "{path} came more than once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_file_ends_once_whatever_happens_to_the_service() {
    let mut play = Play::new().await;
    play.source.close(true);
    let files = play.plain(20);
    let id = play.submit(JobKind::Regular, "{}", files).await;
    play.until("copies", |play| play.source.reads.load(Ordering::SeqCst) >= 2).await;
    assert_eq!(play.job(id).0.state, JobState::Active);
    play.world.crash().await;
    play.source.close(false);
    let (job, files) = play.ended(id).await;
    assert_eq!((job.state, job.reason.as_str()), (JobState::Finished, ""));
    for (at, file) in files.iter().enumerate() {
        assert_eq!((file.state, file.mode.as_deref()), (JobFileState::Finished, Some("stream")));
        play.arrived(&format!("/d0/f{at}"));
    }
    let attempts = play.world.service().operations().job_file_attempts(files[0].id).unwrap();
    assert_eq!(attempts.len(), 1, "what the restart cut off is no attempt of the file");
    assert!(attempts[0].choice.contains("charged_to"), "{}", attempts[0].choice);
    // Ended is ended: another start finds nothing to do.
    let reads = play.source.reads.load(Ordering::SeqCst);
    play.world.restart().await;
    let files = play.plain(1);
    let later = play.submit(JobKind::Regular, "{}", files).await;
    play.ended(later).await;
    assert_eq!(play.source.reads.load(Ordering::SeqCst), reads + 1);
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_hops_retries_and_ends_by_users() {
    let mut play = Play::new().await;
    // One replica is missing; whichever is tried first, the file arrives.
    let path = "/r/f";
    play.source.put(path, format!("content of {path}").as_bytes());
    let target = format!("{}{path}", play.to);
    let (missing, there) = (format!("{}/none", play.to), format!("{}{path}", play.from));
    let files = vec![
        play.file(0, &missing, &target, JobFileState::Submitted),
        play.file(0, &there, &target, JobFileState::NotUsed),
    ];
    let id = play.submit(JobKind::Replicas, "{}", files).await;
    let (job, files) = play.ended(id).await;
    assert_eq!((job.state, files[1].state), (JobState::Finished, JobFileState::Finished), "{files:?}");
    play.arrived(path);

    // By way of a third name: the second hop follows the first.
    let path = "/h/f";
    play.source.put(path, format!("content of {path}").as_bytes());
    let (begin, between, end) =
        (format!("{}{path}", play.from), format!("{}/between", play.to), format!("{}{path}", play.to));
    let files = vec![
        play.file(0, &begin, &between, JobFileState::Submitted),
        play.file(1, &between, &end, JobFileState::NotUsed),
    ];
    let id = play.submit(JobKind::Hops, "{}", files).await;
    assert_eq!(play.ended(id).await.0.state, JobState::Finished);
    play.arrived(path);

    // A storage that is busy is asked again, after the time that the job says.
    play.source.refusals.store(1, Ordering::SeqCst);
    let files = play.plain(1);
    let id = play.submit(JobKind::Regular, r#"{"retry":2,"retry_delay":3600}"#, files).await;
    play.until("a retry", |play| play.job(id).1[0].retries == 1).await;
    let file = play.job(id).1.remove(0);
    assert_eq!((file.state, file.recoverable), (JobFileState::Submitted, true));
    assert!(file.reason.starts_with("SOURCE ["), "{}", file.reason);
    play.world.shift_s.store(3_700, Ordering::SeqCst);
    assert_eq!(play.ended(id).await.0.state, JobState::Finished);

    // What is gone for good fails, and says why.
    let mut files = play.plain(2);
    files[1].source += "-gone";
    let id = play.submit(JobKind::Regular, r#"{"retry":5}"#, files).await;
    let (job, files) = play.ended(id).await;
    assert_eq!(job.state, JobState::FinishedDirty);
    assert!(files[1].reason.starts_with("SOURCE [2] "), "{}", files[1].reason);

    // Cancelled in the midst of it.
    play.source.close(true);
    let reads = play.source.reads.load(Ordering::SeqCst);
    let files = play.plain(1);
    let id = play.submit(JobKind::Regular, "{}", files).await;
    play.until("a copy", |play| play.source.reads.load(Ordering::SeqCst) > reads).await;
    let jobs = play.world.service().operations().jobs();
    let answer = jobs.cancel(vec![(id, None)], CANCELED_BY_USER).await.unwrap();
    assert_eq!(answer, [JobCancelResult::Done(Vec::new())]);
    let (job, files) = play.job(id);
    assert_eq!((job.state, job.reason.as_str()), (JobState::Canceled, CANCELED_BY_USER));
    assert_eq!(files[0].state, JobFileState::Canceled);
    play.until("the copy's end", |play| {
        play.world.service().operations().jobs().progress(files[0].id).is_none()
    })
    .await;
    play.source.close(false);
    let path = files[0].target.strip_prefix(&play.to).unwrap();
    assert!(play.target.get(path).is_none());
    play.world.stop().await;
}

/// A route of FTS's configuration, which our own client has no name for.
const fn fts(path: &'static str) -> Route {
    Route { operation: "fts", path, ..routes::TOKEN_CREATE }
}

const fn read(path: &'static str) -> Route {
    Route { operation: "fts", path, ..routes::TOKEN_LIST }
}

static FTS_LINKS: Route = fts("/config/links");
static FTS_STORAGES: Route = fts("/config/se");
static FTS_DRAIN: Route = fts("/config/drain");
static FTS_GLOBAL: Route = fts("/config/global");
static FTS_EVOLUTION: Route = read("/optimizer/evolution");
static FTS_EVOLUTION_ELSEWHERE: Route = read("/optimizer/evolution?source_se=https%3A%2F%2Felsewhere");

impl Play {
    async fn configure(&self, route: &'static Route, body: &Value) {
        let _: Value = self.world.admin().request(route).json(body).send().await.unwrap();
    }

    /// Submits files that come no further than their first byte, and waits until so many do and the others
    /// wait because of `why`.
    async fn held_at(&mut self, files: u32, running: usize, why: &str) {
        let files = self.plain(files);
        let id = self.submit(JobKind::Regular, "{}", files).await;
        let client = self.world.admin();
        until("so many at once", async || {
            let job: JobDetail = client.request(&routes::JOB_SHOW).parameter(id).send().await.unwrap();
            let active = job.files.iter().filter(|file| file.state == JobFileState::Active).count();
            assert!(active <= running, "{active} at once");
            let waits: Vec<&str> = job.files.iter().filter_map(|file| file.waits_for.as_deref()).collect();
            let met = active == running && waits.iter().any(|waits| waits.contains(why));
            met.then_some(()).ok_or_else(|| format!("{active} at once, the others: {waits:?}"))
        })
        .await;
        self.source.close(false);
        assert_eq!(self.ended(id).await.0.state, JobState::Finished);
    }
}

/// What is set by FTS's API counts for the next copy, and after the next start too.
#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_fts_binds_the_scheduler_and_the_copies() {
    let mut play = Play::new().await;
    let link = |most: u32| json!({"symbolicname": "all", "min_active": 1, "max_active": most});
    play.configure(&FTS_LINKS, &link(1)).await;
    play.source.close(true);
    play.held_at(4, 1, "sends this storage 1 file at a time, the limit of the link").await;

    // A storage's limit, of end points that are known by now; the narrower of the two counts.
    play.configure(&FTS_LINKS, &link(100)).await;
    let storage = longhaul_model::job::storage_element(&play.from).unwrap();
    let limit = json!({storage.clone(): {"se_info": {"outbound_max_active": 1}}});
    play.configure(&FTS_STORAGES, &limit).await;
    play.source.close(true);
    play.held_at(4, 1, "sends 1 file at a time, its limit").await;
    play.world.restart().await;
    play.source.close(true);
    play.held_at(4, 1, "sends 1 file at a time, its limit").await;

    // A service that drains begins nothing; what it says ends with it.
    let host = play.world.address().ip().to_string();
    play.configure(&FTS_DRAIN, &json!({"hostname": host, "drain": true})).await;
    play.source.close(true);
    let files = play.plain(1);
    let id = play.submit(JobKind::Regular, "{}", files).await;
    let shown = async || {
        let shown = play.world.admin().request(&routes::JOB_SHOW).parameter(id).send::<JobDetail>().await;
        shown.unwrap().files.remove(0)
    };
    let waits = shown().await.waits_for.unwrap();
    assert!(waits.contains("this service drains"), "{waits}");
    assert_eq!(shown().await.state, JobFileState::Submitted);
    play.configure(&FTS_DRAIN, &json!({"hostname": host, "drain": false})).await;
    play.source.close(false);
    assert_eq!(play.ended(id).await.0.state, JobState::Finished);

    // Neither third-party copies nor streaming: nothing is left, and that is said.
    play.configure(&FTS_STORAGES, &json!({"*": {"se_info": {"tpc_support": "NONE"}}})).await;
    play.configure(&FTS_GLOBAL, &json!({"no_streaming": true, "retry": 0})).await;
    let files = play.plain(1);
    let id = play.submit(JobKind::Regular, "{}", files).await;
    let (job, files) = play.ended(id).await;
    assert_eq!(job.state, JobState::Failed);
    assert!(files[0].reason.contains("tpc_support"), "{}", files[0].reason);

    // As often as the community may, whose jobs say nothing of it.
    play.configure(&FTS_GLOBAL, &json!({"no_streaming": false})).await;
    play.configure(&FTS_GLOBAL, &json!({"vo_name": "higgs", "retry": 1})).await;
    play.source.refusals.store(1, Ordering::SeqCst);
    let files = play.plain(1);
    let id = play.submit(JobKind::Regular, r#"{"retry_delay":1}"#, files).await;
    play.until("a retry", |play| play.job(id).1[0].retries == 1).await;
    play.world.shift_s.store(60, Ordering::SeqCst);
    assert_eq!(play.ended(id).await.0.state, JobState::Finished);

    // What the pair did is told by the minute.
    play.world.shift_s.store(180, Ordering::SeqCst);
    let minutes = play.world.admin().request(&FTS_EVOLUTION).send::<Vec<Value>>().await.unwrap();
    let last = minutes.first().unwrap();
    assert_eq!(last["source_se"], storage.as_str(), "{last}");
    assert!(last["success"].as_f64().unwrap() > 0.0 && last["throughput"].as_f64().unwrap() > 0.0, "{last}");
    assert!(last["active"].as_u64().unwrap() >= 1 && last["datetime"].is_string(), "{last}");
    let none = play.world.admin().request(&FTS_EVOLUTION_ELSEWHERE).send::<Vec<Value>>().await.unwrap();
    assert!(none.is_empty(), "{none:?}");
    play.world.stop().await;
}

fn submit_of(pairs: &[(&str, &str)]) -> JobSubmit {
    let file = |(source, target): &(&str, &str)| JobFileSubmit {
        sources: vec![(*source).to_owned()],
        target: (*target).to_owned(),
        ..JobFileSubmit::default()
    };
    JobSubmit { files: pairs.iter().map(file).collect(), ..JobSubmit::default() }
}

async fn submitted(client: &Client, job: &JobSubmit) -> Result<JobView, Problem> {
    client.request(&routes::JOB_SUBMIT).json(job).send().await
}

/// The same jobs by the native API: whose they are, what they say, and that one is one however often it is
/// asked for.
#[tokio::test(flavor = "multi_thread")]
async fn the_native_api_shows_jobs_to_those_whose_they_are() {
    let people = [("alice", "atlas"), ("bob", "cms")];
    let world = World::with(|config| {
        config.jobs.allow_networks = vec!["127.0.0.0/8".into()];
        let person = |(name, community): (&str, &str)| longhaul_identity::FtsPerson {
            name: name.into(),
            community: community.parse().unwrap(),
            transfer: longhaul_identity::Reach::Community,
            config: longhaul_identity::Reach::None,
            datamanagement: longhaul_identity::Reach::None,
            admin: longhaul_identity::Reach::None,
        };
        config.fts.people = people.map(person).to_vec();
    })
    .await;
    let ((source, from), (target, to)) = (Storage::start().await, Storage::start().await);
    let mut play = Play { world, source, target, from, to, jobs: 0 };
    let mut clients = Vec::new();
    for name in ["alice", "bob", "carol"] {
        let create = TokenCreate { name: name.into(), role: "viewer".into(), ..TokenCreate::default() };
        let made: TokenCreated =
            play.world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
        clients.push(play.world.person(Some(&made.token)));
    }
    let [alice, bob, carol] = clients.as_slice() else { unreachable!() };

    // One copy that arrives, one whose source is missing.
    play.source.put("/n/f", b"content of /n/f");
    let url = |of: &str, path: &str| format!("{of}{path}");
    let (there, here) = (url(&play.from, "/n/f"), url(&play.to, "/n/f"));
    let (gone, nowhere) = (url(&play.from, "/n/gone"), url(&play.to, "/n/gone"));
    let job = submit_of(&[(&there, &here), (&gone, &nowhere)]);
    let ask = || alice.request(&routes::JOB_SUBMIT).idempotency_key("once").json(&job);
    let first: JobView = ask().send().await.unwrap();
    let again: JobView = ask().send().await.unwrap();
    assert_eq!((first.id, first.community.as_str(), first.files), (again.id, "atlas", 2));
    let (row, _) = play.ended(first.id).await;
    assert_eq!(row.state, JobState::FinishedDirty);
    play.arrived("/n/f");
    let shown: JobDetail = alice.request(&routes::JOB_SHOW).parameter(first.id).send().await.unwrap();
    assert_eq!((shown.counts.done, shown.counts.failed, shown.bytes_done), (1, 1, 15));
    let failed = &shown.files[0];
    assert_eq!((failed.source.as_str(), failed.state, failed.attempts), (&*gone, JobFileState::Failed, 1));
    let fault = failed.fault.as_ref().unwrap();
    assert_eq!((fault.blame, fault.errno), (longhaul_model::Blame::Source, 2));
    assert_eq!(shown.files[1].mode.as_deref(), Some("stream"));
    let none: JobDetail =
        alice.request(&routes::JOB_SHOW).parameter(first.id).query("files", 0).send().await.unwrap();
    assert_eq!((none.files.len(), none.counts), (0, shown.counts));

    // Whoever is of another community, or of none, neither sees nor ends it.
    for (client, status) in [(bob, 403), (carol, 403)] {
        let refused = client.request(&routes::JOB_SHOW).parameter(first.id).send::<JobDetail>().await;
        assert_eq!(refused.unwrap_err().status, status);
        let refused = client.request(&routes::JOB_CANCEL).parameter(first.id).send::<JobView>().await;
        assert_eq!(refused.unwrap_err().status, status);
    }
    let list: Page<JobView> = bob.request(&routes::JOB_LIST).send().await.unwrap();
    assert!(list.items.is_empty());
    let borrowed = JobSubmit { community: Some("atlas".parse().unwrap()), ..job.clone() };
    assert_eq!(submitted(bob, &borrowed).await.unwrap_err().status, 403);
    let refused = submitted(carol, &job).await.unwrap_err();
    assert!(refused.remedy.contains("service.fts.people"), "{refused:?}");

    // An administrator works for anybody; a list is one list over its pages.
    play.source.close(true);
    let mut made = vec![first.id];
    for at in 0..4 {
        let target = url(&play.to, &format!("/n/more{at}"));
        let job = JobSubmit { community: Some("atlas".parse().unwrap()), ..submit_of(&[(&there, &target)]) };
        made.push(submitted(&play.world.admin(), &job).await.unwrap().id);
    }
    let (mut paged, mut after) = (Vec::new(), None::<String>);
    loop {
        let page: Page<JobView> =
            alice.request(&routes::JOB_LIST).query("limit", 2).maybe("after", after).send().await.unwrap();
        paged.extend(page.items.into_iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    made.reverse();
    assert_eq!(paged, made);
    let of_host =
        alice.request(&routes::JOB_LIST).query("source", "127.0.0.1").query("state", "FINISHEDDIRTY");
    let of_host: Page<JobView> = of_host.send().await.unwrap();
    assert_eq!(of_host.items.iter().map(|job| job.id).collect::<Vec<_>>(), [first.id]);

    // Changed and ended by one of the community, and ended once.
    let change = JobChange { priority: 5 };
    let job: JobView =
        alice.request(&routes::JOB_CHANGE).parameter(made[0]).json(&change).send().await.unwrap();
    assert_eq!(job.priority, 5);
    let job: JobView = alice.request(&routes::JOB_CANCEL).parameter(made[0]).send().await.unwrap();
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Canceled, Some(CANCELED_BY_USER)));
    let twice = alice.request(&routes::JOB_CANCEL).parameter(made[0]).send::<JobView>().await;
    assert_eq!(twice.unwrap_err().status, 409);
    play.source.close(false);
    play.ended(made[1]).await;
    play.world.stop().await;
}

impl Play {
    async fn of_fts(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.world.request(&self.world.admin_token, method, path, &body.to_string()).await
    }

    /// So many copies read from the source, and no byte comes.
    async fn reading(&self, copies: u32) {
        self.until("copies", |play| play.source.reads.load(Ordering::SeqCst) >= copies).await;
    }
}

/// What an administrator puts before all others is before them, but for what relieves lower priorities, one
/// file at the most; and what runs, has ended or is nowhere is told.
#[tokio::test(flavor = "multi_thread")]
async fn force_start_puts_a_file_before_all_others() {
    let mut play = Play::new().await;
    let one_at_a_time =
        json!({ "symbolicname": "all", "source": "*", "destination": "*", "min_active": 1, "max_active": 1 });
    assert_eq!(play.of_fts("POST", "/config/links", &one_at_a_time).await.0, 201);
    play.source.close(true);
    let files = play.plain(6);
    let id = play.submit(JobKind::Regular, "{}", files).await;
    play.reading(1).await;
    let ids: Vec<u64> = play.job(id).1.iter().map(|file| file.id).collect();
    let (status, answer) = play.of_fts("POST", "/admin/force-start", &json!([ids[5], ids[0], 99_999])).await;
    assert_eq!(status, 200);
    let refused = json!([
        { "file_id": ids[0], "error": "File is not in SUBMITTED state" },
        { "file_id": 99_999, "error": "File does not exist" },
    ]);
    assert_eq!(answer, refused);
    let (_, state) = play.of_fts("GET", &format!("/jobs/{id}/files"), &Value::Null).await;
    assert_eq!(state[5]["file_state"], "FORCE_START");
    // The scheduler has it in mind, and waits for the one that runs.
    let client = play.world.admin();
    until("a file that waits for the limit of the link", async || {
        let job: JobDetail = client.request(&routes::JOB_SHOW).parameter(id).send().await.unwrap();
        let waits = job.files.iter().find(|file| file.id == ids[5]).and_then(|file| file.waits_for.clone());
        let known = waits.as_ref().is_some_and(|waits| waits.contains("the limit of the link"));
        known.then_some(()).ok_or_else(|| format!("{waits:?}"))
    })
    .await;
    play.source.close(false);
    let (job, files) = play.ended(id).await;
    assert_eq!(job.state, JobState::Finished);
    let started = |at: usize| files[at].started.unwrap();
    let before: Vec<usize> = (1..5).filter(|at| started(*at) < started(5)).collect();
    assert!(before.len() <= 1, "{before:?} before it");
    play.world.stop().await;
}

/// Each attempt that failed is told with its reason, also when the file has arrived in the end.
#[tokio::test(flavor = "multi_thread")]
async fn retries_are_told_one_by_one() {
    let mut play = Play::new().await;
    play.source.refusals.store(2, Ordering::SeqCst);
    let files = play.plain(1);
    let id = play.submit(JobKind::Regular, r#"{"retry":3,"retry_delay":1}"#, files).await;
    let (job, files) = play.ended(id).await;
    assert_eq!((job.state, files[0].retries), (JobState::Finished, 2));
    let (status, told) =
        play.of_fts("GET", &format!("/jobs/{id}/files/{}/retries", files[0].id), &Value::Null).await;
    assert_eq!(status, 200);
    let told = told.as_array().unwrap();
    assert_eq!(told.len(), 2, "the one that went well is no retry: {told:?}");
    for (at, one) in told.iter().enumerate() {
        assert_eq!((&one["file_id"], &one["attempt"]), (&json!(files[0].id), &json!(at + 1)));
        assert!(one["reason"].as_str().unwrap().starts_with("SOURCE [16] "), "{one}");
        assert_eq!(one["datetime"].as_str().unwrap().len(), "2026-11-21T07:40:31".len(), "{one}");
        assert!(one["transfer_host"].is_string());
    }
    play.world.stop().await;
}

/// A job that ended long ago is in the archive, whole, and in no other list.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_job_is_in_the_archive() {
    let mut play = Play::new().await;
    let files = play.plain(2);
    let id = play.submit(JobKind::Regular, r#"{"job_metadata":{"issuer":"rucio"}}"#, files).await;
    play.ended(id).await;
    let path = format!("/archive/{id}");
    let missing = format!("No job with the id \"{id}\" has been found in the archive");
    let (status, answer) = play.of_fts("GET", &path, &Value::Null).await;
    assert_eq!((status, &answer["message"]), (404, &json!(missing)));
    play.world.shift_s.store(8 * 86_400, Ordering::SeqCst);
    let (status, answer) = play.of_fts("GET", &path, &Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["job_id"], &answer["job_state"]), (&json!(id.to_string()), &json!("FINISHED")));
    assert_eq!(answer["job_metadata"]["issuer"], "rucio");
    let states: Vec<&Value> =
        answer["files"].as_array().unwrap().iter().map(|file| &file["file_state"]).collect();
    assert_eq!(states, ["FINISHED"; 2]);
    let (status, field) = play.of_fts("GET", &format!("{path}/vo_name"), &Value::Null).await;
    assert_eq!((status, field), (200, json!("higgs")));
    assert_eq!(play.of_fts("GET", &format!("{path}/nothing"), &Value::Null).await.0, 404);
    // It stays queryable under its id as well.
    assert_eq!(play.of_fts("GET", &format!("/jobs/{id}"), &Value::Null).await.0, 200);
    play.world.stop().await;
}

/// Where that counts, a second job to the same target is refused while the first is on its way, and not after
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_are_refused_while_the_first_is_on_its_way() {
    let world = World::with(|config| {
        config.jobs.allow_networks = vec!["127.0.0.0/8".into()];
        config.fts.check_duplicates = true;
    })
    .await;
    let ((source, from), (target, to)) = (Storage::start().await, Storage::start().await);
    let mut play = Play { world, source, target, from, to, jobs: 0 };
    play.source.put("/u/f", b"content of /u/f");
    play.source.close(true);
    let job = json!({
        "files": [{
            "sources": [format!("{}/u/f", play.from)], "destinations": [format!("{}/u/f", play.to)],
        }],
        "params": { "overwrite": true },
    });
    let (status, first) = play.of_fts("POST", "/jobs", &job).await;
    assert_eq!(status, 200, "{first}");
    play.reading(1).await;
    let (status, answer) = play.of_fts("POST", "/jobs", &job).await;
    assert_eq!(status, 409);
    let text = answer["message"].as_str().unwrap();
    assert!(text.starts_with("The submission is duplicated") && text.contains("/u/f"), "{text}");
    play.source.close(false);
    let id = first["job_id"].as_str().unwrap().parse().unwrap();
    assert_eq!(play.ended(id).await.0.state, JobState::Finished);
    let (status, again) = play.of_fts("POST", "/jobs", &job).await;
    assert_eq!(status, 200, "{again}");
    play.ended(again["job_id"].as_str().unwrap().parse().unwrap()).await;
    play.world.stop().await;
}

/// What is set by hand for a pair bounds it for a while, is told and recorded, and ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_copies_of_a_pair_can_be_set_by_hand() {
    let mut play = Play::new().await;
    let storage = "http://127.0.0.1";
    for (body, why) in [
        (json!({ "source_se": storage }), "Missing parameter: dest_se"),
        (json!({ "source_se": storage, "dest_se": 7 }), "Missing parameter: dest_se"),
        (
            json!({ "source_se": storage, "dest_se": storage, "active": 0 }),
            "Field active is expected to be int",
        ),
        (
            json!({ "source_se": "nothing", "dest_se": storage }),
            "Field source_se is expected to be scheme://host",
        ),
    ] {
        let (status, answer) = play.of_fts("POST", "/optimizer/current", &body).await;
        assert_eq!(status, 400, "{body}");
        assert!(answer["message"].as_str().unwrap().starts_with(why), "{answer}");
    }
    let body = json!({ "source_se": storage, "dest_se": storage, "active": 1, "nostreams": 3 });
    let (status, answer) = play.of_fts("POST", "/optimizer/current", &body).await;
    assert_eq!((status, &answer["active"], &answer["nostreams"]), (200, &json!(1), &json!(3)), "{answer}");
    let (_, current) = play.of_fts("GET", "/optimizer/current", &Value::Null).await;
    assert_eq!((&current[0]["source_se"], &current[0]["active"]), (&json!(storage), &json!(1)), "{current}");
    let (_, audit) = play.of_fts("GET", "/config/audit", &Value::Null).await;
    assert!(
        audit.to_string().contains("by hand, http://127.0.0.1 to http://127.0.0.1: 1 at a time"),
        "{audit}"
    );

    play.source.close(true);
    play.held_at(4, 1, "sends this storage 1 file at a time, the limit of the link").await;
    // When its time is over, what is configured counts again.
    play.source.close(true);
    let reads = play.source.reads.load(Ordering::SeqCst);
    let files = play.plain(4);
    let id = play.submit(JobKind::Regular, "{}", files).await;
    play.reading(reads + 1).await;
    assert_eq!(play.source.reads.load(Ordering::SeqCst), reads + 1);
    play.world.shift_s.fetch_add(400, Ordering::SeqCst);
    play.reading(reads + 2).await;
    let (_, current) = play.of_fts("GET", "/optimizer/current", &Value::Null).await;
    assert!(current[0]["active"].as_u64().unwrap() >= 2, "{current}");
    assert_eq!(current[0]["nostreams"], 1, "{current}");
    play.source.close(false);
    assert_eq!(play.ended(id).await.0.state, JobState::Finished);
    play.world.stop().await;
}

impl Play {
    /// How many of the first twenty copies that began were those of atlas, where cms wants as many over the
    /// same pair, one at a time. `words`: what a file of cms says while it waits.
    async fn first_of_atlas(&mut self, words: &str) -> usize {
        self.source.close(true);
        let mut jobs = Vec::new();
        for vo in ["atlas", "cms"] {
            let files = self.plain(20);
            jobs.push(self.submit_for(vo, JobKind::Regular, "{}", files).await);
        }
        self.waits_for(jobs[1], words).await;
        self.source.close(false);
        let mut began = Vec::new();
        for (at, id) in jobs.into_iter().enumerate() {
            let (job, files) = self.ended(id).await;
            assert_eq!(job.state, JobState::Finished);
            began.extend(files.iter().map(|file| (file.started.unwrap(), at)));
        }
        began.sort();
        began[..20].iter().filter(|(_, at)| *at == 0).count()
    }
}

/// The weights of one pair of storages count there at once, after the next start too, and no more when they
/// are taken away.
#[tokio::test(flavor = "multi_thread")]
async fn the_weights_of_a_pair_deal_its_copies() {
    let mut play = Play::new().await;
    let storage = "http://127.0.0.1";
    let pair = json!({
        "symbolicname": "pair", "source": storage, "destination": storage, "min_active": 1, "max_active": 1,
    });
    assert_eq!(play.of_fts("POST", "/config/links", &pair).await.0, 201);
    let limit = "the limit of the link";
    let first = play.first_of_atlas(limit).await;
    assert!((8..=12).contains(&first), "{first} of 20 without weights");
    for (vo, share) in [("atlas", 9), ("cms", 1)] {
        let body = json!({ "source": storage, "destination": storage, "vo": vo, "share": share });
        assert_eq!(play.of_fts("POST", "/config/shares", &body).await.0, 200);
    }
    let weighs = "the share of cms is 10 % now, by the weights of that link";
    let first = play.first_of_atlas(weighs).await;
    assert!((16..=20).contains(&first), "{first} of 20 with nine tenths");
    play.world.restart().await;
    let first = play.first_of_atlas(weighs).await;
    assert!((16..=20).contains(&first), "{first} of 20 with nine tenths after a restart");
    let encoded = "http%3A%2F%2F127.0.0.1";
    for vo in ["atlas", "cms"] {
        let path = format!("/config/shares?source={encoded}&destination={encoded}&vo={vo}");
        assert_eq!(play.of_fts("DELETE", &path, &Value::Null).await.0, 204);
    }
    let first = play.first_of_atlas(limit).await;
    assert!((8..=12).contains(&first), "{first} of 20 when they are taken away");
    play.world.stop().await;
}
