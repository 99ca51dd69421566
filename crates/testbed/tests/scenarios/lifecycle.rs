//! What people do with datasets, subscriptions, replicas and sites, through the public commands, and what
//! they see.

use std::fs;
use std::path::Path;
use std::time::Duration;

use longhaul_api::routes;
use longhaul_model::Timestamp;
use longhaul_testbed::{Deployment, Random, SERVICE, SiteOptions, tree};
use longhaul_testkit::adler32;
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

fn deployment(sites: &[&str], files: usize, bytes: u64) -> Deployment {
    let mut deployment = Deployment::new();
    for site in sites {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage(sites[0]), files, bytes, &mut Random::new(17));
    deployment
}

fn id(view: &Value) -> String {
    view["id"].as_str().unwrap_or_else(|| panic!("no id in {view}")).to_owned()
}

fn assert_equal(deployment: &Deployment, site: &str) {
    tree::assert_same(&tree::survey(&deployment.storage("alpha")).files, &deployment.storage(site), "");
}

/// A subscription is a standing wish: what is added later follows, until the dataset is closed.
#[test]
fn a_growing_dataset_follows() {
    let deployment = deployment(&["alpha", "beta"], 40, 400_000);
    let root = deployment.storage("alpha");
    deployment.register("run7", "alpha:run00");
    deployment.deliver("run7", "beta", 60);
    assert_equal(&deployment, "beta");

    fs::create_dir(root.join("later")).unwrap();
    fs::write(root.join("later/one"), b"added by a scan").unwrap();
    deployment.json(&["dataset", "add", "run7", "--scan", "alpha:later"]);
    deployment.deliver("run7", "beta", 60);
    assert_equal(&deployment, "beta");

    // By a manifest, for a file that is there already.
    fs::write(root.join("later/two"), b"Wikipedia").unwrap();
    let manifest = deployment.directory().join("manifest");
    fs::write(&manifest, r#"{"lfn":"later/two","size":9,"digests":["adler32:11e60398"]}"#).unwrap();
    let manifest = manifest.to_str().unwrap();
    let added = deployment.json(&["dataset", "add", "run7", "--manifest", manifest, "--at", "alpha"]);
    assert_eq!((&added["files_added"], &added["files_known"]), (&json!(1), &json!(0)), "{added}");
    let again = deployment.json(&["dataset", "add", "run7", "--manifest", manifest, "--at", "alpha"]);
    assert_eq!((&again["files_added"], &again["files_known"]), (&json!(0), &json!(1)), "{again}");
    deployment.deliver("run7", "beta", 60);
    assert_equal(&deployment, "beta");

    let closed = deployment.longhaul(&["dataset", "close", "run7"]).ok();
    assert!(closed.stdout.contains("42 files"), "{closed}");
    deployment.longhaul(&["dataset", "add", "run7", "--scan", "alpha:later"]).fails(6, "E1004", &["closed"]);
    deployment.longhaul(&["dataset", "delete", "run7"]).fails(6, "E1004", &["alpha", "replica delete"]);
    deployment.check();
}

#[test]
fn one_block_can_be_subscribed_alone() {
    let deployment = deployment(&["alpha", "beta"], 30, 300_000);
    let root = deployment.storage("alpha");
    let manifest = deployment.directory().join("manifest");
    let mut lines = String::new();
    for number in 0..30 {
        let lfn = format!("run00/f{number:05}.dat");
        let bytes = fs::read(root.join(&lfn)).unwrap();
        let block = if number < 10 { "early" } else { "late" };
        let digest = format!("adler32:{:08x}", adler32(&bytes));
        lines.push_str(
            &json!({ "lfn": lfn, "size": bytes.len(), "digests": [digest], "block": block }).to_string(),
        );
        lines.push('\n');
    }
    fs::write(&manifest, lines).unwrap();
    deployment.json(&[
        "dataset",
        "register",
        "run7",
        "--manifest",
        manifest.to_str().unwrap(),
        "--at",
        "alpha",
    ]);
    let blocks = deployment.json(&["dataset", "show", "run7", "--blocks"]);
    let names: Vec<&str> =
        blocks["items"].as_array().unwrap().iter().map(|block| block["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["run7#early", "run7#late"]);
    deployment.deliver("run7#early", "beta", 60);
    assert_eq!(tree::stored(&deployment.storage("beta")).len(), 10);
    let replicas = deployment.json(&["replica", "list", "run7"]);
    let beta = replicas["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["storage"] == json!("beta"))
        .unwrap()
        .clone();
    assert_eq!((&beta["files"], &beta["complete"]), (&json!(10), &json!(false)), "{beta}");
    deployment.check();
}

#[test]
fn subscriptions_are_suspended_resumed_reordered_and_cancelled() {
    let deployment = deployment(&["alpha", "beta"], 300, 30_000_000);
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "beta", "--in", "1MB"]);
    let subscription = id(&deployment.json(&["subscribe", "run7", "beta", "--priority", "3"]));
    let show = || deployment.json(&["subscription", "show", &subscription]);
    deployment.until("files arrive", WITHIN, || (show()["files_present"].as_u64()? > 5).then_some(()));
    let same = id(&deployment.json(&["subscribe", "run7", "beta"]));
    assert_eq!(same, subscription, "the same wish twice is one");

    let view = deployment.json(&["subscription", "suspend", &subscription]);
    assert_eq!(view["state"], json!("suspended"));
    let stopped = deployment.until("what runs is finished", WITHIN, || {
        let view = show();
        (view["files_running"] == json!(0)).then(|| view["files_present"].as_u64().unwrap())
    });
    assert!(stopped < 300, "it went on to the end");
    assert!(
        deployment.longhaul(&["status"]).ok().stdout.contains("suspended"),
        "everyone sees why nothing moves"
    );
    let view = deployment.json(&["subscription", "priority", &subscription, "9"]);
    assert_eq!(view["priority"], json!(9));
    assert_eq!(show()["files_present"].as_u64(), Some(stopped), "nothing starts while it is suspended");

    deployment.json(&["subscription", "resume", &subscription]);
    deployment.until("it goes on", WITHIN, || (show()["files_present"].as_u64()? > stopped).then_some(()));
    let view = deployment.json(&["subscription", "cancel", &subscription]);
    assert_eq!(view["state"], json!("cancelled"));
    deployment.longhaul(&["subscription", "resume", &subscription]).fails(6, "E1004", &["cancelled"]);
    let live = |state: &str| deployment.api().all(&routes::TRANSFER_LIST, &[], &[("state", state)]).len();
    deployment
        .until("nothing is left to do", WITHIN, || (live("waiting") + live("leased") == 0).then_some(()));
    assert!(tree::stored(&deployment.storage("beta")).len() < 300, "what had not arrived does not");
    deployment.check();

    // A new wish for the same begins with what is there.
    deployment.json(&["site", "limit", "beta", "--in", "none"]);
    deployment.deliver("run7", "beta", 60);
    assert_equal(&deployment, "beta");
    deployment.check();
}

/// Promise 8: sites decide.
#[test]
fn a_site_pauses_drains_and_limits() {
    let deployment = deployment(&["alpha", "beta"], 400, 20_000_000);
    deployment.register("run7", "alpha");
    let view = deployment.json(&["site", "pause", "beta", "--reason", "new disks until noon"]);
    assert_eq!((&view["state"], &view["reason"]), (&json!("paused"), &json!("new disks until noon")));
    let subscription = id(&deployment.json(&["subscribe", "run7", "beta"]));
    let show = || deployment.json(&["subscription", "show", &subscription]);
    // Promise 10: the wait has its reason, in the words of the site.
    deployment.until("the wait is explained", WITHIN, || {
        let expected = show()["expected"].to_string();
        (expected.contains("paused") && expected.contains("new disks until noon")).then_some(())
    });
    assert_eq!(show()["files_present"], json!(0));

    deployment.json(&["site", "limit", "beta", "--in", "3MB", "--active-in", "2"]);
    deployment.json(&["site", "resume", "beta"]);
    let mut most = 0;
    deployment.until("a good part is there", WITHIN, || {
        let site = deployment.json(&["site", "show", "beta"]);
        most = most.max(site["active_in"].as_u64()?);
        (show()["files_present"].as_u64()? > 100).then_some(())
    });
    assert!((1..=2).contains(&most), "{most} files on their way at once, the limit is 2");

    deployment.json(&["site", "drain", "beta", "--reason", "power cut at one"]);
    let drained = deployment.until("what runs is finished", WITHIN, || {
        let view = show();
        (view["files_running"] == json!(0)).then(|| view["files_present"].as_u64().unwrap())
    });
    assert!(drained < 400);
    assert!(show()["expected"].to_string().contains("power cut at one"), "{}", show());
    deployment.json(&["site", "resume", "beta"]);
    deployment.json(&["site", "limit", "beta", "--in", "none", "--active-in", "none"]);
    deployment.deliver("run7", "beta", 60);
    assert_equal(&deployment, "beta");
    deployment.check();
}

/// Promise 8 in numbers: bytes per second in and out are kept, and lifting the limit is felt.
#[test]
fn limits_of_bytes_are_kept() {
    const LIMIT: f64 = 2_000_000.0;
    let deployment = deployment(&["alpha", "beta"], 100, 12_000_000);
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "alpha", "--out", "2MB"]);
    deployment.deliver("run7", "beta", 60);
    // On the service's clock and from the wish on, so that a slow machine only makes it slower: an average
    // that begins with the first byte is at the mercy of when that one was reported.
    let subscriptions = deployment.json(&["subscription", "list"]);
    let view = &subscriptions["items"][0];
    let at = |name: &str| view[name].as_str().unwrap().parse::<Timestamp>().unwrap();
    let average =
        view["bytes_present"].as_f64().unwrap() / at("completed").since(at("created")).as_secs_f64();
    // A tenth of a second's worth and one file, of at most 1 MB, may be ahead of the limit: 1.11 times.
    assert!(average > 0.0 && average < LIMIT * 1.2, "{average} bytes/s on average");
    // What people are told begins with the first byte, so it is no less.
    let told = view["rate_average"].as_f64().unwrap();
    assert!(told >= average, "{told} bytes/s are told, {average} it was at least");
    assert_equal(&deployment, "beta");
}

