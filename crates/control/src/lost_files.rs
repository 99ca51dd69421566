//! Files without any good copy, as a standing problem.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_catalog::{CatalogError, LostFilesRow};
use longhaul_model::{DatasetId, Timestamp};
use parking_lot::Mutex;

use crate::control::Control;

/// Between two searches of the catalog.
pub const SEARCH_INTERVAL: Duration = Duration::from_secs(30);

/// What the last search found, and since when each dataset has lost files.
#[derive(Default)]
pub struct LostFiles {
    found: Mutex<BTreeMap<DatasetId, (Timestamp, LostFilesRow)>>,
}

impl LostFiles {
    /// The datasets with lost files, each with the time since when it has some.
    pub fn all(&self) -> Vec<(Timestamp, LostFilesRow)> {
        self.found.lock().values().cloned().collect()
    }

    fn replace(&self, rows: Vec<LostFilesRow>, now: Timestamp) {
        let mut found = self.found.lock();
        let before = std::mem::take(&mut *found);
        for row in rows {
            let since = before.get(&row.dataset).map_or(now, |&(since, _)| since);
            if since == now {
                tracing::warn!(dataset = %row.dataset_name, files = row.files, "files without a good copy");
            }
            found.insert(row.dataset, (since, row));
        }
    }
}

/// Searches the catalog for files that no storage has a usable replica of.
pub fn search(control: &Control) -> Result<(), CatalogError> {
    let rows = control.kernel.catalog.lost_files()?;
    control.lost_files.replace(rows, control.kernel.now());
    Ok(())
}
