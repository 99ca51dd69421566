//! Replicas that a target's agent found bad at their source. Its word alone makes none suspect, since it is
//! another site's: it orders a verification by the storage's own agent, and what that finds holds. Two target
//! sites that say the same are believed before, but never about the last good copy.
//!
//! A site that accused a replica which its own agent then found good is not heard about it for a while, so
//! that nobody keeps another site's disks busy.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{DatasetId, Fault, FileId, SiteId, StorageId, TaskId, Timestamp};

use crate::accusations::{ACCUSED_PATH, forget};
use crate::block_replica::Presence;
use crate::consequences;
use crate::datasets::file_by_id;
use crate::ledger::Ledger;
use crate::replicas::{has_other_good_replica, suspect_replica};
use crate::rows::codec::{Columns, key};
use crate::sql::{Optional, Transaction};
use crate::{Catalog, CatalogError, FileRow, NewTask, ReplicaChange, TaskKind, TaskRow};

/// Target sites that have to say the same for a replica to be suspect before it is verified.
const SITES_BELIEVED_MIN: i64 = 2;
/// A site is not heard about a replica for this long after its own agent found it good.
const REFUTED_TTL: Duration = Duration::from_secs(24 * 3_600);
/// Files taken into verifications by one call.
const FILES_PER_CALL_MAX: i64 = 2_000;

/// Notes that an agent of `site` found a file bad at its source. Returns whether the replica is suspect now,
/// or no good one any more.
pub(crate) fn accuse(
    ledger: &mut Ledger<'_>,
    file: &FileRow,
    storage: StorageId,
    (site, fault): (SiteId, &Fault),
    change: &mut ReplicaChange,
) -> Result<bool, CatalogError> {
    if !matches!(ledger.presence(file.block, storage, file.id)?, Presence::Good(_)) {
        return Ok(true);
    }
    let (tx, now) = (ledger.tx, ledger.now);
    let row = (key!(file.id), key!(storage), key!(site));
    let mut select = tx.prepare_cached(
        "SELECT refuted FROM accusations
         WHERE file = ?1 AND storage = ?2 AND site = ?3 AND refuted IS NOT NULL",
    )?;
    let refuted = select.query_row(row, |row| row.time(0)).optional()?;
    if refuted.is_some_and(|refuted| now.since(refuted) < REFUTED_TTL) {
        return Ok(false);
    }
    tx.prepare_cached(
        "INSERT INTO accusations AS a (file, storage, site, dataset, due) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (file, storage, site) DO UPDATE SET refuted = NULL,
         due = CASE WHEN a.refuted IS NULL THEN a.due ELSE excluded.due END",
    )?
    .execute((row.0, row.1, row.2, key!(file.dataset), now.0))?;
    // What agents of the storage's own site say as targets is no second opinion.
    let mut count = tx.prepare_cached(
        "SELECT count(*) FROM accusations a JOIN storages s ON s.id = a.storage
         WHERE a.file = ?1 AND a.storage = ?2 AND a.refuted IS NULL AND a.site <> s.site",
    )?;
    let sites: i64 = count.query_row((row.0, row.1), |row| row.get(0))?;
    if sites < SITES_BELIEVED_MIN || !has_other_good_replica(ledger, file, storage)? {
        return Ok(false);
    }
    suspect_replica(ledger, file, storage, fault, change)?;
    Ok(true)
}

impl Catalog {
    /// Orders the verification of accused replicas by their storages' own agents: one task at a time for each
    /// storage and dataset. `new_id` gives each task its id.
    pub fn order_verifications(
        &self,
        mut new_id: impl FnMut() -> TaskId,
        now: Timestamp,
    ) -> Result<Vec<TaskRow>, CatalogError> {
        if self.read(|tx| Ok(due_accusations(tx, now)?.is_empty()))? {
            return Ok(Vec::new());
        }
        self.write(|tx| {
            let mut ledger = Ledger::new(tx, now);
            let mut ready: BTreeMap<(StorageId, DatasetId), Vec<FileId>> = BTreeMap::new();
            for (file, storage, dataset) in due_accusations(tx, now)? {
                let row = file_by_id(tx, file)?;
                let absent = match &row {
                    Some(row) => ledger.presence(row.block, storage, file)? == Presence::Absent,
                    None => true,
                };
                if absent {
                    forget(tx, file, storage)?;
                } else {
                    ready.entry((storage, dataset)).or_default().push(file);
                }
            }
            consequences::flush(&mut ledger)?;
            let mut tasks = Vec::new();
            for ((storage, dataset), files) in ready {
                let new = NewTask { id: new_id(), kind: TaskKind::Verify, dataset, storage };
                tasks.push(add_verification(tx, &new, &files, now)?);
            }
            Ok(tasks)
        })
    }
}

fn due_accusations(
    tx: &Transaction<'_>,
    now: Timestamp,
) -> Result<Vec<(FileId, StorageId, DatasetId)>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT DISTINCT a.file, a.storage, a.dataset FROM accusations a
         WHERE a.task = 0 AND a.refuted IS NULL AND a.due <= ?1
         AND NOT EXISTS (SELECT 1 FROM tasks k WHERE k.storage = a.storage AND k.dataset = a.dataset
           AND k.kind = 'verify' AND k.path = ?2 AND k.done = 0)
         ORDER BY a.file LIMIT ?3",
    )?;
    let rows = select.query_map((now.0, ACCUSED_PATH, FILES_PER_CALL_MAX), |row| {
        Ok((row.id(0)?, row.id(1)?, row.id(2)?))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn add_verification(
    tx: &Transaction<'_>,
    new: &NewTask,
    files: &[FileId],
    now: Timestamp,
) -> Result<TaskRow, CatalogError> {
    crate::tasks::insert(tx, new, now)?;
    let mut take = tx.prepare_cached(
        "UPDATE accusations SET task = ?3 WHERE storage = ?1 AND file = ?2 AND refuted IS NULL",
    )?;
    for &file in files {
        take.execute_deferred((key!(new.storage), key!(file), key!(new.id)))?;
    }
    tx.execute_deferred(
        "UPDATE tasks SET path = ?2, files_total = ?3, bytes_total = (SELECT coalesce(sum(f.size), 0)
         FROM (SELECT DISTINCT file FROM accusations WHERE task = ?1 AND task <> 0) a
         JOIN files f ON f.id = a.file) WHERE id = ?1",
        (key!(new.id), ACCUSED_PATH, files.len() as i64),
    )?;
    crate::tasks::require(tx, new.id)
}
