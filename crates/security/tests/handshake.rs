//! Real handshakes between the settings of this crate, in memory: who gets in and who does not.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use longhaul_model::{AgentId, Fault, FaultCode, SiteName, Timestamp};
use longhaul_security::{
    AGENT_NAME, Authority, Credentials, ForeignServerTrust, HostCertificate, PeerIdentity, SERVICE_NAME,
    agent_client_tls, client_identity, data_server_tls, foreign_client_tls, io_fault, join_client_tls,
    new_signing_request, people_client_tls, server_identity, service_client_tls, service_server_tls,
    tls_fault,
};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use zeroize::Zeroizing;

const DAY: Duration = Duration::from_secs(86_400);

struct Deployment {
    authority: Authority,
    _directory: tempfile::TempDir,
}

impl Deployment {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Deployment {
            authority: Authority::create(directory.path(), name, now()).unwrap(),
            _directory: directory,
        }
    }

    fn agent(&self, id: u64, at: Timestamp) -> Credentials {
        let (request, key_pem) = new_signing_request().unwrap();
        let site: SiteName = "alpha".parse().unwrap();
        let issued = self.authority.issue_agent(&request, AgentId(id), &site, at).unwrap();
        let ca_pem = self.authority.ca_pem().to_owned();
        Credentials { certificate_pem: issued.certificate_pem, key_pem, ca_pem }
    }

    fn service(&self) -> Credentials {
        let pair = self.authority.issue_service(&["localhost".into()], now()).unwrap();
        let ca_pem = self.authority.ca_pem().to_owned();
        Credentials { certificate_pem: pair.certificate_pem, key_pem: pair.key_pem, ca_pem }
    }
}

/// rustls compares with the system's clock, so the certificates of these tests are made by it.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp(since.as_micros() as i64)
}

struct Ends {
    client: ClientConnection,
    server: ServerConnection,
    client_error: Option<rustls::Error>,
    server_error: Option<rustls::Error>,
}

impl Ends {
    fn refusals(&self) -> (Fault, Fault) {
        let fault = |error: &Option<rustls::Error>| {
            tls_fault(error.as_ref().expect("both ends learn of the refusal"))
        };
        (fault(&self.client_error), fault(&self.server_error))
    }

    fn accepted(&self) -> bool {
        self.client_error.is_none() && self.server_error.is_none() && !self.server.is_handshaking()
    }
}

fn handshake(client: Arc<ClientConfig>, server: Arc<ServerConfig>, name: &'static str) -> Ends {
    let mut ends = Ends {
        client: ClientConnection::new(client, name.try_into().unwrap()).unwrap(),
        server: ServerConnection::new(server).unwrap(),
        client_error: None,
        server_error: None,
    };
    // Messages go back and forth a few times at the most; alerts included.
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while ends.client.wants_write() {
            ends.client.write_tls(&mut bytes).unwrap();
        }
        ends.server.read_tls(&mut &bytes[..]).unwrap();
        if let Err(error) = ends.server.process_new_packets() {
            ends.server_error.get_or_insert(error);
        }
        let mut bytes = Vec::new();
        while ends.server.wants_write() {
            ends.server.write_tls(&mut bytes).unwrap();
        }
        ends.client.read_tls(&mut &bytes[..]).unwrap();
        if let Err(error) = ends.client.process_new_packets() {
            ends.client_error.get_or_insert(error);
        }
    }
    ends
}

