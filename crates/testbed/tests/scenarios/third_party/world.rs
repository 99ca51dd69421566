//! Two of each kind of storage, for who comes with a certificate and for who comes with a token; and a
//! service before them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use longhaul_security::{ForeignServerTrust, foreign_client_tls_with_certificate};
use longhaul_testbed::foreign::{ForeignAuthority, Xrootd};
use longhaul_testbed::http::Api;
use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, free_port, needs, tree};
use serde_json::{Value, json};

use crate::third_party::cases::Ends;
use crate::third_party::issuer::Issuer;

/// Subject of the client's certificate; its proxies have the same one.
pub const ROBOT: &str = "/CN=robot";
const COMMUNITY: &str = "grid";
const SITES: [&str; 2] = ["alpha", "beta"];
/// The mark of a storage's root, which stays beside what is on its way.
const ROOT_MARK: &str = "root.json";
const OPEN_WITHIN: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Xrootd,
    Door,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Certificate,
    Token,
}

pub const KINDS: [Kind; 2] = [Kind::Xrootd, Kind::Door];
pub const CREDENTIALS: [By; 2] = [By::Certificate, By::Token];

/// One storage, and where its files lie.
#[derive(Clone, Debug)]
pub struct ServedFolder {
    pub port: u16,
    /// Between the port and the names of files.
    base: &'static str,
    pub root: PathBuf,
}

impl ServedFolder {
    /// By another port, if there is a gate before it.
    pub fn url(&self, scheme: &str, port: u16, name: &str) -> String {
        format!("{scheme}://localhost:{port}{}{name}", self.base)
    }

