//! Copies between two directories of this host.
//!
//! A file appears under its name only when it is complete, flushed and verified (promises 1 and 2): it is
//! written under a temporary name in `.longhaul/` of the target directory, through `storage`. Small files are
//! committed in groups (group commit). Mode and modification time are kept. A copy that was stopped resumes
//! when the command is repeated, since complete files compare equal and are skipped.
//!
//! Several files are copied in parallel, each with one buffer of 1 MiB; the list of files is never held in
//! memory.
//!
//! Not here: other hosts, command-line syntax. Start with [`LocalPlan::prepare`], then [`copy`].

mod bytes;
mod plan;
mod temps;
mod tree;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_model::limits::SMALL_FILE_BYTES;
use longhaul_model::{Algorithm, Digest, Fault, FaultCode, Pfn, Verification};
use longhaul_storage::{Commit, FlushPolicy, Storage, TempName, digest_file};
use parking_lot::Mutex;
use serde::Serialize;

use crate::report;
use crate::rules::{Decision, SkipReason};
use crate::walk::{DirectoryEntry, LeftOutEntry};
pub use plan::{LocalPlan, LocalRequest, PlannedEntries, PlannedEntry, PlannedFile};
pub use tree::{SourceTree, TargetTree};

/// More parallel files would only make a disk seek; each needs a thread and a buffer.
pub const FILES_AT_ONCE_MAX: usize = 64;
/// Small files per commit: they share one flush and one directory sync.
const COMMIT_FILES_MAX: usize = 256;
const COMMIT_BYTES_MAX: u64 = 16 << 20;
/// Open targets: each holds three descriptors and a work directory.
const TARGETS_OPEN_MAX: usize = 16;

#[derive(Clone, Debug)]
pub struct LocalOptions {
    pub verification: Verification,
    /// Use reflinks where the file system supports them.
    pub clone: bool,
    /// Use `copy_file_range` where no digest is requested.
    pub kernel_copy: bool,
    pub files_at_once: usize,
    pub flush: FlushPolicy,
    pub digest: Algorithm,
}

impl Default for LocalOptions {
    fn default() -> Self {
        LocalOptions {
            verification: Verification::EndToEnd,
            clone: true,
            kernel_copy: true,
            // Two keep a disk and a core busy; a local copy gains nothing beyond four.
            files_at_once: std::thread::available_parallelism().map_or(2, usize::from).clamp(1, 4),
            flush: FlushPolicy::FileAndDirectory,
            digest: bytes::DIGEST_DEFAULT,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    Clone,
    Kernel,
    ReadWrite,
}

/// How the target's bytes were verified. No kind is ever reported as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifiedBy {
    /// The target shares the source's blocks; nothing was read or compared.
    SharedBlocks,
    /// The kernel copied the right number of bytes; no digest was computed.
    SizeOnly,
    /// The reported digest is that of the bytes handed to the target.
    EndToEnd,
    /// As end to end, and read back from the target and compared.
    Readback,
}

impl fmt::Display for VerifiedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            VerifiedBy::SharedBlocks => "shared-blocks",
            VerifiedBy::SizeOnly => "size-only",
            VerifiedBy::EndToEnd => "end-to-end",
            VerifiedBy::Readback => "readback",
        })
    }
}

/// How a file ended without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOutcome {
    Copied { method: Method, verified: VerifiedBy, digest: Option<Digest> },
    Skipped(SkipReason),
}

impl LocalOutcome {
    /// The row of a report for it.
    pub fn outcome(&self, size: u64) -> report::Outcome {
        match self {
            LocalOutcome::Copied { verified, digest, .. } => {
                report::Outcome::ok("copied", size).verified(verified.to_string(), *digest)
            }
            LocalOutcome::Skipped(reason) => report::Outcome::ok(format!("skipped: {}", reason.text()), size),
        }
    }
}

