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
/// Length of a request body from someone who has shown no credential that counts.
pub const PUBLIC_BODY_BYTES_MAX: usize = 64 << 10;
/// Memory for the request bodies of all who have shown one, unless a single body may be larger.
pub const BODIES_BYTES_MAX: usize = 256 << 20;
/// Memory for those of all others: they take none from the former.
pub const PUBLIC_BODIES_BYTES_MAX: usize = 32 << 20;
/// Length of one line of a manifest, in bytes.
pub const MANIFEST_LINE_BYTES_MAX: usize = 16 << 10;
/// Files of an automatically created block.
pub const BLOCK_FILES: u64 = 1_000;
/// An automatically created block of this many bytes is closed even with fewer files.
pub const BLOCK_BYTES: u64 = 1_000_000_000_000;

/// Files at once that a forecast can be asked for: more than any link has.
pub const WHAT_IF_FILES_MAX: u32 = 10_000;

/// Characters of a password that is the only factor (NIST SP 800-63B-4, section 3.1.1.2).
pub const PASSWORD_CHARS_MIN: usize = 15;
/// Bytes of a password: sentences fit, and nobody can make us hash megabytes.
pub const PASSWORD_BYTES_MAX: usize = 1_024;

/// Host names and addresses of agents, in bytes.
pub const HOST_BYTES_MAX: usize = 255;
/// Addresses of one agent's data port.
pub const AGENT_ADDRESSES_MAX: usize = 16;
/// Storages that one agent serves.
pub const AGENT_STORAGES_MAX: usize = 256;
/// The version of an agent's program, in bytes; longer ones are cut.
pub const VERSION_BYTES_MAX: usize = 64;
/// Any other text that an agent reports, in bytes; longer ones are cut.
pub const REPORTED_TEXT_BYTES_MAX: usize = 4_096;
/// Staged files that one report of an agent tells of; others are left to its next report.
pub const REPORTED_STAGED_MAX: usize = 1_000;
/// Pools of one storage: each is asked for each name.
pub const STORAGE_POOLS_MAX: usize = 64;
/// Length of a pool's name in bytes.
pub const POOL_NAME_BYTES_MAX: usize = 32;
/// The largest number of bytes that an agent can report; greater ones count as this.
pub const REPORTED_BYTES_MAX: u64 = FILE_BYTES_MAX;
/// The largest count of equal events that an agent can report; greater ones count as this.
pub const REPORTED_TIMES_MAX: u64 = 1_000_000_000;
/// A time that an agent reports may be ahead of the service's clock by this, in seconds; later ones count as
/// this, earlier ones than 1970 as 1970.
pub const REPORTED_AHEAD_S_MAX: u64 = 300;
/// Payload bytes that one attempt can have moved for each byte of its file: chunks that arrive damaged are
/// asked for again up to three times, and the last ones over a second stream.
pub const MOVED_PER_FILE_BYTE_MAX: u64 = 8;
