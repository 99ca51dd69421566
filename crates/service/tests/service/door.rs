//! The door of the service: who gets in, what is refused and how it is said, and that nothing that is thrown
//! at a port does any harm.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::world::{Agent, World, clock, manifest_line, until};
use longhaul_api::agent::{JoinReply, JoinRequest};
use longhaul_api::client::Client;
use longhaul_api::native::*;
use longhaul_api::routes::{self, Access, Method, Route};
use longhaul_api::{AGENT_PROTOCOL, Problem, VersionRange};
use longhaul_model::FaultCode;
use longhaul_security::{
    Credentials, agent_client_tls, join_client_tls, new_signing_request, people_client_tls,
};
use longhaul_service::{Service, init};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const JSON: &str = "Content-Type: application/json\r\n";
/// Longer than any stream takes to end on a busy machine.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Every route of the table, as each kind of caller: nobody gets further than the table says.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_demands_what_the_table_says() {
    let world = World::new().await;
    let viewer: TokenCreated = world
        .admin()
        .request(&routes::TOKEN_CREATE)
        .json(&TokenCreate { name: "shift".into(), role: "viewer".into(), ..TokenCreate::default() })
        .send()
        .await
        .unwrap();
    let agent = world.agent("alpha").await;
    for route in routes::ALL.iter().filter(|route| route.operation != "events") {
        let nobody = status(&world, route, None).await;
        let unknown = status(&world, route, Some("lht_unknown")).await;
        let shift = status(&world, route, Some(&viewer.token)).await;
        let name = route.operation;
        match route.access {
            // What is wrong is in the body, if anything.
            Access::Public | Access::LocalOrViewer => assert!(nobody != 403, "{name}: {nobody}"),
            Access::Viewer => {
                assert_eq!((nobody, unknown), (401, 401), "{name}");
                assert!(shift != 401 && shift != 403, "{name}: {shift}");
            }
            Access::Admin | Access::Manager | Access::Submitter => {
                assert_eq!((nobody, unknown, shift), (401, 401, 403), "{name}");
                let admin = status(&world, route, Some(&world.admin_token)).await;
                assert!(admin != 401 && admin != 403, "{name}: {admin}");
            }
            Access::Observer => {
                assert_eq!((nobody, unknown, shift), (401, 401, 403), "{name}");
                let admin = status(&world, route, Some(&world.admin_token)).await;
                assert!(admin != 401 && admin != 403, "{name}: {admin}");
            }
            Access::AgentCertificate => {
                let admin = status(&world, route, Some(&world.admin_token)).await;
                assert_eq!((nobody, unknown, shift, admin), (401, 401, 401, 401), "{name}");
            }
        }
        // An agent's certificate opens nothing else.
        if !matches!(route.access, Access::Public | Access::LocalOrViewer | Access::AgentCertificate) {
            let problem = send(&agent.client, route).await.unwrap_err();
            assert_eq!(problem.code, FaultCode::NotAuthenticated, "{name}");
        }
    }
}

async fn status(world: &World, route: &'static Route, token: Option<&str>) -> u16 {
    match send(&world.person(token), route).await {
        Ok(()) => 200,
        Err(problem) => {
            assert!(!problem.remedy.is_empty(), "{}: no next step", route.operation);
            assert!(problem.instance.is_some(), "{}: no id", route.operation);
            problem.status
        }
    }
}

