//! What a deletion would do.
use crate::*;
use longhaul_model::*;
impl Catalog {
    pub fn deletion_preview(
        &self,
        _dataset: DatasetId,
        _storage: StorageId,
    ) -> Result<DeletionPreview, CatalogError> {
        todo!()
    }
}
