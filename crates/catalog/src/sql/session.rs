//! A PostgreSQL session with statement pipelining, and the encoding of values.
//!
//! Statements whose result nobody reads are deferred: they are pipelined with the next query, or with the
//! commit, in one round trip (decision 0022). The server answers in order, so a query sees the effect of what
//! was deferred before it, and a deferred statement that fails aborts its transaction like any other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::SinkExt;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Config, SimpleQueryMessage, Socket, Statement};

use super::blocking_client::{BlockingClient, DeferredStatement};
use super::{AsValue, DatabaseError, Result, Table, Value, ValueRef, damaged, dialect};

/// Prepared statements of one connection. Queries that are composed have many texts; the cache starts over
/// when it is full.
const PREPARED_MAX: usize = 512;
/// Deferred statements that wait for a query; at this number they are sent alone.
const DEFERRED_STATEMENTS_MAX: usize = 256;
/// Ids reserved from a table's sequence at once, at least.
const RESERVED_IDS_MIN: usize = 1_000;

/// One connection, with at most one open transaction.
pub(crate) struct Session {
    /// Some until the drop.
    client: Option<BlockingClient>,
    /// Prepared statements by their untranslated text.
    prepared: HashMap<String, Statement>,
    /// Statements of the open transaction that were not sent yet.
    deferred: Vec<DeferredStatement>,
    /// Reserved and unused ids of each table. Only the connection that writes reserves any.
    reserved_ids: HashMap<&'static str, Range<i64>>,
    /// A statement failed: the server rejects the rest of the transaction, and would roll back at the commit.
    failed: bool,
    /// A transaction was begun and not ended.
    open: bool,
}

/// The client's runtime must not be dropped inside another runtime, so it ends on a thread of its own.
impl Drop for Session {
    fn drop(&mut self) {
        let Some(link) = self.client.take() else { return };
        let _ = std::thread::spawn(move || link.close()).join();
    }
}

