//! Attributes of virtual organisations, in attribute certificates made byte by byte.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use longhaul_model::Timestamp;
use longhaul_security::grid::{GridIdentity, GridSettings, GridTrust};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::pki::*;

const VOMS: &[u64] = &[1, 3, 6, 1, 4, 1, 8005, 100, 100];
const SERVER: &str = "/DC=org/DC=example/CN=voms.example.org";

struct World {
    grid: Grid,
    server: Holder,
}

/// An attribute certificate to be.
#[derive(Clone)]
struct Attributes {
    vo: &'static str,
    fqans: Vec<&'static str>,
    holder: (String, u64),
    signer: Holder,
    brings: Vec<Holder>,
    from: Timestamp,
    until: Timestamp,
    extensions: Vec<Vec<u8>>,
}

fn voms(last: u64) -> Vec<u64> {
    [VOMS, &[last]].concat()
}

fn general_name(subject: &str) -> Vec<u8> {
    sequence(&[tlv(0xa4, &name(subject))])
}

impl Attributes {
    fn der(&self) -> Vec<u8> {
        let holder = tlv(0xa0, &[general_name(&self.holder.0), integer(self.holder.1)].concat());
        let uri = tlv(0x86, format!("{}://voms.example.org:15001", self.vo).as_bytes());
        let values: Vec<Vec<u8>> = self.fqans.iter().map(|fqan| tlv(0x04, fqan.as_bytes())).collect();
        let syntax = sequence(&[tlv(0xa0, &uri), sequence(&values)]);
        let attribute = sequence(&[oid(&voms(4)), tlv(0x31, &syntax)]);
        let brought: Vec<Vec<u8>> = self.brings.iter().map(|holder| holder.der.clone()).collect();
        let mut extensions = vec![
            extension(&voms(10), false, sequence(&[sequence(&brought)])),
            extension(&[2, 5, 29, 56], false, tlv(0x05, &[])),
        ];
        extensions.extend(self.extensions.iter().cloned());
        let body = sequence(&[
            integer(1),
            sequence(&[holder]),
            tlv(0xa0, &general_name(&self.signer.subject)),
            algorithm(&self.signer.key),
            integer(77),
            sequence(&[time(self.from), time(self.until)]),
            sequence(&[attribute]),
            sequence(&extensions),
        ]);
        signed(body, &self.signer.key)
    }
}

impl World {
    fn new() -> Self {
        let grid = Grid::new();
        // Of hosts: for servers only, which must not matter here.
        let servers_only = extension(&[2, 5, 29, 37], false, sequence(&[oid(&[1, 3, 6, 1, 5, 5, 7, 3, 1])]));
        let server =
            grid.ca.issues(SERVER).with(basic_constraints(false)).with(servers_only).serial(8).sign();
        let world = World { grid, server };
        world.lsc("atlas", "voms.example.org.lsc", &format!("{SERVER}\n{CA}\n"));
        world
    }

    fn lsc(&self, vo: &str, file: &str, content: &str) {
        self.grid.write(&format!("vomsdir/{vo}/{file}"), content);
    }

    fn trust(&self) -> GridTrust {
        let settings = GridSettings {
            voms_directory: Some(self.grid.path().join("vomsdir")),
            hosts: vec!["fts.example.org".into()],
            ..self.grid.settings()
        };
        GridTrust::load(settings, NOW).unwrap()
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            vo: "atlas",
            fqans: vec![
                "/atlas/Role=production/Capability=NULL",
                "/atlas/Role=NULL/Capability=NULL",
                "/atlas/de",
            ],
            holder: (CA.into(), self.grid.alice.serial),
            signer: self.server.clone(),
            brings: vec![self.server.clone()],
            from: NOW - DAY / 24,
            until: NOW + DAY / 3,
            extensions: Vec::new(),
        }
    }

    fn proxy(&self, lists: &[Vec<u8>]) -> Holder {
        let list = sequence(&[sequence(lists)]);
        self.grid.alice.proxy().with(extension(&voms(5), false, list)).sign()
    }

    fn shown(&self, trust: &GridTrust, attributes: &[&Attributes], now: Timestamp) -> Arc<GridIdentity> {
        let lists: Vec<Vec<u8>> = attributes.iter().map(|attributes| attributes.der()).collect();
        let identity = trust.verify_chain(&chain(&[&self.proxy(&lists), &self.grid.alice]), now).unwrap();
        assert_eq!(identity.subject, ALICE, "whatever the attributes are, the user is who they are");
        identity
    }

    /// Why these attributes do not count.
    fn problem(&self, attributes: &Attributes) -> String {
        let identity = self.shown(&self.trust(), &[attributes], NOW);
        assert!(identity.fqans.is_empty(), "{:?}", identity.fqans);
        identity.fqan_problem.clone().unwrap()
    }
}

