//! Rucio as it is published, with all its daemons, replicates by rule between storages of others through this
//! service, which it knows by a host certificate of the grid's authority.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use longhaul_security::write_private;
use longhaul_testbed::foreign::{
    ActiveMq, BROKER_PASSWORD, BROKER_USER, ForeignAuthority, Nginx, NginxRules, PostgreSql, Xrootd,
};
use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, free_port, needs, tree};
use serde_json::{Value, json};

const WHAT: &str = "Rucio through this service";
const VO: &str = "testvo";
/// Between two looks at whether the storages still run.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[test]
fn rucio_replicates_by_rule() {
    let (Some(rucio), Some(fts3)) = (python("RUCIO"), python("FTS3")) else {
        // A part of its own, which takes minutes: `cargo xtask test` is not it.
        return println!("\n*** NOT RUN: {WHAT}: `cargo xtask interop rucio` installs and runs it ***\n");
    };
    if let Some(missing) = missing() {
        return needs::not_run(WHAT, &missing);
    }
    let authority = ForeignAuthority::new("grid");
    let (mut alpha, mut beta) = (Xrootd::start(&authority), Xrootd::start(&authority));
    let gamma = Nginx::start(&authority, NginxRules::default());
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(1_000), ..NginxRules::default() });
    let (activemq, database) = (ActiveMq::start(), PostgreSql::start());
    let folder = tempfile::tempdir().unwrap();
    let pem = |name: &str, (certificate, key): (String, String)| {
        write_secret(folder.path(), &format!("{name}.pem"), &format!("{certificate}{key}"))
    };
    let (robot, host) =
        (pem("robot", authority.issue_rsa("rucio")), pem("issuer", authority.issue("issuer")));
    let issuer_port = free_port();
    let issuer = format!("https://localhost:{issuer_port}/");
    let mut with_tokens =
        ["DELTA", "EPSILON", "ZETA"].map(|name| (name, Xrootd::for_tokens(&authority, &issuer)));
    let mut deployment = deployment(&authority, &activemq, &issuer, folder.path());
    delegate(&fts3, &deployment, &authority, &robot);

    let storage = |url: String, folder: PathBuf| json!({ "url": url, "folder": folder });
    let mut world = json!({
        "folder": folder.path(),
        "endpoint": deployment.url,
        "vo": VO,
        "database": database.location(),
        "robot": robot,
        "broker": { "port": activemq.port, "user": BROKER_USER, "password": BROKER_PASSWORD },
        "storages": {
            "ALPHA": storage(alpha.url(""), alpha.data()),
            "BETA": { "url": beta.url(""), "folder": beta.data(),
                "attributes": { "available_for_multihop": true } },
            "GAMMA": storage(gamma.url(""), gamma.data()),
            "SLOW": storage(slow.url(""), slow.data()),
        },
    });
    world["issuer"] =
        json!({ "url": issuer, "port": issuer_port, "host": host, "authority": authority.ca_file() });
    for (name, xrootd) in &with_tokens {
        let attributes = json!({ "oidc_support": true, "oidc_base_path": "/data",
            "available_for_multihop": *name == "EPSILON" });
        world["storages"][name] = json!({ "url": xrootd.url(""), "folder": xrootd.data(),
            "cache": xrootd.cache(), "attributes": attributes });
    }
    let mut servers: Vec<&mut Xrootd> = vec![&mut alpha, &mut beta];
    servers.extend(with_tokens.iter_mut().map(|(_, xrootd)| xrootd));
    let (over, end) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_suite(&rucio, &world, folder.path());
            drop(over);
        });
        while end.recv_timeout(LIVENESS_CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            servers.iter_mut().for_each(|xrootd| keep_alive(xrootd));
        }
    });
    // The agents, which know the service by the deployment's own certificate, are there still and work.
    deployment.deliver("run7", "site-b", 60);
    deployment.assert_alive();
    deployment.check();
}

