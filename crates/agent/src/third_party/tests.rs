//! Movers with servers, which the test plays, around engines that do nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_engine::{Clock, Export, FetchBatch, FetchFile, Responder};
use longhaul_model::mark::Dscp;
use longhaul_model::{
    AgentId, AttemptId, CircuitUse, DigestSet, Fault, FaultCode, Mark, StorageKind, StorageName, Timestamp,
    TrafficClass,
};
use longhaul_security::{Authority, Permit, PermitVerifier, list_digest};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::file_access::FileAccessServer;
use super::file_calls::{AgentAnswer, AgentCall, FileAccessRequest, FileAnswer, Refusal};
use super::mover::{ServerMover, ServerMoverInner, file_suits_servers, server_storages, suits_servers};
use crate::ServerConfig;
use crate::attempt_temps::AttemptTemps;
use crate::config::StorageConfig;
use crate::inner_mover::InnerMover;
use crate::mover::{Mover, PeerChannel};
use crate::tests::fake_engine::{FakeEngine, fetch_batch, fetch_file};

const NOW: Timestamp = Timestamp(1_780_000_000_000_000);
const EXPIRY: Timestamp = Timestamp(NOW.0 + 1);

fn file(attempt: u64) -> FetchFile {
    fetch_file(attempt, 7)
}

fn batch() -> FetchBatch {
    FetchBatch {
        start_by: EXPIRY,
        withheld: BTreeSet::from([AttemptId(4)]),
        ..fetch_batch("one", "two", (1..=4).map(file).collect())
    }
}

#[test]
fn what_only_the_engine_can_do_is_not_asked_of_servers() {
    assert!(suits_servers(&batch()));
    let dscp = Some(Dscp::new(8).unwrap());
    for other in [
        FetchBatch { class: TrafficClass::Scavenger, ..batch() },
        FetchBatch { circuits: CircuitUse::Only, ..batch() },
        FetchBatch { mark: Mark { dscp, ..Mark::default() }, ..batch() },
    ] {
        assert!(!suits_servers(&other), "{other:?}");
    }
    assert!(file_suits_servers(&file(1)));
    for other in [
        FetchFile { digests: DigestSet::default(), ..file(1) },
        FetchFile { size: 0, ..file(1) },
        FetchFile { replaces_damaged: true, ..file(1) },
    ] {
        assert!(!file_suits_servers(&other), "{other:?}");
    }
}

/// A mover of this agent, whose storages are collections of one server, around this engine.
fn mover_of(agent: u64, names: &[&str], server: &TcpListener, engine: FakeEngine) -> ServerMover {
    ServerMover(Arc::new(inner_of(agent, names, server, engine)))
}

fn inner_of(agent: u64, names: &[&str], server: &TcpListener, engine: FakeEngine) -> ServerMoverInner {
    let (mut configs, mut servers, mut exports) = (Vec::new(), BTreeMap::new(), Vec::new());
    for name in names {
        let url = format!("http://{}/{name}", server.local_addr().unwrap());
        let allow_networks = vec!["127.0.0.0/8".to_owned()];
        let settings = ServerConfig { url, allow_networks, ..ServerConfig::default() };
        let name: StorageName = name.parse().unwrap();
        let config = StorageConfig {
            kind: StorageKind::Webdav,
            server: Some(settings),
            parallel: 2,
            ..StorageConfig::new(name.clone(), "")
        };
        let server = Arc::new(config.open_remote().unwrap());
        exports.push(Export { storage: server.clone(), rules: config.name_rules() });
        servers.insert(name, server);
        configs.push(config);
    }
    let clock: Clock = Arc::new(|| NOW);
    let storages = server_storages(&configs, &servers, &exports);
    let own = (AgentId(agent), AttemptTemps::of_servers(AgentId(agent), 7));
    let nobody = InnerMover::new(Arc::new(|_| {})).unwrap();
    let inner = ServerMoverInner::new(storages, own, clock, nobody);
    inner.engine.set(Box::new(engine));
    inner
}

/// Two storages of one server and one agent.
async fn mover() -> (ServerMover, FakeEngine, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let engine = FakeEngine::silent();
    (mover_of(1, &["one", "two"], &listener, engine.clone()), engine, listener)
}

fn wanted_attempts(batches: &[FetchBatch]) -> Vec<AttemptId> {
    let mut given: Vec<AttemptId> =
        batches.iter().flat_map(FetchBatch::wanted).map(|file| file.attempt).collect();
    given.sort();
    given
}

