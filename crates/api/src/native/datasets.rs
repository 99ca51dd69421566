//! Datasets, their blocks and files, and how files are registered.

use longhaul_model::{
    Algorithm, BlockName, CommunityName, DatasetName, DigestSet, Lfn, StorageName, Timestamp,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ReplicaView, TaskView};
use crate::agent::{LeftOut, LeftOutReason};

/// `POST /api/v1/datasets`: makes an empty dataset, or returns the one of that name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DatasetCreate {
    #[schema(value_type = String)]
    pub name: DatasetName,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DatasetView {
    #[schema(value_type = String)]
    pub name: DatasetName,
    #[schema(value_type = String)]
    pub community: CommunityName,
    pub open: bool,
    pub files: u64,
    pub bytes: u64,
    pub blocks: u64,
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// How many were left out at registration, by reason.
    pub left_out: Vec<LeftOutCount>,
    /// Where it is: one row per storage that holds at least one file of it.
    pub replicas: Vec<ReplicaView>,
    /// Scan under way, if any.
    pub scan: Option<TaskView>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeftOutCount {
    pub reason: LeftOutReason,
    pub count: u64,
    /// The first few.
    pub examples: Vec<LeftOut>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlockView {
    #[schema(value_type = String)]
    pub name: BlockName,
    pub open: bool,
    pub files: u64,
    pub bytes: u64,
    pub replicas: Vec<ReplicaView>,
}

/// A file of a dataset, as listed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileView {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    #[schema(value_type = String)]
    pub block: BlockName,
    pub size: u64,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
}

/// `POST /api/v1/datasets/{name}/scan`: have the storage's agent register what it finds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScanRequest {
    #[schema(value_type = String)]
    pub storage: StorageName,
    /// Relative to the storage's root; empty for the whole.
    #[serde(default)]
    pub path: String,
    /// Default: adler32 and crc32c.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub algorithms: Vec<Algorithm>,
}

/// `POST /api/v1/datasets/{name}/files?storage=NAME`: a manifest, one [`ManifestLine`] a line
/// (`application/x-ndjson`); all or nothing. With `storage` the files are taken to be there already.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestLine {
    #[schema(value_type = String)]
    pub lfn: Lfn,
    pub size: u64,
    #[schema(value_type = Vec<String>)]
    pub digests: DigestSet,
    /// Name of the block after the `#`; by default blocks are cut by number of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    pub files_added: u64,
    pub bytes_added: u64,
    /// Registered before with the same size and digests.
    pub files_known: u64,
}
