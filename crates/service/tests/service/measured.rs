//! What others measured, from the wire to a decision: pushed in both forms, and read from archives in both
//! forms, with scripted agents that are given the lease.

use std::sync::{Arc, Mutex};

use crate::world::{Agent, World, manifest_line};
use longhaul_api::Problem;
use longhaul_api::client::{Client, Events};
use longhaul_api::measured::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_gateways::perfsonar::archive::{Archive, Kind, Settings};
use longhaul_model::{FaultCode, Timestamp};
use longhaul_service::ArchiveConfig;
use longhaul_testkit::http::{self, Response};
use serde_json::{Value, json};

const FAST: f64 = 8e9;
const SLOW: f64 = 4e7;

/// Two sites that hold a file, two that want it, and their measurement hosts in the table.
struct Grid {
    world: World,
    alpha: Agent,
    beta: Agent,
    gamma: Agent,
    delta: Agent,
}

impl Grid {
    async fn new(archives: Vec<ArchiveConfig>) -> Grid {
        let world = World::with(|config| config.perfsonar = archives).await;
        let mut agents = Vec::new();
        for site in ["alpha", "beta", "gamma", "delta"] {
            let agent = world.agent(site).await;
            agent.hello(&[]).await.unwrap();
            agents.push(agent);
        }
        world.dataset("set", "alpha", 1).await;
        world.register("set", Some("beta"), manifest_line("set/f00000", 1_000)).await.unwrap();
        let [alpha, beta, gamma, delta] = agents.try_into().ok().unwrap();
        Grid { world, alpha, beta, gamma, delta }
    }

    async fn map(&self, hosts: &[(&str, &str)]) -> HostsChanged {
        let hosts = hosts.iter().map(|(host, site)| HostOfSite {
            host: (*host).to_owned(),
            site: site.parse().unwrap(),
            role: None,
            family: None,
        });
        let change = HostsChange { mapping: None, hosts: hosts.collect() };
        self.world.admin().request(&routes::HOST_SET).json(&change).send().await.unwrap()
    }

    async fn map_all(&self) {
        let hosts = ["alpha", "beta", "gamma", "delta"].map(|site| (format!("ps.{site}.test"), site));
        let hosts: Vec<(&str, &str)> = hosts.iter().map(|(host, site)| (host.as_str(), *site)).collect();
        assert_eq!(self.map(&hosts).await.set, 4);
    }

    async fn observer(&self) -> Client {
        let create = TokenCreate { name: "mesh".into(), role: "observer".into(), ..TokenCreate::default() };
        let made: TokenCreated =
            self.world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
        self.world.person(Some(&made.token))
    }

    /// From where `target` is told to fetch the file, and how that is explained.
    async fn chosen(&mut self, target: &str) -> (&'static str, String) {
        self.world.subscribe("set", target).await;
        let agent = if target == "gamma" { &mut self.gamma } else { &mut self.delta };
        let (batch, lease) = agent.leases(1).await.remove(0);
        let detail: TransferDetail = self
            .world
            .admin()
            .request(&routes::TRANSFER_SHOW)
            .parameter(lease.transfer)
            .send()
            .await
            .unwrap();
        let source = if batch.source.agent == self.alpha.id { "alpha" } else { "beta" };
        assert!(source == "alpha" || batch.source.agent == self.beta.id);
        (source, detail.attempts[0].choice.reason.clone())
    }
}

fn now() -> Timestamp {
    (crate::world::clock(&Arc::default()))()
}

fn ago(seconds: u64) -> Timestamp {
    now() - std::time::Duration::from_secs(seconds)
}

fn host(site: &str) -> String {
    format!("ps.{site}.test")
}

/// As pScheduler's archiver sends it.
fn run(source: &str, target: &str, bits_per_s: f64) -> Value {
    json!({"test": {"type": "throughput",
            "spec": {"source": host(source), "dest": host(target), "duration": "PT25S"}},
        "tool": {"name": "iperf3", "version": "1"}, "participants": [host(source), host(target)],
        "schedule": {"start": ago(60).to_string(), "duration": "PT25S"},
        "result": {"succeeded": true,
            "summary": {"summary": {"throughput-bits": bits_per_s, "retransmits": 3}}},
        "run": {"href": format!("https://{}/pscheduler/tasks/1/runs/{source}-{target}", host(source))}})
}

