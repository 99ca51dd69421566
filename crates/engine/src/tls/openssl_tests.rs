//! Interoperability tests of the record layer with OpenSSL's TLS 1.3, as server and as client, over a real
//! socket.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{AgentId, DataSecurity, Fault};
use longhaul_security::AGENT_NAME;

use super::tests::{Collected, authority, credentials};
use super::{RECORDS_PER_KEY, ReadStatus, Tls};
use crate::context::TlsSettings;

/// A child process that ends with the test.
struct OpenSsl {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// None where OpenSSL is not installed, which CI does not accept.
fn openssl(directory: &Path, arguments: &[&str]) -> Option<OpenSsl> {
    let mut command = Command::new("openssl");
    command.args(arguments).current_dir(directory);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    match started {
        Ok(mut child) => {
            let output = BufReader::new(child.stdout.take().unwrap());
            Some(OpenSsl { child, output })
        }
        Err(error) => {
            assert!(std::env::var("CI").is_err(), "openssl cannot be run: {error}");
            eprintln!("NOT RUN, openssl cannot be run: {error}");
            None
        }
    }
}

/// Certificate files, and this crate's TLS configuration under the same CA.
fn prepared(directory: &Path) -> TlsSettings {
    let authority = authority();
    let theirs = credentials(&authority);
    for (name, text) in
        [("ca.pem", &theirs.ca_pem), ("cert.pem", &theirs.certificate_pem), ("key.pem", &theirs.key_pem)]
    {
        std::fs::write(directory.join(name), text).unwrap();
    }
    TlsSettings::new(&credentials(&authority), DataSecurity::Tls).unwrap()
}

struct Ours {
    tls: Tls,
    socket: TcpStream,
    received: Collected,
}

impl Ours {
    fn new(tls: Tls, socket: TcpStream) -> Ours {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut ours = Ours { tls, socket, received: Collected::default() };
        while ours.tls.peer().is_none() {
            ours.tls.flush(&mut ours.socket).unwrap();
            ours.receive().unwrap();
        }
        ours.tls.flush(&mut ours.socket).unwrap();
        assert_eq!(ours.tls.peer(), Some(AgentId(7)));
        ours
    }

    fn receive(&mut self) -> Result<ReadStatus, Fault> {
        self.tls.receive(&mut self.socket, &mut self.received)
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += self.tls.send(&bytes[at..], &mut self.socket).unwrap();
            self.tls.flush(&mut self.socket).unwrap();
        }
    }

    fn receive_all(&mut self, len: usize) {
        while self.received.bytes().len() < len {
            assert_ne!(self.receive().unwrap(), ReadStatus::Closed);
        }
    }
}

/// Lines of all lengths up to what the peer reverses at once.
fn lines() -> Vec<String> {
    (0..2_000usize).map(|number| format!("{number}-{}", "abcdefghij".repeat(number % 97))).collect()
}

/// Also with frequent key updates: OpenSSL never starts one by itself, but follows and answers requests.
const LIMITS: [u64; 2] = [RECORDS_PER_KEY, 50];
/// With `-rev` OpenSSL sleeps for a second at each key update.
const SLEEPY_LIMITS: [u64; 2] = [RECORDS_PER_KEY, 800];

const SERVER: &str = "s_server -accept 127.0.0.1:0 -tls1_3 -cert cert.pem -key key.pem -CAfile ca.pem \
    -Verify 2 -verify_return_error";

/// An OpenSSL server and its listening address.
fn server(directory: &Path, more: &[&str]) -> Option<(OpenSsl, String)> {
    let arguments: Vec<&str> = SERVER.split(' ').chain(more.iter().copied()).collect();
    let mut server = openssl(directory, &arguments)?;
    let mut line = String::new();
    while !line.starts_with("ACCEPT ") {
        line.clear();
        assert!(server.output.read_line(&mut line).unwrap() > 0, "openssl ended before it listened");
    }
    let address = line.trim_start_matches("ACCEPT ").trim().to_owned();
    Some((server, address))
}

