//! Datasets, blocks, files, replicas, and results of registrations.

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

/// A dataset or a block, whose files to list.
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
    /// Its line in the manifest, from 1, for errors.
    pub line: u64,
}

/// The result of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrationResult {
    pub files_added: u64,
    pub bytes_added: u64,
    /// Files that were registered before with the same size and digests.
    pub files_known: u64,
    /// The present totals of every block that got a file or, at the given storage, a replica.
    pub blocks: Vec<BlockTotals>,
    /// Blocks that the given storage now has completely.
    pub complete: Vec<(BlockId, StorageId)>,
    /// Known files that the storage did not have before.
    pub found: Vec<(FileId, BlockId, StorageId)>,
    /// Present demands in the blocks that grew.
    pub demands: Vec<crate::DemandRow>,
    /// Demands that ended, since the files are there.
    pub demands_gone: Vec<(longhaul_model::SubscriptionId, BlockId)>,
    /// Transfers that were cancelled, since nobody wants them any more.
    pub cancelled: Vec<crate::CancelledTransfer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTotals {
    pub block: BlockId,
    pub dataset: DatasetId,
    pub files: u64,
    pub bytes: u64,
}

/// How a replica was verified. Ordered: a later value proves more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerificationState {
    /// Claimed by a manifest, and never looked at.
    Registered,
    Verified(Verification),
}

/// Files of a dataset that no storage has a usable replica of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFilesRow {
    pub dataset: DatasetId,
    pub dataset_name: DatasetName,
    pub files: u64,
    /// The first few of them.
    pub examples: Vec<Lfn>,
    /// Storages whose replicas of them are suspect or being deleted.
    pub last_holders: Vec<StorageName>,
    /// Virtual storages that were given some of them, and hold nothing.
    pub virtual_holders: Vec<StorageName>,
}

/// Suspect replicas of a dataset at a storage that were repaired and damaged again too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WornReplicasRow {
    pub storage_name: StorageName,
    pub dataset_name: DatasetName,
    pub files: u64,
    /// The first few of them.
    pub examples: Vec<Lfn>,
    /// How often each was repaired at least.
    pub repairs: u64,
}

/// Numbers of files by [`VerificationState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerificationCounts {
    pub registered: u64,
    pub wire: u64,
    pub end_to_end: u64,
    pub readback: u64,
}

/// What one storage has of a dataset or a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTotals {
    pub storage: StorageId,
    pub storage_name: StorageName,
    /// All files, including suspect ones.
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

/// An entry that a scan left out. `reason` is a word of the agent's protocol (`link-leads-out`, …).
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
    /// The first few examples.
    pub examples: Vec<LeftOutRow>,
}

/// What changed for sources and targets when replicas were lost, became suspect or were found good again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaChange {
    /// No longer usable as a source.
    pub lost: Vec<(FileId, BlockId, StorageId)>,
    /// Blocks with all their files that are no longer usable as a source.
    pub blocks_lost: Vec<(BlockId, StorageId)>,
    /// Usable as a source (again).
    pub found: Vec<(FileId, BlockId, StorageId)>,
    /// Blocks that a storage now has completely.
    pub complete: Vec<(BlockId, StorageId)>,
    /// Present demands of the affected blocks and storages.
    pub demands: Vec<crate::DemandRow>,
    pub demands_gone: Vec<(longhaul_model::SubscriptionId, BlockId)>,
    /// Transfers that nobody wants any more.
    pub cancelled: Vec<crate::CancelledTransfer>,
}
