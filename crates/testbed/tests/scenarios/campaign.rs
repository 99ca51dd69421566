//! A dataset arrives at other sites, by the public commands alone: a real tree, served in place and only
//! read, at storages with other prefixes; and a made one with every kind of name and file.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use longhaul_testbed::tree::{self, Survey};
use longhaul_testbed::{Deployment, Random, SiteOptions, effort, needs};
use serde_json::{Value, json};

/// Most seconds that a delivery of this size can take, on a slow disk.
fn within_s(survey: &Survey) -> u64 {
    60 + survey.files.len() as u64 / 100 + survey.bytes() / 10_000_000
}

/// Registration counted everything, and left out what the design leaves out.
fn assert_registered(view: &Value, survey: &Survey) {
    assert_eq!(view["files"], json!(survey.files.len()), "{view:#}");
    assert_eq!(view["bytes"], json!(survey.bytes()), "{view:#}");
    let left_out = view["left_out"].as_array().unwrap();
    let reasons: BTreeMap<String, u64> = left_out
        .iter()
        .map(|one| (one["reason"].as_str().unwrap().to_owned(), one["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(reasons, survey.reasons(), "{view:#}");
    for one in left_out {
        assert!(!one["examples"].as_array().unwrap().is_empty(), "no example of {one}");
    }
}

/// Every file of a complete replica was compared with the catalog's digest, and the counts agree.
fn assert_delivered(deployment: &Deployment, dataset: &str, storage: &str, survey: &Survey) {
    let replicas = deployment.json(&["replica", "list", dataset]);
    let replica =
        replicas["items"].as_array().unwrap().iter().find(|replica| replica["storage"] == json!(storage));
    let replica = replica.unwrap_or_else(|| panic!("no replica at {storage}: {replicas}"));
    assert_eq!(replica["complete"], json!(true), "{replica}");
    assert_eq!(replica["files"], json!(survey.files.len()), "{replica}");
    assert_eq!(replica["bytes"], json!(survey.bytes()), "{replica}");
    assert_eq!(replica["suspect_files"], json!(0), "{replica}");
    assert_eq!(
        replica["verified"],
        json!([{ "how": "end-to-end", "files": survey.files.len() }]),
        "{replica}"
    );
    let read = deployment.json(&["verify", storage, dataset]);
    assert_eq!((&read["files_done"], &read["files_bad"]), (&json!(survey.files.len()), &json!(0)), "{read}");
}

/// Newest change of anything in a tree.
fn last_change(root: &Path) -> SystemTime {
    let mut newest = root.metadata().unwrap().modified().unwrap();
    let mut todo = vec![root.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            newest = newest.max(metadata.modified().unwrap());
            if metadata.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    newest
}

/// Promises 1 and 2, and that LFN and path are two things.
#[test]
fn a_real_tree_arrives_under_other_prefixes() {
    let least = effort::tree_files();
    let Some(root) = effort::tree().or_else(|| tree::real_tree(least)) else {
        return needs::not_run(
            "a real tree",
            &format!("no tree of this system has {least} files: set LONGHAUL_SOAK_TREE"),
        );
    };
    let survey = tree::survey(&root);
    println!(
        "{}: {} files, {} bytes, left out {:?}",
        root.display(),
        survey.files.len(),
        survey.bytes(),
        survey.reasons()
    );
    let before = last_change(&root);

    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha").root(&root).read_only().prefix("system", ""));
    deployment.add_site(SiteOptions::new("beta").prefix("system", "store/docs"));
    deployment.add_site(SiteOptions::new("gamma").prefix("", "data/x"));
    assert_registered(&deployment.register("tree", "alpha"), &survey);

    deployment.json(&["subscribe", "tree", "beta"]);
    deployment.json(&["subscribe", "tree", "gamma"]);
    for (site, prefix) in [("beta", "store/docs/"), ("gamma", "data/x/system/")] {
        deployment.deliver("tree", site, within_s(&survey));
        tree::assert_same(&survey.files, &deployment.storage(site), prefix);
        assert_delivered(&deployment, "tree", site, &survey);
    }
    deployment.check();
    deployment.assert_nothing_failed();
    assert_eq!(last_change(&root), before, "the source was only read");
    assert!(tree::compare(&survey.files, &tree::survey(&root).files).is_none(), "the source is as it was");
    deployment.assert_alive();
}

/// DESIGN section 8: every kind of name and file arrives, or is listed with its reason.
#[test]
fn every_kind_of_name_and_file_arrives_or_is_listed() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    let root = deployment.storage("alpha");
    tree::make(&root, 100, 3_000_000, &mut Random::new(7));
    tree::add_odd(&root);
    let survey = tree::survey(&root);
    assert_registered(&deployment.register("odd/names", "alpha"), &survey);
    deployment.deliver("odd/names", "beta", within_s(&survey));
    tree::assert_same(&survey.files, &deployment.storage("beta"), "");
    assert_delivered(&deployment, "odd/names", "beta", &survey);

    // Names are shown so that they cannot move the cursor or forge a line, and given back whole to programs.
    let shown = deployment.longhaul(&["dataset", "show", "odd/names", "--files"]).ok();
    assert!(!shown.stdout.contains('\x1b') && !shown.stdout.contains('\u{202e}'), "{shown}");
    let listed = deployment.json(&["dataset", "show", "odd/names", "--files"]);
    let mut names: Vec<Vec<u8>> =
        listed["items"].as_array().unwrap().iter().map(|file| file["lfn"].as_str().unwrap().into()).collect();
    names.sort();
    assert_eq!(names, survey.files.keys().cloned().collect::<Vec<_>>());
    let file = deployment.json(&["replica", "list", "--file", "odd/two\nlines"]);
    assert_eq!(file["replicas"].as_array().unwrap().len(), 2, "{file}");
    deployment.assert_nothing_failed();
    deployment.check();
}
