//! Every bound that more than one room must agree on. A bound of one room lives in that room.

/// One chunk: the unit of verification, one buffer, one batch of TLS records. 1 MiB matched larger
/// batches in cost, and smaller ones cost 15 % more CPU.
pub const CHUNK_BYTES: u32 = 1 << 20;
/// Files up to this size travel in packs and are committed in groups.
pub const SMALL_FILE_BYTES: u64 = CHUNK_BYTES as u64;
/// Largest file: 8 EiB would do, but offsets are `i64` in the system calls.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// An LFN in bytes, and each of its components (the limit of every Linux file system).
pub const LFN_BYTES_MAX: usize = 1024;
pub const COMPONENT_BYTES_MAX: usize = 255;

/// Rows of one write transaction, items of one API call, lines of one report.
pub const BATCH_ITEMS_MAX: usize = 5_000;
/// A JSON body that is not a manifest upload.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// One line of a manifest.
pub const MANIFEST_LINE_BYTES_MAX: usize = 16 << 10;
/// Files of an automatically made block.
pub const BLOCK_FILES: u64 = 1_000;
/// Bytes after which an automatically made block is closed even with fewer files.
pub const BLOCK_BYTES: u64 = 1_000_000_000_000;
