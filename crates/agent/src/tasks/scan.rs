//! Registers existing files: walks a directory, digests every file in parallel (or asks the storage's server
//! for its digest), reports in batches.

use std::ops::ControlFlow;
use std::time::Duration;

use longhaul_api::agent::{Fact, FoundFile, LeftOut, LeftOutReason};
use longhaul_model::{Algorithm, DigestOrigin, DigestSet, Fault, FaultCode, Lfn, Pfn, TaskId, units};
use longhaul_storage::{Identity, SkipReason, Visit};

use super::cache::ScanCache;
use super::digest::{BUFFER_BYTES, digest};
use super::{TaskRun, parallel};
use crate::threads::guarded;

/// Files and left-out entries in one fact.
pub(crate) const FACT_ITEMS_MAX: usize = 1_000;
/// A partial batch is reported after this long without a new file, so that large files show progress.
const BATCH_IDLE_MAX: Duration = Duration::from_secs(1);

/// The digests that a scan registers files with.
#[derive(Clone, Copy)]
pub(crate) struct ScanDigests<'a> {
    pub algorithms: &'a [Algorithm],
    /// With [`DigestOrigin::Told`], files of which the server tells nothing are read.
    pub origin: DigestOrigin,
}

/// Runs a scan to its end. The error is what kept it from being complete.
pub(crate) fn run(bench: &TaskRun<'_>, path: &str, digests: &ScanDigests<'_>) -> Result<(), Fault> {
    let cache = match ScanCache::open(&bench.scans, bench.task) {
        Ok(cache) => Some(cache),
        Err(error) => {
            tracing::warn!(task = %bench.task, %error, "the scan goes on without a cache: a restart will \
                read all again");
            None
        }
    };
    let mut batch = Batch { bench, found: Vec::new(), left_out: Vec::new(), internal: None };
    let walked = parallel::run(
        bench.threads,
        BUFFER_BYTES,
        BATCH_IDLE_MAX,
        |give| bench.storage.walk(path, &mut |visit| give(classify(bench, visit))),
        |job, buffer| examine(bench, cache.as_ref(), digests, job, buffer),
        |examined| match examined {
            Some(examined) => batch.add(examined),
            None => batch.emit(),
        },
    );
    // A break means that we are to stop, which the caller checks first.
    let _ = batch.emit();
    walked.and_then(|walked| walked)?;
    batch.internal.map_or(Ok(()), Err)
}

/// A file to digest, or an entry that is not a file.
enum ScanItem {
    File { at: Pfn, lfn: Lfn, identity: Identity },
    LeftOut(LeftOut),
}

enum ScanResult {
    Found(FoundFile),
    LeftOut(LeftOut),
    /// A defect of ours: the file is left out, and the scan ends with this fault.
    Internal(LeftOut, Fault),
    Stopped,
}

fn classify(bench: &TaskRun<'_>, visit: Visit) -> ScanItem {
    match visit {
        Visit::File { at, identity } => match bench.rules.to_lfn(&at) {
            Ok(lfn) => ScanItem::File { at, lfn, identity },
            Err(error) => ScanItem::LeftOut(left_out(&at, LeftOutReason::NameRules, error.to_string())),
        },
        Visit::Skipped { path, reason, detail } => {
            ScanItem::LeftOut(LeftOut { path, reason: reason_of(reason), detail })
        }
    }
}