async fn send(client: &Client, route: &'static Route) -> Result<(), Problem> {
    let mut request = client.request(route);
    for name in route.parameters() {
        request = request.parameter(format!("no-such-{name}"));
    }
    if matches!(route.method, Method::Post | Method::Put | Method::Patch) {
        request = request.json(&serde_json::json!({}));
    }
    request.send_bytes().await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_works_once_and_in_time() {
    let world = World::new().await;
    let token = world.join_token("alpha").await;
    Agent::join(&token, "alpha").await.unwrap();
    let again = Agent::join(&token, "alpha").await.err().unwrap();
    assert_eq!((again.code, again.status), (FaultCode::JoinTokenUsed, 401));
    assert!(again.remedy.contains("site add"));
    let late = world.join_token("alpha").await;
    world.shift_s.store(25 * 3_600, Ordering::Relaxed);
    assert_eq!(Agent::join(&late, "alpha").await.err().unwrap().code, FaultCode::JoinTokenExpired);
    world.shift_s.store(0, Ordering::Relaxed);
    let mut forged = late.clone();
    forged.secret = "guessed".into();
    assert_eq!(Agent::join(&forged, "alpha").await.err().unwrap().code, FaultCode::NotAuthenticated);
    forged.ca_fingerprint = "00".repeat(32);
    assert!(Agent::join(&forged, "alpha").await.is_err(), "another CA is not trusted");
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_agreed_on_or_refused_in_words() {
    let world = World::new().await;
    let token = world.join_token("alpha").await;
    let (signing_request, _) = new_signing_request().unwrap();
    let future = VersionRange { lowest: AGENT_PROTOCOL.highest + 1, highest: AGENT_PROTOCOL.highest + 2 };
    let request = JoinRequest { versions: future, secret: token.secret, signing_request, host: "h".into() };
    let client = Client::new(&token.url, join_client_tls(&token.ca_fingerprint).unwrap(), None).unwrap();
    let problem = client.request(&routes::AGENT_JOIN).json(&request).send::<JoinReply>().await.unwrap_err();
    assert_eq!((problem.code, problem.status), (FaultCode::VersionMismatch, 426));
    assert!(problem.remedy.contains("upgrade the service"));
}

/// A copied or restored state directory: one of the two is fenced, and told what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_copied_agent_is_fenced() {
    let world = World::new().await;
    let first = world.agent("alpha").await;
    first.hello(&[]).await.unwrap();
    let copy = first.started_again(1, 99);
    let problem = copy.hello(&[]).await.unwrap_err();
    assert_eq!((problem.code, problem.status), (FaultCode::StaleIncarnation, 403));
    assert!(problem.remedy.contains("stop the copy"));
    let newer = first.started_again(2, 5);
    newer.hello(&[]).await.unwrap();
    assert_eq!(first.send(vec![]).await.unwrap_err().code, FaultCode::StaleIncarnation);
    assert_eq!(first.poll(Duration::from_secs(1)).await.unwrap_err().code, FaultCode::StaleIncarnation);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_belongs_to_one_site() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.storages[0].name = "alpha".parse().unwrap();
    let reply = beta.hello(&[]).await.unwrap();
    assert_eq!(reply.unconfirmed, ["alpha".parse().unwrap()], "it is let in without it");
    let shown = |site: &'static str| {
        let admin = world.admin();
        async move { admin.request(&routes::SITE_SHOW).parameter(site).send::<SiteView>().await.unwrap() }
    };
    assert!(shown("beta").await.storages.is_empty() && shown("beta").await.agents[0].connected);
    assert_eq!(shown("alpha").await.storages.len(), 1);
}

