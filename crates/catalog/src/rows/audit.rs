//! What administrators decided for all, and who logged in.

use longhaul_model::Timestamp;

/// What an entry is about.
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
    /// Name of the credential, or of whoever wants to log in.
    pub who: String,
    /// In a sentence.
    pub what: String,
}
