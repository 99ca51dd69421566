//! Links are tested and graded with virtual files, and the service is loaded with agents that move nothing.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use longhaul_testbed::{CommandOutput, Deployment, INTERRUPTED, SiteOptions};
use serde_json::{Value, json};

/// Little data, and much time for it: a busy machine cuts no step short.
const SMALL: [&str; 8] =
    ["--files", "4", "--step-bytes", "20MB", "--step-time", "20", "--at-least", "100kB/s"];

fn commission(deployment: &Deployment, words: &[&str]) -> (i32, Value) {
    let ran = deployment.longhaul(&[&["site", "commission"], words, &["--json"]].concat());
    (ran.status, ran.json())
}

fn assert_clean(deployment: &Deployment) {
    let datasets = deployment.json(&["dataset", "list"]);
    assert_eq!(datasets["items"], json!([]), "no test data is left");
    deployment.check();
}

/// Promise 2 too: what arrives at a virtual storage was compared with the digests that the names stand for.
#[test]
fn links_are_graded_and_nothing_is_left() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site).with_virtual_storage());
    }
    deployment.add_site(SiteOptions::new("delta"));
    let (status, links) = commission(&deployment, &[&["beta"], &SMALL[..]].concat());
    assert_eq!(status, 0);
    let ends: Vec<(&str, &str)> = links
        .as_array()
        .unwrap()
        .iter()
        .map(|link| (link["source"].as_str().unwrap(), link["target"].as_str().unwrap()))
        .collect();
    assert_eq!(ends, [("alpha", "beta"), ("beta", "alpha")], "delta has no virtual storage");
    for link in links.as_array().unwrap() {
        assert_eq!(
            (&link["state"], &link["test"]["grade"]),
            (&json!("commissioned"), &json!("commissioned"))
        );
        let steps = link["test"]["steps"].as_array().unwrap();
        let at_once: Vec<u64> = steps.iter().map(|step| step["files_at_once"].as_u64().unwrap()).collect();
        assert_eq!(at_once, [1, 2, 4]);
        for step in steps {
            assert_eq!(step["files"], step["files_at_once"], "{step}");
            assert!(step["rate"].as_f64().unwrap() > 0.0 && step["attempts_failed"] == json!(0), "{step}");
        }
    }
    assert_eq!(deployment.json(&["site", "show", "beta"])["links"], links, "the service keeps it");
    assert_clean(&deployment);

    let wish = ["beta", "--with", "alpha", "--direction", "in", "--files", "1", "--at-least", "1TB/s"];
    let (status, slow) = commission(&deployment, &wish);
    assert_eq!((status, &slow[0]["test"]["grade"]), (7, &json!("slow")));
    assert_eq!(slow[0]["state"], json!("degraded"));
    assert_eq!(slow.as_array().unwrap().len(), 1);
    assert_clean(&deployment);

    let refused = deployment.longhaul(&["site", "commission", "delta"]);
    assert_ne!(refused.status, 0);
    assert!(refused.stderr.contains("delta has no virtual storage"), "{refused}");
    assert!(refused.stderr.contains("--virtual delta-test"), "{refused}");
}

/// The null mover's agent cannot be dialled, and fails in all that it fetches.
#[test]
fn what_fails_is_graded_so_and_an_interruption_cleans_up() {
    let mut deployment = Deployment::new();
    let file = deployment.directory().join("links.toml");
    fs::write(&file, "[default]\nfailure_rate = 1.0\nfailure = 'source'\nrate = '50MB/s'\n").unwrap();
    deployment.add_site(SiteOptions::new("alpha").with_virtual_storage());
    deployment.add_site(SiteOptions::new("nul").null_mover(&file));
    let wish = ["alpha", "--files", "2", "--step-time", "2", "--patience", "5"];
    let (status, links) = commission(&deployment, &wish);
    assert_eq!(status, 7);
    let grades: Vec<&str> =
        links.as_array().unwrap().iter().map(|link| link["test"]["grade"].as_str().unwrap()).collect();
    assert_eq!(grades[1], "unreachable", "nul → alpha");
    assert!(["failing", "unreachable"].contains(&grades[0]), "alpha → nul: {grades:?}");
    assert_clean(&deployment);

    // So slow that it lasts until it is interrupted.
    fs::write(&file, "[default]\nrate = '1kB/s'\n").unwrap();
    deployment.restart("nul");
    deployment.until_connected("nul");
    let words = ["site", "commission", "alpha", "--direction", "out", "--patience", "600"];
    let child = deployment.command(&words).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    deployment.until("the probe is on its way", Duration::from_secs(60), || {
        let list = deployment.json(&["subscription", "list"]);
        (!list["items"].as_array().unwrap().is_empty()).then_some(())
    });
    let before = deployment.json(&["site", "show", "alpha"])["links"].clone();
    assert!(
        before.as_array().unwrap().iter().any(|link| link["state"] == json!("commissioning")),
        "{before}"
    );
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(INTERRUPTED), "{}", String::from_utf8_lossy(&ended.stderr));
    let after = deployment.json(&["site", "show", "alpha"])["links"].clone();
    assert!(
        after.as_array().unwrap().iter().all(|link| link["state"] == json!("degraded")),
        "as before: {after}"
    );
    assert_clean(&deployment);
}

/// Promise 3: every request ends, whatever fails; failures come at the rate that the file says.
#[test]
fn a_loaded_service_loses_nothing() {
    const FILES: u64 = 2_000;
    let mut deployment = Deployment::new();
    let file = deployment.directory().join("links.toml");
    fs::write(&file, "seed = 3\n[default]\nfailure_rate = 0.1\nrate = '1GB/s'\noverhead_ms = 1\n").unwrap();
    for site in ["a", "b", "c", "d"] {
        deployment.add_site(SiteOptions::new(site).null_mover(&file));
    }
    let words =
        ["load", "--count", "20", "--files", "100", "--rate", "20", "--sizes", "1kB:9,10MB:1", "--seed", "4"];
    let mut load = deployment.command(&[&words[..], &["--wait", "600", "--json"]].concat());
    let ran = CommandOutput::from_command(&mut load, Duration::from_secs(900));

    let report = ran.ok().json();
    assert_eq!((&report["submitted"], &report["complete"]), (&json!(20), &json!(20)));
    assert_eq!((&report["files_done"], &report["files_failed"]), (&json!(FILES), &json!(0)));
    // Each file needs 1/0.9 attempts on average: 222 more than files, with a standard deviation of 16.
    let retries = report["retries"].as_u64().unwrap();
    assert!((143..=301).contains(&retries), "{retries}");
    assert_clean(&deployment);
}
