//! Every route of the table, asked over HTTP with a client that shares nothing with ours: who may, what comes
//! back, and whether that is what the table promises.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_api::accounts::AccountView;
use longhaul_api::measured::*;
use longhaul_api::native::*;
use longhaul_api::routes::{self, Access, Body, Method, Route};
use longhaul_api::{AGENT_PROTOCOL, Problem, agent, circuits, jobs, limits, network, steering};
use longhaul_security::{Credentials, JoinToken, agent_client_tls, new_signing_request};
use longhaul_testbed::http::{Api, Reply};
use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, tree};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

/// Whether a body is what the table calls by that name.
fn understood(name: &str, body: &[u8]) -> Result<(), String> {
    macro_rules! one_of {
        ($($name:literal => $type:ty,)*) => {
            match name {
                $($name => {
                    serde_json::from_slice::<$type>(body).map(drop).map_err(|error| error.to_string())
                })*
                other => Err(format!("{other} is no type this test knows")),
            }
        };
    }
    one_of! {
        "Page_DatasetView" => Page<DatasetView>,
        "AccountView" => AccountView,
        "Page_AccountView" => Page<AccountView>,
        "DatasetView" => DatasetView,
        "Page_BlockView" => Page<BlockView>,
        "Page_FileView" => Page<FileView>,
        "Page_ReplicaView" => Page<ReplicaView>,
        "TaskView" => TaskView,
        "Page_TaskView" => Page<TaskView>,
        "Registered" => Registered,
        "FileReplicas" => FileReplicas,
        "DeletionReply" => DeletionReply,
        "Page_SubscriptionView" => Page<SubscriptionView>,
        "SubscriptionView" => SubscriptionView,
        "Page_TransferView" => Page<TransferView>,
        "TransferView" => TransferView,
        "TransferDetail" => TransferDetail,
        "Page_SiteView" => Page<SiteView>,
        "SiteView" => SiteView,
        "SiteAdded" => SiteAdded,
        "Page_StorageView" => Page<StorageView>,
        "Status" => Status,
        "Page_ProblemView" => Page<ProblemView>,
        "RateHistory" => RateHistory,
        "CheckReport" => CheckReport,
        "WhoAmI" => WhoAmI,
        "Page_TokenView" => Page<TokenView>,
        "TokenCreated" => TokenCreated,
        "AgentRefused" => AgentRefused,
        "AgentRemoved" => AgentRemoved,
        "SiteRemoved" => SiteRemoved,
        "StorageRemoved" => StorageRemoved,
        "StorageAllowed" => StorageAllowed,
        "LoginReply" => LoginReply,
        "LoginToken" => LoginToken,
        "Health" => Health,
        "JoinReply" => agent::JoinReply,
        "ReportReply" => agent::ReportReply,
        "Work" => agent::Work,
        "MeasurementsTaken" => MeasurementsTaken,
        "Page_HostView" => Page<HostView>,
        "HostsChanged" => HostsChanged,
        "Page_UnmappedHost" => Page<UnmappedHost>,
        "Page_ArchiveView" => Page<ArchiveView>,
        "RenewReply" => agent::RenewReply,
        "NetworkView" => network::NetworkView,
        "Page_NetworkLink" => Page<network::NetworkLink>,
        "NetworkLinkDetail" => network::NetworkLinkDetail,
        "NetworkImported" => network::NetworkImported,
        "StorageView" => StorageView,
        "JobView" => jobs::JobView,
        "JobDetail" => jobs::JobDetail,
        "Page_JobView" => Page<jobs::JobView>,
        "Page_MoverGrantView" => Page<steering::MoverGrantView>,
        "Page_ShareView" => Page<steering::ShareView>,
        "Page_LimitView" => Page<limits::LimitView>,
        "LinksView" => steering::LinksView,
        "Page_AuditEntry" => Page<steering::AuditEntry>,
        "Page_DecisionEntry" => Page<steering::DecisionEntry>,
        "Page_CircuitView" => Page<circuits::CircuitView>,
        "CircuitDetail" => circuits::CircuitDetail,
        "CircuitPlan" => circuits::CircuitPlan,
        "Page_CircuitRecord" => Page<circuits::CircuitRecord>,
    }
}

struct Walk {
    admin: Api,
    viewer: Api,
    nobody: Api,
    walked: BTreeSet<&'static str>,
}

