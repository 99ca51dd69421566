//! The copy that a repair replaces: which of its chunks need not be fetched again.
//!
//! Each chunk is requested on condition that it differs (`If-None-Match` of RFC 9110, by CRC-32C), so that a
//! repair costs the damaged chunks. The file that is put together is verified as a whole like any other. If
//! it is not right, chunks of the copy may be to blame, and the next attempt fetches all of it.

use std::sync::Arc;

use longhaul_model::limits::{CHUNK_BYTES, SMALL_FILE_BYTES};
use longhaul_model::{Fault, FaultCode};
use longhaul_storage::SourceFile;

use super::verify::{CancelCheck, blame_target};

/// Most chunks of a held copy: the checksums of a larger file (above 1 TiB) would take more than 8 MiB.
const CHUNKS_MAX: u64 = 1 << 20;

/// A file under the final name that is not the wanted one, with the checksums of its chunks.
pub(super) struct HeldCopy {
    file: Arc<dyn SourceFile>,
    /// CRC-32C of each chunk of the wanted file; none where the copy is too short.
    pub(super) crc32c: Box<[Option<u32>]>,
}

impl HeldCopy {
    /// Whether a file of this size is fetched in chunks, and not in too many.
    pub(super) fn is_possible(wanted_size: u64) -> bool {
        wanted_size > SMALL_FILE_BYTES && wanted_size.div_ceil(u64::from(CHUNK_BYTES)) <= CHUNKS_MAX
    }

    /// Reads the chunks that are left after those whose checksums are known.
    pub(super) fn read_rest(
        file: Arc<dyn SourceFile>,
        wanted_size: u64,
        mut checksums: Vec<Option<u32>>,
        given_up: CancelCheck<'_>,
    ) -> Result<HeldCopy, Fault> {
        let chunk = u64::from(CHUNK_BYTES);
        let held_size = file.identity().size;
        let mut copy = HeldCopy { file, crc32c: Box::default() };
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        for offset in (0..wanted_size).step_by(CHUNK_BYTES as usize).skip(checksums.len()) {
            if given_up() {
                return Err(Fault::new(FaultCode::Interrupted, "while a damaged copy was read"));
            }
            let len = (wanted_size - offset).min(chunk);
            let is_whole = offset.checked_add(len).is_some_and(|end| end <= held_size);
            let bytes = &mut buffer[..len as usize];
            // A copy may be damaged so that parts of it cannot be read at all.
            let is_read = is_whole && copy.read(bytes, offset).is_ok();
            checksums.push(is_read.then(|| crc32c::crc32c(bytes)));
        }
        copy.crc32c = checksums.into();
        Ok(copy)
    }

    /// Fills the buffer from this offset on.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), Fault> {
        self.file.read_exact_at(buffer, offset).map_err(blame_target)
    }
}
