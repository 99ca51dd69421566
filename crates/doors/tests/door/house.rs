//! A door on loopback with certificates of its own, and a client that sends exactly what it is told to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longhaul_doors::{
    Access, AuditSink, Door, Grant, Limits, Outgoing, Renewer, Right, Rights, Settings, Subjects, TapeEnd,
    TrustedIssuers,
};
use longhaul_security::{
    ForeignServerTrust, door_server_tls, foreign_client_tls, foreign_client_tls_with_certificate, hash_secret,
};
use longhaul_storage::{FlushPolicy, Posix, PosixOptions, Storage};
use longhaul_testkit::{CertificateAuthority, wait_until};
use rustls::{ClientConnection, StreamOwned};
use tempfile::TempDir;
use tokio::sync::watch;

pub const WRITER: &str = "writer-0123456789abcdef";
pub const READER: &str = "reader-0123456789abcdef";
/// May stage what lies below `run7`.
pub const STAGER: &str = "stager-0123456789abcdef";
/// May write below `people/jane`, and nothing else.
pub const JANE: &str = "jane-0123456789abcdefgh";
/// No headers beside those that every request has.
pub const PLAIN: &[(&str, &str)] = &[];

pub struct House {
    pub root: PathBuf,
    pub ca: PathBuf,
    pub address: SocketAddr,
    access: Access,
    renewer: Renewer,
    stop: watch::Sender<bool>,
    runtime: Option<tokio::runtime::Runtime>,
    directory: Arc<TempDir>,
}

pub struct Changes {
    pub limits: Limits,
    pub make_parents: bool,
    pub delete_trees: bool,
    pub anonymous: bool,
    /// Networks that are no public ones, and authorities of other servers; by default its own.
    pub dials: Vec<&'static str>,
    pub trusts: Option<String>,
    pub issued: Option<TrustedIssuers>,
    pub tape: Option<TapeEnd>,
    pub audit: Option<Arc<dyn AuditSink>>,
}

impl Default for Changes {
    fn default() -> Self {
        Changes {
            limits: Limits::default(),
            make_parents: true,
            delete_trees: false,
            anonymous: false,
            dials: vec!["127.0.0.0/8"],
            trusts: None,
            issued: None,
            tape: None,
            audit: None,
        }
    }
}

impl House {
    pub fn new() -> House {
        House::with(Changes::default())
    }

    pub fn with(changes: Changes) -> House {
        House::over(Arc::new(tempfile::tempdir().unwrap()), changes)
    }

    /// A second door over the same files, after the first has stopped.
    pub fn reopened(self) -> House {
        let directory = self.directory.clone();
        drop(self);
        House::over(directory, Changes::default())
    }

    fn over(directory: Arc<TempDir>, changes: Changes) -> House {
        let root = directory.path().join("root");
        std::fs::create_dir_all(&root).unwrap();
        let (ca_pem, lists, certificate, key) = certificates(directory.path());
        let ca = directory.path().join("ca.pem");
        std::fs::write(&ca, &ca_pem).unwrap();
        std::fs::write(directory.path().join("certificate.pem"), &certificate).unwrap();
        std::fs::write(directory.path().join("key.pem"), &key).unwrap();
        let storage = Posix::open(PosixOptions {
            name: "disk".parse().unwrap(),
            root: root.clone(),
            work: None,
            writable: true,
            flush: FlushPolicy::None,
        });
        let all = |may| Grant { may, below: String::new() };
        let alice = Subjects::Named(["/CN=alice".to_owned(), "/O=Example/CN=alice".to_owned()].into());
        let access = Access {
            tls: door_server_tls(&certificate, &key, &[&ca_pem], &[&lists]).unwrap(),
            identities: false,
            rights: Rights {
                subjects: vec![(alice, all(Right::Write))],
                tokens: vec![
                    (hash_secret(WRITER), all(Right::Write)),
                    (hash_secret(READER), all(Right::Read)),
                    (hash_secret(STAGER), Grant { may: Right::Stage, below: "run7".into() }),
                    (hash_secret(JANE), Grant { may: Right::Write, below: "people/jane".into() }),
                ],
                anonymous: changes.anonymous.then(String::new),
            },
        };
        let settings = Settings {
            storage: Arc::new(storage.unwrap()) as Arc<dyn Storage>,
            names: Vec::new(),
            make_parents: changes.make_parents,
            delete_trees: changes.delete_trees,
            owner: *b"testdoor",
            properties: Some(directory.path().join("properties")),
            outgoing: Some(Arc::new(Outgoing {
                tls: foreign_client_tls(ForeignServerTrust::Authorities(&changes.trusts.unwrap_or(ca_pem)))
                    .unwrap(),
                allow: changes.dials.iter().map(|network| network.parse().unwrap()).collect(),
            })),
            users: None,
            issued: changes.issued,
            tape: changes.tape,
            audit: changes.audit,
            limits: changes.limits,
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listen = ["127.0.0.1:0".parse().unwrap()];
        let door = runtime.block_on(Door::open(settings, access.clone(), &listen)).unwrap();
        let (address, renewer) = (door.addresses()[0], door.renewer());
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(door.run(stopped));
        House { root, ca, address, access, renewer, stop, runtime: Some(runtime), directory }
    }

    /// As if an administrator had taken the token's line out of the file of tokens.
    pub fn revoke(&self, token: &str) {
        let mut access = self.access.clone();
        access.rights.tokens.retain(|(hash, _)| *hash != hash_secret(token));
        self.renewer.renew(access);
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.address.port())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// For another server of this house's name.
    pub fn server_tls(&self) -> Arc<rustls::ServerConfig> {
        let text = |name| std::fs::read_to_string(self.file(name)).unwrap();
        door_server_tls(&text("certificate.pem"), &text("key.pem"), &[], &[]).unwrap()
    }

    pub fn connect(&self) -> Wire {
        let pem = std::fs::read_to_string(&self.ca).unwrap();
        self.connect_by(foreign_client_tls(ForeignServerTrust::Authorities(&pem)).unwrap())
    }

    /// With a certificate, say.
    pub fn connect_by(&self, tls: Arc<rustls::ClientConfig>) -> Wire {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let connection = ClientConnection::new(tls, "localhost".try_into().unwrap()).unwrap();
        Wire { stream: StreamOwned::new(connection, stream) }
    }

    /// One request by somebody with the certificate of that file.
    pub fn request_as(&self, certificate: &str, method: &str, path: &str, body: &[u8]) -> Reply {
        let ca = std::fs::read_to_string(&self.ca).unwrap();
        let pem = std::fs::read_to_string(self.file(&format!("{certificate}.pem"))).unwrap();
        let trust = ForeignServerTrust::Authorities(&ca);
        let wire = self.connect_by(foreign_client_tls_with_certificate(trust, &pem, &pem).unwrap());
        self.ask_over(wire, method, path, &[("Authorization", "")], body)
    }

    /// One request with the writer's token on a connection of its own.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.ask_over(self.connect(), method, path, headers, body)
    }

