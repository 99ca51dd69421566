//! What a deletion would do, and whether it is allowed.

use std::collections::BTreeMap;

use crate::sql::{Optional, Transaction};
use longhaul_model::{BlockId, DatasetId, FaultCode, FileId, StorageId, SubscriptionId, units};

use crate::block_replica::Presence;
use crate::datasets::list_files;
use crate::presence_range::{BlockHolder, PresenceRange, block_holders, load_presence_range};
use crate::rows::codec::{Columns, key, verification_number};
use crate::{
    Catalog, CatalogError, Copy, CopyDefect, CopyGroup, CopyTerms, DeletionPreview, FileRow, FileScope,
};

/// Files read by one query, so that a block of any size is worked through in bounded steps.
pub(crate) const FILES_PER_STEP: usize = 1_000;

impl Catalog {
    /// What deleting the dataset at the storage would do, with a table of all copies of the files concerned.
    /// Reads block rows only, except for blocks whose copies differ from file to file.
    pub fn deletion_preview(
        &self,
        dataset: DatasetId,
        storage: StorageId,
        terms: &CopyTerms,
    ) -> Result<DeletionPreview, CatalogError> {
        self.read_within(crate::database::SCAN_TIME_MAX, |tx| {
            preview(tx, dataset, storage, terms, Detail::Copies)
        })
    }
}

/// How much a preview tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// The number of last copies.
    LastOnes,
    /// That, and all copies of the files.
    Copies,
}

/// Refuses a deletion that its preview would forbid.
pub(crate) fn check_deletion(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
    force: bool,
    terms: &CopyTerms,
) -> Result<(), CatalogError> {
    let mut told = preview(tx, dataset, storage, terms, Detail::LastOnes)?;
    if told.last_replicas > 0 && !force {
        told = preview(tx, dataset, storage, terms, Detail::Copies)?;
    }
    refuse_deletion(&told, force)
}

fn refuse_deletion(preview: &DeletionPreview, force: bool) -> Result<(), CatalogError> {
    if let Some(subscription) = preview.subscriptions.first() {
        return Err(CatalogError::conflict(if preview.custodial {
            format!(
                "subscription {subscription} keeps it on purpose (it is custodial): to cancel it takes two \
                    people"
            )
        } else {
            format!("subscription {subscription} would bring it back; cancel it first")
        }));
    }
    if preview.last_replicas > 0 && !force {
        return Err(CatalogError::refused(FaultCode::LastReplica, why_last(preview)));
    }
    if preview.files == 0 {
        return Err(CatalogError::conflict("the storage has no file of it"));
    }
    Ok(())
}

/// How many files would be lost, and why the copies that others have do not count.
fn why_last(preview: &DeletionPreview) -> String {
    let have = if preview.last_replicas == 1 { "has" } else { "have" };
    let files = units::plural(preview.files, "file", "files");
    let mut text = format!("{} of {files} {have} no other good copy", preview.last_replicas);
    let others = preview.copies.iter().filter(|group| !group.is_here);
    let reasons: Vec<String> =
        others.filter_map(|group| Some(format!("{}: {}", group.storage_name, group.defect?))).collect();
    if !reasons.is_empty() {
        text.push_str(&format!(" ({})", reasons.join("; ")));
    }
    text
}

fn preview(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
    terms: &CopyTerms,
    detail: Detail,
) -> Result<DeletionPreview, CatalogError> {
    let mut preview = DeletionPreview::default();
    let mut select =
        tx.prepare_cached("SELECT files, bytes FROM dataset_replicas WHERE dataset = ?1 AND storage = ?2")?;
    let present =
        select.query_row((key!(dataset), key!(storage)), |row| Ok((row.number(0)?, row.number(1)?)));
    (preview.files, preview.bytes) = present.optional()?.unwrap_or_default();
    let mut census = CopyCensus { storage, terms, detail, groups: BTreeMap::new(), last_ones: 0 };
    for block in blocks_at(tx, dataset, storage)? {
        census.count_block(tx, block)?;
    }
    preview.last_replicas = census.last_ones;
    preview.copies = census.into_groups(tx)?;
    let mut select = tx.prepare_cached(
        "SELECT id, custodial FROM subscriptions WHERE dataset = ?1 AND target = ?2 AND state <> 'cancelled' \
            ORDER BY custodial DESC, id",
    )?;
    let rows = select.query_map((key!(dataset), key!(storage)), |row| Ok((row.id(0)?, row.get(1)?)))?;
    let standing: Vec<(SubscriptionId, bool)> = rows.collect::<Result<_, _>>()?;
    preview.custodial = standing.first().is_some_and(|(_, custodial)| *custodial);
    preview.subscriptions = standing.into_iter().map(|(id, _)| id).collect();
    Ok(preview)
}

