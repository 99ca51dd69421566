//! The reader: answers the brain's questions from the catalog, off the brain's thread.

use std::sync::mpsc::{Receiver, SyncSender};

use longhaul_catalog::{Catalog, CatalogError, ExpandedFile};
use longhaul_model::{BlockId, FileId, StorageId};
use longhaul_scheduler::DemandId;

use crate::brain::Input;

/// Which files of a block a target still lacks. At most one is under way per demand.
pub struct Question {
    pub demand: DemandId,
    pub block: BlockId,
    pub target: StorageId,
    pub after: Option<FileId>,
    pub limit: u32,
}

/// Answers until the brain is gone.
pub fn run(catalog: &Catalog, questions: &Receiver<Question>, brain: &SyncSender<Input>) {
    while let Ok(question) = questions.recv() {
        let (demand, target) = (question.demand, question.target);
        let answer = match expand(catalog, &question) {
            Ok((files, exhausted)) => Input::Expanded { demand, target, files: Some(files), exhausted },
            Err(error) => {
                tracing::warn!(block = %question.block, %error, "cannot look up what a block lacks");
                Input::Expanded { demand, target, files: None, exhausted: false }
            }
        };
        if brain.send(answer).is_err() {
            return;
        }
    }
}

/// Pages may be short: goes on until there is something to tell, or nothing left.
fn expand(catalog: &Catalog, question: &Question) -> Result<(Vec<ExpandedFile>, bool), CatalogError> {
    let mut after = question.after;
    loop {
        let page = catalog.expand(question.block, question.target, after, question.limit as usize)?;
        if page.next.is_none() || !page.files.is_empty() {
            return Ok((page.files, page.next.is_none()));
        }
        after = page.next;
    }
}
