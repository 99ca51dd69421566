//! The query loop: one thread that answers the scheduler loop's questions from the catalog.

use std::sync::Arc;
use std::time::Duration;

use longhaul_catalog::{CatalogError, MissingFile};
use longhaul_model::job::of_jobs;
use longhaul_model::{BlockId, FileId, StorageId, StorageKind, Timestamp};
use longhaul_scheduler::DemandId;

use crate::brain::Input;
use crate::control::Control;
use crate::event_loop::{EventLoop, InputQueue, LoopStep};
use crate::executor::DemandSource;
use crate::staging::Wanted;

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
    control: Arc<Control>,
    /// Answers for demands of jobs.
    job_files: Box<dyn DemandSource>,
}

impl QueryLoop {
    pub fn new(
        inputs: InputQueue<ExpandQuery>,
        control: Arc<Control>,
        job_files: Box<dyn DemandSource>,
    ) -> QueryLoop {
        QueryLoop { inputs, control, job_files }
    }

    fn answer(&self, question: &ExpandQuery, now: Timestamp) -> Input {
        if of_jobs(question.block.0) {
            Input::ExpandedJobs { demand: question.demand, files: self.job_files.expand(question, now) }
        } else {
            expanded(&self.control, question, now)
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
            if !self.control.kernel.scheduler.send(self.answer(&question, now)) {
                return LoopStep::Stop;
            }
        }
        LoopStep::Wait { until: None }
    }
}

fn expanded(control: &Control, question: &ExpandQuery, now: Timestamp) -> Input {
    let ExpandQuery { demand, target, .. } = *question;
    match expand(control, question, now) {
        Ok((files, exhausted)) => Input::Expanded { demand, target, files: Some(files), exhausted },
        Err(error) => {
            tracing::warn!(block = %question.block, %error, "cannot look up what a block lacks");
            Input::Expanded { demand, target, files: None, exhausted: false }
        }
    }
}

/// Pages may be short, or hold only files that come from tape first: goes on until there is something to
/// tell, or nothing left.
fn expand(
    control: &Control,
    question: &ExpandQuery,
    now: Timestamp,
) -> Result<(Vec<MissingFile>, bool), CatalogError> {
    let &ExpandQuery { block, target, limit, mut after, .. } = question;
    let directory = control.kernel.directory();
    let is_tape = |storage: &StorageId| {
        directory.storages.get(storage).is_some_and(|row| row.kind == StorageKind::Tape)
    };
    let reachable = control.agents.reachable_storages(now);
    loop {
        let mut page = control.kernel.catalog.expand(block, target, after, limit as usize)?;
        let wanted = Wanted { block, target };
        let is_connected = |storage: &StorageId| reachable.contains(storage);
        control.staging.keep_readable(&wanted, &mut page.files, is_tape, is_connected, now);
        if page.next.is_none() || !page.files.is_empty() {
            return Ok((page.files, page.next.is_none()));
        }
        after = page.next;
    }
}
