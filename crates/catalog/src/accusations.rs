//! The accusations that agents of targets make against replicas at their sources, as rows: what becomes of
//! them. What they bring about is in `accused_replicas`.

use std::time::Duration;

use longhaul_model::{FileId, StorageId, TaskId, Timestamp};

use crate::datasets::selected_task_files;
use crate::rows::codec::key;
use crate::sql::Transaction;
use crate::{CatalogError, TaskFiles};

/// A verification that was cancelled or could not read the file is ordered again after this.
const VERIFICATION_RETRY_DELAY: Duration = Duration::from_secs(3_600);
/// What stands as the path of a verification of accused files only; a dataset's verification has none.
pub(crate) const ACCUSED_PATH: &str = "accused";

/// The storage's own agent found the replica good.
pub(crate) fn refute(
    tx: &Transaction<'_>,
    file: FileId,
    storage: StorageId,
    now: Timestamp,
) -> Result<(), CatalogError> {
    tx.prepare_cached(
        "UPDATE accusations SET refuted = ?3, task = 0 WHERE file = ?1 AND storage = ?2 AND refuted IS NULL",
    )?
    .execute_deferred((key!(file), key!(storage), now.0))?;
    Ok(())
}

/// The replica they are about is gone, proven bad, or another one.
pub(crate) fn forget(tx: &Transaction<'_>, file: FileId, storage: StorageId) -> Result<(), CatalogError> {
    tx.prepare_cached("DELETE FROM accusations WHERE file = ?1 AND storage = ?2")?
        .execute_deferred((key!(file), key!(storage)))?;
    Ok(())
}

/// After the end of a verification: what it did not settle is verified again later.
pub(crate) fn requeue_unsettled(
    tx: &Transaction<'_>,
    task: TaskId,
    now: Timestamp,
) -> Result<(), CatalogError> {
    tx.prepare_cached("UPDATE accusations SET task = 0, due = ?2 WHERE task = ?1 AND task <> 0")?
        .execute_deferred((key!(task), (now + VERIFICATION_RETRY_DELAY).0))?;
    Ok(())
}

pub(crate) fn is_of_accused(tx: &Transaction<'_>, task: TaskId) -> Result<bool, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT 1 FROM tasks WHERE id = ?1 AND path = ?2 AND kind = 'verify'")?;
    Ok(select.exists((key!(task), ACCUSED_PATH))?)
}

/// One page of the files that a verification of accused files is about.
pub(crate) fn accused_files(
    tx: &Transaction<'_>,
    task: TaskId,
    after: Option<FileId>,
    limit: usize,
) -> Result<TaskFiles, CatalogError> {
    selected_task_files(
        tx,
        "SELECT DISTINCT f.id, f.lfn, f.size, f.digests FROM accusations a JOIN files f ON f.id = a.file
         WHERE a.task = ?1 AND a.task <> 0 AND a.file > ?2 ORDER BY f.id LIMIT ?3",
        task,
        after,
        limit,
    )
}
