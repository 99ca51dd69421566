//! Bounds of the protocol. Both ends rely on them: changing one is a new protocol version.

use std::time::Duration;

use longhaul_model::limits::{CHUNK_BYTES, LFN_BYTES_MAX};

/// Structured part of a frame. Large enough for a part of a manifest, small enough that hundreds of hostile
/// peers cannot fill the memory with half a frame each.
pub const BODY_BYTES_MAX: u32 = 256 << 10;
/// Raw part of a frame: one chunk.
pub const PAYLOAD_BYTES_MAX: u32 = CHUNK_BYTES;
/// Files of one part of a manifest: with the longest names they stay below [`BODY_BYTES_MAX`].
pub const MANIFEST_PART_FILES_MAX: usize = 200;
/// A manifest of at most so many files may be said on several streams before it is answered.
pub const MANIFEST_REPEAT_FILES_MAX: usize = 16;
/// Files of one manifest (one permit).
pub const MANIFEST_FILES_MAX: usize = 20_000;
/// Files that one session may have announced and not finished.
pub const SESSION_FILES_MAX: usize = 60_000;
/// A permit is a few hundred bytes; its text is not ours to limit more tightly.
pub const PERMIT_BYTES_MAX: usize = 16 << 10;
/// Whole files of one pack. 256 files of 4 kB fill one chunk.
pub const PACK_FILES_MAX: usize = 256;
/// Chunks of one extent: a short run keeps the work of a dying stream small, and one request per chunk would
/// cost a frame each.
pub const EXTENT_CHUNKS_MAX: u32 = 16;
/// Requests of one stream not yet answered. A receiver is held back by its buffers long before.
pub const STREAM_REQUESTS_MAX: usize = 4_096;
/// Question or answer of one call.
pub const CALL_BYTES_MAX: usize = BODY_BYTES_MAX as usize - 16;
/// Calls of one stream whose answer is not there yet.
pub const CALLS_OPEN_MAX: usize = 16;
/// Text of a fault.
pub const FAULT_BYTES_MAX: usize = 700;

/// Nothing heard for this long: ask.
pub const PING_AFTER: Duration = Duration::from_secs(3);
/// Nothing heard for this long, although asked: the stream is dead.
pub const SILENCE_MAX: Duration = Duration::from_secs(9);
/// The same for a stream that owes us data. A dead path may cost a stall of 3 s: this, and the time until
/// what was asked for on it comes over another.
pub const BUSY_PING_AFTER: Duration = Duration::from_secs(1);
pub const BUSY_SILENCE_MAX: Duration = Duration::from_secs(2);
/// The peer lives but sends no payload for open requests.
pub const STALL_MAX: Duration = Duration::from_secs(60);
/// Less than this within that time, and no other frame begun, is none: a kilobyte a second serves nobody, and
/// a peer that stops within a frame and answers pings fills it with its answers.
pub const STALL_BYTES_MIN: u64 = 64 << 10;
/// Without any stream for this long, the files of a session fail.
pub const RECONNECT_FOR: Duration = Duration::from_secs(6);
/// The same after a stream that fell silent, since paths come back: 15 s in all.
pub const RECONNECT_AFTER_SILENCE_FOR: Duration = Duration::from_secs(13);
/// A session without work is closed after this.
pub const IDLE_MAX: Duration = Duration::from_secs(30);
/// A stream slower than this share of its siblings' median, over [`crate::rate_meter::WINDOW`], is given up.
pub const SLOW_STREAM_RATE_SHARE: f64 = 0.2;
/// Only after this long: a young stream has not found its rate.
pub const SLOW_STREAM_AGE_MIN: Duration = Duration::from_secs(10);
/// Chunks of one stream asked for a second time on another, at the end of the work.
pub const ENDGAME_CHUNKS_MAX: usize = 4;

/// Large files in flight at once in a session: enough to cover the end of one with the middle of others.
pub const LARGE_FILES_ACTIVE_MAX: usize = 4;
/// Tries of a chunk that arrives damaged.
pub const DAMAGED_TRIES_MAX: u8 = 3;
/// Tries at one source of a chunk that is whole and not the right one, when nobody else has a better.
pub const WRONG_TRIES_MAX: u8 = 2;
/// Wrong chunks of one file after which its source is not asked for it any more, if there are others, and if
/// they are one in so many of what it sent.
pub const WRONG_CHUNKS_PER_FILE_MAX: usize = 8;
pub const WRONG_CHUNKS_ONE_IN: usize = 4;
/// The same of all files: then the source is not asked for anything.
pub const WRONG_CHUNKS_PER_ORIGIN_MAX: usize = 64;

const _: () = assert!(
    MANIFEST_PART_FILES_MAX * (LFN_BYTES_MAX + 32) + PERMIT_BYTES_MAX + 256 < BODY_BYTES_MAX as usize
);
const _: () = assert!(PACK_FILES_MAX * (FAULT_BYTES_MAX + 64) < BODY_BYTES_MAX as usize);