/// F16: times are the service's; a clock two hours or two years off is shown, is a problem of its site, and
/// harms nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_hours_or_years_off_is_learned_and_shown() {
    const TWO_HOURS_S: i64 = 2 * 3_600;
    const TWO_YEARS_S: i64 = 2 * 365 * 86_400;
    let world = World::new().await;
    for (site, off_s) in
        [("alpha", TWO_HOURS_S), ("beta", -TWO_HOURS_S), ("gamma", TWO_YEARS_S), ("delta", -TWO_YEARS_S)]
    {
        let mut agent = world.agent(site).await;
        agent.clock_off_s = off_s;
        let reply = agent.hello(&[]).await.unwrap();
        assert!((reply.now.0 - clock(&world.shift_s)().0).abs() < 60_000_000, "the service's own time");
        let view: SiteView = world.admin().request(&routes::SITE_SHOW).parameter(site).send().await.unwrap();
        assert!((view.agents[0].clock_offset_ms - off_s * 1_000).abs() < 60_000, "{:?}", view.agents);
        assert!(view.agents[0].connected);
        let status: Status = world.admin().request(&routes::STATUS).send().await.unwrap();
        let whose = format!("the clock of {site}'s agent");
        let skews = |problem: &&ProblemView| problem.fault.code == FaultCode::ClockSkew;
        let told = status.problems.iter().filter(skews).any(|problem| problem.fault.detail.contains(&whose));
        assert!(told, "{:?}", status.problems);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_another_deployment_is_refused() {
    let world = World::new().await;
    let other = World::with(|config| config.deployment = "other".into()).await;
    let stranger = other.agent("alpha").await;
    let credentials = Credentials { ca_pem: world.ca_pem.clone(), ..stranger.credentials.clone() };
    let url = format!("https://localhost:{}", world.address().port());
    // It has no certificate of this deployment's CA: it does not even get through the handshake.
    let refused = match agent_client_tls(&credentials) {
        Ok(tls) => {
            let client = Client::new(&url, tls, None).unwrap();
            let report = stranger.empty_report();
            client.request(&routes::AGENT_REPORT).json(&report).send::<serde_json::Value>().await.is_err()
        }
        Err(_) => true,
    };
    assert!(refused);
}

/// Promise 3: all or nothing. Whatever is wrong with one line, its number is told and nothing is registered.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_with_a_bad_line_registers_nothing() {
    let world = World::new().await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    world.dataset("known", "alpha", 1).await;
    let create = DatasetCreate { name: "d".parse().unwrap(), community: None };
    let _: DatasetView = world.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    let good = |n: usize| manifest_line(&format!("d/good{n}"), 1);
    let digest = "\"digests\":[\"adler32:03da0195\"]";
    for (bad, code) in [
        (format!("{{\"lfn\":\"/etc/passwd\",\"size\":1,{digest}}}\n"), FaultCode::BadManifest),
        (format!("{{\"lfn\":\"d/../../x\",\"size\":1,{digest}}}\n"), FaultCode::BadManifest),
        ("not json\n".to_owned(), FaultCode::BadManifest),
        ("{\"lfn\":\"d/x\",\"size\":1,\"digests\":[\"adler32:zz\"]}\n".to_owned(), FaultCode::BadManifest),
        ("{\"lfn\":\"d/x\",\"size\":1,\"digests\":[]}\n".to_owned(), FaultCode::BadManifest),
        // Twice in one manifest, and registered before with another size.
        (manifest_line("d/good0", 2), FaultCode::AlreadyExists),
        (manifest_line("known/f00000", 77), FaultCode::AlreadyExists),
    ] {
        let manifest = format!("{}{}{bad}{}", good(0), good(1), good(2));
        let problem = world.register("d", Some("alpha"), manifest).await.unwrap_err();
        assert!(problem.detail.contains("line 3"), "{}", problem.detail);
        assert!(problem.code == code || problem.code == FaultCode::BadManifest, "{problem:?}");
        let view: DatasetView =
            world.admin().request(&routes::DATASET_SHOW).parameter("d").send().await.unwrap();
        assert_eq!((view.files, view.blocks), (0, 0), "after {bad}");
    }
    let unknown = world.register("nowhere", None, good(0)).await.unwrap_err();
    assert_eq!(unknown.code, FaultCode::NotFound);
    let unknown = world.register("d", Some("nowhere"), good(0)).await.unwrap_err();
    assert_eq!(unknown.code, FaultCode::NotFound);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_beyond_its_limit_is_refused_with_the_limit() {
    let world = World::with(|config| {
        config.limits.manifest_bytes = 10_000;
        config.limits.body_bytes = 5_000;
    })
    .await;
    let create = DatasetCreate { name: "d".parse().unwrap(), community: None };
    let _: DatasetView = world.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    let manifest: String = (0..1_000).map(|n| manifest_line(&format!("f{n}"), 1)).collect();
    match world.register("d", None, manifest).await {
        Err(problem) if problem.code == FaultCode::TooLarge => {
            assert!(problem.detail.contains("10000 bytes"))
        }
        other => panic!("{other:?}"),
    }
    let body = format!("{{\"name\":\"{}\"}}", "x".repeat(6_000));
    let reply = plain(&world, &post("/api/v1/datasets", &world, &body)).await;
    assert!(reply.starts_with("HTTP/1.1 413") && reply.contains("5000 bytes"), "{reply}");
}

/// What a client still sends is read, so that it gets the reply and the connection is no reset.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    let world = World::with(|config| config.limits.body_bytes = 5_000).await;
    let long = "x".repeat(8 << 20);
    let chunked = format!(
        "POST /api/v1/datasets HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer \
            {}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        world.http_address(),
        world.admin_token,
        long.len()
    );
    let announced = post("/api/v1/datasets", &world, &long);
    let stranger = announced.replace(&world.admin_token, "nobody");
    for (request, status) in [(announced, "413"), (chunked, "413"), (stranger, "401")] {
        let mut stream = TcpStream::connect(world.http_address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{reply}");
    }
}

/// Memory for bodies is for those who are known. Strangers are answered by what they announce, and send
/// nothing here: whoever waits for their bodies waits in vain.
#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_body_is_not_waited_for() {
    let world = World::with(|config| config.limits.stall_ms = 20_000).await;
    let host = world.http_address();
    let unknown = "Authorization: Bearer lht_unknown\r\n";
    for (path, credential, status) in [
        ("/jobs", unknown, 401),
        ("/api/v1/datasets", unknown, 401),
        ("/api/v1/datasets", "", 401),
        // What needs no credential, or is told so after its body: 64 KiB.
        ("/jobs", "", 413),
        ("/api/v1/session", "", 413),
    ] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{credential}{JSON}Content-Length: 1000000\r\n\r\n"
        );
        let mut stream = TcpStream::connect(host).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.unwrap();
        assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{path} {credential}: {line}");
    }
}

