//! The catalog in one SQLite file with a write-ahead log: one connection writes, a few read.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul_model::Timestamp;
use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::pool::Pool;
use super::{BUSY_WAIT, format_since, next_format};
use crate::CatalogError;
use crate::sql::{DatabaseError, Transaction};

/// Page cache of the writer. Registering 10^6 files in one transaction gains nothing from more.
const WRITER_CACHE_KIB: i64 = 64 << 10;
/// Page cache of each reader: a page of a list touches few pages.
const READER_CACHE_KIB: i64 = 8 << 10;
/// Pages of the write-ahead log between checkpoints, 32 MiB: each checkpoint flushes the database file, and
/// batches of leases are committed every few milliseconds.
const CHECKPOINT_PAGES: i64 = 8_192;
/// The log is truncated to this after a large transaction.
const WAL_BYTES_MAX: i64 = 64 << 20;
/// Prepared statements cached per connection: more than the fixed statements of this crate.
const CACHED_STATEMENTS_MAX: usize = 256;
/// Virtual machine steps between two checks of a query's deadline: well under a millisecond.
const VM_STEPS_PER_CLOCK_CHECK: i32 = 20_000;

pub(super) struct Sqlite {
    location: Location,
    // Declared before the writer, so that the writer closes last: a reader cannot remove the log.
    pub(super) readers: Pool<Reader>,
    pub(super) writer: Mutex<Connection>,
}

/// Where the database is.
pub(super) enum Location {
    File(PathBuf),
    /// In memory, under a name by which all connections of this process find it.
    #[cfg(feature = "testing")]
    Memory(String),
}

impl Location {
    fn connect(&self, flags: OpenFlags) -> rusqlite::Result<Connection> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        match self {
            Location::File(path) => Connection::open_with_flags(path, flags),
            #[cfg(feature = "testing")]
            Location::Memory(name) => Connection::open_with_flags(
                format!("file:/{name}?vfs=memdb"),
                flags | OpenFlags::SQLITE_OPEN_URI,
            ),
        }
    }

    /// Journal of the writer: the write-ahead log needs a file.
    fn journal_mode(&self) -> &'static str {
        match self {
            Location::File(_) => "wal",
            #[cfg(feature = "testing")]
            Location::Memory(_) => "memory",
        }
    }
}

pub(super) struct Reader {
    connection: Connection,
    clock: Arc<Deadline>,
}

/// When the running query must stop, in milliseconds after `start`.
struct Deadline {
    start: Instant,
    at_ms: AtomicU64,
}

impl Sqlite {
    pub(super) fn open(location: Location, now: Timestamp) -> Result<Sqlite, CatalogError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut writer = location.connect(flags).map_err(DatabaseError::from)?;
        prepare_writer(&writer, location.journal_mode())?;
        migrate(&mut writer, now)?;
        Ok(Sqlite { location, writer: Mutex::new(writer), readers: Pool::default() })
    }

    pub(super) fn write<T, E: From<CatalogError>>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut writer = self.writer.lock();
        let begun = writer.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = Transaction::Sqlite(begun.map_err(failed)?);
        let value = change(&transaction)?;
        if let Transaction::Sqlite(transaction) = transaction {
            transaction.commit().map_err(failed)?;
        }
        Ok(value)
    }

    pub(super) fn read<T>(
        &self,
        limit: Duration,
        query: impl FnOnce(&Transaction<'_>) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let mut reader_connection = self.readers.acquire(|| Reader::open(&self.location).map_err(failed))?;
        reader_connection.with(|reader| {
            reader.clock.set(limit);
            let begun = reader.connection.transaction().map_err(failed)?;
            query(&Transaction::Sqlite(begun))
        })
    }
}

fn failed(error: rusqlite::Error) -> CatalogError {
    DatabaseError::from(error).into()
}

impl Reader {
    fn open(location: &Location) -> rusqlite::Result<Reader> {
        let mut connection = location.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        prepare(&connection)?;
        connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
        let clock = Arc::new(Deadline { start: Instant::now(), at_ms: AtomicU64::new(u64::MAX) });
        let seen = clock.clone();
        connection.progress_handler(VM_STEPS_PER_CLOCK_CHECK, Some(move || seen.passed()))?;
        Ok(Reader { connection, clock })
    }
}

impl Deadline {
    fn set(&self, limit: Duration) {
        let at = self.start.elapsed() + limit;
        self.at_ms.store(u64::try_from(at.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn passed(&self) -> bool {
        self.start.elapsed().as_millis() > u128::from(self.at_ms.load(Ordering::Relaxed))
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_WAIT)?;
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS_MAX);
    // Plans must not depend on bound values: a statement would be parsed again whenever one changes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare_writer(writer: &Connection, journal_mode: &str) -> Result<(), CatalogError> {
    let prepared = || -> rusqlite::Result<String> {
        prepare(writer)?;
        writer.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        let mode =
            writer.query_row(&format!("PRAGMA journal_mode = {journal_mode}"), [], |row| row.get(0))?;
        // An accepted request is on disk before it is answered (promise 3).
        writer.pragma_update(None, "synchronous", "FULL")?;
        writer.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        writer.pragma_update(None, "journal_size_limit", WAL_BYTES_MAX)?;
        writer.pragma_update(None, "temp_store", "MEMORY")?;
        Ok(mode)
    };
    let mode = prepared().map_err(failed)?;
    if mode != journal_mode {
        return Err(CatalogError::Unusable(
            format!("its file system offers no write-ahead log (mode {mode})").into(),
        ));
    }
    Ok(())
}

/// Applies the missing migrations. The number of the present format is SQLite's `user_version`.
fn migrate(writer: &mut Connection, now: Timestamp) -> Result<(), CatalogError> {
    loop {
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let found = transaction.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        let Some((script, next)) = next_format(found)? else { return Ok(()) };
        let change = move || -> rusqlite::Result<()> {
            transaction.execute_batch(script)?;
            let since = "INSERT INTO settings (name, value) VALUES (?1, ?2)";
            transaction.execute(since, format_since(next, now))?;
            transaction.pragma_update(None, "user_version", next)?;
            transaction.commit()
        };
        change().map_err(failed)?;
        tracing::info!(format = next, "the database has a new format");
    }
}