/// Files of the dataset at the storage that no other storage has a good copy of.
pub(crate) fn count_last_replicas(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    storage: StorageId,
    terms: &CopyTerms,
) -> Result<u64, CatalogError> {
    Ok(preview(tx, dataset, storage, terms, Detail::LastOnes)?.last_replicas)
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

/// Counts the copies of the files that a storage has, at all storages.
struct CopyCensus<'a> {
    storage: StorageId,
    terms: &'a CopyTerms,
    detail: Detail,
    /// By storage, verification and defect.
    groups: BTreeMap<(StorageId, i64, Option<CopyDefect>), (Copy, u64)>,
    /// Files at the storage that no other has a good copy of.
    last_ones: u64,
}

impl CopyCensus<'_> {
    fn count_block(&mut self, tx: &Transaction<'_>, block: BlockId) -> Result<(), CatalogError> {
        let holders = block_holders(tx, block)?;
        let Some(here) = holders.iter().find(|holder| holder.storage == self.storage) else { return Ok(()) };
        let mut total = tx.prepare_cached("SELECT files FROM blocks WHERE id = ?1")?;
        let total: u64 = total.query_row([key!(block)], |row| row.number(0))?;
        let mut others = holders.iter().filter(|other| other.storage != self.storage);
        // A virtual storage holds nothing that could be lost.
        let is_safe = here.is_virtual || others.any(|other| other.has_all_good(total, self.terms));
        if self.detail == Detail::LastOnes && is_safe {
            return Ok(());
        }
        if holders.iter().all(|holder| holder.is_uniform(total)) {
            holders.iter().for_each(|holder| self.add(holder.copy(holder.base_how, false), total));
            self.last_ones += if is_safe { 0 } else { total };
            return Ok(());
        }
        let mut after = FileId(0);
        loop {
            let files = list_files(tx, FileScope::Block(block), Some(after), FILES_PER_STEP)?;
            let Some(last) = files.last() else { return Ok(()) };
            after = last.id;
            let copies = load_range_copies(tx, block, self.storage, &holders, &files)?;
            for file in files.iter().filter(|file| copies.is_at_storage(file.id)) {
                copies.of_file(file.id).for_each(|copy| self.add(copy, 1));
                self.last_ones += u64::from(!copies.is_safe_to_lose(file.id, self.terms));
            }
        }
    }

    fn add(&mut self, copy: Copy, files: u64) {
        let key = (copy.storage, verification_number(copy.how), copy.defect(self.terms));
        let (oldest, sum) = self.groups.entry(key).or_insert((copy, 0));
        // The oldest speaks for all; one that nobody knows counts as the oldest.
        oldest.verified = oldest.verified.min(copy.verified);
        *sum += files;
    }

    fn into_groups(self, tx: &Transaction<'_>) -> Result<Vec<CopyGroup>, CatalogError> {
        let groups = self.groups.into_iter().map(|((storage, _, defect), (copy, files))| {
            let storage_name = crate::sites::require_storage(tx, storage)?;
            let is_here = storage == self.storage;
            Ok(CopyGroup {
                storage,
                storage_name,
                is_here,
                files,
                how: copy.how,
                verified: copy.verified,
                defect,
            })
        });
        groups.collect()
    }
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

    /// Whether nothing is lost with the copy at the storage: another one counts, or this one is none.
    pub(crate) fn is_safe_to_lose(&self, file: FileId, terms: &CopyTerms) -> bool {
        let counts =
            |other: &PresenceRange| other.copy(file).is_some_and(|copy| copy.defect(terms).is_none());
        self.here.as_ref().is_some_and(|here| here.holder.is_virtual) || self.others.iter().any(counts)
    }

    fn of_file(&self, file: FileId) -> impl Iterator<Item = Copy> {
        self.here.iter().chain(&self.others).filter_map(move |range| range.copy(file))
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
    let ranges = holders.iter().map(|&holder| load_presence_range(tx, block, holder, first.id, last.id));
    let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
    let (here, others) =
        ranges.into_iter().partition(|range: &PresenceRange| range.holder.storage == storage);
    let here: Vec<PresenceRange> = here;
    Ok(RangeCopies { here: here.into_iter().next(), others })
}
