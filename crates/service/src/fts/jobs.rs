//! Lists of jobs, one or many of them by their ids, and what is done to them.

use http::StatusCode;
use longhaul_api::fts::{
    Chosen, ErrorEntry, FileView, JobEntry, JobQuery, JobResultEntry, JobView, Refusal, job_results_to_json,
    jobs_to_json, no_such_job, split_list,
};
use longhaul_api::fts::{Fielded, Level};
use longhaul_catalog::{self as catalog, JobRow};
use longhaul_identity::JobScope;
use longhaul_identity::refusal;
use longhaul_model::{JobId, JobState};
use longhaul_security::grid::same_subject;
use serde::Serialize;
use serde_json::{Value, json};

use super::request::{FtsRequest, Reply};
use super::{routes, views};
use crate::operations::{Operations, problem};

/// Ids of one request.
const IDS_MAX: usize = 1_000;
/// Jobs of a list without a limit.
const LIST_MAX: usize = 500;
/// Jobs that an administrator cancels with one request, at a time.
const CANCEL_BATCH: usize = 500;
const OK: &str = "200 Ok";

pub fn list(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let person = &ask.person;
    let level = person.needs("transfer")?;
    let query = JobQuery::parse(&ask.query)?;
    if query.delegation_id.as_ref().is_some_and(|id| *id != person.delegation_id) {
        return Err(Refusal::forbidden("The provided delegation id does not match your delegation id"));
    }
    if level != Level::All && query.user_dn.as_ref().is_some_and(|dn| !same_subject(dn, &person.dn)) {
        return Err(Refusal::bad("The provided DN and delegation id do not correspond to the same user"));
    }
    let Some(JobScope { vo, credential }) =
        person.job_scope(query.vo.clone(), query.delegation_id.clone())?
    else {
        return Reply::json(&json!([]));
    };
    let rows = operations.shared.kernel.catalog.list_jobs(&catalog::JobQuery {
        vo,
        user: query.user_dn.clone(),
        credential,
        source_se: query.source_se.iter().cloned().collect(),
        target_se: query.dest_se.iter().cloned().collect(),
        states: query.states.clone().unwrap_or_default(),
        unfinished_only: query.unfinished_only(),
        finished_since: query.window.map(|window| operations.now() - window),
        limit: query.limit.map_or(LIST_MAX, |limit| limit as usize),
        ..catalog::JobQuery::default()
    });
    let rows = rows.map_err(|error| refusal(problem(error)))?;
    // States were requester for that there are not.
    let nothing = query.states.as_ref().is_some_and(Vec::is_empty);
    let host = views::own_host(operations);
    let jobs: Vec<JobView> = rows.iter().filter(|_| !nothing).map(|row| views::job(row, &host)).collect();
    match &query.fields {
        Some(fields) => Reply::json(&jobs.iter().map(|job| Chosen(job, fields)).collect::<Vec<_>>()),
        None => Reply::rendered(jobs_to_json(&jobs)),
    }
}

/// A job that the caller may see, or why not.
pub fn find(operations: &Operations, ask: &FtsRequest, id: &str, doing: &str) -> Result<JobRow, Refusal> {
    let (_, mut found) = find_all(operations, ask, id, doing)?;
    found.pop().map(|(_, row)| row).unwrap_or_else(|| Err(no_such_job(id)))
}

type JobLookups = Vec<(String, Result<JobRow, Refusal>)>;

/// The jobs of a comma list, each with the caller's leave; whether it was a list.
fn find_all(
    operations: &Operations,
    ask: &FtsRequest,
    ids: &str,
    doing: &str,
) -> Result<(bool, JobLookups), Refusal> {
    ask.person.needs("transfer")?;
    let several = ids.contains(',');
    let words = split_list(ids)?;
    if words.len() > IDS_MAX {
        return Err(Refusal::bad(format!("more than {IDS_MAX} jobs in one request")));
    }
    let found = operations.shared.job_control.jobs_for(&ask.person, &words, doing)?;
    if several {
        // One alone is the answer to the whole request, and told of there.
        let operation = routes::name(&ask.method, &ask.path);
        let refused = words.iter().zip(&found).filter_map(|(word, row)| Some((word, row.as_ref().err()?)));
        for (word, refusal) in refused.filter(|(_, refusal)| refusal.status == 403) {
            let outcome = Err(refusal.message.as_str());
            let audit = operations.identity().audit();
            audit.record(&ask.requester.lock(), (&operation, word), outcome, operations.now());
        }
    }
    Ok((several, words.into_iter().map(str::to_owned).zip(found).collect()))
}

