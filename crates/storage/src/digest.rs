//! Reads a file once, in order, to compute its digests.

use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Hasher, Pfn};

use crate::{Identity, Storage};

/// The digests of one version of a file. `SourceChanged` if it changed while it was read; `buffer` is the
/// read size.
///
/// # Panics
/// If `buffer` is empty.
///
/// # Errors
/// `SourceChanged` if the version differs after reading, and the fault of a failed read.
pub fn digest_file(
    storage: &dyn Storage,
    at: &Pfn,
    algorithms: impl IntoIterator<Item = Algorithm>,
    buffer: &mut [u8],
) -> Result<(DigestSet, Identity), Fault> {
    assert!(!buffer.is_empty(), "a read needs a buffer");
    let file = storage.open(at)?;
    let before = file.identity();
    let mut hasher = Hasher::new(algorithms);
    let mut offset = 0u64;
    loop {
        let read = file.read_at(buffer, offset)?;
        hasher.update(&buffer[..read]);
        offset += read as u64;
        // A file that grows without end must not block forever.
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
