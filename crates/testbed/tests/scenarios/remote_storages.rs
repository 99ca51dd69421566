//! Collections of WebDAV servers and buckets as storages of agents: sources and targets of subscriptions like
//! any directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_model::{Algorithm, FaultCode, Hasher, Pfn, StorageName};
use longhaul_storage::{Storage, conformance};
use longhaul_storage_remote::{
    Credential, Remote, RemoteConfig, RemoteStorage, RemoteStorageOptions, S3Keys, Trust,
};
use longhaul_testbed::foreign::{Apache, ForeignAuthority, S3Server, Xrootd};
use longhaul_testbed::{Deployment, DirectoryTape, Random, SiteOptions, free_port, needs, tree};
use tokio::runtime::{Handle, Runtime};

const WITHIN: Duration = Duration::from_secs(90);

/// A directory that the server's own user may write.
fn make_open(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
}

/// A file beside the deployment that its owner alone may read.
fn write_secret(deployment: &Deployment, name: &str, text: &str) -> PathBuf {
    let path = deployment.directory().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A client that trusts the authority and may dial this machine.
fn client(authority: &ForeignAuthority) -> (Arc<Remote>, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config = RemoteConfig {
        trust: Trust::Pem(authority.ca_pem().to_owned()),
        allow: vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
        ..RemoteConfig::default()
    };
    (Arc::new(Remote::new(config).unwrap()), runtime)
}

/// The suite needs an empty storage for each check: each is a collection of its own, made by `open`.
fn check(
    open: impl Fn(Arc<Remote>, RemoteStorageOptions, Handle) -> Box<dyn Storage>,
    authority: &ForeignAuthority,
) {
    let (remote, runtime) = client(authority);
    let number = Mutex::new(0);
    let make = || {
        let mut number = number.lock().unwrap();
        *number += 1;
        let name = "disk".parse().unwrap();
        let options = RemoteStorageOptions::new(name, format!("c{number}"), Credential::None);
        open(remote.clone(), options, runtime.handle().clone())
    };
    conformance::check(&make);
}

/// A collection of its own below the served directory.
fn open_webdav(
    (remote, options, runtime): (Arc<Remote>, RemoteStorageOptions, Handle),
    url: &str,
    data: &Path,
) -> Box<dyn Storage> {
    make_open(&data.join(&options.url));
    let options = RemoteStorageOptions { url: format!("{url}{}", options.url), ..options };
    Box::new(RemoteStorage::open(remote, options, runtime).unwrap())
}

#[test]
fn apache_conforms() {
    if !needs::programs("a storage of Apache's", &[("apache2", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let apache = Apache::start(&authority);
    let open = |remote, options, runtime| {
        let options = RemoteStorageOptions { capacity_bytes: Some(1 << 40), ..options };
        open_webdav((remote, options, runtime), &apache.url(""), &apache.data())
    };
    check(open, &authority);
}

#[test]
fn xrootd_conforms() {
    if !needs::programs("a storage of XRootD's", &[("xrootd", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let xrootd = Xrootd::start(&authority);
    let open = |remote, options, runtime| {
        let options = RemoteStorageOptions { name_bytes_max: 254, ..options };
        open_webdav((remote, options, runtime), &xrootd.url(""), &xrootd.data())
    };
    check(open, &authority);
}

#[test]
fn xrootd_tells_digests() {
    if !needs::programs("digests of XRootD's", &[("xrootd", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let xrootd = Xrootd::start(&authority);
    make_open(&xrootd.data().join("disk"));
    fs::write(xrootd.data().join("disk/f1"), b"told").unwrap();
    let (remote, runtime) = client(&authority);
    let name: StorageName = "disk".parse().unwrap();
    let options = RemoteStorageOptions::new(name.clone(), xrootd.url("disk"), Credential::None);
    let storage = RemoteStorage::open(remote, options, runtime.handle().clone()).unwrap();
    let at = |path: &str| Pfn::new(name.clone(), path).unwrap();
    let told = |path: &str, algorithms: &[Algorithm]| storage.told_digests(&at(path), algorithms);
    let mut hasher = Hasher::new([Algorithm::Adler32]);
    hasher.update(b"told");
    // It is asked for the first; it does not know how to compute that, and tells the next.
    let (identity, digests) = told("f1", &[Algorithm::Sha256, Algorithm::Adler32]).unwrap().unwrap();
    assert_eq!((identity.size, digests), (4, hasher.finish()));
    assert_eq!(told("f1", &[Algorithm::Blake3]).unwrap(), None);
    assert_eq!(told("f2", &[Algorithm::Adler32]).unwrap_err().code, FaultCode::SourceMissing);
}

#[test]
fn a_bucket_conforms() {
    let Some(program) = crate::s3::program() else { return };
    let authority = ForeignAuthority::new("storages");
    let server = S3Server::start(&authority, &program);
    let open = |remote, options: RemoteStorageOptions, runtime| {
        let keys = S3Keys {
            access_key: server.access_key.clone(),
            secret: server.secret.clone().into(),
            session_token: None,
            region: "us-east-1".to_owned(),
        };
        let options = RemoteStorageOptions {
            url: format!("{}/{}", server.url("open"), options.url),
            credential: Credential::S3(keys),
            ..options
        };
        Box::new(RemoteStorage::open(remote, options, runtime).unwrap()) as Box<dyn Storage>
    };
    check(open, &authority);
}

const FILES: [(&str, u64); 4] =
    [("large", 20_000_000), ("with a blank/small", 70_000), ("empty", 0), ("é", 3_000_000)];

/// A dataset of a few files of all sizes, registered at `alpha`.
fn register_run(deployment: &Deployment) -> PathBuf {
    let root = deployment.storage("alpha").join("run");
    let mut random = Random::new(34);
    fs::create_dir_all(root.join("with a blank")).unwrap();
    for (name, size) in FILES {
        fs::write(root.join(name), tree::content(&mut random, size)).unwrap();
    }
    deployment.register("run", "alpha:run");
    root
}

fn assert_same(one: &Path, other: &Path) {
    for (name, _) in FILES {
        assert!(fs::read(one.join(name)).unwrap() == fs::read(other.join(name)).unwrap(), "{name}");
    }
}

/// How the one replica of a dataset was verified.
fn verified(deployment: &Deployment, dataset: &str) -> Vec<String> {
    let replicas = deployment.json(&["replica", "list", dataset]);
    let counts = replicas["items"][0]["verified"].as_array().unwrap();
    counts.iter().map(|count| count["how"].as_str().unwrap().to_owned()).collect()
}

/// Makes the replicas at `alpha` bad, so that the next copy comes from elsewhere.
fn lose_first_copies(deployment: &Deployment) {
    let alpha = deployment.storage("alpha");
    fs::rename(alpha.join("run"), alpha.join("gone")).unwrap();
    deployment.longhaul(&["verify", "alpha", "run"]).exits(10);
}

#[test]
fn datasets_go_to_a_webdav_server_and_come_from_there() {
    if !needs::programs("a storage of Apache's", &[("apache2", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let apache = Apache::start(&authority);
    let data = apache.data().join("beta");
    make_open(&data);
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    let beta = SiteOptions::new("beta").with_webdav_storage(&apache.url("beta"), &authority.ca_file());
    deployment.add_site(beta);
    deployment.add_site(SiteOptions::new("gamma"));
    let root = register_run(&deployment);
    deployment.deliver("run", "beta-dav", WITHIN.as_secs());
    assert_same(&root, &data.join("run"));
    lose_first_copies(&deployment);
    deployment.deliver("run", "gamma", WITHIN.as_secs());
    assert_same(&deployment.storage("gamma").join("run"), &data.join("run"));

    // Found by a scan, and read for their digests: Apache tells none.
    ["more", "more/deep"].iter().for_each(|folder| make_open(&data.join(folder)));
    fs::write(data.join("more/deep/f1"), b"more").unwrap();
    deployment.json(&["dataset", "register", "more", "--scan", "beta-dav:more", "--server-digests"]);
    assert_eq!(verified(&deployment, "more"), ["readback"]);
    deployment.deliver("more", "gamma", WITHIN.as_secs());
    assert_eq!(fs::read(deployment.storage("gamma").join("more/deep/f1")).unwrap(), b"more");

    // What is damaged there is found and fetched again.
    let before = fs::read(data.join("run/é")).unwrap();
    let mut damaged = before.clone();
    damaged[1_000_000] ^= 1;
    fs::write(data.join("run/é"), damaged).unwrap();
    deployment.longhaul(&["verify", "beta-dav", "run"]).exits(10);
    deployment.until("the damaged file is healed", WITHIN, || {
        (fs::read(data.join("run/é")).ok()? == before).then_some(())
    });
    deployment.deliver("run", "beta-dav", WITHIN.as_secs());
    deployment.longhaul(&["verify", "beta-dav", "run"]).ok();

    deployment.longhaul(&["replica", "delete", "more", "beta-dav", "--yes"]).ok();
    deployment.until("it is deleted", WITHIN, || (!data.join("more/deep/f1").exists()).then_some(()));
    deployment.check();
}

/// Through a chain of kinds: a directory, a WebDAV server, a bucket, a tape, a directory of two agents.
#[test]
fn a_dataset_goes_through_storages_of_every_kind() {
    let Some(program) = crate::s3::program() else { return };
    if !needs::programs("a storage of Apache's", &[("apache2", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let apache = Apache::start(&authority);
    make_open(&apache.data().join("beta"));
    let server = S3Server::start(&authority, &program);
    let mut deployment = Deployment::new();
    let secret = write_secret(&deployment, "secret", &server.secret);
    let ca = authority.ca_file();
    deployment.add_site(SiteOptions::new("alpha"));
    deployment.add_site(SiteOptions::new("beta").with_webdav_storage(&apache.url("beta"), &ca));
    let bucket = server.url("open/data");
    deployment.add_site(SiteOptions::new("gamma").with_s3_storage(&bucket, &ca, &server.access_key, &secret));
    let tape = DirectoryTape::new(deployment.directory());
    tape.let_go();
    deployment.add_site(tape.site("epsilon", "migrate_after_s = 1\n"));
    let shared =
        || SiteOptions { storage_settings: "shared = true\n".to_owned(), ..SiteOptions::new("delta") };
    deployment.add_site(shared());
    let root_of_both = Some(deployment.storage("delta"));
    deployment.add_agent("delta-node2", SiteOptions { root: root_of_both, ..shared() });
    let root = register_run(&deployment);
    deployment.deliver("run", "beta-dav", WITHIN.as_secs());
    lose_first_copies(&deployment);
    deployment.deliver("run", "gamma-s3", WITHIN.as_secs());
    deployment.longhaul(&["verify", "gamma-s3", "run"]).ok();
    let large = server.get("open/data/run/large");
    assert!(large == fs::read(apache.data().join("beta/run/large")).unwrap());

    deployment.deliver("run", "epsilon", WITHIN.as_secs());
    deployment.until("all is on tape", WITHIN, || {
        FILES.iter().all(|(name, _)| tape.tape.join("run").join(name).exists()).then_some(())
    });
    FILES.iter().for_each(|(name, _)| tape.take_off_disk(format!("run/{name}")));

    let subscriptions = deployment.json(&["subscription", "list"]);
    for subscription in subscriptions["items"].as_array().unwrap() {
        deployment.json(&["subscription", "cancel", subscription["id"].as_str().unwrap()]);
    }
    for storage in ["beta-dav", "gamma-s3"] {
        deployment.longhaul(&["replica", "delete", "run", storage, "--yes"]).ok();
    }
    deployment
        .until("it is deleted", WITHIN, || (!apache.data().join("beta/run/large").exists()).then_some(()));
    deployment.deliver("run", "delta", WITHIN.as_secs());
    assert!(tape.runs("stage") > 0, "the tape had the last replica");
    deployment.longhaul(&["verify", "delta", "run"]).ok();
    assert_same(&deployment.storage("delta").join("run"), &root.with_file_name("gone"));

    // A digest that is not made of those of parts is computed on the way: an object cannot be read before it
    // is complete.
    fs::rename(root.with_file_name("gone"), root.with_file_name("sums")).unwrap();
    deployment.json(&["dataset", "register", "sums", "--scan", "alpha:sums", "--digests", "md5"]);
    deployment.deliver("sums", "gamma-s3", WITHIN.as_secs());
    deployment.longhaul(&["verify", "gamma-s3", "sums"]).ok();

    // Found by a scan of a part of the bucket, with a digest that the server tells.
    server.put("open/data/more/deep/f1", b"more");
    let scan = ["--scan", "gamma-s3:more", "--server-digests", "--digests", "blake3,md5"];
    deployment.json(&[&["dataset", "register", "more"], &scan[..]].concat());
    assert_eq!(verified(&deployment, "more"), ["registered"]);
    deployment.longhaul(&["verify", "gamma-s3", "more"]).ok();
    assert_eq!(verified(&deployment, "more"), ["readback"]);
    deployment.deliver("more", "delta", WITHIN.as_secs());
    assert_eq!(fs::read(deployment.storage("delta").join("more/deep/f1")).unwrap(), b"more");
    deployment.check();
}

/// How many files the servers have copied between themselves, and how many of them the engine had to.
fn by_servers(deployment: &Deployment, site: &str) -> (usize, usize) {
    let log = deployment.log(site);
    let count = |part: &str| log.lines_with(&[part]).len();
    (count("copied a file between themselves"), count("did not copy a file"))
}

/// What is said of who moved a file of a dataset to a storage.
fn explained(deployment: &Deployment, dataset: &str, target: &str, lfn: &str) -> String {
    let transfers = deployment.json(&["transfer", "list", "--dataset", dataset, "--target", target]);
    let of_file = |transfer: &&serde_json::Value| transfer["lfn"] == lfn;
    let transfer = transfers["items"].as_array().unwrap().iter().find(of_file).unwrap();
    let shown = deployment.longhaul(&["transfer", "explain", transfer["id"].as_str().unwrap()]).ok().stdout;
    let said = shown.lines().find(|line| line.contains("by the agents") || line.contains("no byte passed"));
    said.unwrap_or_default().trim().to_owned()
}

/// Two servers that can, and one that cannot: then the bytes go through the agent.
#[test]
fn servers_copy_between_the_storages_of_an_agent() {
    if !needs::programs("a copy between servers", &[("xrootd", "-v"), ("apache2", "-v")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (one, two, apache) =
        (Xrootd::start(&authority), Xrootd::start(&authority), Apache::start(&authority));
    let folders = [one.data().join("beta"), two.data().join("beta"), apache.data().join("beta")];
    folders.iter().for_each(|folder| make_open(folder));
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    let ca = authority.ca_file();
    let beta = SiteOptions::new("beta")
        .with_further_webdav_storage("one", &one.url("beta"), &ca)
        .with_further_webdav_storage("two", &two.url("beta"), &ca)
        .with_further_webdav_storage("plain", &apache.url("beta"), &ca);
    deployment.add_site(beta);
    register_run(&deployment);
    deployment.deliver("run", "beta-one", WITHIN.as_secs());
    assert_eq!(by_servers(&deployment, "beta"), (0, 0));
    lose_first_copies(&deployment);
    deployment.deliver("run", "beta-two", WITHIN.as_secs());
    assert_same(&folders[0].join("run"), &folders[1].join("run"));
    // There is nothing to move of the empty file.
    assert_eq!(by_servers(&deployment, "beta"), (3, 0));
    deployment.longhaul(&["verify", "beta-two", "run"]).ok();

    // Apache pulls nothing.
    deployment.deliver("run", "beta-plain", WITHIN.as_secs());
    assert_same(&folders[0].join("run"), &folders[2].join("run"));
    assert_eq!(by_servers(&deployment, "beta"), (3, 3));
    let left = |folder: &PathBuf| fs::read_dir(folder.join(".longhaul-work")).unwrap();
    deployment.until("temporary files are gone", WITHIN, || {
        let names = folders.iter().flat_map(left).map(|entry| entry.unwrap().file_name());
        (names.filter(|name| name.len() == 32).count() == 0).then_some(())
    });

    // Servers keep no rate of ours.
    deployment.longhaul(&["site", "limit", "beta", "--in", "50MB"]).ok();
    fs::write(folders[0].join("limited"), vec![7; 1_000_000]).unwrap();
    deployment.json(&["dataset", "register", "more", "--scan", "beta-one:limited", "--server-digests"]);
    deployment.deliver("more", "beta-two", WITHIN.as_secs());
    assert_eq!(by_servers(&deployment, "beta"), (3, 3));
    deployment.check();
}

/// The target's agent asks the source's for access to each file: of an open server, of a bucket, of a door
/// that gives macaroons.
#[test]
fn servers_copy_between_the_storages_of_two_agents() {
    let Some(program) = crate::s3::program() else { return };
    if !needs::programs("a copy between servers", &[("xrootd", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (one, two) = (Xrootd::start(&authority), Xrootd::start(&authority));
    let folders = [one.data().join("beta"), two.data().join("gamma")];
    folders.iter().for_each(|folder| make_open(folder));
    let server = S3Server::start(&authority, &program);
    let mut deployment = Deployment::new();
    let write = |name: &str, text: &str| write_secret(&deployment, name, text);
    let secret = write("secret", &server.secret);
    let (certificate, key) = authority.issue("door");
    let (certificate, key) = (write("door.pem", &certificate), write("door.key", &key));
    let (robot, robot_key) = authority.issue("robot");
    let (robot, robot_key) = (write("robot.pem", &robot), write("robot.key", &robot_key));
    let tokens = write("tokens", "write /kept writer-0123456789abcdef\n");
    let token = write("token", "writer-0123456789abcdef");
    let (port, ca) = (free_port(), authority.ca_file());
    let mut alpha = SiteOptions::new("alpha");
    alpha.settings = format!(
        "[[agent.doors]]\nstorage = \"alpha\"\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
         {certificate:?}\nkey = {key:?}\nclient_authorities = [{ca:?}]\ntokens = {tokens:?}\n\
         allow = [{{ subjects = [\"/CN=robot\"], below = \"remote\", may = \"write\" }}]\n"
    );
    deployment.add_site(alpha);
    deployment.add_site(SiteOptions::new("beta").with_webdav_storage(&one.url("beta"), &ca));
    deployment.add_site(SiteOptions::new("gamma").with_webdav_storage(&two.url("gamma"), &ca));
    let bucket = server.url("open/data");
    deployment.add_site(SiteOptions::new("delta").with_s3_storage(&bucket, &ca, &server.access_key, &secret));
    let door = SiteOptions::new("eta").with_webdav_storage(&format!("https://localhost:{port}/remote"), &ca);
    let settings = format!("{}certificate_file = {robot:?}\nkey_file = {robot_key:?}\n", door.settings);
    deployment.add_site(SiteOptions { settings, ..door });
    let door = SiteOptions::new("theta").with_webdav_storage(&format!("https://localhost:{port}/kept"), &ca);
    let settings = format!("{}token_file = {token:?}\n", door.settings);
    deployment.add_site(SiteOptions { settings, ..door });

    // From a directory no server could pull.
    register_run(&deployment);
    deployment.deliver("run", "beta-dav", WITHIN.as_secs());
    assert_eq!(by_servers(&deployment, "beta"), (0, 0));
    lose_first_copies(&deployment);
    deployment.deliver("run", "gamma-dav", WITHIN.as_secs());
    assert_same(&folders[0].join("run"), &folders[1].join("run"));
    // There is nothing to move of the empty file.
    assert_eq!(by_servers(&deployment, "gamma"), (3, 0));
    let said = |target, lfn| explained(&deployment, "run", target, lfn);
    assert_eq!(said("beta-dav", "run/large"), "moved by the agents");
    assert_eq!(said("gamma-dav", "run/large"), "pulled by the target's server; no byte passed an agent");
    assert_eq!(said("gamma-dav", "run/empty"), "");
    deployment.longhaul(&["verify", "gamma-dav", "run"]).ok();

    // A signed URL opens an object.
    server.put("open/data/more/f1", &[7; 300_000]);
    let scan = ["--scan", "delta-s3:more", "--server-digests", "--digests", "blake3,md5"];
    deployment.json(&[&["dataset", "register", "more"], &scan[..]].concat());
    deployment.deliver("more", "gamma-dav", WITHIN.as_secs());
    assert_eq!(fs::read(folders[1].join("more/f1")).unwrap(), [7; 300_000]);
    assert_eq!(by_servers(&deployment, "gamma"), (4, 0));

    // Its certificate or token opens all of a storage, and stays with its agent: a macaroon opens one file.
    for (dataset, storage, place, copied) in
        [("held", "eta-dav", "remote", (5, 0)), ("lent", "theta-dav", "kept", (6, 0))]
    {
        let folder = deployment.storage("alpha").join(place).join(dataset);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("f1"), vec![8; 200_000]).unwrap();
        deployment.json(&["dataset", "register", dataset, "--scan", &format!("{storage}:{dataset}")]);
        deployment.deliver(dataset, "gamma-dav", WITHIN.as_secs());
        assert_eq!(fs::read(folders[1].join(dataset).join("f1")).unwrap(), [8; 200_000]);
        assert_eq!(by_servers(&deployment, "gamma"), copied);
    }
    deployment.check();
}

/// A credential that has expired stops a storage, and loses nothing.
#[test]
fn files_wait_while_a_server_refuses_the_token() {
    if !needs::programs("a storage behind a door", &[("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("authority");
    let mut deployment = Deployment::new();
    let write = |name: &str, text: &str| write_secret(&deployment, name, text);
    let (certificate, key) = authority.issue("door");
    let (certificate, key) = (write("door.pem", &certificate), write("door.key", &key));
    let tokens = write("tokens", "write /remote writer-0123456789abcdef\n");
    let token = write("token", "expired-0123456789abcdef");
    let port = free_port();
    let mut alpha = SiteOptions::new("alpha");
    alpha.settings = format!(
        "[[agent.doors]]\nstorage = \"alpha\"\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
         {certificate:?}\nkey = {key:?}\ntokens = {tokens:?}\n"
    );
    deployment.add_site(alpha);
    let url = format!("https://localhost:{port}/remote");
    let beta = SiteOptions::new("beta").with_webdav_storage(&url, &authority.ca_file());
    let settings = format!("{}token_file = {token:?}\n", beta.settings);
    deployment.add_site(SiteOptions { settings, ..beta });
    let root = register_run(&deployment);
    deployment.longhaul(&["subscribe", "run", "beta-dav"]).ok();
    let problem = deployment.until("the storage is in trouble", WITHIN, || {
        let problems = deployment.json(&["problems"]).to_string();
        problems.contains("E3002").then_some(problems)
    });
    assert!(problem.contains("beta-dav") && problem.contains("401"), "{problem}");

    fs::write(&token, "writer-0123456789abcdef\n").unwrap();
    deployment.deliver("run", "beta-dav", WITHIN.as_secs());
    assert_same(&root, &deployment.storage("alpha").join("remote/run"));
    deployment.check();
}