#[tokio::test]
async fn files_that_servers_do_not_copy_go_to_the_engine_once() {
    let (mover, engine, listener) = mover().await;
    // Nobody listens any more.
    drop(listener);
    mover.fetch(batch());
    let calls = engine.wait_until(|calls| calls.fetched.len() == 3).await;
    assert_eq!(wanted_attempts(&calls.fetched), [1, 2, 3].map(AttemptId));
    // They have begun, and the permit is for the whole list.
    assert!(calls.fetched.iter().all(|batch| batch.start_by == Timestamp::MAX));
    assert!(calls.fetched.iter().all(|batch| batch.files.len() == 4));
}

#[tokio::test]
async fn what_a_limit_is_for_goes_to_the_engine() {
    let (mover, engine, _listener) = mover().await;
    mover.set_limits(None, Some(1_000_000));
    mover.fetch(batch());
    let calls = engine.calls();
    assert_eq!((calls.fetched.len(), calls.limits), (1, Some((None, Some(1_000_000)))));
    assert_eq!(calls.fetched[0].withheld, batch().withheld);
}

/// None at the connection's end.
async fn read_request(connection: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(connection.read_u8().await.ok()?);
    }
    Some(String::from_utf8(request).unwrap())
}

async fn until_closed(mut connection: TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = connection.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn a_cancelled_copy_ends_and_goes_nowhere_else() {
    // It takes requests and answers none.
    let (mover, engine, listener) = mover().await;
    mover.fetch(batch());
    let (mut one, mut two) = (listener.accept().await.unwrap().0, listener.accept().await.unwrap().0);
    for connection in [&mut one, &mut two] {
        let request = read_request(connection).await.unwrap();
        assert!(request.starts_with("PROPFIND /two/f"), "{request}");
    }
    let snapshot = mover.snapshot();
    assert_eq!((snapshot.running.len(), snapshot.waiting), (2, 1));
    mover.cancel(&[1, 2, 3].map(AttemptId));
    until_closed(one).await;
    until_closed(two).await;
    let calls = engine.calls();
    assert_eq!((calls.cancelled.len(), calls.fetched.len()), (3, 0));
    Box::new(mover).stop();
    assert!(engine.calls().stopped);
}

/// Requests of a played server, in their order.
type Requests = Arc<watch::Sender<Vec<String>>>;

/// A server with each file of 7 bytes below `/one`, and none below `/two`, which copies nothing.
fn serve(listener: TcpListener) -> Requests {
    let requests = Requests::default();
    let seen = requests.clone();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer_requests(connection, seen.clone()));
        }
    });
    requests
}

async fn answer_requests(mut connection: TcpStream, seen: Requests) {
    while let Some(request) = read_request(&mut connection).await {
        let length = request.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
        });
        let mut body = vec![0; length.unwrap_or(0)];
        connection.read_exact(&mut body).await.unwrap();
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, body) = match request.split(' ').next().unwrap_or_default() {
            "PROPFIND" if path.starts_with("/one/") => ("207 Multi-Status", found(path)),
            "MKCOL" => ("201 Created", String::new()),
            "COPY" => ("501 Not Implemented", String::new()),
            _ => ("404 Not Found", String::new()),
        };
        seen.send_modify(|seen| seen.push(request));
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        if connection.write_all((head + &body).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// What PROPFIND tells of a file (RFC 4918, section 9.1).
fn found(path: &str) -> String {
    format!(
        "<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{path}</D:href><D:propstat><D:prop>\
         <D:resourcetype/><D:getcontentlength>7</D:getcontentlength></D:prop>\
         <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>"
    )
}

/// Agent 1 with the storage `one`, whose server the test plays, and what signs permits for its files.
struct SourceAgent {
    _directory: TempDir,
    authority: Authority,
    mover: ServerMover,
    access: Arc<FileAccessServer>,
}

impl SourceAgent {
    fn new(server: &TcpListener) -> SourceAgent {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "tests", NOW).unwrap();
        let mover = mover_of(1, &["one"], server, FakeEngine::silent());
        let access = Arc::new(FileAccessServer {
            mover: Arc::downgrade(&mover.0),
            permits: PermitVerifier::new(&authority.permit_key_pem()).unwrap(),
            deployment: "tests".to_owned(),
        });
        SourceAgent { _directory: directory, authority, mover, access }
    }

    /// For agent 2 and the files of this storage.
    fn permit(&self, storage: &str, files: &[FetchFile]) -> Permit {
        Permit {
            deployment: "tests".to_owned(),
            target_agent: AgentId(2),
            source_agent: AgentId(1),
            source_storage: storage.parse().unwrap(),
            list_digest: list_digest(files.iter().map(|file| (file.attempt, &file.lfn, file.size))),
            expires: EXPIRY,
        }
    }

    fn request(&self, permit: &Permit, files: &[FetchFile], wanted: &[u32]) -> FileAccessRequest {
        FileAccessRequest {
            storage: permit.source_storage.clone(),
            permit: self.authority.sign_permit(permit).to_string(),
            files: files.iter().map(|file| (file.attempt, file.lfn.clone(), file.size)).collect(),
            wanted: wanted.to_vec(),
        }
    }

    async fn answer_of(&self, peer: u64, request: FileAccessRequest) -> AgentAnswer {
        let (access, call) = (self.access.clone(), serde_json::to_vec(&AgentCall::FileAccess(request)));
        let answer = tokio::task::spawn_blocking(move || access.answer(AgentId(peer), call.unwrap()));
        serde_json::from_slice(&answer.await.unwrap()).unwrap()
    }
}

