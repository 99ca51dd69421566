//! Errors of the catalog: of the database, of a request, of a registration.

use std::error::Error;

use longhaul_model::{Fault, FaultCode};
use tokio_postgres::error::SqlState;

use crate::sql::DatabaseError;

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("the disk under the database is full")]
    Full(#[source] DatabaseError),
    #[error("the database is damaged: {0}")]
    Corrupt(#[source] DatabaseFailure),
    #[error("the database is busy: {0}")]
    Busy(#[source] DatabaseFailure),
    #[error("the database cannot be used: {0}")]
    Unusable(#[source] DatabaseFailure),
    #[error("the database has format {found}, made by a newer version; this one knows formats up to {known}")]
    Newer { found: u32, known: u32 },
    /// The request cannot be done: [`FaultCode::NotFound`], [`FaultCode::Conflict`], …
    #[error("{0}")]
    Refused(Fault),
    /// A statement failed: a bug of this crate.
    #[error("a statement failed: {0}")]
    Statement(#[source] DatabaseError),
}

/// What is wrong with the database, with the error that showed it if there was one: the driver's, or that of
/// what reads a stored value.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct DatabaseFailure {
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl DatabaseFailure {
    pub fn new(text: impl Into<String>, error: impl Error + Send + Sync + 'static) -> Self {
        DatabaseFailure { text: text.into(), source: Some(Box::new(error)) }
    }
}

impl From<DatabaseError> for DatabaseFailure {
    fn from(error: DatabaseError) -> Self {
        DatabaseFailure::new(error.to_string(), error)
    }
}

impl From<String> for DatabaseFailure {
    fn from(text: String) -> Self {
        DatabaseFailure { text, source: None }
    }
}

impl From<&str> for DatabaseFailure {
    fn from(text: &str) -> Self {
        DatabaseFailure::from(text.to_owned())
    }
}

impl CatalogError {
    pub(crate) fn refused(code: FaultCode, detail: impl Into<String>) -> Self {
        CatalogError::Refused(Fault::new(code, detail))
    }

    pub(crate) fn not_found(what: &str, which: impl std::fmt::Display) -> Self {
        CatalogError::refused(FaultCode::NotFound, format!("there is no {what} {which}"))
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        CatalogError::refused(FaultCode::Conflict, detail)
    }
}

impl From<DatabaseError> for CatalogError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Sqlite(error) => of_sqlite(error),
            DatabaseError::Postgres(ref refused) => match refused.code().cloned() {
                Some(code) => of_postgres(&code, error),
                None => {
                    let text = format!("its server does not answer: {error}");
                    CatalogError::Busy(DatabaseFailure::new(text, error))
                }
            },
            DatabaseError::Damaged { .. } => CatalogError::Corrupt(error.into()),
            DatabaseError::Runtime(_) => CatalogError::Unusable(error.into()),
            DatabaseError::NoRow | DatabaseError::TransactionAborted | DatabaseError::ValueDoesNotFit(_) => {
                CatalogError::Statement(error)
            }
        }
    }
}

/// Text of a query that exceeded its time limit.
const TOO_LONG: &str = "a query took too long and was stopped";

fn of_sqlite(error: rusqlite::Error) -> CatalogError {
    use rusqlite::ffi::ErrorCode as Code;
    let code = error.sqlite_error_code();
    let error = DatabaseError::from(error);
    match code {
        Some(Code::DiskFull) => CatalogError::Full(error),
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => CatalogError::Corrupt(error.into()),
        Some(Code::DatabaseBusy | Code::DatabaseLocked | Code::FileLockingProtocolFailed) => {
            CatalogError::Busy(error.into())
        }
        Some(Code::OperationInterrupted) => CatalogError::Busy(DatabaseFailure::new(TOO_LONG, error)),
        Some(
            Code::SystemIoFailure
            | Code::CannotOpen
            | Code::ReadOnly
            | Code::PermissionDenied
            | Code::OutOfMemory,
        ) => CatalogError::Unusable(error.into()),
        _ => CatalogError::Statement(error),
    }
}

/// Classifies by SQLSTATE (PostgreSQL manual, appendix A).
fn of_postgres(code: &SqlState, error: DatabaseError) -> CatalogError {
    match code.code() {
        "53100" => CatalogError::Full(error),
        "57014" => CatalogError::Busy(DatabaseFailure::new(TOO_LONG, error)),
        // Retryable: serialisation failures, and a server that is starting, stopping or out of resources.
        code if ["40", "53", "55", "57", "08"].iter().any(|class| code.starts_with(class)) => {
            CatalogError::Busy(error.into())
        }
        code if ["XX", "58"].iter().any(|class| code.starts_with(class)) => {
            CatalogError::Corrupt(error.into())
        }
        // Login refused, no such database, no permission, read-only.
        code if ["28", "3D", "42501", "25006"].iter().any(|class| code.starts_with(class)) => {
            CatalogError::Unusable(error.into())
        }
        _ => CatalogError::Statement(error),
    }
}

impl From<CatalogError> for Fault {
    fn from(error: CatalogError) -> Self {
        let text = error.to_string();
        let code = match error {
            CatalogError::Refused(fault) => return fault,
            CatalogError::Busy(_) => FaultCode::Busy,
            CatalogError::Full(_)
            | CatalogError::Corrupt(_)
            | CatalogError::Unusable(_)
            | CatalogError::Newer { .. } => FaultCode::StateDirectory,
            CatalogError::Statement(_) => FaultCode::Internal,
        };
        Fault::new(code, text).with_source(error)
    }
}

/// An error of a line of a manifest, or of reading it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct ManifestError {
    /// The line, from 1.
    pub line: u64,
    pub fault: Fault,
}

/// Why a registration was refused.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl From<DatabaseError> for AddError {
    fn from(error: DatabaseError) -> Self {
        AddError::Catalog(error.into())
    }
}

impl From<AddError> for Fault {
    /// Keeps the fault's code and adds the line number to its detail.
    fn from(error: AddError) -> Self {
        match error {
            AddError::Catalog(error) => error.into(),
            AddError::Manifest(ManifestError { line, mut fault }) => {
                fault.detail = Fault::new(fault.code, format!("line {line}: {}", fault.detail)).detail;
                fault
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_driver_stays_below_the_text() {
        let code = rusqlite::ffi::SQLITE_INTERRUPT;
        let stopped = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let error = CatalogError::from(DatabaseError::from(stopped));
        assert_eq!(error.to_string(), format!("the database is busy: {TOO_LONG}"));
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        assert!(causes.filter_map(|cause| cause.downcast_ref::<DatabaseError>()).count() == 1, "{error:?}");
        let stored = CatalogError::Corrupt("a format of number x".into());
        assert_eq!(stored.to_string(), "the database is damaged: a format of number x");
    }
}
