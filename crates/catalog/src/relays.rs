//! Files that pass through relays: what came to one on its way, and when it may go.
//!
//! A relay's copy is kept as long as any storage that wants its block lacks the file. Then the replica is
//! taken from the catalog first and the file from the storage after, so that nobody is sent to a file that is
//! about to go; until it is gone, nothing is leased to that place.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sql::Transaction;
use longhaul_model::{BlockId, DatasetId, Fault, FileId, StorageId, TaskId, Timestamp};

use crate::attempts::{Live, end_hops};
use crate::codec::{Columns, key};
use crate::datasets::file_by_id;
use crate::ledger::Ledger;
use crate::pair::Presence;
use crate::replicas::{elsewhere, lose};
use crate::{
    CancelledTransfer, Catalog, CatalogError, ExpectedFileRow, NewTask, ReplicaChange, TaskFiles, TaskKind,
    TaskRow,
};

/// Files looked at in one transaction.
const LOOK_FILES_MAX: i64 = 2_000;
/// A file that is still needed, and one that could not be removed, is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const TRY_AGAIN: Duration = Duration::from_secs(600);

impl Catalog {
    /// Takes from the catalog what relays hold and nobody waits for any more, and makes a task for each
    /// storage and dataset that removes it there. `new_id` is asked for the id of each.
    pub fn clear_relays(
        &self,
        mut new_id: impl FnMut() -> TaskId,
        now: Timestamp,
    ) -> Result<(Vec<TaskRow>, ReplicaChange), CatalogError> {
        if self.read(|tx| Ok(due(tx, now)?.is_empty()))? {
            return Ok((Vec::new(), ReplicaChange::default()));
        }
        self.write(|tx| {
            let mut ledger = Ledger::new(tx, now);
            let mut change = ReplicaChange::default();
            let mut ready: BTreeMap<(StorageId, DatasetId), Vec<FileId>> = BTreeMap::new();
            for row in due(tx, now)? {
                match fate(&mut ledger, &row)? {
                    Fate::Stays => forget(tx, row.storage, row.file)?,
                    Fate::Later(after) => look_again(tx, &row, now + after)?,
                    Fate::Goes => {
                        if let Some(file) = file_by_id(tx, row.file)? {
                            lose(&mut ledger, &file, row.storage, &mut change)?;
                        }
                        ready.entry((row.storage, row.dataset)).or_default().push(row.file);
                    }
                }
                ledger.relieve()?;
            }
            ledger.flush()?;
            change.take(ledger.effects);
            let mut tasks = Vec::new();
            for ((storage, dataset), files) in ready {
                let new = NewTask { id: new_id(), kind: TaskKind::Clear, dataset, storage };
                tasks.push(crate::tasks::add_clear(tx, &new, &files, now)?);
            }
            Ok((tasks, change))
        })
    }
}

struct Relayed {
    storage: StorageId,
    file: FileId,
    block: BlockId,
    dataset: DatasetId,
}

enum Fate {
    /// Somebody wants it at the relay itself by now.
    Stays,
    Later(Duration),
    Goes,
}

