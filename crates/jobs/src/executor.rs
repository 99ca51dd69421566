//! Jobs as an executor of the scheduler's leases, and as a source of its demands.

use std::sync::mpsc::Sender;

use longhaul_catalog::Catalog;
use longhaul_control::executor::{DemandSource, Executor};
use longhaul_control::query_loop::ExpandQuery;
use longhaul_model::{AgentId, AttemptId, Timestamp};
use longhaul_scheduler::{CancelWhy, Lease, WantedFile};

use crate::ids;
use crate::queues::SIZE_ASSUMED;
use crate::work::Work;

/// Passes leases of jobs on to the job loop.
pub struct JobExecutor(pub(crate) Sender<Work>);

impl Executor for JobExecutor {
    fn agent(&self) -> AgentId {
        ids::MOVERS
    }

    fn take(&mut self, lease: Lease, choice: String) {
        // The job loop is gone only when the service stops.
        let _ = self.0.send(Work::Lease(Box::new(lease), choice));
    }

    fn take_back(&mut self, attempt: AttemptId, why: CancelWhy) {
        let _ = self.0.send(Work::TakeBack(attempt, why));
    }
}

/// Reads the files that wait in queues of jobs.
pub struct QueuedFilesSource {
    pub catalog: Catalog,
}

impl DemandSource for QueuedFilesSource {
    fn expand(&self, query: &ExpandQuery, now: Timestamp) -> Option<(Vec<WantedFile>, bool)> {
        let (after, limit) = (query.after.map(ids::file_number), query.limit as usize);
        let found = self.catalog.queued_job_files(ids::queue(query.block), after, limit, now);
        let files = found
            .inspect_err(
                |error| tracing::warn!(block = %query.block, %error, "cannot look up a queue of jobs"),
            )
            .ok()?;
        let exhausted = files.len() < limit;
        let wanted = files.into_iter().map(|file| WantedFile {
            file: ids::file(file.file),
            size: file.size.unwrap_or(SIZE_ASSUMED),
            sources: file.sources.into_iter().map(ids::source).collect(),
        });
        Some((wanted.collect(), exhausted))
    }
}
