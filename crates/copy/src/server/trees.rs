//! BLAKE3 chunk values of exported files, for clients that fetch from several servers or trust none.

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::tree::{ChunkValue, chunk_value, values_of};
use longhaul_model::{Fault, FaultCode, Pfn};
use longhaul_storage::Storage;

use crate::protocol::{ChunkValues, TreeAnswer, TreePart};
use crate::site::{EXPORT, storage_name};

const CHUNK: u64 = CHUNK_BYTES as u64;

/// Computes the values of one part. `buffer` holds a chunk.
pub(super) fn answer(export: &dyn Storage, part: &TreePart, buffer: &mut [u8]) -> TreeAnswer {
    match values(export, part, buffer) {
        Ok((values, mtime_ns)) => TreeAnswer::Values { mtime_ns, values: ChunkValues(values) },
        Err(fault) => TreeAnswer::Fault(fault),
    }
}

fn values(export: &dyn Storage, part: &TreePart, buffer: &mut [u8]) -> Result<(Vec<ChunkValue>, i64), Fault> {
    let at = Pfn::new(storage_name(EXPORT), part.path.as_str())?;
    let file = export.open(&at)?;
    let before = file.identity();
    if before.size != part.size {
        let code =
            if before.size < part.size { FaultCode::SourceTruncated } else { FaultCode::SourceChanged };
        let detail = format!("{at} has {} bytes, expected {}", before.size, part.size);
        return Err(Fault::new(code, detail));
    }
    let end = part.first.checked_add(part.count.into()).filter(|end| *end <= values_of(part.size));
    let Some(end) = end else {
        let detail = format!("{at} has {} chunks", values_of(part.size));
        return Err(Fault::new(FaultCode::BadRequest, detail));
    };
    let mut values = Vec::with_capacity(part.count as usize);
    for place in part.first..end {
        let offset = place * CHUNK;
        let len = (part.size - offset).min(CHUNK) as usize;
        file.read_exact_at(&mut buffer[..len], offset)?;
        values.push(chunk_value(offset, &buffer[..len], part.size));
    }
    if file.identity_now()? != before {
        return Err(Fault::new(FaultCode::SourceChanged, format!("{at} changed while it was being read")));
    }
    Ok((values, before.mtime_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RelativePath;
    use longhaul_model::Tree;
    use longhaul_storage::{FlushPolicy, Posix, PosixOptions};

    fn export(root: &std::path::Path) -> Posix {
        let (name, root) = (storage_name(EXPORT), root.to_owned());
        Posix::open(PosixOptions { name, root, work: None, writable: false, flush: FlushPolicy::None })
            .unwrap()
    }

    fn request_values(
        export: &Posix,
        path: &str,
        size: u64,
        first: u64,
        count: u32,
    ) -> Result<Vec<ChunkValue>, FaultCode> {
        let part = TreePart { path: RelativePath::parse(path).unwrap(), size, first, count };
        match answer(export, &part, &mut vec![0; CHUNK as usize]) {
            TreeAnswer::Values { values, .. } => Ok(values.0),
            TreeAnswer::Fault(fault) => Err(fault.code),
        }
    }

    #[test]
    fn parts_make_the_tree_of_the_file() {
        let root = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..3 * CHUNK + 5).map(|at| (at % 251) as u8).collect();
        std::fs::write(root.path().join("f"), &bytes).unwrap();
        std::fs::write(root.path().join("none"), b"").unwrap();
        let (export, size) = (export(root.path()), bytes.len() as u64);
        let mut values = request_values(&export, "f", size, 0, 3).unwrap();
        values.extend(request_values(&export, "f", size, 3, 1).unwrap());
        let mut hasher = longhaul_model::Hasher::new([longhaul_model::Algorithm::Blake3]);
        hasher.update(&bytes);
        let whole = hasher.finish().get(longhaul_model::Algorithm::Blake3).unwrap();
        assert_eq!(Tree::from_values(size, values).unwrap().root(), whole);
        assert_eq!(request_values(&export, "none", 0, 0, 1).unwrap().len(), 1);
    }

    #[test]
    fn what_is_not_there_is_told() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("f"), [7; 100]).unwrap();
        let export = export(root.path());
        assert_eq!(request_values(&export, "gone", 100, 0, 1), Err(FaultCode::SourceMissing));
        assert_eq!(request_values(&export, "f", 101, 0, 1), Err(FaultCode::SourceTruncated));
        assert_eq!(request_values(&export, "f", 99, 0, 1), Err(FaultCode::SourceChanged));
        for (first, count) in [(0, 2), (1, 1), (u64::MAX, 1), (1 << 60, u32::MAX)] {
            assert_eq!(
                request_values(&export, "f", 100, first, count),
                Err(FaultCode::BadRequest),
                "{first} {count}"
            );
        }
    }
}