#[test]
fn attributes_of_a_trusted_server_count_in_their_order() {
    let world = World::new();
    let trust = world.trust();
    let identity = world.shown(&trust, &[&world.attributes()], NOW);
    assert_eq!(identity.fqan_problem, None);
    assert_eq!(
        identity.fqans,
        ["/atlas/Role=production/Capability=NULL", "/atlas/Role=NULL/Capability=NULL", "/atlas/de"]
    );
    assert_eq!(identity.vos(), ["atlas", "atlas/de"]);
    assert_eq!(identity.roles(), ["production"]);
    let mut by_name = world.attributes();
    by_name.holder.0 = ALICE.into();
    assert_eq!(world.shown(&trust, &[&by_name], NOW).fqans.len(), 3);
    // A further proxy carries them on.
    let first = world.proxy(&[world.attributes().der()]);
    let second = first.proxy().sign();
    let identity = trust.verify_chain(&chain(&[&second, &first, &world.grid.alice]), NOW).unwrap();
    assert_eq!((identity.fqans.len(), identity.proxies), (3, 2));
    // Plain proxies have none, and no problem.
    let plain = world.grid.alice.proxy().sign();
    let identity = trust.verify_chain(&chain(&[&plain, &world.grid.alice]), NOW).unwrap();
    assert!(identity.fqans.is_empty() && identity.fqan_problem.is_none());
}

#[test]
fn one_bad_attribute_certificate_does_not_spoil_another() {
    let world = World::new();
    let trust = world.trust();
    let mut cms = world.attributes();
    cms.vo = "cms";
    cms.fqans = vec!["/cms"];
    let identity = world.shown(&trust, &[&cms, &world.attributes()], NOW);
    assert_eq!(identity.vos(), ["atlas", "atlas/de"]);
    assert!(identity.fqan_problem.as_deref().unwrap().contains("the organisation cms"));
    world.lsc("cms", "voms.example.org.lsc", &format!("{SERVER}\n{CA}\n"));
    assert!(trust.reload(NOW).unwrap().changed);
    assert_eq!(world.shown(&trust, &[&cms, &world.attributes()], NOW).vos(), ["cms", "atlas", "atlas/de"]);
}

#[test]
fn remembered_attributes_expire_by_themselves() {
    let world = World::new();
    let trust = world.trust();
    let mut brief = world.attributes();
    brief.until = NOW + DAY / 1440;
    let proxy = world.proxy(&[brief.der()]);
    let seen = |at| trust.verify_chain(&chain(&[&proxy, &world.grid.alice]), at).unwrap();
    assert_eq!(seen(NOW).fqans.len(), 3);
    let later = seen(NOW + DAY / 720);
    assert!(later.fqans.is_empty() && later.fqan_problem.as_deref().unwrap().contains("make a new proxy"));
}

#[test]
fn attributes_that_break_a_rule_do_not_count() {
    let world = World::new();
    let says = |change: &dyn Fn(&mut Attributes), text: &str| {
        let mut attributes = world.attributes();
        change(&mut attributes);
        let problem = world.problem(&attributes);
        assert!(problem.contains(text), "{text}: {problem}");
    };
    says(&|ac| ac.holder.1 = 9999, "of another user");
    says(&|ac| ac.holder.0 = "/CN=another CA".into(), "of another user");
    says(&|ac| ac.holder = (ALICE.into(), 9999), "of another user");
    says(&|ac| ac.until = NOW - DAY / 48, "make a new proxy");
    says(&|ac| ac.from = NOW + DAY / 48, "make a new proxy");
    says(&|ac| ac.fqans.push("/cms/Role=production"), "speaks for others: /cms/Role=production");
    says(&|ac| ac.fqans.push("/atlasx"), "speaks for others");
    says(&|ac| ac.fqans.push("atlas"), "malformed");
    says(&|ac| ac.fqans.push("/atlas/\n"), "malformed");
    says(&|ac| ac.fqans.clear(), "no attribute");
    says(&|ac| ac.vo = "../atlas", "names no organisation");
    says(&|ac| (ac.vo, ac.fqans) = ("lhcb", vec!["/lhcb"]), "the organisation lhcb");
    says(&|ac| ac.vo = "lhcb", "the server of lhcb speaks for others");
    says(&|ac| ac.brings.clear(), "do not bring the certificate");
    says(&|ac| ac.signer.key = ec_key(), "not signed by");
    says(&|ac| ac.extensions.push(extension(&[1, 2, 3], true, tlv(0x05, &[]))), "not understood: 1.2.3");
    // Another server of the same authority, and the same name from another authority.
    let other = world.grid.ca.issues("/DC=org/DC=example/CN=other").serial(9).sign();
    says(
        &|ac| (ac.signer, ac.brings) = (other.clone(), vec![other.clone()]),
        "not a server that speaks for atlas",
    );
    let twin = authority("/CN=twin").issues(SERVER).sign();
    says(&|ac| (ac.signer, ac.brings) = (twin.clone(), vec![twin.clone()]), "not trusted here");
    // The user's own hand, by the name of the server.
    let mut own = world.grid.alice.clone();
    own.subject = SERVER.into();
    says(&|ac| (ac.signer, ac.brings) = (own.clone(), vec![world.server.clone()]), "not signed by");
    // Without any list of organisations nobody speaks for one.
    let identity = world.shown(&world.grid.trust(), &[&world.attributes()], NOW);
    assert!(identity.fqans.is_empty() && identity.fqan_problem.is_some());
}

