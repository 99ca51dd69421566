//! Production and a debugging instance from one installation: the same program twice, each with its own
//! state, that tell each other of the network by the commands that people use.

use std::fs;
use std::path::Path;

use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, tree};
use serde_json::{Value, json};

/// What production's links carry: much from alpha to gamma, little from beta.
const LINKS: &str =
    "[default]\nrate = '200MB/s'\n\n[[links]]\nsource = 'beta'\ntarget = 'gamma'\nrate = '4MB/s'\n";
const ALIASES: [&str; 6] = ["--alias", "alpha=one", "--alias", "beta=two", "--alias", "gamma=three"];

fn instance(name: &str) -> Deployment {
    Deployment::with(ServiceOptions { deployment: Some(name.to_owned()), ..ServiceOptions::default() })
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_production_knows_changes_what_debugging_does_and_nothing_else() {
    let mut production = instance("production");
    let links = production.directory().join("links.toml");
    fs::write(&links, LINKS).unwrap();
    for site in ["alpha", "beta", "gamma"] {
        production.add_site(SiteOptions::new(site).null_mover(&links));
    }
    let load = ["load", "--count", "24", "--files", "10", "--rate", "20", "--sizes", "2MB", "--wait", "120"];
    production.longhaul(&load).ok();
    let known = production.directory().join("production.json");
    production.longhaul(&["network", "export", "--out", shown(&known)]).ok();
    let document: Value = serde_json::from_str(&fs::read_to_string(&known).unwrap()).unwrap();
    assert_eq!(document["instances"], json!(["production"]));
    let exported = document["links"].as_array().unwrap().len();
    assert!(exported >= 2, "{document}");

    // Its sites have other names, and it knows nothing yet.
    let mut debug = instance("debug");
    for site in ["one", "two", "three"] {
        debug.add_site(SiteOptions::new(site));
    }
    assert_ne!(debug.service_state(), production.service_state());
    let words = debug.longhaul(&["network", "explain", "two", "three"]).ok().stdout;
    assert!(words.contains("no measurement at all"), "{words}");
    let import =
        |file: &Path, more: &[&str]| debug.json(&[&["network", "import", shown(file)], more].concat());
    let without = import(&known, &[]);
    assert_eq!((&without["taken"], &without["unmapped"]), (&json!(0), &json!(["alpha", "beta", "gamma"])));
    let taken = import(&known, &ALIASES);
    assert_eq!(taken["taken"].as_u64().unwrap(), exported as u64, "{taken}");
    assert_eq!(import(&known, &ALIASES)["taken"], json!(0), "the same again is nothing new");

    // It tells what would be, and it acts by it: both hold the file, one of them behind a link that is slow
    // elsewhere.
    let what_if = |source: &str| {
        let detail = debug.json(&["network", "explain", source, "three", "--files", "2", "--bytes", "1GB"]);
        assert_eq!(detail["what_if"]["rates"][0]["more_files"], json!(2));
        detail["what_if"]["times"][0]["seconds"].as_f64().unwrap()
    };
    // One file of that size begins and ends slowly, whatever the link.
    assert!(what_if("two") > 1.3 * what_if("one"), "{} {}", what_if("two"), what_if("one"));
    for site in ["one", "two"] {
        tree::make(&debug.storage(site), 1, 5_000_000, &mut Random::new(5));
        debug.register("run7", site);
    }
    debug.deliver("run7", "three", 120);
    let transfers = debug.json(&["transfer", "list", "--state", "done"]);
    assert_eq!(transfers["items"][0]["source"], json!("one"), "{transfers}");

    // One document of both, without a service; production has its own, and only its own.
    let back = debug.directory().join("debug.json");
    debug.longhaul(&["network", "export", "--out", shown(&back)]).ok();
    let all = debug.directory().join("all.json");
    let words =
        [&["network", "merge", shown(&known), shown(&back), "--out", shown(&all)], &ALIASES[..]].concat();
    debug.longhaul(&words).ok();
    let merged: Value = serde_json::from_str(&fs::read_to_string(&all).unwrap()).unwrap();
    assert_eq!(merged["instances"], json!(["debug", "production"]), "{merged}");
    assert!(production.json(&["dataset", "list"])["items"].as_array().unwrap().is_empty());
    debug.stop("service");
    production.check();
    production.longhaul(&["network", "links"]).ok();
}
