//! What is where.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// One row per storage that holds something of it.
    pub fn replicas_of_dataset(&self, _dataset: DatasetId) -> Result<Vec<ReplicaTotals>, CatalogError> {
        todo!()
    }
    pub fn replicas_of_block(&self, _block: BlockId) -> Result<Vec<ReplicaTotals>, CatalogError> {
        todo!()
    }
    pub fn replicas_of_file(
        &self,
        _lfn: &Lfn,
    ) -> Result<Option<(FileRow, Vec<FileReplicaRow>)>, CatalogError> {
        todo!()
    }
    /// Takes the replica out of use until it is found good again. Nothing happens if there is none.
    pub fn mark_suspect(
        &self,
        _file: FileId,
        _storage: StorageId,
        _fault: &Fault,
        _now: Timestamp,
    ) -> Result<ReplicaChange, CatalogError> {
        todo!()
    }
    pub fn clear_suspect(
        &self,
        _file: FileId,
        _storage: StorageId,
        _now: Timestamp,
    ) -> Result<ReplicaChange, CatalogError> {
        todo!()
    }
    /// Forgets replicas (it deletes nothing at the storage). Refused with `LastReplica` if one of them is the
    /// last good one of its file, unless forced.
    pub fn remove_replicas(
        &self,
        _storage: StorageId,
        _files: &[FileId],
        _force: bool,
        _now: Timestamp,
    ) -> Result<ReplicaChange, CatalogError> {
        todo!()
    }
}
