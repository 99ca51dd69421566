//! Repairs: a damaged replica that a subscription wants is fetched again from a good one and replaced. They
//! are counted, so that a storage which damages the same file again and again gets it no more for a while,
//! and somebody learns of it.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{BlockId, DatasetId, FaultCode, FileId, Lfn, StorageId, Timestamp};

use crate::block_replica::SUSPECT;
use crate::rows::codec::{Columns, key};
use crate::sql::{Optional, Transaction};
use crate::{Catalog, CatalogError, WornReplicasRow};

/// Repairs of one replica until it is left as it is.
const REPAIRS_MAX: i64 = 3;
/// Repairs are forgotten this long after the last one.
const REPAIRS_TTL: Duration = Duration::from_secs(24 * 3_600);
/// Files named of a dataset at a storage.
const EXAMPLES_MAX: usize = 5;
/// Replicas that one list examines.
const REPLICAS_EXAMINED_MAX: i64 = 10_000;

fn forgotten_before(now: Timestamp) -> i64 {
    now.0.saturating_sub(i64::try_from(REPAIRS_TTL.as_micros()).unwrap_or(i64::MAX))
}

/// Counts a damaged replica that was replaced by a good one.
pub(crate) fn count_repair(
    tx: &Transaction<'_>,
    (file, dataset): (FileId, DatasetId),
    storage: StorageId,
    now: Timestamp,
) -> Result<(), CatalogError> {
    tx.prepare_cached("DELETE FROM repairs WHERE last < ?1")?.execute_deferred([forgotten_before(now)])?;
    tx.prepare_cached(
        "INSERT INTO repairs AS r (file, storage, dataset, count, last) VALUES (?1, ?2, ?3, 1, ?4)
         ON CONFLICT (file, storage) DO UPDATE SET count = r.count + 1, last = excluded.last",
    )?
    .execute_deferred((key!(file), key!(storage), key!(dataset), now.0))?;
    Ok(())
}

/// Whether the suspect replica is damaged. One that has grown, changed while it was read, or was found with
/// other content by a scan may be somebody's work: it stays until somebody decides.
pub(crate) fn is_damaged(
    tx: &Transaction<'_>,
    block: BlockId,
    storage: StorageId,
    file: FileId,
) -> Result<bool, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT fault FROM replicas WHERE block = ?1 AND storage = ?2 AND file = ?3 AND state = ?4",
    )?;
    let ids = (key!(block), key!(storage), key!(file), SUSPECT);
    let fault = select.query_row(ids, |row| row.fault(0)).optional()?.flatten();
    Ok(fault.is_some_and(|fault| fault.code != FaultCode::SourceChanged))
}

/// Whether the replica was repaired so often of late that it is left as it is.
pub(crate) fn is_worn(
    tx: &Transaction<'_>,
    file: FileId,
    storage: StorageId,
    now: Timestamp,
) -> Result<bool, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT 1 FROM repairs WHERE file = ?1 AND storage = ?2 AND count >= ?3 AND last >= ?4",
    )?;
    Ok(select.exists((key!(file), key!(storage), REPAIRS_MAX, forgotten_before(now)))?)
}

impl Catalog {
    /// Suspect replicas that are left as they are, since each was repaired and damaged again several times.
    pub fn worn_replicas(&self, now: Timestamp) -> Result<Vec<WornReplicasRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT d.name, t.name, f.lfn FROM repairs r JOIN files f ON f.id = r.file
                 JOIN replicas p ON p.block = f.block AND p.storage = r.storage AND p.file = r.file
                 JOIN datasets d ON d.id = r.dataset JOIN storages t ON t.id = r.storage
                 WHERE r.count >= ?1 AND r.last >= ?2 AND p.state = ?3 ORDER BY r.file, r.storage LIMIT ?4",
            )?;
            let range = (REPAIRS_MAX, forgotten_before(now), SUSPECT, REPLICAS_EXAMINED_MAX);
            let mut rows: BTreeMap<_, (u64, Vec<Lfn>)> = BTreeMap::new();
            let worn = select.query_map(range, |row| {
                Ok((row.parsed::<longhaul_model::DatasetName>(0)?, row.parsed(1)?, row.parsed::<Lfn>(2)?))
            })?;
            for row in worn {
                let (dataset, storage, lfn): (_, longhaul_model::StorageName, _) = row?;
                let (files, examples) = rows.entry((storage, dataset)).or_default();
                *files += 1;
                if examples.len() < EXAMPLES_MAX {
                    examples.push(lfn);
                }
            }
            let row = |((storage_name, dataset_name), (files, examples))| WornReplicasRow {
                storage_name,
                dataset_name,
                files,
                examples,
                repairs: REPAIRS_MAX as u64,
            };
            Ok(rows.into_iter().map(row).collect())
        })
    }
}
