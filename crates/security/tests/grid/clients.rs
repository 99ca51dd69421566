//! The service's port with real handshakes: agents, users of the grid with certificates and proxies, nobody;
//! from rustls and from OpenSSL.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::pki::{self, *};
use longhaul_model::{AgentId, Fault};
use longhaul_security::grid::GridTrust;
use longhaul_security::{
    Authority, ClientIdentity, Credentials, ForeignServerTrust, agent_client_tls,
    foreign_client_tls_with_certificate, grid_server_tls, identify_client, new_signing_request,
    people_client_tls,
};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};

const DEPLOYMENT: &str = "tier0";

struct Service {
    authority: Authority,
    tls: Arc<ServerConfig>,
    ca_pem: String,
    _directory: tempfile::TempDir,
}

impl Service {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), DEPLOYMENT, clock()).unwrap();
        let pair = authority.issue_service(&["localhost".into()], clock()).unwrap();
        let ca_pem = authority.ca_pem().to_owned();
        let credentials = Credentials {
            certificate_pem: pair.certificate_pem,
            key_pem: pair.key_pem,
            ca_pem: ca_pem.clone(),
        };
        Service {
            authority,
            tls: grid_server_tls(&credentials, None).unwrap(),
            ca_pem,
            _directory: directory,
        }
    }

    fn agent(&self) -> Credentials {
        let (request, key_pem) = new_signing_request().unwrap();
        let issued =
            self.authority.issue_agent(&request, AgentId(1), &"alpha".parse().unwrap(), clock()).unwrap();
        Credentials { certificate_pem: issued.certificate_pem, key_pem, ca_pem: self.ca_pem.clone() }
    }

    /// A client of the user with that chain, over that version of TLS.
    fn user(&self, chain: &[&Holder], version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        let chain_pem: String = chain.iter().map(|holder| holder.pem()).collect();
        let key_pem = chain[0].key.serialize_pem();
        let config = foreign_client_tls_with_certificate(
            ForeignServerTrust::Authorities(&self.ca_pem),
            &chain_pem,
            &key_pem,
        )
        .unwrap();
        self.client(config.client_auth_cert_resolver.clone(), version)
    }

    fn client(
        &self,
        shows: Arc<dyn ResolvesClientCert>,
        version: &'static SupportedProtocolVersion,
    ) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(shows);
        Arc::new(client)
    }

    /// What the service thinks of a client, if the handshake ends well.
    fn meets(
        &self,
        client: Arc<ClientConfig>,
        grid: Option<&GridTrust>,
    ) -> Result<Option<ClientIdentity>, String> {
        let mut client = ClientConnection::new(client, "localhost".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(self.tls.clone()).unwrap();
        for _ in 0..10 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().map_err(|error| error.to_string())?;
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().map_err(|error| error.to_string())?;
        }
        assert!(!server.is_handshaking(), "the handshake hangs");
        identify_client(&server, DEPLOYMENT, grid, NOW).map_err(|fault: Fault| fault.detail)
    }
}

fn subject(met: Result<Option<ClientIdentity>, String>) -> (String, usize) {
    match met.unwrap().unwrap() {
        ClientIdentity::Grid(user) => (user.subject.clone(), user.proxies),
        ClientIdentity::Agent(agent) => panic!("{agent}"),
    }
}

