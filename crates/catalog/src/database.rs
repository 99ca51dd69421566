//! The handle: one writer, a bounded pool of readers, migrations.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_model::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use crate::CatalogError;

/// Rows of one page of any list.
pub const PAGE_ROWS_MAX: usize = 1_000;
/// Connections that read at the same time; more callers than this wait for each other.
const READERS_MAX: usize = 4;
/// How long a caller waits for a connection, and a connection for a lock of another process.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// A query of a person or a program; every one is a page of an indexed list.
const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// What scans on purpose: `check`, and the start of a service.
pub(crate) const SCAN_TIME_MAX: Duration = Duration::from_secs(120);
/// Page cache of the writer; 10^6 files in one transaction need no more to stay fast.
const WRITER_CACHE_KIB: i64 = 64 << 10;
const READER_CACHE_KIB: i64 = 8 << 10;
/// 32 MiB of WAL between checkpoints: each one flushes the database file, batches of leases come every few ms.
const CHECKPOINT_PAGES: i64 = 8_192;
const WAL_KEPT_BYTES: i64 = 64 << 20;
const STATEMENTS_CACHED: usize = 256;
/// Virtual machine steps between two looks at the clock, well under a millisecond.
const STEPS_PER_LOOK: i32 = 20_000;

/// Each brings the database from its place in this list to the next format. Never changed once released.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
];

/// A handle on the catalog; clones share it.
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    // Before the writer, so that it is the last one to close: a reader could not clear the log away.
    readers: Mutex<Readers>,
    returned: Condvar,
    writer: Mutex<Connection>,
    job_news: AtomicBool,
}

struct Readers {
    idle: Vec<Reader>,
    open: usize,
}

struct Reader {
    connection: Connection,
    clock: Arc<Deadline>,
}

/// When the running query has to stop, in milliseconds after `start`.
struct Deadline {
    start: Instant,
    at_ms: AtomicU64,
}

impl Catalog {
    /// Opens or creates the database file at `path` and brings it to the present format.
    /// The caller keeps other processes away from it.
    pub fn open(path: &Path, now: Timestamp) -> Result<Catalog, CatalogError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut writer = Connection::open_with_flags(path, flags)?;
        prepare_writer(&writer)?;
        migrate(&mut writer, now)?;
        let readers = Mutex::new(Readers { idle: Vec::new(), open: 0 });
        let inner = Inner {
            path: path.to_owned(),
            writer: Mutex::new(writer),
            readers,
            returned: Condvar::new(),
            job_news: AtomicBool::new(false),
        };
        Ok(Catalog { inner: Arc::new(inner) })
    }

    /// Whether changes of files of jobs are kept to be told.
    pub(crate) fn keeps_job_news(&self) -> &AtomicBool {
        &self.inner.job_news
    }

    /// Runs `change` in one transaction that is on disk when this returns, or leaves nothing behind.
    pub(crate) fn write<T, E: From<CatalogError>>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut writer = locked(&self.inner.writer);
        let transaction =
            writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(CatalogError::from)?;
        let value = change(&transaction)?;
        transaction.commit().map_err(CatalogError::from)?;
        Ok(value)
    }

    /// Runs `query` on one consistent state.
    pub(crate) fn read<T>(
        &self,
        query: impl FnOnce(&Transaction<'_>) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        self.read_within(READ_TIME_MAX, query)
    }

    pub(crate) fn read_within<T>(
        &self,
        limit: Duration,
        query: impl FnOnce(&Transaction<'_>) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let mut borrowed = Borrowed { reader: Some(self.inner.borrow_reader()?), inner: &self.inner };
        match &mut borrowed.reader {
            Some(reader) => reader.run(limit, query),
            None => unreachable!("it was put there two lines above"),
        }
    }
}

/// Gives its reader back, also when a query panics.
struct Borrowed<'a> {
    inner: &'a Inner,
    reader: Option<Reader>,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        locked(&self.inner.readers).idle.extend(self.reader.take());
        self.inner.returned.notify_one();
    }
}

