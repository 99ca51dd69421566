//! Staging of files from tape before their copy, and archive monitoring after it.
//!
//! A bulk request is a row before the tape system hears of it, until the tape system pins nothing for us any
//! more. So a restart at any time resumes from the row.

use std::collections::btree_map::Entry;

use crate::sql::{Optional, Transaction};
use longhaul_model::job::ARCHIVING_OF_REPLICAS;
use longhaul_model::{JobFileState, JobKind, JobState, Timestamp};

use super::updater::{FileHead, JobUpdater, file_head_row};
use super::{SELECT_FILE, SELECT_FILE_HEAD, SELECT_JOB, file_row, id_bytes, job_row, to_u64};
use crate::rows::codec::{Columns, number};
use crate::{
    Catalog, CatalogError, JobChanges, JobFileRow, JobRow, StagingFile, TapeFileState, TapeRequestRow,
    TapeStep,
};

/// Value of `stands`: requested from tape.
const REQUESTED: i64 = 0;
/// Value of `stands`: staged and pinned.
const ON_DISK: i64 = 1;
/// Value of `stands`: no longer wanted. Adding it to either of the others makes a file unwanted.
const ABANDONED: i64 = 2;

/// When to poll a bulk request next: at once if it has files that nobody wants any more.
const NEXT_POLL: &str =
    "CASE WHEN NOT ?3 AND EXISTS (SELECT 1 FROM tape_files WHERE request = ?1 AND stands > 1)
     THEN CAST(?4 AS BIGINT) ELSE CAST(?2 AS BIGINT) END";

impl Catalog {
    /// End points with files that wait for staging.
    pub fn staging_endpoints(&self) -> Result<Vec<u64>, CatalogError> {
        self.read(|tx| {
            // Steps from one end point to the next in an index, however many files wait at each.
            let mut next = tx.prepare_cached(
                "SELECT min(source_end) FROM job_files INDEXED BY job_files_staging WHERE state = 1 AND \
                    source_end > ?1",
            )?;
            let mut ends = Vec::new();
            let mut last = -1;
            while let Some(end) = next.query_row([last], |row| row.get::<Option<i64>>(0))? {
                ends.push(to_u64(end));
                last = end;
            }
            Ok(ends)
        })
    }