pub fn show(operations: &Operations, ask: &FtsRequest, ids: &str) -> Result<Reply, Refusal> {
    let (several, found) = find_all(operations, ask, ids, "check")?;
    let fields: Option<Vec<String>> = match ask.query.get("files") {
        Some(list) => Some(split_list(list)?.into_iter().map(str::to_owned).collect()),
        None => None,
    };
    let host = views::own_host(operations);
    let mut files = match &fields {
        Some(_) => {
            let ids: Vec<JobId> = found.iter().filter_map(|(_, row)| Some(row.as_ref().ok()?.id)).collect();
            let rows =
                operations.shared.kernel.catalog.job_files(&ids).map_err(|error| refusal(problem(error)))?;
            rows.into_iter().map(|rows| rows.iter().map(|row| views::file(row, &host)).collect()).collect()
        }
        None => Vec::new(),
    }
    .into_iter();
    let entries: Vec<Result<(JobView, Vec<FileView>), ErrorEntry>> = found
        .into_iter()
        .map(|(word, row)| match row {
            Ok(row) => Ok((views::job(&row, &host), files.next().unwrap_or_default())),
            Err(refusal) => Err(ErrorEntry::new(&word, &refusal)),
        })
        .collect();
    let shown = entries.iter().map(|entry| match entry {
        Ok((job, files)) => JobResultEntry::Job(JobEntry {
            job,
            http_status: OK,
            http_message: None,
            files: fields.as_ref().map(|fields| (files.as_slice(), fields.as_slice())),
        }),
        Err(error) => JobResultEntry::Error(error),
    });
    answer(several, shown.collect())
}

/// One alone is answered by its own status, several as a list: 207 if any is an error.
fn answer(several: bool, entries: Vec<JobResultEntry<'_>>) -> Result<Reply, Refusal> {
    let error = |entry: &JobResultEntry<'_>| match entry {
        JobResultEntry::Error(error) => {
            error.http_status.split(' ').next().and_then(|code| code.parse::<u16>().ok())
        }
        JobResultEntry::Job(_) => None,
    };
    let worst = entries.iter().find_map(error);
    match entries.as_slice() {
        [one] if !several => {
            let status = worst.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::OK);
            Ok(Reply::json(one)?.with_status(status))
        }
        [] if !several => Err(no_such_job("")),
        all => {
            let status = if worst.is_some() { StatusCode::MULTI_STATUS } else { StatusCode::OK };
            Ok(Reply::rendered(job_results_to_json(all))?.with_status(status))
        }
    }
}

/// `GET /jobs/{id}/{field}`: the bare value.
pub fn field(operations: &Operations, ask: &FtsRequest, id: &str, field: &str) -> Result<Reply, Refusal> {
    let row = find(operations, ask, id, "check")?;
    let view = views::job(&row, &views::own_host(operations));
    one_field(&view, field)
}

pub fn one_field<T: Fielded + Serialize>(view: &T, field: &str) -> Result<Reply, Refusal> {
    if !T::FIELDS.contains(&field) {
        return Err(Refusal::missing("No such field"));
    }
    let fields = [field.to_owned()];
    let chosen = serde_json::to_value(Chosen(view, &fields)).unwrap_or_default();
    Reply::json(&chosen[field])
}

pub fn cancel(operations: &Operations, ask: &FtsRequest, ids: &str) -> Result<Reply, Refusal> {
    let (several, found) = find_all(operations, ask, ids, "cancel")?;
    change(operations, several, found, |live| {
        let wanted: Vec<_> = live.iter().map(|id| (*id, None)).collect();
        operations.shared.job_control.cancel_jobs(wanted, longhaul_model::job::CANCELED_BY_USER).map(drop)
    })
}

