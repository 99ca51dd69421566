//! A target that cannot take what it shall have: full, read-only, something else under the name, names that
//! do not fit. The queue waits with the reason and goes on by itself; nothing that was there is touched.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_api::routes;
use longhaul_testbed::mounts::Mounts;
use longhaul_testbed::tree::{self, Content};
use longhaul_testbed::{Deployment, Random, SiteOptions, needs};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

/// Sites alpha, with a dataset `run7`, and beta, whose storage is a file system of its own with that many
/// megabytes.
struct Small {
    deployment: Deployment,
    mounts: Mounts,
    /// Beta's storage as its agent sees it, and as we do.
    inside: PathBuf,
    outside: PathBuf,
    files: BTreeMap<Vec<u8>, Content>,
}

impl Small {
    fn new(what: &str, megabytes: u64, bytes: u64) -> Option<Small> {
        let mut deployment = Deployment::new();
        let inside = deployment.directory().join("beta-storage");
        fs::create_dir(&inside).unwrap();
        let script = format!("mount -t tmpfs -o size={megabytes}m,mode=755 none \"$1\"");
        let Some(mounts) = Mounts::new(&script, &[&inside]) else {
            needs::not_run(what, "this machine allows no mounts, not even in a user namespace");
            return None;
        };
        deployment.add_site(SiteOptions::new("alpha"));
        let root = deployment.storage("alpha");
        tree::make(&root, 60, bytes, &mut Random::new(51));
        let files = tree::survey(&root).files;
        let outside = mounts.outside(&inside);
        let mut beta = SiteOptions::new("beta").root(&inside);
        beta.launcher = mounts.launcher();
        deployment.add_site(beta);
        deployment.register("run7", "alpha");
        Some(Small { deployment, mounts, inside, outside, files })
    }

    fn subscription(&self) -> Value {
        self.deployment.json(&["subscription", "list", "--storage", "beta"])["items"][0].clone()
    }

    /// The problems of beta with that code; what is over is among them.
    fn problems(&self, code: &str) -> Vec<Value> {
        let problems = self.deployment.json(&["problems"]);
        let here = |one: &&Value| one["fault"]["code"] == json!(code) && one["storage"] == json!("beta");
        problems["items"].as_array().unwrap().iter().filter(here).cloned().collect()
    }

    /// Waits until everyone can see why beta takes nothing.
    fn until_trouble(&self, code: &str, mut before_each_look: impl FnMut()) {
        self.deployment.until("the site shows the trouble", WITHIN, || {
            before_each_look();
            let site = self.deployment.json(&["site", "show", "beta"]);
            (site["storages"][0]["trouble"]["code"] == json!(code)).then_some(())
        });
        self.deployment.until("the subscription says what it waits for", WITHIN, || {
            before_each_look();
            let expected = self.subscription()["expected"].to_string();
            expected.contains("beta").then_some(())
        });
        self.deployment.until("the problem is listed as open", WITHIN, || {
            before_each_look();
            self.problems(code).iter().any(|one| one["open"] == json!(true)).then_some(())
        });
    }

    /// All is there and the trouble is gone.
    fn assert_arrives(&self) {
        self.deployment.deliver("run7", "beta", 120);
        tree::assert_same(&self.files, &self.outside, "");
        self.deployment.until("the trouble is over", WITHIN, || {
            self.deployment.json(&["site", "show", "beta"])["storages"][0]["trouble"].is_null().then_some(())
        });
        self.deployment.check();
    }
}

