//! HTTP: the table of `api::routes` as a router, with one guard before every route: who is it, may they, is
//! it small enough. Handlers never see a request that the guard did not let through.

mod answer;
pub(crate) mod body;
mod call;
pub mod cookie;
mod credential;
mod drain;
mod events;
mod guard;
mod handlers;
mod idempotency;
mod linger;
mod listen;
mod rate_limit;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter};
use http::StatusCode;
use longhaul_api::Problem;
use longhaul_api::agent::{Report, WorkRequest};
use longhaul_api::routes::{self, Access, CHECK, Method, Route};
use longhaul_gateways::perfsonar::PUSH_BYTES_MAX;
use longhaul_identity::{Origin, Requester, Visitor, not_authenticated};
use longhaul_model::{DatasetName, Fault, FaultCode, IncidentId, StorageName};
use tokio::sync::{Semaphore, mpsc, watch};

use self::answer::{Answer, Content, problem_response};
use self::call::{Call, parse_query};
use crate::fts::admission::ReadAdmission;
use crate::operations::{Operations, bad_request, busy, spool_problem};

pub(crate) use guard::in_time;
pub use listen::Listening;

/// Concurrent uploads of manifests: each may fill the disk up to its limit.
const UPLOADS_MAX: usize = 4;
/// Capacity of the channel between an upload's connection and its file.
const UPLOAD_PIECES: usize = 16;

/// The state that all requests share.
pub struct Http {
    pub operations: Arc<Operations>,
    /// `host:port` by which the plain listener may be addressed.
    pub plain_hosts: Vec<String>,
    pub event_slots: events::Slots,
    pub upload_slots: Semaphore,
    pub(crate) bodies: body::BodyBudgets,
    pub idempotency: idempotency::InFlight,
    /// Rate limits of users.
    pub rate_limiter: rate_limit::UserRateLimiter,
    pub(crate) admission: ReadAdmission,
    pub stop: watch::Receiver<bool>,
}

impl Http {
    pub fn new(operations: Arc<Operations>, plain_hosts: Vec<String>, stop: watch::Receiver<bool>) -> Self {
        let slots = operations.config().limits.event_streams as usize;
        let bodies = body::BodyBudgets::new(operations.config().limits.body_bytes);
        let rate_limiter = rate_limit::UserRateLimiter::new(operations.config().limits.user_requests_per_s);
        Http {
            operations,
            plain_hosts,
            event_slots: Arc::new(Semaphore::new(slots)),
            upload_slots: Semaphore::new(UPLOADS_MAX),
            bodies,
            idempotency: idempotency::InFlight::default(),
            rate_limiter,
            admission: ReadAdmission::new(std::thread::available_parallelism().map_or(1, usize::from)),
            stop,
        }
    }
}

