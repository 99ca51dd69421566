//! Errors of either database below a statement.

use std::fmt::Display;

pub(crate) type Result<T> = std::result::Result<T, DatabaseError>;

/// An error of a statement, a row or a connection.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("there is no row")]
    NoRow,
    /// A column holds something that this program does not write there.
    #[error("column {column}: {why}")]
    Damaged { column: usize, why: String },
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("{}", driver_message(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error("a value does not fit its column: {0}")]
    ValueDoesNotFit(String),
    #[error("the runtime of a database connection cannot start: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("an earlier statement failed, and the transaction was rolled back")]
    TransactionAborted,
}

pub(crate) fn damaged(column: usize, why: impl Display) -> DatabaseError {
    DatabaseError::Damaged { column, why: why.to_string() }
}

/// The driver's own text leaves out what the server said.
fn driver_message(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(refused) => format!("{} (SQLSTATE {})", refused.message(), refused.code().code()),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// Turns the error of a missing row into `None`.
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
