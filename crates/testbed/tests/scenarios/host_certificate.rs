//! A service that shows people and programs a certificate of an authority that they know: neither the FTS
//! client nor a browser is given the deployment's CA, and agents go on with the deployment's own beside them.

use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_security::write_private;
use longhaul_testbed::browser::{self, Browser};
use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, needs, tree};

const WHAT: &str = "a host certificate with clients of others";

#[test]
fn clients_know_the_service_without_the_deployments_ca() {
    let Some(fts3) = std::env::var_os("LONGHAUL_FTS3_PYTHON").map(PathBuf::from) else {
        return needs::not_run(WHAT, "LONGHAUL_FTS3_PYTHON is not set");
    };
    if !needs::programs(WHAT, &[("openssl", "version")]) {
        return;
    }
    let (grid, folder) = (ForeignAuthority::new("grid"), tempfile::tempdir().unwrap());
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        write_private(&path, content.as_bytes()).unwrap();
        path
    };
    let (host_pem, host_key) = grid.issue("service");
    let (certificate, key) = (write("host.pem", &host_pem), write("host.key", &host_key));
    let (robot_pem, robot_key) = grid.issue_rsa("robot");
    let robot = write("robot.pem", &format!("{robot_pem}{robot_key}"));
    let settings = format!(
        "host_certificate = {certificate:?}\nhost_key = {key:?}\n[service.fts]\ntrust_dir = {:?}\n\
         [[service.fts.people]]\nname = \"/CN=robot\"\ncommunity = \"testvo\"\n",
        grid.ca_folder(),
    );
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), 10, 100_000, &mut Random::new(5));
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);

    let whoami = |capath: PathBuf| {
        let ran = Command::new(fts3.with_file_name("fts-rest-whoami"))
            .args(["-s", &deployment.url, "--cert"])
            .arg(&robot)
            .arg("--key")
            .arg(&robot)
            .arg("--capath")
            .arg(capath)
            .env("HOME", deployment.directory())
            .env_remove("X509_CERT_DIR")
            .output()
            .unwrap();
        (ran.status.success(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
    };
    let (is_known, said) = whoami(grid.ca_folder());
    assert!(is_known && said.contains("/CN=robot"), "{said}");
    let stranger = ForeignAuthority::new("stranger");
    let (is_known, said) = whoami(stranger.ca_folder());
    assert!(!is_known, "it looks at the certificate: {said}");

    shows_its_pages(&deployment, &certificate);
    // Both agents are still there, and work.
    tree::make(&deployment.storage("beta").join("more"), 10, 100_000, &mut Random::new(6));
    deployment.register("run8", "beta:more");
    deployment.deliver("run8", "alpha", 60);
    deployment.assert_alive();
    deployment.check();
}

/// To a browser that believes the host certificate's key alone.
fn shows_its_pages(deployment: &Deployment, certificate: &Path) {
    let Some(program) = browser::find() else {
        return needs::not_run(WHAT, "there is no Chromium");
    };
    let mut browser = Browser::start_knowing(&program, &spki_sha256(certificate));
    let mut page = browser.page(1280, 900);
    page.open(&format!("{}/ui/", deployment.url));
    page.until_shows("Log in");
    assert_eq!(page.value("window.isSecureContext"), serde_json::json!(true));
}

fn spki_sha256(certificate: &Path) -> String {
    use base64::Engine;
    let base64 = base64::engine::general_purpose::STANDARD;
    let mut openssl = Command::new("openssl");
    let ran = openssl.args(["x509", "-noout", "-pubkey", "-in"]).arg(certificate).output().unwrap();
    assert!(ran.status.success());
    let pem = String::from_utf8(ran.stdout).unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let key = base64.decode(body).unwrap();
    base64.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &key))
}
