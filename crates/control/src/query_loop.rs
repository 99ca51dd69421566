//! The query loop: one thread that answers the scheduler loop's questions from the catalog.

use std::time::Duration;

use longhaul_catalog::{Catalog, CatalogError, MissingFile};
use longhaul_model::job::of_jobs;
use longhaul_model::{BlockId, FileId, StorageId, Timestamp};
use longhaul_scheduler::DemandId;

use crate::brain::Input;
use crate::event_loop::{EventLoop, InputQueue, LoopStep};
use crate::executor::DemandSource;
use crate::kernel::SchedulerHandle;

/// Queries answered in one step.
const QUERIES_PER_STEP_MAX: usize = 64;
/// The longest wait for a question.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Which files of a block a target still lacks. At most one is under way per demand.
pub struct ExpandQuery {
    pub demand: DemandId,
    pub block: BlockId,
    pub target: StorageId,
    pub after: Option<FileId>,
    pub limit: u32,
}

pub struct QueryLoop {
    inputs: InputQueue<ExpandQuery>,
    catalog: Catalog,
    /// Answers for demands of jobs.
    job_files: Box<dyn DemandSource>,
    scheduler: SchedulerHandle,
}

impl QueryLoop {
    pub fn new(
        inputs: InputQueue<ExpandQuery>,
        catalog: Catalog,
        job_files: Box<dyn DemandSource>,
        scheduler: SchedulerHandle,
    ) -> QueryLoop {
        QueryLoop { inputs, catalog, job_files, scheduler }
    }

    fn answer(&self, question: &ExpandQuery, now: Timestamp) -> Input {
        let (demand, target) = (question.demand, question.target);
        if of_jobs(question.block.0) {
            Input::ExpandedJobs { demand, files: self.job_files.expand(question, now) }
        } else {
            expanded(&self.catalog, question, demand, target)
        }
    }
}

impl EventLoop for QueryLoop {
    type Input = ExpandQuery;
    const BATCH_MAX: usize = QUERIES_PER_STEP_MAX;
    const WAIT_MAX: Duration = IDLE_WAIT_MAX;

    fn inputs(&mut self) -> &mut InputQueue<ExpandQuery> {
        &mut self.inputs
    }

    fn step(&mut self, now: Timestamp) -> LoopStep {
        while let Some(question) = self.inputs.pop() {
            if !self.scheduler.send(self.answer(&question, now)) {
                return LoopStep::Stop;
            }
        }
        LoopStep::Wait { until: None }
    }
}

fn expanded(catalog: &Catalog, question: &ExpandQuery, demand: DemandId, target: StorageId) -> Input {
    match expand(catalog, question) {
        Ok((files, exhausted)) => Input::Expanded { demand, target, files: Some(files), exhausted },
        Err(error) => {
            tracing::warn!(block = %question.block, %error, "cannot look up what a block lacks");
            Input::Expanded { demand, target, files: None, exhausted: false }
        }
    }
}

/// Pages may be short: goes on until there is something to tell, or nothing left.
fn expand(catalog: &Catalog, question: &ExpandQuery) -> Result<(Vec<MissingFile>, bool), CatalogError> {
    let mut after = question.after;
    loop {
        let page = catalog.expand(question.block, question.target, after, question.limit as usize)?;
        if page.next.is_none() || !page.files.is_empty() {
            return Ok((page.files, page.next.is_none()));
        }
        after = page.next;
    }
}
