//! Sites exchange what they have while none but the first has all of it.

use longhaul_api::routes;
use longhaul_model::Timestamp;
use longhaul_testbed::{Deployment, Random, SiteOptions, tree};
use serde_json::{Value, json};

const FILES: usize = 240;
const BYTES: u64 = 60_000_000;

#[test]
fn gamma_takes_files_from_beta_while_beta_is_incomplete() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta", "gamma"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), FILES, BYTES, &mut Random::new(3));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    // The way out of alpha is what both wait for; between beta and gamma there is room.
    deployment.json(&["site", "limit", "alpha", "--out", "6MB"]);
    let beta = deployment.json(&["subscribe", "run7", "beta"])["id"].as_str().unwrap().to_owned();
    deployment.json(&["subscribe", "run7", "gamma"]);
    for site in ["beta", "gamma"] {
        deployment.deliver("run7", site, 120);
        tree::assert_same(&files, &deployment.storage(site), "");
    }

    // By the service's clock, whenever we look.
    let time = |view: &Value, name: &str| view[name].as_str().unwrap().parse::<Timestamp>().unwrap();
    let complete = time(&deployment.json(&["subscription", "show", &beta]), "completed");
    let query = [("source", "beta"), ("target", "gamma"), ("state", "done")];
    let mut early = deployment.api().all(&routes::TRANSFER_LIST, &[], &query);
    early.retain(|transfer| time(transfer, "changed") < complete);
    println!("gamma had {} files from beta while beta was incomplete", early.len());
    assert!(!early.is_empty(), "beta is complete before gamma took anything from it");

    // Each says why it was chosen, and what else there was.
    let id = early[0]["id"].as_str().unwrap();
    let explained = deployment.json(&["transfer", "explain", id]);
    let choice = &explained["attempts"].as_array().unwrap().last().unwrap()["choice"];
    assert!(!choice["reason"].as_str().unwrap().is_empty(), "{choice}");
    let candidates = choice["candidates"].as_array().unwrap();
    assert!(
        candidates.iter().any(|one| one["storage"] == json!("beta") && one["chosen"] == json!(true)),
        "{choice}"
    );
    assert!(candidates.iter().any(|one| one["storage"] == json!("alpha")), "{choice}");

    // Together they took less out of alpha than two whole copies.
    let sources = deployment.json(&["subscription", "list", "--dataset", "run7"]);
    let from_alpha: u64 = sources["items"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|one| one["sources"].as_array().unwrap())
        .filter(|share| share["storage"] == json!("alpha"))
        .map(|share| share["bytes"].as_u64().unwrap())
        .sum();
    let whole: u64 = files.values().map(|content| content.size).sum();
    println!("alpha gave {from_alpha} of {} bytes", 2 * whole);
    assert!(from_alpha < 2 * whole, "nothing was exchanged");
    deployment.assert_nothing_failed();
    deployment.check();
}