impl Walk {
    /// Asks as those who may not, then as one who may; returns what came back.
    #[track_caller]
    fn request(
        &mut self,
        route: &'static Route,
        parameters: &[&str],
        query: &[(&str, &str)],
        body: &Value,
    ) -> Reply {
        match route.access {
            // The walk is on the service's own host.
            Access::Public | Access::LocalOrViewer => {}
            Access::Viewer | Access::AgentCertificate => {
                self.refused(&self.nobody, route, parameters, body, &[401, 403])
            }
            Access::Admin | Access::Manager | Access::Submitter | Access::Observer => {
                self.refused(&self.nobody, route, parameters, body, &[401]);
                self.refused(&self.viewer, route, parameters, body, &[403]);
            }
        }
        let api = if route.access == Access::Viewer && route.method == Method::Get {
            &self.viewer
        } else {
            &self.admin
        };
        let reply = api.call(route, parameters, query, body).unwrap();
        self.accept(route, reply)
    }

    #[track_caller]
    fn refused(&self, api: &Api, route: &Route, parameters: &[&str], body: &Value, statuses: &[u16]) {
        let reply = api.call(route, parameters, &[], body).unwrap();
        assert!(statuses.contains(&reply.status), "{}: {} {}", route.operation, reply.status, reply.text());
        assert_problem(route.operation, &reply);
    }

    /// What came back is what the table says, and the route counts as walked.
    #[track_caller]
    fn accept(&mut self, route: &'static Route, reply: Reply) -> Reply {
        let operation = route.operation;
        assert_eq!(reply.status, route.status, "{operation}: {}", reply.text());
        let kind =
            reply.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
        assert_eq!(kind, route.reply.media_type().unwrap_or_default(), "{operation}");
        assert_eq!(
            reply.header("x-content-type-options"),
            Some("nosniff"),
            "{operation}: {:?}",
            reply.headers
        );
        if let Body::Json(name) = route.reply {
            understood(name, &reply.body)
                .unwrap_or_else(|error| panic!("{operation}: {error} in {}", reply.text()));
        }
        self.walked.insert(operation);
        reply
    }

    #[track_caller]
    fn json(&mut self, route: &'static Route, parameters: &[&str], body: Value) -> Value {
        self.request(route, parameters, &[], &body).json()
    }

    #[track_caller]
    fn get(&mut self, route: &'static Route, parameters: &[&str], query: &[(&str, &str)]) -> Value {
        self.request(route, parameters, query, &Value::Null).json()
    }
}

/// An error has its four parts, and an id that the log has too.
#[track_caller]
fn assert_problem(operation: &str, reply: &Reply) {
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json"),
        "{operation}: {}",
        reply.text()
    );
    let problem: Problem = serde_json::from_slice(&reply.body)
        .unwrap_or_else(|error| panic!("{operation}: {error}: {}", reply.text()));
    assert!(
        !problem.title.is_empty() && !problem.remedy.is_empty() && problem.instance.is_some(),
        "{operation}: {problem:?}"
    );
    assert_eq!(problem.status, reply.status, "{operation}");
}

#[test]
fn all_routes_are_walked() {
    let settings = "[service.jobs]\nallow_networks = [\"127.0.0.0/8\"]\n".to_owned();
    let mut deployment =
        Deployment::with(ServiceOptions { pages: true, settings, ..ServiceOptions::default() });
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), 30, 300_000, &mut Random::new(2));
    let admin = deployment.api();
    let token = deployment.json(&["token", "create", "reader"])["token"].as_str().unwrap().to_owned();
    let viewer = admin.with_token(Some(&token));
    let mut walk = Walk { nobody: admin.with_token(None), admin, viewer, walked: BTreeSet::new() };

    datasets(&mut walk, &deployment);
    let transfer = subscriptions(&mut walk, &deployment);
    replicas(&mut walk, &deployment);
    walk.get(&routes::TRANSFER_SHOW, &[&transfer], &[]);
    sites(&mut walk);
    measured(&mut walk);
    steering(&mut walk);
    jobs_between_urls(&mut walk);
    agents(&mut walk, &deployment);
    overview(&mut walk);
    access(&mut walk, &deployment);
    walk.request(&routes::DATASET_DELETE, &["empty"], &[], &Value::Null);
    assert_eq!(walk.admin.call(&routes::DATASET_SHOW, &["empty"], &[], &Value::Null).unwrap().status, 404);

    let all: BTreeSet<&str> = routes::ALL.iter().map(|route| route.operation).collect();
    let missing: Vec<_> = all.difference(&walk.walked).collect();
    assert!(missing.is_empty(), "not walked: {missing:?}");
    deployment.check();
}