fn refused(answer: AgentAnswer) -> Refusal {
    match answer {
        AgentAnswer::Refused(refusal) => refusal,
        AgentAnswer::Files(_) => panic!("access was given"),
    }
}

#[tokio::test]
async fn access_is_given_to_the_files_of_a_permit_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let source = SourceAgent::new(&listener);
    let requests = serve(listener);
    let files = [1, 2].map(file);
    let permit = source.permit("one", &files);
    let request = |permit: &Permit, wanted: &[u32]| source.request(permit, &files, wanted);

    // Nothing is asked of the server for who may not read there.
    let other_list = source.request(&permit, &[1, 3].map(file), &[1]);
    let expired = Permit { expires: NOW, ..permit.clone() };
    let of_other = Permit { source_agent: AgentId(3), ..permit.clone() };
    for (peer, request, why) in [
        (3, request(&permit, &[0]), "it is for the agent"),
        (2, request(&expired, &[0]), "expired"),
        (2, request(&of_other, &[0]), "it is for files of the agent"),
        (2, FileAccessRequest { storage: "two".parse().unwrap(), ..request(&permit, &[0]) }, "storage one"),
        (2, FileAccessRequest { permit: "lhp1.".to_owned(), ..request(&permit, &[0]) }, "form"),
        (2, other_list, "another list"),
        (2, request(&permit, &[2]), "beyond the end"),
        (2, request(&permit, &[0; 9]), "8 at most"),
        (2, source.request(&source.permit("disk", &files), &files, &[0]), "not a storage whose server"),
    ] {
        let refusal = refused(source.answer_of(peer, request).await);
        assert!(refusal.detail.contains(why), "{refusal:?}, not {why}");
    }
    assert_eq!(*requests.borrow(), [""; 0]);

    // The server is open to all, so that its URL is enough.
    let AgentAnswer::Files(given) = source.answer_of(2, request(&permit, &[1])).await else {
        panic!("refused")
    };
    let [FileAnswer::Access { url, token: None }] = &given[..] else { panic!("no access") };
    assert_eq!(*url, format!("http://{server}/one/f2"));

    // The file has another size than in the catalog.
    let longer = [fetch_file(1, 8)];
    let answer = source.answer_of(2, source.request(&source.permit("one", &longer), &longer, &[0])).await;
    let AgentAnswer::Files(given) = answer else { panic!("refused") };
    let [FileAnswer::Refused(refusal)] = &given[..] else { panic!("access was given") };
    assert!(!refusal.is_of_servers && refusal.detail.contains("7 bytes, 8 are registered"), "{refusal:?}");

    // Servers keep no rate of ours.
    source.mover.set_limits(None, Some(1_000_000));
    assert!(
        refused(source.answer_of(2, request(&permit, &[1])).await).detail.contains("a rate is to be kept")
    );
    assert!(source.access.answer(AgentId(2), b"{\"other\":1}".to_vec()).starts_with(b"{\"refused\""));
}

/// A stream to an agent that answers so.
struct Answers<F>(F);

impl<F: Fn(&[u8]) -> Result<Vec<u8>, Fault> + Send + Sync> PeerChannel for Answers<F> {
    fn peer(&self) -> AgentId {
        AgentId(1)
    }
    fn is_up(&self) -> bool {
        true
    }
    fn call(&self, request: &[u8]) -> Result<Vec<u8>, Fault> {
        self.0(request)
    }
}

