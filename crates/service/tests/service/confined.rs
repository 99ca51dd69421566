//! API tokens that are confined beyond their role, at every route of the native API. What they may at FTS's
//! paths is in `isolation`. And how often one user may ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use longhaul_api::native::{TokenCreate, TokenCreated};
use longhaul_api::routes::{self, Access, Method, Route};
use longhaul_service::Clocks;
use serde_json::{Value, json};

use crate::isolation::Play;
use crate::world::{World, clock};

/// The areas as a reader of the documentation would sort the routes: by the first word of their paths.
const AREAS: [(&str, &[&str]); 6] = [
    ("jobs", &["jobs"]),
    ("data", &["datasets", "replicas", "deletions", "verifications", "tasks", "subscriptions", "transfers"]),
    ("sites", &["sites", "storages", "agents", "status", "problems", "check", "events", "history"]),
    ("steering", &["shares", "limits", "links", "movers", "circuits"]),
    ("network", &["network"]),
    ("access", &["tokens", "accounts", "audit"]),
];

fn area(route: &Route) -> Option<&'static str> {
    if route.operation == "circuit_history" {
        return Some("steering");
    }
    let word = route.path.strip_prefix("/api/v1/")?.split('/').next()?;
    AREAS.iter().find(|(_, words)| words.contains(&word)).map(|(area, _)| *area)
}

async fn token(world: &World, role: &str, scopes: &[&str], community: Option<&str>) -> String {
    let create = TokenCreate {
        name: format!("{role} {} of {}", scopes.join(" ").replace(':', "-"), community.unwrap_or("all")),
        role: role.into(),
        scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        community: community.map(|name| name.parse().unwrap()),
        ..TokenCreate::default()
    };
    let made: TokenCreated = world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
    made.token
}

/// Routes that a token can open at all; a stream of events would be held open.
fn opened_by_tokens() -> impl Iterator<Item = &'static Route> {
    let closed = [Access::Public, Access::LocalOrViewer, Access::AgentCertificate];
    routes::ALL.iter().filter(move |route| !closed.contains(&route.access) && route.operation != "events")
}

