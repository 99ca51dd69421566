//! End-to-end verification (promise 2): compares what was handed to the storage with the catalog's digests.
//! Without those, the source's checksum counts: each chunk carries the checksum of the bytes as read there,
//! and was compared before it was written.

use longhaul_model::digest::PartDigest;
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Algorithm, Blame, DigestSet, Fault, FaultCode, Hasher, Retry, Verification};
use longhaul_storage::{SourceFile, TargetFile};

use crate::interface::{FetchFile, Success};

/// Read faults blame the source by default; here the target reads.
pub(super) fn blame_target(fault: Fault) -> Fault {
    let blame = if fault.blame == Blame::Source { Blame::Target } else { fault.blame };
    fault.blaming(blame)
}

/// Whether the bytes have to be read back from the storage for verification.
pub(super) fn needs_readback(file: &FetchFile) -> bool {
    file.verification == Verification::Readback || !is_verified_by_parts(file)
}

/// For a file whose expected digests have to be computed over its bytes in order; none: they can be combined
/// from those of its parts.
pub(super) fn sequential_hasher(file: &FetchFile) -> Option<Hasher> {
    (!is_verified_by_parts(file)).then(|| Hasher::new(file.digests.algorithms()))
}

/// Verifies the digests computed while a file was written in order.
pub(super) fn check_written(file: &FetchFile, digests: DigestSet) -> Result<Success, Fault> {
    check(file, &digests, false)?;
    Ok(Success { digests, verification: Verification::EndToEnd, already_there: false })
}

/// Whether what is known of the parts of a file verifies the whole.
fn is_verified_by_parts(file: &FetchFile) -> bool {
    file.tree.is_some() || file.digests.is_empty() || combines(&file.digests)
}

/// Whether one of the expected digests can be combined from those of parts (CRC combination).
fn combines(expected: &DigestSet) -> bool {
    expected.algorithms().any(|algorithm| algorithm.combines())
}

/// Verifies the digest combined from the parts.
pub(super) fn check_combined(file: &FetchFile, whole: PartDigest, resumed: bool) -> Result<Success, Fault> {
    let mut digests = whole.digests();
    if let Some(tree) = &file.tree {
        // Every part was verified against the hash tree, also those of earlier attempts.
        digests.insert(tree.root());
    }
    check(file, &digests, resumed)?;
    let verification = match file.tree.is_some() || file.digests.comparable(&digests) {
        true => Verification::EndToEnd,
        false => source_verification(file),
    };
    Ok(Success { digests, verification, already_there: false })
}

/// What the per-chunk comparison with the source's checksums proves by itself.
fn source_verification(file: &FetchFile) -> Verification {
    match file.verification {
        Verification::EndToEnd if file.digests.is_empty() => Verification::EndToEnd,
        _ => Verification::Wire,
    }
}

/// Verifies a small file in memory.
pub(super) fn check_memory(file: &FetchFile, bytes: &[u8], whole: PartDigest) -> Result<Success, Fault> {
    if is_verified_by_parts(file) {
        return check_combined(file, whole, false);
    }
    let mut hasher = Hasher::new(file.digests.algorithms());
    hasher.update(bytes);
    let digests = hasher.finish();
    check(file, &digests, false)?;
    Ok(Success { digests, verification: Verification::EndToEnd, already_there: false })
}

/// Cancels a long read when nobody needs its result.
pub(super) type CancelCheck<'a> = &'a dyn Fn() -> bool;

/// Sees the chunks of a file in order, while it is read for its digests.
pub(super) type ChunkObserver<'a> = &'a mut dyn FnMut(&[u8]);

/// Reads a whole file in order, chunk by chunk, and computes its digests.
fn digest_whole(
    size: u64,
    algorithms: impl IntoIterator<Item = Algorithm>,
    given_up: CancelCheck<'_>,
    observe: ChunkObserver<'_>,
    read_at: impl Fn(&mut [u8], u64) -> Result<usize, Fault>,
) -> Result<DigestSet, Fault> {
    let mut buffer = vec![0; size.min(u64::from(CHUNK_BYTES)) as usize];
    let mut hasher = Hasher::new(algorithms);
    let mut at = 0;
    while at < size {
        if given_up() {
            return Err(Fault::new(FaultCode::Interrupted, "while a file was read back"));
        }
        let most = (size - at).min(buffer.len() as u64) as usize;
        let read = read_at(&mut buffer[..most], at).map_err(blame_target)?;
        if read == 0 {
            let detail = format!("{at} bytes could be read back of {size}");
            return Err(Fault::new(FaultCode::TargetWrite, detail));
        }
        hasher.update(&buffer[..read]);
        observe(&buffer[..read]);
        at += read as u64;
    }
    Ok(hasher.finish())
}