#[test]
fn replicas_are_deleted_but_never_the_last_one() {
    let deployment = deployment(&["alpha", "beta"], 25, 500_000);
    deployment.register("run7", "alpha");
    let whole = tree::stored(&deployment.storage("alpha"));
    let subscription = {
        deployment.deliver("run7", "beta", 60);
        id(&deployment.json(&["subscription", "list"])["items"][0])
    };
    // Only told: nothing is touched.
    let told = deployment.json(&["replica", "delete", "run7", "beta"]);
    assert_eq!((&told["files"], &told["last_replicas"]), (&json!(25), &json!(0)), "{told}");
    assert_eq!(told["subscriptions"], json!([subscription]), "{told}");
    assert_eq!(tree::stored(&deployment.storage("beta")), whole);
    // A standing wish would bring them back.
    deployment.longhaul(&["replica", "delete", "run7", "beta", "--yes"]).fails(6, "E1004", &[&subscription]);
    deployment.json(&["subscription", "cancel", &subscription]);
    let done = deployment.json(&["replica", "delete", "run7", "beta", "--yes"]);
    assert_eq!((&done["files_done"], &done["files_bad"]), (&json!(25), &json!(0)), "{done}");
    assert!(tree::stored(&deployment.storage("beta")).is_empty());
    assert!(!deployment.storage("beta").join("run00").exists(), "empty directories go too");

    let told = deployment.json(&["replica", "delete", "run7", "alpha"]);
    assert_eq!(told["last_replicas"], json!(25), "{told}");
    deployment.longhaul(&["replica", "delete", "run7", "alpha", "--yes"]).fails(6, "E1006", &["--force"]);
    assert_eq!(tree::stored(&deployment.storage("alpha")), whole);
    deployment.check();

    // A file that is no longer what was registered is not deleted: it may be somebody's work.
    fs::write(deployment.storage("alpha").join("run00/f00003.dat"), b"edited since").unwrap();
    let done = deployment
        .longhaul(&["replica", "delete", "run7", "alpha", "--yes", "--force", "--json"])
        .exits(7)
        .json();
    assert_eq!((&done["files_done"], &done["files_bad"]), (&json!(24), &json!(1)), "{done}");
    assert_eq!(fs::read(deployment.storage("alpha").join("run00/f00003.dat")).unwrap(), b"edited since");
    deployment.check();
}

