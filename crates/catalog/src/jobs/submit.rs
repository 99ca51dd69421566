//! Jobs come: one transaction for all that were submitted about the same time.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use longhaul_model::job::{Tally, end_point, storage_element};
use longhaul_model::{AttemptId, JobFileState, JobKind, JobState};

use super::{Terms, end_of, file_place, id_bytes, job_place, maybe, news, number_back, number_of, queue_of};
use crate::sql::{Bind, Optional, Transaction, params};
use crate::{Catalog, CatalogError, JobFileNews, JobsChanged, NewJob, NewJobFile, Submitted};

/// End points and queues met in one submission: asked for once.
#[derive(Default)]
struct Met {
    ends: BTreeMap<String, i64>,
    queues: BTreeMap<Terms, i64>,
}

impl Catalog {
    /// Each job for itself: what is said of it, and all of its files or none. Durable when this returns.
    pub fn submit_jobs(&self, jobs: &[NewJob]) -> Result<(Vec<Submitted>, JobsChanged), CatalogError> {
        self.write(|tx| {
            let (mut changed, mut met) = (JobsChanged::default(), Met::default());
            let answers = jobs.iter().map(|job| submit(tx, job, &mut met, &mut changed));
            let answers = answers.collect::<Result<Vec<_>, CatalogError>>()?;
            if self.keeps_job_news().load(Ordering::Acquire) {
                let mut made = jobs.iter().zip(&answers).filter(|(_, answer)| **answer == Submitted::Made);
                made.try_for_each(|(job, _)| news::keep_submission(tx, job.id, job.submitted))?;
            }
            Ok((answers, changed))
        })
    }
}

fn submit(
    tx: &Transaction<'_>,
    job: &NewJob,
    met: &mut Met,
    changed: &mut JobsChanged,
) -> Result<Submitted, CatalogError> {
    if number_of(tx, job.id)?.is_some() {
        return Ok(Submitted::DuplicateId);
    }
    for file in &job.files {
        for url in [&file.source, &file.target] {
            if end_point(url).is_none() {
                return Ok(Submitted::BadUrl(url.clone()));
            }
        }
        if job.refuse_duplicates && file.state != JobFileState::NotUsed && on_its_way(tx, &file.target)? {
            return Ok(Submitted::DuplicateTarget(file.target.clone()));
        }
    }
    let number = insert_job(tx, job)?;
    insert_files(tx, job, number, met, changed)?;
    Ok(Submitted::Made)
}

fn on_its_way(tx: &Transaction<'_>, target: &str) -> Result<bool, CatalogError> {
    let mut select = tx.prepare_cached("SELECT 1 FROM job_files WHERE target = ?1 AND state < 10 LIMIT 1")?;
    Ok(select.query_row([target], |_| Ok(())).optional()?.is_some())
}

fn insert_job(tx: &Transaction<'_>, job: &NewJob) -> Result<i64, CatalogError> {
    let mut tally = Tally::default();
    job.files.iter().for_each(|file| tally.add(file.state));
    let mut places: Vec<u32> = job.files.iter().map(|file| file.index).collect();
    places.sort_unstable();
    let shared = places.windows(2).any(|pair| pair[0] == pair[1]);
    let grouped = shared || matches!(job.kind, JobKind::Replicas | JobKind::Hops);
    let state = tally.verdict(job.kind, JobState::Submitted);
    let (sources, targets) = elements(job);
    let mut insert = tx.prepare_cached(
        "INSERT INTO jobs (id, kind, state, vo, user, credential, priority, strategy, source_se, target_se, submitted,
         expires, finished, reason, grouped, files, files_finished, files_failed, files_canceled, files_active,
         files_staging, files_archiving, files_waiting, details) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
         ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)
         RETURNING number",
    )?;
    let values = params![

        id_bytes(job.id),
        job.kind.word(),
        job_place(state.state),
        job.vo,
        job.user,
        job.credential,
        job.priority,
        job.strategy,
        sources,
        targets,
        job.submitted.0,
        job.expires.map(|at| at.0),
        state.state.is_terminal().then_some(job.submitted.0),
        state.reason,
        grouped,
        job.files.len() as i64,
        tally.finished as i64,
        tally.failed as i64,
        tally.canceled as i64,
        tally.active as i64,
        tally.staging as i64,
        tally.archiving as i64,
        tally.waiting as i64,
        job.details,
    ];
    Ok(insert.query_row(values, |row| row.get(0))?)
}