/// An object is only ever an object: its fields in order, in a list, are nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_in_place_of_an_object_changes_nothing() {
    let world = World::new().await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    for (path, list) in [
        ("/api/v1/sites/alpha", r#"["paused","x"]"#),
        ("/api/v1/sites/alpha", r#"{"state":"paused","limits":[1,2,3,4]}"#),
        ("/api/v1/storages/alpha", "[true]"),
    ] {
        let request = post(path, &world, list).replacen("POST", "PATCH", 1);
        let reply = plain(&world, &request).await;
        assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("sequence"), "{path} {list}: {reply}");
    }
    let site: SiteView = world.admin().request(&routes::SITE_SHOW).parameter("alpha").send().await.unwrap();
    assert_eq!((site.state, site.limits), (SiteState::Open, SiteLimits::default()));
}

/// A word that is spelled wrongly is not passed over, within an object neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_api_does_not_know_changes_nothing() {
    let world = World::new().await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    for (body, key) in [
        (r#"{"state":"paused","reson":"storm"}"#, "reson"),
        (r#"{"state":"paused","limits":{"active_into":1}}"#, "active_into"),
    ] {
        let request = post("/api/v1/sites/alpha", &world, body).replacen("POST", "PATCH", 1);
        let reply = plain(&world, &request).await;
        let is_refused = reply.starts_with("HTTP/1.1 400") && reply.contains("unknown field");
        assert!(is_refused && reply.contains(key), "{body}: {reply}");
    }
    let site: SiteView = world.admin().request(&routes::SITE_SHOW).parameter("alpha").send().await.unwrap();
    assert_eq!((site.state, site.limits), (SiteState::Open, SiteLimits::default()));
}

/// A repetition under one key gets the first answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_makes_a_request_once() {
    let world = World::new().await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    world.agent("beta").await.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 1).await;
    let verify = VerificationRequest { dataset: "d".parse().unwrap(), storage: "alpha".parse().unwrap() };
    let ask = || {
        world
            .admin()
            .request(&routes::VERIFICATION_CREATE)
            .idempotency_key("k1")
            .json(&verify)
            .send::<TaskView>()
    };
    let (first, second) = (ask().await.unwrap(), ask().await.unwrap());
    assert_eq!(first.id, second.id);
    let other = VerificationRequest { storage: "beta".parse().unwrap(), ..verify.clone() };
    let reused = world.admin().request(&routes::VERIFICATION_CREATE).idempotency_key("k1").json(&other);
    assert_eq!(
        reused.send::<TaskView>().await.unwrap_err().code,
        FaultCode::Conflict,
        "another wish is not dropped silently"
    );
}