fn write_secret(folder: &Path, name: &str, content: &str) -> PathBuf {
    let path = folder.join(name);
    write_private(&path, content.as_bytes()).unwrap();
    path
}

/// XRootD 5.5 may fall over where it computes checksums for clients that are near and fast ("Dispatch on
/// closed link" in its log): then it crashes, or takes no connection any more. The suite stays at some
/// distance, so this is rare; if it happens, sites have it started again, and so has this one.
fn keep_alive(xrootd: &mut Xrootd) {
    if let Some(wrong) = xrootd.start_again_if_it_is_dead() {
        println!("\n*** XRootD at port {} {wrong}, and was started again ***\n", xrootd.port());
    }
}

/// A Python with that program, which whoever runs this has made.
fn python(name: &str) -> Option<PathBuf> {
    std::env::var_os(format!("LONGHAUL_{name}_PYTHON")).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn missing() -> Option<String> {
    let missing =
        needs::missing(&[("nginx", "-v"), ("xrootd", "-v"), ("openssl", "version"), ("curl", "-V")]);
    if missing.is_some() {
        return missing;
    }
    if !Xrootd::knows_tokens() {
        return Some("there is no xrootd-scitokens-plugins".to_owned());
    }
    ActiveMq::missing().or_else(PostgreSql::missing)
}

fn deployment(authority: &ForeignAuthority, activemq: &ActiveMq, issuer: &str, folder: &Path) -> Deployment {
    let password = write_secret(folder, "broker-password", BROKER_PASSWORD);
    let (certificate, key) = authority.issue("localhost");
    let host_certificate = write_secret(folder, "host.pem", &certificate);
    let host_key = write_secret(folder, "host.key", &key);
    let settings = format!(
        "host_certificate = {host_certificate:?}\nhost_key = {host_key:?}\n\
         [service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n\
         [service.fts]\ntrust_dir = {:?}\nissuer_authorities = {:?}\n\
         [[service.fts.issuers]]\nurl = {issuer:?}\ncommunity = {VO:?}\nscope \
         = \"fts\"\n[[service.fts.people]]\nname = \"/CN=rucio\"\ncommunity = {VO:?}\n\
         [service.messages]\nalias = \"longhaul.example.org\"\n\
         [service.messages.stomp]\nbrokers = [\"stomp://127.0.0.1:{}\"]\nuser \
         = \"{BROKER_USER}\"\npassword_file = {password:?}\n",
        authority.ca_file(),
        authority.ca_folder(),
        authority.ca_file(),
        activemq.port,
    );
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    for site in ["site-a", "site-b"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("site-a"), 10, 100_000, &mut Random::new(5));
    deployment.register("run7", "site-a");
    deployment
}

/// As operators do from cron: Rucio itself never delegates.
fn delegate(fts3: &Path, deployment: &Deployment, authority: &ForeignAuthority, robot: &Path) {
    let tool = fts3.with_file_name("fts-rest-delegate");
    let ran = Command::new(tool)
        .args(["-s", &deployment.url, "-H", "4", "--cert"])
        .arg(robot)
        .arg("--key")
        .arg(robot)
        .arg("--capath")
        .arg(authority.ca_folder())
        .env("HOME", deployment.directory())
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}{}", said(&ran.stdout), said(&ran.stderr));
}

fn run_suite(python: &Path, world: &Value, home: &Path) {
    let words = std::env::var("LONGHAUL_RUCIO_CASES").unwrap_or_default();
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/rucio/suite.py");
    let ran = Command::new(python)
        .arg("-B")
        .arg(suite)
        .args(words.split_whitespace())
        .env("LONGHAUL_RUCIO_WORLD", world.to_string())
        .env("TMPDIR", home)
        .env("HOME", home)
        .env_remove("X509_USER_PROXY")
        .env_remove("X509_CERT_DIR")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    println!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "the suite failed; its output is above");
}