fn datasets(walk: &mut Walk, deployment: &Deployment) {
    let made = walk.json(&routes::DATASET_CREATE, &[], json!({ "name": "higgs/run7" }));
    assert_eq!(made["name"], json!("higgs/run7"));
    walk.json(&routes::DATASET_CREATE, &[], json!({ "name": "empty" }));
    let task =
        walk.json(&routes::DATASET_SCAN, &["higgs/run7"], json!({ "storage": "alpha", "path": "run00" }));
    let id = task["id"].as_str().unwrap();
    deployment.until("the scan is done", WITHIN, || {
        walk.get(&routes::TASK_SHOW, &[id], &[])["done"].as_bool()?.then_some(())
    });
    // All or nothing, and nobody without the right gets so far.
    let line = br#"{"lfn":"more/one","size":9,"digests":["adler32:11e60398"]}"#;
    let target = routes::DATASET_ADD_FILES.target(&["higgs/run7"], &[]);
    let lines = [("content-type", "application/x-ndjson")];
    assert_eq!(walk.viewer.send("POST", &target, &lines, line).unwrap().status, 403);
    assert_eq!(walk.nobody.send("POST", &target, &lines, line).unwrap().status, 401);
    let reply = walk.admin.send("POST", &target, &lines, line).unwrap();
    let registered = walk.accept(&routes::DATASET_ADD_FILES, reply).json();
    assert_eq!(registered["files_added"], json!(1));

    assert_eq!(walk.get(&routes::DATASET_SHOW, &["higgs/run7"], &[])["files"], json!(31));
    let page = walk.get(&routes::DATASET_LIST, &[], &[("limit", "1")]);
    let next = page["next"].as_str().expect("there is a second dataset").to_owned();
    let second = walk.get(&routes::DATASET_LIST, &[], &[("limit", "1"), ("after", &next)]);
    assert_ne!(page["items"][0]["name"], second["items"][0]["name"]);
    walk.get(&routes::DATASET_BLOCKS, &["higgs/run7"], &[]);
    let mut seen = BTreeSet::new();
    let mut after: Option<String> = None;
    loop {
        let mut query = vec![("limit", "7")];
        query.extend(after.as_deref().map(|after| ("after", after)));
        let page = walk.get(&routes::DATASET_FILES, &["higgs/run7"], &query);
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|file| file["lfn"].as_str().unwrap().to_owned()),
        );
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 31, "pages have no gap and no overlap");
    walk.get(&routes::DATASET_REPLICAS, &["higgs/run7"], &[]);
    walk.get(&routes::REPLICA_OF_FILE, &[], &[("lfn", "more/one")]);
    walk.get(&routes::TASK_LIST, &[], &[("dataset", "higgs/run7"), ("storage", "alpha")]);
    walk.json(&routes::DATASET_CLOSE, &["empty"], Value::Null);
}

/// Returns a transfer.
fn subscriptions(walk: &mut Walk, deployment: &Deployment) -> String {
    let wish = json!({ "dataset": "higgs/run7", "storage": "beta" });
    // The same key gets the same answer, once; without one the same wish is still one.
    let key = [("content-type", "application/json"), (routes::IDEMPOTENCY_HEADER, "key-1")];
    let target = routes::SUBSCRIPTION_CREATE.path;
    let ask = |walk: &Walk, body: &Value| {
        walk.admin.send("POST", target, &key, body.to_string().as_bytes()).unwrap()
    };
    let first = ask(walk, &wish).expect(201).json();
    assert_eq!(ask(walk, &wish).expect(201).json()["id"], first["id"]);
    let made = walk.json(&routes::SUBSCRIPTION_CREATE, &[], wish);
    assert_eq!(made["id"], first["id"]);
    let id = made["id"].as_str().unwrap();
    // One file is only a name so far: the subscription cannot be complete.
    let view = deployment.until("all that is anywhere has come", WITHIN, || {
        let view = walk.get(&routes::SUBSCRIPTION_SHOW, &[id], &[]);
        (view["files_present"] == json!(30)).then_some(view)
    });
    assert_eq!((&view["files_wanted"], &view["complete"]), (&json!(31), &json!(false)));
    walk.get(
        &routes::SUBSCRIPTION_LIST,
        &[],
        &[("dataset", "higgs/run7"), ("storage", "beta"), ("state", "active")],
    );
    walk.json(&routes::SUBSCRIPTION_CHANGE, &[id], json!({ "priority": 7 }));

    let done =
        walk.get(&routes::TRANSFER_LIST, &[], &[("target", "beta"), ("state", "done"), ("limit", "1")]);
    let transfer = done["items"][0]["id"].as_str().unwrap().to_owned();
    // One that can be tried again: its source is no longer what was registered.
    let root = deployment.storage("alpha");
    std::fs::write(root.join("bad"), b"registered").unwrap();
    walk.json(&routes::DATASET_CREATE, &[], json!({ "name": "bad" }));
    let line = br#"{"lfn":"bad","size":10,"digests":["adler32:00000001"]}"#;
    let target = routes::DATASET_ADD_FILES.target(&["bad"], &[("storage", "alpha")]);
    walk.admin.send("POST", &target, &[("content-type", "application/x-ndjson")], line).unwrap().expect(200);
    walk.json(&routes::SUBSCRIPTION_CREATE, &[], json!({ "dataset": "bad", "storage": "beta" }));
    let failing = deployment.until("an attempt fails", WITHIN, || {
        let list = walk.get(&routes::TRANSFER_LIST, &[], &[("dataset", "bad")]);
        let item = list["items"].as_array()?.first()?.clone();
        (!item["fault"].is_null()).then(|| item["id"].as_str().unwrap().to_owned())
    });
    walk.json(&routes::TRANSFER_RETRY, &[&failing], Value::Null);
    transfer
}

