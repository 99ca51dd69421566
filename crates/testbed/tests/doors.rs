//! The door of a real agent: opened and closed with it, and open only to those who are named.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longhaul_testbed::{Deployment, SiteOptions, free_port, needs};

const TOKEN: &str = "writer-0123456789abcdef";

#[test]
fn an_agent_opens_its_storage_to_outside_clients() {
    if !needs::program("curl", &["--version"]) {
        return needs::not_run("the door of an agent", "curl is not installed");
    }
    let mut deployment = Deployment::new();
    let tokens = deployment.directory().join("tokens");
    fs::write(&tokens, format!("write / {TOKEN}\n")).unwrap();
    let port = free_port();
    let door = format!(
        "[[agent.doors]]\nstorage = \"alpha\"\nlisten = [\"127.0.0.1:{port}\"]\ntokens = {tokens:?}\nanonymous_read = true\n\
         allow = [{{ subjects = [\"longhaul://*/agent/alpha/*\"], may = \"write\" }}]\n"
    );
    let mut options = SiteOptions::new("alpha");
    options.settings = door;
    deployment.add_site(options);
    deployment.until_connected("alpha");

    // Without a certificate of its own the door shows the agent's, whose name no client knows but by saying so.
    let credentials = deployment.credentials("alpha");
    let (ca, pair) = (deployment.directory().join("door-ca.pem"), deployment.directory().join("pair.pem"));
    fs::write(&ca, &credentials.ca_pem).unwrap();
    fs::write(&pair, format!("{}{}", credentials.certificate_pem, credentials.key_pem)).unwrap();
    let curl = |arguments: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "60", "-o", "/dev/stdout", "-w", "\n%{http_code}", "--cacert"])
            .arg(&ca);
        command.args(["--resolve", &format!("agent.longhaul:{port}:127.0.0.1")]).args(arguments);
        let output = command.arg(format!("https://agent.longhaul:{port}{path}")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse::<u32>().unwrap(), body.to_owned())
    };
    let opened =
        deployment.await_answer(Duration::from_secs(30), || (curl(&["-I"], "/").0 == 200).then_some(()));
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

    // What came through the door is a file like any other.
    deployment.register("run", "alpha");
    assert_eq!(deployment.json(&["dataset", "show", "run"])["files"], 2);
    deployment.restart("alpha");
    let again =
        deployment.await_answer(Duration::from_secs(30), || (curl(&["-I"], "/run/a").0 == 200).then_some(()));
    assert!(again.is_some(), "{}", deployment.log("alpha").tail());
    assert!(deployment.stop("alpha").success());
    assert_eq!(curl(&[], "/run/a").0, 0, "closed with its agent");
    deployment.check();
}

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}