/// `verify` reads again what nobody has read since, and says what it found; a damaged copy is replaced by a
/// good one without anybody doing anything.
#[test]
fn a_damaged_copy_is_good_again_by_itself() {
    let mut deployment = deployment(&["alpha", "beta"], 25, 500_000);
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);
    let clean = deployment.json(&["verify", "beta", "run7"]);
    assert_eq!((&clean["files_done"], &clean["files_bad"]), (&json!(25), &json!(0)), "{clean}");

    let name = tree::stored(&deployment.storage("beta"))
        .into_iter()
        .max_by_key(|(_, content)| content.size)
        .unwrap()
        .0;
    let lfn = String::from_utf8(name).unwrap();
    flip(&deployment.storage("beta").join(&lfn));
    fs::remove_file(deployment.storage("beta").join("run00/f00000.dat")).unwrap();
    let found = deployment.longhaul(&["verify", "beta", "run7", "--json"]).exits(10);
    assert!(found.stderr.contains(&lfn) && found.stderr.contains("E2041"), "{found}");
    let task = found.json();
    assert_eq!((&task["files_done"], &task["files_bad"]), (&json!(23), &json!(2)), "{task}");
    assert!(task.to_string().contains("beta:run00/f00000.dat"), "{task}");
    // The subscription still stands: what is missing or damaged comes again by itself.
    deployment.deliver("run7", "beta", 60);
    assert_equal(&deployment, "beta");
    let replicas = deployment.json(&["replica", "list", "--file", &lfn]);
    let suspect = |storage: &str| {
        let replicas = replicas["replicas"].as_array().unwrap();
        replicas.iter().find(|one| one["storage"] == json!(storage)).unwrap()["suspect"].clone()
    };
    assert_eq!((suspect("alpha"), suspect("beta")), (json!(false), json!(false)));
    deployment.assert_nothing_failed();
    deployment.check();

    // A third site gets the good copy, whoever is asked first.
    deployment.add_site(SiteOptions::new("gamma"));
    deployment.deliver("run7", "gamma", 60);
    assert_equal(&deployment, "gamma");
}

