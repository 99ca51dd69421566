//! What strangers cost the others: memory for bodies of callers without a credential, and how soon requests
//! and agents' reports are answered beside thousands of connections that never say a word. And what the
//! repair of damaged copies costs the network.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use longhaul_api::{AGENT_PROTOCOL, routes};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_security::{Credentials, JoinToken, new_signing_request, service_client_tls};
use longhaul_testbed::http::Api;
use longhaul_testbed::{Deployment, Random, SiteOptions};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::json;

use crate::Rounds;
use crate::measure::{Row, current_memory, peak_memory, reset_peak_memory};

const STRANGERS: usize = 40;
const SENT_BYTES: usize = 16 << 20;
/// The service waits this long for a sender at most, and so do we.
const SENDING_TIMEOUT: Duration = Duration::from_secs(30);
const SILENT_CONNECTIONS: usize = 5_000;
/// From where the silent connections come; everything else comes from 127.0.0.1.
const SILENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const REQUESTS: usize = 100;
/// Files that are damaged in one chunk each. The ratio does not depend on their number.
const DAMAGED_FILES: usize = 40;
const DAMAGED_FILE_BYTES: usize = 100_000_000;

pub(crate) fn run(_rounds: &Rounds) -> Vec<Row> {
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    let grown = growth_with_senders(&deployment) as f64 / f64::from(1 << 20);
    let agent = Reporter::join(&deployment);
    let slowest = || (slowest_ms(|| answer(&deployment.api())), agent.slowest_ms());
    let alone = slowest();
    let silent = silent_connections(service_address(&deployment));
    let beside = slowest();
    drop(silent);
    let yardstick = |ms: f64| format!("{ms:.1} without");
    vec![
        at_most("service, MiB more for 40 anonymous bodies of 16 MiB", grown, 32.0, "≤ 32"),
        Row {
            yardstick: yardstick(alone.0),
            ..at_most("a request beside 5,000 silent connections, slowest ms", beside.0, 100.0, "≤ 100")
        },
        Row {
            yardstick: yardstick(alone.1),
            ..at_most("an agent's report beside them, slowest ms", beside.1, 50.0, "≤ 50")
        },
        at_most(
            "bytes to repair 40 files of 100 MB with one bad chunk each, by damaged chunks",
            repair_ratio(),
            2.0,
            "≤ 2",
        ),
    ]
}

/// Bytes that are fetched to repair damaged files, as a multiple of the chunks that are damaged.
fn repair_ratio() -> f64 {
    let mut deployment = Deployment::new();
    ["alpha", "beta"].into_iter().for_each(|site| deployment.add_site(SiteOptions::new(site)));
    let mut random = Random::new(41);
    let mut bytes: Vec<u8> = (0..DAMAGED_FILE_BYTES).map(|_| random.below(256) as u8).collect();
    let name = |number: usize| format!("f{number:03}");
    for number in 0..DAMAGED_FILES {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        // What is there already is compared and not moved.
        for site in ["alpha", "beta"] {
            fs::write(deployment.storage(site).join(name(number)), &bytes).expect("a file");
        }
    }
    deployment.register("run", "alpha");
    deployment.deliver("run", "beta", 600);
    let moved = || deployment.metric("longhaul_moved_bytes_total{source=\"alpha\",target=\"beta\"}");
    let before = moved();
    for number in 0..DAMAGED_FILES {
        let at = random.below(DAMAGED_FILE_BYTES as u64);
        let path = deployment.storage("beta").join(name(number));
        let file = fs::File::options().read(true).write(true).open(path).expect("a file");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("a byte");
        file.write_all_at(&[byte[0] ^ 1], at).expect("another byte");
    }
    deployment.longhaul(&["verify", "beta", "run"]).exits(10);
    deployment.deliver("run", "beta", 600);
    (moved() - before) / (DAMAGED_FILES as f64 * f64::from(CHUNK_BYTES))
}

fn at_most(figure: &'static str, value: f64, bound: f64, bar: &'static str) -> Row {
    Row::at_most("trust", figure, value, bound, bar)
}

fn service_address(deployment: &Deployment) -> SocketAddr {
    let place = deployment.url.strip_prefix("https://").expect("TLS");
    place.parse().expect("an address")
}