fn replicas(walk: &mut Walk, deployment: &Deployment) {
    let what = json!({ "dataset": "higgs/run7", "storage": "beta" });
    let task = walk.json(&routes::VERIFICATION_CREATE, &[], what.clone());
    let id = task["id"].as_str().unwrap();
    deployment.until("the verification is done", WITHIN, || {
        walk.get(&routes::TASK_SHOW, &[id], &[])["done"].as_bool()?.then_some(())
    });
    let told = walk.json(&routes::DELETION_CREATE, &[], what);
    assert_eq!(
        (&told["files"], &told["task"]),
        (&json!(30), &Value::Null),
        "a dry run, unless asked otherwise"
    );
    // A task of a site that is away waits, and can be cancelled.
    let scan = walk.json(&routes::DATASET_SCAN, &["higgs/run7"], json!({ "storage": "alpha" }));
    let cancelled = walk.json(&routes::TASK_CANCEL, &[scan["id"].as_str().unwrap()], Value::Null);
    assert_eq!(cancelled["done"], json!(true), "{cancelled}");
}

fn sites(walk: &mut Walk) {
    let added = walk.json(&routes::SITE_ADD, &[], json!({ "name": "gamma" }));
    assert!(added["join_token"].as_str().unwrap().starts_with("lhj_"));
    walk.json(&routes::SITE_JOIN_TOKEN, &["gamma"], json!({ "token_seconds": 60 }));
    walk.get(&routes::SITE_LIST, &[], &[]);
    walk.get(&routes::SITE_SHOW, &["alpha"], &[]);
    let shown = walk.get(&routes::SITE_SHOW, &["alpha"], &[]);
    let agent = shown["agents"][0]["id"].as_str().unwrap();
    let preview = walk.json(&routes::AGENT_REFUSE, &[agent], json!({ "reason": "only asked" }));
    assert_eq!((&preview["refused"], &preview["site"]), (&json!(false), &json!("alpha")), "a dry run");
    let preview = walk.json(&routes::AGENT_REMOVE, &[agent], json!({}));
    assert_eq!((&preview["removed"], &preview["site"]), (&json!(false), &json!("alpha")), "a dry run");
    walk.get(&routes::STORAGE_LIST, &[], &[]);
    let shown = walk.get(&routes::STORAGE_SHOW, &["alpha"], &[]);
    assert_eq!((&shown["name"], &shown["kind"]), (&json!("alpha"), &json!("posix")));
    let preview = walk.json(&routes::STORAGE_REMOVE, &["alpha"], json!({}));
    assert_eq!((&preview["removed"], &preview["site"]), (&json!(false), &json!("alpha")), "a dry run");
    let allowed = walk.json(&routes::STORAGE_ALLOW, &["vault"], json!({ "site": "gamma" }));
    assert_eq!(allowed, json!({ "storage": "vault", "site": "gamma" }));
    assert_eq!(walk.get(&routes::SITE_SHOW, &["gamma"], &[])["storage_names"], json!(["vault"]));
    walk.request(&routes::STORAGE_DISALLOW, &["vault"], &[], &Value::Null);
    assert_eq!(walk.get(&routes::SITE_SHOW, &["gamma"], &[])["storage_names"], json!([]));
    let preview = walk.json(&routes::SITE_REMOVE, &["alpha"], json!({}));
    assert_eq!((&preview["removed"], &preview["agents"][0]), (&json!(false), &json!(agent)), "a dry run");
    let begins = json!({ "begin": [["alpha", "gamma"]] });
    let commissioned = walk.json(&routes::SITE_COMMISSION, &["gamma"], begins);
    assert_eq!(commissioned["links"][0]["state"], json!("commissioning"), "{commissioned}");
    let changed =
        walk.json(&routes::SITE_CHANGE, &["gamma"], json!({ "state": "paused", "reason": "not yet" }));
    assert_eq!(changed["state"], json!("paused"));
}

