//! Replicas: which storage has what, and which copies are suspect.

use crate::sql::{Row, Transaction};
use longhaul_model::{BlockId, DatasetId, Fault, FaultCode, FileId, Lfn, StorageId, Timestamp};

use crate::accusations;
use crate::block_replica::Presence;
use crate::consequences;
use crate::datasets::{file_by_id, find_file};
use crate::deletion::load_range_copies;
use crate::ledger::{Effects, Ledger};
use crate::presence_range::block_holders;
use crate::rows::codec::{Columns, key, verification_counts};
use crate::test_data::may_copy;
use crate::{Catalog, CatalogError, CopyTerms, FileReplicaRow, FileRow, ReplicaChange, ReplicaTotals};

impl Catalog {
    /// One row per storage that has something of it, by name.
    pub fn replicas_of_dataset(&self, dataset: DatasetId) -> Result<Vec<ReplicaTotals>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT r.storage, t.name, r.files, r.bytes, r.suspect_files, r.suspect_bytes,
                 r.registered, r.wire, r.end_to_end, r.readback, d.files
                 FROM dataset_replicas r JOIN storages t ON t.id = r.storage JOIN datasets d ON d.id = \
                 r.dataset
                 WHERE r.dataset = ?1 ORDER BY t.name",
            )?;
            let rows = select.query_map([key!(dataset)], totals_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn replicas_of_block(&self, block: BlockId) -> Result<Vec<ReplicaTotals>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT r.storage, t.name, r.files, r.bytes, r.suspect_files, r.suspect_bytes,
                 r.registered, r.wire, r.end_to_end, r.readback, b.files
                 FROM block_replicas r JOIN storages t ON t.id = r.storage JOIN blocks b ON b.id = r.block
                 WHERE r.block = ?1 ORDER BY t.name",
            )?;
            let rows = select.query_map([key!(block)], totals_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn replicas_of_file(
        &self,
        lfn: &Lfn,
    ) -> Result<Option<(FileRow, Vec<FileReplicaRow>)>, CatalogError> {
        self.read(|tx| {
            let Some(file) = find_file(tx, lfn)? else { return Ok(None) };
            let mut select = tx.prepare_cached(
                "SELECT b.storage, t.name, coalesce(r.how, b.base_how), r.fault, b.deleting
                 FROM block_replicas b JOIN storages t ON t.id = b.storage
                 LEFT JOIN replicas r ON r.block = b.block AND r.storage = b.storage AND r.file = ?2
                 WHERE b.block = ?1 AND ((r.file IS NULL AND b.base_file >= ?2) OR r.state < 2) ORDER BY \
                 t.name",
            )?;
            let replicas = select.query_map((key!(file.block), key!(file.id)), |row| {
                Ok(FileReplicaRow {
                    storage: row.id(0)?,
                    storage_name: row.parsed(1)?,
                    how: row.verification(2)?,
                    suspect: row.fault(3)?,
                    deleting: row.number(4)? != 0,
                })
            })?;
            let replicas = replicas.collect::<Result<_, _>>()?;
            Ok(Some((file, replicas)))
        })
    }

    /// Marks the replica suspect: it is no source until it is found good again. Does nothing if there is
    /// none.
    pub fn mark_suspect(
        &self,
        file: FileId,
        storage: StorageId,
        fault: &Fault,
        now: Timestamp,
    ) -> Result<ReplicaChange, CatalogError> {
        self.change_replica(file, now, |ledger, row, change| {
            suspect_replica(ledger, row, storage, fault, change)
        })
    }

    /// Clears the suspicion. Does nothing if there is none.
    pub fn clear_suspect(
        &self,
        file: FileId,
        storage: StorageId,
        now: Timestamp,
    ) -> Result<ReplicaChange, CatalogError> {
        self.change_replica(file, now, |ledger, row, change| {
            if let Presence::Suspect(how) = ledger.presence(row.block, storage, row.id)? {
                ledger.set_presence(row.block, storage, row.id, row.size, Presence::Good(how), None)?;
                change.found.push((row.id, row.block, storage));
            }
            Ok(())
        })
    }

    /// Removes replicas from the catalog; deletes nothing at the storage. Refused with `LastReplica` if one
    /// of them is the last good one of its file, unless forced.
    pub fn remove_replicas(
        &self,
        storage: StorageId,
        files: &[FileId],
        force: bool,
        terms: &CopyTerms,
    ) -> Result<ReplicaChange, CatalogError> {
        self.write(|tx| {
            let mut ledger = Ledger::new(tx, terms.now);
            let mut change = ReplicaChange::default();
            for &id in files {
                let Some(file) = file_by_id(tx, id)? else { continue };
                if !force {
                    let holders = block_holders(tx, file.block)?;
                    let files = std::slice::from_ref(&file);
                    if !load_range_copies(tx, file.block, storage, &holders, files)?
                        .is_safe_to_lose(file.id, terms)
                    {
                        return Err(CatalogError::refused(FaultCode::LastReplica, file.lfn.shown()));
                    }
                }
                lose_replica(&mut ledger, &file, storage, &mut change)?;
            }
            consequences::flush(&mut ledger)?;
            change.absorb(ledger.effects);
            Ok(change)
        })
    }

    fn change_replica(
        &self,
        file: FileId,
        now: Timestamp,
        with: impl FnOnce(&mut Ledger<'_>, &FileRow, &mut ReplicaChange) -> Result<(), CatalogError>,
    ) -> Result<ReplicaChange, CatalogError> {
        self.write(|tx| {
            let row =
                file_by_id(tx, file)?.ok_or_else(|| CatalogError::not_found("file with number", file))?;
            let mut ledger = Ledger::new(tx, now);
            let mut change = ReplicaChange::default();
            with(&mut ledger, &row, &mut change)?;
            consequences::flush(&mut ledger)?;
            change.absorb(ledger.effects);
            Ok(change)
        })
    }
}

impl ReplicaChange {
    pub(crate) fn absorb(&mut self, mut effects: Effects) {
        let (demands, gone) = effects.take_demands();
        self.complete.extend(effects.complete.into_keys());
        self.demands.extend(demands);
        self.demands_gone.extend(gone);
        self.cancelled.extend(effects.cancelled);
    }
}

pub(crate) fn suspect_replica(
    ledger: &mut Ledger<'_>,
    file: &FileRow,
    storage: StorageId,
    fault: &Fault,
    change: &mut ReplicaChange,
) -> Result<(), CatalogError> {
    if let Presence::Good(how) = ledger.presence(file.block, storage, file.id)? {
        ledger.set_presence(file.block, storage, file.id, file.size, Presence::Suspect(how), Some(fault))?;
        change.lost.push((file.id, file.block, storage));
    }
    Ok(())
}

pub(crate) fn lose_replica(
    ledger: &mut Ledger<'_>,
    file: &FileRow,
    storage: StorageId,
    change: &mut ReplicaChange,
) -> Result<(), CatalogError> {
    let was = ledger.set_presence(file.block, storage, file.id, file.size, Presence::Absent, None)?;
    if was != Presence::Absent {
        accusations::forget(ledger.tx, file.id, storage)?;
        change.lost.push((file.id, file.block, storage));
    }
    Ok(())
}

/// Whether another storage has a good replica that is not being deleted, from which this one could get it.
pub(crate) fn has_other_good_replica(
    ledger: &mut Ledger<'_>,
    file: &FileRow,
    storage: StorageId,
) -> Result<bool, CatalogError> {
    for other in storages_holding(ledger.tx, file.block)? {
        if other != storage
            && ledger.is_usable_source(file.block, other, file.id)?
            && may_copy(ledger.tx, other, storage)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) fn storages_holding(tx: &Transaction<'_>, block: BlockId) -> Result<Vec<StorageId>, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT storage FROM block_replicas WHERE block = ?1 ORDER BY storage")?;
    let rows = select.query_map([key!(block)], |row| row.id(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn totals_row(row: &Row<'_>) -> crate::sql::Result<ReplicaTotals> {
    let (files, suspect_files) = (row.number(2)?, row.number(4)?);
    Ok(ReplicaTotals {
        storage: row.id(0)?,
        storage_name: row.parsed(1)?,
        files,
        bytes: row.number(3)?,
        suspect_files,
        suspect_bytes: row.number(5)?,
        complete: files == row.number(10)? && suspect_files == 0,
        verified: verification_counts(row, 6)?,
    })
}