/// A second service on the directory would be the end of "exactly once".
#[tokio::test(flavor = "multi_thread")]
async fn a_second_service_on_the_same_directory_is_refused() {
    let world = World::new().await;
    let mut config = world.config.clone();
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config.http = None;
    let clock = clock(&world.shift_s);
    let fault = Service::start(config.clone(), clock.clone(), |_| axum::Router::new()).await.err().unwrap();
    assert_eq!(fault.code, FaultCode::StateDirectory);
    assert!(fault.detail.contains("another service"));
    assert!(init(&config, clock()).is_err());
    config.state_dir = world.directory.path().join("empty");
    let fault = Service::start(config, clock, |_| axum::Router::new()).await.err().unwrap();
    assert!(fault.detail.contains("service init"));
}

/// The copy has the keys of the deployment and would lease what the original leases: whoever starts it is
/// told where the other one was, and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_copied_state_directory_is_a_problem_where_it_is_started() {
    let mut world = World::new().await;
    let moved = async |world: &World| {
        let status: Status = world.admin().request(&routes::STATUS).send().await.unwrap();
        status.problems.into_iter().find(|problem| problem.fault.detail.contains("copied or moved"))
    };
    world.restart().await;
    assert!(moved(&world).await.is_none(), "a restart is no move");
    world.stop().await;
    let original = std::mem::replace(&mut world.config.state_dir, world.directory.path().join("copy"));
    let copied =
        std::process::Command::new("cp").arg("-a").args([&original, &world.config.state_dir]).status();
    assert!(copied.unwrap().success());
    world.start().await;
    let problem = moved(&world).await.expect("the copy says so");
    assert_eq!(problem.fault.code, FaultCode::StateDirectory);
    let place = original.to_str().unwrap();
    assert!(problem.fault.detail.contains(place) && problem.remedy.contains(place), "{problem:?}");
    assert!(problem.remedy.contains("stop this one or that one"), "{problem:?}");
    world.stop().await;
}

/// Another program at the address is no mistake of whoever starts the service.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_where_another_program_listens_is_said_to_be_in_use() {
    let mut world = World::new().await;
    world.stop().await;
    let address = world.config.listen[0];
    let _other_program = std::net::TcpListener::bind(address).unwrap();
    let started = Service::start(world.config.clone(), clock(&world.shift_s), |_| axum::Router::new()).await;
    let fault = started.err().unwrap();
    assert_eq!(fault.code, FaultCode::AddressInUse, "{fault}");
    assert!(fault.detail.contains(&address.to_string()), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_are_there_and_parse() {
    let world = World::new().await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    let nobody = world.person(None);
    for route in [&routes::HEALTHZ, &routes::READYZ] {
        let health: Health = nobody.request(route).send().await.unwrap();
        assert!(health.ok && !health.reasons.is_empty());
    }
    let text = nobody.request(&routes::METRICS).send_bytes().await.unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(rest.split(' ').next().unwrap()), "a family twice: {line}");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(series.starts_with("longhaul_") && value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(text.contains("longhaul_build_info{version=") && text.contains("longhaul_agents_connected 1"));
}

/// Others than programs of this host have to show that they may look.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_viewers_and_for_this_host() {
    let world = World::new().await;
    let create = TokenCreate { name: "shift".into(), role: "viewer".into(), ..TokenCreate::default() };
    let viewer: TokenCreated =
        world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
    let host = world.http_address();
    let forwarded = "X-Forwarded-For: 192.0.2.7\r\n";
    let shown = format!("{forwarded}Authorization: Bearer {}\r\n", viewer.token);
    // A proxy on this host asks for others.
    for (headers, status) in [("", 200), (forwarded, 401), (shown.as_str(), 200)] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
        let reply = plain(&world, &request).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {reply}");
    }
}

