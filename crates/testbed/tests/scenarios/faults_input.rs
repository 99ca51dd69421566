//! Garbage, slow and oversized input on every port, while a campaign runs: each gets an answer or an end,
//! nothing grows, and the campaign loses nothing.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_security::{AGENT_NAME, agent_client_tls};
use longhaul_testbed::http::{Api, Connection};
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, SiteOptions, processes, tree};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// What is neither finished nor going on is dropped within this: ten seconds, and what a busy machine takes.
const DROPPED_WITHIN: Duration = Duration::from_secs(60);
const READ_TIMEOUT: Duration = Duration::from_millis(200);
/// Slow connections at a time on one port.
const SLOW: usize = 80;
/// The figures of the first release: a service, and an agent beyond its budget.
const SERVICE_BYTES_MAX: u64 = 600 << 20;
const AGENT_BYTES_MAX: u64 = (64 + 100) << 20;

fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(DROPPED_WITHIN)).unwrap();
    stream
}

/// Reads until the peer ends the connection; false if it does not.
fn is_dropped(stream: &mut dyn Read, within: Duration) -> bool {
    let until = Instant::now() + within;
    let mut scratch = [0; 4_096];
    while Instant::now() < until {
        match stream.read(&mut scratch) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return true,
        }
    }
    false
}

/// Bytes that are no beginning of anything; the peer may stop reading at any time.
fn pour(stream: &mut dyn Write, bytes: &[u8]) {
    let _ = stream.write_all(bytes).and_then(|()| stream.flush());
}

/// The first part of a TLS hello whose rest never comes.
const HALF_A_HELLO: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];

/// What strangers do to a TLS port without ever speaking TLS to its end.
fn knock(address: SocketAddr, random: &mut Random) {
    drop(tcp(address));
    for size in [1_000, 100_000] {
        let mut stream = tcp(address);
        pour(&mut stream, &tree::content(random, size));
        assert!(
            is_dropped(&mut stream, DROPPED_WITHIN),
            "{size} random bytes hold a connection to {address}"
        );
    }
    for greeting in [
        &b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..],
        b"SSH-2.0-x\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 65_536],
        &[0x16, 0x03, 0x01, 0xff, 0xff, 0x01],
    ] {
        let mut stream = tcp(address);
        pour(&mut stream, greeting);
        assert!(
            is_dropped(&mut stream, DROPPED_WITHIN),
            "{:?}… holds a connection to {address}",
            &greeting[..6]
        );
    }
}

/// Many at once that begin and do not go on; all are dropped.
fn dawdle(address: SocketAddr, beginning: &[u8]) {
    let mut slow: Vec<TcpStream> = (0..SLOW).map(|_| tcp(address)).collect();
    for stream in &mut slow {
        pour(stream, beginning);
    }
    let until = Instant::now() + DROPPED_WITHIN;
    for stream in &mut slow {
        let left = until.saturating_duration_since(Instant::now()).max(READ_TIMEOUT * 2);
        assert!(is_dropped(stream, left), "a slow connection to {address} is held open for ever");
    }
}

/// A connection to one that speaks HTTP. Its patience with a handshake is short: ours is late if this thread
/// gets no processor meanwhile.
fn connected(api: &Api, read_timeout: Duration) -> Box<dyn Connection> {
    (0..10).find_map(|_| api.connect(read_timeout).ok()).expect("a connection is made")
}

/// Sends a request in pieces of our choice; returns the status, if any came before the end.
fn status_of(api: &Api, pieces: &mut dyn Iterator<Item = Vec<u8>>) -> Option<u16> {
    let mut connection = connected(api, DROPPED_WITHIN);
    for piece in pieces {
        if connection.write_all(&piece).and_then(|()| connection.flush()).is_err() {
            break;
        }
    }
    let mut head = vec![0; 64];
    let read = connection.read(&mut head).unwrap_or(0);
    String::from_utf8_lossy(&head[..read]).split(' ').nth(1)?.parse().ok()
}

fn once(text: &str) -> std::iter::Once<Vec<u8>> {
    std::iter::once(text.as_bytes().to_vec())
}

