//! What `longhaul replica delete` says and does, whatever the other copies of the file are.

use std::fs;
use std::process::Command;
use std::time::Duration;

use longhaul_model::{Algorithm, Hasher};
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, SiteOptions};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

/// What there is of a file beside the copy that is to be deleted, with the reason why it does not count.
const SITUATIONS: [(&str, &str, Option<&str>); 6] = [
    ("good", "beta", None),
    ("suspect", "beta", Some("suspect")),
    ("claimed", "beta", Some("claimed when it was registered, never verified")),
    ("stale", "beta", Some("verified too long ago")),
    ("dead", "gamma", Some("its agent is not connected")),
    ("virtual", "delta", Some("a virtual storage holds no files")),
];

/// Eight datasets of one file each, all of them at alpha.
fn deployment() -> Deployment {
    let options =
        ServiceOptions { settings: "copies_verified_within_days = 30\n".into(), ..Default::default() };
    let mut deployment = Deployment::with(options);
    for site in ["alpha", "beta", "gamma", "delta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    let mut random = Random::new(29);
    for name in SITUATIONS.map(|(name, ..)| name).into_iter().chain(["only", "kept"]) {
        let folder = deployment.storage("alpha").join(name);
        fs::create_dir(&folder).unwrap();
        let bytes: Vec<u8> = (0..3_000).map(|_| random.below(256) as u8).collect();
        fs::write(folder.join("file"), bytes).unwrap();
        deployment.register(name, &format!("alpha:{name}"));
    }
    for (name, storage, _) in SITUATIONS.into_iter().filter(|(name, ..)| *name != "claimed") {
        deployment.deliver(name, storage, 60);
        end_subscription(&deployment, name);
    }
    deployment
}

/// Nothing shall mend what is damaged on purpose.
fn end_subscription(deployment: &Deployment, dataset: &str) {
    let listed = deployment.json(&["subscription", "list", "--dataset", dataset]);
    deployment.json(&["subscription", "cancel", listed["items"][0]["id"].as_str().unwrap()]);
}

fn spoil(deployment: &mut Deployment) {
    let suspect = deployment.storage("beta").join("suspect/file");
    fs::write(&suspect, fs::read(&suspect).unwrap().iter().map(|byte| !byte).collect::<Vec<u8>>()).unwrap();
    deployment.longhaul(&["verify", "beta", "suspect"]).exits(10);

    let manifest = deployment.directory().join("manifest");
    let mut hasher = Hasher::new([Algorithm::Adler32]);
    hasher.update(&fs::read(deployment.storage("alpha").join("claimed/file")).unwrap());
    let digest = hasher.finish().get(Algorithm::Adler32).unwrap().to_string();
    let line = json!({ "lfn": "claimed/file", "size": 3_000, "digests": [digest] });
    fs::write(&manifest, format!("{line}\n")).unwrap();
    deployment.json(&["dataset", "add", "claimed", "--manifest", manifest.to_str().unwrap(), "--at", "beta"]);

    deployment.stop("gamma");
    // A storage that a release before took for an ordinary one.
    deployment.stop("delta");
    let links = deployment.directory().join("links.toml");
    fs::write(&links, "").unwrap();
    deployment.configure("delta", SiteOptions::new("delta").null_mover(&links));
    deployment.start("delta");

    deployment.stop(SERVICE);
    let catalog = deployment.service_state().join("catalog.sqlite");
    let age = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(\"UPDATE block_replicas SET \
               verified = verified - 40 * 86400000000 WHERE dataset = (SELECT id FROM datasets WHERE name = \
               'stale') AND storage = (SELECT id FROM storages WHERE name = 'beta')\"); c.commit()";
    assert!(Command::new("python3").args(["-c", age]).arg(catalog).status().unwrap().success());
    deployment.start(SERVICE);
    ["alpha", "beta", "delta"].into_iter().for_each(|site| deployment.until_connected(site));
}

/// The table of the dry run, and what `--yes` does then, for each thing that another copy may be.
#[test]
fn a_copy_is_deleted_where_another_good_one_stays() {
    let mut deployment = deployment();
    spoil(&mut deployment);
    deployment.longhaul(&["subscribe", "kept", "alpha", "--custodial"]).ok();
    deployment.until("delta's storage is virtual", WITHIN, || {
        let told = deployment.json(&["replica", "delete", "virtual", "alpha"]);
        (told["last_replicas"] == json!(1)).then_some(())
    });
    for (name, storage, defect) in SITUATIONS {
        let table = deployment.longhaul(&["replica", "delete", name, "alpha"]).ok();
        println!("{table}");
        let told = deployment.json(&["replica", "delete", name, "alpha"]);
        let copies = told["copies"].as_array().unwrap();
        let elsewhere: Vec<&Value> = copies.iter().filter(|copy| copy["to_delete"] != json!(true)).collect();
        assert_eq!((copies.len(), elsewhere.len()), (2, 1), "{name}: {told}");
        assert_eq!(elsewhere[0]["storage"], json!(storage), "{name}");
        assert_eq!(elsewhere[0]["counts"], json!(defect.is_none()), "{name}: {told}");
        assert_eq!(elsewhere[0]["reason"].as_str(), defect, "{name}: {told}");
        assert!(table.stdout.contains(defect.unwrap_or("yes")), "{table}");
    }
    let only = deployment.longhaul(&["replica", "delete", "only", "alpha"]).ok();
    println!("{only}");
    assert!(only.stdout.contains("1 of them has no other good copy"), "{only}");
    println!("{}", deployment.longhaul(&["replica", "delete", "kept", "alpha"]));

    let there = |name: &str| deployment.storage("alpha").join(name).join("file").exists();
    for (name, _, defect) in SITUATIONS {
        let ran = deployment.longhaul(&["replica", "delete", name, "alpha", "--yes"]);
        println!("{ran}");
        match defect {
            None => drop(ran.ok()),
            Some(defect) => drop(ran.fails(6, "E1006", &[defect, "--force"])),
        }
        assert_eq!(there(name), defect.is_some(), "{name}");
    }
    let only = deployment.longhaul(&["replica", "delete", "only", "alpha", "--yes"]);
    println!("{only}");
    only.fails(6, "E1006", &["1 of 1 file has no other good copy", "--force"]);
    let kept = deployment.longhaul(&["replica", "delete", "kept", "alpha", "--yes", "--force"]);
    println!("{kept}");
    kept.fails(6, "E1004", &["custodial"]);
    assert!(there("only") && there("kept"));
    deployment.check();
}