/// The router of the API, and of `extra` (the pages) behind the same guards.
pub fn router(http: &Arc<Http>, extra: Router) -> Router {
    let mut paths: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
    for route in routes::ALL {
        let http = http.clone();
        let method = paths.remove(route.path).unwrap_or_default();
        let service = method.on(filter(route.method), move |request: Request| serve(http, route, request));
        paths.insert(route.path, service);
    }
    let mut router = Router::new();
    for (path, methods) in paths {
        router = router.route(path, methods);
    }
    let not_found = http.clone();
    let wrong_method = http.clone();
    let pages = http.clone();
    let outer = http.clone();
    let fts = http.clone();
    let extra = extra
        .layer(axum::middleware::from_fn(move |request, next| guard::pages(pages.clone(), request, next)));
    router
        .merge(extra)
        .fallback(move |request: Request| no_route(not_found, request, StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(move |request: Request| {
            no_route(wrong_method, request, StatusCode::METHOD_NOT_ALLOWED)
        })
        .layer(axum::middleware::from_fn(move |request, next| {
            crate::fts::route_fts(fts.clone(), request, next)
        }))
        .layer(axum::middleware::from_fn(move |request, next| guard::all(outer.clone(), request, next)))
}

fn filter(method: Method) -> MethodFilter {
    match method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Put => MethodFilter::PUT,
        Method::Patch => MethodFilter::PATCH,
        Method::Delete => MethodFilter::DELETE,
    }
}

async fn no_route(http: Arc<Http>, request: Request, status: StatusCode) -> Response {
    let shown: String = request.uri().path().chars().take(200).collect();
    let detail = format!("{} {shown} is no route of this service", request.method());
    let mut problem = Problem::from(Fault::new(FaultCode::NotFound, detail))
        .with_remedy("GET /api/v1/openapi.json lists all routes");
    problem.status = status.as_u16();
    problem_response(problem, guard::incident(&http, &request))
}

/// One request of the table.
async fn serve(http: Arc<Http>, route: &'static Route, request: Request) -> Response {
    let incident = guard::incident(&http, &request);
    let began = http.operations.now();
    let mut requester = Requester::anonymous(request.extensions().get::<Origin>());
    let object = request.uri().path().to_owned();
    let answered = answer(&http, route, request, &mut requester).await;
    note(&http, route, &requester, &object, answered.as_ref().err());
    let response = match answered {
        Ok(answer) => answer.into_response(),
        Err(problem) => {
            log(route, &problem, incident);
            problem_response(problem, incident)
        }
    };
    let metrics = &http.operations.shared.kernel.metrics;
    let operation = ("operation", route.operation.to_owned());
    let status = ("status", response.status().as_u16().to_string());
    metrics.count("longhaul_http_requests_total", "Requests answered.", vec![operation.clone(), status], 1);
    // How long a poll is held open says nothing.
    if route.operation != "agent_work" {
        let seconds = http.operations.now().since(began).as_secs_f64();
        metrics.observe(
            "longhaul_http_request_seconds",
            "From the head of a request to that of its reply.",
            vec![operation],
            seconds,
        );
    }
    response
}

/// Writes down what was decided: a refusal, or leave to change something. What agents report, and
/// measurements, come by the second and change what they are for; logins have a log of their own.
fn note(http: &Http, route: &Route, requester: &Requester, object: &str, problem: Option<&Problem>) {
    let outcome = match problem {
        Some(problem) if matches!(problem.status, 401 | 403) => Err(problem.detail.as_str()),
        _ if route.method == Method::Get || !is_kept(route.access) => return,
        _ => Ok(()),
    };
    if route.operation != "session_login" {
        let now = http.operations.now();
        http.operations.shared.identity.audit().record(requester, (route.operation, object), outcome, now);
    }
}

fn is_kept(access: Access) -> bool {
    matches!(access, Access::Admin | Access::Manager | Access::Submitter)
}

fn log(route: &Route, problem: &Problem, incident: IncidentId) {
    let operation = route.operation;
    if problem.status >= 500 {
        tracing::error!(%incident, operation, status = problem.status, code = %problem.code,
            detail = %problem.detail_chain(), "request failed");
    } else {
        tracing::info!(%incident, operation, status = problem.status, code = %problem.code,
            detail = %problem.detail_chain(), "request refused");
    }
}

async fn answer(
    http: &Arc<Http>,
    route: &'static Route,
    request: Request,
    requester: &mut Requester,
) -> Result<Answer, Problem> {
    let (mut parts, body) = request.into_parts();
    let ended = http.operations.identity().ended_credentials();
    let admitted = guard::admit(http, route, &parts, requester).await?;
    let parameters = Path::<BTreeMap<String, String>>::from_request_parts(&mut parts, &())
        .await
        .map_err(|error| bad_request(format!("the path: {error}")))?;
    let mut call = Call {
        route,
        caller: admitted.caller,
        agent: admitted.agent,
        cookie: admitted.cookie,
        secure: admitted.secure,
        visitor: parts.extensions.get::<Origin>().map(Visitor::new),
        parameters: parameters.0,
        query: parse_query(route, parts.uri.query())?,
        observer: observer(&parts.headers),
        body: axum::body::Bytes::new(),
    };
    if route.operation == "dataset_add_files" {
        return upload(http, &call, &parts.headers, body).await;
    }
    let limits = &http.operations.config().limits;
    // A result is small, and whoever may send one may do nothing else.
    let most = if route.access == Access::Observer { PUSH_BYTES_MAX as u64 } else { limits.body_bytes };
    let bounds = http.bodies.bounds(route.access != Access::Public, limits.body_bytes.min(most));
    call.body = body::collect(&parts.headers, body, limits, &bounds).await?;
    if ended.has_changed().is_ok_and(|changed| changed) {
        check_credential(http, &call).await?;
    }
    let key = idempotency::key(route, &parts.headers, &call)?;
    let mut answer = match key {
        Some(key) => idempotency::once(http, key, call).await?,
        None => dispatch(http, call).await?,
    };
    if answer.status == StatusCode::OK {
        answer.status = StatusCode::from_u16(route.status).unwrap_or(StatusCode::OK);
    }
    Ok(answer)
}

/// Refuses what a caller sent if the credential has ended while it came.
async fn check_credential(http: &Arc<Http>, call: &Call) -> Result<(), Problem> {
    if call.caller.is_none() {
        return Ok(());
    }
    let credential = call.credential(&http.operations)?;
    let check = move |_: &Operations| if credential.holds() { Ok(()) } else { Err(credential_ended()) };
    http.operations.run(check).await
}

fn credential_ended() -> Problem {
    not_authenticated("the token or session has ended while the request came: nothing of it counts")
}

async fn dispatch(http: &Arc<Http>, call: Call) -> Result<Answer, Problem> {
    let operations = &http.operations;
    match call.route.operation {
        "agent_report" => {
            let report: Report = call.json()?;
            Answer::json(&operations.agent_report(call.agent()?, report).await?)
        }
        "agent_work" => {
            let request: WorkRequest = call.json()?;
            Answer::json(&*operations.agent_work(call.agent()?, &request, http.stop.clone()).await?)
        }
        "events" => {
            let slot = http.event_slots.clone().try_acquire_owned();
            let slot = slot.map_err(|_| busy("too many listeners of the event stream"))?;
            let stream = events::stream(call.credential(operations)?, http.stop.clone(), slot);
            let content = Content::Stream(stream);
            Ok(Answer { status: StatusCode::OK, content, headers: http::HeaderMap::new() })
        }
        operation => {
            let handler = handlers::handler(operation).ok_or_else(|| {
                Problem::from(Fault::new(FaultCode::Internal, format!("{operation} has no handler")))
            })?;
            // It goes through the whole catalog: agents and users must not wait for it.
            if operation == CHECK.operation {
                return operations.run_scan(move |operations| handler(operations, &call)).await;
            }
            operations.run(move |operations| handler(operations, &call)).await
        }
    }
}

/// A manifest: to a file while it comes, then into the catalog.
async fn upload(
    http: &Arc<Http>,
    call: &Call,
    headers: &http::HeaderMap,
    body: Body,
) -> Result<Answer, Problem> {
    let dataset: DatasetName = call.parameter("dataset")?;
    let storage: Option<StorageName> = call.query("storage")?;
    let caller = call.caller()?.clone();
    let (requester, name, at) = (caller.clone(), dataset.clone(), storage.clone());
    http.operations.run(move |operations| operations.may_add_files(&requester, &name, at.as_ref())).await?;
    let limits = http.operations.config().limits.clone();
    body::check_length(headers, limits.manifest_bytes)?;
    let slot = tokio::time::timeout(limits.wait(), http.upload_slots.acquire()).await;
    let _slot = slot.map_err(|_| busy(format!("{UPLOADS_MAX} manifests are being received already")))?;
    let file = http.operations.spool()?;
    let (sender, mut pieces) = mpsc::channel::<axum::body::Bytes>(UPLOAD_PIECES);
    let writer = tokio::task::spawn_blocking(move || {
        let mut file = std::io::BufWriter::with_capacity(1 << 20, file);
        while let Some(piece) = pieces.blocking_recv() {
            std::io::Write::write_all(&mut file, &piece)?;
        }
        file.into_inner().map_err(|error| error.into_error())
    });
    let credential = call.credential(&http.operations)?;
    let read = body::read(body, limits.manifest_bytes, &limits, |piece| {
        let sender = sender.clone();
        // A writer that failed says why itself.
        async move { sender.send(piece).await.map_err(|_| busy("the upload cannot be written")) }
    });
    let read = tokio::select! {
        read = read => read,
        () = credential.ended() => Err(credential_ended()),
    };
    drop(sender);
    let file = writer
        .await
        .map_err(|error| busy(error.to_string()).with_source(error))?
        .map_err(|error| spool_problem(&error))?;
    read?;
    check_credential(http, call).await?;
    let registered = http
        .operations
        .run(move |operations| operations.dataset_add_files(&caller, &dataset, storage.as_ref(), file))
        .await?;
    Answer::json(&registered)
}

/// The observer that a measurement names, in printable characters.
fn observer(headers: &http::HeaderMap) -> Option<String> {
    let value = headers.get(longhaul_api::measured::OBSERVER_HEADER)?.to_str().ok()?;
    Some(longhaul_model::units::printable(&value.chars().take(100).collect::<String>()))
        .filter(|name| !name.is_empty())
}

/// Whether a route wants an agent's certificate.
fn for_agents(route: &Route) -> bool {
    route.access == Access::AgentCertificate
}