/// As version 5 keeps it.
fn document(source: &str, target: &str, bits_per_s: f64) -> Value {
    json!({"@timestamp": now().to_string(),
        "meta": {"source": {"ip": "192.0.2.1", "hostname": host(source)},
            "destination": {"ip": "192.0.2.2", "hostname": host(target)}, "ip_version": 4},
        "test": {"type": "throughput", "spec": {}},
        "pscheduler": {"start_time": ago(60).to_string(), "duration": 25, "tool": "iperf3",
            "run_id": format!("{source}>{target}")},
        "result": {"succeeded": true, "throughput": bits_per_s}})
}

async fn push(
    client: &Client,
    route: &'static routes::Route,
    body: &Value,
) -> Result<MeasurementsTaken, Problem> {
    client.request(route).json(body).send().await
}

/// A payload changes a decision, and the explanation has its numbers: raw results for one target, documents
/// for the other, so that neither the order of names nor luck can be what decides.
#[tokio::test(flavor = "multi_thread")]
async fn pushed_results_of_both_forms_change_the_source() {
    let mut grid = Grid::new(Vec::new()).await;
    grid.map_all().await;
    let observer = grid.observer().await;
    for (source, rate) in [("alpha", FAST), ("beta", SLOW)] {
        let taken = push(&observer, &routes::MEASUREMENT_PUT, &run(source, "gamma", rate)).await.unwrap();
        assert_eq!((taken.taken, taken.unmapped, taken.refused), (1, 0, 0), "{taken:?}");
    }
    let both = json!([document("alpha", "delta", SLOW), document("beta", "delta", FAST)]);
    assert_eq!(push(&observer, &routes::MEASUREMENT_SEND, &both).await.unwrap().taken, 2);
    // Archiving is retried: the same counts once.
    assert_eq!(push(&observer, &routes::MEASUREMENT_SEND, &both).await.unwrap().repeated, 2);

    // A delay test that goes on for a day gives a sample each minute.
    let mut sample = run("alpha", "gamma", 0.0);
    sample["test"]["type"] = json!("latencybg");
    sample["schedule"]["duration"] = json!("P1D");
    sample["result"] = json!({"histogram-latency": {"34.4": 600}, "packets-sent": 600, "packets-lost": 0});
    let taken = push(&observer, &routes::MEASUREMENT_PUT, &sample).await.unwrap();
    assert_eq!((taken.taken, taken.unused, taken.refused), (1, 1, 0), "{taken:?}");

    let (source, reason) = grid.chosen("gamma").await;
    assert_eq!(source, "alpha", "{reason}");
    assert!(reason.starts_with("alpha, because it finishes first") && reason.contains("beta"), "{reason}");
    let (source, reason) = grid.chosen("delta").await;
    assert_eq!(source, "beta", "{reason}");
    grid.world.assert_sound().await;
}

/// A test as it was run so long ago.
fn run_ago(source: &str, target: &str, bits_per_s: f64, seconds: u64) -> Value {
    let mut result = run(source, target, bits_per_s);
    result["schedule"]["start"] = json!(ago(seconds).to_string());
    result["run"]["href"] = json!(format!("https://{}/pscheduler/tasks/1/runs/{seconds}", host(source)));
    result
}

async fn degraded(world: &World) -> Option<ProblemView> {
    let problems = world.problems().await;
    problems.into_iter().find(|problem| problem.fault.code == FaultCode::Degraded)
}

async fn network_event(events: &mut Events) {
    while events.next::<ChangeEvent>().await.unwrap().expect("the stream ended").kind != ChangeKind::Network {
    }
}