#[test]
fn two_agents_of_one_deployment_know_each_other() {
    let deployment = Deployment::new("tier0");
    let (source, target) = (deployment.agent(1, now()), deployment.agent(2, now()));
    let ends = handshake(agent_client_tls(&target).unwrap(), data_server_tls(&source).unwrap(), AGENT_NAME);
    assert!(ends.accepted(), "{:?} {:?}", ends.client_error, ends.server_error);
    assert_eq!(ends.client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    let client = client_identity(&ends.server, "tier0").unwrap().unwrap();
    assert_eq!(client.require_agent().unwrap().0, AgentId(2));
    assert_eq!(server_identity(&ends.client, "tier0").unwrap().require_agent().unwrap().0, AgentId(1));
    let foreign = client_identity(&ends.server, "tier1").unwrap_err();
    assert_eq!(foreign.code, FaultCode::ForeignDeployment);
}

#[test]
fn agents_people_and_joining_agents_reach_the_service() {
    let deployment = Deployment::new("tier0");
    let server = service_server_tls(&deployment.service(), None).unwrap();

    let agent = agent_client_tls(&deployment.agent(1, now())).unwrap();
    for name in [SERVICE_NAME, "127.0.0.1", "some.host.example"] {
        let ends = handshake(agent.clone(), server.clone(), name);
        assert!(ends.accepted(), "{name}: {:?}", ends.client_error);
        assert!(matches!(client_identity(&ends.server, "tier0").unwrap(), Some(PeerIdentity::Agent { .. })));
    }
    let joining = join_client_tls(&deployment.authority.ca_fingerprint()).unwrap();
    let person = people_client_tls(deployment.authority.ca_pem()).unwrap();
    for client in [joining, person] {
        let ends = handshake(client, server.clone(), "localhost");
        assert!(ends.accepted(), "{:?}", ends.client_error);
        assert_eq!(client_identity(&ends.server, "tier0").unwrap(), None);
        assert!(matches!(server_identity(&ends.client, "tier0").unwrap(), PeerIdentity::Service { .. }));
    }
}

/// A certificate for `localhost` of an authority that is not the deployment's, and that authority.
fn host_certificate() -> (HostCertificate, String) {
    let other = Deployment::new("authority").service();
    let host =
        HostCertificate { certificate_pem: other.certificate_pem, key_pem: Zeroizing::new(other.key_pem) };
    (host, other.ca_pem)
}

#[test]
fn each_client_sees_the_certificate_of_the_authority_that_it_trusts() {
    let deployment = Deployment::new("tier0");
    let (host, authority) = host_certificate();
    let server = service_server_tls(&deployment.service(), Some(&host)).unwrap();
    let person = foreign_client_tls(ForeignServerTrust::Authorities(&authority)).unwrap();
    for protocols in [vec![], vec!["http/1.1"], vec!["h2", "http/1.1"]] {
        let mut person = (*person).clone();
        person.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let ends = handshake(Arc::new(person), server.clone(), "localhost");
        assert!(ends.accepted(), "{protocols:?}: {:?}", ends.client_error);
    }
    let agent = deployment.agent(1, now());
    let own = [
        service_client_tls(&agent).unwrap(),
        join_client_tls(&deployment.authority.ca_fingerprint()).unwrap(),
        people_client_tls(deployment.authority.ca_pem()).unwrap(),
        // As agents of release 0.1 dial.
        agent_client_tls(&agent).unwrap(),
    ];
    for client in own {
        let ends = handshake(client, server.clone(), "localhost");
        assert!(ends.accepted(), "{:?}", ends.client_error);
        assert!(matches!(server_identity(&ends.client, "tier0").unwrap(), PeerIdentity::Service { .. }));
    }
    let without = service_server_tls(&deployment.service(), None).unwrap();
    assert!(!handshake(person, without, "localhost").accepted());
}

#[test]
fn a_host_certificate_without_its_key_is_refused() {
    let (host, _) = host_certificate();
    let key_pem = host_certificate().0.key_pem;
    for bad in [
        HostCertificate { key_pem, ..host.clone() },
        HostCertificate { key_pem: Zeroizing::new(String::new()), ..host.clone() },
        HostCertificate { certificate_pem: String::new(), ..host },
    ] {
        let fault = service_server_tls(&Deployment::new("tier0").service(), Some(&bad)).unwrap_err();
        assert!(fault.detail.contains("certificate") || fault.detail.contains("key"), "{fault}");
    }
}

#[test]
fn an_agent_of_a_foreign_deployment_is_told_so_at_both_ends_and_both_ports() {
    let (ours, theirs) = (Deployment::new("tier0"), Deployment::new("tier0"));
    let stranger = theirs.agent(1, now());
    // The stranger's own check of the server is bypassed as far as the honest settings allow: it trusts our
    // CA.
    let stranger = Credentials { ca_pem: ours.authority.ca_pem().to_owned(), ..stranger };
    let client = agent_client_tls(&stranger).unwrap();
    for (server, name) in [
        (data_server_tls(&ours.agent(2, now())).unwrap(), AGENT_NAME),
        (service_server_tls(&ours.service(), None).unwrap(), SERVICE_NAME),
    ] {
        let (at_client, at_server) = handshake(client.clone(), server, name).refusals();
        assert_eq!(at_server.code, FaultCode::ForeignDeployment, "{at_server}");
        assert_eq!(at_client.code, FaultCode::ForeignDeployment, "{at_client}");
    }
}

#[test]
fn an_agent_does_not_talk_to_a_foreign_service() {
    let (ours, theirs) = (Deployment::new("tier0"), Deployment::new("tier1"));
    let server = service_server_tls(&theirs.service(), None).unwrap();
    let agent = agent_client_tls(&ours.agent(1, now())).unwrap();
    let joining = join_client_tls(&ours.authority.ca_fingerprint()).unwrap();
    let person = people_client_tls(ours.authority.ca_pem()).unwrap();
    for client in [agent, joining, person] {
        let ends = handshake(client, server.clone(), SERVICE_NAME);
        assert_eq!(tls_fault(&ends.client_error.unwrap()).code, FaultCode::ForeignDeployment);
        assert!(ends.server_error.is_some());
    }
}

#[test]
fn an_agent_cannot_play_the_service_nor_the_service_an_agent() {
    let deployment = Deployment::new("tier0");
    let client = agent_client_tls(&deployment.agent(1, now())).unwrap();
    let impostor = data_server_tls(&deployment.agent(2, now())).unwrap();
    let (fault, _) = handshake(client.clone(), impostor, SERVICE_NAME).refusals();
    assert!(
        fault.code == FaultCode::NotAuthenticated && fault.detail.contains("the service was expected"),
        "{fault}"
    );
    let impostor = service_server_tls(&deployment.service(), None).unwrap();
    let (fault, _) = handshake(client, impostor, AGENT_NAME).refusals();
    assert!(fault.detail.contains("an agent was expected"), "{fault}");
    let service_as_client = agent_client_tls(&deployment.service()).unwrap();
    let source = data_server_tls(&deployment.agent(2, now())).unwrap();
    let (_, fault) = handshake(service_as_client, source, AGENT_NAME).refusals();
    assert!(fault.detail.contains("an agent is expected"), "{fault}");
}

#[test]
fn an_expired_certificate_is_refused_and_an_hour_of_clock_error_is_not() {
    let deployment = Deployment::new("tier0");
    let source = data_server_tls(&deployment.agent(1, now())).unwrap();
    let expired = agent_client_tls(&deployment.agent(2, now() - 91 * DAY)).unwrap();
    let (at_client, at_server) = handshake(expired, source.clone(), AGENT_NAME).refusals();
    assert!(at_server.detail.contains("expired"), "{at_server}");
    assert_eq!(at_client.code, FaultCode::NotAuthenticated);

    let from_a_fast_clock = agent_client_tls(&deployment.agent(3, now() + DAY / 24)).unwrap();
    assert!(handshake(from_a_fast_clock, source.clone(), AGENT_NAME).accepted());
    let from_next_week = agent_client_tls(&deployment.agent(4, now() + 7 * DAY)).unwrap();
    let (_, at_server) = handshake(from_next_week, source, AGENT_NAME).refusals();
    assert_eq!(at_server.code, FaultCode::ClockSkew);
}

#[test]
fn the_data_port_wants_a_certificate_and_tls_1_3() {
    let deployment = Deployment::new("tier0");
    let source = data_server_tls(&deployment.agent(1, now())).unwrap();

    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject;
    let ca =
        rustls::pki_types::CertificateDer::from_pem_slice(deployment.authority.ca_pem().as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let outsider = |version| {
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version]).unwrap();
        Arc::new(builder.with_root_certificates(roots.clone()).with_no_client_auth())
    };
    let (at_client, at_server) =
        handshake(outsider(&rustls::version::TLS13), source.clone(), AGENT_NAME).refusals();
    assert!(at_server.detail.contains("no certificate"), "{at_server}");
    assert!(at_client.detail.contains("requires the certificate"), "{at_client}");

    let (at_client, at_server) = handshake(outsider(&rustls::version::TLS12), source, AGENT_NAME).refusals();
    assert_eq!((at_client.code, at_server.code), (FaultCode::VersionMismatch, FaultCode::VersionMismatch));

    // People with an older program, who check the host's name themselves, still reach the service.
    let service = service_server_tls(&deployment.service(), None).unwrap();
    assert!(handshake(outsider(&rustls::version::TLS12), service, "localhost").accepted());
}

