//! The blake3 values of chunks of exported files, for clients that take them from several servers, or trust none.

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::tree::{ChunkValue, chunk_value, values_of};
use longhaul_model::{Fault, FaultCode, Pfn};
use longhaul_storage::{SourceFile, Storage};

use crate::protocol::{TreeAnswer, TreePart, Values};
use crate::site::{EXPORT, storage_name};

const CHUNK: u64 = CHUNK_BYTES as u64;

/// Reads the part for its values. `buffer` holds a chunk.
pub(super) fn answer(export: &dyn Storage, part: &TreePart, buffer: &mut [u8]) -> TreeAnswer {
    match values(export, part, buffer) {
        Ok((values, mtime_ns)) => TreeAnswer::Values { mtime_ns, values: Values(values) },
        Err(fault) => TreeAnswer::Fault(fault),
    }
}

fn values(export: &dyn Storage, part: &TreePart, buffer: &mut [u8]) -> Result<(Vec<ChunkValue>, i64), Fault> {
    let at = Pfn::new(storage_name(EXPORT), part.path.as_str())
        .map_err(|error| Fault::new(FaultCode::BadName, error.to_string()))?;
    let file = export.open(&at)?;
    let before = file.identity();
    if before.size != part.size {
        let code =
            if before.size < part.size { FaultCode::SourceTruncated } else { FaultCode::SourceChanged };
        let detail = format!("{at} has {} bytes, {} are expected", before.size, part.size);
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
        read(&*file, &mut buffer[..len], offset)?;
        values.push(chunk_value(offset, &buffer[..len], part.size));
    }
    if file.identity_now()? != before {
        return Err(Fault::new(FaultCode::SourceChanged, format!("{at} changed while it was read")));
    }
    Ok((values, before.mtime_ns))
}

fn read(file: &dyn SourceFile, buffer: &mut [u8], offset: u64) -> Result<(), Fault> {
    let mut filled = 0;
    while filled < buffer.len() {
        let read = file.read_at(&mut buffer[filled..], offset + filled as u64)?;
        if read == 0 {
            let detail = format!("it ends at byte {}", offset + filled as u64);
            return Err(Fault::new(FaultCode::SourceTruncated, detail));
        }
        filled += read;
    }
    Ok(())
}
