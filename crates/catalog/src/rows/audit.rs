//! What administrators decided for all.

use longhaul_model::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    pub id: u64,
    pub at: Timestamp,
    /// Name of the credential.
    pub who: String,
    /// In a sentence.
    pub what: String,
}