    pub fn https(&self, name: &str) -> String {
        self.url("https", self.port, name)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

pub struct World {
    pub authority: ForeignAuthority,
    pub issuer: Arc<Issuer>,
    pub deployment: Deployment,
    /// Certificate and key in one file, as programs want it; and each in its own.
    pub robot: PathBuf,
    robot_files: [PathBuf; 2],
    /// For certificates, and for tokens.
    xrootds: [[Xrootd; 2]; 2],
    doors: [u16; 2],
}

/// Whether all that it takes is here.
pub fn may_run(what: &str, more: &[(&str, &str)]) -> bool {
    let programs = [("xrootd", "-v"), ("openssl", "version"), ("python3", "--version")];
    if !needs::programs(what, &[&programs[..], more].concat()) {
        return false;
    }
    let knows = Xrootd::knows_tokens();
    if !knows {
        needs::not_run(what, "there is no xrootd-scitokens-plugins");
    }
    knows
}

pub fn content(seed: u64, size: u64) -> Vec<u8> {
    tree::content(&mut Random::new(seed), size)
}

/// Adler-32 as XRootD and gfal write it.
pub fn adler32(bytes: &[u8]) -> String {
    format!("{:08x}", longhaul_testkit::adler32(bytes))
}

/// All files and folders below one, by their paths.
pub fn below(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path.clone());
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

impl World {
    pub fn new() -> World {
        let authority = ForeignAuthority::new("grid");
        let issuer = Issuer::start(&authority);
        let xrootds = CREDENTIALS.map(|by| {
            [0, 1].map(|_| match by {
                By::Certificate => Xrootd::for_certificates(&authority, ROBOT),
                By::Token => {
                    let xrootd = Xrootd::for_tokens(&authority, &issuer.url);
                    issuer.fill_key_cache(&xrootd.cache());
                    xrootd
                }
            })
        });
        let mut deployment = Deployment::with(ServiceOptions {
            settings: service_settings(&authority, &issuer),
            ..ServiceOptions::default()
        });
        let here = deployment.directory().to_owned();
        let write = |name: &str, text: &str| {
            let path = here.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            path
        };
        let (certificate, key) = authority.issue_rsa("robot");
        let robot = write("robot.pem", &format!("{certificate}{key}"));
        let robot_files = [write("robot.crt", &certificate), write("robot.key", &key)];
        let doors = SITES.map(|site| {
            let (certificate, key) = authority.issue("door");
            let files = [write(&format!("{site}.pem"), &certificate), write(&format!("{site}.key"), &key)];
            let port = free_port();
            let mut options = SiteOptions::new(site);
            options.settings = door_settings(site, port, &files, &authority, &issuer);
            deployment.add_site(options);
            let open = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
            let opened = deployment.await_answer(OPEN_WITHIN, open);
            assert!(opened.is_some(), "{}", deployment.log(site).tail());
            port
        });
        World { authority, issuer, deployment, robot, robot_files, xrootds, doors }
    }

    /// The first is where copies come from, the second where they go.
    pub fn place(&self, kind: Kind, by: By, side: usize) -> ServedFolder {
        match kind {
            Kind::Xrootd => {
                let xrootd = &self.xrootds[by as usize][side];
                ServedFolder { port: xrootd.port(), base: "/data/", root: xrootd.data() }
            }
            Kind::Door => {
                ServedFolder { port: self.doors[side], base: "/", root: self.deployment.storage(SITES[side]) }
            }
        }
    }

    /// A file as others have left it there.
    pub fn put(&self, kind: Kind, by: By, name: &str, content: &[u8]) {
        match kind {
            Kind::Xrootd => self.xrootds[by as usize][0].put(name, content),
            Kind::Door => fs::write(self.place(kind, by, 0).file(name), content).unwrap(),
        }
    }

    /// The folder of a target, for programs that make none.
    pub fn make_folder(&self, ends: &Ends) {
        fs::create_dir(&ends.folder).unwrap();
        if ends.case.target == Kind::Xrootd {
            self.xrootds[ends.case.by as usize][1].own(&ends.folder);
        }
    }

    /// Whether the XRootD that copies go to has said this.
    pub fn target_has_said(&self, by: By, parts: &[&str]) -> bool {
        self.xrootds[by as usize][1].has_said(parts)
    }

    /// After XRootD 5.5 has lost a connection, or itself.
    pub fn start_again(&mut self, by: By) {
        for xrootd in &mut self.xrootds[by as usize] {
            xrootd.start_again();
        }
    }

    /// The ends of the logs of all that take part.
    pub fn logs(&self, by: By) -> String {
        let xrootds = self.xrootds[by as usize].iter().map(Xrootd::log);
        let agents = SITES.iter().map(|site| self.deployment.log(site).tail());
        xrootds.chain(agents).collect::<Vec<_>>().join("\n----\n")
    }

    /// What is on its way into the doors.
    pub fn temporary(&self) -> Vec<String> {
        let of = |site: &&str| below(&self.deployment.storage(site).join(".longhaul"));
        SITES.iter().flat_map(of).filter(|name| name != ROOT_MARK).collect()
    }

    /// The service, as the robot.
    pub fn as_robot(&self) -> Api {
        let ca = fs::read_to_string(&self.deployment.ca).unwrap();
        let [chain, key] = self.robot_files.each_ref().map(|path| fs::read_to_string(path).unwrap());
        let tls =
            foreign_client_tls_with_certificate(ForeignServerTrust::Authorities(&ca), &chain, &key).unwrap();
        self.deployment.api().with_tls(tls)
    }

    /// As clients of FTS do it: a request of the service, signed by the user for a while.
    pub fn delegate(&self) {
        let api = self.as_robot();
        let who = api.send("GET", "/whoami", &[], &[]).unwrap().expect(200).json();
        let id = who["delegation_id"].as_str().unwrap();
        let request = api.send("GET", &format!("/delegation/{id}/request"), &[], &[]).unwrap().expect(200);
        let here = self.deployment.directory();
        let proxy = self.sign_proxy(&here.join("lent"), &request.text());
        let chain = format!("{proxy}{}", fs::read_to_string(&self.robot_files[0]).unwrap());
        api.send("PUT", &format!("/delegation/{id}/credential"), &[], chain.as_bytes()).unwrap().expect(201);
    }

    fn sign_proxy(&self, folder: &Path, request: &str) -> String {
        fs::create_dir_all(folder).unwrap();
        let [csr, extensions] = ["csr", "ext"].map(|name| folder.join(name));
        fs::write(&csr, request).unwrap();
        fs::write(
            &extensions,
            "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n\
             proxyCertInfo=critical,language:id-ppl-inheritAll\n",
        )
        .unwrap();
        let mut command = Command::new("openssl");
        command.args(["x509", "-req", "-set_serial", "4712", "-days", "1", "-in"]).arg(&csr);
        command.arg("-CA").arg(&self.robot_files[0]).arg("-CAkey").arg(&self.robot_files[1]);
        command.arg("-extfile").arg(&extensions).args(["-subj", &format!("{ROBOT}/CN=4712")]);
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    /// A job of one file in FTS's format; its number.
    pub fn submit(&self, by: By, source: &str, target: &str, checksum: &str) -> String {
        let mut file = json!({ "sources": [source], "destinations": [target], "checksum": checksum });
        if by == By::Token {
            file["source_tokens"] = json!([self.issuer.token("storage.read:/")]);
            file["destination_tokens"] = json!([self.issuer.token("storage.modify:/ storage.read:/")]);
        }
        let parameters = json!({ "verify_checksum": "both", "unmanaged_tokens": true });
        let job = json!({ "files": [file], "params": parameters }).to_string();
        let api = if by == By::Token { self.deployment.api() } else { self.as_robot() };
        let reply = api.send("POST", "/jobs", &[("content-type", "application/json")], job.as_bytes());
        reply.unwrap().expect(200).json()["job_id"].as_str().unwrap().to_owned()
    }

    /// The one file of a job, as the service's own API tells of it.
    pub fn file(&self, job: &str) -> Value {
        let reply = self.deployment.api().send("GET", &format!("/api/v1/jobs/{job}"), &[], &[]);
        reply.unwrap().expect(200).json()["files"][0].clone()
    }

    /// Sets one of FTS's configurations.
    pub fn configure(&self, what: &str, settings: &Value) {
        let json = [("content-type", "application/json")];
        let reply = self.deployment.api().send("POST", what, &json, settings.to_string().as_bytes());
        reply.unwrap().expect(200);
    }
}

fn service_settings(authority: &ForeignAuthority, issuer: &Issuer) -> String {
    let (ca, trust, issuer) = (authority.ca_file(), authority.ca_folder(), &issuer.url);
    format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{ca:?}]\n\
         [service.fts]\ntrust_dir = {trust:?}\nissuer_authorities = {ca:?}\n\
         [[service.fts.issuers]]\nurl = {issuer:?}\ncommunity = {COMMUNITY:?}\n\
         [[service.fts.people]]\nname = {ROBOT:?}\ncommunity = {COMMUNITY:?}\n"
    )
}

fn door_settings(
    site: &str,
    port: u16,
    [certificate, key]: &[PathBuf; 2],
    authority: &ForeignAuthority,
    issuer: &Issuer,
) -> String {
    let (ca, trust, issuer) = (authority.ca_file(), authority.ca_folder(), &issuer.url);
    format!(
        "[[agent.doors]]\nstorage = {site:?}\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
            {certificate:?}\nkey = {key:?}\n\
         trust_dir = {trust:?}\nthird_party_authorities = [{ca:?}]\nthird_party_allow = \
         [\"127.0.0.0/8\", \"::1\"]\n\
         issuers = [{{ url = {issuer:?} }}]\nissuer_authorities = {ca:?}\naudiences = [\"localhost\"]\n\
         allow = [{{ subjects = [{ROBOT:?}], may = \"write\" }}]\n"
    )
}
