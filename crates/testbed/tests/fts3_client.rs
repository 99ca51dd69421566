//! The unmodified `fts3` client, its tools and its Python bindings, against a real service: every case of
//! `crates/testbed/fts3`, which says what the reference of the REST API promises.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use longhaul_testbed::{Deployment, ServiceOptions, needs};
use serde_json::{Value, json};

/// Who asks, of which community, and what they may do with the configuration.
const PEOPLE: [(&str, &str, &str); 4] = [
    ("alice", "testvo", "none"),
    ("bob", "othervo", "none"),
    ("carol", "testvo", "none"),
    ("manager", "testvo", "all"),
];

#[test]
fn the_unmodified_client_sees_what_the_reference_promises() {
    let Some(python) = client() else {
        return needs::not_run(
            "the fts3 client",
            "no Python with fts3 3.14.2 (the test command installs it)",
        );
    };
    if !needs::program("openssl", &["version"]) {
        return needs::not_run("the fts3 client", "no openssl here");
    }
    let mut deployment =
        Deployment::with(ServiceOptions { settings: settings(), ..ServiceOptions::default() });
    let folder = deployment.directory().join("client");
    fs::create_dir(&folder).unwrap();
    let world = json!({
        "endpoint": deployment.url,
        "capath": authorities(&deployment, &folder),
        "folder": folder,
        "tokens": tokens(&deployment),
    });
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("fts3/suite.py");
    let words = std::env::var("LONGHAUL_FTS3_CASES").unwrap_or_default();
    let ran = Command::new(&python)
        .arg("-B")
        .arg(&suite)
        .args(words.split_whitespace())
        .env("LONGHAUL_FTS3_WORLD", world.to_string())
        .env("HOME", &folder)
        .env_remove("X509_USER_PROXY")
        .env_remove("X509_CERT_DIR")
        .stdin(Stdio::null())
        .output()
        .expect("the suite can be run");
    let told = String::from_utf8_lossy(&ran.stdout);
    println!("{told}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "the suite failed; its output is above");
    assert!(told.contains(" cases, "), "the suite ran to its end");
    deployment.assert_alive();
}

/// A Python with the client: the one that the test command made, or told of.
fn client() -> Option<PathBuf> {
    let told = std::env::var_os("LONGHAUL_FTS3_PYTHON").map(PathBuf::from);
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    let made = || Some(target.join("tools/fts3/bin/python")).filter(|path| path.exists());
    told.or_else(made)
}

fn settings() -> String {
    let person = |(name, community, config): (&str, &str, &str)| {
        format!("[[service.fts.people]]\nname = {name:?}\ncommunity = {community:?}\nconfig = {config:?}\n")
    };
    // The suite's storages are on this machine.
    let networks = "[service.jobs]\nallow_networks = [\"127.0.0.0/8\"]\n".to_owned();
    networks + &PEOPLE.map(person).concat()
}

/// An API token for each, and the administrator's.
fn tokens(deployment: &Deployment) -> BTreeMap<String, Value> {
    let make = |name: &str| deployment.json(&["token", "create", name, "--role", "viewer"])["token"].clone();
    let mut tokens: BTreeMap<String, Value> =
        PEOPLE.iter().map(|(name, ..)| ((*name).to_owned(), make(name))).collect();
    tokens.insert("admin".to_owned(), Value::from(deployment.token.clone()));
    tokens
}

/// The deployment's authority as grid software has it: a folder of files named after hashes of subjects.
fn authorities(deployment: &Deployment, folder: &Path) -> PathBuf {
    let capath = folder.join("certificates");
    fs::create_dir(&capath).unwrap();
    let hash = Command::new("openssl")
        .args(["x509", "-noout", "-hash", "-in"])
        .arg(&deployment.ca)
        .output()
        .expect("openssl runs");
    let hash = String::from_utf8(hash.stdout).unwrap();
    assert!(hash.trim().len() == 8, "a hash has eight digits: {hash:?}");
    fs::copy(&deployment.ca, capath.join(format!("{}.0", hash.trim()))).unwrap();
    capath
}
