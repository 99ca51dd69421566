//! Group commit of small files (Gray and Reuter, 1993): flush all data once, rename all, flush the names
//! once. Writers fill the next group meanwhile.

use std::sync::{Arc, Weak};
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Retry};
use longhaul_storage::{Commit, TempName};
use longhaul_wire::FileKey;
use longhaul_wire::journal::Record;

use super::job::{AttemptGuard, Job};
use super::target::Target;
use super::verify;
use crate::context::EngineContext;
use crate::interface::Success;
use crate::sync::catch_panic;

/// Files of one group: bounds the time of a commit.
const GROUP_FILES_MAX: usize = 1_000;
/// Bytes of one group: bounds the time of its flush.
const GROUP_BYTES_MAX: u64 = 64 << 20;
/// A group closes when nothing was added for this long: on an idle link a file should not wait for others.
const GROUP_LINGER: Duration = Duration::from_millis(20);
/// A group closes after this many lingers, however slowly it grows.
const GROUP_LINGERS_MAX: usize = 10;
/// Wait for the first file of a group. Any long time does: closing the queue ends it.
const FIRST_FILE_WAIT: Duration = Duration::from_secs(3_600);

/// Work of the committing thread.
pub(crate) enum CommitItem {
    /// A file that is written and verified.
    File(Arc<Job>),
    /// A temporary file to remove.
    CleanUp { temp: TempName, key: FileKey, guard: AttemptGuard },
}

impl Target {
    /// Runs the committing thread.
    pub(crate) fn run_committer(&self, shared: &Arc<EngineContext>) {
        while let Some(group) = self.next_group(shared) {
            if !group.is_empty() {
                self.commit_guarded(group, shared);
            }
        }
    }

    fn next_group(&self, shared: &EngineContext) -> Option<Vec<(Arc<Job>, Success)>> {
        let mut group = Vec::new();
        let mut bytes = 0;
        let mut wait = FIRST_FILE_WAIT;
        for _ in 0..GROUP_LINGERS_MAX {
            let more = self.to_commit.take_many(GROUP_FILES_MAX - group.len(), wait)?;
            if more.is_empty() {
                break;
            }
            for ready in more {
                match ready {
                    CommitItem::CleanUp { temp, key, guard: farewell } => {
                        self.remove_temp(&temp, key);
                        drop(farewell);
                    }
                    CommitItem::File(job) => {
                        bytes += job.file.size;
                        let verdict = job.state.lock().verdict.clone();
                        group.extend(verdict.map(|verdict| (job, verdict)));
                    }
                }
            }
            // No other file can join the last ones: they need not wait.
            let is_last = || shared.attempts.lock().len() <= group.len();
            if group.len() >= GROUP_FILES_MAX || bytes >= GROUP_BYTES_MAX || is_last() {
                break;
            }
            wait = GROUP_LINGER;
        }
        Some(group)
    }

    pub(super) fn commit_guarded(&self, group: Vec<(Arc<Job>, Success)>, shared: &Arc<EngineContext>) {
        let jobs: Vec<Weak<Job>> = group.iter().map(|(job, _)| Arc::downgrade(job)).collect();
        if let Err(fault) = catch_panic("committing", || self.commit(group, shared)) {
            jobs.iter().filter_map(Weak::upgrade).for_each(|job| job.abort(fault.clone(), shared));
        }
    }

    fn commit(&self, mut group: Vec<(Arc<Job>, Success)>, shared: &Arc<EngineContext>) {
        group.retain(|(job, _)| !job.is_over());
        let commits: Vec<Commit> = group.iter().map(|(job, _)| job.commit()).collect();
        let results = self.device.run_ungated(0, || self.storage.commit(&commits));
        assert_eq!(results.len(), group.len(), "a storage returns one result per commit");
        let closed: Vec<Record> = group
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_ok())
            .map(|((job, _), _)| Record::Closed { key: job.key })
            .collect();
        if let Err(fault) = self.journal.append(&closed) {
            // The files are in place: a stale entry is dropped at the next start.
            tracing::warn!(fault = %fault.chain(), "the journal could not be written");
        }
        tracing::debug!(storage = %self.storage.name(), files = group.len(), "a group is flushed and in \
            place");
        let _told_together = shared.events.batch();
        for ((job, success), result) in group.into_iter().zip(results) {
            match result {
                Ok(()) => job.succeed(success, shared),
                Err(fault) if fault.code == FaultCode::NameClash => {
                    self.resolve_name_clash(&job, fault, shared)
                }
                Err(fault) => {
                    // After a failed flush the bytes cannot be trusted, whatever the cause.
                    job.discard();
                    job.abort(fault, shared);
                }
            }
        }
    }

    /// Another file has taken the final name since it was checked.
    fn resolve_name_clash(&self, job: &Arc<Job>, fault: Fault, shared: &Arc<EngineContext>) {
        job.discard();
        let compared = self
            .storage
            .stat_target(&job.at)
            .map_err(verify::blame_target)
            .and_then(|present| present.ok_or(fault))
            .and_then(|present| self.compare_present(job, present.size, &mut |_| (), shared));
        match compared {
            Ok(success) => job.succeed(success, shared),
            // The damaged file gave way to another one: the next attempt compares that.
            Err(fault) if job.file.replaces_damaged => job.abort(fault.retrying(Retry::Later), shared),
            Err(fault) => job.abort(fault, shared),
        }
    }
}
