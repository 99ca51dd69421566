//! Files that nobody has: every replica is suspect, being deleted, gone, or at a virtual storage.
//!
//! What a manifest claims counts as had, however long ago that was: a file that is not there is found out by
//! whatever looks first, a scan, a verification or a transfer, and until then there is nothing to tell. Test
//! data is nobody's, so it cannot be lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::sql::Transaction;
use longhaul_model::{BlockId, DatasetId, FileId, StorageId, StorageKind, StorageName};

use crate::block_replica::Presence;
use crate::database::SCAN_TIME_MAX;
use crate::datasets::{list_files, require_dataset};
use crate::deletion::FILES_PER_STEP;
use crate::presence_range::{PresenceRange, block_holders, load_presence_range};
use crate::rows::codec::Columns;
use crate::test_data::test_datasets;
use crate::{Catalog, CatalogError, FileScope, LostFilesRow};

/// Files that one search examines in blocks that no storage has wholly: bounds its time.
const FILES_EXAMINED_MAX: u64 = 100_000;
/// Files named of a dataset.
const EXAMPLES_MAX: usize = 5;

impl Catalog {
    /// Registered files that no storage has a usable replica of, by dataset. Blocks that one storage has
    /// wholly take no further query.
    pub fn lost_files(&self) -> Result<Vec<LostFilesRow>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut search = LostFileSearch { found: BTreeMap::new(), examined: 0 };
            let blocks = incomplete_blocks(tx)?;
            let test_data = if blocks.is_empty() { BTreeSet::new() } else { test_datasets(tx)? };
            for (block, dataset) in blocks.into_iter().filter(|(_, dataset)| !test_data.contains(dataset)) {
                if search.examined >= FILES_EXAMINED_MAX {
                    break;
                }
                search.examine(tx, block, dataset)?;
            }
            search.into_rows(tx)
        })
    }
}

/// Blocks with files of which no storage has all, good and not being deleted. Virtual storages have none.
fn incomplete_blocks(tx: &Transaction<'_>) -> Result<Vec<(BlockId, DatasetId)>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT b.id, b.dataset FROM blocks b WHERE b.files > 0 AND NOT EXISTS (SELECT 1 FROM block_replicas r
         JOIN storages t ON t.id = r.storage WHERE r.block = b.id AND t.kind <> ?1 AND r.deleting = 0
         AND r.files - r.suspect_files = b.files) ORDER BY b.id",
    )?;
    let rows = select.query_map([StorageKind::Virtual.word()], |row| Ok((row.id(0)?, row.id(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

struct LostFileSearch {
    found: BTreeMap<DatasetId, LostOfDataset>,
    examined: u64,
}

#[derive(Default)]
struct LostOfDataset {
    files: u64,
    examples: Vec<longhaul_model::Lfn>,
    last_holders: BTreeSet<StorageId>,
    virtual_holders: BTreeSet<StorageId>,
}

impl LostFileSearch {
    fn examine(
        &mut self,
        tx: &Transaction<'_>,
        block: BlockId,
        dataset: DatasetId,
    ) -> Result<(), CatalogError> {
        let holders = block_holders(tx, block)?;
        let mut after = FileId(0);
        loop {
            let files = list_files(tx, FileScope::Block(block), Some(after), FILES_PER_STEP)?;
            let (Some(first), Some(last)) = (files.first(), files.last()) else { return Ok(()) };
            let ranges = holders
                .iter()
                .map(|&holder| load_presence_range(tx, block, holder, first.id, last.id))
                .collect::<Result<Vec<_>, _>>()?;
            after = last.id;
            self.examined += files.len() as u64;
            for file in files {
                let has = |range: &PresenceRange| !range.holder.is_virtual && range.is_usable_source(file.id);
                if ranges.iter().any(has) {
                    continue;
                }
                let found = self.found.entry(dataset).or_default();
                found.files += 1;
                for range in ranges.iter().filter(|range| range.presence(file.id) != Presence::Absent) {
                    let holders = match range.holder.is_virtual {
                        true => &mut found.virtual_holders,
                        false => &mut found.last_holders,
                    };
                    holders.insert(range.holder.storage);
                }
                if found.examples.len() < EXAMPLES_MAX {
                    found.examples.push(file.lfn);
                }
            }
        }
    }

    fn into_rows(self, tx: &Transaction<'_>) -> Result<Vec<LostFilesRow>, CatalogError> {
        let rows = self.found.into_iter().map(|(dataset, found)| {
            Ok(LostFilesRow {
                dataset,
                dataset_name: require_dataset(tx, dataset)?.name,
                files: found.files,
                examples: found.examples,
                last_holders: storage_names(tx, found.last_holders)?,
                virtual_holders: storage_names(tx, found.virtual_holders)?,
            })
        });
        rows.collect()
    }
}

fn storage_names(
    tx: &Transaction<'_>,
    storages: BTreeSet<StorageId>,
) -> Result<Vec<StorageName>, CatalogError> {
    storages.into_iter().map(|storage| crate::sites::require_storage(tx, storage)).collect()
}