/// The storage elements of a job: of hops the first and the last; of others those that all files share.
fn elements(job: &NewJob) -> (Option<String>, Option<String>) {
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

/// Rows of one statement: a large job takes few trips to a server.
const ROWS_AT_ONCE: [usize; 3] = [64, 8, 1];
const ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A file with the rows that it refers to.
struct Placed<'j> {
    file: &'j NewJobFile,
    source: i64,
    target: i64,
    queue: i64,
}

fn insert_files(
    tx: &Transaction<'_>,
    job: &NewJob,
    number: i64,
    met: &mut Met,
    changed: &mut JobsChanged,
) -> Result<(), CatalogError> {
    let placed = job.files.iter().map(|file| met.place(tx, job, file, changed));
    let placed = placed.collect::<Result<Vec<_>, _>>()?;
    let mut left = placed.as_slice();
    while !left.is_empty() {
        let count = ROWS_AT_ONCE.into_iter().find(|&count| count <= left.len()).unwrap_or(1);
        let (now, later) = left.split_at(count);
        let ids = insert_rows(tx, number, now)?;
        changed.files.extend(now.iter().zip(ids).map(|(placed, id)| JobFileNews {
            job: job.id,
            file: number_back(id),
            from: JobFileState::NotUsed,
            to: placed.file.state,
            queue_before: number_back(placed.queue),
            queue: number_back(placed.queue),
            size: placed.file.size,
            attempt: AttemptId(0),
        }));
        left = later;
    }
    Ok(())
}

/// Returns the ids in the order of the files: rows get theirs one after the other.
fn insert_rows(tx: &Transaction<'_>, job: i64, rows: &[Placed<'_>]) -> Result<Vec<i64>, CatalogError> {
    let states: Vec<(i64, Option<i64>)> =
        rows.iter().map(|row| (file_place(row.file.state), maybe(row.file.size))).collect();
    let values = rows.iter().zip(&states).flat_map(|(row, (state, size))| {
        let file = row.file;
        [
            job.seen(),
            file.index.seen(),
            state.seen(),
            file.source.seen(),
            file.target.seen(),
            row.source.seen(),
            row.target.seen(),
            row.queue.seen(),
            size.seen(),
            file.checksum.seen(),
            file.details.seen(),
        ]
    });
    let mut insert = tx.prepare_cached(&format!(
        "INSERT INTO job_files (job, place, state, source, target, source_end, target_end, queue, size, checksum, details)
         VALUES {} RETURNING id",
        vec![ROW; rows.len()].join(", ")
    ))?;
    let ids = insert.query_map(values.collect::<Vec<_>>(), |row| row.get(0))?;
    let mut ids = ids.collect::<crate::sql::Result<Vec<i64>>>()?;
    ids.sort_unstable();
    Ok(ids)
}

impl Met {
    fn place<'j>(
        &mut self,
        tx: &Transaction<'_>,
        job: &NewJob,
        file: &'j NewJobFile,
        changed: &mut JobsChanged,
    ) -> Result<Placed<'j>, CatalogError> {
        let source = self.end(tx, &file.source, changed)?;
        let target = self.end(tx, &file.target, changed)?;
        let terms = Terms {
            target,
            vo: job.vo.clone(),
            activity: file.activity.clone(),
            priority: job.priority,
            strategy: job.strategy.clone(),
        };
        let queue = match self.queues.get(&terms) {
            Some(&queue) => queue,
            None => {
                let queue = queue_of(tx, &terms, &mut changed.new_queues)?;
                self.queues.insert(terms, queue);
                queue
            }
        };
        Ok(Placed { file, source, target, queue })
    }

    fn end(
        &mut self,
        tx: &Transaction<'_>,
        url: &str,
        changed: &mut JobsChanged,
    ) -> Result<i64, CatalogError> {
        let Some(end) = end_point(url) else {
            return Err(CatalogError::refused(longhaul_model::FaultCode::BadRequest, "a URL without a host"));
        };
        if let Some(&id) = self.ends.get(&end) {
            return Ok(id);
        }
        let id = end_of(tx, &end, &mut changed.new_ends)?;
        self.ends.insert(end, id);
        Ok(id)
    }
}