/// `POST /jobs/{id}`: nothing but the priority can change.
pub fn modify(operations: &Operations, ask: &FtsRequest, ids: &str) -> Result<Reply, Refusal> {
    let (several, found) = find_all(operations, ask, ids, "modify")?;
    let body = ask.dictionary()?;
    let params = body.get("params").and_then(Value::as_object);
    let params = params.ok_or_else(|| Refusal::bad("Missing parameter: params"))?;
    let priority = params
        .get("priority")
        .and_then(Value::as_i64)
        .ok_or_else(|| Refusal::bad("Invalid priority value"))?;
    let priority = priority.clamp(1, 5) as u8;
    change(operations, several, found, |live| operations.shared.job_control.set_job_priority(live, priority))
}

/// Does something to those jobs that have not ended; says of all what they are now. Those that were not
/// touched come first.
fn change(
    operations: &Operations,
    several: bool,
    found: JobLookups,
    act: impl FnOnce(&[JobId]) -> Result<(), Refusal>,
) -> Result<Reply, Refusal> {
    let host = views::own_host(operations);
    let (mut errors, mut ended, mut live) = (Vec::new(), Vec::new(), Vec::new());
    for (word, row) in found {
        match row {
            Err(refusal) => errors.push(ErrorEntry::new(&word, &refusal)),
            Ok(row) if row.state.is_terminal() => ended.push(views::job(&row, &host)),
            Ok(row) => live.push(row.id),
        }
    }
    if !live.is_empty() {
        act(&live)?;
    }
    let rows = operations.shared.kernel.catalog.jobs(&live).map_err(|error| refusal(problem(error)))?;
    let changed: Vec<JobView> = rows.iter().flatten().map(|row| views::job(row, &host)).collect();
    let untouched = |job| JobEntry {
        job,
        http_status: "304 Not Modified",
        http_message: Some(Some("The job is in a terminal state")),
        files: None,
    };
    let touched = |job| JobEntry { job, http_status: OK, http_message: Some(None), files: None };
    let entries = errors.iter().map(JobResultEntry::Error);
    let entries = entries.chain(ended.iter().map(untouched).map(JobResultEntry::Job));
    answer(several, entries.chain(changed.iter().map(touched).map(JobResultEntry::Job)).collect())
}

/// `DELETE /jobs/all` and `/jobs/vo/{vo}`.
pub fn cancel_all(operations: &Operations, ask: &FtsRequest, vo: Option<&str>) -> Result<Reply, Refusal> {
    ask.person.needs_root()?;
    let (jobs, files) = cancel_where(operations, longhaul_model::job::CANCELED_BY_USER, |query| {
        query.vo = vo.map(str::to_owned);
    })?;
    Reply::json(&json!({ "affected_files": files, "affected_dm": 0, "affected_jobs": jobs.len() }))
}

/// Cancels all that has not ended and fits; gives the jobs and how many files they had.
pub fn cancel_where(
    operations: &Operations,
    reason: &str,
    narrow: impl Fn(&mut catalog::JobQuery),
) -> Result<(Vec<JobId>, u64), Refusal> {
    let (mut jobs, mut files) = (Vec::new(), 0);
    loop {
        let mut query =
            catalog::JobQuery { unfinished_only: true, limit: CANCEL_BATCH, ..Default::default() };
        narrow(&mut query);
        let rows =
            operations.shared.kernel.catalog.list_jobs(&query).map_err(|error| refusal(problem(error)))?;
        let wanted: Vec<_> = rows.iter().map(|row| (row.id, None)).collect();
        if wanted.is_empty() {
            return Ok((jobs, files));
        }
        operations.shared.job_control.cancel_jobs(wanted, reason)?;
        files += rows.iter().map(|row| row.files).sum::<u64>();
        let before = jobs.len();
        jobs.extend(rows.iter().filter(|row| row.state != JobState::Canceled).map(|row| row.id));
        // What does not end by being cancelled would be listed for ever.
        if jobs.len() == before {
            return Ok((jobs, files));
        }
    }
}