/// Sessions: a one-time token, a cookie, and nothing changed without the page's own token and origin.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_needs_its_cookie_its_csrf_token_and_its_origin() {
    let world = World::new().await;
    let once: LoginToken = world.admin().request(&routes::LOGIN_TOKEN_CREATE).send().await.unwrap();
    let host = world.http_address();
    let login = format!("{{\"token\":\"{}\"}}", once.token);
    let request = |path: &str, headers: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: \
                {}\r\n{headers}\r\n{body}",
            body.len()
        )
    };
    let reply = plain(&world, &request("/api/v1/session", JSON, &login)).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(reply.contains("HttpOnly; SameSite=Strict"));
    let cookie = reply.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let csrf = reply.split("\"csrf_token\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let again = plain(&world, &request("/api/v1/session", JSON, &login)).await;
    assert!(again.starts_with("HTTP/1.1 401"), "a login token works once: {again}");

    let site = r#"{"name":"delta"}"#;
    let attempt = |headers: String| {
        let text = request("/api/v1/sites", &headers, site);
        let world = &world;
        async move { plain(world, &text).await.lines().next().unwrap_or_default().to_owned() }
    };
    let with = |extra: &str| format!("Cookie: {cookie}\r\n{extra}");
    assert!(attempt(with("")).await.contains("403"), "no CSRF token");
    assert!(attempt(with("X-CSRF-Token: guessed\r\n")).await.contains("403"));
    let stolen = format!("X-CSRF-Token: {csrf}\r\nOrigin: http://evil.example\r\n");
    assert!(attempt(with(&stolen)).await.contains("403"), "another site's page");
    let own = format!("X-CSRF-Token: {csrf}\r\nOrigin: http://{host}\r\n");
    assert!(attempt(with(&own)).await.contains("201"));
    let rebound = "GET /api/v1/status HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n";
    assert!(plain(&world, rebound).await.starts_with("HTTP/1.1 403"));
}

