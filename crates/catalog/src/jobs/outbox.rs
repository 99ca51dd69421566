//! Transactional outbox: state changes of job files that are still to be published, recorded in the
//! transaction that makes them, so that none is lost between the change and its publisher.

use std::sync::atomic::Ordering;

use crate::sql::{Row, Transaction};
use longhaul_model::{JobKind, Timestamp};

use super::{SELECT_FILE, SELECT_JOB, file_row, file_state, file_state_index, job_row, job_state, to_u64};
use crate::rows::codec::{Columns, number};
use crate::{Catalog, CatalogError, JobEventRow, JobFileTransition, JobRow};

/// Events that one call returns.
const EVENTS_PER_READ_MAX: usize = 2_000;

impl Catalog {
    /// Starts recording changes of job files until they are acknowledged; or stops, and deletes what was
    /// recorded.
    pub fn record_job_events(&self, keep: bool) -> Result<(), CatalogError> {
        self.job_events_enabled().store(keep, Ordering::Release);
        if keep {
            return Ok(());
        }
        self.write(|tx| Ok(tx.execute("DELETE FROM job_news", ()).map(drop)?))
    }

    /// The next events after a sequence number, oldest first.
    pub fn job_events(&self, after: u64) -> Result<Vec<JobEventRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT sequence, job, file, was, state, job_state, at, retries, attempt, began, ended, \
                    started, reason,
                 recoverable, bytes, mode FROM job_news WHERE sequence > ?1 ORDER BY sequence LIMIT ?2",
            )?;
            let rows = select.query_map((number(after), EVENTS_PER_READ_MAX as i64), stored_event_row)?;
            let stored = rows.collect::<Result<Vec<StoredEvent>, _>>()?;
            let mut reader = EventReader::new(tx);
            stored.into_iter().map(|stored| reader.complete(stored)).collect()
        })
    }

    /// Deletes all events up to a sequence number: they were published.
    pub fn acknowledge_job_events(&self, until: u64) -> Result<(), CatalogError> {
        self.write(|tx| {
            tx.prepare_cached("DELETE FROM job_news WHERE sequence <= ?1")?.execute([number(until)])?;
            Ok(())
        })
    }

    /// The number of events that were not acknowledged yet.
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

/// Records an event of a file as it is now; a condition follows.
const INSERT_EVENT: &str =
    "INSERT INTO job_news (job, file, was, state, job_state, at, retries, attempt, began, \
    ended, started,
     reason, recoverable, bytes, mode)
     SELECT f.job, f.id, ?2, ?3, j.state, ?4, f.retries, f.attempt, a.began, a.ended, f.started, f.reason, \
     f.recoverable,
     f.bytes, f.mode FROM job_files f JOIN jobs j ON j.number = f.job LEFT JOIN job_attempts a ON a.attempt \
     = f.attempt";

/// Records transitions at the end of a transaction, when the states of their jobs are settled.
pub(super) fn record_events(
    tx: &Transaction<'_>,
    transitions: &[JobFileTransition],
    now: Timestamp,
) -> Result<(), CatalogError> {
    let text = format!("{INSERT_EVENT} WHERE f.id = ?1");
    for change in transitions.iter().filter(|change| change.from != change.to) {
        tx.execute_deferred(
            &text,
            (number(change.file), file_state_index(change.from), file_state_index(change.to), now.0),
        )?;
    }
    Ok(())
}

/// Records the submission of all files of the jobs with these consecutive numbers.
pub(super) fn record_submissions(tx: &Transaction<'_>, first: i64, last: i64) -> Result<(), CatalogError> {
    let text = INSERT_EVENT.replace("?2, ?3", "NULL, f.state").replace("?4", "j.submitted");
    Ok(tx.execute_deferred(
        &format!("{text} WHERE f.job >= ?1 AND f.job <= ?2 ORDER BY f.id"),
        (first, last),
    )?)
}

/// A recorded event, and the file and job that complete it.
struct StoredEvent {
    job: i64,
    file: i64,
    event: EventColumns,
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
    let event = EventColumns {
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
    Ok(StoredEvent { job: row.get(1)?, file: row.get(2)?, event })
}

/// Completes events with their files and jobs. Events of one job come in a row, so the last job is cached.
struct EventReader<'t> {
    tx: &'t Transaction<'t>,
    job: Option<(i64, JobRow, Option<String>)>,
}

impl<'t> EventReader<'t> {
    fn new(tx: &'t Transaction<'t>) -> Self {
        EventReader { tx, job: None }
    }

    fn complete(&mut self, stored: StoredEvent) -> Result<JobEventRow, CatalogError> {
        let (job, final_target) = self.job(stored.job)?;
        let mut select = self.tx.prepare_cached(&format!("{SELECT_FILE} WHERE f.id = ?1"))?;
        let mut file = select.query_row([stored.file], file_row)?;
        let event = stored.event;
        file.state = event.to;
        file.retries = event.retries;
        file.attempt = (event.attempt > 0).then_some(event.attempt.into());
        file.started = event.started;
        file.reason = event.reason;
        file.recoverable = event.recoverable;
        file.bytes = event.bytes;
        file.mode = event.mode;
        Ok(JobEventRow {
            sequence: event.sequence,
            at: event.at,
            from: event.from,
            began: event.began,
            ended: event.ended,
            final_target,
            job: JobRow { state: event.job_state, ..job },
            file,
        })
    }

    fn job(&mut self, wanted: i64) -> Result<(JobRow, Option<String>), CatalogError> {
        if let Some((number, job, last)) = &self.job
            && *number == wanted
        {
            return Ok((job.clone(), last.clone()));
        }
        let mut select = self.tx.prepare_cached(&format!("{SELECT_JOB} WHERE j.number = ?1"))?;
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
