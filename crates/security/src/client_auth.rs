//! Clients at the service's port that show a certificate: agents of this deployment, or users of the grid.
//!
//! The handshake lets a grid's chain pass with no more than the proof that its key is held, since a handshake
//! cannot say in words why it refuses a legacy proxy or an expired one. [`client_of`] then verifies the
//! chain, on every connection, resumed ones too: until it has, nothing in it is believed. What names an agent
//! or the service of a Longhaul never takes this way: the deployment's own authority decides within the
//! handshake, as at every other port.

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
use crate::{Credentials, PeerIdentity, client_identity, tls};

/// Who is at the other end of a connection with a client's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientIdentity {
    Agent(PeerIdentity),
    Grid(Arc<GridIdentity>),
}

/// Of the service's port where users of the grid are known: a client certificate is optional, and is an
/// agent's or a user's.
pub fn grid_server_tls(credentials: &Credentials) -> Result<Arc<ServerConfig>, Fault> {
    tls::service_tls(credentials, agent_or_user_verifier(credentials)?)
}

/// Agents by their authority, and whoever holds the key of any other certificate.
pub(crate) fn agent_or_user_verifier(
    credentials: &Credentials,
) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let agents = tls::agent_verifier(credentials, false)?;
    let algorithms = tls::provider().signature_verification_algorithms;
    Ok(Arc::new(AgentOrUserVerifier { agents, algorithms }))
}

/// Server side, after the handshake: who the client is, agent or user. None if it showed no certificate. The
/// fault says in words why a certificate does not count; whoever shows one is not to be served as somebody
/// without.
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

/// Agents by their authority; of others, only that they hold the key of the certificate they show.
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

    /// None: a list of hundreds of authorities helps nobody, and one of ours alone would keep users from
    /// showing theirs.
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
        // Not by the certificate: webpki does not take one with the critical extension of proxies.
        let certificate = Certificate::parse(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let key = SubjectPublicKeyInfoDer::from(certificate.key);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
