//! Limits of the protocol. Both ends rely on them: changing one requires a new protocol version.

use std::time::Duration;

use longhaul_model::limits::{CHUNK_BYTES, LFN_BYTES_MAX};

/// Structured part of a frame. Large enough for a part of a manifest, small enough that hundreds of hostile
/// peers cannot fill the memory with one half-sent frame each.
pub const BODY_BYTES_MAX: u32 = 256 << 10;
/// Raw part of a frame: one chunk.
pub const PAYLOAD_BYTES_MAX: u32 = CHUNK_BYTES;
/// Files in one part of a manifest: with the longest names they stay below [`BODY_BYTES_MAX`].
pub const MANIFEST_PART_FILES_MAX: usize = 200;
/// Only a manifest this short may be repeated on several streams before the source has answered it: the
/// repetition costs less than the wait.
pub const MANIFEST_REPEAT_FILES_MAX: usize = 16;
/// Files of one manifest (one permit): bounds what the source has to keep for it.
pub const MANIFEST_FILES_MAX: usize = 20_000;
/// Files that one session may have announced and not finished.
pub const SESSION_FILES_MAX: usize = 60_000;
/// A permit takes a few hundred bytes; its issuer decides what is in it, so the limit is generous.
pub const PERMIT_BYTES_MAX: usize = 16 << 10;
/// Whole files in one pack: 256 files of 4 kB fill one chunk.
pub const PACK_FILES_MAX: usize = 256;
/// Chunks of one extent. Short runs leave little work behind when a stream dies; one request per chunk would
/// cost a frame each.
pub const EXTENT_CHUNKS_MAX: u32 = 16;
/// Unanswered requests on one stream. The receiver runs out of buffers long before.
pub const STREAM_REQUESTS_MAX: usize = 4_096;
/// Length of a call or its answer: one body, less its header.
pub const CALL_BYTES_MAX: usize = BODY_BYTES_MAX as usize - 16;
/// Unanswered calls on one stream.
pub const CALLS_OPEN_MAX: usize = 16;
/// Length of a fault's text.
pub const FAULT_BYTES_MAX: usize = 700;

/// Keepalive: ping after this much silence.
pub const PING_AFTER: Duration = Duration::from_secs(3);
/// Keepalive: a pinged stream is dead after this much silence.
pub const SILENCE_MAX: Duration = Duration::from_secs(9);
/// Keepalive of a stream that owes us data: ping sooner. A dead path may stall us for 3 s: this and
/// [`BUSY_SILENCE_MAX`], then the time to request the data over another.
pub const BUSY_PING_AFTER: Duration = Duration::from_secs(1);
/// Keepalive of a stream that owes us data: dead after this much silence, or four round trips if longer.
pub const BUSY_SILENCE_MAX: Duration = Duration::from_secs(2);
/// A peer that answers pings but sends no payload for open requests is stalled after this.
pub const STALL_MAX: Duration = Duration::from_secs(60);
/// Less than this within [`STALL_MAX`], without the start of another chunk, is no progress: a kilobyte a
/// second serves nobody, and a peer that stops within a frame fills it with its answers to pings.
pub const STALL_BYTES_MIN: u64 = 64 << 10;
/// The files of a session fail after this long without any stream.
pub const RECONNECT_FOR: Duration = Duration::from_secs(6);
/// The same if the last stream fell silent, since such paths recover: 15 s in all.
pub const RECONNECT_AFTER_SILENCE_FOR: Duration = Duration::from_secs(13);
/// A session without work is closed after this.
pub const IDLE_MAX: Duration = Duration::from_secs(30);
/// A stream slower than this share of its siblings' median rate, over [`crate::rate_meter::RATE_WINDOW`], is
/// closed.
pub const SLOW_STREAM_RATE_SHARE: f64 = 0.2;
/// Age below which a stream is not compared with its siblings: it has not reached its rate yet.
pub const SLOW_STREAM_AGE_MIN: Duration = Duration::from_secs(10);
/// Endgame: chunks of other streams that may be requested a second time.
pub const ENDGAME_CHUNKS_MAX: usize = 4;

/// Large files in flight at once in a session: enough to overlap the end of one with the middle of others.
pub const LARGE_FILES_ACTIVE_MAX: usize = 4;
/// Attempts at a chunk that arrives damaged.
pub const DAMAGED_TRIES_MAX: u8 = 3;
/// Attempts at one source for a chunk with a correct checksum but the wrong content, if no other source has a
/// better one.
pub const WRONG_TRIES_MAX: u8 = 2;
/// Wrong chunks of one file after which its source is no longer used for it, if there are others and the
/// ratio exceeds [`WRONG_CHUNKS_ONE_IN`].
pub const WRONG_CHUNKS_PER_FILE_MAX: usize = 8;
/// Wrong chunks count only if they are at least one in this many of what the source sent.
pub const WRONG_CHUNKS_ONE_IN: usize = 4;
/// Wrong chunks over all files after which a source is not used at all.
pub const WRONG_CHUNKS_PER_ORIGIN_MAX: usize = 64;

const _: () = assert!(
    MANIFEST_PART_FILES_MAX * (LFN_BYTES_MAX + 32) + PERMIT_BYTES_MAX + 256 < BODY_BYTES_MAX as usize
);
const _: () = assert!(PACK_FILES_MAX * (FAULT_BYTES_MAX + 64) < BODY_BYTES_MAX as usize);
