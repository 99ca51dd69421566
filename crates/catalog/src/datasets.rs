//! Datasets, blocks and files.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// The dataset of that name, made if need be; says whether it was made.
    pub fn create_dataset(
        &self,
        _name: &DatasetName,
        _community: &CommunityName,
        _now: Timestamp,
    ) -> Result<(DatasetRow, bool), CatalogError> {
        todo!()
    }
    pub fn dataset(&self, _name: &DatasetName) -> Result<Option<DatasetRow>, CatalogError> {
        todo!()
    }
    pub fn dataset_by_id(&self, _id: DatasetId) -> Result<Option<DatasetRow>, CatalogError> {
        todo!()
    }
    /// By name, beginning after `after`.
    pub fn datasets(
        &self,
        _after: Option<&DatasetName>,
        _limit: usize,
    ) -> Result<Vec<DatasetRow>, CatalogError> {
        todo!()
    }
    pub fn block(&self, _name: &BlockName) -> Result<Option<BlockRow>, CatalogError> {
        todo!()
    }
    pub fn blocks(
        &self,
        _dataset: DatasetId,
        _after: Option<BlockId>,
        _limit: usize,
    ) -> Result<Vec<BlockRow>, CatalogError> {
        todo!()
    }
    pub fn files(
        &self,
        _part: Part,
        _after: Option<FileId>,
        _limit: usize,
    ) -> Result<Vec<FileRow>, CatalogError> {
        todo!()
    }
    pub fn file(&self, _lfn: &Lfn) -> Result<Option<FileRow>, CatalogError> {
        todo!()
    }
    /// No file can be added any more.
    pub fn close_dataset(&self, _id: DatasetId) -> Result<(), CatalogError> {
        todo!()
    }
    /// Counted under the dataset and the storage they were met at.
    pub fn record_left_out(
        &self,
        _dataset: DatasetId,
        _storage: StorageId,
        _left_out: &[LeftOutRow],
    ) -> Result<(), CatalogError> {
        todo!()
    }
    pub fn left_out(&self, _dataset: DatasetId) -> Result<Vec<LeftOutCount>, CatalogError> {
        todo!()
    }
    pub fn totals(&self) -> Result<Totals, CatalogError> {
        todo!()
    }
}