#[test]
fn a_full_target_waits_and_goes_on_when_there_is_room() {
    let Some(small) = Small::new("a full target", 24, 16_000_000) else { return };
    let filler = small.outside.join("filler");
    fs::write(&filler, vec![7u8; 14 << 20]).unwrap();
    small.deployment.json(&["subscribe", "run7", "beta"]);
    small
        .deployment
        .until("the target is full", WITHIN, || (!small.problems("E3001").is_empty()).then_some(()));
    // Smaller files may still fit, which would end the trouble: from now on there is no room for any.
    let rest = small.outside.join("rest");
    let mut file = File::create(&rest).unwrap();
    small.until_trouble("E3001", || while file.write_all(&[7; 4_096]).is_ok() {});
    // An open file keeps its room when its name is gone.
    drop(file);
    let present = small.subscription()["files_present"].as_u64().unwrap();
    assert!(present < small.files.len() as u64, "it was not full");
    // Promise 1: what is there is whole, and no attempt has left anything under a final name.
    for (name, content) in tree::stored(&small.outside) {
        let ours = name == b"filler" || name == b"rest";
        assert!(ours || small.files.get(&name) == Some(&content), "{}", name.escape_ascii());
    }
    small.deployment.check();
    fs::remove_file(&rest).unwrap();
    fs::remove_file(&filler).unwrap();
    small.assert_arrives();
    let failed = small.deployment.api().all(&routes::TRANSFER_LIST, &[], &[("state", "failed")]);
    assert!(failed.is_empty(), "a full disk fails nothing for good: {failed:?}");
}

#[test]
fn a_read_only_target_waits_and_goes_on() {
    let Some(small) = Small::new("a read-only target", 64, 4_000_000) else { return };
    // It is busy for as long as the agent has a file open for writing, as its probe does for a moment.
    let read_only = "for i in $(seq 100); do mount -o remount,ro \"$1\" && exit 0; sleep 0.1; done; exit 1";
    small.mounts.shell(read_only, &[&small.inside]);
    small.deployment.json(&["subscribe", "run7", "beta"]);
    small.until_trouble("E3002", || ());
    assert_eq!(small.subscription()["files_present"], json!(0));
    small.mounts.shell("mount -o remount,rw \"$1\"", &[&small.inside]);
    small.assert_arrives();
}

fn pair() -> Deployment {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    deployment
}

fn fault(deployment: &Deployment, lfn: &str) -> Value {
    deployment.until(&format!("the fault of {lfn}"), WITHIN, || {
        let transfers = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", "beta")]);
        let fault = transfers.iter().find(|one| one["lfn"] == json!(lfn))?["fault"].clone();
        (!fault.is_null()).then_some(fault)
    })
}

/// Promise 1: what lies under the name is never replaced; if it is the right file already, nothing is moved.
#[test]
fn what_is_there_already_stays() {
    let deployment = pair();
    let (alpha, beta) = (deployment.storage("alpha"), deployment.storage("beta"));
    for (name, bytes) in
        [("same", "the same bytes"), ("other", "these bytes"), ("same size", "abcdef"), ("under/a", "file")]
    {
        fs::create_dir_all(alpha.join(name).parent().unwrap()).unwrap();
        fs::write(alpha.join(name), bytes).unwrap();
    }
    fs::write(beta.join("same"), "the same bytes").unwrap();
    let old = inode(&beta.join("same"));
    fs::write(beta.join("other"), "somebody's work").unwrap();
    fs::write(beta.join("same size"), "ABCDEF").unwrap();
    fs::write(beta.join("under"), "a file where a directory should be").unwrap();
    deployment.register("run7", "alpha");
    deployment.json(&["subscribe", "run7", "beta"]);
    for name in ["other", "same size"] {
        let fault = fault(&deployment, name);
        assert_eq!((&fault["code"], &fault["blame"]), (&json!("E3004"), &json!("target")), "{fault}");
        assert!(fault["detail"].as_str().unwrap().contains(&format!("beta:{name}")), "{fault}");
    }
    assert_eq!(fault(&deployment, "under/a")["blame"], json!("target"));
    deployment.until("the right one is found", WITHIN, || {
        let list = deployment.json(&["subscription", "list"]);
        (list["items"][0]["files_present"] == json!(1)).then_some(())
    });
    assert_eq!(inode(&beta.join("same")), old, "it was not replaced");
    let done = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("state", "done")]);
    let detail = deployment.json(&["transfer", "show", done[0]["id"].as_str().unwrap()]);
    let attempt = detail["attempts"].as_array().unwrap().last().unwrap();
    assert_eq!((&attempt["already_there"], &attempt["bytes_moved"]), (&json!(true), &json!(0)), "{attempt}");
    assert_eq!(fs::read_to_string(beta.join("other")).unwrap(), "somebody's work");
    assert_eq!(fs::read_to_string(beta.join("same size")).unwrap(), "ABCDEF");
    deployment.check();

    // Beta's administrator moves theirs away, and asks again.
    for name in ["other", "same size", "under"] {
        fs::rename(beta.join(name), deployment.directory().join(name)).unwrap();
    }
    // A fault is told before its transfer is given up, and only then can it be asked for again.
    let failed = deployment.until("all three have failed", WITHIN, || {
        let query = [("target", "beta"), ("state", "failed")];
        let failed = deployment.api().all(&routes::TRANSFER_LIST, &[], &query);
        (failed.len() == 3).then_some(failed)
    });
    for transfer in failed {
        deployment.json(&["transfer", "retry", transfer["id"].as_str().unwrap()]);
    }
    deployment.deliver("run7", "beta", 60);
    tree::assert_same(&tree::survey(&alpha).files, &beta, "");
    deployment.check();
}

