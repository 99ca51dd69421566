//! Routes of the pages. Every page needs a session; every change also needs the session's form token (CSRF).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Form, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use longhaul_api::Problem;
use longhaul_api::native::{
    ReplicaView, SiteChange, SiteState, StorageView, Subscribe, SubscriptionChange, SubscriptionView,
    TransferQuery,
};
use longhaul_api::routes::{self, Route};
use longhaul_identity::Caller;
use longhaul_model::{
    DatasetName, Fault, FaultCode, SiteName, StorageKind, StorageName, SubscriptionId, SubscriptionState,
    TransferId,
};
use longhaul_service::{Operations, PageQuery, SubscriptionList, cookie};
use maud::Markup;
use serde::Deserialize;

use crate::layout::Viewer;
use crate::pages::{self, Context};

/// Rows on one page of a list: a few screens.
const ROWS_PER_PAGE: u32 = 100;

/// The state that axum passes to each handler.
pub(crate) type AppState = Arc<Operations>;

/// Pages, forms and assets below `/ui/`.
pub fn router(operations: AppState) -> Router {
    Router::new()
        .route("/ui", get(|| async { Redirect::permanent("/ui/") }))
        .route("/ui/", get(overview))
        .route("/ui/datasets", get(datasets))
        .route("/ui/datasets/{name}", get(dataset))
        .route("/ui/datasets/{name}/subscribe", post(subscribe))
        .route("/ui/subscriptions", get(subscriptions))
        .route("/ui/subscriptions/{id}", get(subscription).post(change_subscription))
        .route("/ui/transfers", get(transfers))
        .route("/ui/transfers/{id}", get(transfer))
        .route("/ui/transfers/{id}/retry", post(retry_transfer))
        .route("/ui/sites", get(sites))
        .route("/ui/sites/{name}", get(site).post(change_site))
        .route("/ui/storages", get(storages))
        .route("/ui/storages/{name}", get(storage))
        .route("/ui/problems", get(problems))
        .merge(crate::login::routes())
        .merge(crate::jobs::routes())
        .merge(crate::circuits::routes())
        .merge(crate::steer::routes())
        .route("/ui/assets/{name}", get(asset))
        .route("/ui/{*path}", get(no_page))
        .with_state(operations)
}

// ---- callers ---------------------------------------------------------------------------------------------

/// Query parameters that every page accepts: a one-time login token and a cursor.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CommonQuery {
    pub(crate) token: Option<String>,
    after: Option<String>,
}

impl CommonQuery {
    pub(crate) fn page(&self) -> PageQuery {
        PageQuery { limit: Some(ROWS_PER_PAGE), after: self.after.clone().filter(|after| !after.is_empty()) }
    }
}

pub(crate) fn caller(operations: &Operations, headers: &HeaderMap) -> Result<Caller, Problem> {
    let none = || Problem::from(Fault::new(FaultCode::NotAuthenticated, "no one is logged in"));
    operations.identity().caller_of_cookie(&cookie::get(headers).ok_or_else(none)?)
}

/// The caller, or a redirect to the login page.
fn require_login(operations: &Operations, headers: &HeaderMap) -> Result<Caller, Response> {
    caller(operations, headers).map_err(|_| Redirect::to("/ui/login").into_response())
}

/// Checks that the caller may use `route` and that the form is from one of our pages (CSRF). The operation
/// itself checks whether they may change this particular object.
fn authorise_change(
    operations: &Operations,
    headers: &HeaderMap,
    form_token: &str,
    route: &Route,
) -> Result<(), Response> {
    let checked = caller(operations, headers).and_then(|caller| {
        caller.may_open(route)?;
        caller.check_csrf(Some(form_token))
    });
    checked.map_err(|problem| show_problem(operations, headers, &problem))
}

// ---- replies ---------------------------------------------------------------------------------------------

