//! Queries about jobs. Every list is a page of an index.

use crate::sql::{Optional, Row, Transaction, Value};
use longhaul_model::{JobFileState, JobId, JobState, Timestamp};

use super::keyed_values::KeyedValues;
use super::{
    SELECT_FILE, SELECT_JOB, file_row, file_state, file_state_index, for_each_job_row, id_bytes, job_row,
    job_state_index, to_u64,
};
use crate::database::SCAN_TIME_MAX;
use crate::rows::codec::{Columns, number};
use crate::{
    Catalog, CatalogError, JobAttemptRow, JobEndpointRow, JobFileQuery, JobFileRow, JobQuery, JobQueueRow,
    JobRow, PAGE_ROWS_MAX, QueuedJobFile, WaitingPair,
};

/// Untried replicas returned for one queued file.
const SOURCES_MAX: i64 = 32;

impl Catalog {
    /// The jobs, in the order of `ids`; none where there is no such job.
    pub fn jobs(&self, ids: &[JobId]) -> Result<Vec<Option<JobRow>>, CatalogError> {
        self.read(|tx| {
            let mut found = KeyedValues::new(ids);
            for_each_job_row(tx, (SELECT_JOB, ""), ids, |row| {
                let job = job_row(row)?;
                if let Some(place) = found.get_mut(&job.id) {
                    *place = Some(job);
                }
                Ok(())
            })?;
            Ok(found.into_vec())
        })
    }

    /// The files of each job, by id; none for an unknown job.
    pub fn job_files(&self, ids: &[JobId]) -> Result<Vec<Vec<JobFileRow>>, CatalogError> {
        self.read(|tx| {
            let mut found: KeyedValues<'_, JobId, Vec<JobFileRow>> = KeyedValues::new(ids);
            for_each_job_row(tx, (SELECT_FILE, "ORDER BY f.id"), ids, |row| {
                let file = file_row(row)?;
                if let Some(files) = found.get_mut(&file.job) {
                    files.push(file);
                }
                Ok(())
            })?;
            Ok(found.into_vec())
        })
    }

    /// How many files of a credential's open jobs have not ended. In a job with alternatives all files count
    /// until it ends. Takes time in proportion to such jobs.
    pub fn open_job_files_of(&self, credential: &str) -> Result<u64, CatalogError> {
        let open = JobState::ALL.iter().filter(|state| !state.is_terminal());
        let open: Vec<String> = open.map(|state| super::job_state_index(*state).to_string()).collect();
        let text = format!(
            "SELECT coalesce(sum(files - files_finished - files_failed - files_canceled), 0)
             FROM jobs WHERE credential = ?1 AND state IN ({})",
            open.join(", ")
        );
        self.read(|tx| Ok(tx.prepare_cached(&text)?.query_row([credential], |row| row.number(0))?))
    }

    /// Lists jobs, newest first.
    pub fn list_jobs(&self, query: &JobQuery) -> Result<Vec<JobRow>, CatalogError> {
        self.read(|tx| {
            let after = match query.after {
                None => None,
                Some(id) => match list_position(tx, id)? {
                    None => return Ok(Vec::new()),
                    place => place,
                },
            };
            let numbered = |row: &Row<'_>| Ok((row.get::<i64>(0)?, job_row(row)?));
            let mut found: Vec<(i64, JobRow)> = Vec::new();
            for question in job_queries(query, after) {
                let mut select = tx.prepare_cached(&question.text)?;
                for row in select.query_map(question.values, numbered)? {
                    found.push(row?);
                }
            }
            found.sort_by_key(|(number, job)| std::cmp::Reverse((job.submitted, *number)));
            found.truncate(page_rows(query.limit));
            Ok(found.into_iter().map(|(_, job)| job).collect())
        })
    }

    /// Lists job files by id, newest first.
    pub fn list_job_files(&self, query: &JobFileQuery) -> Result<Vec<JobFileRow>, CatalogError> {
        self.read(|tx| {
            let mut found: Vec<JobFileRow> = Vec::new();
            for question in file_queries(query) {
                let mut select = tx.prepare_cached(&question.text)?;
                for row in select.query_map(question.values, file_row)? {
                    found.push(row?);
                }
            }
            found.sort_by_key(|file| std::cmp::Reverse(file.id));
            found.truncate(page_rows(query.limit));
            Ok(found)
        })
    }

