//! Expansion of a demand into files: what a target lacks, and which storages could provide it.

use std::collections::BTreeSet;

use crate::sql::Transaction;
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::{BlockId, FileId, StorageId};

use crate::block_replica::Presence;
use crate::datasets::list_files;
use crate::presence_range::{BlockHolder, PresenceRange, block_holders, load_presence_range};
use crate::rows::codec::{Columns, key};
use crate::test_data::{is_virtual, may_copy_between};
use crate::{Catalog, CatalogError, Expansion, FileRow, FileScope, MissingFile};

/// Files read by one query. A block that a manifest named may have any number.
const FILES_PER_STEP: usize = 1_000;
/// Files that one call examines: bounds its time where the target has most files already.
const FILES_EXAMINED_MAX: usize = 20_000;

impl Catalog {
    /// Files of the block, after `after` by id, that `target` lacks and no live transfer brings there.
    pub fn expand(
        &self,
        block: BlockId,
        target: StorageId,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Expansion, CatalogError> {
        let limit = limit.clamp(1, BATCH_ITEMS_MAX);
        self.read(|tx| {
            let holders = block_holders(tx, block)?;
            let here = holders.iter().find(|holder| holder.storage == target);
            // Files that the base covers without exception need no check.
            let covered = here.filter(|here| here.exceptions == 0).map_or(0, |here| here.base_file);
            let mut after = after.map_or(0, |file| key!(file)).max(covered);
            let mut expanded = Expansion::default();
            for _ in 0..FILES_EXAMINED_MAX / FILES_PER_STEP {
                let files =
                    list_files(tx, FileScope::Block(block), Some(FileId(after as u64)), FILES_PER_STEP)?;
                let exhausted = files.len() < FILES_PER_STEP;
                let Some(last) = files.last().map(|file| file.id) else { return Ok(expanded) };
                let rest = expand_step(tx, block, target, &holders, files, limit, &mut expanded)?;
                if let Some(full_at) = rest {
                    expanded.next = Some(full_at);
                    return Ok(expanded);
                }
                if exhausted {
                    return Ok(expanded);
                }
                after = key!(last);
            }
            expanded.next = Some(FileId(after as u64));
            Ok(expanded)
        })
    }
}

/// Appends those of `files` that the target lacks. Returns where to continue if `limit` was reached.
fn expand_step(
    tx: &Transaction<'_>,
    block: BlockId,
    target: StorageId,
    holders: &[BlockHolder],
    files: Vec<FileRow>,
    limit: usize,
    expanded: &mut Expansion,
) -> Result<Option<FileId>, CatalogError> {
    let (Some(first), Some(last)) = (files.first().map(|file| file.id), files.last().map(|file| file.id))
    else {
        return Ok(None);
    };
    let to_virtual = is_virtual(tx, target)?;
    let mut sources: Vec<PresenceRange> = Vec::new();
    let mut here = None;
    for &holder in holders {
        if holder.storage != target && !may_copy_between(holder.is_virtual, to_virtual) {
            continue;
        }
        let range = load_presence_range(tx, block, holder, first, last)?;
        if holder.storage == target { here = Some(range) } else { sources.push(range) }
    }
    let live = live_files(tx, block, target, first, last)?;
    for file in files {
        let there = here.as_ref().is_some_and(|here| matches!(here.presence(file.id), Presence::Good(_)));
        if there || live.contains(&file.id) {
            continue;
        }
        let sources = sources
            .iter()
            .filter(|range| range.is_usable_source(file.id))
            .map(|range| range.holder.storage)
            .collect();
        let FileRow { id, lfn, size, digests, .. } = file;
        expanded.files.push(MissingFile { file: id, lfn, size, digests, sources });
        if expanded.files.len() == limit {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

fn live_files(
    tx: &Transaction<'_>,
    block: BlockId,
    target: StorageId,
    first: FileId,
    last: FileId,
) -> Result<BTreeSet<FileId>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT file FROM live WHERE target = ?1 AND block = ?2 AND file BETWEEN ?3 AND ?4",
    )?;
    let rows = select.query_map((key!(target), key!(block), key!(first), key!(last)), |row| row.id(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