impl Session {
    /// Connects; may be called inside a runtime.
    pub(crate) fn open<T>(config: &Config, tls: T) -> Result<Session>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        Ok(Session {
            client: Some(BlockingClient::open(config, tls)?),
            prepared: HashMap::new(),
            deferred: Vec::new(),
            reserved_ids: HashMap::new(),
            failed: false,
            open: false,
        })
    }

    fn client(&self) -> &BlockingClient {
        match &self.client {
            Some(link) => link,
            None => unreachable!("only the drop takes it"),
        }
    }

    /// Whether the server, or the network, has ended it.
    pub(crate) fn is_closed(&self) -> bool {
        self.client().is_closed()
    }

    /// Begins a writing transaction. Returns its number, by which the server can later say whether it was
    /// committed.
    pub(crate) fn begin_write(&mut self) -> Result<String> {
        self.begin()?;
        self.query_text("BEGIN; SELECT pg_current_xact_id()")
    }

    /// Begins a read-only transaction on one snapshot, with a time limit for each statement.
    pub(crate) fn begin_read(&mut self, limit: Duration) -> Result<()> {
        self.begin()?;
        let limit = limit.as_millis().clamp(1, i32::MAX as u128);
        self.batch_execute(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {limit}"
        ))
    }

    /// Rolls back first what a panic left open.
    fn begin(&mut self) -> Result<()> {
        if self.open {
            self.roll_back()?;
        }
        (self.open, self.failed) = (true, false);
        Ok(())
    }

    /// Commits, or fails with nothing written if any statement of the transaction failed.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if self.failed {
            self.roll_back()?;
            return Err(DatabaseError::TransactionAborted);
        }
        self.open = false;
        // After a deferred statement that failed the server rolls back, and only that statement reports it.
        let orders = std::mem::take(&mut self.deferred);
        self.client().pipeline(&orders, async |client| Ok(client.batch_execute("COMMIT").await?))
    }

    pub(crate) fn roll_back(&mut self) -> Result<()> {
        self.open = false;
        self.deferred.clear();
        self.batch_execute("ROLLBACK")
    }

    /// Runs statements in PostgreSQL's own SQL, without parameters or rows.
    pub(crate) fn batch_execute(&mut self, text: &str) -> Result<()> {
        Ok(self.client().block_on(async |client| client.batch_execute(text).await)?)
    }

    /// Runs such statements and returns the first column of the first row.
    pub(crate) fn query_text(&mut self, text: &str) -> Result<String> {
        let answers = self.client().block_on(async |client| client.simple_query(text).await)?;
        let row = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        row.map(str::to_owned).ok_or(DatabaseError::NoRow)
    }

    fn prepare(&mut self, text: &str) -> Result<Statement> {
        if let Some(known) = self.prepared.get(text) {
            return Ok(known.clone());
        }
        let theirs = dialect::translate_statement(text);
        let statement = self.client().block_on(async |client| client.prepare(&theirs).await);
        let statement = self.note_failure(statement.map_err(DatabaseError::from))?;
        if self.prepared.len() >= PREPARED_MAX {
            self.prepared.clear();
        }
        self.prepared.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    /// The column types of a query, which is prepared but not run.
    pub(super) fn column_types(&mut self, text: &str) -> Result<Vec<Type>> {
        let statement = self.prepare(text)?;
        Ok(statement.columns().iter().map(|column| column.type_().clone()).collect())
    }

    /// `COPY`s chunks into a table until one is empty. If it fails, so does the transaction.
    pub(super) fn copy_in(&mut self, text: &str, mut next: impl FnMut() -> Result<BytesMut>) -> Result<()> {
        let statement = self.prepare(text)?;
        self.run_after_deferred(async |client| {
            let mut into = pin!(client.copy_in(&statement).await?);
            loop {
                let piece = next()?;
                if piece.is_empty() {
                    into.finish().await?;
                    return Ok(());
                }
                into.feed(piece).await?;
            }
        })
    }

    /// Reserves consecutive ids of a table. They come from its sequence, many at once, so that inserts need
    /// not return them. Ids that stay unused are lost.
    pub(super) fn reserve_ids(&mut self, table: &Table, count: usize) -> Result<Range<i64>> {
        let wanted = i64::try_from(count)
            .map_err(|_| DatabaseError::ValueDoesNotFit(format!("{count} rows at once")))?;
        let left = self.reserved_ids.get(table.name).cloned().unwrap_or(0..0);
        let left = if left.end - left.start < wanted {
            let more = wanted.max(RESERVED_IDS_MIN as i64);
            let sequence = format!("pg_get_serial_sequence('{}', '{}')", table.name, table.id_column);
            // The sequence now stands at the last reserved id.
            let last =
                self.query_text(&format!("SELECT setval({sequence}, nextval({sequence}) + {more} - 1)"));
            let last: i64 = self.note_failure(last)?.parse().map_err(|error| damaged(0, error))?;
            last - more + 1..last + 1
        } else {
            left
        };
        let taken = left.start..left.start + wanted;
        self.reserved_ids.insert(table.name, taken.end..left.end);
        Ok(taken)
    }

    /// Defers a statement until the next query or the commit.
    fn defer(&mut self, statement: &Statement, values: &[ValueRef<'_>]) -> Result<()> {
        self.deferred.push((statement.clone(), values.iter().map(|value| Value::from(*value)).collect()));
        if self.deferred.len() < DEFERRED_STATEMENTS_MAX {
            return Ok(());
        }
        self.run_after_deferred(async |_| Ok(()))
    }

    fn run_after_deferred<T>(
        &mut self,
        ask: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T>,
    ) -> Result<T> {
        let orders = std::mem::take(&mut self.deferred);
        let outcome = self.client().pipeline(&orders, ask);
        self.note_failure(outcome)
    }

    fn note_failure<T>(&mut self, outcome: Result<T>) -> Result<T> {
        self.failed |= outcome.is_err();
        outcome
    }
}

pub(crate) struct Prepared<'t> {
    session: &'t RefCell<Session>,
    statement: Statement,
}

