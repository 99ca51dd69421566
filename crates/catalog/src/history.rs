//! Transfers, live and finished, as people look at them.
use crate::*;
use longhaul_model::*;
impl Catalog {
    pub fn transfers(&self, _filter: &TransferFilter) -> Result<TransferPage, CatalogError> {
        todo!()
    }
    pub fn transfer(&self, _id: TransferId) -> Result<Option<TransferDetail>, CatalogError> {
        todo!()
    }
    /// Forgets finished transfers created before `older_than`, and the oldest beyond `rows_max`; at most one
    /// batch a call. Returns how many rows went; call again while it is not 0.
    pub fn prune_history(&self, _older_than: Timestamp, _rows_max: u64) -> Result<u64, CatalogError> {
        todo!()
    }
}