/// Whoever follows a link is not logged in by that, or another site could do it; the token is redeemed by a
/// POST.
#[tokio::test(flavor = "multi_thread")]
async fn a_printed_link_logs_in_once() {
    let mut world = World::new().await;
    world.stop().await;
    let page = |caller: Option<axum::Extension<longhaul_identity::Caller>>| async move {
        caller.map(|caller| caller.principal.name.clone()).unwrap_or("nobody".into())
    };
    let pages = axum::Router::new().route("/ui/", axum::routing::get(page));
    let service = Service::start(world.config.clone(), clock(&world.shift_s), |_| pages).await.unwrap();
    let host = service.http_address().unwrap();
    let admin = service.operations().identity().caller_of_token(&world.admin_token).unwrap();
    let token = service.operations().identity().login_token_create(&admin).token;
    let get = |path: String, cookie: String| async move {
        let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{cookie}\r\n");
        exchange(host, text.as_bytes()).await.unwrap()
    };
    let first = get(format!("/ui/?token={token}"), String::new()).await;
    assert!(first.starts_with("HTTP/1.1 200") && first.ends_with("nobody"), "{first}");
    assert!(!first.contains("set-cookie"), "{first}");
    assert!(get("/ui/?token=lht_secret".into(), String::new()).await.starts_with("HTTP/1.1 400"));
    let login = serde_json::json!({ "token": token }).to_string();
    let length = login.len();
    let redeem = format!(
        "POST /api/v1/session HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{JSON}Content-Length: \
            {length}\r\n\r\n{login}"
    );
    let opened = exchange(host, redeem.as_bytes()).await.unwrap();
    let cookie = opened.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    assert!(get("/ui/".into(), format!("Cookie: {cookie}\r\n")).await.ends_with("admin"));
    assert!(get("/ui/".into(), String::new()).await.ends_with("nobody"));
    let twice = format!("Cookie: {cookie}\r\nCookie: {cookie}\r\n");
    assert!(get("/ui/".into(), twice).await.starts_with("HTTP/1.1 400"));
    assert!(get("/ui/".into(), format!("Host: {host}\r\n")).await.starts_with("HTTP/1.1 400"));
    assert!(exchange(host, redeem.as_bytes()).await.unwrap().starts_with("HTTP/1.1 401"));
    service.stop().await;
}

/// Garbage, silence, trickles and oversized heads on both ports: each connection ends, and the service goes
/// on.
#[tokio::test(flavor = "multi_thread")]
async fn bad_input_on_every_port_ends_its_own_connection_only() {
    let world = World::with(|config| {
        config.limits.head_ms = 500;
        config.limits.stall_ms = 500;
    })
    .await;
    let garbage: Vec<u8> = (0..4_096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let long_head =
        format!("GET / HTTP/1.1\r\nHost: {}\r\nX: {}\r\n\r\n", world.http_address(), "y".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(2_000));
    let smuggled = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello";
    for address in [world.address(), world.http_address()] {
        for bytes in
            [&garbage[..], long_head.as_bytes(), many.as_bytes(), smuggled.as_bytes(), b"\x16\x03\x01", b""]
        {
            // Ends by itself, whether with an answer or without; a peer that waits for more is cut off.
            let ended = tokio::time::timeout(Duration::from_secs(120), exchange(address, bytes)).await;
            let reply = ended.expect("the connection stays open").unwrap_or_default();
            assert!(!reply.starts_with("HTTP/1.1 2"), "{reply}");
        }
        // The head never ends.
        let slow =
            tokio::time::timeout(Duration::from_secs(120), exchange(address, b"GET / HTTP/1.1\r\nHo")).await;
        assert!(slow.is_ok(), "a slow head keeps its connection");
    }
    // The body never comes.
    let stuck = post("/api/v1/datasets", &world, "").replace("Content-Length: 0", "Content-Length: 10");
    until("an answer to a body that never comes", async || {
        let reply = exchange(world.http_address(), stuck.as_bytes()).await.unwrap_or_default();
        if reply.starts_with("HTTP/1.1 408") { Ok(()) } else { Err(reply) }
    })
    .await;
    until("a handshake within the limit", async || {
        let health = world.person(None).request(&routes::HEALTHZ).send::<Health>().await;
        health.map(|health| assert!(health.ok)).map_err(|problem| problem.detail)
    })
    .await;
}

/// What is no route says so, in the same form as everything else.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_routes_names_and_parameters_are_told_apart() {
    let world = World::new().await;
    let reply = plain(&world, &post("/api/v1/nothing", &world, "{}")).await;
    assert!(reply.starts_with("HTTP/1.1 404") && reply.contains("application/problem+json"), "{reply}");
    let reply = plain(&world, &post("/api/v1/status", &world, "{}")).await;
    assert!(reply.starts_with("HTTP/1.1 405"), "{reply}");
    let admin = world.admin();
    let unknown: Problem =
        admin.request(&routes::SITE_SHOW).parameter("zeta").send::<SiteView>().await.unwrap_err();
    assert_eq!((unknown.code, unknown.exit_code()), (FaultCode::NotFound, 3));
    let malformed =
        admin.request(&routes::SITE_SHOW).parameter("ze ta").send::<SiteView>().await.unwrap_err();
    assert_eq!(malformed.code, FaultCode::BadRequest);
    let misspelt = post("/api/v1/datasets?lmit=3", &world, "").replace("POST", "GET");
    let reply = plain(&world, &misspelt).await;
    assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("known: limit, after"), "{reply}");
}

