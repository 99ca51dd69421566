//! What a deletion would do, and whether it is allowed.

use crate::sql::{Optional, Transaction};
use longhaul_model::{BlockId, DatasetId, FaultCode, FileId, StorageId};

use crate::block_replica::Presence;
use crate::datasets::list_files;
use crate::presence_range::{BlockHolder, PresenceRange, block_holders, load_presence_range};
use crate::rows::codec::{Columns, key};
use crate::{Catalog, CatalogError, DeletionPreview, FileRow, FileScope};

/// Files read by one query, so that a block of any size is worked through in bounded steps.
pub(crate) const FILES_PER_STEP: usize = 1_000;

impl Catalog {
    /// What deleting the dataset at the storage would do. Reads block rows only, except for blocks that no
    /// other storage has completely.
    pub fn deletion_preview(
        &self,
        dataset: DatasetId,
        storage: StorageId,
    ) -> Result<DeletionPreview, CatalogError> {
        self.read_within(crate::database::SCAN_TIME_MAX, |tx| preview(tx, dataset, storage))
    }
}

/// Refuses a deletion that its preview forbids.
pub(crate) fn refuse_deletion(preview: &DeletionPreview, force: bool) -> Result<(), CatalogError> {
    if let Some(subscription) = preview.subscriptions.first() {
        return Err(CatalogError::conflict(format!(
            "subscription {subscription} would bring it back; cancel it first"
        )));
    }
    if preview.last_replicas > 0 && !force {
        let detail =
            format!("{} of {} files have no other good replica", preview.last_replicas, preview.files);
        return Err(CatalogError::refused(FaultCode::LastReplica, detail));
    }
    if preview.files == 0 {
        return Err(CatalogError::conflict("the storage has no file of it"));
    }
    Ok(())
}

pub(crate) fn preview(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
) -> Result<DeletionPreview, CatalogError> {
    let mut preview = DeletionPreview::default();
    let mut select =
        tx.prepare_cached("SELECT files, bytes FROM dataset_replicas WHERE dataset = ?1 AND storage = ?2")?;
    let present =
        select.query_row((key!(dataset), key!(storage)), |row| Ok((row.number(0)?, row.number(1)?)));
    (preview.files, preview.bytes) = present.optional()?.unwrap_or_default();
    for block in blocks_at(tx, dataset, storage)? {
        preview.last_replicas += last_replicas(tx, block, storage)?;
    }
    let mut select = tx.prepare_cached(
        "SELECT id FROM subscriptions WHERE dataset = ?1 AND target = ?2 AND state <> 'cancelled' ORDER BY \
            id",
    )?;
    let rows = select.query_map((key!(dataset), key!(storage)), |row| row.id(0))?;
    preview.subscriptions = rows.collect::<Result<_, _>>()?;
    Ok(preview)
}

/// Blocks of the dataset of which the storage has something.
pub(crate) fn blocks_at(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
) -> Result<Vec<BlockId>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT block FROM block_replicas WHERE dataset = ?1 AND storage = ?2 ORDER BY block",
    )?;
    let rows = select.query_map((key!(dataset), key!(storage)), |row| row.id(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Files of the block at the storage that have no good replica elsewhere.
fn last_replicas(tx: &Transaction<'_>, block: BlockId, storage: StorageId) -> Result<u64, CatalogError> {
    let holders = block_holders(tx, block)?;
    let Some(here) = holders.iter().find(|holder| holder.storage == storage) else { return Ok(0) };
    let others: Vec<BlockHolder> = other_good_holders(&holders, storage).collect();
    if others.is_empty() {
        return Ok(here.files);
    }
    let mut total = tx.prepare_cached("SELECT files FROM blocks WHERE id = ?1")?;
    let total: u64 = total.query_row([key!(block)], |row| row.number(0))?;
    if others.iter().any(|other| other.good == total) {
        return Ok(0);
    }
    let (mut after, mut last_ones) = (FileId(0), 0);
    loop {
        let files = list_files(tx, FileScope::Block(block), Some(after), FILES_PER_STEP)?;
        let Some(last) = files.last() else { return Ok(last_ones) };
        after = last.id;
        let at = load_range_copies(tx, block, storage, &holders, &files)?;
        last_ones +=
            files.iter().filter(|file| at.is_at_storage(file.id) && !at.has_other_good_copy(file.id)).count()
                as u64;
    }
}

/// Other storages with good replicas that are not being deleted.
fn other_good_holders(holders: &[BlockHolder], storage: StorageId) -> impl Iterator<Item = BlockHolder> {
    holders.iter().copied().filter(move |other| other.storage != storage && !other.deleting && other.good > 0)
}

/// What a storage, and the others, have of a range of files.
pub(crate) struct RangeCopies {
    here: Option<PresenceRange>,
    others: Vec<PresenceRange>,
}

impl RangeCopies {
    pub(crate) fn is_at_storage(&self, file: FileId) -> bool {
        self.here.as_ref().is_some_and(|here| here.presence(file) != Presence::Absent)
    }

    pub(crate) fn has_other_good_copy(&self, file: FileId) -> bool {
        self.others.iter().any(|other| other.is_usable_source(file))
    }
}

pub(crate) fn load_range_copies(
    tx: &Transaction<'_>,
    block: BlockId,
    storage: StorageId,
    holders: &[BlockHolder],
    files: &[FileRow],
) -> Result<RangeCopies, CatalogError> {
    let (Some(first), Some(last)) = (files.first(), files.last()) else {
        return Ok(RangeCopies { here: None, others: Vec::new() });
    };
    let here = match holders.iter().find(|holder| holder.storage == storage) {
        Some(&holder) => Some(load_presence_range(tx, block, holder, first.id, last.id)?),
        None => None,
    };
    let others = other_good_holders(holders, storage)
        .map(|holder| load_presence_range(tx, block, holder, first.id, last.id));
    Ok(RangeCopies { here, others: others.collect::<Result<_, _>>()? })
}
