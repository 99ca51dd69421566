//! What a database answers instead of what was asked for.

use std::fmt::Display;

pub(crate) type Result<T> = std::result::Result<T, DatabaseError>;

/// What went wrong below a statement.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("there is no row")]
    NoRow,
    /// A column that does not read back as what was written there.
    #[error("column {column}: {why}")]
    Damaged { column: usize, why: String },
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("{}", driver_message(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error("a value does not fit its column: {0}")]
    ValueDoesNotFit(String),
    #[error("no connection to the database can be carried: {0}")]
    Runtime(std::io::Error),
    #[error("a statement failed before, and what was written with it is taken back")]
    TransactionAborted,
}

pub(crate) fn damaged(column: usize, why: impl Display) -> DatabaseError {
    DatabaseError::Damaged { column, why: why.to_string() }
}

/// The driver's own text of a refusal leaves out what was refused.
fn driver_message(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(refused) => format!("{} (SQLSTATE {})", refused.message(), refused.code().code()),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// A row that may be absent.
pub(crate) trait Optional<T> {
    fn optional(self) -> Result<Option<T>>;
}

impl<T> Optional<T> for Result<T> {
    fn optional(self) -> Result<Option<T>> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(DatabaseError::NoRow) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