/// The event stream tells of a change, and who asks for it needs a role.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_told_as_they_happen() {
    let world = World::new().await;
    let mut events = world.admin().request(&routes::EVENTS).send_events().await.unwrap();
    world.join_token("omega").await;
    loop {
        let event: ChangeEvent = events.next().await.unwrap().expect("the stream ended");
        if (event.kind, event.id.as_deref()) == (ChangeKind::Site, Some("omega")) {
            break;
        }
    }
}

/// A token of its own for a user who loses it while a stream and a session go on.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_opened_ends_when_it_is_revoked() {
    let world = World::new().await;
    let create = TokenCreate { name: "night".into(), role: "viewer".into(), ..TokenCreate::default() };
    let made: TokenCreated = world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
    let body = serde_json::json!({ "token": made.token }).to_string();
    let login = post("/api/v1/session", &world, &body).replacen("\r\n", &format!("\r\n{JSON}"), 1);
    let opened = plain(&world, &login).await;
    let cookie = opened.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let host = world.http_address();
    let whoami = format!(
        "GET /api/v1/whoami HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nCookie: {cookie}\r\n\r\n"
    );
    assert!(plain(&world, &whoami).await.starts_with("HTTP/1.1 200"));
    let mut events = world.person(Some(&made.token)).request(&routes::EVENTS).send_events().await.unwrap();
    let revoke = world.admin().request(&routes::TOKEN_REVOKE).parameter("night");
    revoke.send::<serde_json::Value>().await.unwrap();
    assert!(plain(&world, &whoami).await.starts_with("HTTP/1.1 401"), "the session went on");
    let end = async {
        while let Some(event) = events.next::<ChangeEvent>().await.unwrap() {
            drop(event);
        }
    };
    tokio::time::timeout(STREAM_TIMEOUT, end).await.expect("the stream went on");
}

/// The whole API of an open service is documented where it is served.
#[tokio::test(flavor = "multi_thread")]
async fn the_description_is_served() {
    let world = World::new().await;
    let document: serde_json::Value = world.person(None).request(&routes::OPENAPI).send().await.unwrap();
    assert_eq!(document["openapi"], "3.1.0");
}

/// People's connections trust the CA they were given, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn another_ca_is_not_trusted() {
    let world = World::new().await;
    let other = World::with(|config| config.deployment = "other".into()).await;
    let tls: Arc<_> = people_client_tls(&other.ca_pem).unwrap();
    let url = format!("https://localhost:{}", world.address().port());
    let client = Client::new(&url, tls, None).unwrap();
    assert!(client.request(&routes::HEALTHZ).send::<Health>().await.is_err());
}

fn post(path: &str, world: &World, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer \
            {}\r\nContent-Length: {}\r\n\r\n{body}",
        world.http_address(),
        world.admin_token,
        body.len()
    )
}

async fn plain(world: &World, request: &str) -> String {
    exchange(world.http_address(), request.as_bytes()).await.unwrap()
}

/// Sends, and reads until the other side closes.
async fn exchange(address: SocketAddr, bytes: &[u8]) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // The other side may close before it has taken all.
    let _ = stream.write_all(bytes).await;
    let mut reply = Vec::new();
    let read = stream.read_to_end(&mut reply).await;
    if reply.is_empty() {
        read?;
    }
    Ok(String::from_utf8_lossy(&reply).into_owned())
}
