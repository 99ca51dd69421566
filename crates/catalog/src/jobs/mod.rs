//! Copy jobs and their files. States follow the rules of `model::job`, and are set only here.

mod control;
mod delegations;
mod keyed_values;
mod names;
mod outbox;
mod queries;
mod storage;
mod submit;
mod tape;
mod updater;

use crate::sql::{AsValue, Optional, Row, Transaction};
use longhaul_model::job::JobFileCounts;
use longhaul_model::{JobFileState, JobId, JobState};

use crate::row_ids::QueueKey;
use crate::rows::codec::{Columns, number};
use crate::{CatalogError, JobEndpointRow, JobFileRow, JobQueueRow, JobRow, TapeTimes};

pub use names::JobName;
pub use storage::StorageStep;

/// Priority of the queues of files that an administrator forced to the front.
pub const FORCED_PRIORITY: u8 = 6;

/// The columns that [`job_row_at`] reads.
macro_rules! job_columns {
    () => {
        "j.number, j.id, j.kind, j.state, j.vo, j.user, j.credential, j.priority, j.strategy, j.source_se, \
            j.target_se,
    j.submitted, j.expires, j.finished, j.canceled, j.reason, j.files, j.details,
    CASE WHEN j.grouped = 1 THEN NULL ELSE j.files_finished END, CASE WHEN j.grouped = 1 THEN NULL ELSE \
    j.files_failed END"
    };
}
/// The columns that [`file_row`] reads.
macro_rules! file_columns {
    () => {
        "f.id, j.id, f.place, f.state, f.source, f.target, f.size, f.checksum, q.activity, j.vo,
    j.priority, f.retries, f.attempt, f.not_before, f.reason, f.recoverable, f.started, f.finished, f.bytes, \
    f.mode,
    f.details, f.queue, f.staging_began, f.staging_ended, f.staging_request, f.archiving_began, \
    f.archiving_ended"
    };
}
/// The columns that [`file_head_row`](updater::file_head_row) reads.
macro_rules! file_head_columns {
    () => {
        "f.id, f.job, f.state, f.queue, f.attempt, f.source_end, f.size"
    };
}
/// The columns that [`head_row_at`] reads.
macro_rules! head_columns {
    () => {
        "j.number, j.id, j.kind, j.state, j.grouped, j.files, j.files_finished, j.files_failed, \
            j.files_canceled,
    j.files_active, j.files_staging, j.files_archiving, j.files_waiting"
    };
}

/// Rows for [`job_row`].
const SELECT_JOB: &str = concat!("SELECT ", job_columns!(), " FROM jobs j");
/// Rows for [`file_row`].
const SELECT_FILE: &str = concat!(
    "SELECT ",
    file_columns!(),
    " FROM job_files f JOIN jobs j ON j.number = f.job JOIN job_queues q ON q.id = f.queue"
);
/// Rows for [`head_row_at`].
const SELECT_JOB_HEAD: &str = concat!("SELECT ", head_columns!(), " FROM jobs j");
/// Rows for [`file_head_row`](updater::file_head_row).
const SELECT_FILE_HEAD: &str = concat!("SELECT ", file_head_columns!(), " FROM job_files f");
/// File heads with their position in the job, and whether they are known to be on tape.
const SELECT_FILES_OF_JOB: &str = concat!(
    "SELECT ",
    file_head_columns!(),
    ", f.place, json_extract(f.details, '$.on_tape') IS NOT NULL FROM job_files f"
);
/// File heads with the heads of their jobs.
const SELECT_HEADS: &str = concat!(
    "SELECT ",
    file_head_columns!(),
    ", ",
    head_columns!(),
    " FROM job_files f JOIN jobs j ON j.number = f.job"
);
/// First column of the job in [`SELECT_HEADS`].
const HEADS_JOB_COLUMN: usize = 7;
/// Whole files with their jobs' heads and rows.
const SELECT_FILE_AND_JOB: &str = concat!(
    "SELECT ",
    file_columns!(),
    ", f.source_end, ",
    head_columns!(),
    ", ",
    job_columns!(),
    " FROM job_files f JOIN jobs j ON j.number = f.job JOIN job_queues q ON q.id = f.queue"
);
/// Column of the attempt in [`SELECT_FILE_AND_JOB`].
const FILE_AND_JOB_ATTEMPT_COLUMN: usize = 12;
/// Column of the source end point in [`SELECT_FILE_AND_JOB`].
const FILE_AND_JOB_SOURCE_END_COLUMN: usize = 27;
/// First column of the job head in [`SELECT_FILE_AND_JOB`].
const FILE_AND_JOB_HEAD_COLUMN: usize = 28;
/// First column of the job in [`SELECT_FILE_AND_JOB`].
const FILE_AND_JOB_JOB_COLUMN: usize = 41;

