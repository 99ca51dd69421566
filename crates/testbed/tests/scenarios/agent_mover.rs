//! Copies of jobs between plain servers, streamed by a site's agent in place of the service: seen at its
//! sockets, over its death, a cancellation, and where its site's policy does not let it reach the storages.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules, names};
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, SiteOptions, needs, tree};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(180);
const LOOPBACK: &str = "[\"127.0.0.0/8\", \"::1/128\"]";

fn may_run() -> bool {
    needs::programs("copies that agents stream", &[("nginx", "-v"), ("openssl", "version")])
}

/// As [`unlicensed`], and an administrator has allowed it to stream for everybody.
fn deployment(authority: &ForeignAuthority, allow: &str) -> Deployment {
    let deployment = unlicensed(authority, allow);
    deployment.json(&["mover", "allow", "beta", "*"]);
    deployment
}

/// A service, and at the site `beta` an agent that offers to stream; what it may reach beside public
/// networks.
fn unlicensed(authority: &ForeignAuthority, allow: &str) -> Deployment {
    let ca = authority.ca_file();
    let settings = format!("[service.jobs]\nallow_networks = {LOOPBACK}\nauthorities = [{ca:?}]\n");
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    let settings = format!("[agent.mover]\nfiles = 3\nallow_networks = {allow}\nauthorities = [{ca:?}]\n");
    deployment.add_site(SiteOptions { settings, ..SiteOptions::new("beta") });
    deployment
}

fn submit(deployment: &Deployment, source: &str, target: &str, params: Value) -> String {
    let file = deployment.directory().join("job.json");
    let job = json!([{
        "files": [{ "sources": [source], "destinations": [target] }],
        "params": params,
    }]);
    fs::write(&file, job.to_string()).unwrap();
    let made = deployment.json(&["submit", "--file", file.to_str().unwrap()]);
    made["items"][0]["id"].as_str().unwrap().to_owned()
}

fn show(deployment: &Deployment, id: &str) -> Value {
    deployment.json(&["job", "show", id])
}

fn port(url: &str) -> u16 {
    url.split('/')
        .nth(2)
        .and_then(|host| host.rsplit_once(':'))
        .and_then(|(_, port)| port.parse().ok())
        .unwrap()
}

/// Whether a process has a connection to a port of the loopback.
fn is_connected(pid: u32, port: u16) -> bool {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let own: BTreeSet<PathBuf> = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let remote = format!("0100007F:{port:04X}");
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // 01: established.
        words.len() > 9
            && words[2] == remote
            && words[3] == "01"
            && own.contains(&PathBuf::from(format!("socket:[{}]", words[9])))
    })
}

/// Waits until an agent has moved a part of the one file of a job; says what the attempt says of it.
fn until_streaming(deployment: &Deployment, id: &str) -> Value {
    deployment.until("an agent streams", WITHIN, || {
        let shown = show(deployment, id);
        let file = &shown["files"][0];
        let streams = file["mover"].is_string() && file["bytes_done"].as_u64().is_some_and(|bytes| bytes > 0);
        streams.then(|| file.clone())
    })
}

fn until_ended(deployment: &Deployment, id: &str) -> Value {
    deployment.until("the job ends", WITHIN, || {
        let shown = show(deployment, id);
        shown["job"]["finished"].is_string().then_some(shown)
    })
}

#[test]
fn an_agent_streams_what_the_storages_cannot_copy_and_survives_its_death() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let source = Nginx::start(
        &authority,
        NginxRules { bytes_per_s: Some(1_000_000), token: Some("canary-source"), ..NginxRules::default() },
    );
    let target =
        Nginx::start(&authority, NginxRules { token: Some("canary-target"), ..NginxRules::default() });
    let content = tree::content(&mut Random::new(1), 9_000_000);
    source.put("f1", &content);
    let mut deployment = deployment(&authority, LOOPBACK);
    let file = deployment.directory().join("job.json");
    let job = json!([{
        "files": [{
            "sources": [source.url("f1")], "destinations": [target.url("f1")],
            "source_tokens": ["canary-source"], "destination_tokens": ["canary-target"],
        }],
        "params": { "retry": 3, "retry_delay": 1, "verify_checksum": "both" },
    }]);
    fs::write(&file, job.to_string()).unwrap();
    let made = deployment.json(&["submit", "--file", file.to_str().unwrap()]);
    let id = made["items"][0]["id"].as_str().unwrap().to_owned();

    let file = until_streaming(&deployment, &id);
    let mover = file["mover"].as_str().unwrap();
    assert!(mover.contains("of beta: the only mover") && mover.contains("0 of 3 places taken"), "{mover}");
    // The bytes go through the agent's process and no other.
    for url in [source.url(""), target.url("")] {
        assert!(is_connected(deployment.pid("beta"), port(&url)), "the agent is not connected with {url}");
    }
    assert!(!target.data().join("f1").exists());

    deployment.kill("beta");
    deployment.start("beta");
    let shown = until_ended(&deployment, &id);
    let file = &shown["files"][0];
    assert_eq!(file["state"], json!("FINISHED"), "{shown}");
    assert_eq!(file["attempts"], json!(2), "the one that died and one more: {shown}");
    assert!(fs::read(target.data().join("f1")).unwrap() == content);
    assert_eq!(names(&target.data()), ["f1"]);
    let mode = file["mode"].as_str().unwrap();
    assert!(mode.starts_with("stream"), "{shown}");

    // What opens the storages is in no log and no file of the agent's, and in no file of the service's in the
    // clear.
    for name in ["beta", SERVICE] {
        assert!(!deployment.log(name).tail().contains("canary"), "{name} logs a credential");
    }
    let mut folders = vec![deployment.agent_state("beta"), deployment.service_state()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let bytes = fs::read(entry.path()).unwrap_or_default();
                let found = bytes.windows(6).any(|part| part == b"canary");
                assert!(!found, "{} holds a credential", entry.path().display());
            }
        }
    }
    deployment.assert_alive();
}

