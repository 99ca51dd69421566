//! Submission of jobs: group commit of all jobs submitted about the same time, by few statements.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use longhaul_model::job::{JobFileCounts, end_point, storage_element};
use longhaul_model::{AttemptId, FaultCode, JobFileState, JobId, JobKind, JobState};

use super::{
    endpoint_id, file_state_index, for_each_job_row, id_bytes, job_state_index, maybe, outbox, queue_id,
    to_u64,
};
use crate::row_ids::{QueueKey, RowIds};
use crate::sql::{AsValue, Optional, Table, Transaction, ValueRef};
use crate::{Catalog, CatalogError, JobChanges, JobFileTransition, NewJob, NewJobFile, SubmitResult};

/// Row ids as one transaction sees them: those it made become known to others when it is committed.
struct IdResolver<'p> {
    committed: &'p RowIds,
    new: RowIds,
}

impl Catalog {
    /// Creates or drops the index of open files by target, which finds duplicates. It costs a file as much as
    /// all other indices together, so it exists only where jobs ask for the check. Building it takes seconds
    /// for a million files; without it each check scans all files.
    pub fn index_open_targets(&self, expected: bool) -> Result<(), CatalogError> {
        let text = match expected {
            true => {
                "CREATE INDEX IF NOT EXISTS job_files_open_by_target ON job_files (target) WHERE state < 10"
            }
            false => "DROP INDEX IF EXISTS job_files_open_by_target",
        };
        self.write(|tx| Ok(tx.execute(text, ()).map(drop)?))
    }

    /// Submits jobs, each independently: with all of its files, or not at all. Durable when this returns.
    pub fn submit_jobs(&self, jobs: &[NewJob]) -> Result<(Vec<SubmitResult>, JobChanges), CatalogError> {
        let mut row_ids = self.row_ids();
        let (answers, changed, new_ids) = self.write(|tx| {
            let mut changed = JobChanges::default();
            let mut resolver = IdResolver { committed: &row_ids, new: RowIds::default() };
            let answers = check_jobs(tx, jobs)?;
            let made = jobs.iter().zip(&answers).filter(|(_, answer)| **answer == SubmitResult::Created);
            let made: Vec<JobInsert<'_>> = made.map(|(job, _)| JobInsert::new(job)).collect();
            let numbers = tx.insert(&JOBS, &made.iter().map(JobInsert::values).collect::<Vec<_>>())?;
            insert_files(tx, &made, &numbers, &mut resolver, &mut changed)?;
            if self.job_events_enabled().load(Ordering::Acquire)
                && let (Some(first), Some(last)) = (numbers.first(), numbers.last())
            {
                outbox::record_submissions(tx, *first, *last)?;
            }
            Ok::<_, CatalogError>((answers, changed, resolver.new))
        })?;
        row_ids.extend(new_ids);
        Ok((answers, changed))
    }
}

/// Decides about each job; those with [`SubmitResult::Created`] are inserted next.
fn check_jobs(tx: &Transaction<'_>, jobs: &[NewJob]) -> Result<Vec<SubmitResult>, CatalogError> {
    let mut ids = known_ids(tx, jobs)?;
    let mut targets = BTreeSet::new();
    jobs.iter().map(|job| check_job(tx, job, &mut ids, &mut targets)).collect()
}

/// Checks one job. `ids` and `targets` collect those of accepted jobs.
fn check_job<'j>(
    tx: &Transaction<'_>,
    job: &'j NewJob,
    ids: &mut BTreeSet<JobId>,
    targets: &mut BTreeSet<&'j str>,
) -> Result<SubmitResult, CatalogError> {
    if ids.contains(&job.id) {
        return Ok(SubmitResult::DuplicateId);
    }
    let comes = |file: &&NewJobFile| file.state != JobFileState::NotUsed;
    for file in &job.files {
        for url in [&file.source, &file.target] {
            if end_point(url).is_none() {
                return Ok(SubmitResult::BadUrl(url.clone()));
            }
        }
        let target = file.target.as_str();
        if job.refuse_duplicates
            && comes(&file)
            && (targets.contains(target) || has_open_file_to(tx, target)?)
        {
            return Ok(SubmitResult::DuplicateTarget(file.target.clone()));
        }
    }
    ids.insert(job.id);
    targets.extend(job.files.iter().filter(comes).map(|file| file.target.as_str()));
    Ok(SubmitResult::Created)
}