fn jobs_between_urls(walk: &mut Walk) {
    // Nobody answers there: it waits for its next try.
    let nobody = format!("https://127.0.0.1:{}", longhaul_testbed::free_port());
    let file = json!({ "sources": [format!("{nobody}/x")], "target": format!("{nobody}/y") });
    let job = walk.json(&routes::JOB_SUBMIT, &[], json!({ "files": [file], "retries": 3 }));
    let id = job["id"].as_str().unwrap();
    let list = walk.get(&routes::JOB_LIST, &[], &[("source", "127.0.0.1"), ("limit", "1")]);
    assert_eq!((&list["items"][0]["id"], &list["next"]), (&json!(id), &Value::Null));
    assert_eq!(walk.json(&routes::JOB_CHANGE, &[id], json!({ "priority": 5 }))["priority"], json!(5));
    let cancelled = walk.json(&routes::JOB_CANCEL, &[id], Value::Null);
    assert_eq!(cancelled["state"], json!("CANCELED"), "{cancelled}");
    let shown = walk.get(&routes::JOB_SHOW, &[id], &[("files", "1")]);
    assert_eq!((&shown["counts"]["canceled"], &shown["files"][0]["state"]), (&json!(1), &json!("CANCELED")));
}

fn steering(walk: &mut Walk) {
    let storage = walk.json(&routes::STORAGE_CHANGE, &["beta"], json!({ "relay": true, "strategy": "auto" }));
    assert_eq!((&storage["relay"], &storage["strategy"]), (&json!(true), &json!("queue")));
    walk.json(&routes::STORAGE_CHANGE, &["beta"], json!({ "strategy": "none" }));
    let shares = walk.json(&routes::SHARE_SET, &[], json!({ "community": "atlas", "weight": 3 }));
    assert_eq!(walk.get(&routes::SHARE_LIST, &[], &[]), shares);
    let grant = json!({ "site": "beta", "community": "atlas", "allowed": true });
    let movers = walk.json(&routes::MOVER_SET, &[], grant);
    assert_eq!(movers["items"][0]["communities"], json!(["atlas"]), "{movers}");
    assert_eq!(walk.get(&routes::MOVER_LIST, &[], &[]), movers);
    let limit = json!({ "of": "into", "name": "beta", "bytes_per_s": 1_000_000_000 });
    let limits = walk.json(&routes::LIMIT_SET, &[], limit);
    assert_eq!(limits["items"][0]["bytes_per_s"], json!(1_000_000_000));
    assert_eq!(walk.get(&routes::LIMIT_LIST, &[], &[]), limits);
    walk.json(&routes::LIMIT_SET, &[], json!({ "of": "into", "name": "beta" }));
    let set =
        walk.json(&routes::LINK_SET, &[], json!({ "links": [{ "source": "alpha", "target": "beta" }] }));
    assert_eq!(set["open"], json!(false));
    let back = json!({ "add": [{ "source": "beta", "target": "alpha" }] });
    assert_eq!(walk.json(&routes::LINK_CHANGE, &[], back)["links"].as_array().unwrap().len(), 2);
    walk.json(&routes::LINK_SET, &[], json!({ "links": null }));
    assert_eq!(walk.get(&routes::LINK_LIST, &[], &[])["open"], json!(true));
    let audit = walk.get(&routes::AUDIT_LIST, &[], &[("limit", "2"), ("of", "changes")]);
    assert_eq!(audit["items"][0]["what"], json!("links: from every storage to every other"));
    assert!(audit["next"].is_string());
    let decisions =
        walk.get(&routes::DECISION_LIST, &[], &[("limit", "1"), ("of", "allowed"), ("who", "admin")]);
    let latest = &decisions["items"][0];
    assert_eq!((&latest["allowed"], &latest["credential"]), (&json!(true), &json!("API token")));
    assert!(decisions["next"].is_string());
}

fn measured(walk: &mut Walk) {
    let host = json!({ "host": "ps.alpha.example", "site": "alpha", "role": "bandwidth" });
    assert_eq!(walk.json(&routes::HOST_SET, &[], json!({ "hosts": [host] }))["set"], json!(1));
    assert_eq!(walk.get(&routes::HOST_LIST, &[], &[])["items"][0]["mapping"], json!("explicit"));
    let run = json!({
        "test": { "type": "throughput", "spec": { "source": "ps.alpha.example", "dest": "ps.lost.example" } },
        "schedule": { "start": "2026-01-01T00:00:00Z" },
        "result": { "summary": { "summary": { "throughput-bits": 1e9 } } },
    });
    assert_eq!(walk.json(&routes::MEASUREMENT_PUT, &[], run.clone())["unmapped"], json!(1));
    assert_eq!(walk.json(&routes::MEASUREMENT_SEND, &[], run)["unmapped"], json!(1));
    assert_eq!(walk.get(&routes::UNMAPPED_LIST, &[], &[])["items"][0]["host"], json!("ps.lost.example"));
    walk.get(&routes::ARCHIVE_LIST, &[], &[]);
    walk.request(&routes::HOST_REMOVE, &["ps.alpha.example"], &[], &Value::Null);
}

