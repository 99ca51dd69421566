//! A database in memory, for tests that kill and restart a service: it lives as long as this, whichever
//! handles on it are dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_model::Timestamp;

use super::Database;
use crate::sql::DatabaseError;
use crate::{Catalog, CatalogError};

/// Number of the next database: each has a name of its own in this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A SQLite database in memory (its VFS "memdb").
pub struct MemoryDatabase {
    name: String,
    /// SQLite frees the database with its last connection.
    _anchor: Catalog,
}

impl MemoryDatabase {
    pub fn new(now: Timestamp) -> Result<MemoryDatabase, CatalogError> {
        let name = format!("longhaul-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(MemoryDatabase { _anchor: Catalog::open_memory(&name, now)?, name })
    }

    /// A new handle, as a process that has just started would open it.
    pub fn open(&self, now: Timestamp) -> Result<Catalog, CatalogError> {
        Catalog::open_memory(&self.name, now)
    }
}

impl Catalog {
    /// Lets this handle write nothing, as on a file system that became read-only, or everything again.
    pub fn set_read_only(&self, is_read_only: bool) -> Result<(), CatalogError> {
        let Database::Sqlite(database) = &self.inner.database else { return Ok(()) };
        let set = database.writer.lock().pragma_update(None, "query_only", is_read_only);
        set.map_err(|error| DatabaseError::from(error).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_database_says_what_it_is_and_loses_nothing() {
        let database = MemoryDatabase::new(Timestamp::ZERO).unwrap();
        let catalog = database.open(Timestamp::ZERO).unwrap();
        catalog.set_setting("written", "before").unwrap();
        catalog.set_read_only(true).unwrap();
        let error = catalog.set_setting("written", "meanwhile").unwrap_err();
        assert!(matches!(error, CatalogError::Unusable(_)), "{error}");
        assert!(error.to_string().contains("readonly"), "{error}");
        assert_eq!(catalog.setting("written").unwrap().as_deref(), Some("before"));
        catalog.set_read_only(false).unwrap();
        catalog.set_setting("written", "after").unwrap();
        assert_eq!(catalog.setting("written").unwrap().as_deref(), Some("after"));
    }

    #[test]
    fn a_database_outlives_the_handles_on_it_and_is_none_of_another() {
        let database = MemoryDatabase::new(Timestamp::ZERO).unwrap();
        let other = MemoryDatabase::new(Timestamp::ZERO).unwrap();
        let catalog = database.open(Timestamp::ZERO).unwrap();
        catalog.set_setting("written", "before").unwrap();
        assert_eq!(catalog.setting("written").unwrap().as_deref(), Some("before"));
        drop(catalog);
        let reopened = database.open(Timestamp::ZERO).unwrap();
        assert_eq!(reopened.setting("written").unwrap().as_deref(), Some("before"));
        assert_eq!(other.open(Timestamp::ZERO).unwrap().setting("written").unwrap(), None);
    }
}