/// Agent 2 with the storage `two`, that reaches agent 1 by such streams; and how many were opened.
fn target_agent<F>(server: &TcpListener, answer: F) -> (ServerMover, FakeEngine, Arc<Mutex<u32>>)
where
    F: Fn(&[u8]) -> Result<Vec<u8>, Fault> + Clone + Send + Sync + 'static,
{
    let opened = Arc::new(Mutex::new(0));
    let count = opened.clone();
    let open = move |_: &[String]| {
        *count.lock() += 1;
        Box::new(Answers(answer.clone())) as Box<dyn PeerChannel>
    };
    let mut engine = FakeEngine::silent();
    engine.channels = Some(Arc::new(open));
    (mover_of(2, &["two"], server, engine.clone()), engine, opened)
}

fn batch_of_peer(permit: &str, files: Vec<FetchFile>) -> FetchBatch {
    let addresses = vec!["one.example:7470".to_owned()];
    FetchBatch { addresses, permit: permit.into(), ..fetch_batch("one", "two", files) }
}

#[tokio::test]
async fn a_file_of_another_agent_is_pulled_by_the_targets_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let source = SourceAgent::new(&listener);
    let access = source.access.clone();
    let answer = move |request: &[u8]| Ok(access.answer(AgentId(2), request.to_vec()));
    let (target, engine, opened) = target_agent(&listener, answer);
    let requests = serve(listener);
    let files: Vec<FetchFile> = (1..=20).map(file).collect();
    let permit = source.authority.sign_permit(&source.permit("one", &files));
    target.fetch(batch_of_peer(&permit, files.clone()));

    // The server is asked to pull, by the name of the file at its source; it does not.
    let mut seen = requests.subscribe();
    let is_copy = |request: &&String| request.starts_with("COPY /two/.longhaul-work/");
    let seen = seen.wait_for(|seen| seen.iter().any(|request| is_copy(&request))).await.unwrap().clone();
    let copy = seen.iter().find(is_copy).unwrap().to_ascii_lowercase();
    assert!(copy.contains(&format!("source: http://{server}/one/f")), "{copy}");
    // After three refusals the rest goes to the engine at once, and nothing is lost or doubled.
    let calls = engine.wait_until(|calls| wanted_attempts(&calls.fetched).len() == 20).await;
    assert_eq!(wanted_attempts(&calls.fetched), (1..=20).map(AttemptId).collect::<Vec<_>>());
    assert!(calls.fetched.len() < 20, "{}", calls.fetched.len());
    assert_eq!(*opened.lock(), 1);
}

/// What an agent says of its files is no way into the target's network, and no way around the engine.
#[tokio::test]
async fn no_answer_of_a_source_leads_a_server_astray() {
    let access = |url: &str, token: Option<&str>| {
        let access = FileAnswer::Access { url: url.to_owned(), token: token.map(str::to_owned) };
        serde_json::to_vec(&AgentAnswer::Files(vec![access])).unwrap()
    };
    let refusal = AgentAnswer::Refused(Refusal::of_storage("no macaroons"));
    for answer in [
        access("http://169.254.169.254/latest/meta-data", None),
        access("http://192.168.0.1/admin", None),
        access("file:///etc/passwd", None),
        // A token that would be told in clear.
        access("http://127.0.0.1/one/f1", Some("MDAx")),
        serde_json::to_vec(&AgentAnswer::Files(Vec::new())).unwrap(),
        serde_json::to_vec(&refusal).unwrap(),
        b"{\"files\":".to_vec(),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let told = answer.clone();
        let (target, engine, _) = target_agent(&listener, move |_: &[u8]| Ok(told.clone()));
        let requests = serve(listener);
        target.fetch(batch_of_peer("", vec![file(1)]));
        let calls = engine.wait_until(|calls| !calls.fetched.is_empty()).await;
        assert_eq!(wanted_attempts(&calls.fetched), [AttemptId(1)]);
        let is_copy = |request: &String| request.starts_with("COPY");
        assert!(!requests.borrow().iter().any(is_copy), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn files_of_an_agent_that_does_not_answer_go_to_the_engine() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let mut engine = FakeEngine::silent();
    engine.channels = Some(Arc::new(move |_: &[String]| {
        let held = held.clone();
        Box::new(Answers(move |_: &[u8]| {
            let _ = held.lock().recv();
            Err(Fault::new(FaultCode::ConnectionLost, "it is gone"))
        })) as Box<dyn PeerChannel>
    }));
    let mut inner = inner_of(2, &["two"], &listener, engine.clone());
    inner.access_timeout = Duration::from_millis(1);
    let target = ServerMover(Arc::new(inner));
    target.fetch(batch_of_peer("", vec![file(1), file(2)]));
    let calls = engine.wait_until(|calls| wanted_attempts(&calls.fetched).len() == 2).await;
    assert_eq!(wanted_attempts(&calls.fetched), [1, 2].map(AttemptId));
    drop(release);
}
