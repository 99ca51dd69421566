//! The query loop: one thread that answers the scheduler loop's questions from the catalog.

use std::sync::mpsc::Receiver;

use longhaul_catalog::{Catalog, CatalogError, MissingFile};
use longhaul_identity::Clock;
use longhaul_model::job::of_jobs;
use longhaul_model::{BlockId, FileId, StorageId};
use longhaul_scheduler::DemandId;

use crate::brain::Input;
use crate::executor::DemandSource;
use crate::kernel::SchedulerHandle;

/// Which files of a block a target still lacks. At most one is under way per demand.
pub struct ExpandQuery {
    pub demand: DemandId,
    pub block: BlockId,
    pub target: StorageId,
    pub after: Option<FileId>,
    pub limit: u32,
}

/// Answers until the scheduler loop is gone.
pub fn run(
    catalog: &Catalog,
    source: &dyn DemandSource,
    questions: &Receiver<ExpandQuery>,
    scheduler: &SchedulerHandle,
    clock: &Clock,
) {
    while let Ok(question) = questions.recv() {
        let (demand, target) = (question.demand, question.target);
        let answer = if of_jobs(question.block.0) {
            Input::ExpandedJobs { demand, files: source.expand(&question, clock()) }
        } else {
            expanded(catalog, &question, demand, target)
        };
        if !scheduler.send(answer) {
            return;
        }
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
