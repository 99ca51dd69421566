//! Doors, and copies that go through the service, against what people use for the same: a file got from a
//! door and put through it, against nginx; one from a WebDAV server to another, against two `curl` with a
//! pipe between them; and small files that two doors copy between themselves.
//!
//! Files lie on tmpfs, everything is sent by TLS, and clients and servers share the machine. nginx verifies
//! nothing; a door knows the digest of what it has taken, and flushes it.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules};
use longhaul_testbed::http::KeptAlive;
use longhaul_testbed::{Deployment, ServiceOptions, SiteOptions, free_port};
use serde_json::{Value, json};

use super::fts::copied_in_s;
use crate::Rounds;
use crate::measure::{Row, make_files, median, peak_memory, touch_memory};

const SIZE: usize = 1_000_000_000;
/// The only one of [`make_files`].
const LARGE: &str = "f00000";
const SMALL: usize = 2_000;
const SMALL_BYTES: usize = 1_000;
const BUDGET: u64 = 64 << 20;
const MEMORY_FILE_SYSTEM: &str = "/dev/shm";
const TOKEN: &str = "bench-0123456789abcdef";
const WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn run(rounds: &Rounds) -> Vec<Row> {
    let scene = Scene::new();
    let [mut got, mut put, mut streamed] = [const { (Vec::new(), Vec::new()) }; 3];
    for round in 0..rounds.0 {
        got.0.push(scene.get(&scene.door(0, LARGE)));
        got.1.push(scene.get(&scene.near.url(LARGE)));
        put.0.push(scene.put(&scene.door(1, "put"), &scene.storage(1).join("put")));
        put.1.push(scene.put(&scene.far.url("put"), &scene.far.data().join("put")));
        streamed.0.push(scene.stream());
        streamed.1.push(scene.pipe());
        let last = |rates: &(Vec<f64>, Vec<f64>)| format!("{:.0} : {:.0}", rates.0[round], rates.1[round]);
        eprintln!(
            "  MB/s, ours : theirs; get {}, put {}, through the service {}",
            last(&got),
            last(&put),
            last(&streamed)
        );
    }
    let memory = |name: &str| peak_memory(scene.deployment.pid(name)) as f64 / 1e6;
    let budget = BUDGET as f64 / 1e6;
    let agents = memory("alpha").max(memory("beta"));
    vec![
        against("GET of 1 GB from a door, MB/s", got, "nginx"),
        against("PUT of 1 GB through a door, MB/s", put, "nginx"),
        against("1 GB from WebDAV to WebDAV, MB/s", streamed, "curl | curl"),
        Row::at_least("doors", "copies/s of 1 kB between two doors", scene.small_per_s(), 300.0, "≥ 300"),
        Row {
            yardstick: format!("{budget:.0} (budget)"),
            ..Row::at_most("doors", "agent with a door, peak MB", agents, budget + 30.0, "≤ budget + 30 MB")
        },
        Row::plain("doors", "service, peak MB", memory("service")),
    ]
}

fn against(figure: &'static str, rates: (Vec<f64>, Vec<f64>), who: &str) -> Row {
    let (ours, theirs) = (median(rates.0), median(rates.1));
    let ratio = ours / theirs;
    Row {
        ratio: Some(ratio),
        yardstick: format!("{theirs:.0} ({who})"),
        bar: "≥ 0.9",
        reached: ratio >= 0.9,
        ..Row::plain("doors", figure, ours)
    }
}

/// Two sites with a door each, and two plain servers.
struct Scene {
    deployment: Deployment,
    ca: PathBuf,
    ports: [u16; 2],
    near: Nginx,
    far: Nginx,
    shm: tempfile::TempDir,
    _authority: ForeignAuthority,
}

impl Scene {
    fn new() -> Scene {
        let shm = tempfile::tempdir_in(MEMORY_FILE_SYSTEM).expect("a folder on tmpfs");
        let authority = ForeignAuthority::new("storages");
        let rules = NginxRules { below: Some(shm.path()), ..NginxRules::default() };
        let (near, far) = (Nginx::start(&authority, rules), Nginx::start(&authority, rules));
        let ca = authority.ca_file();
        let settings = format!(
            "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{ca:?}]\n"
        );
        let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
        let ports = [free_port(), free_port()];
        for (name, port) in ["alpha", "beta"].into_iter().zip(ports) {
            let root = shm.path().join(name);
            fs::create_dir(&root).expect("a storage on tmpfs");
            let mut options = SiteOptions::new(name).root(root).memory(BUDGET);
            options.settings = door(&authority, deployment.directory(), name, port);
            deployment.add_site(options);
            let opened = || TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(());
            deployment.until("the door is open", WITHIN, opened);
        }
        make_files(&shm.path().join("alpha"), 1, SIZE);
        fs::hard_link(shm.path().join("alpha").join(LARGE), near.data().join(LARGE)).expect("the same file");
        Scene { deployment, ca, ports, near, far, shm, _authority: authority }
    }

