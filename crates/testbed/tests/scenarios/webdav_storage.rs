//! Collections of WebDAV servers as storages of agents: sources and targets of subscriptions like any
//! directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_storage::{Storage, conformance};
use longhaul_storage_remote::{Credential, Remote, RemoteConfig, Trust, WebDavOptions, WebDavStorage};
use longhaul_testbed::foreign::{Apache, ForeignAuthority, Xrootd};
use longhaul_testbed::{Deployment, Random, SiteOptions, needs, tree};

const WITHIN: Duration = Duration::from_secs(90);

/// A directory that the server's own user may write.
fn make_open(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
}

/// The suite needs an empty storage for each check: each is a collection of its own.
fn check(url: impl Fn(&str) -> String, data: &Path, authority: &ForeignAuthority, name_bytes_max: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config = RemoteConfig {
        trust: Trust::Pem(authority.ca_pem().to_owned()),
        allow: vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
        ..RemoteConfig::default()
    };
    let remote = Arc::new(Remote::new(config).unwrap());
    let number = Mutex::new(0);
    let make = || {
        let mut number = number.lock().unwrap();
        *number += 1;
        let name = format!("c{number}");
        make_open(&data.join(&name));
        let options = WebDavOptions {
            name: "disk".parse().unwrap(),
            url: url(&name),
            credential: Credential::None,
            writable: true,
            case_insensitive: false,
            name_bytes_max,
            parallel: None,
            capacity_bytes: Some(1 << 40),
        };
        let storage = WebDavStorage::open(remote.clone(), options, runtime.handle().clone());
        Box::new(storage.unwrap()) as Box<dyn Storage>
    };
    conformance::check(&make);
}

#[test]
fn apache_conforms() {
    if !needs::programs("a storage of Apache's", &[("apache2", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let apache = Apache::start(&authority);
    check(|name| apache.url(name), &apache.data(), &authority, 255);
}

#[test]
fn xrootd_conforms() {
    if !needs::programs("a storage of XRootD's", &[("xrootd", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let xrootd = Xrootd::start(&authority);
    check(|name| xrootd.url(name), &xrootd.data(), &authority, 254);
}

#[test]
fn datasets_go_there_and_come_from_there() {
    if !needs::programs("a storage of Apache's", &[("apache2", "-v"), ("openssl", "version")]) {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let apache = Apache::start(&authority);
    let data = apache.data().join("beta");
    make_open(&data);
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    deployment
        .add_site(SiteOptions::new("beta").with_webdav_storage(&apache.url("beta"), &authority.ca_file()));
    deployment.add_site(SiteOptions::new("gamma"));
    let root = deployment.storage("alpha").join("run");
    let mut random = Random::new(34);
    fs::create_dir_all(root.join("with a blank")).unwrap();
    for (name, size) in
        [("large", 20_000_000), ("with a blank/small", 70_000), ("empty", 0), ("é", 3_000_000)]
    {
        fs::write(root.join(name), tree::content(&mut random, size)).unwrap();
    }
    deployment.register("run", "alpha:run");
    deployment.deliver("run", "beta-dav", WITHIN.as_secs());
    for name in ["large", "with a blank/small", "empty", "é"] {
        assert!(
            fs::read(root.join(name)).unwrap() == fs::read(data.join("run").join(name)).unwrap(),
            "{name}"
        );
    }
    // From there to another site, with the first source gone.
    fs::rename(&root, deployment.storage("alpha").join("gone")).unwrap();
    deployment.longhaul(&["verify", "alpha", "run"]).exits(10);
    deployment.deliver("run", "gamma", WITHIN.as_secs());
    let arrived = deployment.storage("gamma").join("run/large");
    assert!(fs::read(arrived).unwrap() == fs::read(data.join("run/large")).unwrap());

    // Found by a scan, and read for their digests.
    ["more", "more/deep"].iter().for_each(|folder| make_open(&data.join(folder)));
    fs::write(data.join("more/deep/f1"), b"more").unwrap();
    deployment.register("more", "beta-dav:more");
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