fn agents(walk: &mut Walk, deployment: &Deployment) {
    let token = deployment.json(&["site", "add", "gamma", "--another-agent"])["join_token"]
        .as_str()
        .unwrap()
        .to_owned();
    let secret = token.parse::<JoinToken>().unwrap().secret;
    let (signing_request, key_pem) = new_signing_request().unwrap();
    let versions = json!(AGENT_PROTOCOL);
    let join = json!({ "versions": versions, "secret": secret, "signing_request": signing_request,
        "host": "walker" });
    let joined = walk.json(&routes::AGENT_JOIN, &[], join);
    let pem = |name: &str| joined[name].as_str().unwrap().to_owned();
    let credentials = Credentials { certificate_pem: pem("certificate"), key_pem, ca_pem: pem("ca") };
    let agent = walk.admin.with_tls(agent_client_tls(&credentials).unwrap());

    let incarnation = json!({ "number": 1, "nonce": 77 });
    let hello = json!({ "host": "walker", "version": "0", "data_addresses": ["127.0.0.1:9"], "storages": [],
        "held": [] });
    let now = walk.get(&routes::STATUS, &[], &[])["now"].clone();
    let report = json!({ "versions": versions, "incarnation": incarnation, "now": now, "hello": hello });
    let poll = json!({ "versions": versions, "incarnation": incarnation, "received": 0, "wait_ms": 1 });
    let (again, _) = new_signing_request().unwrap();
    for (route, body) in [
        (&routes::AGENT_REPORT, report),
        (&routes::AGENT_WORK, poll),
        (&routes::AGENT_RENEW, json!({ "signing_request": again })),
    ] {
        // An administrator is no agent, and a certificate is no administrator.
        assert!(
            matches!(walk.admin.call(route, &[], &[], &body).unwrap().status, 401 | 403),
            "{}",
            route.operation
        );
        let reply = agent.call(route, &[], &[], &body).unwrap();
        walk.accept(route, reply);
    }
    assert_eq!(agent.call(&routes::SITE_LIST, &[], &[], &Value::Null).unwrap().status, 401);
    let report = json!({ "versions": versions, "incarnation": incarnation, "now": now,
        "circuits": [circuit_link(&now)] });
    agent.call(&routes::AGENT_REPORT, &[], &[], &report).unwrap().expect(200);
    circuits_of_agents(walk);
}

/// As an agent tells of a link that has a circuit.
fn circuit_link(now: &Value) -> Value {
    let circuit = json!({
        "id": CIRCUIT, "why": "much waits", "asked": now, "asked_mbit": 100, "granted": now,
            "booked_mbit": 100,
        "used": now, "carried_bytes": 1_000_000, "carried_s": 1.0, "plain_bytes_per_s": 500_000.0,
    });
    let look = json!({ "pending_bytes": 5, "threshold_s": 3.0, "checks_found": 0, "checks_wanted": 1,
        "mbit": 100, "words": "5 B wait" });
    json!({ "source": "alpha", "provider": "static", "state": "established", "circuit": circuit, "look": look,
        "notes": [{ "at": now, "words": "it is used" }], "ended": [], "orders": [] })
}

const CIRCUIT: &str = "00000000-0000-8000-8000-0000000000aa";

fn circuits_of_agents(walk: &mut Walk) {
    let list = walk.get(&routes::CIRCUIT_LIST, &[], &[]);
    assert_eq!(
        (&list["items"][0]["link"], &list["items"][0]["gain_s"]),
        (&json!("alpha:gamma"), &json!(1.0))
    );
    let plan = walk.get(&routes::CIRCUIT_PLAN, &[], &[]);
    assert_eq!((&plan["level"], &plan["links"][0]["what"]), (&json!("agent"), &json!("none")), "{plan}");
    let wish = json!({ "source": "alpha", "target": "gamma", "mbit": 50, "seconds": 3_600 });
    let asked = walk.json(&routes::CIRCUIT_REQUEST, &[], wish);
    assert_eq!(asked["orders"][0]["state"], json!("sent"), "{asked}");
    let given = walk.json(&routes::CIRCUIT_RELEASE, &[CIRCUIT], Value::Null);
    assert_eq!(given["orders"][0]["what"], json!({ "kind": "release", "circuit": CIRCUIT }), "{given}");
    let shown = walk.get(&routes::CIRCUIT_SHOW, &["alpha:gamma"], &[]);
    assert_eq!(shown["circuits"][0]["circuit"]["id"], json!(CIRCUIT), "{shown}");
    assert_eq!(walk.get(&routes::CIRCUIT_HISTORY, &[], &[])["items"].as_array().unwrap().len(), 1);
}

