//! What strangers cost the others: memory for bodies of callers without a credential, and how soon requests
//! and agents' reports are answered beside thousands of connections that never say a word.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use longhaul_api::routes;
use longhaul_testbed::http::Api;
use longhaul_testbed::{Deployment, SiteOptions};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::at_most;
use super::reporter::Reporter;
use crate::measure::{Row, current_memory, peak_memory, reset_peak_memory};

const STRANGERS: usize = 40;
const SENT_BYTES: usize = 16 << 20;
/// The service waits this long for a sender at most, and so do we.
const SENDING_TIMEOUT: Duration = Duration::from_secs(30);
const SILENT_CONNECTIONS: usize = 5_000;
/// From where the silent connections come; everything else comes from 127.0.0.1.
const SILENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const REQUESTS: usize = 100;

pub(super) fn run() -> Vec<Row> {
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    let grown = growth_with_senders(&deployment) as f64 / f64::from(1 << 20);
    let agent = Reporter::join(&deployment, "beta");
    let slowest = || {
        let mut reports = agent.connect();
        (slowest_ms(|| answer(&deployment.api())), slowest_ms(|| reports.send(agent.report())))
    };
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
    ]
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