#[test]
fn users_agents_and_nobody_come_to_one_port() {
    let service = Service::new();
    for (ca, alice) in [(ec_key(), ec_key()), (rsa_key(), rsa_key())] {
        let grid = Grid::with_keys(ca, alice);
        let trust = grid.trust();
        let ec_proxy = grid.alice.proxy().sign();
        let rsa_proxy = grid.alice.proxy().key(&rsa_key()).sign();
        for version in [&TLS12, &TLS13] {
            let plain = service.user(&[&grid.alice], version);
            assert_eq!(subject(service.meets(plain, Some(&trust))), (ALICE.to_owned(), 0));
            for proxy in [&ec_proxy, &rsa_proxy] {
                let client = service.user(&[proxy, &grid.alice], version);
                assert_eq!(subject(service.meets(client, Some(&trust))), (ALICE.to_owned(), 1));
            }
        }
    }
    let grid = Grid::new();
    let trust = grid.trust();
    let agent = agent_client_tls(&service.agent()).unwrap();
    let met = service.meets(agent, Some(&trust)).unwrap().unwrap();
    assert!(matches!(met, ClientIdentity::Agent(agent) if agent.require_agent().unwrap().0 == AgentId(1)));
    assert_eq!(service.meets(people_client_tls(&service.ca_pem).unwrap(), Some(&trust)), Ok(None));
}

/// By certificate and by proxy, over both versions of TLS.
#[test]
fn a_slash_in_a_value_makes_nobody_else_at_the_port() {
    let service = Service::new();
    let grid = Grid::new();
    let trust = grid.trust();
    let alice = grid.trust().verify_chain(&pki::chain(&[&grid.alice]), NOW).unwrap();
    for forged in [
        "/DC=org/DC=example/OU=Users\\/CN=alice",
        "/DC=org/DC=example\\/OU=Users/CN=alice",
        "/DC=org\\/DC=example\\/OU=Users\\/CN=alice",
    ] {
        let holder = grid.ca.issues(forged).with(basic_constraints(false)).with(key_usage(0xa0)).sign();
        let proxy = holder.proxy().sign();
        for version in [&TLS12, &TLS13] {
            for (chain, proxies) in [(vec![&holder], 0), (vec![&proxy, &holder], 1)] {
                let met = service.meets(service.user(&chain, version), Some(&trust)).unwrap().unwrap();
                let ClientIdentity::Grid(user) = met else { panic!("an agent") };
                assert_eq!((user.subject.as_str(), user.proxies), (forged, proxies));
                assert_ne!(user.delegation_id(), alice.delegation_id(), "{forged}");
            }
        }
    }
}

#[test]
fn refusals_come_in_words_after_the_handshake() {
    let service = Service::new();
    let grid = Grid::new();
    let trust = grid.trust();
    let mut legacy = grid.alice.issues(&format!("{ALICE}/CN=proxy"));
    legacy.not_after = NOW + DAY;
    let legacy = legacy.sign();
    let stranger = authority("/CN=elsewhere").issues("/CN=stranger").sign();
    for (chain, text) in [
        (vec![&legacy, &grid.alice], "legacy proxy"),
        (vec![&stranger], "not trusted here"),
        (vec![&grid.alice.proxy().sign()], "send the whole chain"),
    ] {
        let detail = service.meets(service.user(&chain, &TLS13), Some(&trust)).unwrap_err();
        assert!(detail.contains(text), "{detail}");
    }
    let detail = service.meets(service.user(&[&grid.alice], &TLS13), None).unwrap_err();
    assert!(detail.contains("no authorities of a grid"), "{detail}");
}

/// The handshake is lenient to users, so this must not help anybody to be an agent.
#[test]
fn nobody_becomes_an_agent_by_the_way_of_users() {
    let service = Service::new();
    let grid = Grid::new();
    let trust = grid.trust();
    let agent_name = "longhaul://tier0/agent/alpha/0000000000001";
    let uri = extension(&[2, 5, 29, 17], false, sequence(&[tlv(0x86, agent_name.as_bytes())]));
    // By itself, by an authority of the grid, and as a proxy, which has no such name.
    let own = authority("/CN=self");
    let by_itself = own.issues("/CN=agent").with(uri.clone()).sign();
    let by_the_grid = grid.ca.issues("/CN=agent").with(uri.clone()).sign();
    for holder in [&by_itself, &by_the_grid] {
        for version in [&TLS12, &TLS13] {
            assert!(service.meets(service.user(&[holder], version), Some(&trust)).is_err());
        }
    }
    let proxy = grid.alice.proxy().with(uri).sign();
    let detail = service.meets(service.user(&[&proxy, &grid.alice], &TLS13), Some(&trust)).unwrap_err();
    assert!(detail.contains("alternative names"), "{detail}");
    // Somebody else's chain, without its key.
    let own_key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&own.private_key()).unwrap();
    let stolen = CertifiedKey::new(pki::chain(&[&grid.alice]), own_key);
    let stolen = Arc::new(SingleCertAndKey::from(stolen));
    for version in [&TLS12, &TLS13] {
        let error = service.meets(service.client(stolen.clone(), version), Some(&trust)).unwrap_err();
        assert!(error.contains("BadSignature") || error.contains("invalid"), "{error}");
    }
}