/// The link that the files took is known, and can be told to the same service again, which knows better.
fn network(walk: &mut Walk) {
    assert!(walk.get(&routes::NETWORK_SHOW, &[], &[])["links"].as_u64().unwrap() >= 1);
    let links = walk.get(&routes::NETWORK_LINKS, &[], &[("source", "alpha"), ("target", "beta")]);
    assert_eq!(links["items"][0]["target"], json!("beta"), "{links}");
    let detail = walk.get(&routes::NETWORK_LINK, &["alpha", "beta"], &[]);
    assert!(!detail["explanation"].as_array().unwrap().is_empty());
    let document = walk.get(&routes::NETWORK_EXPORT, &[], &[]);
    assert_eq!(document["format"], json!("longhaul-network"));
    let imported = walk.json(&routes::NETWORK_IMPORT, &[], json!({ "document": document }));
    assert_eq!(imported["taken"], json!(0), "{imported}");
}

fn overview(walk: &mut Walk) {
    let status = walk.get(&routes::STATUS, &[], &[]);
    assert!(status["files_done"].as_u64().unwrap() >= 30);
    let problems = walk.get(&routes::PROBLEM_LIST, &[], &[]);
    assert!(!problems["items"].as_array().unwrap().is_empty());
    walk.get(&routes::RATE_HISTORY, &[], &[("source", "alpha"), ("target", "beta"), ("seconds", "600")]);
    network(walk);
    assert_eq!(walk.get(&routes::CHECK, &[], &[])["sound"], json!(true));
    let description = walk.get(&routes::OPENAPI, &[], &[]);
    assert_eq!(description["openapi"].as_str().map(|version| &version[..3]), Some("3.1"));
    assert_eq!(walk.get(&routes::HEALTHZ, &[], &[])["ok"], json!(true));
    assert_eq!(walk.get(&routes::READYZ, &[], &[])["ok"], json!(true));
    let metrics = walk.request(&routes::METRICS, &[], &[], &Value::Null).text();
    assert_metrics(&metrics);
    assert_eq!(walk.nobody.call(&routes::EVENTS, &[], &[], &Value::Null).unwrap().status, 401);
    let mut events = walk.viewer.events(WITHIN).unwrap();
    walk.admin.call(&routes::SITE_CHANGE, &["gamma"], &[], &json!({ "reason": "told" })).unwrap().expect(200);
    // Others may have changed meanwhile.
    loop {
        let event: ChangeEvent = serde_json::from_value(events.event().unwrap()).unwrap();
        if event.kind == ChangeKind::Site && event.id.as_deref() == Some("gamma") {
            break;
        }
    }
    walk.walked.insert(routes::EVENTS.operation);
}

/// The text format: each sample has its help and type, names are ours, and base units are used.
#[track_caller]
fn assert_metrics(text: &str) {
    let mut described = BTreeSet::new();
    let mut samples = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            described.insert(rest.split(' ').next().unwrap().to_owned());
        } else if !line.starts_with('#') && !line.is_empty() {
            let name = line.split(['{', ' ']).next().unwrap();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(described.contains(name) || described.contains(family), "no type before {line}");
            assert!(name.starts_with("longhaul_") || name.starts_with("process_"), "{line}");
            assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            samples += 1;
        }
    }
    assert!(samples > 10, "{text}");
    assert!(described.iter().any(|name| name.ends_with("_bytes_total")), "{described:?}");
}

fn access(walk: &mut Walk, deployment: &Deployment) {
    assert_eq!(walk.get(&routes::WHOAMI, &[], &[])["role"], json!("viewer"));
    walk.get(&routes::TOKEN_LIST, &[], &[]);
    let made =
        walk.json(&routes::TOKEN_CREATE, &[], json!({ "name": "robot", "role": "admin", "seconds": 600 }));
    let robot = walk.admin.with_token(made["token"].as_str());
    assert_eq!(robot.get(&routes::WHOAMI, &[], &[])["name"], json!("robot"));
    walk.request(&routes::TOKEN_REVOKE, &["robot"], &[], &Value::Null);
    assert_eq!(
        robot.call(&routes::WHOAMI, &[], &[], &Value::Null).unwrap().status,
        401,
        "revoked is revoked"
    );

    let account =
        json!({ "name": "anna", "password": "four words and more", "role": "viewer", "community": "higgs" });
    let made = walk.json(&routes::ACCOUNT_ADD, &[], account);
    assert!(made["disabled"] == json!(false) && made.get("password").is_none(), "{made}");
    assert_eq!(walk.get(&routes::ACCOUNT_LIST, &[], &[])["items"], json!([made]));
    let change = json!({ "disabled": true, "community": "", "password": "other words and more" });
    let changed = walk.json(&routes::ACCOUNT_CHANGE, &["anna"], change);
    assert_eq!((&changed["disabled"], &changed["community"]), (&json!(true), &Value::Null));
    walk.request(&routes::ACCOUNT_REMOVE, &["anna"], &[], &Value::Null);

    // A person's session, on the plain page of this machine: one-time token, cookie, CSRF token, log-out.
    let login = walk.json(&routes::LOGIN_TOKEN_CREATE, &[], Value::Null);
    let page = Api::plain(deployment.page_address.unwrap());
    let reply = page.call(&routes::SESSION_LOGIN, &[], &[], &json!({ "token": login["token"] })).unwrap();
    let reply = walk.accept(&routes::SESSION_LOGIN, reply);
    let again = page.call(&routes::SESSION_LOGIN, &[], &[], &json!({ "token": login["token"] })).unwrap();
    assert_eq!(again.status, 401, "it opens one session");
    let set = reply.header("set-cookie").unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    let cookie = set.split(';').next().unwrap().to_owned();
    let csrf = reply.json()["csrf_token"].as_str().unwrap().to_owned();
    let with_cookie = [("cookie", cookie.as_str()), ("content-type", "application/json")];
    page.send("GET", routes::WHOAMI.path, &with_cookie, b"").unwrap().expect(200);
    let change = json!({ "reason": "by cookie" }).to_string();
    let target = routes::SITE_CHANGE.fill(&["gamma"]);
    let reply = page.send("PATCH", &target, &with_cookie, change.as_bytes()).unwrap();
    assert_eq!(reply.status, 403, "a change needs the session's CSRF token: {}", reply.text());
    let whole = [with_cookie.as_slice(), &[(routes::CSRF_HEADER, csrf.as_str())]].concat();
    page.send("PATCH", &target, &whole, change.as_bytes()).unwrap().expect(200);
    let reply = page.send("DELETE", routes::SESSION_LOGOUT.path, &whole, b"").unwrap();
    walk.accept(&routes::SESSION_LOGOUT, reply);
    assert_eq!(page.send("GET", routes::WHOAMI.path, &with_cookie, b"").unwrap().status, 401);
}

