//! Entries of the audit log.

use longhaul_model::Timestamp;

/// The kind of an audit entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditKind {
    Change,
    /// Somebody logged in, or was refused.
    Login,
}

impl AuditKind {
    pub fn word(self) -> &'static str {
        match self {
            AuditKind::Change => "change",
            AuditKind::Login => "login",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    pub id: u64,
    pub at: Timestamp,
    /// Name of the credential, or of the person who logs in.
    pub who: String,
    /// What happened, in a sentence.
    pub what: String,
}
