//! The door of a real agent: opened and closed with it, and open only to those who are named.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longhaul_testbed::foreign::{ForeignAuthority, Xrootd};
use longhaul_testbed::{Deployment, SiteOptions, free_port, needs};

use crate::foreign_storage::TRIES_MAX;

const WITHIN: Duration = Duration::from_secs(120);
const TOKEN: &str = "writer-0123456789abcdef";

#[test]
fn an_agent_opens_its_storage_to_outside_clients() {
    if !needs::programs("the door of an agent", &[("curl", "--version"), ("openssl", "version")]) {
        return;
    }
    let mut deployment = Deployment::new();
    let tokens = deployment.directory().join("tokens");
    fs::write(&tokens, format!("write / {TOKEN}\n")).unwrap();
    let port = free_port();
    let authority = ForeignAuthority::new("authority");
    let (certificate, key) = authority.issue("door");
    let write = |name: &str, text: &str| {
        let path = deployment.directory().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = (write("door.pem", &certificate), write("door.key", &key));
    let door = format!(
        "[[agent.doors]]\nstorage = \"alpha\"\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
            {certificate:?}\nkey = {key:?}\ntokens = {tokens:?}\nanonymous_read = true\n\
         allow = [{{ subjects = [\"longhaul://*/agent/alpha/*\"], may = \"write\" }}]\n"
    );
    let mut options = SiteOptions::new("alpha");
    options.settings = door;
    deployment.add_site(options);
    deployment.until_connected("alpha");

    let credentials = deployment.credentials("alpha");
    let (ca, pair) = (authority.ca_file(), deployment.directory().join("pair.pem"));
    fs::write(&pair, format!("{}{}", credentials.certificate_pem, credentials.key_pem)).unwrap();
    let curl = |arguments: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "60", "-o", "/dev/stdout", "-w", "\n%{http_code}", "--cacert"])
            .arg(&ca);
        let output = command.args(arguments).arg(format!("https://localhost:{port}{path}")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse::<u32>().unwrap(), body.to_owned())
    };
    let opened = deployment.await_answer(WITHIN, || (curl(&["-I"], "/").0 == 200).then_some(()));
    assert!(opened.is_some(), "{}", deployment.log("alpha").tail());

    let file = deployment.directory().join("file");
    fs::write(&file, "through the door").unwrap();
    let file = file.to_str().unwrap();
    let token = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(curl(&["-T", file], "/run/a").0, 401, "anybody may read only");
    assert_eq!(curl(&["-H", &token, "-T", file], "/run/a").0, 201);
    assert_eq!(curl(&["-E", pair.to_str().unwrap(), "-T", file], "/run/b").0, 201, "an agent that is named");
    assert_eq!(curl(&[], "/run/a"), (200, "through the door".to_owned()));
    assert_eq!(read(&deployment.storage("alpha"), "run/b"), "through the door");

    told_of_decisions(&deployment);

    // What came through the door is a file like any other.
    deployment.register("run", "alpha");
    assert_eq!(deployment.json(&["dataset", "show", "run"])["files"], 2);
    deployment.restart("alpha");
    let again = deployment.await_answer(WITHIN, || (curl(&["-I"], "/run/a").0 == 200).then_some(()));
    assert!(again.is_some(), "{}", deployment.log("alpha").tail());
    assert!(deployment.stop("alpha").success());
    assert_eq!(curl(&[], "/run/a").0, 0, "closed with its agent");
    deployment.check();
}

/// Each refusal, and each admission to change something, is in the service's audit log once, with site and
/// storage.
fn told_of_decisions(deployment: &Deployment) {
    let of = |of: &str| deployment.json(&["audit", "--of", of, "--site", "alpha"])["items"].clone();
    let found = |list: &serde_json::Value, who: &str, object: &str| {
        let entries = list.as_array().unwrap().iter();
        let mut found =
            entries.filter(|one| one["object"] == object && one["who"].as_str().unwrap().starts_with(who));
        found.next().filter(|_| found.next().is_none()).cloned()
    };
    let allowed = deployment.await_answer(WITHIN, || {
        let list = of("allowed");
        found(&list, "/CN=Longhaul agent", "/run/b").map(|_| list)
    });
    let allowed = allowed.unwrap_or_else(|| panic!("{}\n{}", of("allowed"), deployment.log("alpha").tail()));
    let by_agent = found(&allowed, "/CN=Longhaul agent", "/run/b").unwrap();
    assert_eq!(
        (&by_agent["credential"], &by_agent["operation"]),
        (&"certificate".into(), &"door PUT".into())
    );
    assert_eq!((&by_agent["site"], &by_agent["storage"]), (&"alpha".into(), &"alpha".into()));
    assert_eq!((&by_agent["origin"], &by_agent["times"]), (&"127.0.0.1".into(), &1.into()));
    let by_token = found(&allowed, "a token", "/run/a").unwrap();
    assert_eq!((&by_token["credential"], &by_token["why"]), (&"token".into(), &"rules of the door".into()));
    let refused = found(&of("refused"), "nobody", "/run/a").unwrap();
    assert_eq!((&refused["credential"], &refused["allowed"]), (&"none".into(), &false.into()));
    assert!(refused["why"].as_str().unwrap().contains("is needed"), "{refused}");
    let all = deployment.json(&["audit", "--of", "decisions"]).to_string();
    assert!(!all.contains(TOKEN), "{all}");
}

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

/// Each asks the other, in both directions, with a client certificate here and a token on the way to the
/// door.
#[test]
fn a_door_and_xrootd_copy_from_and_to_each_other() {
    if !needs::programs(
        "copies between a door and XRootD",
        &[("xrootd", "-v"), ("openssl", "version"), ("curl", "--version")],
    ) {
        return;
    }
    let authority = ForeignAuthority::new("grid");
    let mut xrootd = Xrootd::start(&authority);
    let mut deployment = Deployment::new();
    let here = deployment.directory().to_owned();
    let write = |name: &str, text: &str| {
        fs::write(here.join(name), text).unwrap();
        here.join(name)
    };
    let (certificate, key) = authority.issue("door");
    let (certificate, key) = (write("door.pem", &certificate), write("door.key", &key));
    let (user, user_key) = authority.issue("robot");
    let user = write("robot.pem", &format!("{user}{user_key}"));
    let tokens = write("tokens", &format!("write / {TOKEN}\n"));
    let (ca, port) = (authority.ca_file(), free_port());
    let mut options = SiteOptions::new("alpha");
    options.settings = format!(
        "[[agent.doors]]\nstorage = \"alpha\"\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
            {certificate:?}\nkey = {key:?}\n\
         client_authorities = [{ca:?}]\ntokens = {tokens:?}\nthird_party_authorities = [{ca:?}]\n\
         third_party_allow = [\"127.0.0.0/8\", \"::1\"]\nallow = [{{ subjects = [\"/CN=robot\"], may \
         = \"write\" }}]\n"
    );
    deployment.add_site(options);
    let door = |path: &str| format!("https://localhost:{port}/{path}");
    let (at, data) = (xrootd.url(""), xrootd.data());
    let there = |path: &str| format!("{at}{path}");
    let bytes: Vec<u8> = (0..9_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    xrootd.put("there", &bytes);
    let copy_once = |at: &str, header: &str, other: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "180", "-X", "COPY", "--cacert"]).arg(&ca).arg("-E").arg(&user);
        command.args(["-H", &format!("{header}: {other}"), "-H", "Credential: none", "-H", "Overwrite: T"]);
        command.args(["-H", &format!("TransferHeaderAuthorization: Bearer {TOKEN}"), at]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match said.lines().last() {
            Some(last) if last.starts_with("success") => Ok(()),
            _ => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    };
    // XRootD may break it off.
    let mut copy = |at: &str, header: &str, other: &str| {
        for tries in 1..=TRIES_MAX {
            let Err(why) = copy_once(at, header, other) else { return };
            let logs = [xrootd.log(), deployment.log("alpha").tail()].join("\n");
            println!("try {tries}: {header} {other} at {at}: {why}\n{logs}");
            xrootd.start_again();
        }
        panic!("{header} {other} at {at}: {TRIES_MAX} times");
    };
    let open = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
    assert!(deployment.await_answer(WITHIN, open).is_some(), "{}", deployment.log("alpha").tail());
    let root = deployment.storage("alpha");

    copy(&door("in/pulled"), "Source", &there("there"));
    assert!(fs::read(root.join("in/pulled")).unwrap() == bytes);
    copy(&door("in/pulled"), "Destination", &there("pushed"));
    assert!(fs::read(data.join("pushed")).unwrap() == bytes);
    copy(&there("fetched"), "Source", &door("in/pulled"));
    assert!(fs::read(data.join("fetched")).unwrap() == bytes);
    copy(&there("there"), "Destination", &door("in/sent"));
    assert!(fs::read(root.join("in/sent")).unwrap() == bytes);
}

/// A proxy by RFC 3820 of somebody with certificate and key in these files, with its key and chain, as tools
/// want it.
fn proxy(here: &Path, certificate: &Path, key: &Path, subject: &str) -> std::path::PathBuf {
    let file = |name: &str| here.join(format!("proxy.{name}"));
    fs::write(
        file("ext"),
        "keyUsage=critical,digitalSignature\nproxyCertInfo=critical,language:id-ppl-inheritAll\n",
    )
    .unwrap();
    let openssl = |arguments: &[&std::ffi::OsStr]| {
        let output = Command::new("openssl").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (request, own_key, shown) = (file("csr"), file("key"), file("pem"));
    let subject = format!("{subject}/CN=12345");
    let words = |text: &'static str| text.split(' ').map(std::ffi::OsStr::new).collect::<Vec<_>>();
    let mut asking = words("req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes");
    asking.extend(["-subj".as_ref(), subject.as_ref(), "-keyout".as_ref(), own_key.as_os_str()]);
    asking.extend(["-out".as_ref(), request.as_os_str()]);
    openssl(&asking);
    let mut signing = words("x509 -req -set_serial 12345 -days 1");
    let extensions = file("ext");
    signing.extend(["-in".as_ref(), request.as_os_str(), "-extfile".as_ref(), extensions.as_os_str()]);
    signing.extend(["-CA".as_ref(), certificate.as_os_str(), "-CAkey".as_ref(), key.as_os_str()]);
    signing.extend(["-out".as_ref(), shown.as_os_str()]);
    openssl(&signing);
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let whole = file("whole.pem");
    fs::write(&whole, format!("{}{}{}", text(&shown), text(&own_key), text(certificate))).unwrap();
    whole
}

/// A proxy stands for its holder. Whose chain does not verify is told why, and is nobody, not even one who
/// may read.
#[test]
fn users_of_the_grid_come_with_proxies() {
    if !needs::programs("proxies at a door", &[("openssl", "version"), ("curl", "--version")]) {
        return;
    }
    let (authority, other) = (ForeignAuthority::new("grid"), ForeignAuthority::new("other"));
    let mut deployment = Deployment::new();
    let here = deployment.directory().to_owned();
    let write = |name: &str, text: &str| {
        fs::write(here.join(name), text).unwrap();
        here.join(name)
    };
    let files = |by: &ForeignAuthority, name: &str, as_name: &str| {
        let (certificate, key) = by.issue(as_name);
        (write(&format!("{name}.pem"), &certificate), write(&format!("{name}.key"), &key))
    };
    let (certificate, key) = files(&authority, "door", "door");
    let (alice, alice_key) = files(&authority, "alice", "alice");
    let (bob, bob_key) = files(&authority, "bob", "bob");
    let (forged, forged_key) = files(&other, "forged", "alice");
    let (ca, trust, port) = (authority.ca_file(), authority.ca_folder(), free_port());
    let mut options = SiteOptions::new("alpha");
    options.settings = format!(
        "[[agent.doors]]\nstorage = \"alpha\"\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
            {certificate:?}\nkey = {key:?}\n\
         trust_dir = {trust:?}\nanonymous_read = true\nallow = [{{ subjects = [\"/CN=alice\"], may \
         = \"write\" }}]\n"
    );
    deployment.add_site(options);
    let open = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
    let opened = deployment.await_answer(WITHIN, open);
    assert!(opened.is_some(), "{}", deployment.log("alpha").tail());

    let file = write("file", "by a proxy");
    let put = |credentials: &[&Path], path: &str| {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "60", "-w", "\n%{http_code}", "-T"])
            .arg(&file)
            .arg("--cacert")
            .arg(&ca);
        for (flag, path) in ["-E", "--key"].iter().zip(credentials) {
            command.arg(flag).arg(path);
        }
        let output = command.arg(format!("https://localhost:{port}/{path}")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap_or_default();
        (status.parse::<u32>().unwrap_or(0), body.to_owned())
    };
    assert_eq!(put(&[], "a").0, 401);
    assert_eq!(put(&[&alice, &alice_key], "a").0, 201, "her certificate");
    let whole = proxy(&here, &alice, &alice_key, "/CN=alice");
    assert_eq!(put(&[&whole], "b").0, 201, "her proxy: {}", deployment.log("alpha").tail());
    assert_eq!(put(&[&bob, &bob_key], "c").0, 403, "known, and not named");
    let (status, why) = put(&[&forged, &forged_key], "d");
    assert_eq!(status, 401, "{why}");
    assert!(why.contains("authority"), "{why}");
    // Nobody is served as anybody whose certificate does not count, where everybody may read.
    let mut command = Command::new("curl");
    command
        .args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"])
        .arg(&ca)
        .arg("-E")
        .arg(&forged);
    let output =
        command.arg("--key").arg(&forged_key).arg(format!("https://localhost:{port}/a")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "401");
    let whole = proxy(&here, &bob, &bob_key, "/CN=alice");
    assert_eq!(put(&[&whole], "e").0, 401, "a proxy that takes another's name");
    let mut names: Vec<_> = fs::read_dir(deployment.storage("alpha"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    deployment.check();
}