impl<'t> Prepared<'t> {
    pub(super) fn new(session: &'t RefCell<Session>, text: &str) -> Result<Prepared<'t>> {
        Ok(Prepared { statement: session.borrow_mut().prepare(text)?, session })
    }

    /// See [`super::Transaction::execute_deferred`].
    pub(super) fn execute_deferred(&self, values: &[ValueRef<'_>]) -> Result<()> {
        self.check_count(values)?;
        self.session.borrow_mut().defer(&self.statement, values)
    }

    pub(super) fn execute(&self, values: &[ValueRef<'_>]) -> Result<usize> {
        let values = self.parameters(values)?;
        let mut session = self.session.borrow_mut();
        let changed = session
            .run_after_deferred(async |client| Ok(client.execute(&self.statement, &values).await?))?;
        Ok(changed as usize)
    }

    pub(super) fn query(&self, values: &[ValueRef<'_>]) -> Result<Vec<tokio_postgres::Row>> {
        let values = self.parameters(values)?;
        let mut session = self.session.borrow_mut();
        session.run_after_deferred(async |client| Ok(client.query(&self.statement, &values).await?))
    }

    /// The driver panics if their number is not that of the statement's parameters.
    fn check_count(&self, values: &[ValueRef<'_>]) -> Result<()> {
        let expected = self.statement.params().len();
        match expected == values.len() {
            true => Ok(()),
            false => Err(rusqlite::Error::InvalidParameterCount(values.len(), expected).into()),
        }
    }

    fn parameters<'v>(&self, values: &'v [ValueRef<'v>]) -> Result<Vec<&'v (dyn ToSql + Sync)>> {
        self.check_count(values)?;
        Ok(values.iter().map(|value| value as &(dyn ToSql + Sync)).collect())
    }
}

/// Encodes as its [`ValueRef`].
impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Failure> {
        self.as_value().to_sql(kind, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

type Failure = Box<dyn Error + Sync + Send>;

impl ToSql for ValueRef<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Failure> {
        match *self {
            ValueRef::Null | ValueRef::Unsupported => Ok(IsNull::Yes),
            ValueRef::Number(number) => match *kind {
                Type::INT8 => number.to_sql(kind, out),
                Type::INT4 => i32::try_from(number)?.to_sql(kind, out),
                Type::INT2 => i16::try_from(number)?.to_sql(kind, out),
                Type::BOOL => (number != 0).to_sql(kind, out),
                _ => Err(format!("a number where {kind} is expected").into()),
            },
            // NUL is the one character that PostgreSQL's text cannot hold. It can only come from answers of
            // storages.
            ValueRef::Text(text) if text.contains('\0') => text.replace('\0', "\u{fffd}").to_sql(kind, out),
            ValueRef::Text(text) if is_text(kind) => text.to_sql(kind, out),
            ValueRef::Text(_) => Err(format!("a text where {kind} is expected").into()),
            ValueRef::Bytes(bytes) if *kind == Type::BYTEA => bytes.to_sql(kind, out),
            ValueRef::Bytes(_) => Err(format!("bytes where {kind} is expected").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'v> FromSql<'v> for ValueRef<'v> {
    fn from_sql(kind: &Type, raw: &'v [u8]) -> std::result::Result<Self, Failure> {
        Ok(match *kind {
            Type::INT8 => ValueRef::Number(i64::from_sql(kind, raw)?),
            Type::INT4 => ValueRef::Number(i32::from_sql(kind, raw)?.into()),
            Type::INT2 => ValueRef::Number(i16::from_sql(kind, raw)?.into()),
            Type::BOOL => ValueRef::Number(bool::from_sql(kind, raw)?.into()),
            Type::NUMERIC => {
                ValueRef::Number(whole_number(raw).ok_or("a number that is not whole, or too large")?)
            }
            Type::BYTEA => ValueRef::Bytes(raw),
            _ if is_text(kind) => ValueRef::Text(std::str::from_utf8(raw)?),
            _ => return Err(format!("a column of {kind}").into()),
        })
    }

    fn from_sql_null(_: &Type) -> std::result::Result<Self, Failure> {
        Ok(ValueRef::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn is_text(kind: &Type) -> bool {
    matches!(*kind, Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN)
}

/// Decodes a `numeric` in binary form that is a whole number, as sums of integers are. Its fields: number of
/// digits to the base 10,000, power of the first digit, sign, decimal places; then the digits.
fn whole_number(raw: &[u8]) -> Option<i64> {
    let part = |at: usize| Some(i16::from_be_bytes(raw.get(2 * at..2 * at + 2)?.try_into().ok()?));
    let (digits, first, sign) = (part(0)?, part(1)?, part(2)?);
    let mut value: i64 = 0;
    for power in 0..=first.max(-1) {
        let digit = if power < digits { part(4 + usize::try_from(power).ok()?)? } else { 0 };
        value = value.checked_mul(10_000)?.checked_add(i64::from(digit))?;
    }
    let fraction = digits > first + 1;
    match sign {
        0 if !fraction => Some(value),
        0x4000 if !fraction => Some(-value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_decoded() {
        let number = |parts: &[i16]| {
            whole_number(&parts.iter().flat_map(|part| part.to_be_bytes()).collect::<Vec<_>>())
        };
        assert_eq!(number(&[0, 0, 0, 0]), Some(0));
        assert_eq!(number(&[1, 0, 0, 0, 42]), Some(42));
        assert_eq!(number(&[1, 0, 0x4000, 0, 42]), Some(-42));
        assert_eq!(number(&[2, 1, 0, 0, 3, 17]), Some(30_017));
        assert_eq!(number(&[1, 2, 0, 0, 5]), Some(500_000_000), "zeros at its end are left out");
        assert_eq!(number(&[2, 0, 0, 1, 1, 5_000]), None, "a fraction");
        assert_eq!(number(&[1, 5, 0, 0, 9_999]), None, "too large");
        assert_eq!(whole_number(&[0, 1]), None);
    }
}
