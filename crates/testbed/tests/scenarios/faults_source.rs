//! A source that no longer has what was registered: damaged, cut, replaced, gone. Never is a wrong byte
//! recorded elsewhere, the reason names the source, and what is right arrives.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use longhaul_api::routes;
use longhaul_testbed::tree::{self, Content};
use longhaul_testbed::{Deployment, Random, SiteOptions, Watcher, needs};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(90);

fn deployment(sites: &[&str]) -> Deployment {
    let mut deployment = Deployment::new();
    for site in sites {
        deployment.add_site(SiteOptions::new(site));
    }
    deployment
}

/// Changes a file's bytes and leaves its time as it was: what a disk does when it lies.
fn damage(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let modified = path.metadata().unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

fn flip(bytes: &mut [u8], at: usize) {
    bytes[at] ^= 0x10;
}

/// The present or last fault of a file's transfer to a storage, with the number of attempts.
fn fault(deployment: &Deployment, lfn: &str, target: &str) -> Option<Value> {
    let transfers = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", target)]);
    let transfer = transfers.iter().find(|transfer| transfer["lfn"] == json!(lfn))?;
    (!transfer["fault"].is_null()).then(|| transfer["fault"].clone())
}

/// Storages with a recorded replica of a file.
fn holders(deployment: &Deployment, lfn: &str) -> Vec<String> {
    let file = deployment.json(&["replica", "list", "--file", lfn]);
    file["replicas"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["storage"].as_str().unwrap().to_owned())
        .collect()
}

/// Promise 2; must show 6. The only replica is damaged after registration.
#[test]
fn a_file_corrupted_at_the_source_is_never_recorded() {
    let deployment = deployment(&["alpha", "beta"]);
    let root = deployment.storage("alpha");
    tree::make(&root, 40, 8_000_000, &mut Random::new(31));
    let good = tree::survey(&root).files;
    deployment.register("run7", "alpha");
    // One that travels alone in its chunks, and one that travels in a pack.
    let by_size = |most: bool| {
        let mut names: Vec<(&u64, &Vec<u8>)> =
            good.iter().map(|(name, content)| (&content.size, name)).collect();
        names.sort();
        let place =
            if most { names.len() - 1 } else { names.iter().position(|(size, _)| **size > 10).unwrap() };
        String::from_utf8(names[place].1.clone()).unwrap()
    };
    let bad = [by_size(true), by_size(false)];
    for lfn in &bad {
        damage(&root.join(lfn), |bytes| flip(bytes, 7));
    }
    let watcher = Watcher::start(&deployment.storage("beta"), good.clone());
    let subscription = deployment.json(&["subscribe", "run7", "beta"])["id"].as_str().unwrap().to_owned();
    let mut unnamed = Vec::new();
    for lfn in &bad {
        let fault = deployment.until("the fault is told", WITHIN, || fault(&deployment, lfn, "beta"));
        assert_eq!((&fault["code"], &fault["blame"]), (&json!("E2041"), &json!("source")), "{fault}");
        unnamed.extend(unless_it_names(&fault, &format!("alpha:{lfn}")));
    }
    deployment.until("all that is right has come", WITHIN, || {
        let view = deployment.json(&["subscription", "show", &subscription]);
        (view["files_present"] == json!(good.len() - bad.len())).then_some(())
    });
    for lfn in &bad {
        assert_eq!(holders(&deployment, lfn), ["alpha"], "{lfn} is recorded elsewhere");
        assert!(!deployment.storage("beta").join(lfn).exists(), "{lfn} lies at beta");
    }
    let right: BTreeMap<Vec<u8>, Content> = good
        .iter()
        .filter(|(name, _)| !bad.iter().any(|lfn| lfn.as_bytes() == name.as_slice()))
        .map(|(name, content)| (name.clone(), *content))
        .collect();
    tree::assert_same(&right, &deployment.storage("beta"), "");

    // Everyone who looks sees whose turn it is.
    let problems = deployment.json(&["problems"]);
    let problem = problems["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["fault"]["code"] == json!("E2041"))
        .unwrap()
        .clone();
    assert_eq!((&problem["storage"], &problem["open"]), (&json!("alpha"), &json!(true)), "{problem}");
    let status = deployment.json(&["status"]);
    let blames = status["failures_by_blame"].as_array().unwrap();
    let source = blames.iter().find(|one| one["blame"] == json!("source")).unwrap();
    assert!(source["count"].as_u64().unwrap() >= 2, "{status}");
    let told = deployment.longhaul(&["problems"]).ok().stdout;
    assert!(
        told.contains("E2041") && told.contains("alpha") && told.contains("the source's administrator"),
        "{told}"
    );
    assert_eq!(deployment.json(&["subscription", "show", &subscription])["complete"], json!(false));
    deployment.check();

    // Alpha's administrator restores the files; on request they are tried again.
    for lfn in &bad {
        until_suspect_at_alpha(&deployment, lfn);
        damage(&root.join(lfn), |bytes| flip(bytes, 7));
        retry(&deployment, lfn, "beta");
    }
    deployment.deliver("run7", "beta", 60);
    tree::assert_same(&good, &deployment.storage("beta"), "");
    let seen = watcher.finish();
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    deployment.check();
    assert!(unnamed.is_empty(), "the reason names alpha: {unnamed:#?}");
}

/// A fault says which copy is to blame.
fn unless_it_names(fault: &Value, place: &str) -> Option<String> {
    (!fault["detail"].as_str().unwrap().contains(place)).then(|| format!("{place} is not in {fault}"))
}

/// Asks for a file once more, whatever has become of its transfer: one that is being tried just now may have
/// begun before the file was good again, and is asked for after that.
fn retry(deployment: &Deployment, lfn: &str, target: &str) {
    deployment.until("the file can be asked for again", WITHIN, || {
        let transfers = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", target)]);
        let transfer = transfers.iter().find(|one| one["lfn"] == json!(lfn))?;
        if transfer["state"] == json!("done") {
            return Some(());
        }
        let asked = deployment.longhaul(&["transfer", "retry", transfer["id"].as_str()?, "--json"]);
        let not_now = asked.status == 6 && asked.stdout.contains("only a waiting or failed one");
        assert!(asked.status == 0 || not_now, "{}{}", asked.stdout, asked.stderr);
        (!not_now).then_some(())
    });
}

/// Waits until alpha's own agent has found its copy bad, as a target's word has it read the file: a verdict
/// that came after the file is good again would stand.
fn until_suspect_at_alpha(deployment: &Deployment, lfn: &str) {
    deployment.until("alpha has looked itself", WITHIN, || {
        let file = deployment.json(&["replica", "list", "--file", lfn]);
        let mut replicas = file["replicas"].as_array()?.iter();
        replicas.any(|one| one["storage"] == json!("alpha") && one["suspect"] == json!(true)).then_some(())
    });
}

/// The other replica is used when there is one.
#[test]
fn a_damaged_replica_is_left_for_a_good_one() {
    let mut deployment = deployment(&["alpha", "beta", "gamma"]);
    let root = deployment.storage("alpha");
    tree::make(&root, 30, 3_000_000, &mut Random::new(37));
    let good = tree::survey(&root).files;
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);
    for (name, content) in &good {
        if content.size > 0 {
            damage(&root.join(String::from_utf8(name.clone()).unwrap()), |bytes| flip(bytes, 0));
        }
    }
    // With beta away alpha is all that gamma can ask.
    deployment.kill("beta");
    deployment.json(&["subscribe", "run7", "gamma"]);
    deployment.until("alpha is tried in vain", WITHIN, || {
        let problems = deployment.json(&["problems"]);
        let found = problems["items"]
            .as_array()?
            .iter()
            .any(|one| one["fault"]["code"] == json!("E2041") && one["storage"] == json!("alpha"));
        found.then_some(())
    });
    deployment.start("beta");
    deployment.deliver("run7", "gamma", 120);
    tree::assert_same(&good, &deployment.storage("gamma"), "");
    let list = deployment.json(&["subscription", "list", "--storage", "gamma"]);
    let from: Vec<&str> = list["items"][0]["sources"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["bytes"] != json!(0))
        .map(|one| one["storage"].as_str().unwrap())
        .collect();
    assert_eq!(from, ["beta"], "{list}");
    // What was found out about alpha is kept: its copies are suspect, once its own agent has read them.
    deployment.until("alpha's copies are suspect", WITHIN, || {
        let replicas = deployment.json(&["replica", "list", "run7"]);
        let alpha = replicas["items"].as_array()?.iter().find(|one| one["storage"] == json!("alpha"))?;
        (alpha["suspect_files"].as_u64()? > 0).then_some(())
    });
    deployment.check();
}

/// Every other way in which a file can cease to be what was registered: each has its own code and names
/// alpha.
#[test]
fn changed_truncated_replaced_and_deleted_files_are_told_apart() {
    let deployment = deployment(&["alpha", "beta"]);
    let root = deployment.storage("alpha");
    let mut random = Random::new(41);
    let names = ["whole", "truncated", "grown", "replaced", "deleted", "directory", "link"];
    for name in names {
        fs::write(root.join(name), tree::content(&mut random, 100_000)).unwrap();
    }
    fs::write(deployment.directory().join("outside"), tree::content(&mut random, 100_000)).unwrap();
    deployment.register("run7", "alpha");
    damage(&root.join("truncated"), |bytes| bytes.truncate(60_000));
    damage(&root.join("grown"), |bytes| bytes.extend_from_slice(b"appended"));
    fs::remove_file(root.join("replaced")).unwrap();
    fs::write(root.join("replaced"), tree::content(&mut random, 100_000)).unwrap();
    fs::remove_file(root.join("deleted")).unwrap();
    fs::remove_file(root.join("directory")).unwrap();
    fs::create_dir(root.join("directory")).unwrap();
    fs::remove_file(root.join("link")).unwrap();
    // Promise 9: a link that leads out is not followed, whatever it was before.
    std::os::unix::fs::symlink(deployment.directory().join("outside"), root.join("link")).unwrap();

    let subscription = deployment.json(&["subscribe", "run7", "beta"])["id"].as_str().unwrap().to_owned();
    let (mut codes, mut unnamed) = (BTreeMap::new(), Vec::new());
    for name in &names[1..] {
        let fault =
            deployment.until(&format!("the fault of {name}"), WITHIN, || fault(&deployment, name, "beta"));
        assert_eq!(fault["blame"], json!("source"), "{name}: {fault}");
        unnamed.extend(unless_it_names(&fault, &format!("alpha:{name}")));
        codes.insert(*name, fault["code"].as_str().unwrap().to_owned());
    }
    assert_eq!(codes["truncated"], "E2004");
    assert_eq!(codes["deleted"], "E2001");
    assert_eq!(codes["grown"], "E2002");
    // Same size, other bytes: found by the time stamp or by the digest.
    assert!(matches!(codes["replaced"].as_str(), "E2002" | "E2041"), "{codes:?}");
    for odd in ["directory", "link"] {
        assert!(matches!(codes[odd].as_str(), "E2001" | "E2002" | "E2003"), "{odd}: {codes:?}");
    }
    deployment.until("what is whole has come", WITHIN, || {
        (deployment.json(&["subscription", "show", &subscription])["files_present"] == json!(1)).then_some(())
    });
    let stored: Vec<Vec<u8>> = tree::stored(&deployment.storage("beta")).into_keys().collect();
    assert_eq!(stored, [b"whole".to_vec()], "nothing else lies there");
    for name in &names[1..] {
        assert!(!holders(&deployment, name).contains(&"beta".to_owned()), "{name}");
    }
    // The others are tried again, and might come.
    deployment.until("it is said how many cannot come", WITHIN, || {
        let view = deployment.json(&["subscription", "show", &subscription]);
        let stuck = view["expected"]["stuck"]["files"].as_u64().is_some_and(|files| files >= 4);
        (stuck || view["expected"]["why_none"].is_string()).then_some(())
    });
    deployment.check();
    assert!(unnamed.is_empty(), "the reason names alpha: {unnamed:#?}");
}

/// A file that is written to while it is read never becomes a mixed file elsewhere.
#[test]
fn a_file_that_changes_while_it_is_read_is_never_mixed() {
    let deployment = deployment(&["alpha", "beta"]);
    let root = deployment.storage("alpha");
    let old = tree::content(&mut Random::new(43), 30_000_000);
    fs::write(root.join("moving"), &old).unwrap();
    deployment.register("run7", "alpha");
    let new = tree::content(&mut Random::new(44), 30_000_000);
    deployment.json(&["site", "limit", "beta", "--in", "1MB"]);
    deployment.json(&["subscribe", "run7", "beta"]);
    deployment.until("a part of it is there", WITHIN, || {
        let list = deployment.json(&["transfer", "list", "--dataset", "run7"]);
        (list["items"][0]["bytes_done"].as_u64()? > 2_000_000).then_some(())
    });
    // All of it is new, in place: what was read before and what is read after do not belong together.
    let file = File::options().write(true).open(root.join("moving")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &new, 0).unwrap();
    deployment.json(&["site", "limit", "beta", "--in", "none"]);
    let fault = deployment.until("the change is noticed", WITHIN, || fault(&deployment, "moving", "beta"));
    assert_eq!(fault["blame"], json!("source"), "{fault}");
    assert!(matches!(fault["code"].as_str().unwrap(), "E2002" | "E2041"), "{fault}");
    assert!(tree::stored(&deployment.storage("beta")).is_empty());
    // The right bytes come back, and arrive.
    until_suspect_at_alpha(&deployment, "moving");
    fs::write(root.join("moving"), &old).unwrap();
    deployment.json(&["verify", "alpha", "run7"]);
    retry(&deployment, "moving", "beta");
    deployment.deliver("run7", "beta", 60);
    assert_eq!(fs::read(deployment.storage("beta").join("moving")).unwrap(), old);
    deployment.check();
}

/// What cannot be read is listed, and registered once it can be; a file that nobody can read any more waits.
#[test]
fn what_cannot_be_read_is_told() {
    let mut deployment = Deployment::new();
    let mut alpha = SiteOptions::new("alpha");
    if rustix::process::geteuid().is_root() {
        // Root reads everything, unless it is root of nothing but a user namespace.
        if !needs::program("unshare", &["--user", "true"]) {
            return needs::not_run(
                "unreadable files",
                "we are root, and this machine allows no user namespace",
            );
        }
        alpha.launcher = vec!["unshare".into(), "--user".into()];
    }
    deployment.add_site(alpha);
    deployment.add_site(SiteOptions::new("beta"));
    let root = deployment.storage("alpha");
    let mode =
        |name: &str, mode: u32| fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    fs::create_dir(root.join("closed")).unwrap();
    for name in ["open", "later", "secret", "closed/inside"] {
        fs::write(root.join(name), name).unwrap();
    }
    mode("secret", 0);
    mode("closed", 0);
    let view = deployment.register("run7", "alpha");
    assert_eq!(view["files"], json!(2), "{view}");
    let left_out = &view["left_out"][0];
    assert_eq!((&left_out["reason"], &left_out["count"]), (&json!("unreadable"), &json!(2)), "{view}");
    let paths: Vec<&str> =
        left_out["examples"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&"secret") && paths.contains(&"closed/"), "{view}");

    mode("later", 0);
    deployment.json(&["subscribe", "run7", "beta"]);
    let fault = deployment.until("the fault is told", WITHIN, || fault(&deployment, "later", "beta"));
    assert_eq!((&fault["code"], &fault["blame"]), (&json!("E2003"), &json!("source")), "{fault}");
    for (name, bits) in [("later", 0o644), ("secret", 0o644), ("closed", 0o755)] {
        mode(name, bits);
    }
    retry(&deployment, "later", "beta");
    let view = deployment.json(&["dataset", "add", "run7", "--scan", "alpha"]);
    assert_eq!(view["files"], json!(4), "{view}");
    deployment.deliver("run7", "beta", 60);
    tree::assert_same(&tree::survey(&root).files, &deployment.storage("beta"), "");
    deployment.check();
}
