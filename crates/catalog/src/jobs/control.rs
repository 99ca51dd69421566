//! Operations on whole jobs: cancellation, priority, expiry, and recovery after a restart.

use crate::sql::Transaction;
use longhaul_model::job::TOO_LONG_IN_QUEUE;
use longhaul_model::{JobFileState, JobId, JobKind, JobState, Timestamp};

use super::updater::{FileHead, JobUpdater, file_head_row};
use super::{FORCED_PRIORITY, SELECT_FILE_HEAD, find_head, job_number, queue_id};
use crate::row_ids::QueueKey;
use crate::{Catalog, CatalogError, JobCancelResult, JobChanges};

/// Expired jobs ended in one transaction: bounds how long it occupies the writer.
const EXPIRED_JOBS_MAX: i64 = 1_000;

impl Catalog {
    /// Cancels jobs, or some of their files; the caller stops what runs. A whole job ends as CANCELED
    /// whatever became of its files, and so does a job with no file left.
    pub fn cancel_job_files(
        &self,
        wanted: &[(JobId, Option<Vec<u64>>)],
        reason: &str,
        now: Timestamp,
    ) -> Result<(Vec<JobCancelResult>, JobChanges), CatalogError> {
        self.write(|tx| {
            let mut changer = JobUpdater::new(self, tx, now);
            let mut answers = Vec::with_capacity(wanted.len());
            for (job, files) in wanted {
                answers.push(match (job_number(tx, *job)?, files) {
                    (None, _) => JobCancelResult::Unknown,
                    (Some(number), None) => changer.cancel_job(number, reason)?,
                    (Some(number), Some(files)) => changer.cancel_files(number, files, reason)?,
                });
            }
            Ok((answers, changer.finish()?))
        })
    }

    /// Sets the priority of jobs that have not ended. Returns for each whether it was open, none if it is
    /// unknown.
    pub fn set_job_priority(
        &self,
        jobs: &[JobId],
        priority: u8,
    ) -> Result<(Vec<Option<bool>>, JobChanges), CatalogError> {
        self.write(|tx| {
            let mut changed = JobChanges::default();
            let answers = jobs.iter().map(|&job| set_priority(tx, job, priority, &mut changed));
            Ok((answers.collect::<Result<Vec<_>, CatalogError>>()?, changed))
        })
    }

    /// Moves waiting files before all others; returns how many.
    pub fn force_job_files(
        &self,
        files: &[u64],
        now: Timestamp,
    ) -> Result<(usize, JobChanges), CatalogError> {
        self.write(|tx| {
            let mut changer = JobUpdater::new(self, tx, now);
            let mut forced = 0;
            for &file in files {
                let Some(file) = changer.file(file)?.filter(|file| file.state == JobFileState::Submitted)
                else {
                    continue;
                };
                let queue = requeue(tx, &file, FORCED_PRIORITY, &mut changer.changed)?;
                changer
                    .run("UPDATE job_files SET queue = ?2, not_before = 0 WHERE id = ?1", (file.id, queue))?;
                changer.set_in(&file, JobFileState::ForceStart, queue)?;
                forced += 1;
            }
            Ok((forced, changer.finish()?))
        })
    }

    /// Cancels files that waited longer than their job allows. Call again while it finds as many as one
    /// transaction ends.
    pub fn expire_jobs(&self, now: Timestamp) -> Result<JobChanges, CatalogError> {
        self.write(|tx| {
            let mut changer = JobUpdater::new(self, tx, now);
            let mut select = tx.prepare_cached(
                "SELECT number FROM jobs WHERE expires <= ?1 AND finished IS NULL AND expires IS NOT NULL \
                    LIMIT ?2",
            )?;
            let numbers = select.query_map((now.0, EXPIRED_JOBS_MAX), |row| row.get(0))?;
            for number in numbers.collect::<Result<Vec<i64>, _>>()? {
                let Some(job) = find_head(tx, number)? else { continue };
                for file in files_of(tx, number)? {
                    let waits = match file.state {
                        JobFileState::NotUsed => job.kind != JobKind::Hops,
                        state => {
                            !state.is_terminal() && !state.is_running() && state != JobFileState::Archiving
                        }
                    };
                    if waits {
                        changer.cancel(&file, TOO_LONG_IN_QUEUE)?;
                    }
                }
                changer.run("UPDATE jobs SET expires = NULL WHERE number = ?1", [number])?;
            }
            changer.finish()
        })
    }