/// Receives events of a copy, from several threads.
pub trait Observer: Sync {
    /// `count` more bytes were written, though not committed yet. May block: that is how a rate limit slows
    /// the copy down.
    fn bytes(&self, count: u64);
    /// Called exactly once for each file.
    fn file(&self, file: &PlannedFile, end: &Result<LocalOutcome, Fault>);
    fn directory(&self, directory: &DirectoryEntry, end: &Result<(), Fault>);
    fn left_out(&self, entry: &LeftOutEntry);
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LocalTotals {
    pub copied_files: u64,
    pub copied_bytes: u64,
    pub cloned_files: u64,
    pub skipped_files: u64,
    pub skipped_bytes: u64,
    pub failed_files: u64,
    pub made_directories: u64,
    pub left_out: u64,
    pub excluded: u64,
    /// The copy was stopped before all files were processed.
    pub stopped: bool,
}

/// Runs the plan. `needed_bytes` is the total of the plan; the copy is refused at once if it does not fit. An
/// error concerns the copy as a whole; each file's own fault goes to `observer`.
pub fn copy(
    plan: &LocalPlan,
    needed_bytes: u64,
    options: &LocalOptions,
    observer: &dyn Observer,
    cancel: &AtomicBool,
) -> Result<LocalTotals, Fault> {
    copy_to(&OpenTargets::default(), plan, needed_bytes, options, observer, cancel)
}

/// As [`copy`], reusing targets that an earlier copy opened: for many copies into the same few directories.
pub fn copy_to(
    targets: &OpenTargets,
    plan: &LocalPlan,
    needed_bytes: u64,
    options: &LocalOptions,
    observer: &dyn Observer,
    cancel: &AtomicBool,
) -> Result<LocalTotals, Fault> {
    let target = targets.open(plan, options.flush)?;
    let clones = options.clone && plan.trees().all(|source| target.clones_from(source));
    target.check_space(needed_bytes, clones)?;
    let run = LocalRun {
        plan,
        target: &target,
        options,
        observer,
        cancel,
        files: Mutex::new((plan.files()?, None)),
        totals: Mutex::default(),
        first_fault: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 0..options.files_at_once.clamp(1, FILES_AT_ONCE_MAX) {
            scope.spawn(|| run.work());
        }
    });
    if let Some(fault) = run.first_fault.into_inner() {
        return Err(fault);
    }
    let mut totals = run.totals.into_inner();
    totals.excluded = run.files.into_inner().0.excluded();
    totals.stopped = cancel.load(Ordering::Relaxed);
    Ok(totals)
}

/// Most recently used target directories, kept open (LRU).
#[derive(Default)]
pub struct OpenTargets(Mutex<VecDeque<Arc<TargetTree>>>);

impl OpenTargets {
    fn open(&self, plan: &LocalPlan, flush: FlushPolicy) -> Result<Arc<TargetTree>, Fault> {
        let mut open = self.0.lock();
        let same = |tree: &Arc<TargetTree>| tree.root() == plan.root() && tree.flush() == flush;
        let tree = match open.iter().position(same).and_then(|at| open.remove(at)) {
            Some(tree) => tree,
            None => Arc::new(plan.open_target(flush)?),
        };
        open.push_front(Arc::clone(&tree));
        open.truncate(TARGETS_OPEN_MAX);
        Ok(tree)
    }
}

struct LocalRun<'a> {
    plan: &'a LocalPlan,
    target: &'a TargetTree,
    options: &'a LocalOptions,
    observer: &'a dyn Observer,
    cancel: &'a AtomicBool,
    /// The entries, and one file that was taken too early and goes first.
    files: Mutex<(PlannedEntries<'a>, Option<PlannedFile>)>,
    totals: Mutex<LocalTotals>,
    /// The first fault that concerns a whole source.
    first_fault: Mutex<Option<Fault>>,
}

/// A file whose temporary file is complete.
struct PendingCommit {
    file: PlannedFile,
    temp: TempName,
    done: LocalOutcome,
}

