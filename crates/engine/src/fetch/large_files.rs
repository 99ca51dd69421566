//! Large files: flushed in batches while they grow, so that a power failure costs one batch at most (promise
//! 4), and committed when complete.

use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Hasher};
use longhaul_wire::journal::Record;

use super::job::Job;
use super::target::Target;
use super::verify;
use crate::context::EngineContext;
use crate::interface::Success;
use crate::sync::catch_panic;

/// Written bytes are flushed after this long at the latest.
const FLUSH_INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Interval of the check for overdue flushes.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Large files committed together.
const LARGE_COMMITS_MAX: usize = 256;

/// Work of the flushing thread.
pub(crate) enum LargeFileTask {
    Flush(Arc<Job>),
    Commit(Arc<Job>),
}

impl Target {
    /// The number of flushing threads: each disk has one.
    pub(crate) fn flushers(&self) -> usize {
        self.disks.len()
    }

    /// Runs the flushing thread of a disk.
    pub(crate) fn run_flusher(&self, disk: usize, shared: &Arc<EngineContext>) {
        let tasks = &self.disks[disk].large_tasks;
        while let Some(items) = tasks.take_many(LARGE_COMMITS_MAX, QUEUE_POLL_INTERVAL) {
            let mut complete = Vec::new();
            for item in items {
                match item {
                    LargeFileTask::Flush(job) => self.flush_guarded(&job, shared),
                    LargeFileTask::Commit(job) => {
                        complete.extend(self.verdict_guarded(&job, shared).map(|success| (job, success)))
                    }
                }
            }
            if !complete.is_empty() {
                self.commit_guarded(complete, shared);
            }
            self.flush_overdue(disk, shared);
        }
    }

    fn flush_overdue(&self, disk: usize, shared: &Arc<EngineContext>) {
        let now = shared.now();
        // None may end while the list is locked.
        let (mut old, mut young) = (Vec::new(), Vec::new());
        self.unflushed.lock().retain(|(job, since)| {
            let Some(job) = job.upgrade() else { return false };
            let due = now.saturating_sub(*since) >= FLUSH_INTERVAL_MAX && job.is_on_disk(disk);
            if due {
                old.push(job)
            } else {
                young.push(job)
            }
            !due
        });
        old.iter().for_each(|job| self.flush_guarded(job, shared));
    }

    fn flush_guarded(&self, job: &Arc<Job>, shared: &Arc<EngineContext>) {
        if let Err(fault) = catch_panic("flushing", || self.flush(job)).and_then(|flushed| flushed) {
            // A second flush may succeed without the bytes (fsync semantics): start from scratch.
            job.discard();
            job.abort(fault, shared);
        }
    }

    fn flush(&self, job: &Job) -> Result<(), Fault> {
        let file = job.open.lock().clone();
        let mut state = job.state.lock();
        state.flush_requested = false;
        if state.over {
            return Ok(());
        }
        let mut extents = std::mem::take(&mut state.unflushed);
        drop(state);
        let Some(file) = file.filter(|_| !extents.is_empty()) else { return Ok(()) };
        let bytes = extents.iter().map(|extent| extent.1).sum::<u64>();
        job.disk().device.run_ungated(bytes as usize, || file.flush())?;
        extents.sort_unstable();
        let mut records: Vec<Record> = Vec::new();
        for (offset, len) in extents {
            match records.last_mut() {
                Some(Record::Durable { offset: start, len: before, .. }) if *start + *before == offset => {
                    *before += len
                }
                _ => records.push(Record::Durable { key: job.key, offset, len }),
            }
        }
        self.journal.append_durably(&records)
    }

    fn verdict_guarded(&self, job: &Arc<Job>, shared: &Arc<EngineContext>) -> Option<Success> {
        match catch_panic("verifying", || self.verdict(job, shared)).and_then(|verdict| verdict) {
            Ok(success) => Some(success),
            Err(fault) => {
                // Data that failed verification is not kept, whatever the cause.
                if fault.code != FaultCode::Interrupted {
                    job.discard();
                }
                job.abort(fault, shared);
                None
            }
        }
    }

    /// Verifies a completely written file. A copy whose chunks were kept in vain is not used a second time.
    fn verdict(&self, job: &Job, shared: &EngineContext) -> Result<Success, Fault> {
        let bytes_kept = job.state.lock().bytes_kept;
        let verdict = self.verify(job, bytes_kept > 0, shared);
        let mut distrusted = self.distrusted_copies.lock();
        match &verdict {
            Ok(_) => {
                distrusted.remove(&job.key);
                tracing::debug!(attempt = %job.file.attempt, bytes_kept, size = job.file.size, "verified");
            }
            Err(_) if bytes_kept > 0 => drop(distrusted.insert(job.key)),
            Err(_) => {}
        }
        verdict
    }

    fn verify(&self, job: &Job, kept: bool, shared: &EngineContext) -> Result<Success, Fault> {
        let state = job.state.lock();
        let (whole, resumed) = (state.coverage.whole(job.file.size), state.resumed || kept);
        drop(state);
        let whole = whole.ok_or_else(|| Fault::new(FaultCode::Internal, "a complete file has gaps"))?;
        if let Some(hasher) = &job.written_digests {
            return verify::check_written(
                &job.file,
                std::mem::replace(&mut *hasher.lock(), Hasher::new([])).finish(),
            );
        }
        if !verify::needs_readback(&job.file) {
            return verify::check_combined(&job.file, whole, resumed);
        }
        let file = job.open.lock().clone();
        let file = file.ok_or_else(|| Fault::new(FaultCode::Internal, "a complete file was never open"))?;
        let given_up = || shared.is_stopping() || job.is_over();
        verify::check_readback(&job.file, &*file, whole, resumed, &given_up)
    }
}