/// A scan that finds registered files changed, of other datasets too, says so and is no success; the copies
/// are suspect.
#[test]
fn a_scan_tells_which_files_changed_since_they_were_registered() {
    let deployment = deployment(&["alpha"], 5, 50_000);
    let root = deployment.storage("alpha");
    fs::create_dir(root.join("other")).unwrap();
    fs::write(root.join("other/one"), b"as registered").unwrap();
    deployment.register("run7", "alpha:run00");
    deployment.register("other", "alpha:other");
    let changed = ["run00/f00000.dat", "other/one"];
    for lfn in changed {
        fs::write(root.join(lfn), b"edited since").unwrap();
    }
    let ran = deployment.longhaul(&["dataset", "add", "run7", "--scan", "alpha"]).exits(7);
    assert!(ran.stdout.contains("2 files do NOT agree with the catalog"), "{ran}");
    for words in changed.into_iter().chain(["E2002"]) {
        assert!(ran.stdout.contains(words), "{words}: {ran}");
    }
    for dataset in ["run7", "other"] {
        let replicas = deployment.json(&["replica", "list", dataset]);
        assert_eq!(replicas["items"][0]["suspect_files"], json!(1), "{replicas}");
    }
    deployment.check();
}

/// A repair costs the chunks that are damaged, whatever the file's size.
#[test]
fn a_repair_fetches_what_is_damaged() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    let mut random = Random::new(23);
    for name in ["one", "two"] {
        let bytes: Vec<u8> = (0..12 << 20).map(|_| random.below(256) as u8).collect();
        fs::write(deployment.storage("alpha").join(name), bytes).unwrap();
    }
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);
    let moved = || deployment.metric("longhaul_moved_bytes_total{source=\"alpha\",target=\"beta\"}");
    // They are counted after the commit, of which `subscribe --wait` tells.
    let whole = f64::from(24 << 20);
    deployment.until("both files are counted", WITHIN, || (moved() >= whole).then_some(()));
    let before = moved();
    for name in ["one", "two"] {
        flip(&deployment.storage("beta").join(name));
    }
    deployment.longhaul(&["verify", "beta", "run7"]).exits(10);
    deployment.deliver("run7", "beta", 60);
    assert_equal(&deployment, "beta");
    let chunks = f64::from(2 << 20);
    deployment.until("both repairs are counted", WITHIN, || (moved() >= before + chunks).then_some(()));
    assert_eq!(moved() - before, chunks, "one chunk of each");
    deployment.check();
}