fn dial(settings: &TlsSettings, address: &str, records_per_key: u64) -> Ours {
    let tls = Tls::client(&settings.client, &"test".into(), records_per_key).unwrap();
    Ours::new(tls, TcpStream::connect(address).unwrap())
}

#[test]
fn an_openssl_server_understands_us() {
    let directory = tempfile::tempdir().unwrap();
    let settings = prepared(directory.path());
    for limit in SLEEPY_LIMITS {
        let Some((_server, address)) = server(directory.path(), &["-rev"]) else { return };
        let mut ours = dial(&settings, &address, limit);
        for line in lines() {
            ours.send(format!("{line}\n").as_bytes());
            let before = ours.received.bytes().len();
            ours.receive_all(before + line.len() + 1);
            let back: String = line.chars().rev().collect();
            assert_eq!(&ours.received.bytes()[before..], format!("{back}\n").as_bytes());
            let (sealed, opened) = ours.tls.records();
            // Its line end is a record of its own, and what it sent before the request counts.
            assert!(sealed <= limit && opened <= limit + limit / 4 + 4, "{sealed} {opened}");
        }
    }
}

#[test]
fn an_openssl_client_understands_us() {
    for limit in LIMITS {
        talk_with_a_client(limit);
    }
}

/// OpenSSL updates its keys on the command `k`, and with `K` requests an update of the peer's as well.
#[test]
fn openssl_renews_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let settings = prepared(directory.path());
    let Some((mut server, address)) = server(directory.path(), &[]) else { return };
    let mut ours = dial(&settings, &address, RECORDS_PER_KEY);
    let mut input = server.child.stdin.take().unwrap();
    for (command, asks) in ["k\n", "K\n"].into_iter().cycle().take(12).zip([false, true].into_iter().cycle())
    {
        ours.send(b"to openssl\n");
        // Written alone: OpenSSL looks for a command at the beginning of what it reads.
        input.write_all(b"from openssl\n").unwrap();
        ours.receive_all(ours.received.bytes().len() + 13);
        assert!(ours.received.bytes().ends_with(b"from openssl\n"));
        let (sealed, opened) = ours.tls.records();
        assert!(sealed > 0 && opened > 0);
        input.write_all(command.as_bytes()).unwrap();
        while ours.tls.records().1 > 0 {
            assert_ne!(ours.receive().unwrap(), ReadStatus::Closed);
        }
        assert!(ours.tls.flush(&mut ours.socket).unwrap());
        assert_eq!(ours.tls.records().0, if asks { 0 } else { sealed });
    }
    ours.send(b"the last\n");
    let mut line = String::new();
    while line != "the last\n" {
        line.clear();
        assert!(server.output.read_line(&mut line).unwrap() > 0, "openssl ended");
    }
}

fn talk_with_a_client(limit: u64) {
    let directory = tempfile::tempdir().unwrap();
    let settings = prepared(directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let arguments = [
        "s_client",
        "-connect",
        &address,
        "-tls1_3",
        "-servername",
        AGENT_NAME,
        "-cert",
        "cert.pem",
        "-key",
        "key.pem",
        "-CAfile",
        "ca.pem",
        "-verify_return_error",
        "-quiet",
        "-no_ign_eof",
    ];
    let Some(mut client) = openssl(directory.path(), &arguments) else { return };
    let (socket, _) = listener.accept().unwrap();
    let tls = Tls::server(&settings.server, &Arc::from("test"), limit).unwrap();
    let mut ours = Ours::new(tls, socket);
    let sent: String = lines().iter().map(|line| format!("{line}\n")).collect();
    let mut input = client.child.stdin.take().unwrap();
    let copy = sent.clone();
    let writing = std::thread::spawn(move || input.write_all(copy.as_bytes()).map(|()| input));
    ours.receive_all(sent.len());
    assert!(ours.received.bytes() == sent.as_bytes());
    let _input = writing.join().unwrap().unwrap();
    ours.send(sent.as_bytes());
    for line in lines() {
        let mut back = String::new();
        client.output.read_line(&mut back).unwrap();
        assert_eq!(back, format!("{line}\n"));
    }
}