    /// The attempts of a file, oldest first.
    pub fn job_file_attempts(&self, file: u64) -> Result<Vec<JobAttemptRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT attempt, began, ended, reason, bytes, choice FROM job_attempts WHERE file = ?1
                 ORDER BY attempt LIMIT ?2",
            )?;
            let mut rows = Vec::new();
            for row in select.query_map((number(file), PAGE_ROWS_MAX as i64), |row| {
                Ok((
                    row.id(0)?,
                    row.time(1)?,
                    row.maybe_time(2)?,
                    row.get(3)?,
                    row.maybe_number(4)?,
                    row.get(5)?,
                ))
            })? {
                let (attempt, began, ended, reason, bytes, choice) = row?;
                let number = rows.len() as u32 + 1;
                rows.push(JobAttemptRow { file, attempt, number, began, ended, reason, bytes, choice });
            }
            Ok(rows)
        })
    }

    /// Files of a queue that may start, by id, those after `after`.
    pub fn queued_job_files(
        &self,
        queue: u64,
        after: Option<u64>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<QueuedJobFile>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT f.id, f.size, f.source_end, f.job, j.kind = 'R' AND f.staging_began IS NULL FROM \
                    job_files f INDEXED BY job_files_waiting
                 JOIN jobs j ON j.number = f.job
                 WHERE f.queue = ?1 AND f.id > ?2 AND f.state IN (3, 4) AND f.not_before <= ?3 ORDER BY f.id \
                 LIMIT ?4",
            )?;
            let wanted = (number(queue), after.map_or(0, number), now.0, number(limit as u64));
            let rows = select.query_map(wanted, |row| {
                Ok((row.number(0)?, row.maybe_number(1)?, row.number(2)?, row.get(3)?, row.get(4)?))
            })?;
            let mut files = Vec::new();
            for row in rows {
                let (file, size, source, job, replicas): (u64, Option<u64>, u64, i64, bool) = row?;
                let mut sources = vec![source];
                if replicas {
                    untried_sources(tx, job, &mut sources)?;
                }
                files.push(QueuedJobFile { file, size, sources });
            }
            Ok(files)
        })
    }

    /// All queues with waiting or running files, for the start of a service.
    pub fn job_queues(&self) -> Result<Vec<JobQueueRow>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut select = tx.prepare_cached(
                "SELECT q.id, q.target, q.vo, q.activity, q.priority, q.strategy, w.files, w.bytes FROM (
                   SELECT queue, count(*) AS files, sum(coalesce(size, 0)) AS bytes FROM job_files
                   WHERE state IN (3, 4, 5, 6) GROUP BY queue) w JOIN job_queues q ON q.id = w.queue ORDER \
                   BY q.id",
            )?;
            let rows = select.query_map((), |row| {
                Ok(JobQueueRow {
                    id: row.number(0)?,
                    target: row.number(1)?,
                    vo: row.get(2)?,
                    activity: row.get(3)?,
                    priority: row.get(4)?,
                    strategy: row.get(5)?,
                    files: row.number(6)?,
                    bytes: row.number(7)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn job_queue(&self, id: u64) -> Result<Option<JobQueueRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT id, target, vo, activity, priority, strategy FROM job_queues WHERE id = ?1",
            )?;
            let found = select.query_row([number(id)], |row| {
                Ok(JobQueueRow {
                    id: row.number(0)?,
                    target: row.number(1)?,
                    vo: row.get(2)?,
                    activity: row.get(3)?,
                    priority: row.get(4)?,
                    strategy: row.get(5)?,
                    files: 0,
                    bytes: 0,
                })
            });
            Ok(found.optional()?)
        })
    }

    pub fn job_endpoints(&self) -> Result<Vec<JobEndpointRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached("SELECT id, url FROM job_ends ORDER BY id")?;
            let rows =
                select.query_map((), |row| Ok(JobEndpointRow { id: row.number(0)?, url: row.get(1)? }))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Files in back-off: when each may be tried again, soonest first, and its queue.
    pub fn backed_off_job_files(&self, now: Timestamp) -> Result<Vec<(Timestamp, u64)>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut select = tx.prepare_cached(
                "SELECT not_before, queue FROM job_files WHERE state IN (3, 4) AND not_before > ?1
                 ORDER BY not_before",
            )?;
            let rows = select.query_map([now.0], |row| Ok((row.time(0)?, row.number(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// How many files are in each state. Scans all files.
    pub fn count_job_files(&self) -> Result<Vec<(JobFileState, u64)>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut select = tx.prepare_cached("SELECT state, count(*) FROM job_files GROUP BY state")?;
            let rows = select.query_map((), |row| Ok((file_state(row, 0)?, row.number(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

impl Catalog {
    /// Waiting files by source and target. Scans all waiting files.
    pub fn count_waiting_pairs(&self) -> Result<Vec<WaitingPair>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let mut select = tx.prepare_cached(
                "SELECT source_end, target_end, count(*), sum(retries) FROM job_files WHERE state IN (3, 4)
                 GROUP BY source_end, target_end ORDER BY source_end, target_end",
            )?;
            let rows = select.query_map((), |row| {
                Ok(WaitingPair {
                    source: row.number(0)?,
                    target: row.number(1)?,
                    files: row.number(2)?,
                    retries: row.number(3)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Appends the end points of untried replicas, except those on tape.
fn untried_sources(tx: &Transaction<'_>, job: i64, sources: &mut Vec<u64>) -> Result<(), CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT source_end FROM job_files WHERE job = ?1 AND state = ?2
         AND json_extract(details, '$.on_tape') IS NULL ORDER BY id LIMIT ?3",
    )?;
    let wanted = (job, file_state_index(JobFileState::NotUsed), SOURCES_MAX);
    for source in select.query_map(wanted, |row| row.get(0))? {
        let source = to_u64(source?);
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    Ok(())
}

fn page_rows(limit: usize) -> usize {
    if limit == 0 { PAGE_ROWS_MAX } else { limit.min(PAGE_ROWS_MAX) }
}

/// A job's position in lists, which are sorted by it in descending order.
fn list_position(tx: &Transaction<'_>, id: JobId) -> Result<Option<(i64, i64)>, CatalogError> {
    let mut select = tx.prepare_cached("SELECT submitted, number FROM jobs WHERE id = ?1")?;
    Ok(select.query_row([id_bytes(id)], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

/// A composed statement and its parameters.
struct Query {
    text: String,
    values: Vec<Value>,
}

impl Query {
    fn value(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("?{}", self.values.len())
    }
}

/// One query per state and storage, so that each reads a range of an index with the state before the time.
/// The most selective condition picks the index.
fn job_queries(query: &JobQuery, after: Option<(i64, i64)>) -> Vec<Query> {
    let mut states: Vec<JobState> = match query.states.is_empty() {
        true => JobState::ALL.to_vec(),
        false => query.states.clone(),
    };
    if query.unfinished_only {
        states.retain(|state| !state.is_terminal());
    }
    states.sort_by_key(|&state| job_state_index(state));
    states.dedup();
    let any = |of: &[String]| -> Vec<Option<String>> {
        if of.is_empty() { vec![None] } else { of.iter().cloned().map(Some).collect() }
    };
    let mut questions = Vec::new();
    for source in any(&query.source_se) {
        for target in any(&query.target_se) {
            let one = |&state: &JobState| job_query(query, &source, &target, state, after);
            questions.extend(states.iter().map(one));
        }
    }
    questions
}

fn job_query(
    query: &JobQuery,
    source: &Option<String>,
    target: &Option<String>,
    state: JobState,
    after: Option<(i64, i64)>,
) -> Query {
    let said = [
        ("j.source_se", source, "jobs_by_source"),
        ("j.target_se", target, "jobs_by_target"),
        ("j.credential", &query.credential, "jobs_by_credential"),
        ("j.user", &query.user, "jobs_by_user"),
        ("j.vo", &query.vo, "jobs_by_vo"),
    ];
    let index = match query.finished_since {
        Some(_) => "jobs_by_end",
        None => {
            said.iter().find(|(_, value, _)| value.is_some()).map_or("jobs_by_state", |(_, _, index)| index)
        }
    };
    let mut question = Query { text: format!("{SELECT_JOB} INDEXED BY {index} WHERE "), values: Vec::new() };
    let mut terms = Vec::new();
    for (column, value, _) in said {
        if let Some(value) = value {
            let place = question.value(value.clone());
            terms.push(format!("{column} = {place}"));
        }
    }
    let place = question.value(job_state_index(state));
    terms.push(format!("j.state = {place}"));
    if let Some(since) = query.finished_since {
        let place = question.value(since.0);
        terms.push(format!("j.finished >= {place} AND j.finished IS NOT NULL"));
    }
    if let Some(since) = query.submitted_since {
        let place = question.value(since.0);
        terms.push(format!("j.submitted >= {place}"));
    }
    if let Some((submitted, number)) = after {
        let (submitted, number) = (question.value(submitted), question.value(number));
        terms.push(format!("(j.submitted, j.number) < ({submitted}, {number})"));
    }
    let limit = question.value(page_rows(query.limit) as i64);
    question.text += &terms.join(" AND ");
    question.text += &format!(" ORDER BY j.submitted DESC, j.number DESC LIMIT {limit}");
    question
}

fn file_queries(query: &JobFileQuery) -> Vec<Query> {
    let index = match () {
        () if query.finished_since.is_some() => "job_files_ended",
        () => "job_files_by_state",
    };
    let mut states: Vec<JobFileState> = match query.states.is_empty() {
        true => JobFileState::ALL.to_vec(),
        false => query.states.clone(),
    };
    if query.unfinished_only {
        states.retain(|state| !state.is_terminal());
    }
    states.sort_by_key(|&state| file_state_index(state));
    states.dedup();
    let question = |state: JobFileState| {
        let text = SELECT_FILE.replace("FROM job_files f", &format!("FROM job_files f INDEXED BY {index}"));
        let mut question = Query { text: format!("{text} WHERE "), values: Vec::new() };
        let place = question.value(file_state_index(state));
        let mut terms = vec![format!("f.state = {place}")];
        let said = [
            ("j.vo", &query.vo),
            ("j.source_se", &query.source_se),
            ("j.target_se", &query.target_se),
            ("f.target", &query.target),
        ];
        for (column, value) in said {
            if let Some(value) = value {
                let place = question.value(value.clone());
                terms.push(format!("{column} = {place}"));
            }
        }
        if let Some(since) = query.finished_since {
            let place = question.value(since.0);
            terms.push(format!("f.finished >= {place} AND f.finished IS NOT NULL"));
        }
        let limit = question.value(page_rows(query.limit) as i64);
        question.text += &terms.join(" AND ");
        question.text += &format!(" ORDER BY f.id DESC LIMIT {limit}");
        question
    };
    states.into_iter().map(question).collect()
}