async fn status(world: &World, token: &str, route: &Route) -> (u16, Value) {
    let values: Vec<String> = route.parameters().map(|name| format!("no-such-{name}")).collect();
    let path = route.fill(&values.iter().map(String::as_str).collect::<Vec<_>>());
    world.request(token, route.method.word(), &path, "{}").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_opens_its_area_and_no_other() {
    let world = World::new().await;
    for (scope, _) in AREAS {
        let reading = format!("{scope}:read");
        for (scoped, changes) in [(scope, true), (reading.as_str(), false)] {
            let token = token(&world, "admin", &[scoped], None).await;
            for route in opened_by_tokens() {
                let may = match area(route) {
                    Some(area) => area == scope && (changes || route.method == Method::Get),
                    None => route.method == Method::Get,
                };
                // Accounts are confined to nothing: whoever made one could do everything.
                let may = may && route.operation != "account_change";
                let (status, answer) = status(&world, &token, route).await;
                assert_eq!(status != 403, may, "{} with {scoped}: {status} {answer}", route.operation);
            }
        }
    }
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_community_is_for_its_jobs() {
    let world = World::new().await;
    for role in ["viewer", "admin"] {
        let token = token(&world, role, &[], Some("higgs")).await;
        for route in opened_by_tokens() {
            let may = area(route) == Some("jobs") || area(route).is_none() && route.method == Method::Get;
            let (status, answer) = status(&world, &token, route).await;
            assert_eq!(status != 403, may, "{} as {role}: {status} {answer}", route.operation);
        }
        let (_, me) = world.request(&token, "GET", "/api/v1/whoami", "").await;
        assert_eq!((&me["role"], &me["community"]), (&json!(role), &json!("higgs")));
    }
}

/// Jobs of the native API and of FTS's are the same, and so are the walls between communities.
#[tokio::test(flavor = "multi_thread")]
async fn communities_are_apart_for_their_administrators_too() {
    let play = Play::new().await;
    let url = |side: &str| format!("{}/{side}/native", play.storage());
    let submit = |community: Option<&str>| {
        json!({ "files": [{ "sources": [url("from")], "target": url("to") }], "community": community })
            .to_string()
    };
    let ask = |who: &'static str, method: &'static str, path: String, body: String| {
        let (play, token) = (&play, play.tokens[who].clone());
        async move { play.world.request(&token, method, &path, &body).await }
    };
    let (status, made) = ask("member", "POST", "/api/v1/jobs".into(), submit(None)).await;
    assert_eq!((status, &made["community"]), (201, &json!("testvo")), "{made}");
    let path = format!("/api/v1/jobs/{}", made["id"].as_str().unwrap());
    for (who, seen, changed) in [
        ("carol", 200, 200),
        ("reader", 200, 403),
        ("outsider", 403, 403),
        ("bob", 403, 403),
        ("operator", 200, 200),
    ] {
        let (status, answer) = ask(who, "GET", path.clone(), String::new()).await;
        assert_eq!(status, seen, "{who}: {answer}");
        let (status, answer) = ask(who, "PATCH", path.clone(), r#"{"priority":4}"#.into()).await;
        assert_eq!(status, changed, "{who}: {answer}");
    }
    let (_, list) = ask("outsider", "GET", "/api/v1/jobs".into(), String::new()).await;
    assert_eq!(list["items"], json!([]), "{list}");
    for (who, community) in [("outsider", "testvo"), ("member", "othervo"), ("reader", "testvo")] {
        let (status, answer) = ask(who, "POST", "/api/v1/jobs".into(), submit(Some(community))).await;
        assert_eq!(status, 403, "{who} for {community}: {answer}");
    }
    play.world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_token_makes_no_wider_one() {
    let world = World::new().await;
    for (scopes, community) in [(&["access"][..], None), (&[], Some("higgs")), (&["jobs"], None)] {
        let token = token(&world, "admin", scopes, community).await;
        let login = json!({ "token": token }).to_string();
        let (status, answer) = world.request("", "POST", "/api/v1/session", &login).await;
        assert_eq!(status, 403, "{scopes:?}: {answer}");
        let (status, answer) = world.request(&token, "POST", "/api/v1/session/tokens", "{}").await;
        assert_eq!(status, 403, "{scopes:?}: {answer}");
    }
    // Whoever may make tokens makes none for what their own is not good for.
    let maker = token(&world, "admin", &["access"], None).await;
    for (scopes, wanted) in
        [(json!(["access:read"]), 201), (json!([]), 403), (json!(["access", "jobs"]), 403)]
    {
        let name = format!("made {scopes}").replace(['"', '[', ']', ',', ':'], "");
        let body = json!({ "name": name, "role": "admin", "scopes": scopes });
        let (status, answer) = world.request(&maker, "POST", "/api/v1/tokens", &body.to_string()).await;
        assert_eq!(status, wanted, "{scopes}: {answer}");
    }
    let (_, list) = world.request(&world.admin_token, "GET", "/api/v1/tokens", "").await;
    let made = list["items"].as_array().unwrap().iter().find(|one| one["name"] == "made accessread");
    assert_eq!(made.unwrap()["scopes"], json!(["access:read"]));
    for bad in [json!(["job"]), json!(["jobs:write"]), json!([""])] {
        let body = json!({ "name": "bad", "role": "viewer", "scopes": bad }).to_string();
        let (status, answer) = world.request(&world.admin_token, "POST", "/api/v1/tokens", &body).await;
        assert_eq!(status, 400, "{bad}: {answer}");
        assert!(answer["detail"].as_str().unwrap().contains("scope"), "{answer}");
    }
    let body = json!({ "name": "bad", "role": "observer", "community": "higgs" }).to_string();
    assert_eq!(world.request(&world.admin_token, "POST", "/api/v1/tokens", &body).await.0, 422);
}

/// Whoever runs wild is told so, on each of the ways in; others are served.
#[tokio::test(flavor = "multi_thread")]
async fn one_user_has_so_many_requests_a_second() {
    let world = World::with(|config| config.limits.user_requests_per_s = 1).await;
    let viewer = token(&world, "viewer", &[], Some("higgs")).await;
    for (path, text) in [("/api/v1/whoami", "detail"), ("/whoami", "message")] {
        let mut refused = None;
        for _ in 0..10_000 {
            let (status, answer) = world.request(&viewer, "GET", path, "").await;
            if status == 429 {
                refused = Some(answer);
                break;
            }
            assert_eq!(status, 200, "{answer}");
        }
        let answer = refused.expect("it is refused at last");
        let told = answer[text].as_str().unwrap();
        assert!(told.contains("more than 1 requests a second") && told.contains(" ms"), "{answer}");
        let seconds = &answer["retry_after_s"];
        assert!(path == "/whoami" || seconds.as_u64().is_some_and(|wait| wait >= 1), "{answer}");
        world.shift_s.fetch_add(10, Ordering::Relaxed);
        assert_eq!(world.request(&world.admin_token, "GET", path, "").await.0, 200, "another user");
        assert_eq!(world.request(&viewer, "GET", path, "").await.0, 200, "the same, later");
        world.shift_s.fetch_add(10, Ordering::Relaxed);
    }
}

/// People and programs set the clock of a host, by minutes and by hours. It counts nobody's requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_hosts_clock_locks_nobody_out() {
    let mut world = World::with(|config| config.limits.user_requests_per_s = 1).await;
    let wall_shift_s = Arc::new(AtomicI64::new(0));
    world.stop().await;
    let clocks = Clocks { steady: clock(&world.shift_s), wall: clock(&wall_shift_s) };
    world.start_by(clocks).await;
    let whoami = async || world.request(&world.admin_token, "GET", "/api/v1/whoami", "").await;
    for step_s in [-60, 60, -3 * 3_600, 3 * 3_600] {
        let mut statuses = Vec::new();
        while !statuses.contains(&429) && statuses.len() < 10_000 {
            statuses.push(whoami().await.0);
        }
        assert!(statuses.contains(&429), "more than one request a second");
        wall_shift_s.fetch_add(step_s, Ordering::Relaxed);
        world.shift_s.fetch_add(10, Ordering::Relaxed);
        let (status, answer) = whoami().await;
        assert_eq!(status, 200, "ten seconds later, with the clock set by {step_s} s: {answer}");
    }
    world.stop().await;
}
