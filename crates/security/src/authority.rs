use crate::{Permit, SecurityError};
use longhaul_model::{AgentId, SiteName, Timestamp};
use std::path::Path;
use std::sync::Arc;

/// The built-in CA and the permit key, in a directory of the service's state (0700; keys 0600).
pub struct Authority {
    deployment: String,
    ca_pem: String,
}

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct KeyPair {
    pub certificate_pem: String,
    pub key_pem: String,
    pub expires: Timestamp,
}

/// A certificate for a key that the other side holds.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate_pem: String,
    pub expires: Timestamp,
}

impl Authority {
    pub fn create(_directory: &Path, _deployment: &str, _now: Timestamp) -> Result<Self, SecurityError> {
        todo!()
    }
    pub fn open(_directory: &Path) -> Result<Self, SecurityError> {
        todo!()
    }
    pub fn deployment(&self) -> &str {
        &self.deployment
    }
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }
    /// SHA-256 of the CA certificate, in hex: what a join token carries.
    pub fn ca_fingerprint(&self) -> String {
        todo!()
    }
    /// Public half of the key that signs permits, PEM.
    pub fn permit_key_pem(&self) -> String {
        todo!()
    }
    /// `names`: DNS names or addresses by which people reach the service.
    pub fn issue_service(&self, _names: &[String], _now: Timestamp) -> Result<KeyPair, SecurityError> {
        todo!()
    }
    /// Takes only the key from the signing request; names in it are ignored.
    pub fn issue_agent(
        &self,
        _signing_request_pem: &str,
        _agent: AgentId,
        _site: &SiteName,
        _now: Timestamp,
    ) -> Result<Issued, SecurityError> {
        todo!()
    }
    pub fn sign_permit(&self, _permit: &Permit) -> Arc<str> {
        todo!()
    }
}

/// A new key and a request to certify it: `(signing request, key)`, both PEM.
pub fn new_signing_request() -> Result<(String, String), SecurityError> {
    todo!()
}
