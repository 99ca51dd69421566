//! What can go wrong with the database, and with a registration.

use longhaul_model::{Fault, FaultCode};

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("the disk under the database is full")]
    Full(#[source] rusqlite::Error),
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
    /// A statement of ours is wrong.
    #[error("a statement failed: {0}")]
    Statement(#[source] rusqlite::Error),
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

impl From<rusqlite::Error> for CatalogError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ffi::ErrorCode as Code;
        match error.sqlite_error_code() {
            Some(Code::DiskFull) => CatalogError::Full(error),
            Some(Code::DatabaseCorrupt | Code::NotADatabase) => CatalogError::Corrupt(error.to_string()),
            Some(Code::DatabaseBusy | Code::DatabaseLocked | Code::FileLockingProtocolFailed) => {
                CatalogError::Busy(error.to_string())
            }
            Some(Code::OperationInterrupted) => {
                CatalogError::Busy("a query took too long and was stopped".into())
            }
            Some(
                Code::SystemIoFailure
                | Code::CannotOpen
                | Code::ReadOnly
                | Code::PermissionDenied
                | Code::OutOfMemory,
            ) => CatalogError::Unusable(error.to_string()),
            _ => match error {
                // A column that does not read back as what was written there.
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..) => CatalogError::Corrupt(error.to_string()),
                error => CatalogError::Statement(error),
            },
        }
    }
}

impl From<CatalogError> for Fault {
    fn from(error: CatalogError) -> Self {
        let text = error.to_string();
        match error {
            CatalogError::Refused(fault) => fault,
            CatalogError::Busy(_) => Fault::new(FaultCode::Busy, text),
            CatalogError::Full(_)
            | CatalogError::Corrupt(_)
            | CatalogError::Unusable(_)
            | CatalogError::Newer { .. } => Fault::new(FaultCode::StateDirectory, text),
            CatalogError::Statement(_) => Fault::new(FaultCode::Internal, text),
        }
    }
}

/// What is wrong with a line of a manifest, or with reading it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct ManifestError {
    /// From 1.
    pub line: u64,
    pub fault: Fault,
}

/// Why a registration was refused as a whole.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl From<rusqlite::Error> for AddError {
    fn from(error: rusqlite::Error) -> Self {
        AddError::Catalog(error.into())
    }
}

impl From<AddError> for Fault {
    /// Keeps the code of what is wrong with the line; its number is in the detail.
    fn from(error: AddError) -> Self {
        match error {
            AddError::Catalog(error) => error.into(),
            AddError::Manifest(ManifestError { line, fault }) => Fault {
                detail: Fault::new(fault.code, format!("line {line}: {}", fault.detail)).detail,
                ..fault
            },
        }
    }
}