#[test]
fn garbage_is_told_from_tls_and_errors_are_found_inside_io_errors() {
    let deployment = Deployment::new("tier0");
    let mut server = ServerConnection::new(data_server_tls(&deployment.agent(1, now())).unwrap()).unwrap();
    server.read_tls(&mut &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..]).unwrap();
    let error = server.process_new_packets().unwrap_err();
    assert_eq!(tls_fault(&error).code, FaultCode::ProtocolError);
    let nested = std::io::Error::other(std::io::Error::new(std::io::ErrorKind::InvalidData, error));
    assert_eq!(io_fault(nested).code, FaultCode::ProtocolError);
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(io_fault(refused).code, FaultCode::Unreachable);
}

#[test]
fn mismatched_and_unusable_credentials_are_refused_with_the_reason() {
    let deployment = Deployment::new("tier0");
    let (one, other) = (deployment.agent(1, now()), deployment.agent(2, now()));
    let crossed = Credentials { key_pem: other.key_pem.clone(), ..one.clone() };
    let no_ca = Credentials { ca_pem: String::new(), ..one.clone() };
    let no_key = Credentials { key_pem: "garbage".into(), ..one.clone() };
    let no_certificate = Credentials { certificate_pem: one.key_pem.clone(), ..one };
    for bad in [crossed, no_ca, no_key, no_certificate] {
        for fault in [agent_client_tls(&bad).unwrap_err(), data_server_tls(&bad).unwrap_err()] {
            assert_eq!(fault.code, FaultCode::NotAuthenticated);
            assert!(fault.detail.contains("certificate") || fault.detail.contains("key"), "{fault}");
        }
    }
    for bad in ["", "ab", &"zz".repeat(32)] {
        assert!(join_client_tls(bad).is_err());
    }
}

#[test]
fn an_agents_certificate_does_not_count_over_tls_1_2() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let deployment = Deployment::new("tier0");
    let agent = deployment.agent(1, now());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(agent.ca_pem.as_bytes()).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(agent.certificate_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(agent.key_pem.as_bytes()).unwrap();
    let old = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let ends =
        handshake(Arc::new(old), service_server_tls(&deployment.service(), None).unwrap(), "localhost");
    assert!(ends.accepted(), "{:?} {:?}", ends.client_error, ends.server_error);
    assert_eq!(client_identity(&ends.server, "tier0").unwrap_err().code, FaultCode::NotAuthenticated);
}