    fn storage(&self, side: usize) -> PathBuf {
        self.shm.path().join(["alpha", "beta"][side])
    }

    fn door(&self, side: usize, name: &str) -> String {
        format!("https://localhost:{}/{name}", self.ports[side])
    }

    fn curl(&self) -> Command {
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail", "--cacert"]).arg(&self.ca);
        command.args(["-H", &format!("Authorization: Bearer {TOKEN}")]);
        command
    }

    /// MB/s.
    fn get(&self, url: &str) -> f64 {
        rate(|| finish(self.curl().args(["-o", "/dev/null", url])))
    }

    fn put(&self, url: &str, place: &Path) -> f64 {
        self.writing(place, || finish(self.curl().arg("-T").arg(self.storage(0).join(LARGE)).arg(url)))
    }

    fn stream(&self) -> f64 {
        let pair = json!({ "sources": [self.near.url(LARGE)], "destinations": [self.far.url("streamed")] });
        let mut connection = self.connection();
        self.writing(&self.far.data().join("streamed"), || {
            let _ = copied_in_s(&mut connection, &[pair]);
        })
    }

    fn pipe(&self) -> f64 {
        self.writing(&self.far.data().join("piped"), || {
            let mut from =
                self.curl().arg(self.near.url(LARGE)).stdout(Stdio::piped()).spawn().expect("curl runs");
            let pipe = from.stdout.take().expect("it is piped");
            finish(self.curl().args(["-T", "-", &self.far.url("piped")]).stdin(pipe));
            assert!(from.wait().expect("it is our child").success());
        })
    }

    /// MB/s of what makes this file, which is gone afterwards.
    fn writing(&self, place: &Path, work: impl FnOnce()) -> f64 {
        touch_memory(self.shm.path(), 1, SIZE);
        let rate = rate(work);
        assert_eq!(fs::metadata(place).expect("the file is there").len(), SIZE as u64);
        fs::remove_file(place).expect("room for the next");
        rate
    }

    fn small_per_s(&self) -> f64 {
        make_files(&self.storage(0).join("small"), SMALL, SMALL_BYTES);
        fs::create_dir(self.storage(1).join("small")).expect("a folder");
        let pair = |number: usize| {
            let name = format!("small/f{number:05}");
            json!({
                "sources": [self.door(0, &name)], "destinations": [self.door(1, &name)],
                "source_tokens": [TOKEN], "destination_tokens": [TOKEN],
            })
        };
        let files: Vec<Value> = (0..SMALL).map(pair).collect();
        SMALL as f64 / copied_in_s(&mut self.connection(), &files)
    }

    fn connection(&self) -> KeptAlive {
        self.deployment.api().kept_alive().expect("a connection")
    }
}

/// What an agent needs to have one.
fn door(authority: &ForeignAuthority, folder: &Path, name: &str, port: u16) -> String {
    let write = |what: &str, text: &str| {
        let path = folder.join(format!("{name}-{what}"));
        fs::write(&path, text).expect("a file");
        path
    };
    let (certificate, key) = authority.issue(name);
    let (certificate, key) = (write("certificate.pem", &certificate), write("key.pem", &key));
    let (tokens, ca) = (write("tokens", &format!("write / {TOKEN}\n")), authority.ca_file());
    format!(
        "[[agent.doors]]\nstorage = {name:?}\nlisten = [\"127.0.0.1:{port}\"]\ncertificate = \
            {certificate:?}\nkey = {key:?}\n\
         tokens = {tokens:?}\nthird_party_authorities = [{ca:?}]\nthird_party_allow = \
         [\"127.0.0.0/8\", \"::1\"]\n"
    )
}

fn rate(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    SIZE as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

fn finish(command: &mut Command) {
    let output = command.output().expect("curl runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