impl Inner {
    fn borrow_reader(&self) -> Result<Reader, CatalogError> {
        let until = Instant::now() + BUSY_WAIT;
        let mut readers = locked(&self.readers);
        loop {
            if let Some(reader) = readers.idle.pop() {
                return Ok(reader);
            }
            if readers.open < READERS_MAX {
                let reader = Reader::open(&self.path)?;
                readers.open += 1;
                return Ok(reader);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CatalogError::Busy(format!("{READERS_MAX} queries run already")));
            }
            readers = self.returned.wait_timeout(readers, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Reader {
    fn open(path: &Path) -> Result<Reader, CatalogError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        prepare(&connection)?;
        connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
        let clock = Arc::new(Deadline { start: Instant::now(), at_ms: AtomicU64::new(u64::MAX) });
        let seen = clock.clone();
        connection.progress_handler(STEPS_PER_LOOK, Some(move || seen.passed()))?;
        Ok(Reader { connection, clock })
    }

    fn run<T>(
        &mut self,
        limit: Duration,
        query: impl FnOnce(&Transaction<'_>) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        self.clock.set(limit);
        let transaction = self.connection.transaction()?;
        query(&transaction)
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

/// A panic while a lock was held rolled its transaction back; what is behind the lock is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepare(connection: &Connection) -> Result<(), CatalogError> {
    connection.busy_timeout(BUSY_WAIT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // Plans must not depend on bound values: a statement would be parsed again whenever one changes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare_writer(writer: &Connection) -> Result<(), CatalogError> {
    prepare(writer)?;
    writer.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    let mode: String = writer.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(CatalogError::Unusable(format!(
            "its file system offers no write-ahead log (mode {mode})"
        )));
    }
    // An accepted request is on disk before it is answered (promise 3).
    writer.pragma_update(None, "synchronous", "FULL")?;
    writer.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    writer.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES)?;
    writer.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(())
}

fn migrate(writer: &mut Connection, now: Timestamp) -> Result<(), CatalogError> {
    let known = MIGRATIONS.len() as u32;
    loop {
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: u32 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if found > known {
            return Err(CatalogError::Newer { found, known });
        }
        let Some(script) = MIGRATIONS.get(found as usize) else { return Ok(()) };
        transaction.execute_batch(script)?;
        transaction.execute(
            "INSERT INTO settings (name, value) VALUES (?1, ?2)",
            (format!("format-{}-since", found + 1), now.to_string()),
        )?;
        transaction.pragma_update(None, "user_version", found + 1)?;
        transaction.commit()?;
        tracing::info!(format = found + 1, "the database has a new format");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalog.db");
        (directory, path)
    }

    #[test]
    fn a_newer_format_is_refused_with_its_number_and_left_alone() {
        let (_directory, path) = fresh();
        drop(Catalog::open(&path, Timestamp::ZERO).unwrap());
        let raw = Connection::open(&path).unwrap();
        raw.pragma_update(None, "user_version", 77).unwrap();
        drop(raw);
        let text = Catalog::open(&path, Timestamp::ZERO).err().unwrap().to_string();
        assert!(text.contains("77") && text.contains(&MIGRATIONS.len().to_string()), "{text}");
    }

    #[test]
    fn what_is_no_database_is_called_damaged() {
        let (_directory, path) = fresh();
        std::fs::write(&path, vec![b'x'; 8_192]).unwrap();
        let error = Catalog::open(&path, Timestamp::ZERO).err().unwrap();
        assert!(matches!(error, CatalogError::Corrupt(_)), "{error}");
        let fault = longhaul_model::Fault::from(error);
        assert_eq!(fault.code, longhaul_model::FaultCode::StateDirectory);
    }

    #[test]
    fn an_absent_directory_is_unusable() {
        let (directory, _) = fresh();
        let error =
            Catalog::open(&directory.path().join("absent/catalog.db"), Timestamp::ZERO).err().unwrap();
        assert!(matches!(error, CatalogError::Unusable(_)), "{error}");
    }

    #[test]
    fn a_full_disk_says_so_and_keeps_what_was_there() {
        let (_directory, path) = fresh();
        let catalog = Catalog::open(&path, Timestamp::ZERO).unwrap();
        catalog.set_setting("before", "kept").unwrap();
        // SQLite answers SQLITE_FULL at a page limit exactly as it does when the disk is full.
        locked(&catalog.inner.writer).execute_batch("PRAGMA max_page_count = 1").unwrap();
        let error = catalog.set_setting("large", &"x".repeat(1 << 20)).unwrap_err();
        assert!(matches!(error, CatalogError::Full(_)), "{error}");
        assert_eq!(longhaul_model::Fault::from(error).code, longhaul_model::FaultCode::StateDirectory);
        assert_eq!(catalog.setting("before").unwrap().as_deref(), Some("kept"));
        locked(&catalog.inner.writer).execute_batch("PRAGMA max_page_count = 1000000").unwrap();
        catalog.set_setting("large", &"x".repeat(1 << 20)).unwrap();
    }

    #[test]
    fn a_query_without_end_is_stopped() {
        let (_directory, path) = fresh();
        let catalog = Catalog::open(&path, Timestamp::ZERO).unwrap();
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
        let result = catalog
            .read_within(Duration::ZERO, |tx| Ok(tx.query_row(endless, [], |row| row.get::<_, i64>(0))?));
        assert!(matches!(result, Err(CatalogError::Busy(_))));
        // The connection serves the next caller.
        assert_eq!(catalog.setting("absent").unwrap(), None);
    }

    #[test]
    fn readers_are_bounded_and_wait_for_each_other() {
        let (_directory, path) = fresh();
        let catalog = Catalog::open(&path, Timestamp::ZERO).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..READERS_MAX * 3 {
                scope.spawn(|| (0..50).for_each(|_| assert_eq!(catalog.setting("absent").unwrap(), None)));
            }
        });
        let readers = locked(&catalog.inner.readers);
        assert!(readers.open <= READERS_MAX && readers.idle.len() == readers.open);
    }
}