pub(crate) fn context<'a>(operations: &'a Operations, caller: Option<&'a Caller>) -> Context<'a> {
    let viewer = caller.map(|caller| Viewer {
        principal: &caller.principal,
        form_token: caller.csrf_token().unwrap_or_default(),
    });
    Context { deployment: &operations.config().deployment, viewer, now: operations.now() }
}

/// Only what the service serves may run or be shown, and no site may frame a page.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// The referrer policy is `same-origin`, not `no-referrer`: with the latter, browsers send `Origin: null`
/// with our own forms, which is refused.
pub(crate) fn html(status: StatusCode, page: Markup) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, page.into_string()).into_response()
}

pub(crate) fn show_problem(operations: &Operations, headers: &HeaderMap, problem: &Problem) -> Response {
    let who = caller(operations, headers).ok();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = html(status, pages::problem(context(operations, who.as_ref()), problem));
    // The audit log reads the problem here; the page is for people only.
    response.extensions_mut().insert(problem.clone());
    response
}

/// Reads a view on a blocking thread and renders a page from it.
pub(crate) async fn render_page<V: Send + 'static>(
    operations: AppState,
    headers: HeaderMap,
    view: impl FnOnce(&Operations) -> Result<V, Problem> + Send + 'static,
    draw: impl FnOnce(Context<'_>, &V) -> Markup,
) -> Response {
    let who = match require_login(&operations, &headers) {
        Ok(caller) => caller,
        Err(response) => return response,
    };
    if let Err(problem) = who.may_look() {
        return show_problem(&operations, &headers, &problem);
    }
    match operations.run(view).await {
        Ok(view) => html(StatusCode::OK, draw(context(&operations, Some(&who)), &view)),
        Err(problem) => show_problem(&operations, &headers, &problem),
    }
}

/// Applies the change that a form asks for, then redirects to the page `back`.
pub(crate) async fn apply_change<V: Send + 'static>(
    operations: AppState,
    headers: HeaderMap,
    form_token: &str,
    route: &Route,
    back: String,
    act: impl FnOnce(&Operations) -> Result<V, Problem> + Send + 'static,
) -> Response {
    if let Err(response) = authorise_change(&operations, &headers, form_token, route) {
        return response;
    }
    match operations.run(act).await {
        Ok(_) => Redirect::to(&back).into_response(),
        Err(problem) => show_problem(&operations, &headers, &problem),
    }
}

pub(crate) fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| Fault::new(FaultCode::BadRequest, error.to_string()).into())
}

// ---- pages -----------------------------------------------------------------------------------------------

async fn overview(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(extra): Query<CommonQuery>,
) -> Response {
    if let Some(token) = extra.token {
        return crate::login::confirm(&operations, &token);
    }
    render_page(operations, headers, Operations::status, pages::overview).await
}

async fn datasets(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(extra): Query<CommonQuery>,
) -> Response {
    render_page(
        operations,
        headers,
        move |operations| operations.dataset_list(&extra.page()),
        pages::datasets,
    )
    .await
}

async fn dataset(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(name): Path<String>,
    Query(extra): Query<CommonQuery>,
) -> Response {
    let view = move |operations: &Operations| {
        let name: DatasetName = parse(&name)?;
        let all = PageQuery { limit: Some(ROWS_PER_PAGE), after: None };
        let view = operations.dataset_show(&name)?;
        let blocks = operations.dataset_blocks(&name, &extra.page())?;
        let list = SubscriptionList { dataset: Some(name), page: all.clone(), ..SubscriptionList::default() };
        let subscriptions = operations.subscription_list(&list)?.items;
        let storages = operations.storage_list(&all)?.items;
        let free = subscribable_storages(&storages, &subscriptions, &view.replicas);
        Ok((view, blocks, subscriptions, free))
    };
    render_page(operations, headers, view, |context, (view, blocks, subscriptions, free)| {
        pages::dataset(context, view, blocks, subscriptions, free)
    })
    .await
}

