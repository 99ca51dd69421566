//! Files pass through a relay between real agents, by the public commands alone, and the relay is empty
//! after.

use std::fs;
use std::path::Path;
use std::time::Duration;

use longhaul_testbed::{Deployment, Random, SiteOptions, tree};
use serde_json::json;

const FILES: usize = 60;
const BYTES: u64 = 20_000_000;
const WITHIN: Duration = Duration::from_secs(120);

#[test]
fn a_dataset_goes_over_a_relay_which_is_left_clean() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "rho", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), FILES, BYTES, &mut Random::new(5));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    deployment.json(&["link", "only", "alpha:rho", "rho:beta"]);
    let id =
        deployment.json(&["subscribe", "run7", "beta", "--activity", "export", "--deadline", "1d"])["id"]
            .as_str()
            .unwrap()
            .to_owned();
    // Nothing may pass yet, and whoever asks is told why.
    deployment.until("it waits for a way", WITHIN, || {
        let view = deployment.json(&["subscription", "show", &id]);
        let held_up = view["expected"].to_string();
        held_up.contains("no route leads from alpha to beta").then_some(())
    });
    deployment.json(&["storage", "set", "rho", "--relay", "yes"]);
    deployment.deliver("run7", "beta", WITHIN.as_secs());
    tree::assert_same(&files, &deployment.storage("beta"), "");

    let list = deployment.json(&["transfer", "list", "--target", "rho", "--state", "done"]);
    let hop = list["items"][0]["id"].as_str().unwrap();
    let choice = deployment.json(&["transfer", "explain", hop])["attempts"][0]["choice"].clone();
    assert_eq!(choice["way"], json!(["rho", "beta"]), "{choice}");
    assert!(choice["charged_to"].as_str().unwrap().ends_with(", export"), "{choice}");

    deployment.until("the relay is clean", WITHIN, || {
        let replicas = deployment.json(&["replica", "list", "run7"]);
        let at_rho = replicas["items"].as_array()?.iter().any(|one| one["storage"] == json!("rho"));
        (!at_rho && !has_files(&deployment.storage("rho"))).then_some(())
    });
    deployment.check();
    deployment.assert_nothing_failed();
    deployment.assert_alive();
}

/// Whether there are files of ours below a storage. Those that vanish meanwhile, as they are being deleted,
/// do not count.
fn has_files(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    let ours = entries.flatten().filter(|entry| entry.file_name() != ".longhaul");
    ours.into_iter().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => has_files(&entry.path()),
        found => found.is_ok(),
    })
}