/// A path that becomes slower is told at once, stands with its numbers, and ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_for_the_worse_stands_until_it_is_over() {
    let grid = Grid::new(Vec::new()).await;
    grid.map_all().await;
    let (observer, world) = (grid.observer().await, &grid.world);
    let mut events = world.admin().request(&routes::EVENTS).send_events().await.unwrap();
    let results =
        |rate: f64, from: u64| (0..4).map(move |at| run_ago("alpha", "gamma", rate, from - 300 * at));
    for result in results(8e9, 9_000).chain(results(1e9, 6_000)) {
        assert_eq!(push(&observer, &routes::MEASUREMENT_PUT, &result).await.unwrap().taken, 1);
    }
    network_event(&mut events).await;
    let problem = degraded(world).await.expect("it stands");
    let detail = &problem.fault.detail;
    assert!(detail.starts_with("rate from alpha to gamma fell 7."), "{detail}");
    assert!(detail.contains(" MB/s to 125 MB/s"), "{detail}");
    assert!(problem.open && problem.remedy.contains("longhaul network show alpha gamma"), "{problem:?}");
    let metrics = world.service().operations().metrics();
    for line in [
        "longhaul_network_changes_total{kind=\"rate\",direction=\"worse\"} 1\n",
        "longhaul_network_worse_factor{source=\"alpha\",target=\"gamma\",kind=\"rate\"} 7.",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }

    for result in results(8e9, 3_000) {
        assert_eq!(push(&observer, &routes::MEASUREMENT_PUT, &result).await.unwrap().taken, 1);
    }
    network_event(&mut events).await;
    assert!(degraded(world).await.is_none(), "it ended by itself");
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_may_send_and_nothing_else() {
    let grid = Grid::new(Vec::new()).await;
    let observer = grid.observer().await;
    let status: Result<Status, Problem> = observer.request(&routes::STATUS).send().await;
    assert_eq!(status.unwrap_err().code, FaultCode::NotAllowed);
    // Pages are for those who may see.
    let made: TokenCreated = {
        let create = TokenCreate { name: "mesh2".into(), role: "observer".into(), ..TokenCreate::default() };
        grid.world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap()
    };
    let login = LoginRequest { token: made.token };
    let session: Result<LoginReply, Problem> =
        grid.world.person(None).request(&routes::SESSION_LOGIN).json(&login).send().await;
    assert_eq!(session.unwrap_err().code, FaultCode::NotAllowed);
    let change = HostsChange { mapping: None, hosts: Vec::new() };
    let change: Result<HostsChanged, Problem> =
        observer.request(&routes::HOST_SET).json(&change).send().await;
    assert_eq!(change.unwrap_err().code, FaultCode::NotAllowed);
    // Nonsense is answered with what is wrong with it, and too much is not even read.
    let refused = push(&observer, &routes::MEASUREMENT_PUT, &json!({"test": {"type": "throughput"}}))
        .await
        .unwrap_err();
    assert!(refused.detail.contains("between which hosts"), "{refused}");
    let huge = json!({"test": {"type": "throughput"}, "filler": "x".repeat(2 << 20)});
    let refused = push(&observer, &routes::MEASUREMENT_PUT, &huge).await.unwrap_err();
    // The client may notice the closed connection first.
    assert!(matches!(refused.code, FaultCode::TooLarge | FaultCode::ConnectionLost), "{refused}");
    let future = {
        let mut body = run("alpha", "gamma", FAST);
        body["schedule"]["start"] = json!((now() + std::time::Duration::from_secs(7_200)).to_string());
        body
    };
    grid.map_all().await;
    let taken = push(&observer, &routes::MEASUREMENT_PUT, &future).await.unwrap();
    assert_eq!(taken.refused, 1);
    assert!(taken.why.unwrap().contains("future"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_without_a_site_are_reported_until_they_have_one() {
    let grid = Grid::new(Vec::new()).await;
    grid.map(&[("ps.gamma.test", "gamma")]).await;
    let observer = grid.observer().await;
    let body = run("alpha", "gamma", FAST);
    assert_eq!(push(&observer, &routes::MEASUREMENT_PUT, &body).await.unwrap().unmapped, 1);
    let admin = grid.world.admin();
    let report: Page<UnmappedHost> = admin.request(&routes::UNMAPPED_LIST).send().await.unwrap();
    let [host] = &report.items[..] else { panic!("{report:?}") };
    assert_eq!(
        (host.host.as_str(), host.measurements, host.reported_by.as_str()),
        ("ps.alpha.test", 1, "mesh")
    );
    // A storage of the site in the same domain is a hint: used, and still in the report.
    let storage = HostOfSite {
        host: "se.alpha.test".into(),
        site: "alpha".parse().unwrap(),
        role: Some("storage".into()),
        family: None,
    };
    let change = HostsChange { mapping: Some("imported".into()), hosts: vec![storage] };
    let _: HostsChanged = admin.request(&routes::HOST_SET).json(&change).send().await.unwrap();
    assert_eq!(push(&observer, &routes::MEASUREMENT_PUT, &body).await.unwrap().taken, 1);
    let report: Page<UnmappedHost> = admin.request(&routes::UNMAPPED_LIST).send().await.unwrap();
    assert_eq!(report.items[0].inferred.as_ref().unwrap().as_str(), "alpha");
    assert!(report.items[0].because.as_ref().unwrap().contains("alpha.test"));
    // Said explicitly, it leaves the report; taken away again, it is gone from the table.
    grid.map(&[("ps.alpha.test", "alpha")]).await;
    let report: Page<UnmappedHost> = admin.request(&routes::UNMAPPED_LIST).send().await.unwrap();
    assert!(report.items.is_empty(), "{report:?}");
    let () = admin.request(&routes::HOST_REMOVE).parameter("ps.alpha.test").send().await.unwrap();
    let table: Page<HostView> = admin.request(&routes::HOST_LIST).send().await.unwrap();
    let hosts: Vec<&str> = table.items.iter().map(|row| row.host.as_str()).collect();
    assert_eq!(hosts, ["ps.gamma.test", "se.alpha.test"]);
}

/// A server of archives: target and body of each question, and whatever it answers to them.
fn serve(
    answers: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let (listener, port) = http::listen();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    http::serve(listener, None, move |request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        log.lock().unwrap().push(format!("{} {body}", request.target));
        let (status, answer) = answers(&request.target, &body);
        Response::json(status, &answer)
    });
    (format!("http://127.0.0.1:{port}"), asked)
}

/// 1,002 tests on two pages, of which the last two have something new.
fn esmond(target: &str) -> (u16, Value) {
    let fresh = ago(100).as_micros() / 1_000_000;
    let test = |number: usize, source: &str| {
        let base = format!("/esmond/perfsonar/archive/{number}/throughput/base");
        json!({"metadata-key": number.to_string(), "source": "192.0.2.1", "destination": "192.0.2.2",
            "input-source": host(source), "input-destination": host("gamma"),
            "tool-name": "pscheduler/iperf3", "time-duration": "25",
            "event-types": [{"event-type": "throughput", "base-uri": base, "summaries": [],
                "time-updated": if number < 1_000 { 1_000_000 } else { fresh }}]})
    };
    if let Some(number) =
        target.strip_prefix("/esmond/perfsonar/archive/").and_then(|rest| rest.split('/').next())
        && let Ok(number) = number.parse::<usize>()
    {
        let rate = if number == 1_000 { FAST } else { SLOW };
        return (200, json!([{"ts": fresh, "val": rate}]));
    }
    let tests: Vec<Value> = match target.contains("offset=1000") {
        false => (0..1_000).map(|number| test(number, "alpha")).collect(),
        true => vec![test(1_000, "alpha"), test(1_001, "beta")],
    };
    (200, tests.into())
}

/// 1,000 old results on the first page, two on the second; no index of other tests.
fn opensearch(target: &str, question: &Value) -> (u16, Value) {
    if !target.contains("pscheduler_throughput") {
        return (404, json!({"error": {"reason": "no such index"}}));
    }
    let hits: Vec<Value> = if question["search_after"] == json!(["t", "999"]) {
        let found = [document("alpha", "delta", SLOW), document("beta", "delta", FAST)];
        found.into_iter().map(|source| json!({"_source": source, "sort": ["t", "1001"]})).collect()
    } else {
        let dns = json!({"test": {"type": "dns"}});
        (0..1_000).map(|number: u32| json!({"_source": dns, "sort": ["t", number.to_string()]})).collect()
    };
    (200, json!({"hits": {"hits": hits}}))
}

fn archive(url: String, kind: &str) -> ArchiveConfig {
    ArchiveConfig { url, kind: kind.into(), verify: true, authorities: None, every_s: 3_600 }
}

async fn archives(world: &World) -> Vec<ArchiveView> {
    let page: Page<ArchiveView> = world.admin().request(&routes::ARCHIVE_LIST).send().await.unwrap();
    page.items
}

/// Archives of both forms are read page by page, and what they hold changes decisions.
#[tokio::test(flavor = "multi_thread")]
async fn archives_of_both_forms_are_read_and_change_the_source() {
    let (old, asked_old) = serve(|target, _| esmond(target));
    let (new, asked_new) = serve(opensearch);
    let mut grid = Grid::new(Vec::new()).await;
    grid.map_all().await;
    // The archives come into the configuration once the table is there.
    grid.world.config.perfsonar = vec![
        archive(format!("{old}/esmond/perfsonar/archive/"), "esmond"),
        archive(format!("{new}/opensearch"), "opensearch"),
    ];
    grid.world.restart().await;
    let views = loop {
        let views = archives(&grid.world).await;
        if views.iter().all(|view| view.last_read.is_some() || view.fault.is_some()) {
            break views;
        }
    };
    assert!(views.iter().all(|view| view.fault.is_none()), "{views:?}");
    assert_eq!(
        (views[0].found.taken, views[1].found.taken, views[1].found.unused),
        (2, 2, 1_000),
        "{views:?}"
    );
    let asked = asked_old.lock().unwrap().clone();
    assert_eq!(asked.len(), 4, "two pages, two series: {asked:?}");
    assert_eq!(asked_new.lock().unwrap().iter().filter(|line| line.contains("search_after")).count(), 1);

    for agent in [&grid.alpha, &grid.beta, &grid.gamma, &grid.delta] {
        agent.hello(&[]).await.unwrap();
    }
    let (source, reason) = grid.chosen("gamma").await;
    assert_eq!(source, "alpha", "{reason}");
    let (source, reason) = grid.chosen("delta").await;
    assert_eq!(source, "beta", "{reason}");
}

/// A mesh tells who should be heard of; an archive that cannot be read says why, and the others go on.
#[tokio::test(flavor = "multi_thread")]
async fn meshes_are_watched_and_trouble_is_shown() {
    let mesh = json!({"addresses": {"a": {"address": "ps.alpha.test"}, "b": {"address": "ps.beta.test"}},
        "groups": {"g": {"type": "mesh", "addresses": [{"name": "a"}, {"name": "b"}]}},
        "tests": {"t": {"type": "latencybg", "spec": {}}}, "tasks": {"t": {"group": "g", "test": "t"}}});
    let (url, _) = serve(move |target, _| match target {
        "/mesh.json" => (200, mesh.clone()),
        _ => (500, json!("down")),
    });
    let world = World::with(|config| {
        config.perfsonar =
            vec![archive(format!("{url}/mesh.json"), "mesh"), archive(format!("{url}/x"), "esmond")];
    })
    .await;
    let views = loop {
        let views = archives(&world).await;
        if views[0].last_read.is_some() && views[1].fault.is_some() {
            break views;
        }
    };
    assert_eq!((views[0].pairs, views[0].silent), (2, 0));
    assert!(views[1].fault.as_ref().unwrap().detail.contains("500"), "{:?}", views[1].fault);
    // Nothing comes for more than three of its minutes.
    world.shift_s.store(200, std::sync::atomic::Ordering::Relaxed);
    let views = archives(&world).await;
    assert_eq!((views[0].silent, views[0].silences[0].test.as_str()), (2, "latency"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_checked_unless_that_is_turned_off() {
    let world = World::new().await;
    let settings = |verify| Settings {
        url: format!("https://localhost:{}/esmond/perfsonar/archive", world.address().port()),
        kind: Kind::Esmond,
        verify,
        authorities: None,
    };
    let refused = Archive::open(&settings(true)).unwrap().check(now()).await.unwrap_err();
    assert_eq!(refused.code, FaultCode::NotAuthenticated);
    assert!(refused.detail.contains("verify = false"), "{refused}");
    let answered = Archive::open(&settings(false)).unwrap().check(now()).await.unwrap_err();
    assert_eq!(answered.code, FaultCode::NotFound, "{answered}");
    // Nobody there, and somebody who redirects.
    let nobody = Settings { url: "http://127.0.0.1:1/".into(), ..settings(true) };
    let gone = Archive::open(&nobody).unwrap().check(now()).await.unwrap_err();
    assert_eq!(gone.code, FaultCode::Unreachable, "{gone}");
}
