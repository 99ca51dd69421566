//! Datasets, their blocks and files, and how files are registered.

use longhaul_model::{
    Algorithm, BlockName, CommunityName, DatasetName, DigestOrigin, DigestSet, Lfn, StorageName, Timestamp,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

use super::{ReplicaView, TaskView};
use crate::agent::{LeftOut, LeftOutReason};

/// `POST /api/v1/datasets`: creates an empty dataset, or returns the one of that name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DatasetCreate {
    /// Name of the dataset, such as `higgs/run7`.
    #[schema(value_type = formats::DatasetName)]
    pub name: DatasetName,
    /// Community that owns the dataset; by default `default`.
    #[serde(default)]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
}

/// A dataset with its size, replicas and files left out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DatasetView {
    /// Name of the dataset, unique in the deployment.
    #[schema(value_type = formats::DatasetName)]
    pub name: DatasetName,
    /// Community that owns the dataset.
    #[schema(value_type = formats::CommunityName)]
    pub community: CommunityName,
    /// True while files can be added.
    pub open: bool,
    /// Number of files.
    pub files: u64,
    /// Size of all files together, in bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Time when the dataset was created.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Entries that registration left out, counted by reason.
    pub left_out: Vec<LeftOutCount>,
    /// One row for each storage that holds at least one file of the dataset.
    pub replicas: Vec<ReplicaView>,
    /// The scan under way, if any.
    pub scan: Option<TaskView>,
}

/// Entries that registration left out for the same reason.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeftOutCount {
    /// Why they were left out.
    pub reason: LeftOutReason,
    /// Number of entries.
    pub count: u64,
    /// The first few entries.
    pub examples: Vec<LeftOut>,
}

/// A block of a dataset with its replicas.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlockView {
    /// Name of the block, `DATASET#BLOCK`.
    #[schema(value_type = String)]
    pub name: BlockName,
    /// True while files can be added.
    pub open: bool,
    /// Number of files.
    pub files: u64,
    /// Size of all files together, in bytes.
    pub bytes: u64,
    /// One row for each storage that holds at least one file of the block.
    pub replicas: Vec<ReplicaView>,
}

/// A file of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileView {
    /// Logical file name, unique in the catalog.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Block that the file belongs to.
    #[schema(value_type = String)]
    pub block: BlockName,
    /// Size in bytes.
    pub size: u64,
    /// Digests of the content.
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
}

/// `POST /api/v1/datasets/{name}/scan`: the storage's agent registers the files it finds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScanRequest {
    /// Storage to scan.
    #[schema(value_type = formats::StorageName)]
    pub storage: StorageName,
    /// Directory relative to the storage's root; empty for the root.
    #[serde(default)]
    pub path: String,
    /// Digests to compute; by default adler32 and crc32c.
    #[serde(default)]
    #[schema(value_type = Vec<formats::Algorithm>)]
    pub algorithms: Vec<Algorithm>,
    /// `told`: a digest that the storage's server tells will do, and only files of which it tells none are
    /// read. Replicas by such digests are claimed, until they are verified.
    #[serde(default)]
    #[schema(value_type = formats::DigestOrigin)]
    pub digests: DigestOrigin,
}

/// A line of `POST /api/v1/datasets/{name}/files?storage=NAME`, which registers the files of a manifest
/// (`application/x-ndjson`), all or none. With `storage`, the service assumes that this storage already holds
/// the files.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestLine {
    /// Logical file name to register.
    #[schema(value_type = String)]
    pub lfn: Lfn,
    /// Size in bytes.
    pub size: u64,
    /// Digests of the content, at least one.
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    /// Name of the block after the `#`; by default files are cut into blocks by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
}

/// What a manifest added.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// Files that were not registered before.
    pub files_added: u64,
    /// Size of the added files together, in bytes.
    pub bytes_added: u64,
    /// Files registered before with the same size and digests.
    pub files_known: u64,
}
