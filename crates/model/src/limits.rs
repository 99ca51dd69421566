//! Limits that several crates must agree on. A limit of one crate lives in that crate.

/// One chunk: the unit of verification, one buffer, one batch of TLS records. 1 MiB cost as little as larger
/// batches, and smaller ones cost 15 % more CPU.
pub const CHUNK_BYTES: u32 = 1 << 20;
/// Files up to this size travel in packs and are committed in groups.
pub const SMALL_FILE_BYTES: u64 = CHUNK_BYTES as u64;
/// Largest file, in bytes: offsets are `i64` in the system calls.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Length of an LFN, in bytes.
pub const LFN_BYTES_MAX: usize = 1024;
/// Length of one component of a path, in bytes: the limit of every Linux file system.
pub const COMPONENT_BYTES_MAX: usize = 255;

/// Rows of one write transaction, items of one API call, entries of one report.
pub const BATCH_ITEMS_MAX: usize = 5_000;
/// Length of a JSON request body, except manifest uploads.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Length of one line of a manifest, in bytes.
pub const MANIFEST_LINE_BYTES_MAX: usize = 16 << 10;
/// Files of an automatically created block.
pub const BLOCK_FILES: u64 = 1_000;
/// An automatically created block of this many bytes is closed even with fewer files.
pub const BLOCK_BYTES: u64 = 1_000_000_000_000;
