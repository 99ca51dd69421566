//! The handle on the database: one writer, a bounded pool of readers, and schema migrations, over SQLite or
//! PostgreSQL.

#[cfg(feature = "testing")]
mod memory;
mod pool;
mod postgres;
mod postgres_config;
mod sqlite;
mod tls;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use longhaul_model::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use self::postgres::Postgres;
use self::sqlite::{Location, Sqlite};
use crate::read_cache::ReadCache;
use crate::row_ids::RowIds;
use crate::sql::Transaction;
use crate::{ApiTokenRow, CatalogError, DelegationRow};

#[cfg(feature = "testing")]
pub use memory::MemoryDatabase;
pub use postgres_config::{PostgresConfig, PostgresConfigError};

/// Rows of one page of any list. Bounds what one request reads and returns.
pub const PAGE_ROWS_MAX: usize = 1_000;
/// How long a caller waits for a connection, and a connection for a lock of another process. Five seconds
/// outlast any checkpoint and stay below the time limits of callers.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// Time limit of a query for a person or a program. Each reads one page of an indexed list, so a slower one
/// is stuck.
const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit of queries that scan on purpose: `check`, and the start of a service.
pub(crate) const SCAN_TIME_MAX: Duration = Duration::from_secs(120);

/// Schema migrations: each brings the database from the format of its index to the next one. Never changed
/// once released.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001.sql"),
    include_str!("../migrations/0002.sql"),
    include_str!("../migrations/0003.sql"),
    include_str!("../migrations/0004.sql"),
    include_str!("../migrations/0005.sql"),
    include_str!("../migrations/0006.sql"),
    include_str!("../migrations/0007.sql"),
    include_str!("../migrations/0008.sql"),
    include_str!("../migrations/0009.sql"),
    include_str!("../migrations/0010.sql"),
    include_str!("../migrations/0011.sql"),
    include_str!("../migrations/0012.sql"),
    include_str!("../migrations/0013.sql"),
    include_str!("../migrations/0014.sql"),
    include_str!("../migrations/0015.sql"),
    include_str!("../migrations/0016.sql"),
    include_str!("../migrations/0017.sql"),
    include_str!("../migrations/0018.sql"),
    include_str!("../migrations/0019.sql"),
    include_str!("../migrations/0020.sql"),
    include_str!("../migrations/0021.sql"),
    include_str!("../migrations/0022.sql"),
    include_str!("../migrations/0023.sql"),
    include_str!("../migrations/0024.sql"),
    include_str!("../migrations/0025.sql"),
    include_str!("../migrations/0026.sql"),
];

/// A handle on the catalog; clones share it.
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    job_events_enabled: AtomicBool,
    row_ids: Mutex<RowIds>,
    /// Read for each request of a program.
    api_tokens: ReadCache<[u8; 32], ApiTokenRow>,
    delegations: ReadCache<String, DelegationRow>,
}

enum Database {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Catalog {
    /// Opens or creates the database file at `path` and brings it to the present format.
    /// The caller keeps other processes away from it.
    pub fn open(path: &Path, now: Timestamp) -> Result<Catalog, CatalogError> {
        Ok(Catalog::over(Database::Sqlite(Sqlite::open(Location::File(path.to_owned()), now)?)))
    }

    /// Connects to a database of PostgreSQL and brings it to the present format. As long as the handle lives,
    /// no other can be made on the same database.
    pub fn connect(place: &PostgresConfig, now: Timestamp) -> Result<Catalog, CatalogError> {
        Ok(Catalog::over(Database::Postgres(Postgres::open(place, now)?)))
    }

    #[cfg(feature = "testing")]
    fn open_memory(name: &str, now: Timestamp) -> Result<Catalog, CatalogError> {
        Ok(Catalog::over(Database::Sqlite(Sqlite::open(Location::Memory(name.to_owned()), now)?)))
    }

    fn over(database: Database) -> Catalog {
        let (job_news, row_ids) = (AtomicBool::new(false), Mutex::default());
        let (api_tokens, delegations) = (ReadCache::default(), ReadCache::default());
        Catalog {
            inner: Arc::new(Inner {
                database,
                job_events_enabled: job_news,
                row_ids,
                api_tokens,
                delegations,
            }),
        }
    }

    /// Whether changes of job files are recorded for the outbox.
    pub(crate) fn job_events_enabled(&self) -> &AtomicBool {
        &self.inner.job_events_enabled
    }

    /// Ids of end points and queues. Hold the lock over the transaction that makes more of them.
    pub(crate) fn row_ids(&self) -> MutexGuard<'_, RowIds> {
        self.inner.row_ids.lock()
    }