fn inode(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    path.metadata().unwrap().ino()
}

/// A name that fits at the source need not fit behind the target's prefix; all others arrive.
#[test]
fn names_that_do_not_fit_are_told() {
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    deployment.add_site(SiteOptions::new("beta").prefix("run7", "kept/here"));
    let alpha = deployment.storage("alpha");
    let long = ["run7", &"p".repeat(250), &"q".repeat(250), &"r".repeat(250), &"s".repeat(250)].join("/");
    for name in ["run7/short", "elsewhere", long.as_str()] {
        fs::create_dir_all(alpha.join(name).parent().unwrap()).unwrap();
        fs::write(alpha.join(name), name).unwrap();
    }
    // A path that the prefix makes longer, and that still fits.
    let beta_long = ["kept/here", &long["run7/".len()..]].join("/");
    println!("{} bytes there", beta_long.len());
    deployment.register("run7", "alpha");
    deployment.json(&["subscribe", "run7", "beta"]);
    let fault = fault(&deployment, "elsewhere");
    assert_eq!(fault["blame"], json!("target"), "no rule fits: {fault}");
    assert!(fault["detail"].as_str().unwrap().contains("no name rule of beta"), "{fault}");
    deployment.until("what fits has come", WITHIN, || {
        let list = deployment.json(&["subscription", "list"]);
        (list["items"][0]["files_present"] == json!(2)).then_some(())
    });
    assert!(deployment.storage("beta").join("kept/here/short").exists());
    let other: Vec<String> = tree::stored(&deployment.storage("beta"))
        .into_keys()
        .map(|name| String::from_utf8(name).unwrap())
        .filter(|name| !name.starts_with("kept/here/"))
        .collect();
    assert!(other.is_empty(), "outside the prefix: {other:?}");
    deployment.check();
}

/// Work that an agent left behind is found again after a restart with room, and what nobody wants any more is
/// removed.
#[test]
fn nothing_is_left_behind() {
    let mut deployment = pair();
    let root = deployment.storage("alpha");
    fs::write(root.join("large"), tree::content(&mut Random::new(53), 30_000_000)).unwrap();
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "beta", "--in", "1MB"]);
    let id = deployment.json(&["subscribe", "run7", "beta"])["id"].as_str().unwrap().to_owned();
    let work = deployment.storage("beta").join(".longhaul/temps");
    let temporary = || -> Vec<PathBuf> {
        let entries = fs::read_dir(&work).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_file()).collect()
    };
    deployment.until("it is under way", WITHIN, || (!temporary().is_empty()).then_some(()));
    // One of an agent that was here before: nobody will ever ask for it again.
    File::create(work.join("0123456789abcdef0123456789abcdef")).unwrap();
    deployment.json(&["subscription", "cancel", &id]);
    deployment.until("the lease is given up", WITHIN, || {
        deployment.api().all(&routes::TRANSFER_LIST, &[], &[("state", "leased")]).is_empty().then_some(())
    });
    deployment.stop("beta");
    deployment.start("beta");
    deployment.until_connected("beta");
    deployment.until("no temporary file of ours is left", WITHIN, || {
        let foreign = |path: &PathBuf| path.ends_with("0123456789abcdef0123456789abcdef");
        temporary().iter().all(foreign).then_some(())
    });
    deployment.check();
}
