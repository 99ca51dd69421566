//! Tasks over listed files: `Verify` reads each file again and compares digests, `Delete` removes each that
//! is still what the catalog says.

use std::ops::ControlFlow;
use std::time::Duration;

use longhaul_api::agent::{CheckedFile, ExpectedFile, Fact};
use longhaul_model::{Blame, Fault, FaultCode, Pfn, units};

use super::digest::{BUFFER_BYTES, digest};
use super::scan::FACT_ITEMS_MAX;
use super::{TaskRun, parallel};
use crate::threads::guarded;

/// A partial batch is reported after this long without a new result.
const BATCH_IDLE: Duration = Duration::from_secs(1);

/// Checks that each file is there with the bytes that the catalog promises.
pub(crate) fn verify(bench: &TaskRun<'_>, files: &[ExpectedFile]) -> Result<(), Fault> {
    check_each(bench, files, BUFFER_BYTES, |file, buffer| {
        let at = pfn(bench, file)?;
        let identity =
            bench.storage.stat(&at)?.ok_or_else(|| Fault::new(FaultCode::SourceMissing, at.to_string()))?;
        compare_size(&at, file.size, identity.size)?;
        if file.digests.is_empty() {
            return Err(Fault::new(
                FaultCode::BadRequest,
                format!("{at}: the catalog has no digest to compare with"),
            ));
        }
        let (digests, identity) = digest(bench.storage, &at, file.digests.algorithms(), buffer, bench.stop)?;
        compare_size(&at, file.size, identity.size)?;
        match file.digests.contradiction(&digests) {
            Some((expected, found)) => Err(Fault::new(
                FaultCode::WrongDigest,
                format!("{at} has {found}, the catalog says {expected}"),
            )),
            None => Ok(()),
        }
    })
}

/// Removes each file. A missing one counts as removed; one of another size is not the catalog's and stays.
/// Content is not compared: that would read everything that is to be deleted.
pub(crate) fn delete(bench: &TaskRun<'_>, files: &[ExpectedFile]) -> Result<(), Fault> {
    check_each(bench, files, 1, |file, _| {
        let at = pfn(bench, file)?;
        let found = bench.storage.stat(&at).map_err(|fault| fault.blaming(Blame::Target))?;
        if let Some(identity) = found.as_ref().filter(|identity| identity.size != file.size) {
            let (there, expected) = (describe_bytes(identity.size), units::count(file.size));
            return Err(Fault::new(
                FaultCode::NameClash,
                format!("{at} has {there}, the catalog says {expected}: not deleted"),
            ));
        }
        let Some(hooks) = bench.hooks else {
            return found.map_or(Ok(()), |identity| bench.storage.delete(&at, &identity));
        };
        // The hook runs as well for a file that is not on disk: the site may hold it elsewhere. It may also
        // remove the one on disk.
        hooks.delete(&at)?;
        let left = bench.storage.stat(&at).map_err(|fault| fault.blaming(Blame::Target))?;
        left.map_or(Ok(()), |identity| bench.storage.delete(&at, &identity))
    })
}

fn check_each(
    bench: &TaskRun<'_>,
    files: &[ExpectedFile],
    buffer_bytes: usize,
    check: impl Fn(&ExpectedFile, &mut [u8]) -> Result<(), Fault> + Sync,
) -> Result<(), Fault> {
    let mut batch = Vec::new();
    let produced = parallel::run(
        bench.threads,
        buffer_bytes,
        BATCH_IDLE,
        |give| files.iter().all(|file| give(file).is_continue()),
        |file: &ExpectedFile, buffer| {
            let result = guarded("checking a file", || check(file, buffer)).and_then(|checked| checked);
            CheckedFile { lfn: file.lfn.clone(), fault: result.err() }
        },
        |checked| {
            let idle = checked.is_none();
            batch.extend(checked);
            if bench.stop.is_set() {
                ControlFlow::Break(())
            } else if batch.len() >= FACT_ITEMS_MAX || (idle && !batch.is_empty()) {
                emit_batch(bench, &mut batch)
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    if !bench.stop.is_set() && !batch.is_empty() {
        let _ = emit_batch(bench, &mut batch);
    }
    produced.map(|_| ())
}

fn emit_batch(bench: &TaskRun<'_>, batch: &mut Vec<CheckedFile>) -> ControlFlow<()> {
    bench.emit(&Fact::Checked { task: bench.task, files: std::mem::take(batch) })
}

fn pfn(bench: &TaskRun<'_>, file: &ExpectedFile) -> Result<Pfn, Fault> {
    let storage = bench.storage.name();
    bench.rules.to_pfn(storage, &file.lfn).map_err(Fault::from)
}

fn describe_bytes(bytes: u64) -> String {
    units::plural(bytes, "byte", "bytes")
}

fn compare_size(at: &Pfn, expected: u64, found: u64) -> Result<(), Fault> {
    let detail =
        || format!("{at} has {}, the catalog says {}", describe_bytes(found), units::count(expected));
    match found.cmp(&expected) {
        std::cmp::Ordering::Less => Err(Fault::new(FaultCode::SourceTruncated, detail())),
        std::cmp::Ordering::Greater => Err(Fault::new(FaultCode::SourceChanged, detail())),
        std::cmp::Ordering::Equal => Ok(()),
    }
}
