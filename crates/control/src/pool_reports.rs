//! What agents say of the pools of their storages. In memory only: after a restart it comes with their next
//! reports.

use std::collections::BTreeMap;

use longhaul_api::pools::PoolReport;
use longhaul_model::StorageId;
use parking_lot::Mutex;

/// The latest reports, by storage.
#[derive(Default)]
pub struct PoolReports(Mutex<BTreeMap<StorageId, Vec<PoolReport>>>);

impl PoolReports {
    /// Notes what the agent of a storage says of its pools; none if it has none any more.
    pub fn note(&self, storage: StorageId, pools: &[PoolReport]) {
        let mut reports = self.0.lock();
        if pools.is_empty() {
            reports.remove(&storage);
        } else {
            reports.insert(storage, pools.to_vec());
        }
    }

    /// The pools of a storage; empty if it is one file system, or its agent has not reported yet.
    pub fn of_storage(&self, storage: StorageId) -> Vec<PoolReport> {
        self.0.lock().get(&storage).cloned().unwrap_or_default()
    }
}
