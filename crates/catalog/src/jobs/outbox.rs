//! What is still to be told of the files of jobs: kept in the transaction that changes them, so that nothing
//! is lost between a change and whoever tells of it.

use std::sync::atomic::Ordering;

use crate::sql::{Row, Transaction};
use longhaul_model::{JobKind, Timestamp};

use super::{FILE, JOB, file_row, file_state, file_state_index, job_row, job_state, to_u64};
use crate::rows::codec::{Columns, number};
use crate::{Catalog, CatalogError, JobEventRow, JobFileTransition, JobRow};

/// Rows that are read at once.
const EVENTS_PER_READ_MAX: usize = 2_000;

impl Catalog {
    /// From now on changes of files of jobs are kept until they were told; or no longer, and what was kept is
    /// forgotten.
    pub fn record_job_events(&self, keep: bool) -> Result<(), CatalogError> {
        self.job_events_enabled().store(keep, Ordering::Release);
        if keep {
            return Ok(());
        }
        self.write(|tx| Ok(tx.execute("DELETE FROM job_news", ()).map(drop)?))
    }

    /// What is to be told, oldest first, behind this place; some at a time.
    pub fn job_events(&self, after: u64) -> Result<Vec<JobEventRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT sequence, job, file, was, state, job_state, at, retries, attempt, began, ended, \
                    started, reason,
                 recoverable, bytes, mode FROM job_news WHERE sequence > ?1 ORDER BY sequence LIMIT ?2",
            )?;
            let rows = select.query_map((number(after), EVENTS_PER_READ_MAX as i64), stored_event_row)?;
            let kept = rows.collect::<Result<Vec<StoredEvent>, _>>()?;
            let mut reader = EventReader::new(tx);
            kept.into_iter().map(|kept| reader.complete(kept)).collect()
        })
    }

    /// Everything up to this place was told.
    pub fn acknowledge_job_events(&self, until: u64) -> Result<(), CatalogError> {
        self.write(|tx| {
            tx.prepare_cached("DELETE FROM job_news WHERE sequence <= ?1")?.execute([number(until)])?;
            Ok(())
        })
    }

    /// How much is to be told yet.
    pub fn pending_job_events(&self) -> Result<u64, CatalogError> {
        self.read(|tx| {
            let (first, last): (Option<i64>, Option<i64>) =
                tx.query_row("SELECT min(sequence), max(sequence) FROM job_news", (), |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            Ok(first.zip(last).map_or(0, |(first, last)| to_u64(last - first + 1)))
        })
    }
}

const INSERT_EVENT: &str =
    "INSERT INTO job_news (job, file, was, state, job_state, at, retries, attempt, began, \
    ended, started,
     reason, recoverable, bytes, mode)
     SELECT f.job, f.id, ?2, ?3, j.state, ?4, f.retries, f.attempt, a.began, a.ended, f.started, f.reason, \
     f.recoverable,
     f.bytes, f.mode FROM job_files f JOIN jobs j ON j.number = f.job LEFT JOIN job_attempts a ON a.attempt \
     = f.attempt";

/// At the end of a transaction, when the jobs are what their files made of them.
pub(super) fn record_events(
    tx: &Transaction<'_>,
    news: &[JobFileTransition],
    now: Timestamp,
) -> Result<(), CatalogError> {
    let text = format!("{INSERT_EVENT} WHERE f.id = ?1");
    for one in news.iter().filter(|one| one.from != one.to) {
        tx.execute_deferred(
            &text,
            (number(one.file), file_state_index(one.from), file_state_index(one.to), now.0),
        )?;
    }
    Ok(())
}

/// Of all files of jobs that were just made: of these numbers, one after the other.
pub(super) fn record_submissions(tx: &Transaction<'_>, first: i64, last: i64) -> Result<(), CatalogError> {
    let text = INSERT_EVENT.replace("?2, ?3", "NULL, f.state").replace("?4", "j.submitted");
    Ok(tx.execute_deferred(
        &format!("{text} WHERE f.job >= ?1 AND f.job <= ?2 ORDER BY f.id"),
        (first, last),
    )?)
}

/// A row as it was kept, and where the rest of it is.
struct StoredEvent {
    job: i64,
    file: i64,
    news: EventColumns,
}

struct EventColumns {
    sequence: u64,
    at: Timestamp,
    from: Option<longhaul_model::JobFileState>,
    to: longhaul_model::JobFileState,
    job_state: longhaul_model::JobState,
    retries: u32,
    attempt: u64,
    began: Option<Timestamp>,
    ended: Option<Timestamp>,
    started: Option<Timestamp>,
    reason: String,
    recoverable: bool,
    bytes: Option<u64>,
    mode: Option<String>,
}

fn stored_event_row(row: &Row<'_>) -> crate::sql::Result<StoredEvent> {
    let was: Option<i64> = row.get(3)?;
    let news = EventColumns {
        sequence: row.number(0)?,
        from: was.map(|_| file_state(row, 3)).transpose()?,
        to: file_state(row, 4)?,
        job_state: job_state(row, 5)?,
        at: row.time(6)?,
        retries: row.get(7)?,
        attempt: row.number(8)?,
        began: row.maybe_time(9)?,
        ended: row.maybe_time(10)?,
        started: row.maybe_time(11)?,
        reason: row.get(12)?,
        recoverable: row.get(13)?,
        bytes: row.maybe_number(14)?,
        mode: row.get(15)?,
    };
    Ok(StoredEvent { job: row.get(1)?, file: row.get(2)?, news })
}

/// Puts the parts together. News come by jobs, so that the last job is often the next one too.
struct EventReader<'t> {
    tx: &'t Transaction<'t>,
    job: Option<(i64, JobRow, Option<String>)>,
}

impl<'t> EventReader<'t> {
    fn new(tx: &'t Transaction<'t>) -> Self {
        EventReader { tx, job: None }
    }

    fn complete(&mut self, kept: StoredEvent) -> Result<JobEventRow, CatalogError> {
        let (job, final_target) = self.job(kept.job)?;
        let mut select = self.tx.prepare_cached(&format!("{FILE} WHERE f.id = ?1"))?;
        let mut file = select.query_row([kept.file], file_row)?;
        let news = kept.news;
        file.state = news.to;
        file.retries = news.retries;
        file.attempt = (news.attempt > 0).then_some(news.attempt.into());
        file.started = news.started;
        file.reason = news.reason;
        file.recoverable = news.recoverable;
        file.bytes = news.bytes;
        file.mode = news.mode;
        Ok(JobEventRow {
            sequence: news.sequence,
            at: news.at,
            from: news.from,
            began: news.began,
            ended: news.ended,
            final_target,
            job: JobRow { state: news.job_state, ..job },
            file,
        })
    }

    fn job(&mut self, wanted: i64) -> Result<(JobRow, Option<String>), CatalogError> {
        if let Some((number, job, last)) = &self.job
            && *number == wanted
        {
            return Ok((job.clone(), last.clone()));
        }
        let mut select = self.tx.prepare_cached(&format!("{JOB} WHERE j.number = ?1"))?;
        let job = select.query_row([wanted], job_row)?;
        let last = match job.kind {
            JobKind::Hops => {
                let mut select = self
                    .tx
                    .prepare_cached("SELECT target FROM job_files WHERE job = ?1 ORDER BY id DESC LIMIT 1")?;
                Some(select.query_row([wanted], |row| row.get(0))?)
            }
            _ => None,
        };
        self.job = Some((wanted, job.clone(), last.clone()));
        Ok((job, last))
    }
}
