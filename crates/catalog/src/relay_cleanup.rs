//! Files at relays that nobody waits for any more: taken from the catalog, then removed by tasks.
//!
//! A relay keeps its copy as long as any storage that wants the block lacks the file. Then the replica leaves
//! the catalog first and the file leaves the storage after, so that nobody is sent to a file that is about to
//! go. Until it is gone, nothing is leased to that place (see `relays`).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sql::Transaction;
use longhaul_model::{BlockId, DatasetId, FileId, StorageId, TaskId, Timestamp};

use crate::block_replica::Presence;
use crate::consequences;
use crate::datasets::file_by_id;
use crate::ledger::Ledger;
use crate::relays::{REMOVAL_RETRY_DELAY, forget_relayed_file};
use crate::replicas::{has_other_good_replica, lose_replica};
use crate::rows::codec::{Columns, key};
use crate::{Catalog, CatalogError, NewTask, ReplicaChange, TaskKind, TaskRow};

/// Files checked in one transaction: bounds how long it holds the writer.
const FILES_PER_CHECK_MAX: i64 = 2_000;
/// When to check a file again that some target still waits for: soon, since it usually arrives within
/// seconds.
const RECHECK_DELAY: Duration = Duration::from_secs(5);

impl Catalog {
    /// Removes from the catalog the replicas at relays that nobody waits for any more, and creates one task
    /// for each storage and dataset that removes the files. `new_id` gives each task its id.
    pub fn clear_relays(
        &self,
        mut new_id: impl FnMut() -> TaskId,
        now: Timestamp,
    ) -> Result<(Vec<TaskRow>, ReplicaChange), CatalogError> {
        if self.read(|tx| Ok(due_files(tx, now)?.is_empty()))? {
            return Ok((Vec::new(), ReplicaChange::default()));
        }
        self.write(|tx| {
            let mut ledger = Ledger::new(tx, now);
            let mut change = ReplicaChange::default();
            let mut ready: BTreeMap<(StorageId, DatasetId), Vec<FileId>> = BTreeMap::new();
            for row in due_files(tx, now)? {
                match decide(&mut ledger, &row)? {
                    CleanupDecision::Keep => forget_relayed_file(tx, row.storage, row.file)?,
                    CleanupDecision::RecheckAfter(after) => recheck_at(tx, &row, now + after)?,
                    CleanupDecision::Remove => {
                        if let Some(file) = file_by_id(tx, row.file)? {
                            lose_replica(&mut ledger, &file, row.storage, &mut change)?;
                        }
                        ready.entry((row.storage, row.dataset)).or_default().push(row.file);
                    }
                }
                consequences::flush_if_full(&mut ledger)?;
            }
            consequences::flush(&mut ledger)?;
            change.absorb(ledger.effects);
            let mut tasks = Vec::new();
            for ((storage, dataset), files) in ready {
                let new = NewTask { id: new_id(), kind: TaskKind::Clear, dataset, storage };
                tasks.push(crate::tasks::add_clear(tx, &new, &files, now)?);
            }
            Ok((tasks, change))
        })
    }
}

struct RelayedFile {
    storage: StorageId,
    file: FileId,
    block: BlockId,
    dataset: DatasetId,
}

enum CleanupDecision {
    /// A subscription wants the file at the relay itself by now.
    Keep,
    RecheckAfter(Duration),
    Remove,
}

/// Files that are due for a check, except where a clearing of their dataset is under way at their storage.
fn due_files(tx: &Transaction<'_>, now: Timestamp) -> Result<Vec<RelayedFile>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT r.storage, r.file, r.block, r.dataset FROM relayed r WHERE r.task = 0 AND r.look_at <= ?1
         AND NOT EXISTS (SELECT 1 FROM tasks k WHERE k.storage = r.storage AND k.dataset = r.dataset AND \
         k.kind = 'clear'
           AND k.path = '' AND k.done = 0)
         ORDER BY r.look_at LIMIT ?2",
    )?;
    let rows = select.query_map((now.0, FILES_PER_CHECK_MAX), |row| {
        Ok(RelayedFile { storage: row.id(0)?, file: row.id(1)?, block: row.id(2)?, dataset: row.id(3)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn decide(ledger: &mut Ledger<'_>, row: &RelayedFile) -> Result<CleanupDecision, CatalogError> {
    let tx = ledger.tx;
    let mut wanted = tx.prepare_cached(
        "SELECT 1 FROM subscriptions WHERE dataset = ?1 AND target = ?2 AND block IN (0, ?3) AND state <> \
            'cancelled'",
    )?;
    if wanted.exists((key!(row.dataset), key!(row.storage), key!(row.block)))? {
        return Ok(CleanupDecision::Keep);
    }
    let mut select = tx.prepare_cached("SELECT DISTINCT target FROM demands WHERE block = ?1")?;
    let targets = select.query_map([key!(row.block)], |row| row.id(0))?;
    for target in targets.collect::<Result<Vec<StorageId>, _>>()? {
        if !matches!(ledger.presence(row.block, target, row.file)?, Presence::Good(_)) {
            return Ok(CleanupDecision::RecheckAfter(RECHECK_DELAY));
        }
    }
    let Some(file) = file_by_id(tx, row.file)? else { return Ok(CleanupDecision::Keep) };
    let last = !has_other_good_replica(ledger, &file, row.storage)?;
    Ok(if last { CleanupDecision::RecheckAfter(REMOVAL_RETRY_DELAY) } else { CleanupDecision::Remove })
}

fn recheck_at(tx: &Transaction<'_>, row: &RelayedFile, at: Timestamp) -> Result<(), CatalogError> {
    tx.prepare_cached("UPDATE relayed SET look_at = ?3 WHERE storage = ?1 AND file = ?2")?
        .execute_deferred((key!(row.storage), key!(row.file), at.0))?;
    Ok(())
}
