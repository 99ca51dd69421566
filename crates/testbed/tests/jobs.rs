//! Copies between storages that have never heard of us, by the commands of people: submitted, watched, ended.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::time::Duration;

use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules};
use longhaul_testbed::{Deployment, ServiceOptions, needs};
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(60);

#[test]
fn people_submit_watch_and_end_jobs() {
    for (name, probe) in [("nginx", "-v"), ("openssl", "version")] {
        if !needs::program(name, &[probe]) {
            return needs::not_run("jobs by commands", &format!("there is no {name}"));
        }
    }
    let authority = ForeignAuthority::new("storages");
    let (one, other) =
        (Nginx::start(&authority, NginxRules::default()), Nginx::start(&authority, NginxRules::default()));
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(1_000), ..NginxRules::default() });
    let settings = format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n",
        authority.ca_file()
    );
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    one.put("f1", b"content of f1");
    one.put("f2", b"content of f2");
    slow.put("f3", &vec![7; 10_000_000]);

    // One file, waited for; its digest is compared.
    let (source, target) = (one.url("f1"), other.url("below/f1"));
    let sum = "ADLER32:1f9404a5";
    let done = deployment.longhaul(&[
        "submit",
        &source,
        &target,
        "--checksum",
        sum,
        "--verify",
        "both",
        "--wait=60",
    ]);
    assert_eq!(done.status, 6, "a checksum that it does not have: {done}");
    assert!(
        done.stdout.contains("failed; 0 of 1 file arrived") && done.stdout.contains("checksum"),
        "{done}"
    );
    let sum = "ADLER32:239304a8";
    let done = deployment
        .longhaul(&["submit", &source, &target, "--checksum", sum, "--verify", "both", "--wait=60"])
        .ok();
    assert!(done.stdout.contains(": finished; 1 of 1 file arrived, 13 B"), "{done}");
    assert_eq!(fs::read(other.data().join("below/f1")).unwrap(), b"content of f1");

    // Neither of them copies between servers, and the source takes an order to do so for one to copy within itself.
    let plain = deployment.longhaul(&["submit", &source, &other.url("plain"), "--wait=60"]).ok();
    assert!(plain.stdout.contains("1 of 1 file arrived"), "{plain}");
    assert_eq!(fs::read(other.data().join("plain")).unwrap(), b"content of f1");
    let left: Vec<_> = fs::read_dir(one.data()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("longhaul")), "{left:?}");

    // A file of jobs as FTS's clients write them; one of its files is nowhere.
    let file = deployment.directory().join("jobs.json");
    let pair = |name: &str| json!({ "sources": [one.url(name)], "destinations": [other.url(name)] });
    let jobs = json!([{ "files": [pair("f2"), pair("gone")], "params": { "verify_checksum": "both", "job_metadata": { "run": 7 } } }]);
    fs::write(&file, jobs.to_string()).unwrap();
    let made = deployment.json(&["submit", "--file", file.to_str().unwrap()]);
    let id = made["items"][0]["id"].as_str().unwrap();
    let waited = deployment.longhaul(&["job", "wait", id, "--within", "60"]);
    assert_eq!(waited.status, 7, "{waited}");
    assert!(waited.stdout.contains("finisheddirty; 1 of 2 files arrived"), "{waited}");
    assert!(waited.stdout.contains("turn: the source's administrator"), "{waited}");
    let shown = deployment.longhaul(&["job", "show", id]).ok().stdout;
    assert!(shown.contains("1 failed, 1 arrived") && shown.contains("{\"run\":7}"), "{shown}");
    assert!(shown.find(&one.url("gone")) < shown.find(&one.url("f2")), "what failed comes first: {shown}");
    let list = deployment.json(&["job", "list", "--state", "finisheddirty", "--source", "localhost"]);
    assert_eq!((list["items"].as_array().unwrap().len(), &list["items"][0]["id"]), (1, &json!(id)));
    assert_eq!(list["items"][0]["files_failed"], json!(1));

    // What is wrong is told at once, and nothing begins.
    let wrong = deployment.longhaul(&["submit", "srm://a.example/f", &target]);
    assert_eq!(wrong.status, 2, "{wrong}");
    assert!(
        wrong.stderr.contains("srm is no scheme") && wrong.stderr.contains("nothing was begun"),
        "{wrong}"
    );
    assert_eq!(deployment.json(&["job", "list", "--since", "1h"])["items"].as_array().unwrap().len(), 4);

    // Ended in the midst of it.
    let made = deployment.json(&["submit", &slow.url("f3"), &other.url("f3"), "--verify", "both"]);
    let id = made["id"].as_str().unwrap();
    deployment.until("the copy runs", WITHIN, || {
        let shown = deployment.json(&["job", "show", id]);
        (shown["counts"]["running"] == json!(1)).then_some(())
    });
    deployment.longhaul(&["job", "priority", id, "1"]).ok();
    let late = deployment.longhaul(&["job", "wait", id, "--within", "1"]);
    assert_eq!(late.status, 8, "{late}");
    let ended = deployment.longhaul(&["job", "cancel", id]).ok();
    assert_eq!(ended.stdout.trim_end(), format!("{id} is canceled"));
    let again = deployment.longhaul(&["job", "cancel", id]);
    assert!(again.status != 0 && again.stderr.contains("has ended (CANCELED)"), "{again}");
    assert_eq!(deployment.longhaul(&["job", "wait", id]).status, 6);
    assert!(!other.data().join("f3").exists());
    let unknown = deployment.longhaul(&["job", "show", "00000000-0000-4000-8000-000000000000"]);
    assert_eq!(unknown.status, 3, "{unknown}");
    deployment.assert_alive();
}
