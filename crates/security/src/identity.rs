use crate::SecurityError;
use longhaul_model::{AgentId, Fault, SiteName, Timestamp};
use rustls::pki_types::CertificateDer;

/// Who holds a certificate of ours, from its URI name: `longhaul://DEPLOYMENT/agent/SITE/AGENTID` or
/// `longhaul://DEPLOYMENT/service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    Agent { deployment: String, agent: AgentId, site: SiteName },
    Service { deployment: String },
}

/// What a process shows to others and what it trusts, all PEM.
#[derive(Clone)]
pub struct Credentials {
    pub certificate_pem: String,
    pub key_pem: String,
    pub ca_pem: String,
}

impl Credentials {
    /// Whose credentials these are.
    pub fn identity(&self) -> Result<PeerIdentity, Fault> {
        todo!()
    }
}

/// The identity in a certificate whose chain has been verified.
pub fn peer_identity(_certificate: &CertificateDer<'_>) -> Result<PeerIdentity, Fault> {
    todo!()
}

/// When the first certificate of a PEM text expires.
pub fn expires(_certificate_pem: &str) -> Result<Timestamp, SecurityError> {
    todo!()
}

/// Whether two thirds of its life are over.
pub fn needs_renewal(_certificate_pem: &str, _now: Timestamp) -> Result<bool, SecurityError> {
    todo!()
}