/// Requests that are too long, too deep, too slow or not requests, to one that speaks HTTP.
fn abuse_http(api: &Api, token: &str) {
    let host = format!("host: {}\r\n", api.address);
    let admin = format!("{host}authorization: Bearer {token}\r\ncontent-type: application/json\r\n");
    let refused = |what: &str, status: Option<u16>, allowed: &[u16]| {
        assert!(
            status.is_none_or(|status| allowed.contains(&status)),
            "{what} at {}: {status:?}",
            api.address
        );
    };
    let long = "x".repeat(1 << 20);
    refused(
        "a long target",
        status_of(api, &mut once(&format!("GET /{long} HTTP/1.1\r\n{host}\r\n"))),
        &[400, 414, 431],
    );
    refused(
        "a long header",
        status_of(api, &mut once(&format!("GET /healthz HTTP/1.1\r\n{host}x: {long}\r\n\r\n"))),
        &[400, 431],
    );
    let many = "x: y\r\n".repeat(20_000);
    refused(
        "many headers",
        status_of(api, &mut once(&format!("GET /healthz HTTP/1.1\r\n{host}{many}\r\n"))),
        &[400, 431],
    );
    let token_line = format!("authorization: Bearer {}\r\n", "t".repeat(20_000));
    refused(
        "a long token",
        status_of(api, &mut once(&format!("GET /api/v1/status HTTP/1.1\r\n{host}{token_line}\r\n"))),
        &[401, 431],
    );
    refused("nonsense", status_of(api, &mut once("\0\x01\x02 nonsense\r\n\r\n")), &[400]);
    refused(
        "a lie about the length",
        status_of(
            api,
            &mut once(&format!(
                "POST /api/v1/datasets HTTP/1.1\r\n{admin}content-length: 99999999999999\r\n\r\n{{"
            )),
        ),
        &[400, 413],
    );
    refused(
        "two lengths",
        status_of(
            api,
            &mut once(&format!(
                "POST /api/v1/datasets HTTP/1.1\r\n{admin}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}"
            )),
        ),
        &[400],
    );
    refused(
        "a bad chunk",
        status_of(
            api,
            &mut once(&format!(
                "POST /api/v1/datasets HTTP/1.1\r\n{admin}transfer-encoding: chunked\r\n\r\nzz\r\n"
            )),
        ),
        &[400],
    );
    // A body without an end is cut at its limit, not collected.
    let head =
        format!("POST /api/v1/datasets HTTP/1.1\r\n{admin}transfer-encoding: chunked\r\n\r\n").into_bytes();
    let chunk = format!("100000\r\n{long}\r\n").into_bytes();
    let mut endless = std::iter::once(head).chain(std::iter::repeat_n(chunk, 64));
    // 408: this thread got no processor, and the body stood still for too long.
    refused("a body without an end", status_of(api, &mut endless), &[400, 408, 413]);
    // Deep JSON overflows no stack.
    let deep = "[".repeat(1 << 20);
    let request =
        format!("POST /api/v1/datasets HTTP/1.1\r\n{admin}content-length: {}\r\n\r\n{deep}", deep.len());
    refused("deep JSON", status_of(api, &mut once(&request)), &[400, 408, 413]);
    // A manifest whose only line has no end.
    let manifest =
        format!("POST /api/v1/datasets/run7/files HTTP/1.1\r\n{admin}transfer-encoding: chunked\r\n\r\n")
            .into_bytes();
    let piece = format!("100000\r\n{long}\r\n").into_bytes();
    let end = b"0\r\n\r\n".to_vec();
    let mut upload =
        std::iter::once(manifest).chain(std::iter::repeat_n(piece, 40)).chain(std::iter::once(end));
    refused("a manifest without a line end", status_of(api, &mut upload), &[400, 408, 413]);
}

/// A head, or a body, of which a byte comes now and then and the rest never.
fn hold_http(api: &Api, token: &str) {
    let mut held: Vec<(&str, Box<dyn Connection>)> = Vec::new();
    let head = format!(
        "POST /api/v1/datasets HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n",
        api.address
    );
    let body = format!("{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{");
    for (what, beginning) in
        [("a head", head.clone()), ("a silent connection", String::new()), ("a body", body)]
    {
        let mut connection = connected(api, READ_TIMEOUT);
        pour(&mut connection, beginning.as_bytes());
        held.push((what, connection));
    }
    for (what, connection) in &mut held {
        assert!(
            is_dropped(connection, DROPPED_WITHIN),
            "{what} without an end is held open at {}",
            api.address
        );
    }
}

/// TLS with a good certificate to a data port, then something else than the protocol.
fn misuse_session(address: SocketAddr, tls: &Arc<ClientConfig>, bytes: &[u8]) {
    let mut tcp = tcp(address);
    tcp.set_read_timeout(Some(DROPPED_WITHIN)).unwrap();
    let mut connection = ClientConnection::new(tls.clone(), AGENT_NAME.try_into().unwrap()).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut tcp).expect("the certificate is good");
    }
    tcp.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    let mut stream = StreamOwned::new(connection, tcp);
    pour(&mut stream, bytes);
    assert!(
        is_dropped(&mut stream, DROPPED_WITHIN),
        "{} bytes of nonsense hold a session at {address}",
        bytes.len()
    );
}