/// Storages to which a dataset can be subscribed. A virtual one holds no files; one that has the dataset, or
/// is subscribed to it, needs no further subscription.
fn subscribable_storages(
    storages: &[StorageView],
    subscriptions: &[SubscriptionView],
    replicas: &[ReplicaView],
) -> Vec<String> {
    let is_subscribed = |storage: &StorageView| {
        subscriptions
            .iter()
            .any(|item| item.storage == storage.name && item.state != SubscriptionState::Cancelled)
    };
    let is_complete = |storage: &StorageView| {
        replicas.iter().any(|replica| replica.storage == storage.name && replica.complete)
    };
    storages
        .iter()
        .filter(|storage| storage.writable && storage.kind != StorageKind::Virtual)
        .filter(|storage| !is_subscribed(storage) && !is_complete(storage))
        .map(|storage| storage.name.to_string())
        .collect()
}

async fn subscriptions(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(extra): Query<CommonQuery>,
) -> Response {
    let list = SubscriptionList { page: extra.page(), ..SubscriptionList::default() };
    render_page(
        operations,
        headers,
        move |operations| operations.subscription_list(&list),
        pages::subscriptions,
    )
    .await
}

async fn subscription(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    let view = move |operations: &Operations| operations.subscription_show(parse::<SubscriptionId>(&id)?);
    render_page(operations, headers, view, pages::subscription).await
}

