//! A copy within this host, with the same progress and outcomes as the other kinds.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use longhaul_model::{Fault, FaultCode, Verification};
use parking_lot::Mutex;

use crate::listing_diff::policy;
use crate::local::{
    self, LocalOptions, LocalOutcome, LocalPlan, LocalRequest, Observer, PlannedEntry, PlannedFile,
    VerifiedBy,
};
use crate::options::Options;
use crate::progress::{FileCallback, FileOutcome, Outcome, Progress};
use crate::rules::Decision;
use crate::stop::{Stop, interrupted};
use crate::walk::{DirectoryEntry, LeftOutEntry};

/// A file outcome that waits to be reported.
type PendingOutcome = FileOutcome;

pub(crate) fn run(
    sources: &[PathBuf],
    target: &Path,
    options: &Options,
    progress: &Progress,
    stop: &Stop,
    tell: FileCallback<'_>,
) -> Result<(), Fault> {
    let filters = options
        .filters()
        .map_err(|error| Fault::new(FaultCode::BadRequest, error.to_string()).with_source(error))?;
    let plan = LocalPlan::prepare(LocalRequest {
        sources: sources.iter().map(|source| text(source)).collect::<Result<_, _>>()?,
        target: text(target)?,
        recursive: options.recursive,
        filters,
        policy: policy(options),
    })?;
    let needed = count_ahead(&plan, options, progress, stop, &mut *tell)?;
    if options.dry_run {
        return Ok(());
    }
    let cancel = std::sync::Arc::new(AtomicBool::new(false));
    let cancelled = cancel.clone();
    let _hook = stop.hook(move || cancelled.store(true, Ordering::Relaxed));
    let (to, told) = channel();
    let observer = ProgressObserver {
        plan: &plan,
        progress,
        outcomes: Mutex::new(to),
        rate_limit: options
            .limit
            .map(|limit| Mutex::new(RateLimit { limit, begun: Instant::now(), bytes: 0 })),
    };
    let local_options = LocalOptions { verification: options.verification, ..LocalOptions::default() };
    let copied = std::thread::scope(|scope| {
        let (plan, options, cancel) = (&plan, &local_options, &*cancel);
        let copying = scope.spawn(move || {
            let copied = local::copy(plan, needed, options, &observer, cancel);
            // The loop below ends when the observer's sender is dropped.
            drop(observer);
            copied
        });
        told.iter().for_each(|outcome| tell(&outcome));
        copying.join()
    });
    match copied {
        Ok(Ok(totals)) if totals.stopped => Err(interrupted()),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(fault)) => Err(fault),
        Err(_) => Err(Fault::new(FaultCode::Internal, "the copying thread panicked")),
    }
}

fn text(path: &Path) -> Result<String, Fault> {
    let shown = longhaul_model::units::printable(&path.to_string_lossy());
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Fault::new(FaultCode::BadName, format!("{shown}: the name is not UTF-8")))
}

/// Counts files and bytes in advance; a dry run ends here.
fn count_ahead(
    plan: &LocalPlan,
    options: &Options,
    progress: &Progress,
    stop: &Stop,
    tell: FileCallback<'_>,
) -> Result<u64, Fault> {
    let mut needed = 0;
    for planned in plan.files()? {
        stop.check()?;
        let file = match planned? {
            PlannedEntry::File(file) => file,
            PlannedEntry::Directory(_) | PlannedEntry::LeftOut(_) => continue,
        };
        progress.change(|totals| {
            totals.files += 1;
            totals.bytes += file.size;
        });
        if matches!(file.decision, Decision::Copy { .. } | Decision::NeedDigests) {
            needed += file.size;
        }
        if options.dry_run {
            let outcome = match &file.decision {
                Decision::Copy { replaces } => Outcome::WouldCopy { replaces: *replaces },
                Decision::NeedDigests => Outcome::WouldCopy { replaces: true },
                Decision::Skip(reason) => Outcome::Skipped(*reason),
                Decision::Refuse(fault) => Outcome::Failed(fault.clone()),
            };
            count_outcome(progress, &file, &outcome);
            tell(&file_outcome(plan, &file, outcome));
        }
    }
    progress.change(|totals| totals.listed = true);
    Ok(needed)
}

