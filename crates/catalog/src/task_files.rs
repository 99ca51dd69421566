//! The files that a verification or deletion is about, page by page.

use crate::sql::{Optional, Transaction};
use longhaul_model::{BlockId, DatasetId, FileId, StorageId, TaskId};

use crate::datasets::list_files;
use crate::deletion::{FILES_PER_STEP, load_range_copies};
use crate::presence_range::block_holders;
use crate::rows::codec::{Columns, key};
use crate::tasks::{last_file, require};
use crate::{
    Catalog, CatalogError, CopyTerms, ExpectedFileRow, FileRow, FileScope, PAGE_ROWS_MAX, TaskFiles, TaskKind,
};

/// Files that one call examines, whether the task is about them or not: bounds the time of a page.
const FILES_EXAMINED_MAX: usize = 20_000;

impl Catalog {
    /// One page of the files that a verify or delete task is about, by block and file; continue at `next`.
    /// Empty for a scan, and for a task that is done.
    pub fn task_files(
        &self,
        id: TaskId,
        after: Option<FileId>,
        limit: usize,
        terms: &CopyTerms,
    ) -> Result<TaskFiles, CatalogError> {
        let limit = limit.clamp(1, PAGE_ROWS_MAX);
        self.read(|tx| {
            let task = require(tx, id)?;
            let keep_last = match task.kind {
                TaskKind::Scan { .. } => return Ok(TaskFiles::default()),
                _ if task.done => return Ok(TaskFiles::default()),
                TaskKind::Clear => return crate::relays::files_to_clear(tx, id, after, limit),
                TaskKind::Verify if crate::accusations::is_of_accused(tx, id)? => {
                    return crate::accusations::accused_files(tx, id, after, limit);
                }
                TaskKind::Verify | TaskKind::Delete { force: true } => None,
                TaskKind::Delete { force: false } => Some(terms),
            };
            let last_file = last_file(tx, id)?;
            let mut page = TaskFiles::default();
            let mut position = first_position(tx, task.dataset, task.storage, after)?;
            let mut examined = 0;
            while let Some((block, file)) = position {
                let step = FILES_PER_STEP.min(limit - page.files.len());
                let files = list_files(tx, FileScope::Block(block), Some(file), step)?;
                examined += files.len();
                let exhausted = files.len() < step;
                let last = files.last().map(|file| file.id);
                append_task_files(tx, block, task.storage, files, last_file, keep_last, &mut page)?;
                position = match last {
                    Some(last) if !exhausted => Some((block, last)),
                    _ => next_block(tx, task.dataset, task.storage, block)?.map(|block| (block, FileId(0))),
                };
                if page.files.len() >= limit || examined >= FILES_EXAMINED_MAX {
                    // The cursor is a file; of a finished block, its last one.
                    page.next = position.and(last.or(Some(file)));
                    return Ok(page);
                }
            }
            Ok(page)
        })
    }
}

/// Appends those of `files` that the task is about.
fn append_task_files(
    tx: &Transaction<'_>,
    block: BlockId,
    storage: StorageId,
    files: Vec<FileRow>,
    last_file: FileId,
    keep_last: Option<&CopyTerms>,
    page: &mut TaskFiles,
) -> Result<(), CatalogError> {
    let holders = block_holders(tx, block)?;
    let at = load_range_copies(tx, block, storage, &holders, &files)?;
    for file in files.into_iter().filter(|file| file.id <= last_file && at.is_at_storage(file.id)) {
        if keep_last.is_some_and(|terms| !at.is_safe_to_lose(file.id, terms)) {
            page.kept_as_last += 1;
            continue;
        }
        let FileRow { id, lfn, size, digests, .. } = file;
        page.files.push(ExpectedFileRow { file: id, lfn, size, digests });
    }
    Ok(())
}

fn first_position(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
    after: Option<FileId>,
) -> Result<Option<(BlockId, FileId)>, CatalogError> {
    let Some(file) = after else {
        return Ok(next_block(tx, dataset, storage, BlockId(0))?.map(|block| (block, FileId(0))));
    };
    let mut select = tx.prepare_cached("SELECT block FROM files WHERE id = ?1")?;
    let block = select.query_row([key!(file)], |row| row.id(0)).optional()?;
    Ok(block.map(|block| (block, file)))
}

fn next_block(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
    after: BlockId,
) -> Result<Option<BlockId>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT block FROM block_replicas WHERE dataset = ?1 AND storage = ?2 AND block > ?3 ORDER BY block \
            LIMIT 1",
    )?;
    Ok(select.query_row((key!(dataset), key!(storage), key!(after)), |row| row.id(0)).optional()?)
}
