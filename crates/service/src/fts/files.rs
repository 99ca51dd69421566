//! Files of jobs: lists, attempts, the archive, and the end of some of them.

use std::time::Duration;

use longhaul_api::fts::{Fielded, FileView};
use longhaul_api::fts::{FileQuery, JobEntry, Level, Refusal, no_such_job, split_list};
use longhaul_catalog::{self as catalog, JobCancelResult};
use longhaul_identity::refusal;
use longhaul_model::{JobId, JobKind};
use serde_json::json;

use super::request::{FtsRequest, Reply};
use super::{jobs, views};
use crate::operations::{Operations, problem};

const IDS_MAX: usize = 1_000;

fn rows(operations: &Operations, job: JobId) -> Result<Vec<catalog::JobFileRow>, Refusal> {
    let rows = operations.shared.kernel.catalog.job_files(&[job]).map_err(|error| refusal(problem(error)))?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

pub fn of_job(operations: &Operations, ask: &FtsRequest, id: &str) -> Result<Reply, Refusal> {
    let job = jobs::find(operations, ask, id, "check")?;
    let host = views::own_host(operations);
    let files: Vec<_> = rows(operations, job.id)?.iter().map(|row| views::file(row, &host)).collect();
    Reply::json(&files)
}

/// There are no deletion jobs; clients ask nevertheless.
pub fn deletions(operations: &Operations, ask: &FtsRequest, id: &str) -> Result<Reply, Refusal> {
    jobs::find(operations, ask, id, "check")?;
    Reply::json(&json!([]))
}

pub fn retries(operations: &Operations, ask: &FtsRequest, id: &str, file: &str) -> Result<Reply, Refusal> {
    let job = jobs::find(operations, ask, id, "check")?;
    let wanted = file.parse::<u64>().ok();
    let known = rows(operations, job.id)?.into_iter().any(|row| Some(row.id) == wanted);
    let file = wanted.filter(|_| known).ok_or_else(|| Refusal::missing("No file with that id in the job"))?;
    let attempts =
        operations.shared.kernel.catalog.job_file_attempts(file).map_err(|error| refusal(problem(error)))?;
    let host = views::own_host(operations);
    let shown: Vec<_> = attempts.into_iter().filter_map(|row| views::retry(row, &host)).collect();
    Reply::json(&shown)
}

/// `DELETE /jobs/{id}/files/{f1},{f2}`
pub fn cancel(operations: &Operations, ask: &FtsRequest, id: &str, chosen: &str) -> Result<Reply, Refusal> {
    let job = jobs::find(operations, ask, id, "cancel")?;
    if job.kind != JobKind::Regular {
        let text = format!("Multihop or reuse jobs must be cancelled at once ({})", job.kind);
        return Err(Refusal::bad(text));
    }
    let words = split_list(chosen)?;
    if words.is_empty() || words.len() > IDS_MAX {
        return Err(Refusal::bad(format!("1 to {IDS_MAX} file ids are expected")));
    }
    // What is no number belongs to no job.
    let ids: Vec<u64> = words.iter().map(|word| word.parse().unwrap_or(0)).collect();
    let canceled = operations
        .shared
        .job_control
        .cancel_jobs(vec![(job.id, Some(ids))], longhaul_model::job::CANCELED_BY_USER)?;
    let states: Vec<Option<String>> = match canceled.into_iter().next() {
        Some(JobCancelResult::Done(states)) => {
            states.into_iter().map(|state| Some(state?.word().to_owned())).collect()
        }
        Some(JobCancelResult::AlreadyEnded) => {
            let rows = rows(operations, job.id)?;
            let state = |word: &&str| {
                let row = rows.iter().find(|row| word.parse() == Ok(row.id))?;
                Some(row.state.word().to_owned())
            };
            words.iter().map(state).collect()
        }
        _ => return Err(no_such_job(id)),
    };
    let shown: Vec<String> = states
        .into_iter()
        .map(|state| state.unwrap_or_else(|| "File does not belong to the job".to_owned()))
        .collect();
    match shown.as_slice() {
        [one] => Reply::json(one),
        all => Reply::json(&all),
    }
}

/// `GET /files`
pub fn list(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let person = &ask.person;
    let level = person.needs("transfer")?;
    let query = FileQuery::parse(&ask.query)?;
    let vo = match level {
        Level::All => query.vo.clone(),
        _ if query.vo.as_ref().is_some_and(|vo| !person.vos.contains(vo)) => return Reply::json(&json!([])),
        _ => Some(query.vo.clone().unwrap_or_else(|| person.vo().to_owned())),
    };
    let found = operations.shared.kernel.catalog.list_job_files(&catalog::JobFileQuery {
        vo,
        source_se: query.source_se,
        target_se: query.dest_se,
        target: query.dest_surl,
        states: query.states.clone().unwrap_or_default(),
        unfinished_only: query.window.is_none(),
        finished_since: query.window.map(|window| operations.now() - window),
        limit: query.limit as usize,
    });
    let mut found = found.map_err(|error| refusal(problem(error)))?;
    if level == Level::Own {
        keep_own(operations, ask, &mut found)?;
    }
    if query.states.is_some_and(|states| states.is_empty()) {
        found.clear();
    }
    let host = views::own_host(operations);
    let files: Vec<FileView> = found.iter().map(|row| views::file(row, &host)).collect();
    Reply::json(&files)
}

fn keep_own(
    operations: &Operations,
    ask: &FtsRequest,
    files: &mut Vec<catalog::JobFileRow>,
) -> Result<(), Refusal> {
    let mut ids: Vec<JobId> = files.iter().map(|row| row.job).collect();
    ids.dedup();
    let rows = operations.shared.kernel.catalog.jobs(&ids).map_err(|error| refusal(problem(error)))?;
    let own = |id: JobId| {
        rows.iter().flatten().any(|row| row.id == id && ask.person.owns(&row.vo, &row.credential))
    };
    files.retain(|file| own(file.job));
    Ok(())
}

/// A job that ended long ago, with its files. It is found under `/jobs` too.
pub fn archived(
    operations: &Operations,
    ask: &FtsRequest,
    id: &str,
    field: Option<&str>,
) -> Result<Reply, Refusal> {
    let missing = || {
        let refusal = no_such_job(id);
        Refusal::new(404, format!("{} in the archive", refusal.message))
    };
    let job = jobs::find(operations, ask, id, "check")
        .map_err(|refusal| if refusal.status == 404 { missing() } else { refusal })?;
    let age = Duration::from_secs(u64::from(operations.config().fts.archive_days) * 86_400);
    if job.finished.is_none_or(|at| operations.now().since(at) < age) {
        return Err(missing());
    }
    let host = views::own_host(operations);
    let view = views::job(&job, &host);
    if let Some(field) = field {
        return jobs::one_field(&view, field);
    }
    let files: Vec<FileView> = rows(operations, job.id)?.iter().map(|row| views::file(row, &host)).collect();
    let fields: Vec<String> = FileView::FIELDS.iter().map(|field| (*field).to_owned()).collect();
    let entry =
        JobEntry { job: &view, http_status: "200 Ok", http_message: None, files: Some((&files, &fields)) };
    Reply::json(&entry)
}