    pub fn ask_over(
        &self,
        mut wire: Wire,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let port = self.address.port();
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            head.push_str(&format!("Authorization: Bearer {WRITER}\r\n"));
        }
        if !body.is_empty() || method == "PUT" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        headers
            .iter()
            .filter(|(name, value)| !(*name == "Authorization" && value.is_empty()))
            .for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        head.push_str("\r\n");
        wire.send(head.as_bytes());
        wire.send(body);
        wire.reply(method == "HEAD")
    }

    /// What lies in the work directory: nothing, when nothing is on its way.
    pub fn temps(&self) -> Vec<String> {
        let temps = self.root.join(".longhaul/temps");
        let names = std::fs::read_dir(temps).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Waits until nothing of an interrupted file is left.
    pub fn wait_until_clean(&self) {
        wait_until(|| self.temps().is_empty(), || format!("temporary files stay: {:?}", self.temps()));
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// A CA, a server certificate for localhost, and clients' in `directory`; returns CA, revocation list,
/// certificate, key.
fn certificates(directory: &Path) -> (String, String, String, String) {
    const REVOKED_SERIAL: u64 = 4_711;
    let authority = CertificateAuthority::new("Test CA");
    let write = |name: &str, (certificate, key): (String, String)| {
        std::fs::write(directory.join(format!("{name}.pem")), format!("{certificate}{key}")).unwrap();
    };
    for name in ["alice", "mallory"] {
        write(name, authority.issue(name, &[]));
    }
    write("alice-of-example", authority.issue_subject(&[("O", "Example"), ("CN", "alice")], 1));
    write("forged", authority.issue_subject(&[("O", "Example/CN=alice")], 2));
    write("forged-whole", authority.issue_subject(&[("O", "x/O=Example/CN=alice")], 3));
    write("forged-end", authority.issue_subject(&[("O", "Example"), ("CN", "alice/CN=proxy")], 4));
    write("revoked", authority.issue_subject(&[("CN", "alice")], REVOKED_SERIAL));
    let (certificate, key) = authority.issue("localhost", &["localhost", "127.0.0.1"]);
    let lists = authority.revocation_list(&[REVOKED_SERIAL]);
    (authority.ca_pem, lists, certificate, key)
}

pub struct Wire {
    stream: StreamOwned<ClientConnection, TcpStream>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// The body ended as its framing says.
    pub whole: bool,
}

impl Wire {
    pub fn send(&mut self, bytes: &[u8]) {
        // Who is refused in the middle of a body cannot send the rest.
        let _ = self.stream.write_all(bytes).and_then(|()| self.stream.flush());
    }

    pub fn reply(&mut self, is_head: bool) -> Reply {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => {
                    return Reply {
                        status: 0,
                        head: String::from_utf8_lossy(&head).into(),
                        body: vec![],
                        whole: false,
                    };
                }
            }
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        if status == 100 {
            return Reply { status, head, body: vec![], whole: true };
        }
        let mut reply = Reply { status, head, body: vec![], whole: true };
        if is_head || matches!(status, 204 | 304) {
            return reply;
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.whole = self.chunks(&mut reply.body).is_some();
        } else if let Some(length) = reply.header("content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            reply.whole = self.stream.read_exact(&mut body).is_ok();
            reply.body = body;
        }
        reply
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> Option<()> {
        loop {
            let size = usize::from_str_radix(&self.line()?, 16).ok()?;
            let mut chunk = vec![0; size];
            self.stream.read_exact(&mut chunk).ok()?;
            body.extend(chunk);
            self.line()?;
            if size == 0 {
                return Some(());
            }
        }
    }

    /// Waits for the other side to close; false if it goes on.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => {
                !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
            }
        }
    }

    /// How many bytes come until the other side ends the connection, in whatever way.
    pub fn count_rest(&mut self) -> u64 {
        let (mut count, mut buffer) = (0, vec![0; 64 << 10]);
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return count,
                Ok(read) => count += read as u64,
            }
        }
    }

    pub fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).ok()?;
            line.push(byte[0]);
        }
        Some(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned())
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}