/// Requests that are none: each gets one clear error with a next step, and nothing else.
#[test]
fn wrong_requests_get_one_clear_error() {
    let deployment = Deployment::with(ServiceOptions { pages: true, ..ServiceOptions::default() });
    let api = deployment.api();
    let json = [("content-type", "application/json")];
    let post = |path: &str, body: &[u8]| api.send("POST", path, &json, body).unwrap();
    let mut surprises = Vec::new();
    for (place, (reply, status)) in [
        (post("/api/v1/datasets", b"{"), 400),
        (post("/api/v1/datasets", b"[]"), 400),
        (post("/api/v1/datasets", br#"{"name":"a b"}"#), 400),
        (post("/api/v1/datasets", br#"{"name":"../up"}"#), 400),
        (post("/api/v1/datasets", "[".repeat(100_000).as_bytes()), 400),
        (post("/api/v1/subscriptions", br#"{"dataset":"x","storage":"y","priority":10}"#), 404),
        (post("/api/v1/nothing", b"{}"), 404),
        (api.send("PUT", "/api/v1/datasets", &json, b"{}").unwrap(), 405),
        (api.send("GET", "/api/v1/datasets?limit=many", &[], b"").unwrap(), 400),
        (api.send("GET", "/api/v1/datasets?limit=-1", &[], b"").unwrap(), 400),
        (api.send("GET", "/api/v1/datasets?colour=red", &[], b"").unwrap(), 400),
        (api.send("GET", "/api/v1/datasets?after=%00%ff", &[], b"").unwrap(), 422),
        (api.send("GET", "/api/v1/transfers?state=lost", &[], b"").unwrap(), 400),
        (api.send("GET", "/api/v1/replicas", &[], b"").unwrap(), 400),
        (api.send("GET", "/api/v1/datasets/%2e%2e%2f", &[], b"").unwrap(), 400),
    ]
    .into_iter()
    .enumerate()
    {
        if reply.status == status {
            assert_problem("a wrong request", &reply);
        } else {
            surprises.push(format!("{place}: {} instead of {status}: {}", reply.status, reply.text()));
        }
    }
    assert!(surprises.is_empty(), "{surprises:#?}");
    // The plain page speaks to this machine's browsers only: a page of another site cannot use it.
    let page = Api::plain(deployment.page_address.unwrap());
    let token = [("authorization", format!("Bearer {}", deployment.token))];
    let bearer: Vec<(&str, &str)> = token.iter().map(|(name, value)| (*name, value.as_str())).collect();
    page.send("GET", "/api/v1/whoami", &bearer, b"").unwrap().expect(200);
    let from_elsewhere = [bearer.as_slice(), &[("origin", "https://evil.example")]].concat();
    let reply = page.send("GET", "/api/v1/whoami", &from_elsewhere, b"").unwrap();
    assert_eq!(reply.status, 403, "{}", reply.text());
    let mut rebound = Api::plain(deployment.page_address.unwrap());
    rebound.host = Some("evil.example".to_owned());
    let reply = rebound.send("GET", "/ui/login", &[], b"").unwrap();
    assert_eq!(reply.status, 403, "{}", reply.text());
}
