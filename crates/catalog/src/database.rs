//! The handle.

use std::path::Path;
use std::sync::Arc;

use longhaul_model::Timestamp;

use crate::CatalogError;

/// Rows of one page of any list.
pub const PAGE_ROWS_MAX: usize = 1_000;

/// A handle on the catalog; clones share it.
#[derive(Clone)]
pub struct Catalog {
    #[allow(dead_code)]
    inner: Arc<()>,
}

impl Catalog {
    /// Opens or creates the database file at `path` and brings it to the present format.
    /// The caller keeps other processes away from it.
    pub fn open(_path: &Path, _now: Timestamp) -> Result<Catalog, CatalogError> {
        todo!()
    }
}