#[test]
fn the_end_of_a_stream_is_the_attempts_and_a_cancelled_one_ends_at_the_agent() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (source, target) =
        (Nginx::start(&authority, NginxRules::default()), Nginx::start(&authority, NginxRules::default()));
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(20_000), ..NginxRules::default() });
    source.put("f1", b"content of f1");
    slow.put("f2", &vec![7; 10_000_000]);
    let mut deployment = deployment(&authority, LOOPBACK);

    let id = submit(&deployment, &source.url("f1"), &target.url("f1"), json!({ "verify_checksum": "both" }));
    let shown = until_ended(&deployment, &id);
    let mode = shown["files"][0]["mode"].as_str().unwrap_or_default().to_owned();
    assert!(mode.starts_with("stream by the agent ") && mode.ends_with(" of beta"), "{shown}");
    assert_eq!(fs::read(target.data().join("f1")).unwrap(), b"content of f1");
    // What the agent is told is wrong has its reason, as if the service had made it.
    let gone = submit(&deployment, &source.url("gone"), &target.url("gone"), json!({}));
    let shown = until_ended(&deployment, &gone);
    assert_eq!(shown["files"][0]["fault"]["blame"], json!("source"), "{shown}");

    let id = submit(&deployment, &slow.url("f2"), &target.url("f2"), json!({}));
    until_streaming(&deployment, &id);
    let (agent, from) = (deployment.pid("beta"), port(&slow.url("")));
    assert!(is_connected(agent, from));
    deployment.longhaul(&["job", "cancel", &id]).ok();
    deployment.until("the agent hangs up", WITHIN, || (!is_connected(agent, from)).then_some(()));
    deployment
        .until("what came of it is cleared away", WITHIN, || (names(&target.data()) == ["f1"]).then_some(()));
    assert_eq!(show(&deployment, &id)["job"]["state"], json!("CANCELED"));
    deployment.assert_alive();
}

#[test]
fn where_an_agent_may_not_go_the_service_goes_itself_and_says_why() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (source, target) =
        (Nginx::start(&authority, NginxRules::default()), Nginx::start(&authority, NginxRules::default()));
    source.put("f1", b"content of f1");
    let mut deployment = unlicensed(&authority, "[\"10.0.0.0/8\"]");
    // The agent's offer alone brings it nobody's credentials.
    let id = submit(&deployment, &source.url("f1"), &target.url("f0"), json!({}));
    let shown = until_ended(&deployment, &id);
    let mover = shown["files"][0]["mover"].as_str().unwrap();
    assert!(mover.ends_with("no administrator has allowed its site to stream for this community"), "{mover}");

    let movers = deployment.json(&["mover", "allow", "beta", "*"]);
    let expected = json!([{ "site": "beta", "communities": ["*"], "files": 3 }]);
    assert_eq!(movers["items"], expected);
    let id = submit(&deployment, &source.url("f1"), &target.url("f1"), json!({}));
    let shown = until_ended(&deployment, &id);
    let file = &shown["files"][0];
    assert_eq!(
        (&file["state"], &file["mode"], &file["attempts"]),
        (&json!("FINISHED"), &json!("stream"), &json!(1))
    );
    let mover = file["mover"].as_str().unwrap();
    assert!(mover.starts_with("the service itself: the agent ") && mover.contains(" of beta: "), "{mover}");
    assert!(mover.contains("localhost is a loopback address, which is not allowed here"), "{mover}");
    assert_eq!(fs::read(target.data().join("f1")).unwrap(), b"content of f1");

    // A site that drains gets none, and is not asked.
    deployment.longhaul(&["site", "drain", "beta"]).ok();
    let id = submit(&deployment, &source.url("f1"), &target.url("f2"), json!({}));
    let shown = until_ended(&deployment, &id);
    let mover = shown["files"][0]["mover"].as_str().unwrap();
    assert!(mover.ends_with(" of beta: its site drains"), "{mover}");
    deployment.assert_alive();
}
