//! Digests one version of a file.

use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Hasher, Pfn};
use longhaul_storage::{Identity, Storage};

use crate::stop::StopFlag;

/// Bytes of one read: large enough that the call costs nothing beside the hashing.
pub(crate) const BUFFER_BYTES: usize = 1 << 20;

/// Like `storage::digest_file`, but gives up (`Cancelled`) soon after `stop` is set, however large the file
/// is. `SourceChanged` if the file changes while it is read.
pub(crate) fn digest(
    storage: &dyn Storage,
    at: &Pfn,
    algorithms: impl IntoIterator<Item = Algorithm>,
    buffer: &mut [u8],
    stop: &StopFlag,
) -> Result<(DigestSet, Identity), Fault> {
    assert!(!buffer.is_empty(), "a read needs a buffer");
    let stopped = || Fault::new(FaultCode::Cancelled, at.to_string());
    if stop.is_set() {
        return Err(stopped());
    }
    let file = storage.open(at)?;
    let before = file.identity();
    let mut hasher = Hasher::new(algorithms);
    let mut offset = 0u64;
    loop {
        if stop.is_set() {
            return Err(stopped());
        }
        let read = file.read_at(buffer, offset)?;
        hasher.update(&buffer[..read]);
        offset += read as u64;
        // Bounded: a file may grow for ever.
        if read < buffer.len() || offset > before.size {
            break;
        }
    }
    let after = file.identity_now()?;
    if after != before || offset != before.size {
        let detail =
            format!("{at} was {before}, is {after} (size:mtime:inode), and {offset} bytes were read");
        return Err(Fault::new(FaultCode::SourceChanged, detail));
    }
    Ok((hasher.finish(), before))
}
