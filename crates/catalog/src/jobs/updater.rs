//! State changes of job files, and what follows for their jobs.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use crate::sql::{AsValue, Optional, Params, Row, Transaction, ValueRef};
use longhaul_model::job::{JobFileAt, JobFileCounts, brought_from_tape, next_hop, next_replicas};
use longhaul_model::{AttemptId, JobFileState, JobId, JobKind, JobState, Timestamp};
use serde_json::{Map, Value};

use super::{
    FILE_AND_JOB_ATTEMPT_COLUMN, FILE_AND_JOB_HEAD_COLUMN, FILE_AND_JOB_JOB_COLUMN,
    FILE_AND_JOB_SOURCE_END_COLUMN, HEADS_JOB_COLUMN, JobHead, SELECT_FILE, SELECT_FILE_AND_JOB,
    SELECT_FILE_HEAD, SELECT_FILES_OF_JOB, SELECT_HEADS, SELECT_JOB, file_row, file_state, file_state_index,
    find_head, for_each_row_in, head_row_at, job_row, job_row_at, job_state_index, outbox, to_u64,
};
use crate::rows::codec::{Columns, key, number};
use crate::{
    Catalog, CatalogError, JobChanges, JobFileChange, JobFileResult, JobFileRow, JobFileStep,
    JobFileTransition, JobRow, JobWork,
};

impl Catalog {
    /// Applies changes in order, each independently. Durable when this returns.
    pub fn change_job_files(
        &self,
        changes: &[JobFileChange],
        now: Timestamp,
    ) -> Result<(Vec<JobFileResult>, JobChanges), CatalogError> {
        self.write(|tx| {
            let mut changer = JobUpdater::new(self, tx, now);
            changer.prefetch(changes)?;
            let answers = changes.iter().map(|change| changer.apply(change));
            let answers = answers.collect::<Result<Vec<_>, CatalogError>>()?;
            Ok((answers, changer.finish()?))
        })
    }
}

/// Key in the details of a file that was found to be on tape.
const ON_TAPE: &str = "on_tape";

/// The columns of a file that its state changes need.
#[derive(Clone)]
pub(super) struct FileHead {
    pub id: i64,
    pub job: i64,
    pub state: JobFileState,
    pub queue: i64,
    pub attempt: i64,
    pub source_end: i64,
    pub size: Option<u64>,
}

impl FileHead {
    /// The transition of this file to a state and a queue.
    pub(super) fn transition(&self, job: JobId, to: JobFileState, queue: i64) -> JobFileTransition {
        JobFileTransition {
            job,
            file: to_u64(self.id),
            from: self.state,
            to,
            queue_before: to_u64(self.queue),
            queue: to_u64(queue),
            size: self.size,
            attempt: AttemptId(to_u64(self.attempt)),
        }
    }
}

pub(super) fn file_head_row(row: &Row<'_>) -> crate::sql::Result<FileHead> {
    Ok(FileHead {
        id: row.get(0)?,
        job: row.get(1)?,
        state: file_state(row, 2)?,
        queue: row.get(3)?,
        attempt: row.get(4)?,
        source_end: row.get(5)?,
        size: row.maybe_number(6)?,
    })
}

/// Applies one transaction's changes of files; settles the affected jobs at the end.
pub(super) struct JobUpdater<'t> {
    pub tx: &'t Transaction<'t>,
    pub now: Timestamp,
    touched: BTreeMap<i64, JobHead>,
    /// Jobs as they were when the first of their files began.
    begun: BTreeMap<i64, JobRow>,
    prefetch: Prefetch,
    pub changed: JobChanges,
    records_events: bool,
}

/// Rows read for all changes at once, before them. Each counts until the file or job is written.
#[derive(Default)]
struct Prefetch {
    files: HashMap<i64, FileHead>,
    jobs: HashMap<i64, JobHead>,
    /// Whole rows of files that are about to begin.
    rows: HashMap<i64, JobFileRow>,
}