fn job_row(row: &Row<'_>) -> crate::sql::Result<JobRow> {
    job_row_at(row, 0)
}

fn job_row_at(row: &Row<'_>, from: usize) -> crate::sql::Result<JobRow> {
    Ok(JobRow {
        id: job_id(row, from + 1)?,
        kind: row.parsed(from + 2)?,
        state: job_state(row, from + 3)?,
        vo: row.get(from + 4)?,
        user: row.get(from + 5)?,
        credential: row.get(from + 6)?,
        priority: row.get(from + 7)?,
        strategy: row.get(from + 8)?,
        source_se: row.get(from + 9)?,
        target_se: row.get(from + 10)?,
        submitted: row.time(from + 11)?,
        expires: row.maybe_time(from + 12)?,
        finished: row.maybe_time(from + 13)?,
        canceled: row.get(from + 14)?,
        reason: row.get(from + 15)?,
        files: row.number(from + 16)?,
        details: row.get(from + 17)?,
        files_finished: row.maybe_number(from + 18)?,
        files_failed: row.maybe_number(from + 19)?,
    })
}

fn file_row(row: &Row<'_>) -> crate::sql::Result<JobFileRow> {
    let attempt = row.number(12)?;
    Ok(JobFileRow {
        id: row.number(0)?,
        job: job_id(row, 1)?,
        index: row.get(2)?,
        state: file_state(row, 3)?,
        source: row.get(4)?,
        target: row.get(5)?,
        size: row.maybe_number(6)?,
        checksum: row.get(7)?,
        activity: row.get(8)?,
        vo: row.get(9)?,
        priority: row.get(10)?,
        retries: row.get(11)?,
        attempt: (attempt > 0).then_some(attempt.into()),
        not_before: row.time(13)?,
        reason: row.get(14)?,
        recoverable: row.get(15)?,
        started: row.maybe_time(16)?,
        finished: row.maybe_time(17)?,
        bytes: row.maybe_number(18)?,
        mode: row.get(19)?,
        details: row.get(20)?,
        queue: row.number(21)?,
        tape: TapeTimes {
            staging_began: row.maybe_time(22)?,
            staging_ended: row.maybe_time(23)?,
            staging_request: row.get(24)?,
            archiving_began: row.maybe_time(25)?,
            archiving_ended: row.maybe_time(26)?,
        },
    })
}

fn job_id(row: &Row<'_>, at: usize) -> crate::sql::Result<JobId> {
    row.get::<[u8; 16]>(at).map(|bytes| JobId(u128::from_be_bytes(bytes)))
}

fn id_bytes(id: JobId) -> [u8; 16] {
    id.0.to_be_bytes()
}

/// Values in one `IN` list; further ones take another statement.
const IN_LIST_MAX: usize = 64;

