//! Files that pass through relays: which came to one on their way, and which are being removed there.
//!
//! While a file is being removed, nothing is leased to that place. `relay_cleanup` decides when a file may
//! go.

use std::time::Duration;

use crate::sql::Transaction;
use longhaul_model::{FileId, StorageId, TaskId, Timestamp};

use crate::datasets::selected_task_files;
use crate::rows::codec::key;
use crate::rows::live::LiveTransfer;
use crate::{CatalogError, TaskFiles};

/// When to try again to remove a file that a clearing left behind, or that is the last good replica: minutes,
/// since somebody has to act on its cause first.
pub(crate) const REMOVAL_RETRY_DELAY: Duration = Duration::from_secs(600);

/// Notes that a file came to a relay that did not have it.
pub(crate) fn on_relay_arrival(
    tx: &Transaction<'_>,
    live: &LiveTransfer,
    now: Timestamp,
) -> Result<(), CatalogError> {
    tx.prepare_cached(
        "INSERT INTO relayed (storage, file, block, dataset, look_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (storage, file) DO UPDATE SET task = 0, look_at = excluded.look_at",
    )?
    .execute_deferred((
        key!(live.target),
        key!(live.file),
        key!(live.block),
        key!(live.dataset),
        now.0,
    ))?;
    Ok(())
}

pub(crate) fn forget_relayed_file(
    tx: &Transaction<'_>,
    storage: StorageId,
    file: FileId,
) -> Result<(), CatalogError> {
    tx.prepare_cached("DELETE FROM relayed WHERE storage = ?1 AND file = ?2")?
        .execute_deferred((key!(storage), key!(file)))?;
    Ok(())
}

/// After the end of a clearing: schedules another check of the files it left behind.
pub(crate) fn requeue_after_clear(
    tx: &Transaction<'_>,
    task: TaskId,
    now: Timestamp,
) -> Result<(), CatalogError> {
    tx.prepare_cached("UPDATE relayed SET task = 0, look_at = ?2 WHERE task = ?1 AND task <> 0")?
        .execute_deferred((key!(task), (now + REMOVAL_RETRY_DELAY).0))?;
    Ok(())
}

/// Whether the file is being removed at the storage: until it is gone, no transfer may bring it there again.
pub(crate) fn is_clearing(
    tx: &Transaction<'_>,
    storage: StorageId,
    file: FileId,
) -> Result<bool, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT 1 FROM relayed WHERE storage = ?1 AND file = ?2 AND task <> 0")?;
    Ok(select.exists((key!(storage), key!(file)))?)
}

/// One page of the files that a clearing removes.
pub(crate) fn files_to_clear(
    tx: &Transaction<'_>,
    task: TaskId,
    after: Option<FileId>,
    limit: usize,
) -> Result<TaskFiles, CatalogError> {
    selected_task_files(
        tx,
        "SELECT f.id, f.lfn, f.size, f.digests FROM relayed r JOIN files f ON f.id = r.file
         WHERE r.task = ?1 AND r.task <> 0 AND r.file > ?2 ORDER BY r.file LIMIT ?3",
        task,
        after,
        limit,
    )
}
