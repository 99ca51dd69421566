//! The reader: answers the brain's questions from the catalog, off the brain's thread.

use std::sync::mpsc::{Receiver, SyncSender};

use longhaul_catalog::{Catalog, CatalogError, MissingFile};
use longhaul_model::{BlockId, FileId, StorageId, Timestamp};
use longhaul_scheduler::{DemandId, WantedFile};

use crate::brain::Input;
use crate::{Clock, jobs};

/// Which files of a block a target still lacks. At most one is under way per demand.
pub struct Question {
    pub demand: DemandId,
    pub block: BlockId,
    pub target: StorageId,
    pub after: Option<FileId>,
    pub limit: u32,
}

/// Answers until the brain is gone.
pub fn run(catalog: &Catalog, questions: &Receiver<Question>, brain: &SyncSender<Input>, clock: &Clock) {
    while let Ok(question) = questions.recv() {
        let (demand, target) = (question.demand, question.target);
        let answer = if jobs::is_ours(question.block) {
            Input::ExpandedJobs { demand, files: expand_jobs(catalog, &question, clock()) }
        } else {
            expanded(catalog, &question, demand, target)
        };
        if brain.send(answer).is_err() {
            return;
        }
    }
}

fn expanded(catalog: &Catalog, question: &Question, demand: DemandId, target: StorageId) -> Input {
    match expand(catalog, question) {
        Ok((files, exhausted)) => Input::Expanded { demand, target, files: Some(files), exhausted },
        Err(error) => {
            tracing::warn!(block = %question.block, %error, "cannot look up what a block lacks");
            Input::Expanded { demand, target, files: None, exhausted: false }
        }
    }
}

/// Files of a queue, and whether there are no more behind them; none if the catalog could not be asked.
fn expand_jobs(catalog: &Catalog, question: &Question, now: Timestamp) -> Option<(Vec<WantedFile>, bool)> {
    let (after, limit) = (question.after.map(jobs::file_number), question.limit as usize);
    let found = catalog.queued_job_files(jobs::queue(question.block), after, limit, now);
    let files = found
        .inspect_err(
            |error| tracing::warn!(block = %question.block, %error, "cannot look up a queue of jobs"),
        )
        .ok()?;
    let exhausted = files.len() < limit;
    let wanted = files.into_iter().map(|file| WantedFile {
        file: jobs::file(file.file),
        size: file.size.unwrap_or(jobs::SIZE_ASSUMED),
        sources: file.sources.into_iter().map(jobs::source).collect(),
    });
    Some((wanted.collect(), exhausted))
}

/// Pages may be short: goes on until there is something to tell, or nothing left.
fn expand(catalog: &Catalog, question: &Question) -> Result<(Vec<MissingFile>, bool), CatalogError> {
    let mut after = question.after;
    loop {
        let page = catalog.expand(question.block, question.target, after, question.limit as usize)?;
        if page.next.is_none() || !page.files.is_empty() {
            return Ok((page.files, page.next.is_none()));
        }
        after = page.next;
    }
}