/// One connection: handshake, then who it was as the answer.
fn answer_one(listener: &TcpListener, tls: Arc<ServerConfig>, trust: &GridTrust) -> std::io::Result<()> {
    let (mut socket, _) = listener.accept()?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut connection = ServerConnection::new(tls).map_err(std::io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    let answer = match identify_client(&connection, DEPLOYMENT, Some(trust), NOW) {
        Ok(Some(ClientIdentity::Grid(user))) => format!("user {} proxies {}\n", user.subject, user.proxies),
        Ok(other) => format!("{other:?}\n"),
        Err(fault) => format!("refused {}\n", fault.detail),
    };
    let mut stream = rustls::Stream::<ServerConnection, TcpStream>::new(&mut connection, &mut socket);
    stream.write_all(answer.as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()?;
    let _ = stream.conn.complete_io(stream.sock);
    // Until the client is gone, or an early end would take the answer away from it.
    let _ = stream.sock.read(&mut [0; 64]);
    Ok(())
}

/// `openssl s_client` with this holder's chain; what the service answered.
fn openssl(directory: &Path, port: u16, version: &str, chain: &[&Holder]) -> String {
    let file = |name: &str, content: String| {
        let path = directory.join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let certificate = file("cert.pem", chain[0].pem());
    let others = file("chain.pem", chain[1..].iter().map(|holder| holder.pem()).collect());
    let key = file("key.pem", chain[0].key.serialize_pem());
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}"), version]);
    command.arg("-cert").arg(certificate).arg("-key").arg(key);
    if chain.len() > 1 {
        command.arg("-cert_chain").arg(others);
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!answer.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    answer
}

#[test]
fn openssl_gets_in_with_certificates_and_proxies() {
    let installed = Command::new("openssl").arg("version").stdout(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        assert!(!std::env::var("CI").is_ok_and(|value| value == "true"), "NOT RUN: openssl is not installed");
        println!("\n*** NOT RUN: clients with OpenSSL: openssl is not installed ***\n");
        return;
    }
    let service = Service::new();
    let grid = Grid::with_keys(rsa_key(), rsa_key());
    let trust = grid.trust();
    let scratch = tempfile::tempdir().unwrap();
    let first = grid.alice.proxy().key(&rsa_key()).sign();
    let second = first.proxy_of(LIMITED, None).sign();
    let mut legacy = grid.alice.issues(&format!("{ALICE}/CN=limited proxy"));
    legacy.not_after = NOW + DAY;
    let legacy = legacy.sign();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for version in ["-tls1_2", "-tls1_3"] {
        for (chain, expected) in [
            (vec![&grid.alice], format!("user {ALICE} proxies 0\n")),
            (vec![&first, &grid.alice], format!("user {ALICE} proxies 1\n")),
            (vec![&second, &first, &grid.alice], format!("user {ALICE} proxies 2\n")),
            (vec![&legacy, &grid.alice], "legacy proxy".to_owned()),
        ] {
            std::thread::scope(|scope| {
                let served = scope.spawn(|| answer_one(&listener, service.tls.clone(), &trust));
                let answer = openssl(scratch.path(), port, version, &chain);
                assert!(answer.contains(&expected), "{version}: {answer}");
                served.join().unwrap().unwrap();
            });
        }
    }
}