impl Prefetch {
    fn insert(&mut self, file: FileHead, job: JobHead) {
        self.jobs.insert(job.number, job);
        self.files.insert(file.id, file);
    }
}

impl<'t> JobUpdater<'t> {
    pub(super) fn new(catalog: &Catalog, tx: &'t Transaction<'t>, now: Timestamp) -> Self {
        let tells = catalog.job_events_enabled().load(Ordering::Acquire);
        let (touched, begun, ahead) = (BTreeMap::new(), BTreeMap::new(), Prefetch::default());
        JobUpdater {
            tx,
            now,
            touched,
            begun,
            prefetch: ahead,
            changed: JobChanges::default(),
            records_events: tells,
        }
    }

    /// Reads what the changes will need in few queries. With PostgreSQL each query is a round trip, and a
    /// change by itself would need half a dozen.
    fn prefetch(&mut self, changes: &[JobFileChange]) -> Result<(), CatalogError> {
        let begins = |change: &&JobFileChange| matches!(change.step, JobFileStep::Begin { .. });
        let (begin, others): (Vec<&JobFileChange>, Vec<_>) = changes.iter().partition(begins);
        let files = |changes: &[&JobFileChange]| -> Vec<i64> {
            changes.iter().map(|change| number(change.file)).collect()
        };
        for_each_row_in(self.tx, (SELECT_HEADS, ""), "f.id", &files(&others), |row| {
            self.prefetch.insert(file_head_row(row)?, head_row_at(row, HEADS_JOB_COLUMN)?);
            Ok(())
        })?;
        for_each_row_in(self.tx, (SELECT_FILE_AND_JOB, ""), "f.id", &files(&begin), |row| {
            let (whole, job) = (file_row(row)?, head_row_at(row, FILE_AND_JOB_HEAD_COLUMN)?);
            let head = FileHead {
                id: number(whole.id),
                job: job.number,
                state: whole.state,
                queue: number(whole.queue),
                attempt: row.get(FILE_AND_JOB_ATTEMPT_COLUMN)?,
                source_end: row.get(FILE_AND_JOB_SOURCE_END_COLUMN)?,
                size: whole.size,
            };
            self.begun.insert(job.number, job_row_at(row, FILE_AND_JOB_JOB_COLUMN)?);
            self.prefetch.rows.insert(head.id, whole);
            self.prefetch.insert(head, job);
            Ok(())
        })
    }

    fn apply(&mut self, change: &JobFileChange) -> Result<JobFileResult, CatalogError> {
        let Some(file) = self.file(change.file)? else { return Ok(JobFileResult::Refused) };
        if let JobFileStep::Begin { source, choice, started } = &change.step {
            let started = started.then_some(self.now);
            return self.begin(file, change.attempt, *source, choice, started);
        }
        if file.attempt != key!(change.attempt) || !file.state.is_running() {
            return Ok(JobFileResult::Refused);
        }
        match &change.step {
            JobFileStep::Begin { .. } => {}
            JobFileStep::Started => {
                let started = self.now.0;
                self.set_with(&file, JobFileState::Active, ", started = ?4", &[&started])?;
            }
            JobFileStep::MoverAssigned { mover } => self.note_mover(&file, mover)?,
            JobFileStep::Arrived { bytes, mode, archive } => {
                self.attempt_ended(&file, None, Some(*bytes))?;
                if *archive {
                    self.archive(&file, *bytes, mode)?;
                } else {
                    let moved: [&dyn AsValue; 2] = [&number(*bytes), mode];
                    self.set_with(&file, JobFileState::Finished, ", bytes = ?4, mode = ?5", &moved)?;
                }
            }
            JobFileStep::Retry { reason, not_before, stage } => {
                self.attempt_ended(&file, Some(reason), None)?;
                let (to, anew) = match stage {
                    true => (JobFileState::Staging, ", staging_began = NULL"),
                    false => (JobFileState::Submitted, ""),
                };
                let why: [&dyn AsValue; 2] = [reason, &not_before.0];
                let more = ", reason = ?4, not_before = ?5, retries = retries + 1, recoverable = 1";
                self.set_with(&file, to, &format!("{more}{anew}"), &why)?;
            }
            JobFileStep::Failed { reason, recoverable, existing_target: standing } => {
                if let Some(standing) = standing {
                    self.note_existing_target(&file, standing)?;
                }
                self.attempt_ended(&file, Some(reason), None)?;
                let why: [&dyn AsValue; 2] = [reason, recoverable];
                self.set_with(&file, JobFileState::Failed, ", reason = ?4, recoverable = ?5", &why)?;
            }
            JobFileStep::OnTape { reason } => {
                self.attempt_ended(&file, Some(reason), None)?;
                self.change_details(&file, |details| {
                    drop(details.insert(ON_TAPE.to_owned(), Value::Bool(true)))
                })?;
                self.set_with(&file, JobFileState::NotUsed, ", started = NULL", &[])?;
            }
            JobFileStep::Released => self.release(&file)?,
        }
        Ok(JobFileResult::Done)
    }