/// Digests of the file under the final name; none if it changed meanwhile.
pub(super) fn digest_present(
    present: &dyn SourceFile,
    algorithms: impl IntoIterator<Item = Algorithm>,
    given_up: CancelCheck<'_>,
    observe: ChunkObserver<'_>,
) -> Result<Option<DigestSet>, Fault> {
    let before = present.identity();
    let read = |buffer: &mut [u8], at: u64| present.read_at(buffer, at);
    let digests = digest_whole(before.size, algorithms, given_up, observe, read)?;
    Ok((present.identity_now().map_err(blame_target)? == before).then_some(digests))
}

/// Reads the temporary file back, in order, and verifies it.
pub(super) fn check_readback(
    file: &FetchFile,
    target: &dyn TargetFile,
    whole: PartDigest,
    resumed: bool,
    given_up: CancelCheck<'_>,
) -> Result<Success, Fault> {
    let algorithms = file.digests.algorithms().chain([Algorithm::Adler32, Algorithm::Crc32c]);
    let read = |buffer: &mut [u8], at: u64| target.read_at(buffer, at);
    let digests = digest_whole(file.size, algorithms, given_up, &mut |_| (), read)?;
    if let Some((handed, read)) = whole.digests().contradiction(&digests) {
        let detail = format!("{handed} was handed to the storage, it gives back {read}");
        return Err(Fault::new(FaultCode::TargetWrite, detail));
    }
    check(file, &digests, resumed)?;
    let verification = if file.verification == Verification::Readback {
        Verification::Readback
    } else {
        Verification::EndToEnd
    };
    Ok(Success { digests, verification, already_there: false })
}

fn check(file: &FetchFile, found: &DigestSet, resumed: bool) -> Result<(), Fault> {
    let Some((wanted, is)) = file.digests.contradiction(found) else { return Ok(()) };
    let fault = Fault::new(FaultCode::WrongDigest, format!("the bytes have {is}, {wanted} is registered"));
    if resumed {
        // Parts written by an earlier attempt were trusted, and may be to blame. The next attempt starts from
        // scratch.
        return Err(fault.blaming(Blame::Target).retrying(Retry::Now));
    }
    Err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{AttemptId, Epoch, TransferId};

    fn file(bytes: &[u8], algorithms: &[Algorithm], verification: Verification) -> FetchFile {
        let mut hasher = Hasher::new(algorithms.iter().copied());
        hasher.update(bytes);
        FetchFile {
            attempt: AttemptId(1),
            transfer: TransferId(1),
            epoch: Epoch(1),
            lfn: "a".parse().unwrap(),
            size: bytes.len() as u64,
            digests: hasher.finish(),
            verification,
            replaces_damaged: false,
            tree: None,
            priority: 0,
        }
    }

    /// Promise 2: the record states how a file was verified, and never more than was proven.
    #[test]
    fn the_verification_states_what_was_proven() {
        let bytes = b"some bytes";
        let whole = PartDigest::compute(bytes);
        let proven = |algorithms: &[Algorithm], asked| {
            let file = file(bytes, algorithms, asked);
            (needs_readback(&file), check_memory(&file, bytes, whole).unwrap().verification)
        };
        assert_eq!(proven(&[], Verification::EndToEnd), (false, Verification::EndToEnd));
        assert_eq!(proven(&[], Verification::Wire), (false, Verification::Wire));
        assert_eq!(proven(&[Algorithm::Adler32], Verification::Wire), (false, Verification::EndToEnd));
        assert_eq!(proven(&[Algorithm::Md5], Verification::EndToEnd), (true, Verification::EndToEnd));
        assert_eq!(
            proven(&[Algorithm::Md5, Algorithm::Crc32c], Verification::EndToEnd),
            (false, Verification::EndToEnd)
        );
        assert!(proven(&[Algorithm::Crc32c], Verification::Readback).0);
    }

    #[test]
    fn a_wrong_digest_blames_source_or_target() {
        for algorithm in
            [Algorithm::Adler32, Algorithm::Crc32c, Algorithm::Blake3, Algorithm::Sha256, Algorithm::Md5]
        {
            let file = file(b"right", &[algorithm], Verification::EndToEnd);
            let fault = check_memory(&file, b"wrong", PartDigest::compute(b"wrong")).unwrap_err();
            assert_eq!((fault.code, fault.blame), (FaultCode::WrongDigest, Blame::Source), "{algorithm}");
        }
        let file = file(b"right", &[Algorithm::Adler32], Verification::EndToEnd);
        let fault = check_combined(&file, PartDigest::compute(b"wrong"), true).unwrap_err();
        assert_eq!((fault.blame, fault.retry), (Blame::Target, Retry::Now));
    }
}