fn count_outcome(progress: &Progress, file: &PlannedFile, outcome: &Outcome) {
    match outcome {
        Outcome::Failed(fault) => progress.fail(&file.shown_source(), fault),
        Outcome::Skipped(_) => progress.change(|totals| {
            totals.files_skipped += 1;
            totals.bytes_skipped += file.size;
        }),
        _ => {}
    }
}

fn file_outcome(plan: &LocalPlan, file: &PlannedFile, outcome: Outcome) -> FileOutcome {
    FileOutcome {
        source: file.shown_source(),
        target: plan.shown_target(&file.target),
        size: file.size,
        outcome,
        replicas: Vec::new(),
    }
}

/// Passes events of the copying threads to progress and to the reporting thread.
struct ProgressObserver<'a> {
    plan: &'a LocalPlan,
    progress: &'a Progress,
    outcomes: Mutex<Sender<PendingOutcome>>,
    rate_limit: Option<Mutex<RateLimit>>,
}

struct RateLimit {
    limit: u64,
    begun: Instant,
    bytes: u64,
}

impl ProgressObserver<'_> {
    fn send(&self, outcome: PendingOutcome) {
        let to = self.outcomes.lock();
        // The receiver lives as long as the copy.
        let _ = to.send(outcome);
    }
}

impl Observer for ProgressObserver<'_> {
    fn bytes(&self, count: u64) {
        self.progress.change(|totals| {
            totals.bytes_running += count;
            totals.bytes_moved += count;
        });
        let Some(pace) = &self.rate_limit else { return };
        let mut pace = pace.lock();
        pace.bytes += count;
        let due = Duration::from_secs_f64(pace.bytes as f64 / pace.limit as f64);
        let ahead = due.saturating_sub(pace.begun.elapsed());
        drop(pace);
        if !ahead.is_zero() {
            std::thread::sleep(ahead);
        }
    }

    fn file(&self, file: &PlannedFile, end: &Result<LocalOutcome, Fault>) {
        let outcome = match end {
            Err(fault) => Outcome::Failed(fault.clone()),
            Ok(LocalOutcome::Skipped(reason)) => Outcome::Skipped(*reason),
            Ok(LocalOutcome::Copied { verified, .. }) => {
                self.progress.change(|totals| {
                    totals.files_done += 1;
                    totals.bytes_done += file.size;
                    totals.bytes_running = totals.bytes_running.saturating_sub(file.size);
                    match verified {
                        VerifiedBy::EndToEnd => totals.verified_end_to_end += 1,
                        VerifiedBy::Readback => totals.verified_readback += 1,
                        VerifiedBy::SharedBlocks | VerifiedBy::SizeOnly => totals.verified_local += 1,
                    }
                });
                let verification = match verified {
                    VerifiedBy::Readback => Verification::Readback,
                    VerifiedBy::EndToEnd => Verification::EndToEnd,
                    VerifiedBy::SharedBlocks | VerifiedBy::SizeOnly => Verification::Wire,
                };
                Outcome::Done { verification }
            }
        };
        count_outcome(self.progress, file, &outcome);
        self.send(file_outcome(self.plan, file, outcome));
    }

    fn directory(&self, directory: &DirectoryEntry, end: &Result<(), Fault>) {
        match end {
            Ok(()) => self.progress.change(|totals| totals.directories += 1),
            Err(fault) => self.progress.fail(&directory.path.shown(), fault),
        }
    }

    fn left_out(&self, entry: &LeftOutEntry) {
        self.progress.change(|totals| totals.left_out += 1);
        self.send(FileOutcome {
            source: entry.path.clone(),
            target: String::new(),
            size: 0,
            outcome: Outcome::LeftOut(entry.detail.clone()),
            replicas: Vec::new(),
        });
    }
}