fn known_ids(tx: &Transaction<'_>, jobs: &[NewJob]) -> Result<BTreeSet<JobId>, CatalogError> {
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let mut known = BTreeSet::new();
    for_each_job_row(tx, ("SELECT j.id FROM jobs j", ""), &ids, |row| {
        known.insert(super::job_id(row, 0)?);
        Ok(())
    })?;
    Ok(known)
}

fn has_open_file_to(tx: &Transaction<'_>, target: &str) -> Result<bool, CatalogError> {
    let mut select = tx.prepare_cached("SELECT 1 FROM job_files WHERE target = ?1 AND state < 10 LIMIT 1")?;
    Ok(select.query_row([target], |_| Ok(())).optional()?.is_some())
}

/// A job to insert, with the columns derived from its files.
struct JobInsert<'j> {
    job: &'j NewJob,
    id: [u8; 16],
    state: i64,
    reason: &'static str,
    source: Option<String>,
    target: Option<String>,
    expires: Option<i64>,
    finished: Option<i64>,
    grouped: bool,
    /// The number of its files, and the counters of their states.
    files: [i64; 8],
}

const JOBS: Table = Table {
    name: "jobs",
    id_column: "number",
    columns: &[
        "id",
        "kind",
        "state",
        "vo",
        "user",
        "credential",
        "priority",
        "strategy",
        "source_se",
        "target_se",
        "submitted",
        "expires",
        "finished",
        "reason",
        "grouped",
        "details",
        "files",
        "files_finished",
        "files_failed",
        "files_canceled",
        "files_active",
        "files_staging",
        "files_archiving",
        "files_waiting",
    ],
};

impl<'j> JobInsert<'j> {
    fn new(job: &'j NewJob) -> JobInsert<'j> {
        let mut tally = JobFileCounts::default();
        job.files.iter().for_each(|file| tally.add(file.state));
        let mut places: Vec<u32> = job.files.iter().map(|file| file.index).collect();
        places.sort_unstable();
        let shared = places.windows(2).any(|pair| pair[0] == pair[1]);
        let state = tally.verdict(job.kind, JobState::Submitted);
        let (source, target) = storage_elements(job);
        let counts = [
            job.files.len() as u64,
            tally.finished,
            tally.failed,
            tally.canceled,
            tally.active,
            tally.staging,
            tally.archiving,
            tally.waiting,
        ];
        JobInsert {
            job,
            id: id_bytes(job.id),
            state: job_state_index(state.state),
            reason: state.reason,
            source,
            target,
            expires: job.expires.map(|at| at.0),
            finished: state.state.is_terminal().then_some(job.submitted.0),
            grouped: shared || matches!(job.kind, JobKind::Replicas | JobKind::Hops),
            files: counts.map(|count| count as i64),
        }
    }

    /// The values in the order of the columns.
    fn values(&self) -> [ValueRef<'_>; JOBS.columns.len()] {
        let job = self.job;
        let [files, finished, failed, canceled, active, staging, archiving, waiting] =
            self.files.map(ValueRef::Number);
        [
            self.id.as_value(),
            ValueRef::Text(job.kind.word()),
            self.state.as_value(),
            job.vo.as_value(),
            job.user.as_value(),
            job.credential.as_value(),
            job.priority.as_value(),
            job.strategy.as_value(),
            self.source.as_value(),
            self.target.as_value(),
            job.submitted.0.as_value(),
            self.expires.as_value(),
            self.finished.as_value(),
            ValueRef::Text(self.reason),
            self.grouped.as_value(),
            job.details.as_value(),
            files,
            finished,
            failed,
            canceled,
            active,
            staging,
            archiving,
            waiting,
        ]
    }
}

/// The source and target storage elements of a job: of hops the first and the last; of others those that all
/// files share.
fn storage_elements(job: &NewJob) -> (Option<String>, Option<String>) {
    let source = |file: &NewJobFile| storage_element(&file.source);
    let target = |file: &NewJobFile| storage_element(&file.target);
    if job.kind == JobKind::Hops {
        return (job.files.first().and_then(source), job.files.last().and_then(target));
    }
    (shared(job.files.iter().map(source)), shared(job.files.iter().map(target)))
}

fn shared(mut elements: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = elements.next()??;
    elements.all(|element| element.as_ref() == Some(&first)).then_some(first)
}

/// A file with the ids of the rows that it refers to.
struct ResolvedFile<'j> {
    file: &'j NewJobFile,
    id: JobId,
    job: i64,
    state: i64,
    size: Option<i64>,
    source: i64,
    target: i64,
    queue: i64,
}