#[test]
fn attributes_for_certain_services_count_at_those() {
    let world = World::new();
    let target = |uri: &str| {
        let name = tlv(0xa0, &tlv(0x86, uri.as_bytes()));
        extension(&[2, 5, 29, 55], true, sequence(&[sequence(&[name])]))
    };
    let mut ours = world.attributes();
    ours.extensions.push(target("FTS.example.org"));
    assert_eq!(world.shown(&world.trust(), &[&ours], NOW).fqans.len(), 3);
    let mut others = world.attributes();
    others.extensions.push(target("https://other.example.org/fts.example.org"));
    assert!(world.problem(&others).contains("for other services"));
}

#[test]
fn a_server_is_known_by_its_chain_or_its_certificate() {
    let world = World::new();
    let middle = world.grid.ca.issues("/DC=org/CN=middle").with(basic_constraints(true)).serial(20).sign();
    let server = middle.issues("/DC=org/CN=voms2").sign();
    let mut attributes = world.attributes();
    attributes.signer = server.clone();
    attributes.brings = vec![server.clone(), middle.clone()];
    for (lsc, counts) in [
        (
            format!("{SERVER}\n{CA}\n------ NEXT CHAIN ------\n/DC=org/CN=voms2\n/DC=org/CN=middle\n{CA}\n"),
            true,
        ),
        ("/DC=org/CN=voms2\n/DC=org/CN=middle\n".to_owned(), true),
        (format!("/DC=org/CN=voms2\n{CA}\n"), false),
        (format!("/DC=org/CN=voms2\n/DC=org/CN=middle\n{CA}\n{CA}\n"), false),
    ] {
        world.lsc("atlas", "voms.example.org.lsc", &lsc);
        let identity = world.shown(&world.trust(), &[&attributes], NOW);
        assert_eq!(identity.fqans.len() == 3, counts, "{lsc}: {:?}", identity.fqan_problem);
    }
    // By its certificate; the attributes need not bring it then.
    world.lsc("atlas", "voms2.pem", &server.pem());
    attributes.brings = vec![middle.clone()];
    world.grid.write("middle.pem", middle.pem());
    assert_eq!(world.shown(&world.trust(), &[&attributes], NOW).fqans.len(), 3);
}

/// A proxy with attributes as the tools of VOMS write it.
#[test]
fn proxies_by_the_tools_of_voms_are_read() {
    let tool = "voms-proxy-fake";
    let probe = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        assert!(!std::env::var("CI").is_ok_and(|value| value == "true"), "NOT RUN: {tool} is not installed");
        println!("\n*** NOT RUN: attributes by the tools of VOMS: {tool} is not installed ***\n");
        return;
    }
    let grid = Grid::with_keys(rsa_key(), rsa_key());
    // The tool has a clock.
    let now = clock();
    let valid = |mut draft: Draft| {
        (draft.not_before, draft.not_after) = (now - DAY, now + DAY * 10);
        draft.sign()
    };
    // It names the key of an issuer by this.
    let key_id = || extension(&[2, 5, 29, 14], false, tlv(0x04, &[7; 20]));
    let issued = |subject: &str| grid.ca.issues(subject).with(basic_constraints(false)).with(key_id());
    let alice = valid(issued(ALICE).with(key_usage(0xa0)).key(&rsa_key()));
    let server = valid(issued(SERVER).key(&rsa_key()));
    let file = |name: &str, content: String| {
        let path = grid.write(name, content);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let proxy = grid.path().join("proxy");
    let output = Command::new(tool)
        .arg("-cert")
        .arg(file("keys/alice", alice.pem()))
        .arg("-key")
        .arg(file("keys/alice.key", alice.key.serialize_pem()))
        .arg("-hostcert")
        .arg(file("keys/server", server.pem()))
        .arg("-hostkey")
        .arg(file("keys/server.key", server.key.serialize_pem()))
        .args(["-certdir", grid.path().to_str().unwrap(), "-voms", "atlas", "-uri", "voms.example.org:15001"])
        .args(["-fqan", "/atlas/Role=production/Capability=NULL", "-rfc", "-bits", "2048", "-out"])
        .arg(&proxy)
        .env("HOME", grid.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    grid.write("vomsdir/atlas/voms.example.org.lsc", format!("{SERVER}\n{CA}\n"));
    let settings = GridSettings { voms_directory: Some(grid.path().join("vomsdir")), ..grid.settings() };
    let trust = GridTrust::load(settings, now).unwrap();
    let pem = std::fs::read(&proxy).unwrap();
    let sent: Vec<_> = CertificateDer::pem_slice_iter(&pem).map(Result::unwrap).collect();
    let identity = trust.verify_chain(&sent, clock()).unwrap();
    assert_eq!((identity.subject.as_str(), identity.proxies), (ALICE, 1));
    assert_eq!(identity.fqans, ["/atlas/Role=production/Capability=NULL"], "{:?}", identity.fqan_problem);
}
