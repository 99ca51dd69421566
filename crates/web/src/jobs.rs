//! Routes of the job pages.

use axum::Router;
use axum::extract::{Form, Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use longhaul_api::jobs::JobChange;
use longhaul_api::routes;
use longhaul_model::{JobId, JobState};
use longhaul_service::{JobList, Operations};
use serde::Deserialize;

use crate::pages;
use crate::router::{AppState, CommonQuery, apply_change, caller, parse, render_page};

pub(crate) fn routes() -> Router<AppState> {
    Router::new().route("/ui/jobs", get(jobs)).route("/ui/jobs/{id}", get(job).post(change_job))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Filter {
    state: String,
}

async fn jobs(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(filter): Query<Filter>,
    Query(extra): Query<CommonQuery>,
) -> Response {
    let who = headers.clone();
    let view = move |operations: &Operations| {
        let state = Some(filter.state).filter(|word| !word.is_empty());
        let state = state.map(|word| parse::<JobState>(&word)).transpose()?;
        let query = JobList { state, page: extra.page(), ..JobList::default() };
        Ok((state, operations.job_list(&caller(operations, &who)?, &query)?))
    };
    render_page(operations, headers, view, |context, (state, list)| pages::jobs(context, *state, list)).await
}

async fn job(State(operations): State<AppState>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    let who = headers.clone();
    let view = move |operations: &Operations| {
        operations.job_show(&caller(operations, &who)?, parse::<JobId>(&id)?, None)
    };
    render_page(operations, headers, view, pages::job).await
}

#[derive(Deserialize)]
pub(crate) struct JobForm {
    form_token: String,
    priority: Option<u8>,
    #[serde(default)]
    cancel: bool,
}

async fn change_job(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Form(form): Form<JobForm>,
) -> Response {
    let back = format!("/ui/jobs/{}", crate::show::segment(&id));
    let who = headers.clone();
    let act = move |operations: &Operations| {
        let (caller, id) = (caller(operations, &who)?, parse::<JobId>(&id)?);
        match form.priority {
            _ if form.cancel => operations.job_cancel(&caller, id),
            Some(priority) => operations.job_change(&caller, id, &JobChange { priority }),
            None => Ok(operations.job_show(&caller, id, Some(0))?.job),
        }
    };
    let route = if form.cancel { &routes::JOB_CANCEL } else { &routes::JOB_CHANGE };
    apply_change(operations, headers, &form.form_token, route, back, act).await
}