    /// Adds the mover to the attempt's explanation.
    fn note_mover(&self, file: &FileHead, mover: &str) -> Result<(), CatalogError> {
        let mut select = self.tx.prepare_cached("SELECT choice FROM job_attempts WHERE attempt = ?1")?;
        let choice: Option<String> = select.query_row([file.attempt], |row| row.get(0)).optional()?;
        let Some(choice) = choice else { return Ok(()) };
        let mut choice: Map<String, Value> = serde_json::from_str(&choice).unwrap_or_default();
        choice.insert("mover".to_owned(), mover.into());
        let choice = Value::Object(choice).to_string();
        self.run("UPDATE job_attempts SET choice = ?2 WHERE attempt = ?1", (file.attempt, choice))
    }

    /// Adds what exists at the target to the file's metadata, in FTS's form.
    fn note_existing_target(&self, file: &FileHead, standing: &str) -> Result<(), CatalogError> {
        let standing: Value = serde_json::from_str(standing).unwrap_or_default();
        self.change_details(file, |details| {
            let metadata = details.entry("file_metadata").or_insert(Value::Null);
            if metadata.is_null() {
                *metadata = Value::Object(Map::new());
            }
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("dst_file".to_owned(), standing);
            }
        })
    }

    fn change_details(
        &self,
        file: &FileHead,
        change: impl FnOnce(&mut Map<String, Value>),
    ) -> Result<(), CatalogError> {
        let mut select = self.tx.prepare_cached("SELECT details FROM job_files WHERE id = ?1")?;
        let details: String = select.query_row([file.id], |row| row.get(0))?;
        let mut details: Map<String, Value> = serde_json::from_str(&details).unwrap_or_default();
        change(&mut details);
        let details = Value::Object(details).to_string();
        self.run("UPDATE job_files SET details = ?2 WHERE id = ?1", (file.id, details))
    }

    /// Records why a replica on tape is next.
    fn note_turn(&self, file: &FileHead) -> Result<(), CatalogError> {
        let mut select = self.tx.prepare_cached(
            "SELECT reason FROM job_files WHERE job = ?1 AND state = ?2 ORDER BY finished DESC, id DESC \
                LIMIT 1",
        )?;
        let wanted = (file.job, file_state_index(JobFileState::Failed));
        let last: Option<String> = select.query_row(wanted, |row| row.get(0)).optional()?;
        self.run(
            "UPDATE job_files SET reason = ?2 WHERE id = ?1",
            (file.id, brought_from_tape(last.as_deref())),
        )
    }

    /// Returns the file to its queue as if the attempt had not been.
    pub(super) fn release(&mut self, file: &FileHead) -> Result<(), CatalogError> {
        self.run("DELETE FROM job_attempts WHERE attempt = ?1", [file.attempt])?;
        self.set_with(file, JobFileState::Submitted, ", started = NULL", &[])
    }

    fn begin(
        &mut self,
        requested: FileHead,
        attempt: AttemptId,
        source: u64,
        choice: &str,
        started: Option<Timestamp>,
    ) -> Result<JobFileResult, CatalogError> {
        if !requested.state.is_queued() {
            return Ok(JobFileResult::Refused);
        }
        let file = match self.file_at_source(&requested, number(source))? {
            Some(file) if file.id != requested.id => {
                self.set(&requested, JobFileState::NotUsed)?;
                file
            }
            Some(file) => file,
            None => return Ok(JobFileResult::Refused),
        };
        self.run(
            "INSERT INTO job_attempts (attempt, file, began, choice) VALUES (?1, ?2, ?3, ?4)",
            (key!(attempt), file.id, self.now.0, choice),
        )?;
        let state = if started.is_some() { JobFileState::Active } else { JobFileState::Ready };
        let begun = FileHead { attempt: key!(attempt), ..file };
        let row = self.prefetch.rows.remove(&file.id);
        let said: [&dyn AsValue; 2] = [&begun.attempt, &started.map(|at| at.0)];
        self.set_with(&begun, state, ", attempt = ?4, started = ?5", &said)?;
        let row = match row {
            Some(row) => JobFileRow { state, attempt: Some(attempt), started, ..row },
            None => {
                let mut select = self.tx.prepare_cached(&format!("{SELECT_FILE} WHERE f.id = ?1"))?;
                select.query_row([file.id], file_row)?
            }
        };
        let (job, tried_before) = (self.job(requested.job)?, file.attempt != 0);
        Ok(JobFileResult::Begun(Box::new(JobWork { job, file: row, tried_before })))
    }

    /// The file itself, or its first untried replica at that end point.
    fn file_at_source(&self, requested: &FileHead, source: i64) -> Result<Option<FileHead>, CatalogError> {
        if requested.source_end == source {
            return Ok(Some(requested.clone()));
        }
        let mut select = self.tx.prepare_cached(&format!(
            "{SELECT_FILE_HEAD} WHERE job = ?1 AND source_end = ?2 AND state = ?3 ORDER BY id LIMIT 1"
        ))?;
        let wanted = (requested.job, source, file_state_index(JobFileState::NotUsed));
        Ok(select.query_row(wanted, file_head_row).optional()?)
    }

    fn job(&mut self, number: i64) -> Result<JobRow, CatalogError> {
        if let Some(job) = self.begun.get(&number) {
            return Ok(job.clone());
        }
        let mut select = self.tx.prepare_cached(&format!("{SELECT_JOB} WHERE j.number = ?1"))?;
        let job = select.query_row([number], job_row)?;
        Ok(self.begun.entry(number).or_insert(job).clone())
    }

    fn attempt_ended(
        &self,
        file: &FileHead,
        reason: Option<&str>,
        bytes: Option<u64>,
    ) -> Result<(), CatalogError> {
        self.run(
            "UPDATE job_attempts SET ended = ?2, reason = ?3, bytes = ?4 WHERE attempt = ?1",
            (file.attempt, self.now.0, reason, bytes.map(number)),
        )
    }

    pub(super) fn file(&self, id: u64) -> Result<Option<FileHead>, CatalogError> {
        if let Some(file) = self.prefetch.files.get(&number(id)) {
            return Ok(Some(file.clone()));
        }
        let mut select = self.tx.prepare_cached(&format!("{SELECT_FILE_HEAD} WHERE id = ?1"))?;
        Ok(select.query_row([number(id)], file_head_row).optional()?)
    }

    pub(super) fn run(&self, statement: &str, values: impl Params) -> Result<(), CatalogError> {
        Ok(self.tx.execute_deferred(statement, values)?)
    }

    /// Puts a file into another state and updates the counters.
    pub(super) fn set(&mut self, file: &FileHead, to: JobFileState) -> Result<(), CatalogError> {
        self.set_in(file, to, file.queue)
    }

    /// Does the same for a file that has moved to that queue.
    pub(super) fn set_in(
        &mut self,
        file: &FileHead,
        to: JobFileState,
        queue: i64,
    ) -> Result<(), CatalogError> {
        if file.state == to {
            return Ok(());
        }
        self.write_state(file, to, "", &[])?;
        self.state_changed(file, to, queue)
    }

    /// Does the same with further columns in one statement: `more` is appended, its values from `?4` on.
    pub(super) fn set_with(
        &mut self,
        file: &FileHead,
        to: JobFileState,
        more: &str,
        values: &[&dyn AsValue],
    ) -> Result<(), CatalogError> {
        self.write_state(file, to, more, values)?;
        if file.state == to { Ok(()) } else { self.state_changed(file, to, file.queue) }
    }

    fn write_state(
        &mut self,
        file: &FileHead,
        to: JobFileState,
        more: &str,
        values: &[&dyn AsValue],
    ) -> Result<(), CatalogError> {
        if file.state != to && !file.state.may_become(to) {
            let text = format!("a file of a job would go from {} to {to}", file.state);
            return Err(CatalogError::refused(longhaul_model::FaultCode::Internal, text));
        }
        self.prefetch.files.remove(&file.id);
        self.prefetch.rows.remove(&file.id);
        let (state, ended) = (file_state_index(to), to.is_terminal().then_some(self.now.0));
        let of_state = [file.id.as_value(), state.as_value(), ended.as_value()];
        let all: Vec<ValueRef<'_>> =
            of_state.into_iter().chain(values.iter().map(|value| value.as_value())).collect();
        self.run(&format!("UPDATE job_files SET state = ?2, finished = ?3{more} WHERE id = ?1"), all)
    }

    /// Updates the counters of the file's job and records the transition.
    fn state_changed(&mut self, file: &FileHead, to: JobFileState, queue: i64) -> Result<(), CatalogError> {
        self.release_tape_files(file.id, to)?;
        self.load_job(file.job)?;
        let job = self.touched.get_mut(&file.job);
        let job = job.ok_or_else(|| CatalogError::not_found("job of file", file.id))?;
        job.tally.moved(file.state, to);
        self.changed.files.push(file.transition(job.id, to, queue));
        Ok(())
    }

    /// The job's present counters, if a file of it was changed.
    pub(super) fn tally(&self, job: i64) -> Option<JobFileCounts> {
        self.touched.get(&job).map(|head| head.tally)
    }

    /// Settles the affected jobs and returns all changes.
    pub(super) fn finish(mut self) -> Result<JobChanges, CatalogError> {
        let numbers: Vec<i64> = self.touched.keys().copied().collect();
        for number in numbers {
            self.settle(number)?;
        }
        if self.records_events {
            outbox::record_events(self.tx, &self.changed.files, self.now)?;
        }
        Ok(self.changed)
    }

    fn settle(&mut self, number: i64) -> Result<(), CatalogError> {
        let Some(job) = self.touched.get(&number) else { return Ok(()) };
        let (kind, was) = (job.kind, job.state);
        let mut verdict = job.tally.verdict(kind, was);
        if job.grouped {
            let mut files = self.files_of(number)?;
            // A job that was ended as a whole starts no further file.
            if let Some(next) = next_turn(kind, &files).filter(|_| !was.is_terminal()) {
                let GroupFile { head: file, on_tape, .. } = &files[next];
                let begins = if *on_tape { JobFileState::Staging } else { self.initial_state(file)? };
                if *on_tape {
                    self.note_turn(file)?;
                }
                self.set(file, begins)?;
                files[next].at.state = begins;
            }
            let places: Vec<JobFileAt> = files.iter().map(|file| file.at).collect();
            verdict = JobFileCounts::from_groups(kind, &places).verdict(kind, was);
        }
        // A cancelled job stays cancelled, whatever its files come to.
        if !was.is_terminal() {
            self.write(number, verdict.state, verdict.reason)?;
        } else {
            self.write_tally(number)?;
        }
        Ok(())
    }

    fn files_of(&self, job: i64) -> Result<Vec<GroupFile>, CatalogError> {
        let mut select =
            self.tx.prepare_cached(&format!("{SELECT_FILES_OF_JOB} WHERE f.job = ?1 ORDER BY f.id"))?;
        let rows = select.query_map([job], |row| {
            let head = file_head_row(row)?;
            let at = JobFileAt { index: row.get(7)?, state: head.state };
            Ok(GroupFile { at, head, on_tape: row.get(8)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Writes the job's counters and state.
    pub(super) fn write(&mut self, number: i64, state: JobState, reason: &str) -> Result<(), CatalogError> {
        let Some(job) = self.touched.get_mut(&number) else { return Ok(()) };
        if job.state == state {
            return self.write_tally(number);
        }
        job.state = state;
        let (id, kind, tally) = (job.id, job.kind, tally_values(job));
        self.changed.jobs.push((id, state));
        let (place, finished) = (job_state_index(state), state.is_terminal().then_some(self.now.0));
        let values = tally.iter().map(AsValue::as_value).chain([
            place.as_value(),
            reason.as_value(),
            finished.as_value(),
        ]);
        let more = ", state = ?9, reason = ?10, finished = ?11";
        self.run(&write_tally(more), values.collect::<Vec<_>>())?;
        if kind == JobKind::Replicas && state == JobState::Finished {
            self.name_source(number)?;
        }
        Ok(())
    }

    /// Names the source that was used as that of a job with replicas.
    fn name_source(&self, number: i64) -> Result<(), CatalogError> {
        let mut select =
            self.tx.prepare_cached("SELECT source FROM job_files WHERE job = ?1 AND state = ?2 LIMIT 1")?;
        let used: String =
            select.query_row((number, file_state_index(JobFileState::Finished)), |row| row.get(0))?;
        let element = longhaul_model::job::storage_element(&used);
        self.run("UPDATE jobs SET source_se = ?2 WHERE number = ?1", (number, element))
    }

    fn write_tally(&self, number: i64) -> Result<(), CatalogError> {
        let Some(job) = self.touched.get(&number) else { return Ok(()) };
        self.run(&write_tally(""), tally_values(job).iter().map(AsValue::as_value).collect::<Vec<_>>())
    }

    /// Loads a job that changes; returns its id and state.
    pub(super) fn load_job(&mut self, number: i64) -> Result<Option<(JobId, JobState)>, CatalogError> {
        if !self.touched.contains_key(&number) {
            let ahead = self.prefetch.jobs.remove(&number);
            let job = if ahead.is_some() { ahead } else { find_head(self.tx, number)? };
            self.touched.extend(job.map(|job| (number, job)));
        }
        Ok(self.touched.get(&number).map(|job| (job.id, job.state)))
    }
}

/// The statement that writes a job's counters; `more` is appended, its values from `?9` on.
fn write_tally(more: &str) -> String {
    format!(
        "UPDATE jobs SET files_finished = ?2, files_failed = ?3, files_canceled = ?4, files_active = ?5, \
            files_staging = ?6,
         files_archiving = ?7, files_waiting = ?8{more} WHERE number = ?1"
    )
}

fn tally_values(job: &JobHead) -> [i64; 8] {
    let JobFileCounts { finished, failed, canceled, active, staging, archiving, waiting, .. } = job.tally;
    let counts = [finished, failed, canceled, active, staging, archiving, waiting];
    let [finished, failed, canceled, active, staging, archiving, waiting] = counts.map(number);
    [job.number, finished, failed, canceled, active, staging, archiving, waiting]
}

/// A file with its position among those of its job.
struct GroupFile {
    at: JobFileAt,
    head: FileHead,
    /// It was found to be on tape and has not been staged yet.
    on_tape: bool,
}

/// The file that starts next, if any.
fn next_turn(kind: JobKind, files: &[GroupFile]) -> Option<usize> {
    let places: Vec<JobFileAt> = files.iter().map(|file| file.at).collect();
    match kind {
        JobKind::Hops => next_hop(&places),
        // Replicas not known to be on tape come first.
        JobKind::Replicas => next_replicas(&places).into_iter().min_by_key(|&place| files[place].on_tape),
        JobKind::Regular | JobKind::Reuse => None,
    }
}
