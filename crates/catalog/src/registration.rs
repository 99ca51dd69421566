//! Files enter the catalog.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// Registers all files or none. With `at` they are taken to be at that storage. Holds the writer while
    /// `files` yields: let it read from memory or a local file, not from a slow peer.
    pub fn add_files(
        &self,
        _dataset: DatasetId,
        _files: &mut dyn Iterator<Item = Result<NewFile, ManifestError>>,
        _at: Option<StorageId>,
        _now: Timestamp,
    ) -> Result<Added, AddError> {
        todo!()
    }
}
