//! One SQL interface over SQLite and PostgreSQL: each statement is written once and translated by
//! [`dialect`]. Names follow rusqlite, on which most statements run.
//!
//! Only bulk inserts ([`insert`]) differ between the two. So an operation is written once, and the
//! conformance suite runs it on both.

mod blocking_client;
mod dialect;
mod error;
mod insert;
mod session;
mod value;

use std::cell::RefCell;

pub(crate) use dialect::translate_definitions;
pub use error::DatabaseError;
pub(crate) use error::{Optional, Result, damaged};
pub(crate) use insert::Table;
pub(crate) use session::Session;
pub(crate) use value::{AsValue, FromValue, Params, Value, ValueRef, params};

/// A transaction of either database. Whoever began it ends it.
pub(crate) enum Transaction<'c> {
    Sqlite(rusqlite::Transaction<'c>),
    Postgres(&'c RefCell<Session>),
}

/// A statement, prepared once for each connection.
pub(crate) enum Statement<'t> {
    Sqlite(rusqlite::CachedStatement<'t>),
    Postgres(session::Prepared<'t>),
}

impl Transaction<'_> {
    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self, Transaction::Sqlite(_))
    }

    pub(crate) fn prepare_cached(&self, text: &str) -> Result<Statement<'_>> {
        match self {
            Transaction::Sqlite(transaction) => Ok(Statement::Sqlite(transaction.prepare_cached(text)?)),
            Transaction::Postgres(session) => Ok(Statement::Postgres(session::Prepared::new(session, text)?)),
        }
    }

    /// Returns the number of rows changed.
    pub(crate) fn execute(&self, text: &str, parameters: impl Params) -> Result<usize> {
        self.prepare_cached(text)?.execute(parameters)
    }

    /// Runs a statement whose result nobody reads. PostgreSQL pipelines it: it travels with the next query,
    /// which sees its effect, or with the commit. If it fails, the transaction fails.
    pub(crate) fn execute_deferred(&self, text: &str, parameters: impl Params) -> Result<()> {
        self.prepare_cached(text)?.execute_deferred(parameters)
    }

    pub(crate) fn query_row<T>(
        &self,
        text: &str,
        parameters: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        self.prepare_cached(text)?.query_row(parameters, read)
    }
}

impl Statement<'_> {
    /// Returns how many rows it changed.
    pub(crate) fn execute(&mut self, parameters: impl Params) -> Result<usize> {
        parameters.with(|values| match self {
            Statement::Sqlite(statement) => {
                value::bind(statement, values)?;
                Ok(statement.raw_execute()?)
            }
            Statement::Postgres(prepared) => prepared.execute(values),
        })
    }

    /// See [`Transaction::execute_deferred`].
    pub(crate) fn execute_deferred(&mut self, parameters: impl Params) -> Result<()> {
        match self {
            Statement::Sqlite(_) => self.execute(parameters).map(drop),
            Statement::Postgres(prepared) => parameters.with(|values| prepared.execute_deferred(values)),
        }
    }

    pub(crate) fn query(&mut self, parameters: impl Params) -> Result<Rows<'_>> {
        parameters.with(|values| match self {
            Statement::Sqlite(statement) => {
                value::bind(statement, values)?;
                Ok(Rows::Sqlite(statement.raw_query()))
            }
            Statement::Postgres(prepared) => {
                Ok(Rows::Postgres { coming: prepared.query(values)?.into_iter(), here: None })
            }
        })
    }

    /// The first row; [`Optional::optional`] turns a missing row into `None`.
    pub(crate) fn query_row<T>(
        &mut self,
        parameters: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut rows = self.query(parameters)?;
        read(&rows.next()?.ok_or(DatabaseError::NoRow)?)
    }

    pub(crate) fn query_map<T, F: FnMut(&Row<'_>) -> Result<T>>(
        &mut self,
        parameters: impl Params,
        read: F,
    ) -> Result<MappedRows<'_, F>> {
        Ok(MappedRows { rows: self.query(parameters)?, read })
    }

    pub(crate) fn exists(&mut self, parameters: impl Params) -> Result<bool> {
        Ok(self.query(parameters)?.next()?.is_some())
    }
}

pub(crate) enum Rows<'s> {
    Sqlite(rusqlite::Rows<'s>),
    Postgres { coming: std::vec::IntoIter<tokio_postgres::Row>, here: Option<tokio_postgres::Row> },
}

impl Rows<'_> {
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>> {
        Ok(match self {
            Rows::Sqlite(rows) => rows.next()?.map(Row::Sqlite),
            Rows::Postgres { coming, here } => {
                *here = coming.next();
                here.as_ref().map(Row::Postgres)
            }
        })
    }
}

pub(crate) struct MappedRows<'s, F> {
    rows: Rows<'s>,
    read: F,
}

impl<T, F: FnMut(&Row<'_>) -> Result<T>> Iterator for MappedRows<'_, F> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.rows.next() {
            Ok(row) => Some((self.read)(&row?)),
            Err(error) => Some(Err(error)),
        }
    }
}

/// One row, while it is the present one.
pub(crate) enum Row<'r> {
    Sqlite(&'r rusqlite::Row<'r>),
    Postgres(&'r tokio_postgres::Row),
}

impl Row<'_> {
    /// The value of a column, counted from 0.
    #[inline]
    pub(crate) fn value(&self, at: usize) -> Result<ValueRef<'_>> {
        match self {
            Row::Sqlite(row) => Ok(row.get_ref(at)?.into()),
            Row::Postgres(row) => {
                row.try_get::<_, ValueRef<'_>>(at).map_err(|error| error::damaged(at, error))
            }
        }
    }

    #[inline]
    pub(crate) fn get<T: FromValue>(&self, at: usize) -> Result<T> {
        let value = self.value(at)?;
        T::from_value(value).ok_or_else(|| error::damaged(at, format!("{value:?} has the wrong type")))
    }

    #[inline]
    pub(crate) fn is_null(&self, at: usize) -> Result<bool> {
        Ok(matches!(self.value(at)?, ValueRef::Null))
    }

    #[inline]
    pub(crate) fn text(&self, at: usize) -> Result<&str> {
        match self.value(at)? {
            ValueRef::Text(text) => Ok(text),
            other => Err(error::damaged(at, format!("{other:?} is not text"))),
        }
    }

    pub(crate) fn bytes(&self, at: usize) -> Result<&[u8]> {
        match self.value(at)? {
            ValueRef::Bytes(bytes) => Ok(bytes),
            other => Err(error::damaged(at, format!("{other:?} are not bytes"))),
        }
    }
}