const JOB_FILES: Table = Table {
    name: "job_files",
    id_column: "id",
    columns: &[
        "job",
        "place",
        "state",
        "source",
        "target",
        "source_end",
        "target_end",
        "queue",
        "size",
        "checksum",
        "details",
    ],
};

impl ResolvedFile<'_> {
    /// In the order of the columns.
    fn values(&self) -> [ValueRef<'_>; JOB_FILES.columns.len()] {
        let file = self.file;
        [
            self.job.as_value(),
            file.index.as_value(),
            self.state.as_value(),
            file.source.as_value(),
            file.target.as_value(),
            self.source.as_value(),
            self.target.as_value(),
            self.queue.as_value(),
            self.size.as_value(),
            file.checksum.as_value(),
            file.details.as_value(),
        ]
    }

    fn transition(&self, id: i64) -> JobFileTransition {
        JobFileTransition {
            job: self.id,
            file: to_u64(id),
            from: JobFileState::NotUsed,
            to: self.file.state,
            queue_before: to_u64(self.queue),
            queue: to_u64(self.queue),
            size: self.file.size,
            attempt: AttemptId(0),
        }
    }
}

fn insert_files(
    tx: &Transaction<'_>,
    jobs: &[JobInsert<'_>],
    numbers: &[i64],
    resolver: &mut IdResolver<'_>,
    changed: &mut JobChanges,
) -> Result<(), CatalogError> {
    let mut placed = Vec::with_capacity(jobs.iter().map(|head| head.job.files.len()).sum());
    for (head, number) in jobs.iter().zip(numbers) {
        for file in &head.job.files {
            placed.push(resolver.resolve(tx, head.job, *number, file, changed)?);
        }
    }
    let ids = tx.insert(&JOB_FILES, &placed.iter().map(ResolvedFile::values).collect::<Vec<_>>())?;
    changed.files.extend(placed.iter().zip(ids).map(|(placed, id)| placed.transition(id)));
    Ok(())
}

impl IdResolver<'_> {
    fn resolve<'j>(
        &mut self,
        tx: &Transaction<'_>,
        job: &NewJob,
        number: i64,
        file: &'j NewJobFile,
        changed: &mut JobChanges,
    ) -> Result<ResolvedFile<'j>, CatalogError> {
        let source = self.endpoint(tx, &file.source, changed)?;
        let target = self.endpoint(tx, &file.target, changed)?;
        let key = QueueKey {
            target,
            vo: job.vo.clone(),
            activity: file.activity.clone(),
            priority: job.priority,
            strategy: job.strategy.clone(),
        };
        let queue = match self.committed.queues.get(&key).or_else(|| self.new.queues.get(&key)) {
            Some(&queue) => queue,
            None => {
                let queue = queue_id(tx, &key, &mut changed.new_queues)?;
                self.new.queues.insert(key, queue);
                queue
            }
        };
        let (state, size) = (file_state_index(file.state), maybe(file.size));
        Ok(ResolvedFile { file, id: job.id, job: number, state, size, source, target, queue })
    }

    fn endpoint(
        &mut self,
        tx: &Transaction<'_>,
        url: &str,
        changed: &mut JobChanges,
    ) -> Result<i64, CatalogError> {
        let Some(end) = end_point(url) else {
            return Err(CatalogError::refused(FaultCode::BadRequest, "a URL without a host"));
        };
        if let Some(&id) = self.committed.endpoints.get(&end).or_else(|| self.new.endpoints.get(&end)) {
            return Ok(id);
        }
        let id = endpoint_id(tx, &end, &mut changed.new_endpoints)?;
        self.new.endpoints.insert(end, id);
        Ok(id)
    }
}