/// Changes one byte in the middle; size and time stay.
fn flip(path: &Path) {
    let modified = path.metadata().unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

/// One transfer is found by its id in the log of each process that had to do with it; and a site shows who
/// its agents are.
#[test]
fn logs_and_sites_tell_who_did_what() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        let mut options = SiteOptions::new(site);
        options.environment = vec![("LONGHAUL_LOG_LEVEL".into(), "info,longhaul_engine=debug".into())];
        deployment.add_site(options);
    }
    tree::make(&deployment.storage("alpha"), 5, 4_000_000, &mut Random::new(19));
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);
    for transfer in deployment.json(&["transfer", "list"])["items"].as_array().unwrap() {
        let detail = deployment.json(&["transfer", "show", &id(transfer)]);
        let attempt = id(&detail["attempts"][0]);
        for process in [SERVICE, "alpha", "beta"] {
            let log = deployment.log(process);
            let line = log.wait_for(0, &[&id(transfer), &attempt], WITHIN);
            let line = line.unwrap_or_else(|| panic!("{process} says nothing of {attempt}:\n{}", log.tail()));
            let fields: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert_eq!(
                (&fields["transfer"], &fields["attempt"]),
                (&transfer["id"], &json!(attempt)),
                "{line}"
            );
        }
    }
    deployment.restart("beta");
    let agent = deployment.until("the second incarnation is known", WITHIN, || {
        let site = deployment.json(&["site", "show", "beta"]);
        (site["agents"][0]["incarnation"] == json!(2)).then(|| site["agents"][0].clone())
    });
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(agent["host"], json!(host.trim()), "{agent}");
    let version = deployment.longhaul(&["--version"]).ok().stdout;
    assert!(version.trim().ends_with(agent["version"].as_str().unwrap()), "{version} {agent}");
    assert!(
        agent["last_contact"].is_string() && agent["data_addresses"].to_string().contains("127.0.0.1:"),
        "{agent}"
    );
    deployment.check();
}

