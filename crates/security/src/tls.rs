//! TLS settings (RFC 8446, RFC 5246) of connections between our own processes, and what a failed handshake
//! means.
//!
//! Our own processes know each other by the identity in their certificates, not by host names: an agent has
//! addresses that change, and a data port is dialled at whatever address works. So the server name given to
//! rustls only says which kind of peer is meant, [`AGENT_NAME`] or (any other) the service, and the
//! certificate has to be of that kind, from this deployment's CA. Our own connections are TLS 1.3; people
//! with older programs may use 1.2 at the service's port.

use std::io;
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};
use rustls::CipherSuite;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName,
    OtherError, ProtocolVersion, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::service_certificates::{
    HostCertificate, SERVICE_PROTOCOL, ServiceCertificates, service_protocols,
};
use crate::{Credentials, PeerIdentity, SecurityError, peer_identity, text};

/// Server name to give when dialling the service. Any other name but [`AGENT_NAME`] means the service too, so
/// that a URL's host does as well.
pub const SERVICE_NAME: &str = "service.longhaul";
/// Server name to give when dialling an agent's data port.
pub const AGENT_NAME: &str = "agent.longhaul";

/// Client settings of an agent, for sources. TLS 1.3 only.
pub fn agent_client_tls(credentials: &Credentials) -> Result<Arc<ClientConfig>, Fault> {
    let deployment = credentials.identity()?.deployment().to_owned();
    let trust = ServerTrust::Roots(roots(&credentials.ca_pem)?);
    let (chain, key) = chain_and_key(credentials)?;
    let mut config = client_builder(trust, Some(deployment))?
        .with_client_auth_cert(chain, key)
        .map_err(|error| SecurityError::unusable("certificate and key", error))?;
    // A resumed session would outlive the certificates it rests on, and a stream is opened too rarely to gain
    // by it.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Client settings of an agent, for the service: the same, and it asks for the deployment's certificate.
pub fn service_client_tls(credentials: &Credentials) -> Result<Arc<ClientConfig>, Fault> {
    Ok(dialling_service((*agent_client_tls(credentials)?).clone()))
}

/// Server settings of an agent's data port: requires the certificate of an agent of this deployment. TLS 1.3
/// only; the client learns of a refusal at its first read.
pub fn data_server_tls(credentials: &Credentials) -> Result<Arc<ServerConfig>, Fault> {
    let (chain, key) = chain_and_key(credentials)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(internal)?
        .with_client_cert_verifier(agent_verifier(credentials, true)?)
        .with_single_cert(chain, key)
        .map_err(|error| SecurityError::unusable("certificate and key", error))?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Server settings of the service's port: a client certificate is optional, and must be an agent's. People
/// and programs see the host's certificate, if there is one.
pub fn service_server_tls(
    credentials: &Credentials,
    host: Option<&HostCertificate>,
) -> Result<Arc<ServerConfig>, Fault> {
    service_tls(credentials, host, agent_verifier(credentials, false)?)
}

pub(crate) fn service_tls(
    credentials: &Credentials,
    host: Option<&HostCertificate>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, Fault> {
    let (mut chain, key) = chain_and_key(credentials)?;
    // An agent that joins knows the CA by its fingerprint only, so the CA has to be sent.
    chain.extend(certificates(&credentials.ca_pem)?);
    let own = CertifiedKey::from_der(chain, key, &provider())
        .map_err(|error| SecurityError::unusable("certificate and key", error))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(internal)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(ServiceCertificates::new(own, host)?));
    config.alpn_protocols = service_protocols();
    Ok(Arc::new(config))
}

/// Client settings of an agent that joins: trusts exactly the CA with that fingerprint.
pub fn join_client_tls(ca_fingerprint: &str) -> Result<Arc<ClientConfig>, Fault> {
    let fingerprint = text::from_hex_32(ca_fingerprint)
        .ok_or_else(|| Fault::new(FaultCode::BadRequest, "a CA fingerprint has 64 hexadecimal digits"))?;
    Ok(dialling_service(client_builder(ServerTrust::Fingerprint(fingerprint), None)?.with_no_client_auth()))
}

/// Client settings of commands: trusts the deployment's CA, shows no certificate.
pub fn people_client_tls(ca_pem: &str) -> Result<Arc<ClientConfig>, Fault> {
    Ok(dialling_service(client_builder(ServerTrust::Roots(roots(ca_pem)?), None)?.with_no_client_auth()))
}

/// The deployment's certificate is wanted, not the host's.
fn dialling_service(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![SERVICE_PROTOCOL.to_vec()];
    Arc::new(config)
}

/// Server side, after the handshake: the client's identity; None without a certificate.
pub fn client_identity(connection: &CommonState, deployment: &str) -> Result<Option<PeerIdentity>, Fault> {
    let Some(certificate) = connection.peer_certificates().and_then(|chain| chain.first()) else {
        return Ok(None);
    };
    if connection.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
        return Err(Fault::new(
            FaultCode::NotAuthenticated,
            "an agent's certificate counts over TLS 1.3 only",
        ));
    }
    peer_identity(certificate)?.require_deployment(deployment).map(Some)
}

/// Client side, after the handshake: the server's identity.
pub fn server_identity(connection: &CommonState, deployment: &str) -> Result<PeerIdentity, Fault> {
    match connection.peer_certificates().and_then(|chain| chain.first()) {
        Some(certificate) => peer_identity(certificate)?.require_deployment(deployment),
        None => Err(Fault::new(FaultCode::NotAuthenticated, "the server showed no certificate")),
    }
}

/// Explains a failed handshake.
pub fn tls_fault(error: &rustls::Error) -> Fault {
    use AlertDescription as Alert;
    use FaultCode::*;
    let (code, detail) = match error {
        rustls::Error::InvalidCertificate(reason) => return certificate_fault(reason),
        rustls::Error::NoCertificatesPresented => (NotAuthenticated, "the peer showed no certificate"),
        // A certificate of a foreign CA with the same name fails at the signature.
        rustls::Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            (ForeignDeployment, "the peer does not know the authority that issued our certificate")
        }
        // Ours sends it to addresses that are not on its list, before anything else is said.
        rustls::Error::AlertReceived(Alert::AccessDenied) => {
            (NotAllowed, "the peer talks to certain addresses only, and this host's is not one of them")
        }
        rustls::Error::AlertReceived(Alert::CertificateRequired) => {
            (NotAuthenticated, "the peer requires the certificate of an agent")
        }
        rustls::Error::AlertReceived(Alert::CertificateExpired) => (
            NotAuthenticated,
            "the peer says that our certificate has expired or is not valid yet: are both clocks right?",
        ),
        rustls::Error::AlertReceived(
            Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnsupportedCertificate,
        ) => (NotAuthenticated, "the peer refused our certificate; its log says why"),
        rustls::Error::AlertReceived(Alert::ProtocolVersion | Alert::HandshakeFailure)
        | rustls::Error::PeerIncompatible(_) => {
            (VersionMismatch, "the two ends have no version of TLS in common")
        }
        rustls::Error::InvalidMessage(_) => (ProtocolError, "the peer does not speak TLS"),
        rustls::Error::DecryptError => (Corrupted, "a TLS record failed its check"),
        other => return Fault::new(ProtocolError, format!("TLS: {other}")).with_source(error.clone()),
    };
    Fault::new(code, detail).with_source(error.clone())
}

