//! Errors of keys, certificates and their files.

use std::io;
use std::path::PathBuf;

use longhaul_model::{Fault, FaultCode};

#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    #[error("{what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// A name that cannot be put into a certificate.
    #[error("{what} \"{shown}\" {why}")]
    Name { what: &'static str, shown: String, why: &'static str },
    /// A certificate, key or signing request that cannot be used.
    #[error("{what}: {why}")]
    Unusable { what: &'static str, why: String },
}

impl SecurityError {
    pub(crate) fn unusable(what: &'static str, why: impl ToString) -> Self {
        SecurityError::Unusable { what, why: why.to_string() }
    }
}

impl From<SecurityError> for Fault {
    fn from(error: SecurityError) -> Fault {
        let code = match &error {
            SecurityError::File { .. } => FaultCode::StateDirectory,
            SecurityError::Name { .. } => FaultCode::BadName,
            SecurityError::Unusable { .. } => FaultCode::NotAuthenticated,
        };
        let cause = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Fault::new(code, format!("{error}{cause}")).with_source(error)
    }
}
