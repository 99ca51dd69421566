//! Test data: the datasets of virtual storages, which generate what is read and drop what is written.
//!
//! A virtual storage holds nothing for anybody, so ordinary data never goes there, nor comes from there:
//! [`may_copy_between`] is the rule, for subscriptions, expansions and leases alike. A dataset is test data
//! exactly while virtual storages, and only they, have files of it.

use std::collections::BTreeSet;

use crate::sql::{Optional, Transaction};
use longhaul_model::{DatasetId, StorageId, StorageKind};

use crate::CatalogError;
use crate::rows::codec::{Columns, key};

/// The kinds of storages that have files of a dataset.
struct Holders {
    virtual_ones: bool,
    real_ones: bool,
}

/// Whether files may go from one storage to another. What a virtual one generates is for virtual ones only,
/// and what real ones hold is for real ones only.
pub(crate) fn may_copy_between(source_is_virtual: bool, target_is_virtual: bool) -> bool {
    source_is_virtual == target_is_virtual
}

/// Whether files may go from one storage to another, by their kinds in the catalog.
pub(crate) fn may_copy(
    tx: &Transaction<'_>,
    source: StorageId,
    target: StorageId,
) -> Result<bool, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT s.kind, t.kind FROM storages s, storages t WHERE s.id = ?1 AND t.id = ?2")?;
    let allowed = select.query_row((key!(source), key!(target)), |row| {
        let (source, target) = (row.parsed::<StorageKind>(0)?, row.parsed::<StorageKind>(1)?);
        Ok(may_copy_between(source == StorageKind::Virtual, target == StorageKind::Virtual))
    });
    // The other conditions of a lease refuse a storage that is not there.
    Ok(allowed.optional()?.unwrap_or(true))
}

/// Refuses a virtual storage as the target of ordinary data. An empty dataset may become either: what is
/// registered in it later goes where [`may_copy_between`] allows.
pub(crate) fn check_target(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    target: StorageId,
) -> Result<(), CatalogError> {
    if !is_virtual(tx, target)? {
        return Ok(());
    }
    let holders = holders(tx, dataset)?;
    let is_test_data = holders.virtual_ones && !holders.real_ones;
    let mut select = tx.prepare_cached("SELECT files FROM datasets WHERE id = ?1")?;
    let files = select.query_row([key!(dataset)], |row| row.number(0)).optional()?.unwrap_or(0);
    if files > 0 && !may_copy_between(is_test_data, true) {
        return Err(refusal(tx, target, "it can be the target of test data only; choose another storage")?);
    }
    Ok(())
}

/// Refuses to register ordinary data at a virtual storage.
pub(crate) fn check_registration(
    tx: &Transaction<'_>,
    dataset: DatasetId,
    at: StorageId,
) -> Result<(), CatalogError> {
    if is_virtual(tx, at)? && holders(tx, dataset)?.real_ones {
        return Err(refusal(tx, at, "files that other storages hold cannot be registered there")?);
    }
    Ok(())
}

pub(crate) fn is_virtual(tx: &Transaction<'_>, storage: StorageId) -> Result<bool, CatalogError> {
    let mut select = tx.prepare_cached("SELECT kind FROM storages WHERE id = ?1")?;
    let kind = select.query_row([key!(storage)], |row| row.parsed::<StorageKind>(0)).optional()?;
    Ok(kind == Some(StorageKind::Virtual))
}

/// The datasets of test data, without those that ordinary files once came to: release 0.1.0 let them.
pub(crate) fn test_datasets(tx: &Transaction<'_>) -> Result<BTreeSet<DatasetId>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT r.dataset FROM dataset_replicas r JOIN storages t ON t.id = r.storage
         WHERE t.kind = ?1 AND r.files > 0
         AND NOT EXISTS (SELECT 1 FROM dataset_replicas h JOIN storages s ON s.id = h.storage
           WHERE h.dataset = r.dataset AND h.files > 0 AND s.kind <> ?1)
         AND NOT EXISTS (SELECT 1 FROM arrivals a JOIN storages s ON s.id = a.source
           WHERE a.dataset = r.dataset AND a.files > 0 AND s.kind <> ?1)",
    )?;
    let rows = select.query_map([StorageKind::Virtual.word()], |row| row.id(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn holders(tx: &Transaction<'_>, dataset: DatasetId) -> Result<Holders, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT DISTINCT t.kind FROM dataset_replicas r JOIN storages t ON t.id = r.storage
         WHERE r.dataset = ?1 AND r.files > 0",
    )?;
    let kinds = select.query_map([key!(dataset)], |row| row.parsed::<StorageKind>(0))?;
    let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
    Ok(Holders {
        virtual_ones: kinds.contains(&StorageKind::Virtual),
        real_ones: kinds.iter().any(|kind| *kind != StorageKind::Virtual),
    })
}

fn refusal(tx: &Transaction<'_>, storage: StorageId, why: &str) -> Result<CatalogError, CatalogError> {
    let name = crate::sites::require_storage(tx, storage)?;
    Ok(CatalogError::conflict(format!("storage {name} is virtual and holds no files: {why}")))
}
