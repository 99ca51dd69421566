//! Datasets, blocks, files, replicas, and what registration says.

use longhaul_model::{
    BlockId, BlockName, CommunityName, DatasetId, DatasetName, DigestSet, Fault, FileId, Lfn, StorageId,
    StorageName, Timestamp, Verification,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetRow {
    pub id: DatasetId,
    pub name: DatasetName,
    pub community: CommunityName,
    pub open: bool,
    pub files: u64,
    pub bytes: u64,
    pub blocks: u64,
    pub created: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRow {
    pub id: BlockId,
    pub dataset: DatasetId,
    pub name: BlockName,
    pub open: bool,
    pub files: u64,
    pub bytes: u64,
    pub created: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    pub id: FileId,
    pub block: BlockId,
    pub dataset: DatasetId,
    pub lfn: Lfn,
    pub size: u64,
    pub digests: DigestSet,
}

/// Whose files to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileScope {
    Dataset(DatasetId),
    Block(BlockId),
}

/// A file to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub lfn: Lfn,
    pub size: u64,
    pub digests: DigestSet,
    /// Name of its block after the `#`; by default blocks are cut by number and bytes of files.
    pub block: Option<String>,
    /// Where it stands in the manifest, from 1, for errors.
    pub line: u64,
}

/// What a registration did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrationResult {
    pub files_added: u64,
    pub bytes_added: u64,
    /// Registered before with the same size and digests.
    pub files_known: u64,
    /// Every block that got a file or, at the storage named, a replica; as it is now.
    pub blocks: Vec<BlockTotals>,
    /// Where the storage named now has the whole block.
    pub complete: Vec<(BlockId, StorageId)>,
    /// Known files that this storage did not have before.
    pub found: Vec<(FileId, BlockId, StorageId)>,
    /// What subscriptions lack now in the blocks that grew.
    pub demands: Vec<crate::DemandRow>,
    /// Demands that ended since the files are there.
    pub demands_gone: Vec<(longhaul_model::SubscriptionId, BlockId)>,
    /// Transfers that nobody wants any more.
    pub cancelled: Vec<crate::CancelledTransfer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTotals {
    pub block: BlockId,
    pub dataset: DatasetId,
    pub files: u64,
    pub bytes: u64,
}

/// How a replica came to be trusted. Ordered: a later one proves more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerificationState {
    /// Taken to be there: found by a scan or claimed by a manifest.
    Registered,
    Verified(Verification),
}

/// Files per [`How`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationCounts {
    pub registered: u64,
    pub wire: u64,
    pub end_to_end: u64,
    pub readback: u64,
}

/// What one storage holds of a dataset or of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTotals {
    pub storage: StorageId,
    pub storage_name: StorageName,
    /// Including suspect ones.
    pub files: u64,
    pub bytes: u64,
    pub suspect_files: u64,
    pub suspect_bytes: u64,
    /// Nothing is missing and nothing is suspect.
    pub complete: bool,
    pub verified: VerificationCounts,
}

/// One file's replica at one storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReplicaRow {
    pub storage: StorageId,
    pub storage_name: StorageName,
    pub how: VerificationState,
    /// Why it is suspect, if it is.
    pub suspect: Option<Fault>,
    /// A deletion of it is under way.
    pub deleting: bool,
}

/// Something a scan did not register. `reason` is the word of the agent's protocol (`link-leads-out`, …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutRow {
    pub path: String,
    pub reason: String,
    pub detail: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutCount {
    pub reason: String,
    pub count: u64,
    /// The first few.
    pub examples: Vec<LeftOutRow>,
}

/// What changed for sources and targets when replicas were lost, suspected or found good again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaChange {
    /// No longer usable as a source.
    pub lost: Vec<(FileId, BlockId, StorageId)>,
    /// As above, with all its files.
    pub blocks_lost: Vec<(BlockId, StorageId)>,
    /// Usable as a source (again).
    pub found: Vec<(FileId, BlockId, StorageId)>,
    /// Complete now.
    pub complete: Vec<(BlockId, StorageId)>,
    /// Demands of the touched blocks and storages as they are now; what is absent is gone.
    pub demands: Vec<crate::DemandRow>,
    pub demands_gone: Vec<(longhaul_model::SubscriptionId, BlockId)>,
    /// Transfers that nobody wants any more.
    pub cancelled: Vec<crate::CancelledTransfer>,
}