impl LocalRun<'_> {
    fn work(&self) {
        let mut buffer = vec![0; bytes::BUFFER_BYTES];
        loop {
            let pack = self.next_batch();
            if pack.is_empty() {
                return;
            }
            let mut ready = Vec::with_capacity(pack.len());
            for file in pack {
                match self.prepare(&file, &mut buffer) {
                    Ok(Some((temp, done))) => ready.push(PendingCommit { file, temp, done }),
                    Ok(None) => {}
                    Err(fault) => self.end(&file, Err(fault)),
                }
            }
            self.commit(ready);
        }
    }

    /// Takes the next files to copy: one large file, or a batch of small ones. Empty at the end.
    fn next_batch(&self) -> Vec<PlannedFile> {
        let mut files = self.files.lock();
        let mut pack: Vec<PlannedFile> = Vec::new();
        let mut pack_bytes = 0;
        while pack.len() < COMMIT_FILES_MAX
            && pack_bytes < COMMIT_BYTES_MAX
            && !self.cancel.load(Ordering::Relaxed)
        {
            let next = match files.1.take() {
                Some(file) => Some(file),
                None => self.next_file(&mut files.0),
            };
            let Some(file) = next else { break };
            let is_small = file.size <= SMALL_FILE_BYTES && file.decision != Decision::NeedDigests;
            if !is_small && !pack.is_empty() {
                files.1 = Some(file);
                break;
            }
            pack_bytes += file.size;
            pack.push(file);
            if !is_small {
                break;
            }
        }
        pack
    }

    /// Handles entries that need no copying and returns the first file that does.
    fn next_file(&self, files: &mut PlannedEntries<'_>) -> Option<PlannedFile> {
        while !self.cancel.load(Ordering::Relaxed) {
            match files.next()? {
                Err(fault) => {
                    self.first_fault.lock().get_or_insert(fault);
                }
                Ok(PlannedEntry::LeftOut(entry)) => {
                    self.count(|totals| totals.left_out += 1);
                    self.observer.left_out(&entry);
                }
                Ok(PlannedEntry::Directory(directory)) => self.make_directory(&directory),
                Ok(PlannedEntry::File(file)) => match file.decision.clone() {
                    Decision::Skip(reason) => self.end(&file, Ok(LocalOutcome::Skipped(reason))),
                    Decision::Refuse(fault) => self.end(&file, Err(fault)),
                    Decision::Copy { .. } | Decision::NeedDigests => return Some(file),
                },
            }
        }
        None
    }

    fn make_directory(&self, directory: &DirectoryEntry) {
        let end = self.target.make_directory(&directory.path, directory.mode, directory.mtime_ns);
        match &end {
            Ok(()) => self.count(|totals| totals.made_directories += 1),
            Err(_) => self.count(|totals| totals.failed_files += 1),
        }
        self.observer.directory(directory, &end);
    }

    /// Writes a file under its temporary name. None if it turns out that nothing has to be done.
    fn prepare(
        &self,
        file: &PlannedFile,
        buffer: &mut [u8],
    ) -> Result<Option<(TempName, LocalOutcome)>, Fault> {
        if file.decision == Decision::NeedDigests {
            match self.compare(file, buffer)? {
                Decision::Skip(reason) => {
                    self.end(file, Ok(LocalOutcome::Skipped(reason)));
                    return Ok(None);
                }
                Decision::Refuse(fault) => return Err(fault),
                Decision::Copy { .. } => {}
                Decision::NeedDigests => {
                    return Err(Fault::new(FaultCode::Internal, "digests of the same kind did not compare"));
                }
            }
        }
        let work = bytes::FileCopy {
            source: &file.tree,
            target: self.target,
            options: self.options,
            observer: self.observer,
            cancel: self.cancel,
        };
        let temp = temps::new_name();
        match work.fill(file, &temp, buffer) {
            Ok(bytes::FilledFile { method, verified, digest }) => {
                Ok(Some((temp, LocalOutcome::Copied { method, verified, digest })))
            }
            Err(fault) => {
                self.discard(&temp);
                Err(fault)
            }
        }
    }

    /// Digests both files and decides again.
    fn compare(&self, file: &PlannedFile, buffer: &mut [u8]) -> Result<Decision, Fault> {
        let mut digest = |storage: &dyn Storage, at: Pfn| -> Result<Digest, Fault> {
            let (digests, _) = digest_file(storage, &at, [self.options.digest], buffer)?;
            let wrong = || Fault::new(FaultCode::Internal, "no digest was computed");
            digests.get(self.options.digest).ok_or_else(wrong)
        };
        let of_source = digest(file.tree.storage(), file.tree.pfn(&file.source)?)?;
        let of_target = digest(self.target.storage(), self.target.pfn(&file.target)?)
            .map_err(|fault| fault.blaming(longhaul_model::Blame::Target))?;
        let shown = self.target.shown(&file.target);
        Ok(file.decide_with(self.plan.policy(), of_source, of_target, &shown))
    }

    /// Commits complete files with mode and time in one group. Only what was planned to be replaced may be
    /// replaced.
    fn commit(&self, ready: Vec<PendingCommit>) {
        let mut commits = Vec::with_capacity(ready.len());
        let mut committed = Vec::with_capacity(ready.len());
        for ready in ready {
            match self.target.pfn(&ready.file.target) {
                Ok(target) => {
                    commits.push(Commit {
                        mode: Some(ready.file.mode),
                        mtime_ns: Some(ready.file.mtime_ns),
                        replaces: ready.file.existing.clone(),
                        ..Commit::new(ready.temp.clone(), target, ready.file.size)
                    });
                    committed.push(ready);
                }
                Err(fault) => self.fail(&ready, fault),
            }
        }
        if commits.is_empty() {
            return;
        }
        for (ready, result) in committed.iter().zip(self.target.storage().commit(&commits)) {
            match result {
                Ok(()) => self.end(&ready.file, Ok(ready.done)),
                Err(fault) => self.fail(ready, fault),
            }
        }
    }

    fn fail(&self, ready: &PendingCommit, fault: Fault) {
        self.discard(&ready.temp);
        self.end(&ready.file, Err(fault));
    }

    fn discard(&self, temp: &TempName) {
        // On failure, the next copy into this directory removes it.
        let _ = self.target.storage().remove_temp(temp);
    }

    fn end(&self, file: &PlannedFile, end: Result<LocalOutcome, Fault>) {
        self.count(|totals| match &end {
            Ok(LocalOutcome::Copied { method, .. }) => {
                totals.copied_files += 1;
                totals.copied_bytes += file.size;
                totals.cloned_files += u64::from(*method == Method::Clone);
            }
            Ok(LocalOutcome::Skipped(_)) => {
                totals.skipped_files += 1;
                totals.skipped_bytes += file.size;
            }
            Err(_) => totals.failed_files += 1,
        });
        self.observer.file(file, &end);
    }

    fn count(&self, change: impl FnOnce(&mut LocalTotals)) {
        change(&mut self.totals.lock());
    }
}
