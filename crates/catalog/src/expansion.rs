//! From demand to files.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// Files of the block, after `after` by id, that `target` lacks and no live transfer brings there.
    pub fn expand(
        &self,
        _block: BlockId,
        _target: StorageId,
        _after: Option<FileId>,
        _limit: usize,
    ) -> Result<Expanded, CatalogError> {
        todo!()
    }
}