    pub(crate) fn api_token_cache(&self) -> &ReadCache<[u8; 32], ApiTokenRow> {
        &self.inner.api_tokens
    }

    pub(crate) fn delegation_cache(&self) -> &ReadCache<String, DelegationRow> {
        &self.inner.delegations
    }

    /// Runs `change` in one transaction that is on disk when this returns, or leaves nothing behind.
    pub(crate) fn write<T, E: From<CatalogError>>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.inner.database {
            Database::Sqlite(database) => database.write(change),
            Database::Postgres(database) => database.write(change),
        }
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
        match &self.inner.database {
            Database::Sqlite(database) => database.read(limit, query),
            Database::Postgres(database) => database.read(limit, query),
        }
    }
}

/// The migration that follows format `found`, and the number of the format that it makes.
fn next_format(found: u32) -> Result<Option<(&'static str, u32)>, CatalogError> {
    let known = MIGRATIONS.len() as u32;
    if found > known {
        return Err(CatalogError::Newer { found, known });
    }
    Ok(MIGRATIONS.get(found as usize).map(|script| (*script, found + 1)))
}

/// Name and value of the setting that says since when a database has a format.
fn format_since(format: u32, now: Timestamp) -> (String, String) {
    (format!("format-{format}-since"), now.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rusqlite::Connection;

    use super::pool::READERS_MAX;
    use super::*;

    fn fresh() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalog.db");
        (directory, path)
    }

    fn writer(catalog: &Catalog) -> MutexGuard<'_, Connection> {
        let Database::Sqlite(database) = &catalog.inner.database else { unreachable!() };
        database.writer.lock()
    }

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let (_directory, path) = fresh();
        drop(Catalog::open(&path, Timestamp::ZERO).unwrap());
        let raw = Connection::open(&path).unwrap();
        raw.pragma_update(None, "user_version", 77).unwrap();
        drop(raw);
        let text = Catalog::open(&path, Timestamp::ZERO).err().unwrap().to_string();
        assert!(text.contains("77") && text.contains(&MIGRATIONS.len().to_string()), "{text}");
    }

    #[test]
    fn a_file_that_is_no_database_is_reported_as_damaged() {
        let (_directory, path) = fresh();
        std::fs::write(&path, vec![b'x'; 8_192]).unwrap();
        let error = Catalog::open(&path, Timestamp::ZERO).err().unwrap();
        assert!(matches!(error, CatalogError::Corrupt(_)), "{error}");
        let fault = longhaul_model::Fault::from(error);
        assert_eq!(fault.code, longhaul_model::FaultCode::StateDirectory);
    }

    #[test]
    fn a_missing_directory_is_unusable() {
        let (directory, _) = fresh();
        let error =
            Catalog::open(&directory.path().join("absent/catalog.db"), Timestamp::ZERO).err().unwrap();
        assert!(matches!(error, CatalogError::Unusable(_)), "{error}");
    }

    #[test]
    fn a_full_disk_is_reported_and_loses_nothing() {
        let (_directory, path) = fresh();
        let catalog = Catalog::open(&path, Timestamp::ZERO).unwrap();
        catalog.set_setting("before", "kept").unwrap();
        // SQLite answers SQLITE_FULL at a page limit exactly as it does when the disk is full.
        writer(&catalog).execute_batch("PRAGMA max_page_count = 1").unwrap();
        let error = catalog.set_setting("large", &"x".repeat(1 << 20)).unwrap_err();
        assert!(matches!(error, CatalogError::Full(_)), "{error}");
        assert_eq!(longhaul_model::Fault::from(error).code, longhaul_model::FaultCode::StateDirectory);
        assert_eq!(catalog.setting("before").unwrap().as_deref(), Some("kept"));
        writer(&catalog).execute_batch("PRAGMA max_page_count = 1000000").unwrap();
        catalog.set_setting("large", &"x".repeat(1 << 20)).unwrap();
    }

    #[test]
    fn an_endless_query_is_interrupted() {
        let (_directory, path) = fresh();
        let catalog = Catalog::open(&path, Timestamp::ZERO).unwrap();
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
        let result =
            catalog.read_within(Duration::ZERO, |tx| Ok(tx.query_row(endless, (), |row| row.get::<i64>(0))?));
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
        let Database::Sqlite(database) = &catalog.inner.database else { unreachable!() };
        let (open, idle) = database.readers.counts();
        assert!(open <= READERS_MAX && idle == open);
    }
}