/// By how many bytes the service's memory grows at most while strangers send their bodies.
fn growth_with_senders(deployment: &Deployment) -> u64 {
    let service = deployment.pid("service");
    // What the first connections need for ever is not what the bodies take.
    (0..STRANGERS).for_each(|_| answer(&deployment.api()));
    reset_peak_memory(service);
    let before = current_memory(service);
    let stranger = deployment.api().with_token(None);
    std::thread::scope(|scope| {
        (0..STRANGERS).for_each(|_| drop(scope.spawn(|| send_body(&stranger))));
    });
    peak_memory(service).saturating_sub(before)
}

/// Sends as much of a body as is taken.
fn send_body(stranger: &Api) {
    let mut connection = stranger.connect(SENDING_TIMEOUT).expect("a connection");
    let route = routes::DATASET_CREATE.target(&[], &[]);
    let head = format!(
        "POST {route} HTTP/1.1\r\nhost: service\r\ncontent-type: application/json\r\n\
         content-length: {SENT_BYTES}\r\n\r\n"
    );
    let piece = vec![b' '; 64 << 10];
    let mut sent = connection.write_all(head.as_bytes());
    for _ in 0..SENT_BYTES / piece.len() {
        sent = sent.and_then(|()| connection.write_all(&piece));
    }
    // A refused sender loses its connection in the midst of its body.
    let _ = connection.read(&mut [0; 1024]);
}

fn silent_connections(service: SocketAddr) -> Vec<OwnedFd> {
    let open = || {
        let connection = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&connection, &SocketAddr::from((SILENT_ADDRESS, 0))).expect("an address of this machine");
        connect(&connection, &service).expect("a connection");
        connection
    };
    (0..SILENT_CONNECTIONS).map(|_| open()).collect()
}

/// The slowest of many requests, one after the other.
fn slowest_ms(mut request: impl FnMut()) -> f64 {
    let timed = |_| {
        let begun = Instant::now();
        request();
        begun.elapsed().as_secs_f64() * 1e3
    };
    (0..REQUESTS).map(timed).fold(0.0, f64::max)
}

/// On a connection of its own.
fn answer(api: &Api) {
    api.get(&routes::STATUS, &[], &[]);
}

/// An agent that reports, each time on a connection that it keeps for a while.
struct Reporter {
    api: Api,
    report: Vec<u8>,
}

impl Reporter {
    fn join(deployment: &Deployment) -> Reporter {
        let api = deployment.api();
        let added = deployment.json(&["site", "add", "beta"]);
        let token: JoinToken = added["join_token"].as_str().expect("a token").parse().expect("a token");
        let (signing_request, key_pem) = new_signing_request().expect("a key");
        let join = json!({ "versions": AGENT_PROTOCOL, "secret": token.secret,
            "signing_request": signing_request, "host": "reporter" });
        let joined = api.call(&routes::AGENT_JOIN, &[], &[], &join).expect("an answer").expect(200).json();
        let pem = |name: &str| joined[name].as_str().expect("a certificate").to_owned();
        let credentials = Credentials { certificate_pem: pem("certificate"), key_pem, ca_pem: pem("ca") };
        let tls = service_client_tls(&credentials).expect("its certificate");
        let now = api.get(&routes::STATUS, &[], &[])["now"].clone();
        let hello = json!({ "host": "reporter", "version": "0", "data_addresses": ["127.0.0.1:9"],
            "storages": [], "held": [] });
        let report = json!({ "versions": AGENT_PROTOCOL, "incarnation": { "number": 1, "nonce": 1 },
            "now": now });
        let mut first = report.clone();
        first["hello"] = hello;
        let agent = api.with_tls(tls);
        agent.call(&routes::AGENT_REPORT, &[], &[], &first).expect("an answer").expect(200);
        Reporter { api: agent, report: report.to_string().into_bytes() }
    }

    fn slowest_ms(&self) -> f64 {
        let mut connection = self.api.kept_alive().expect("a connection");
        let target = routes::AGENT_REPORT.target(&[], &[]);
        slowest_ms(|| {
            connection.send("POST", &target, &self.report).expect("an answer").expect(200);
        })
    }
}
