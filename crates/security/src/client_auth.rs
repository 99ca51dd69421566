//! TLS client authentication at the service's port: agents of this deployment, or grid users with
//! certificates and proxies (RFC 3820).
//!
//! For a grid chain the handshake only proves possession of its key, since it cannot say in words why it
//! refuses a legacy or expired proxy. [`identify_client`] then verifies the chain, on every connection,
//! resumed ones too; until then nothing in it is trusted. A certificate that names an agent or the service
//! never takes this way: the deployment's own CA decides within the handshake, as at every other port.

use std::sync::Arc;

use longhaul_model::{Fault, FaultCode, Timestamp};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, CommonState, DigitallySignedStruct, DistinguishedName, PeerMisbehaved, ServerConfig,
    SignatureScheme,
};

use crate::grid::{Certificate, GridIdentity, GridTrust, key_parts};
use crate::identity::claims_identity;
use crate::{Credentials, HostCertificate, PeerIdentity, client_identity, tls};

/// The identity of a client with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientIdentity {
    Agent(PeerIdentity),
    Grid(Arc<GridIdentity>),
}

/// TLS settings of the service's port where grid users are accepted: a client certificate is optional, and an
/// agent's or a user's.
pub fn grid_server_tls(
    credentials: &Credentials,
    host: Option<&HostCertificate>,
) -> Result<Arc<ServerConfig>, Fault> {
    tls::service_tls(credentials, host, agent_or_user_verifier(credentials)?)
}

/// Verifies agents by the deployment's CA; of others only that they hold the key of their certificate.
pub(crate) fn agent_or_user_verifier(
    credentials: &Credentials,
) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let agents = tls::agent_verifier(credentials, false)?;
    let algorithms = tls::provider().signature_verification_algorithms;
    Ok(Arc::new(AgentOrUserVerifier { agents, algorithms }))
}

/// Server side, after the handshake: the client's identity, agent or user; None without a certificate. The
/// fault says why a certificate is not accepted; such a client must not be served as one without.
pub fn identify_client(
    connection: &CommonState,
    deployment: &str,
    grid: Option<&GridTrust>,
    now: Timestamp,
) -> Result<Option<ClientIdentity>, Fault> {
    let Some(chain) = connection.peer_certificates() else { return Ok(None) };
    let Some(first) = chain.first() else { return Ok(None) };
    if claims_identity(first) {
        return Ok(client_identity(connection, deployment)?.map(ClientIdentity::Agent));
    }
    let Some(grid) = grid else {
        let detail = "certificates of users are not accepted here: no authorities of a grid are configured";
        return Err(Fault::new(FaultCode::NotAuthenticated, detail));
    };
    grid.verify_chain(chain, now).map(|user| Some(ClientIdentity::Grid(user)))
}

/// See [`agent_or_user_verifier`].
#[derive(Debug)]
struct AgentOrUserVerifier {
    agents: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AgentOrUserVerifier {
    fn verify_client_cert(
        &self,
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if claims_identity(first) {
            return self.agents.verify_client_cert(first, others, now);
        }
        Certificate::parse(first).map_err(|_| CertificateError::BadEncoding)?;
        Ok(ClientCertVerified::assertion())
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Empty: a list of hundreds of authorities helps nobody, and ours alone would keep users from showing
    /// theirs.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let certificate = Certificate::parse(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let (kind, bits) = key_parts(certificate.key).map_err(|_| CertificateError::BadEncoding)?;
        let methods = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
        let Some((_, methods)) = methods else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        let mut fitting = methods.iter().filter(|method| method.public_key_alg_id().as_ref() == kind);
        if fitting.any(|method| method.verify_signature(bits, message, signed.signature()).is_ok()) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // By the raw key: webpki rejects certificates with the critical extension of proxies.
        let certificate = Certificate::parse(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let key = SubjectPublicKeyInfoDer::from(certificate.key);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