    /// Files at an end point that are in no bulk request yet, by id.
    pub fn staging_files(
        &self,
        end: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<StagingFile>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT f.id, j.vo, coalesce(json_extract(f.details, '$.source_token_id'), j.credential),
                 f.source = f.target FROM job_files f INDEXED BY job_files_staging JOIN jobs j ON j.number = \
                 f.job
                 WHERE f.state = 1 AND f.source_end = ?1 AND f.not_before <= ?2 AND NOT EXISTS (
                   SELECT 1 FROM tape_files t WHERE t.file = f.id AND t.stands < 2)
                 ORDER BY f.id LIMIT ?3",
            )?;
            let rows = select.query_map((number(end), now.0, number(limit as u64)), |row| {
                Ok(StagingFile {
                    file: row.number(0)?,
                    endpoint: end,
                    vo: row.get(1)?,
                    requester: row.get(2)?,
                    pin_only: row.get(3)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// How many bulk requests there are, and how many of one community at one end point.
    pub fn count_tape_requests(&self, end: u64, vo: &str) -> Result<(u64, u64), CatalogError> {
        self.read(|tx| {
            let mut all = tx.prepare_cached("SELECT count(*) FROM tape_requests")?;
            let mut of_end =
                tx.prepare_cached("SELECT count(*) FROM tape_requests WHERE source_end = ?1 AND vo = ?2")?;
            let all = all.query_row((), |row| row.number(0))?;
            Ok((all, of_end.query_row((number(end), vo), |row| row.number(0))?))
        })
    }

    /// Bulk requests that are due for a poll, the longest overdue first.
    pub fn due_tape_requests(&self, now: Timestamp, limit: usize) -> Result<Vec<u64>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT id FROM tape_requests WHERE next <= ?1 AND next IS NOT NULL ORDER BY next LIMIT ?2",
            )?;
            let rows = select.query_map((now.0, number(limit as u64)), |row| row.number(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// A bulk request with its files; none if it is gone.
    pub fn tape_request(&self, id: u64) -> Result<Option<TapeRequestRow>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached("SELECT base, request, made, tries FROM tape_requests WHERE id = ?1")?;
            let found = select
                .query_row([number(id)], |row| Ok((row.get(0)?, row.get(1)?, row.time(2)?, row.get(3)?)));
            let Some((base, request, made, tries)) = found.optional()? else { return Ok(None) };
            let mut row = TapeRequestRow {
                id,
                base,
                request,
                made,
                tries,
                files: Vec::new(),
                jobs: Default::default(),
            };
            let mut select = tx.prepare_cached("SELECT stands, file FROM tape_files WHERE request = ?1")?;
            let stands =
                select.query_map([number(id)], |row| Ok((row.get::<i64>(0)?, row.get::<i64>(1)?)))?;
            let mut file_of = tx.prepare_cached(&format!("{SELECT_FILE} WHERE f.id = ?1"))?;
            for stand in stands {
                let (stands, file) = stand?;
                let file = file_of.query_row([file], file_row)?;
                if let Entry::Vacant(place) = row.jobs.entry(file.job) {
                    place.insert(job_of(tx, &file)?);
                }
                row.files.push((state_from_row(stands), file));
            }
            Ok(Some(row))
        })
    }

    /// Files that are due for the question whether they are on tape.
    pub fn archiving_files(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(JobFileRow, JobRow)>, CatalogError> {
        self.read(|tx| {
            let text =
                SELECT_FILE.replace("FROM job_files f", "FROM job_files f INDEXED BY job_files_archiving");
            let mut select = tx.prepare_cached(&format!(
                "{text} WHERE f.state = 7 AND f.not_before <= ?1 ORDER BY f.not_before LIMIT ?2"
            ))?;
            let rows = select.query_map((now.0, number(limit as u64)), file_row)?;
            rows.map(|file| {
                let file = file?;
                let job = job_of(tx, &file)?;
                Ok((file, job))
            })
            .collect()
        })
    }

    /// Applies steps in order. Durable when this returns.
    pub fn step_tape(&self, steps: &[TapeStep], now: Timestamp) -> Result<JobChanges, CatalogError> {
        self.write(|tx| {
            let mut changer = JobUpdater::new(self, tx, now);
            steps.iter().try_for_each(|step| changer.step_tape(step))?;
            changer.finish()
        })
    }
}

fn state_from_row(stands: i64) -> TapeFileState {
    match stands {
        REQUESTED => TapeFileState::Requested,
        ON_DISK => TapeFileState::OnDisk,
        ABANDONED => TapeFileState::Abandoned,
        _ => TapeFileState::Consumed,
    }
}

fn job_of(tx: &Transaction<'_>, file: &JobFileRow) -> Result<JobRow, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_JOB} WHERE j.id = ?1"))?;
    Ok(select.query_row([id_bytes(file.job)], job_row)?)
}

impl JobUpdater<'_> {
    fn step_tape(&mut self, step: &TapeStep) -> Result<(), CatalogError> {
        match step {
            TapeStep::Request { endpoint: end, vo, files } => self.request_files(*end, vo, files),
            TapeStep::Accepted { request, base, id, next } => self.accepted(*request, base, id, *next),
            TapeStep::Polled { request, next, failed } => self.run(
                &format!(
                    "UPDATE tape_requests SET next = {NEXT_POLL}, tries = CASE WHEN ?3 THEN tries + 1 ELSE 0 \
                        END
                     WHERE id = ?1"
                ),
                (number(*request), next.map(|at| at.0), failed, self.now.0),
            ),
            TapeStep::OnDisk { request, files } => {
                files.iter().try_for_each(|&file| self.on_disk(number(*request), file))
            }
            TapeStep::NotStaged { files } => files.iter().try_for_each(|(file, why)| {
                let Some(file) = self.file(*file)?.filter(|file| file.state.is_staging()) else {
                    return Ok(());
                };
                self.fail_file(&file, why)
            }),
            TapeStep::Restage { request, files } => {
                for &id in files {
                    self.drop_row(number(*request), number(id))?;
                    if let Some(file) = self.file(id)?.filter(|file| file.state == JobFileState::Started) {
                        self.set(&file, JobFileState::Staging)?;
                    }
                }
                self.drop_empty(number(*request))
            }
            TapeStep::Released { request, files } => {
                files.iter().try_for_each(|&file| self.drop_row(number(*request), number(file)))?;
                self.drop_empty(number(*request))
            }
            TapeStep::Archived { files } => files.iter().try_for_each(|&id| {
                let Some(file) = self.archiving_file(id)? else { return Ok(()) };
                self.run("UPDATE job_files SET archiving_ended = ?2 WHERE id = ?1", (file.id, self.now.0))?;
                self.set(&file, JobFileState::Finished)
            }),
            TapeStep::NotArchived { files } => files.iter().try_for_each(|(id, why)| {
                let Some(file) = self.archiving_file(*id)? else { return Ok(()) };
                self.run("UPDATE job_files SET archiving_ended = ?2 WHERE id = ?1", (file.id, self.now.0))?;
                self.fail_file(&file, why)?;
                self.fail_replicas(file.job)
            }),
            TapeStep::ArchivePending { files, next } => files.iter().try_for_each(|&file| {
                self.run("UPDATE job_files SET not_before = ?2 WHERE id = ?1", (number(file), next.0))
            }),
        }
    }

    fn request_files(&mut self, end: u64, vo: &str, files: &[u64]) -> Result<(), CatalogError> {
        let request: i64 = self.tx.query_row(
            "INSERT INTO tape_requests (source_end, vo, made, next) VALUES (?1, ?2, ?3, ?3) RETURNING id",
            (number(end), vo, self.now.0),
            |row| row.get(0),
        )?;
        for &id in files {
            let waits = self.file(id)?.filter(|file| file.state == JobFileState::Staging);
            let Some(file) = waits.filter(|file| number(end) == file.source_end) else { continue };
            self.run("INSERT INTO tape_files (request, file) VALUES (?1, ?2)", (request, file.id))?;
            self.run(
                "UPDATE job_files SET staging_began = coalesce(staging_began, ?2), staging_ended = NULL \
                    WHERE id = ?1",
                (file.id, self.now.0),
            )?;
        }
        self.drop_empty(request)
    }

    fn accepted(&mut self, request: u64, base: &str, id: &str, next: Timestamp) -> Result<(), CatalogError> {
        self.run(
            &format!(
                "UPDATE tape_requests SET base = ?5, request = ?6, next = {NEXT_POLL}, tries = 0 WHERE id = \
                    ?1"
            ),
            (number(request), next.0, false, self.now.0, base, id),
        )?;
        for file in self.files_of_request(request)? {
            self.run("UPDATE job_files SET staging_request = ?2 WHERE id = ?1", (file.id, id))?;
            if file.state == JobFileState::Staging {
                self.set(&file, JobFileState::Started)?;
            }
        }
        Ok(())
    }

    fn files_of_request(&self, request: u64) -> Result<Vec<FileHead>, CatalogError> {
        let mut select = self.tx.prepare_cached(&format!(
            "{SELECT_FILE_HEAD} WHERE id IN (SELECT file FROM tape_files WHERE request = ?1 AND stands = 0) \
                ORDER \
                BY id"
        ))?;
        let rows = select.query_map([number(request)], file_head_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn on_disk(&mut self, request: i64, file: u64) -> Result<(), CatalogError> {
        let Some(file) = self.file(file)?.filter(|file| file.state == JobFileState::Started) else {
            return Ok(());
        };
        self.run("UPDATE job_files SET staging_ended = ?2 WHERE id = ?1", (file.id, self.now.0))?;
        let mut select = self.tx.prepare_cached("SELECT source = target FROM job_files WHERE id = ?1")?;
        if select.query_row([file.id], |row| row.get(0))? {
            // Staging was all it was for: its pin stays as long as requested.
            self.drop_row(request, file.id)?;
            self.drop_empty(request)?;
            return self.set(&file, JobFileState::Finished);
        }
        self.run(
            "UPDATE tape_files SET stands = ?3 WHERE request = ?1 AND file = ?2",
            (request, file.id, ON_DISK),
        )?;
        self.set(&file, JobFileState::Submitted)
    }

    fn fail_file(&mut self, file: &FileHead, why: &str) -> Result<(), CatalogError> {
        self.run("UPDATE job_files SET reason = ?2, recoverable = 0 WHERE id = ?1", (file.id, why))?;
        self.set(file, JobFileState::Failed)
    }

    fn archiving_file(&self, file: u64) -> Result<Option<FileHead>, CatalogError> {
        Ok(self.file(file)?.filter(|file| file.state == JobFileState::Archiving))
    }

    /// Fails a job with replicas: one was copied, and whether that copy is safe is unknown, so another would
    /// clash with it.
    fn fail_replicas(&mut self, job: i64) -> Result<(), CatalogError> {
        let mut select = self.tx.prepare_cached("SELECT kind = ?2 FROM jobs WHERE number = ?1")?;
        if select.query_row((job, JobKind::Replicas.word()), |row| row.get(0))? {
            self.write(job, JobState::Failed, ARCHIVING_OF_REPLICAS)?;
        }
        Ok(())
    }

    /// The file has arrived at its target; from now on its archiving is monitored.
    pub(super) fn archive(&mut self, file: &FileHead, bytes: u64, mode: &str) -> Result<(), CatalogError> {
        let (bytes, now) = (number(bytes), self.now.0);
        let more = ", bytes = ?4, mode = ?5, archiving_began = ?6, not_before = ?6";
        self.set_with(file, JobFileState::Archiving, more, &[&bytes, &mode, &now])
    }

    /// A file that was copied, ended, or is to be staged again no longer needs its staged copy.
    pub(super) fn release_tape_files(&self, file: i64, to: JobFileState) -> Result<(), CatalogError> {
        if !to.is_terminal() && !matches!(to, JobFileState::Archiving | JobFileState::Staging) {
            return Ok(());
        }
        self.run(
            "UPDATE tape_requests SET next = ?2
             WHERE id IN (SELECT request FROM tape_files WHERE file = ?1 AND stands < ?3) AND coalesce(next, \
             ?2) >= ?2",
            (file, self.now.0, ABANDONED),
        )?;
        self.run(
            "UPDATE tape_files SET stands = stands + ?2 WHERE file = ?1 AND stands < ?2",
            (file, ABANDONED),
        )
    }

    /// The state in which the next replica or hop of a job begins: files that may be on tape are staged
    /// first.
    pub(super) fn initial_state(&self, file: &FileHead) -> Result<JobFileState, CatalogError> {
        let mut select = self.tx.prepare_cached(
            "SELECT j.kind = ?2 OR f.source = f.target, j.details FROM job_files f JOIN jobs j ON j.number = \
                f.job
             WHERE f.id = ?1",
        )?;
        let (from_tape, details): (bool, String) =
            select.query_row((file.id, JobKind::Replicas.word()), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let details: serde_json::Value = serde_json::from_str(&details).unwrap_or_default();
        let stages = details["bring_online"].as_i64().is_some_and(|seconds| seconds > 0);
        Ok(if stages && from_tape { JobFileState::Staging } else { JobFileState::Submitted })
    }

    fn drop_row(&self, request: i64, file: i64) -> Result<(), CatalogError> {
        self.run("DELETE FROM tape_files WHERE request = ?1 AND file = ?2", (request, file))
    }

    fn drop_empty(&self, request: i64) -> Result<(), CatalogError> {
        self.run(
            "DELETE FROM tape_requests WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM tape_files WHERE request \
                = ?1)",
            [request],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_state_index;
    use super::*;

    /// Database indices name these state numbers.
    #[test]
    fn database_indices_match_the_state_numbers() {
        assert_eq!(file_state_index(JobFileState::Staging), 1);
        assert_eq!(file_state_index(JobFileState::Archiving), 7);
    }
}