/// Rows whose time has come, but of storages and datasets where a task removes some already.
fn due(tx: &Transaction<'_>, now: Timestamp) -> Result<Vec<Relayed>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT r.storage, r.file, r.block, r.dataset FROM relayed r WHERE r.task = 0 AND r.look_at <= ?1
         AND NOT EXISTS (SELECT 1 FROM tasks k WHERE k.storage = r.storage AND k.dataset = r.dataset AND \
         k.kind = 'clear'
           AND k.path = '' AND k.done = 0)
         ORDER BY r.look_at LIMIT ?2",
    )?;
    let rows = select.query_map((now.0, LOOK_FILES_MAX), |row| {
        Ok(Relayed { storage: row.id(0)?, file: row.id(1)?, block: row.id(2)?, dataset: row.id(3)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn fate(ledger: &mut Ledger<'_>, row: &Relayed) -> Result<Fate, CatalogError> {
    let tx = ledger.tx;
    let mut wanted = tx.prepare_cached(
        "SELECT 1 FROM subscriptions WHERE dataset = ?1 AND target = ?2 AND block IN (0, ?3) AND state <> \
            'cancelled'",
    )?;
    if wanted.exists((key!(row.dataset), key!(row.storage), key!(row.block)))? {
        return Ok(Fate::Stays);
    }
    let mut select = tx.prepare_cached("SELECT DISTINCT target FROM demands WHERE block = ?1")?;
    let targets = select.query_map([key!(row.block)], |row| row.id(0))?;
    for target in targets.collect::<Result<Vec<StorageId>, _>>()? {
        if !matches!(ledger.presence(row.block, target, row.file)?, Presence::Good(_)) {
            return Ok(Fate::Later(LOOK_AGAIN));
        }
    }
    let Some(file) = file_by_id(tx, row.file)? else { return Ok(Fate::Stays) };
    let last = !elsewhere(ledger, &file, row.storage)?;
    Ok(if last { Fate::Later(TRY_AGAIN) } else { Fate::Goes })
}

fn look_again(tx: &Transaction<'_>, row: &Relayed, at: Timestamp) -> Result<(), CatalogError> {
    tx.prepare_cached("UPDATE relayed SET look_at = ?3 WHERE storage = ?1 AND file = ?2")?.order((
        key!(row.storage),
        key!(row.file),
        at.0,
    ))?;
    Ok(())
}

/// A file has come to a relay, where it was not before.
pub(crate) fn came(tx: &Transaction<'_>, live: &Live, now: Timestamp) -> Result<(), CatalogError> {
    tx.prepare_cached(
        "INSERT INTO relayed (storage, file, block, dataset, look_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (storage, file) DO UPDATE SET task = 0, look_at = excluded.look_at",
    )?
    .order((key!(live.target), key!(live.file), key!(live.block), key!(live.dataset), now.0))?;
    Ok(())
}

pub(crate) fn forget(tx: &Transaction<'_>, storage: StorageId, file: FileId) -> Result<(), CatalogError> {
    tx.prepare_cached("DELETE FROM relayed WHERE storage = ?1 AND file = ?2")?
        .order((key!(storage), key!(file)))?;
    Ok(())
}

/// A clearing has ended: what it left behind is tried again later.
pub(crate) fn left_behind(tx: &Transaction<'_>, task: TaskId, now: Timestamp) -> Result<(), CatalogError> {
    tx.prepare_cached("UPDATE relayed SET task = 0, look_at = ?2 WHERE task = ?1 AND task <> 0")?
        .order((key!(task), (now + TRY_AGAIN).0))?;
    Ok(())
}

/// Whether files of a storage are being removed: then none may come there under the same name.
pub(crate) fn is_clearing(
    tx: &Transaction<'_>,
    storage: StorageId,
    file: FileId,
) -> Result<bool, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT 1 FROM relayed WHERE storage = ?1 AND file = ?2 AND task <> 0")?;
    Ok(select.exists((key!(storage), key!(file)))?)
}

/// A page of what a clearing removes.
pub(crate) fn page(
    tx: &Transaction<'_>,
    task: TaskId,
    after: Option<FileId>,
    limit: usize,
) -> Result<TaskFiles, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT f.id, f.lfn, f.size, f.digests FROM relayed r JOIN files f ON f.id = r.file
         WHERE r.task = ?1 AND r.task <> 0 AND r.file > ?2 ORDER BY r.file LIMIT ?3",
    )?;
    let rows = select.query_map((key!(task), after.map_or(0, |file| key!(file)), limit as i64), |row| {
        Ok(ExpectedFileRow {
            file: row.id(0)?,
            lfn: row.parsed(1)?,
            size: row.number(2)?,
            digests: row.digests(3)?,
        })
    })?;
    let files = rows.collect::<Result<Vec<_>, _>>()?;
    let next = files.last().filter(|_| files.len() == limit).map(|file| file.file);
    Ok(TaskFiles { files, next, ..TaskFiles::default() })
}

/// Nobody wants the block any more: what was on its way over relays ends.
pub(crate) fn end_idle_hops(
    tx: &Transaction<'_>,
    block: BlockId,
    fault: &Fault,
    now: Timestamp,
) -> Result<Vec<CancelledTransfer>, CatalogError> {
    let mut wanted = tx.prepare_cached("SELECT 1 FROM demands WHERE block = ?1")?;
    if wanted.exists([key!(block)])? {
        return Ok(Vec::new());
    }
    end_hops(tx, block, fault, now)
}
