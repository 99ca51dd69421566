//! What happens to waiting files when a storage is closed or opened again.

use crate::sql::Transaction;
use crate::sql::Value;
use longhaul_model::job::storage_element;
use longhaul_model::{JobFileState, JobId, Timestamp};

use super::updater::{JobUpdater, file_head_row};
use super::{SELECT_FILE_HEAD, file_state_index, find_head};
use crate::{Catalog, CatalogError, JobChanges};

/// Files that one transaction changes; the caller repeats until none is left.
const FILES_PER_STEP_MAX: i64 = 2_000;

/// A change of the files that wait for a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageStep<'a> {
    /// Cancel them for this reason.
    Cancel(&'a str),
    /// Hold them until they are released.
    Hold,
    Release,
}

impl StorageStep<'_> {
    /// The transitions of this step.
    fn states(self) -> &'static [(JobFileState, JobFileState)] {
        use JobFileState::*;
        match self {
            StorageStep::Cancel(_) => &[
                (TokenPrep, Canceled),
                (Staging, Canceled),
                (Started, Canceled),
                (Submitted, Canceled),
                (ForceStart, Canceled),
                (Ready, Canceled),
                (Active, Canceled),
                (OnHold, Canceled),
                (OnHoldStaging, Canceled),
                (NotUsed, Canceled),
            ],
            StorageStep::Hold => &[(Submitted, OnHold), (Staging, OnHoldStaging)],
            StorageStep::Release => &[(OnHold, Submitted), (OnHoldStaging, Staging)],
        }
    }
}

impl Catalog {
    /// Applies a step to files from or to this storage (`scheme://host`), of one community or of all. Returns
    /// the jobs affected; call again until there is none.
    pub fn step_storage_files(
        &self,
        storage: &str,
        vo: Option<&str>,
        step: StorageStep<'_>,
        now: Timestamp,
    ) -> Result<(Vec<JobId>, JobChanges), CatalogError> {
        self.write(|tx| {
            let ends = endpoint_ids(tx, storage)?;
            let mut changer = JobUpdater::new(self, tx, now);
            let mut jobs: Vec<i64> = Vec::new();
            if ends.is_empty() {
                return Ok((Vec::new(), changer.finish()?));
            }
            for (from, to) in step.states() {
                for file in files_in_state(tx, *from, &ends, vo)? {
                    jobs.push(file.job);
                    match step {
                        StorageStep::Cancel(reason) => changer.cancel(&file, reason)?,
                        _ => changer.set(&file, *to)?,
                    }
                }
                if jobs.len() >= FILES_PER_STEP_MAX as usize {
                    break;
                }
            }
            jobs.sort_unstable();
            jobs.dedup();
            let mut ids = Vec::with_capacity(jobs.len());
            for job in jobs {
                ids.extend(find_head(tx, job)?.map(|head| head.id));
            }
            Ok((ids, changer.finish()?))
        })
    }
}

/// The end points of a storage, which may have several ports.
fn endpoint_ids(tx: &Transaction<'_>, storage: &str) -> Result<Vec<i64>, CatalogError> {
    // The range also holds others, such as longer host names.
    let mut select = tx.prepare_cached("SELECT id, url FROM job_ends WHERE url >= ?1 AND url < ?1 || ';'")?;
    let rows = select.query_map([storage], |row| Ok((row.get::<i64>(0)?, row.get::<String>(1)?)))?;
    let mut ends = Vec::new();
    for row in rows {
        let (id, url) = row?;
        if storage_element(&url).as_deref() == Some(storage) {
            ends.push(id);
        }
    }
    Ok(ends)
}

fn files_in_state(
    tx: &Transaction<'_>,
    state: JobFileState,
    ends: &[i64],
    vo: Option<&str>,
) -> Result<Vec<super::updater::FileHead>, CatalogError> {
    let places = vec!["?"; ends.len()].join(", ");
    let of_vo = if vo.is_some() { "AND job IN (SELECT number FROM jobs WHERE vo = ?)" } else { "" };
    let text = format!(
        "{SELECT_FILE_HEAD} INDEXED BY job_files_by_state WHERE state = ? AND (source_end IN ({places}) OR \
            target_end IN ({places})) \
         {of_vo} ORDER BY id LIMIT {FILES_PER_STEP_MAX}"
    );
    let ends = || ends.iter().map(|end| Value::from(*end));
    let values = std::iter::once(Value::from(file_state_index(state))).chain(ends()).chain(ends());
    let values = values.chain(vo.map(|vo| Value::from(vo.to_owned())));
    let mut select = tx.prepare_cached(&text)?;
    let rows = select.query_map(values.collect::<Vec<_>>(), file_head_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}
