//! Peers on this host: one that speaks TLS, one that is silent, one that speaks something else, and none.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use longhaul_doctor::{Examination, ExaminationRequest, FigureSource, Finding, Severity, examine};
use longhaul_model::Timestamp;
use longhaul_testkit::{CertificateAuthority, server_tls};

fn examine_with(peer: &str, patience: Duration) -> Examination {
    let order = ExaminationRequest {
        root: "/nonexistent".into(),
        peer: Some(peer.parse().unwrap()),
        timeout: patience,
        ..ExaminationRequest::default()
    };
    examine(&order, "2026-11-21T12:00:00Z".parse::<Timestamp>().unwrap())
}

fn finding<'a>(done: &'a Examination, check: &str) -> &'a Finding {
    let found = done.findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no {check} in {:#?}", done.findings))
}

/// Answers every connection with `serve`, in a thread of its own, until the test ends.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(socket));
        }
    });
    address
}

fn tls_server(reply: &'static [u8]) -> SocketAddr {
    let config = server_tls(&CertificateAuthority::new("peers").issue("far.example", &["far.example"]));
    server(move |mut socket| {
        let mut connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        let mut buffer = [0; 1024];
        if stream.read(&mut buffer).is_ok_and(|got| got > 0) {
            let _ = stream.write_all(reply);
        }
    })
}

#[test]
fn a_peer_with_tls_and_a_clock_that_is_wrong() {
    let address = tls_server(b"HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 13:00:00 GMT\r\n\r\n");
    let done = examine_with(&format!("https://{address}/"), Duration::from_secs(10));
    assert_eq!((done.path.rtt_from, done.path.rate_from), (FigureSource::Measured, FigureSource::Assumed));
    assert!(done.path.path.rtt_us < 1_000_000, "{:?}", done.path);
    assert_eq!(finding(&done, "ipv4").severity, Severity::Ok);
    assert!(finding(&done, "tls").found.starts_with("TLS 1.3, AES"), "{:?}", finding(&done, "tls"));
    assert!(finding(&done, "certificate").found.contains("far.example"));
    assert_eq!(finding(&done, "path mtu").severity, Severity::Ok);
    let clock = done.findings.iter().rfind(|one| one.check == "clock").unwrap();
    assert_eq!(clock.severity, Severity::Problem);
    assert!(clock.found.contains("ahead of"), "{clock:?}");
}

#[test]
fn a_closed_port_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let done = examine_with(&address.to_string(), Duration::from_secs(10));
    let refused = finding(&done, "ipv4");
    assert_eq!(refused.severity, Severity::Problem);
    assert!(
        refused.found.contains("nothing listens there") && refused.remedy[0].contains("ss -ltn"),
        "{refused:?}"
    );
    assert_eq!(done.path.rtt_from, FigureSource::Assumed);
}

#[test]
fn peers_without_tls_do_not_hold_us() {
    let talker = server(|mut socket| {
        let _ = socket.write_all(b"220 an FTP server is here\r\n");
        let _ = socket.read(&mut [0; 512]);
    });
    let tls = finding(&examine_with(&talker.to_string(), Duration::from_secs(10)), "tls").clone();
    assert_eq!(tls.severity, Severity::Problem, "{tls:?}");

    let silent = server(|mut socket| {
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let tls = finding(&examine_with(&silent.to_string(), Duration::from_millis(200)), "tls").clone();
    assert!(tls.found.contains("no answer"), "{tls:?}");

    // A record that comes byte by byte keeps the time limit of each call, and not that of the whole.
    let dripping = server(|mut socket| {
        for byte in [22, 3, 3, 0x10, 0].into_iter().chain(std::iter::repeat(0)) {
            if socket.write_all(&[byte]).is_err() {
                return;
            }
            thread::park_timeout(Duration::from_millis(20));
        }
    });
    let tls = finding(&examine_with(&dripping.to_string(), Duration::from_millis(300)), "tls").clone();
    assert!(tls.found.contains("no answer"), "{tls:?}");
}

#[test]
fn clear_text_is_reported_and_its_clock_read() {
    let address = server(|mut socket| {
        let _ = socket.read(&mut [0; 1024]);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 12:00:01 GMT\r\n\r\n");
    });
    let done = examine_with(&format!("http://{address}"), Duration::from_secs(10));
    assert_eq!(finding(&done, "tls").severity, Severity::Advice);
    let clock = done.findings.iter().rfind(|one| one.check == "clock").unwrap();
    assert_eq!(clock.severity, Severity::Ok, "{clock:?}");
}

#[test]
fn a_name_that_is_not_known_is_a_problem() {
    let done = examine_with("no-such-host.invalid", Duration::from_secs(10));
    let name = finding(&done, "name");
    assert_eq!(name.severity, Severity::Problem);
    assert!(name.remedy[0].contains("getent ahosts no-such-host.invalid"), "{name:?}");
}