/// Explains an error of a stream, including TLS errors inside it.
pub fn io_fault(error: io::Error) -> Fault {
    let fault = explain_io(&error);
    if std::error::Error::source(&fault).is_some() { fault } else { fault.with_source(error) }
}

/// Like [`io_fault`], of an error that lies inside another: only TLS errors become the fault's source.
pub fn explain_io(error: &io::Error) -> Fault {
    use io::ErrorKind::*;
    let mut inner = error.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
    while let Some(cause) = inner {
        if let Some(tls) = cause.downcast_ref::<rustls::Error>() {
            return tls_fault(tls);
        }
        inner = match cause.downcast_ref::<io::Error>() {
            Some(nested) => nested.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => cause.source(),
        };
    }
    let code = match error.kind() {
        ConnectionRefused | HostUnreachable | NetworkUnreachable | AddrNotAvailable | NetworkDown
        | NotFound => FaultCode::Unreachable,
        TimedOut => FaultCode::Stalled,
        _ => FaultCode::ConnectionLost,
    };
    Fault::new(code, error.to_string())
}

fn certificate_fault(reason: &CertificateError) -> Fault {
    use CertificateError as Certificate;
    use FaultCode::*;
    match reason {
        Certificate::Other(OtherError(cause)) => match cause.downcast_ref::<Fault>() {
            Some(fault) => fault.clone(),
            None => Fault::new(NotAuthenticated, cause.to_string()).with_source(cause.clone()),
        },
        // A foreign CA with the name of ours fails at the signature.
        Certificate::UnknownIssuer | Certificate::BadSignature => Fault::new(
            ForeignDeployment,
            "the peer's certificate was not issued by this deployment's authority",
        ),
        Certificate::Expired | Certificate::ExpiredContext { .. } => Fault::new(
            NotAuthenticated,
            format!("the peer's certificate has expired, or this host's clock is wrong: {reason}"),
        ),
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => Fault::new(
            ClockSkew,
            format!("the peer's certificate is not valid yet by this host's clock: {reason}"),
        ),
        other => Fault::new(NotAuthenticated, format!("the peer's certificate: {other}")),
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    // The client's order counts: AES-128-GCM is as safe here as AES-256-GCM and a tenth to a third cheaper.
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

pub(crate) fn internal(error: rustls::Error) -> Fault {
    Fault::new(FaultCode::Internal, format!("TLS settings: {error}")).with_source(error)
}

fn client_builder(
    trust: ServerTrust,
    deployment: Option<String>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, Fault> {
    let provider = provider();
    let verifier = ServerVerifier { trust, deployment, provider: provider.clone() };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(internal)?
        .dangerous() // the verifier below is stricter than the one for the web
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

pub(crate) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| SecurityError::unusable("certificate", error))?;
    if chain.is_empty() {
        return Err(SecurityError::unusable("certificate", "there is none in the file"));
    }
    Ok(chain)
}

fn roots(ca_pem: &str) -> Result<RootCertStore, SecurityError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca_pem)? {
        roots.add(certificate).map_err(|error| SecurityError::unusable("CA certificate", error))?;
    }
    Ok(roots)
}

