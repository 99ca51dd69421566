//! crc32c, the checksum of every chunk.

use std::hint::black_box;

use super::{CHUNK_BYTES, Part, Stopwatch, pattern};

/// `bytes` through crc32c, one chunk after the other, on one thread.
pub fn crc32c(bytes: u64) -> Part {
    let chunk = pattern(CHUNK_BYTES, 1);
    let chunks = bytes.div_ceil(CHUNK_BYTES as u64).max(1);
    let watch = Stopwatch::start();
    for _ in 0..chunks {
        black_box(crc32c::crc32c(black_box(&chunk)));
    }
    Part::new("crc32c", "one thread, chunks of 1 MiB in memory", chunks * CHUNK_BYTES as u64, watch.stop())
}