/// The filter comes as a form sends it: empty fields do not filter.
async fn transfers(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Response {
    let view = move |operations: &Operations| {
        let query = transfer_query(&fields)?;
        let list = operations.transfer_list(&query)?;
        Ok((query, list))
    };
    render_page(operations, headers, view, |context, (query, list)| pages::transfers(context, query, list))
        .await
}

fn transfer_query(fields: &[(String, String)]) -> Result<TransferQuery, Problem> {
    let field = |name: &str| {
        fields.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    };
    Ok(TransferQuery {
        dataset: field("dataset").map(parse).transpose()?,
        source: field("source").map(parse).transpose()?,
        target: field("target").map(parse).transpose()?,
        state: field("state").map(parse).transpose()?,
        limit: Some(ROWS_PER_PAGE),
        after: field("after").map(str::to_owned),
    })
}

async fn transfer(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    let view = move |operations: &Operations| operations.transfer_show(parse::<TransferId>(&id)?);
    render_page(operations, headers, view, pages::transfer).await
}

async fn sites(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(extra): Query<CommonQuery>,
) -> Response {
    let view = move |operations: &Operations| operations.site_list(&extra.page());
    render_page(operations, headers, view, |context, list| pages::sites(context, &list.items)).await
}

async fn site(State(operations): State<AppState>, headers: HeaderMap, Path(name): Path<String>) -> Response {
    let view = move |operations: &Operations| operations.site_show(&parse::<SiteName>(&name)?);
    render_page(operations, headers, view, pages::site).await
}

async fn storages(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(extra): Query<CommonQuery>,
) -> Response {
    let view = move |operations: &Operations| operations.storage_list(&extra.page());
    render_page(operations, headers, view, pages::storages).await
}

async fn storage(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Response {
    let view = move |operations: &Operations| {
        let name: StorageName = parse(&name)?;
        let storage = operations.storage_show(&name)?;
        let all = PageQuery { limit: Some(ROWS_PER_PAGE), after: None };
        let list = SubscriptionList { storage: Some(name), page: all, ..SubscriptionList::default() };
        Ok((storage, operations.subscription_list(&list)?))
    };
    render_page(operations, headers, view, pages::storage).await
}

async fn problems(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Query(extra): Query<CommonQuery>,
) -> Response {
    let view = move |operations: &Operations| operations.problem_list(&extra.page());
    render_page(operations, headers, view, |context, list| pages::problems(context, &list.items)).await
}

/// What leads nowhere is a page as well: whoever sees it is a person.
async fn no_page(State(operations): State<AppState>, headers: HeaderMap, uri: Uri) -> Response {
    let fault = Fault::new(FaultCode::NotFound, format!("there is no page {}", uri.path()));
    let problem = Problem::from(fault).with_remedy("check the address, or begin at the overview");
    show_problem(&operations, &headers, &problem)
}

// ---- forms -----------------------------------------------------------------------------------------------

#[derive(Deserialize)]
pub(crate) struct SubscribeForm {
    form_token: String,
    storage: String,
}

async fn subscribe(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(name): Path<String>,
    Form(form): Form<SubscribeForm>,
) -> Response {
    let back = format!("/ui/datasets/{}", crate::show::segment(&name));
    let who = headers.clone();
    let act = move |operations: &Operations| {
        let request = Subscribe {
            dataset: parse(&name)?,
            block: None,
            storage: parse(&form.storage)?,
            priority: None,
            verification: None,
            custodial: false,
            terms: longhaul_api::steering::Terms::default(),
        };
        operations.subscription_create(&caller(operations, &who)?, &request)
    };
    apply_change(operations, headers, &form.form_token, &routes::SUBSCRIPTION_CREATE, back, act).await
}

#[derive(Deserialize)]
pub(crate) struct SubscriptionForm {
    form_token: String,
    state: Option<SubscriptionState>,
    priority: Option<u8>,
}

async fn change_subscription(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Form(form): Form<SubscriptionForm>,
) -> Response {
    let back = format!("/ui/subscriptions/{}", crate::show::segment(&id));
    let patch =
        SubscriptionChange { state: form.state, priority: form.priority, ..SubscriptionChange::default() };
    let who = headers.clone();
    let act = move |operations: &Operations| {
        operations.subscription_change(&caller(operations, &who)?, parse(&id)?, &patch)
    };
    apply_change(operations, headers, &form.form_token, &routes::SUBSCRIPTION_CHANGE, back, act).await
}

#[derive(Deserialize)]
pub(crate) struct SiteForm {
    form_token: String,
    state: SiteState,
}

async fn change_site(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(name): Path<String>,
    Form(form): Form<SiteForm>,
) -> Response {
    let back = format!("/ui/sites/{}", crate::show::segment(&name));
    let patch = SiteChange { state: Some(form.state), ..SiteChange::default() };
    let who = headers.clone();
    let act = move |operations: &Operations| {
        operations.site_change(&caller(operations, &who)?, &parse(&name)?, &patch)
    };
    apply_change(operations, headers, &form.form_token, &routes::SITE_CHANGE, back, act).await
}

#[derive(Deserialize)]
pub(crate) struct BareForm {
    form_token: String,
}

async fn retry_transfer(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Form(form): Form<BareForm>,
) -> Response {
    let back = format!("/ui/transfers/{}", crate::show::segment(&id));
    let act = move |operations: &Operations| operations.transfer_retry(parse(&id)?);
    apply_change(operations, headers, &form.form_token, &routes::TRANSFER_RETRY, back, act).await
}

// ---- assets ----------------------------------------------------------------------------------------------

async fn asset(Path(name): Path<String>) -> Response {
    let (kind, bytes): (&str, &'static str) = match name.as_str() {
        "style.css" => ("text/css; charset=utf-8", include_str!("../assets/style.css")),
        "live.js" => ("text/javascript; charset=utf-8", include_str!("../assets/live.js")),
        "icon.svg" => ("image/svg+xml", include_str!("../assets/icon.svg")),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "max-age=60"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, bytes).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(name: &str, kind: StorageKind) -> StorageView {
        StorageView {
            name: name.parse().unwrap(),
            site: None,
            kind,
            writable: true,
            total_bytes: 0,
            free_bytes: 0,
            files: 0,
            bytes: 0,
            trouble: None,
            relay: false,
            strategy: None,
            promised_bytes: None,
            space_policy: None,
            rules_version: 1,
            agents: None,
            tape_queue: None,
            pools: Vec::new(),
        }
    }

    #[test]
    fn a_dataset_is_not_offered_to_a_virtual_storage() {
        let storages = [storage("alpha", StorageKind::Posix), storage("alpha-test", StorageKind::Virtual)];
        assert_eq!(subscribable_storages(&storages, &[], &[]), ["alpha"]);
    }
}
