//! Errors of the catalog: of the database, of a request, of a registration.

use longhaul_model::{Fault, FaultCode};
use tokio_postgres::error::SqlState;

use crate::sql::DatabaseError;

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("the disk under the database is full")]
    Full(#[source] DatabaseError),
    #[error("the database is damaged: {0}")]
    Corrupt(String),
    #[error("the database is busy: {0}")]
    Busy(String),
    #[error("the database cannot be used: {0}")]
    Unusable(String),
    #[error("the database has format {found}, made by a newer version; this one knows formats up to {known}")]
    Newer { found: u32, known: u32 },
    /// The request cannot be done: [`FaultCode::NotFound`], [`FaultCode::Conflict`], …
    #[error("{0}")]
    Refused(Fault),
    /// A statement failed: a bug of this crate.
    #[error("a statement failed: {0}")]
    Statement(#[source] DatabaseError),
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
                None => CatalogError::Busy(format!("its server does not answer: {error}")),
            },
            DatabaseError::Damaged { .. } => CatalogError::Corrupt(error.to_string()),
            DatabaseError::Runtime(_) => CatalogError::Unusable(error.to_string()),
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
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(Code::DiskFull) => CatalogError::Full(error.into()),
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => CatalogError::Corrupt(text),
        Some(Code::DatabaseBusy | Code::DatabaseLocked | Code::FileLockingProtocolFailed) => {
            CatalogError::Busy(text)
        }
        Some(Code::OperationInterrupted) => CatalogError::Busy(TOO_LONG.into()),
        Some(
            Code::SystemIoFailure
            | Code::CannotOpen
            | Code::ReadOnly
            | Code::PermissionDenied
            | Code::OutOfMemory,
        ) => CatalogError::Unusable(text),
        _ => CatalogError::Statement(error.into()),
    }
}

/// Classifies by SQLSTATE (PostgreSQL manual, appendix A).
fn of_postgres(code: &SqlState, error: DatabaseError) -> CatalogError {
    let text = error.to_string();
    match code.code() {
        "53100" => CatalogError::Full(error),
        "57014" => CatalogError::Busy(TOO_LONG.into()),
        // Retryable: serialisation failures, and a server that is starting, stopping or out of resources.
        code if ["40", "53", "55", "57", "08"].iter().any(|class| code.starts_with(class)) => {
            CatalogError::Busy(text)
        }
        code if ["XX", "58"].iter().any(|class| code.starts_with(class)) => CatalogError::Corrupt(text),
        // Login refused, no such database, no permission, read-only.
        code if ["28", "3D", "42501", "25006"].iter().any(|class| code.starts_with(class)) => {
            CatalogError::Unusable(text)
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