    /// After a restart: returns files that were running, and have no owner now, to their queues as if nothing
    /// had been.
    pub fn release_running_jobs(&self, now: Timestamp) -> Result<JobChanges, CatalogError> {
        self.write(|tx| {
            let mut changer = JobUpdater::new(self, tx, now);
            // READY and ACTIVE.
            let mut select =
                tx.prepare_cached(&format!("{SELECT_FILE_HEAD} WHERE state IN (5, 6) ORDER BY state, id"))?;
            let running = select.query_map((), file_head_row)?.collect::<Result<Vec<_>, _>>()?;
            for file in running {
                changer.release(&file)?;
            }
            changer.finish()
        })
    }
}

impl JobUpdater<'_> {
    fn cancel_job(&mut self, number: i64, reason: &str) -> Result<JobCancelResult, CatalogError> {
        let Some((_, state)) = self.load_job(number)? else { return Ok(JobCancelResult::Unknown) };
        if state.is_terminal() {
            return Ok(JobCancelResult::AlreadyEnded);
        }
        for file in files_of(self.tx, number)? {
            if !file.state.is_terminal() {
                self.cancel(&file, reason)?;
            }
        }
        self.end(number, reason)?;
        Ok(JobCancelResult::Done(Vec::new()))
    }

    fn cancel_files(
        &mut self,
        number: i64,
        files: &[u64],
        reason: &str,
    ) -> Result<JobCancelResult, CatalogError> {
        let Some((_, state)) = self.load_job(number)? else { return Ok(JobCancelResult::Unknown) };
        let mut states = Vec::with_capacity(files.len());
        for &id in files {
            let Some(file) = self.file(id)?.filter(|file| file.job == number) else {
                states.push(None);
                continue;
            };
            if file.state.is_terminal() {
                states.push(Some(file.state));
                continue;
            }
            self.cancel(&file, reason)?;
            states.push(Some(JobFileState::Canceled));
        }
        let left = self
            .tally(number)
            .is_some_and(|tally| tally.active + tally.staging + tally.archiving + tally.waiting > 0);
        if !left && !state.is_terminal() {
            self.end(number, reason)?;
        }
        Ok(JobCancelResult::Done(states))
    }

    fn end(&mut self, number: i64, reason: &str) -> Result<(), CatalogError> {
        self.run("UPDATE jobs SET canceled = 1 WHERE number = ?1", [number])?;
        self.write(number, JobState::Canceled, reason)
    }

    pub(super) fn cancel(&mut self, file: &FileHead, reason: &str) -> Result<(), CatalogError> {
        self.run("UPDATE job_files SET reason = ?2 WHERE id = ?1", (file.id, reason))?;
        if file.state.is_running() {
            self.run(
                "UPDATE job_attempts SET ended = ?2, reason = ?3 WHERE attempt = ?1",
                (file.attempt, self.now.0, reason),
            )?;
        }
        self.set(file, JobFileState::Canceled)
    }
}

fn files_of(tx: &Transaction<'_>, job: i64) -> Result<Vec<FileHead>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_FILE_HEAD} WHERE job = ?1 ORDER BY id"))?;
    let rows = select.query_map([job], file_head_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The queue of a file's terms under another priority.
fn requeue(
    tx: &Transaction<'_>,
    file: &FileHead,
    priority: u8,
    changed: &mut JobChanges,
) -> Result<i64, CatalogError> {
    let mut select =
        tx.prepare_cached("SELECT target, vo, activity, strategy FROM job_queues WHERE id = ?1")?;
    let terms = select.query_row([file.queue], |row| {
        Ok(QueueKey {
            target: row.get(0)?,
            vo: row.get(1)?,
            activity: row.get(2)?,
            priority,
            strategy: row.get(3)?,
        })
    })?;
    queue_id(tx, &terms, &mut changed.new_queues)
}

fn set_priority(
    tx: &Transaction<'_>,
    job: JobId,
    priority: u8,
    changed: &mut JobChanges,
) -> Result<Option<bool>, CatalogError> {
    let Some(number_of_job) = job_number(tx, job)? else { return Ok(None) };
    if find_head(tx, number_of_job)?.is_some_and(|head| head.state.is_terminal()) {
        return Ok(Some(false));
    }
    tx.execute_deferred("UPDATE jobs SET priority = ?2 WHERE number = ?1", (number_of_job, priority))?;
    for file in files_of(tx, number_of_job)? {
        // What was put before all others stays there.
        if file.state.is_terminal() || file.state == JobFileState::ForceStart {
            continue;
        }
        let queue = requeue(tx, &file, priority, changed)?;
        tx.execute_deferred("UPDATE job_files SET queue = ?2 WHERE id = ?1", (file.id, queue))?;
        if queue != file.queue {
            changed.files.push(file.transition(job, file.state, queue));
        }
    }
    Ok(Some(true))
}