/// Strangers, people and misbehaving agents at an agent's data port.
fn abuse_data(deployment: &Deployment, site: &str, random: &mut Random) {
    let address = deployment.data_address(site);
    knock(address, random);
    // Without a certificate, and with one of another deployment, nobody gets as far as the protocol.
    let ca = fs::read_to_string(&deployment.ca).unwrap();
    let people = longhaul_security::people_client_tls(&ca).unwrap();
    let mut tcp = tcp(address);
    tcp.set_read_timeout(Some(DROPPED_WITHIN)).unwrap();
    let mut connection = ClientConnection::new(people, AGENT_NAME.try_into().unwrap()).unwrap();
    while connection.is_handshaking() && connection.complete_io(&mut tcp).is_ok() {}
    let mut stream = StreamOwned::new(connection, tcp);
    assert!(is_dropped(&mut stream, DROPPED_WITHIN), "no certificate, and let in");

    let tls = agent_client_tls(&deployment.credentials("gamma")).unwrap();
    let frame = |kind: u8, body: u32, payload: u32| {
        let mut head = vec![kind, 0, 0, 0];
        head.extend(body.to_le_bytes());
        head.extend(payload.to_le_bytes());
        head
    };
    misuse_session(address, &tls, &tree::content(random, 1_000));
    misuse_session(address, &tls, &tree::content(random, 3_000_000));
    misuse_session(address, &tls, &frame(0xff, 10, 10));
    for kind in 0..=20 {
        misuse_session(address, &tls, &[frame(kind, u32::MAX, u32::MAX), vec![0; 100]].concat());
    }
    misuse_session(address, &tls, &[frame(1, 64, 0), vec![0xff; 64]].concat());
}

#[test]
fn ports_survive_garbage_slow_and_oversized_input() {
    // Shorter patience than usual, so that the test need not wait as long.
    let settings = "limits.head_ms = 4000\nlimits.stall_ms = 5000\n".to_owned();
    let mut deployment =
        Deployment::with(ServiceOptions { pages: true, settings, ..ServiceOptions::default() });
    for site in ["alpha", "beta", "gamma"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), 400, 60_000_000, &mut Random::new(71));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "beta", "--in", "2MB"]);
    deployment.json(&["subscribe", "run7", "beta"]);

    let secure = deployment.api().with_token(None);
    let plain = Api::plain(deployment.page_address.unwrap());
    let token = deployment.token.clone();
    std::thread::scope(|scope| {
        let (deployment, secure, plain, token) = (&deployment, &secure, &plain, &token);
        scope.spawn(move || dawdle(deployment.service_address, HALF_A_HELLO));
        scope.spawn(move || dawdle(plain.address, b"GET / HTTP/1.1\r\nhost: "));
        scope.spawn(move || hold_http(secure, token));
        scope.spawn(move || hold_http(plain, token));
        scope.spawn(move || {
            knock(deployment.service_address, &mut Random::new(73));
            abuse_http(secure, token);
            abuse_http(plain, token);
        });
        scope.spawn(move || abuse_data(deployment, "alpha", &mut Random::new(79)));
        // These hold up the handshakes of others until they are dropped, so each has a port of its own.
        scope.spawn(move || dawdle(deployment.data_address("beta"), HALF_A_HELLO));
        scope.spawn(move || dawdle(deployment.data_address("gamma"), b""));
    });

    deployment.assert_alive();
    for name in ["alpha", "beta", "gamma"] {
        let memory = processes::memory_bytes(deployment.pid(name));
        assert!(memory < AGENT_BYTES_MAX, "{name} has {memory} bytes");
    }
    let memory = processes::memory_bytes(deployment.pid(SERVICE));
    assert!(memory < SERVICE_BYTES_MAX, "the service has {memory} bytes");
    for name in [SERVICE, "alpha", "beta", "gamma"] {
        let panics = deployment.log(name).lines_with(&["panicked"]);
        assert!(panics.is_empty(), "{name}: {panics:?}");
    }
    deployment.json(&["site", "limit", "beta", "--in", "none"]);
    deployment.deliver("run7", "beta", 90);
    tree::assert_same(&files, &deployment.storage("beta"), "");
    // Nobody outside makes a problem of ours.
    deployment.assert_nothing_failed();
    // Everyone is still served, new connections too.
    deployment.deliver("run7", "gamma", 90);
    tree::assert_same(&files, &deployment.storage("gamma"), "");
    deployment.check();
}