type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn chain_and_key(credentials: &Credentials) -> Result<ChainAndKey, SecurityError> {
    let key = PrivateKeyDer::from_pem_slice(credentials.key_pem.as_bytes())
        .map_err(|error| SecurityError::unusable("private key", error))?;
    Ok((certificates(&credentials.certificate_pem)?, key))
}

/// Carries a fault of ours through rustls to [`tls_fault`].
fn refused(fault: Fault) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(fault))))
}

#[derive(Debug)]
enum ServerTrust {
    Roots(RootCertStore),
    /// SHA-256 of a CA certificate that the server has to send.
    Fingerprint([u8; 32]),
}

impl ServerTrust {
    fn roots(&self, sent: &[CertificateDer<'_>]) -> Result<RootCertStore, rustls::Error> {
        let fingerprint = match self {
            ServerTrust::Roots(roots) => return Ok(roots.clone()),
            ServerTrust::Fingerprint(fingerprint) => fingerprint,
        };
        let Some(ca) = sent.iter().find(|sent| text::sha256(sent) == *fingerprint) else {
            let detail = "the service at this address is not the one that the join token is for";
            return Err(refused(Fault::new(FaultCode::ForeignDeployment, detail)));
        };
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        Ok(roots)
    }
}

/// Verifies the chain to the deployment's CA, then kind and deployment of the identity.
#[derive(Debug)]
struct ServerVerifier {
    trust: ServerTrust,
    /// Known to those who have credentials of their own.
    deployment: Option<String>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let roots = self.trust.roots(intermediates)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, &roots, intermediates, now, algorithms)?;
        let mut identity = peer_identity(end_entity).map_err(refused)?;
        if let Some(deployment) = &self.deployment {
            identity = identity.require_deployment(deployment).map_err(refused)?;
        }
        let wants_agent = matches!(server_name, ServerName::DnsName(name) if name.as_ref() == AGENT_NAME);
        match (wants_agent, identity) {
            (true, PeerIdentity::Agent { .. }) | (false, PeerIdentity::Service { .. }) => {
                Ok(ServerCertVerified::assertion())
            }
            (true, identity) | (false, identity) => {
                let wanted = if wants_agent { "an agent" } else { "the service" };
                let detail = format!("{wanted} was expected at this address, {identity} answered");
                Err(refused(Fault::new(FaultCode::NotAuthenticated, detail)))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

pub(crate) fn agent_verifier(
    credentials: &Credentials,
    required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let deployment = credentials.identity()?.deployment().to_owned();
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&credentials.ca_pem)?), provider());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    let inner = builder.build().map_err(|error| SecurityError::unusable("CA certificate", error))?;
    Ok(Arc::new(AgentVerifier { inner, deployment }))
}

/// rustls's verifier of client certificates, which then must name an agent of this deployment.
#[derive(Debug)]
struct AgentVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    deployment: String,
}

impl ClientCertVerifier for AgentVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let identity =
            peer_identity(end_entity).and_then(|identity| identity.require_deployment(&self.deployment));
        identity.and_then(|identity| identity.require_agent().map(|_| ())).map_err(refused)?;
        Ok(verified)
    }

    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