fn examine(
    bench: &TaskRun<'_>,
    cache: Option<&ScanCache>,
    digests: &ScanDigests<'_>,
    job: ScanItem,
    buffer: &mut [u8],
) -> ScanResult {
    let (at, lfn, identity) = match job {
        ScanItem::File { at, lfn, identity } => (at, lfn, identity),
        ScanItem::LeftOut(left_out) => return ScanResult::LeftOut(left_out),
    };
    let ScanDigests { algorithms, origin } = *digests;
    let found = |size, digests, origin| ScanResult::Found(FoundFile { lfn, size, digests, origin });
    if let Some(digests) = cache.and_then(|cache| cache.find(&at, &identity, algorithms)) {
        return found(identity.size, digests, DigestOrigin::Computed);
    }
    let examine = || {
        if origin == DigestOrigin::Told
            && let Some((identity, digests)) = query_told_digests(bench, &at, algorithms)?
        {
            return Ok((identity, digests, DigestOrigin::Told));
        }
        let (digests, identity) = digest(bench.storage, &at, algorithms.iter().copied(), buffer, bench.stop)?;
        if let Some(Err(error)) = cache.map(|cache| cache.add(&at, &identity, &digests)) {
            tracing::debug!(task = %bench.task, %error, "the scan's cache cannot be written");
        }
        Ok((identity, digests, DigestOrigin::Computed))
    };
    match guarded("digesting a file", examine).and_then(|digested| digested) {
        Ok((identity, digests, origin)) => found(identity.size, digests, origin),
        Err(fault) => match fault.code {
            FaultCode::Cancelled => ScanResult::Stopped,
            FaultCode::SourceChanged | FaultCode::SourceMissing | FaultCode::SourceTruncated => {
                ScanResult::LeftOut(left_out(&at, LeftOutReason::ChangedWhileReading, fault.detail))
            }
            FaultCode::Internal => {
                ScanResult::Internal(left_out(&at, LeftOutReason::Unreadable, fault.to_string()), fault)
            }
            _ => ScanResult::LeftOut(left_out(&at, LeftOutReason::Unreadable, fault.detail)),
        },
    }
}

/// What the storage's server tells of a file.
fn query_told_digests(
    bench: &TaskRun<'_>,
    at: &Pfn,
    algorithms: &[Algorithm],
) -> Result<Option<(Identity, DigestSet)>, Fault> {
    if bench.stop.is_set() {
        return Err(Fault::new(FaultCode::Cancelled, at.to_string()));
    }
    bench.storage.told_digests(at, algorithms)
}

fn left_out(at: &Pfn, reason: LeftOutReason, detail: String) -> LeftOut {
    LeftOut { path: units::printable(at.path()), reason, detail }
}

fn reason_of(reason: SkipReason) -> LeftOutReason {
    match reason {
        SkipReason::LinkLeadsOut => LeftOutReason::LinkLeadsOut,
        SkipReason::BrokenLink => LeftOutReason::BrokenLink,
        SkipReason::Device => LeftOutReason::Device,
        SkipReason::Socket => LeftOutReason::Socket,
        SkipReason::Fifo => LeftOutReason::Fifo,
        SkipReason::NotUtf8 => LeftOutReason::NotUtf8,
        SkipReason::NameRules => LeftOutReason::NameRules,
        SkipReason::EmptyDirectory => LeftOutReason::EmptyDirectory,
        SkipReason::Unreadable => LeftOutReason::Unreadable,
    }
}

/// Gathers results into facts.
struct Batch<'a> {
    bench: &'a TaskRun<'a>,
    found: Vec<FoundFile>,
    left_out: Vec<LeftOut>,
    /// The first of our own defects.
    internal: Option<Fault>,
}

impl Batch<'_> {
    fn add(&mut self, examined: ScanResult) -> ControlFlow<()> {
        match examined {
            ScanResult::Found(file) => self.found.push(file),
            ScanResult::LeftOut(left_out) => self.left_out.push(left_out),
            ScanResult::Internal(left_out, fault) => {
                self.left_out.push(left_out);
                self.internal.get_or_insert(fault);
            }
            ScanResult::Stopped => return ControlFlow::Break(()),
        }
        if self.found.len() + self.left_out.len() >= FACT_ITEMS_MAX {
            self.emit()
        } else {
            ControlFlow::Continue(())
        }
    }

    fn emit(&mut self) -> ControlFlow<()> {
        if self.bench.stop.is_set() {
            return ControlFlow::Break(());
        }
        if self.found.is_empty() && self.left_out.is_empty() {
            return ControlFlow::Continue(());
        }
        let fact = Fact::Scanned {
            task: self.bench.task,
            found: std::mem::take(&mut self.found),
            left_out: std::mem::take(&mut self.left_out),
        };
        self.bench.emit(&fact)
    }
}

/// Removes the digest cache of a scan.
pub(crate) fn remove_cache(scans: &std::path::Path, task: TaskId) {
    if let Ok(cache) = ScanCache::open(scans, task) {
        cache.remove();
    }
}