/// An agent may offer what it likes: under a name that is not its site's, a storage is served once an
/// administrator has confirmed the name, by the command that the problem names and without a restart.
#[test]
fn a_storage_is_served_once_its_name_is_confirmed() {
    let mut deployment = deployment(&["alpha"], 10, 100_000);
    let vault = deployment.directory().join("vault");
    fs::create_dir(&vault).unwrap();
    let settings = format!("[[agent.storages]]\nname = \"vault\"\nroot = {vault:?}\n");
    deployment.add_site(SiteOptions { settings, ..SiteOptions::new("beta") });
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);
    let told = deployment.until("the name is a problem", WITHIN, || {
        let problems = deployment.json(&["problems"]);
        let items = problems["items"].as_array()?;
        items.iter().find(|problem| problem["storage"] == json!("vault")).cloned()
    });
    let remedy = told["remedy"].as_str().unwrap();
    let (_, command) = remedy.split_once("longhaul ").unwrap_or_else(|| panic!("no command: {told}"));
    deployment.longhaul(&["subscribe", "run7", "vault"]).fails(3, "E1002", &["vault"]);

    deployment.longhaul(&command.split(' ').collect::<Vec<_>>()).ok();
    deployment.until("the storage is served", WITHIN, || {
        let site = deployment.json(&["site", "show", "beta"]);
        let storages = site["storages"].as_array()?;
        storages.iter().any(|storage| storage["name"] == json!("vault")).then_some(())
    });
    assert_eq!(deployment.json(&["site", "show", "beta"])["storage_names"], json!(["vault"]));
    let later = deployment.storage("alpha").join("later");
    fs::create_dir(&later).unwrap();
    fs::write(later.join("one"), b"only at alpha").unwrap();
    deployment.register("run8", "alpha:later");
    deployment.deliver("run8", "vault", 60);
    assert_eq!(fs::read(vault.join("later/one")).unwrap(), b"only at alpha");
    assert!(!deployment.json(&["problems"]).to_string().contains("is not served"));
    deployment.longhaul(&["storage", "disallow", "vault"]).fails(
        6,
        "E1004",
        &["longhaul storage remove vault"],
    );
    deployment.check();
}

/// What is not known is told as such, with how to find the right name.
#[test]
fn unknown_names_are_told() {
    let deployment = deployment(&["alpha"], 3, 1_000);
    deployment.register("run7", "alpha");
    for (words, name, hint) in [
        (&["dataset", "show", "run8"][..], "run8", "longhaul dataset list"),
        (&["dataset", "add", "run7", "--scan", "omega"], "omega", "longhaul"),
        (&["subscribe", "run8", "alpha"], "run8", "longhaul dataset list"),
        (&["subscribe", "run7", "omega"], "omega", "longhaul"),
        (&["subscribe", "run7#0099", "alpha"], "run7#0099", "longhaul"),
        (&["site", "show", "omega"], "omega", "longhaul site list"),
        (&["site", "pause", "omega"], "omega", "longhaul site list"),
        (&["replica", "list", "run8"], "run8", "longhaul dataset list"),
        (&["replica", "list", "--file", "no/such"], "no/such", "longhaul"),
        (&["replica", "delete", "run7", "omega"], "omega", "longhaul"),
        (&["verify", "omega", "run7"], "omega", "longhaul"),
        (&["transfer", "show", "0CMZ8QTHR00KJ"], "0CMZ8QTHR00KJ", "longhaul transfer list"),
        (&["subscription", "show", "0CMZ8QTHR00KJ"], "0CMZ8QTHR00KJ", "longhaul subscription list"),
        (&["task", "show", "0CMZ8QTHR00KJ"], "0CMZ8QTHR00KJ", "longhaul"),
        (&["token", "revoke", "nobody"], "nobody", "longhaul token list"),
    ] {
        deployment.longhaul(words).fails(3, "E1002", &[name, hint]);
    }
    // A scan of a directory that is not there is an error of the scan.
    let ran = deployment.longhaul(&["dataset", "add", "run7", "--scan", "alpha:nowhere"]);
    assert!(ran.status != 0 && ran.stderr.contains("nowhere"), "{ran}");
    deployment.check();
}