/// Runs a query about these jobs (`j` in it) in few statements; `order` is appended to each.
fn for_each_job_row(
    tx: &Transaction<'_>,
    (question, order): (&str, &str),
    ids: &[JobId],
    read: impl FnMut(&Row<'_>) -> crate::sql::Result<()>,
) -> Result<(), CatalogError> {
    let ids: Vec<[u8; 16]> = ids.iter().map(|id| id_bytes(*id)).collect();
    for_each_row_in(tx, (question, order), "j.id", &ids, read)
}

/// Runs a query for the rows with one of these keys in a column.
fn for_each_row_in<K: AsValue>(
    tx: &Transaction<'_>,
    (question, order): (&str, &str),
    column: &str,
    keys: &[K],
    mut read: impl FnMut(&Row<'_>) -> crate::sql::Result<()>,
) -> Result<(), CatalogError> {
    for keys in keys.chunks(IN_LIST_MAX) {
        // Each number of placeholders is a prepared statement of its own, so only powers of two are used; the
        // last key is repeated to fill the list.
        let count = keys.len().next_power_of_two();
        let places = vec!["?"; count].join(", ");
        let mut select = tx.prepare_cached(&format!("{question} WHERE {column} IN ({places}) {order}"))?;
        let filling = keys.iter().chain(keys.iter().rev().cycle()).take(count);
        let mut rows = select.query(filling.map(AsValue::as_value).collect::<Vec<_>>())?;
        while let Some(row) = rows.next()? {
            read(&row)?;
        }
    }
    Ok(())
}

/// States are stored as their index in `ALL`, which keeps database indices small.
fn job_state(row: &Row<'_>, at: usize) -> crate::sql::Result<JobState> {
    state_at_index(JobState::ALL, row, at)
}

fn file_state(row: &Row<'_>, at: usize) -> crate::sql::Result<JobFileState> {
    state_at_index(JobFileState::ALL, row, at)
}

fn state_at_index<T: Copy>(all: &[T], row: &Row<'_>, at: usize) -> crate::sql::Result<T> {
    let place: i64 = row.get(at)?;
    let state = usize::try_from(place).ok().and_then(|place| all.get(place)).copied();
    state.ok_or(crate::sql::damaged(at, place))
}

fn job_state_index(state: JobState) -> i64 {
    state_index(JobState::ALL, state)
}

fn file_state_index(state: JobFileState) -> i64 {
    state_index(JobFileState::ALL, state)
}

fn state_index<T: PartialEq>(all: &[T], state: T) -> i64 {
    all.iter().position(|one| *one == state).map_or(-1, |place| place as i64)
}

/// The columns that decide a job's state.
struct JobHead {
    number: i64,
    id: JobId,
    kind: longhaul_model::JobKind,
    state: JobState,
    grouped: bool,
    tally: JobFileCounts,
}

fn head_row_at(row: &Row<'_>, from: usize) -> crate::sql::Result<JobHead> {
    Ok(JobHead {
        number: row.get(from)?,
        id: job_id(row, from + 1)?,
        kind: row.parsed(from + 2)?,
        state: job_state(row, from + 3)?,
        grouped: row.get(from + 4)?,
        tally: JobFileCounts {
            total: row.number(from + 5)?,
            finished: row.number(from + 6)?,
            failed: row.number(from + 7)?,
            canceled: row.number(from + 8)?,
            active: row.number(from + 9)?,
            staging: row.number(from + 10)?,
            archiving: row.number(from + 11)?,
            waiting: row.number(from + 12)?,
        },
    })
}

fn find_head(tx: &Transaction<'_>, number: i64) -> Result<Option<JobHead>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_JOB_HEAD} WHERE j.number = ?1"))?;
    Ok(select.query_row([number], |row| head_row_at(row, 0)).optional()?)
}

fn job_number(tx: &Transaction<'_>, id: JobId) -> Result<Option<i64>, CatalogError> {
    let mut select = tx.prepare_cached("SELECT number FROM jobs WHERE id = ?1")?;
    Ok(select.query_row([id_bytes(id)], |row| row.get(0)).optional()?)
}

/// The id of the end point of a URL, created if it is new.
fn endpoint_id(tx: &Transaction<'_>, url: &str, new: &mut Vec<JobEndpointRow>) -> Result<i64, CatalogError> {
    let mut select = tx.prepare_cached("SELECT id FROM job_ends WHERE url = ?1")?;
    if let Some(id) = select.query_row([url], |row| row.get(0)).optional()? {
        return Ok(id);
    }
    let mut insert = tx.prepare_cached("INSERT INTO job_ends (url) VALUES (?1) RETURNING id")?;
    let id = insert.query_row([url], |row| row.get(0))?;
    new.push(JobEndpointRow { id: to_u64(id), url: url.to_owned() });
    Ok(id)
}

fn queue_id(tx: &Transaction<'_>, key: &QueueKey, new: &mut Vec<JobQueueRow>) -> Result<i64, CatalogError> {
    let values = (key.target, &key.vo, &key.activity, key.priority, &key.strategy);
    let mut select = tx.prepare_cached(
        "SELECT id FROM job_queues WHERE target = ?1 AND vo = ?2 AND activity = ?3 AND priority = ?4 AND \
            strategy = ?5",
    )?;
    if let Some(id) = select.query_row(values, |row| row.get(0)).optional()? {
        return Ok(id);
    }
    let mut insert = tx.prepare_cached(
        "INSERT INTO job_queues (target, vo, activity, priority, strategy) VALUES (?1, ?2, ?3, ?4, ?5) \
            RETURNING id",
    )?;
    let id = insert.query_row(values, |row| row.get(0))?;
    new.push(JobQueueRow {
        id: to_u64(id),
        target: to_u64(key.target),
        vo: key.vo.clone(),
        activity: key.activity.clone(),
        priority: key.priority,
        strategy: key.strategy.clone(),
        files: 0,
        bytes: 0,
    });
    Ok(id)
}

/// Row ids are never negative.
fn to_u64(id: i64) -> u64 {
    id.max(0) as u64
}

fn maybe(size: Option<u64>) -> Option<i64> {
    size.map(number)
}
