use crate::SecurityError;
use longhaul_model::{AgentId, AttemptId, Fault, Lfn, StorageName, Timestamp};

/// Right of one agent to read listed files of another: what a batch of leases carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    pub deployment: String,
    pub target_agent: AgentId,
    pub source_agent: AgentId,
    pub source_storage: StorageName,
    /// [`list_digest`] of the batch.
    pub list_digest: [u8; 32],
    pub expires: Timestamp,
}

impl Permit {
    /// Whether this permit is for exactly this: what a source checks after the signature.
    pub fn covers(
        &self,
        _source: AgentId,
        _target: AgentId,
        _storage: &StorageName,
        _list_digest: &[u8; 32],
    ) -> Result<(), Fault> {
        todo!()
    }
}

/// Digest of a batch's files in their order: attempt, name and size of each.
pub fn list_digest<'a>(_files: impl Iterator<Item = (AttemptId, &'a Lfn, u64)>) -> [u8; 32] {
    todo!()
}

/// Checks permits at a source, with the key it got when it joined.
#[derive(Clone)]
pub struct PermitVerifier {}

impl PermitVerifier {
    pub fn new(_permit_key_pem: &str) -> Result<Self, SecurityError> {
        todo!()
    }
    /// Signature, form and expiry; what it permits is the caller's to compare ([`Permit::covers`]).
    pub fn verify(&self, _text: &str, _now: Timestamp) -> Result<Permit, Fault> {
        todo!()
    }
}
