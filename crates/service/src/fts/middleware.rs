//! HTTP middleware that routes requests at FTS's paths to their handlers.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, Method, header};
use longhaul_api::Problem;
use longhaul_api::fts::{self, Parameters, Refusal};
use longhaul_identity::{AuthMethod, Origin, Person, PresentedToken, Requester, refusal};
use parking_lot::Mutex;

use super::admission::AdmissionGuard;
use super::request::{FtsRequest, Reply, refused};
use super::{
    bans, configuration, delegation, files, jobs, monitor, namespace, network, routes, status, submit,
};
use crate::http::body::{self, IncomingBody};
use crate::http::{Http, in_time};
use crate::operations::Operations;

/// First words of FTS's paths; those of the native API and the pages differ.
const WORDS: [&str; 15] = [
    "whoami",
    "delegation",
    "jobs",
    "files",
    "archive",
    "ban",
    "status",
    "admin",
    "config",
    "optimizer",
    "autocomplete",
    "dm",
    "cs",
    "api-docs",
    "fts3",
];

/// Answers requests at FTS's paths and passes all others on to the next routes.
pub async fn route_fts(http: Arc<Http>, request: Request, next: Next) -> Response {
    let Some(path) = path_of(&request) else { return next.run(request).await };
    let (method, object) = (request.method().clone(), request.uri().path().to_owned());
    let operation = routes::name(&method, &path);
    let requester = Arc::new(Mutex::new(Requester::anonymous(request.extensions().get::<Origin>())));
    let answered = answer(&http, path, request, &requester).await;
    let changes = !method.is_safe();
    let outcome = match &answered {
        Ok(reply) if !reply.is_refusal() => changes.then_some(Ok(())),
        Ok(_) => Some(Err("not theirs")),
        Err(refusal) => matches!(refusal.status, 401 | 403).then_some(Err(refusal.message.as_str())),
    };
    if let Some(outcome) = outcome {
        let now = http.operations.now();
        http.operations.shared.identity.audit().record(
            &requester.lock(),
            (&operation, &object),
            outcome,
            now,
        );
    }
    match answered {
        Ok(reply) => reply.into_response(),
        Err(refusal) => {
            if refusal.status >= 500 {
                tracing::error!(status = refusal.status, "fts: {}", refusal.message);
            } else {
                tracing::info!(status = refusal.status, "fts: request refused: {}", refusal.message);
            }
            refused(&refusal)
        }
    }
}

/// The words of the path if it is one of FTS's. Clients send `//jobs` where `/jobs` is meant.
fn path_of(request: &Request) -> Option<Vec<String>> {
    let words: Vec<&str> = request.uri().path().split('/').filter(|word| !word.is_empty()).collect();
    match words.first() {
        // Browsers are led to the pages.
        None if accepts_html(request.headers()) => return None,
        None => return Some(Vec::new()),
        Some(first) if WORDS.contains(first) => {}
        Some(_) => return None,
    }
    // What is no UTF-8 names nothing.
    let decode = |word: &&str| fts::decode(&word.replace('+', "%2B")).unwrap_or_default();
    Some(words.iter().map(decode).collect())
}

fn accepts_html(headers: &HeaderMap) -> bool {
    text(headers, header::ACCEPT).contains("text/html")
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Answers a request; `requester` is set once the caller is authenticated.
async fn answer(
    http: &Arc<Http>,
    path: Vec<String>,
    request: Request,
    requester: &Arc<Mutex<Requester>>,
) -> Result<Reply, Refusal> {
    let operations = &http.operations;
    let (parts, sent) = request.into_parts();
    same_origin(&parts.headers, &operations.config().fts.origins)?;
    let limits = &operations.config().limits;
    let query = Parameters::parse(parts.uri.query().unwrap_or_default())?;
    let token = operations.identity().presented_token(parts.headers.get(header::AUTHORIZATION)).await?;
    let incoming = IncomingRequest {
        http: http.clone(),
        path,
        query,
        origin: parts.extensions.get::<Origin>().cloned(),
        content_type: text(&parts.headers, header::CONTENT_TYPE).to_owned(),
        user_agent: text(&parts.headers, header::USER_AGENT).to_owned(),
        method: parts.method,
        requester: requester.clone(),
    };
    let safe = incoming.method.is_safe();
    let sent = IncomingBody::new(&parts.headers, sent);
    let answer = match sent.whole(limits.body_bytes) {
        // Nothing has to be waited for in between, so one turn of a thread does both.
        Some(body) => {
            let _admission = admit_read(http, safe).await;
            let answer = move |operations: &Operations| {
                let person = incoming.authenticate(operations, token);
                Ok(person.and_then(|person| incoming.answer(operations, person, body)))
            };
            http.operations.run(answer).await
        }
        // Nobody's body is waited for before it is known who sends it; who showed no credential sends little.
        None => {
            let authenticate = move |operations: &Operations| {
                let person = incoming.authenticate(operations, token);
                Ok(person.map(|person| (incoming, person)))
            };
            let (incoming, person) = operations.run(authenticate).await.map_err(refusal)??;
            let is_known = person.method != AuthMethod::Nobody;
            let bounds = http.bodies.bounds(is_known, limits.body_bytes);
            let body = body::collect(&parts.headers, sent, limits, &bounds).await.map_err(refusal)?;
            let _admission = admit_read(http, safe).await;
            operations.run(move |operations| Ok(incoming.answer(operations, person, body))).await
        }
    };
    match answer.map_err(refusal)?? {
        Answer::Ours(reply) => Ok(reply),
        Answer::OfStorage(question) => question.execute().await,
    }
}

/// A request without its body.
struct IncomingRequest {
    http: Arc<Http>,
    method: Method,
    path: Vec<String>,
    query: Parameters,
    content_type: String,
    user_agent: String,
    origin: Option<Origin>,
    requester: Arc<Mutex<Requester>>,
}

impl IncomingRequest {
    /// The person who asks, if they may ask this and have not asked too often.
    fn authenticate(&self, operations: &Operations, token: PresentedToken) -> Result<Person, Refusal> {
        let mut requester = self.requester.lock();
        let person = operations.identity().authenticate(token, self.origin.as_ref(), &mut requester);
        in_time(&self.http, &requester.rate_limit_key()).map_err(too_many)?;
        let person = person?;
        person.may_ask(&self.path, !self.method.is_safe())?;
        Ok(person)
    }

    fn answer(self, operations: &Operations, person: Person, body: Bytes) -> Result<Answer, Refusal> {
        let IncomingRequest { http, method, path, query, content_type, user_agent, requester, .. } = self;
        let _admission = (!method.is_safe()).then(|| http.admission.admit_write());
        let ask = FtsRequest { method, path, query, content_type, user_agent, person, requester, body };
        routes::check(&ask)?;
        match ask.path.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["dm", verb] => namespace::question(operations, &ask, verb).map(Answer::OfStorage),
            words => dispatch(operations, &ask, words).map(Answer::Ours),
        }
    }
}

/// Reads wait their turn, writes do not.
async fn admit_read(http: &Http, safe: bool) -> Option<AdmissionGuard<'_>> {
    match safe {
        true => Some(http.admission.admit_read(http.operations.config().limits.wait()).await),
        false => None,
    }
}

fn too_many(problem: Problem) -> Refusal {
    Refusal::new(problem.status, problem.detail)
}

/// An answer of this service, or of a storage, for which no thread waits.
enum Answer {
    Ours(Reply),
    OfStorage(namespace::Question),
}

/// A page of another site must not act in its visitor's name.
fn same_origin(headers: &HeaderMap, trusted: &[String]) -> Result<(), Refusal> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let place = origin.split_once("://").map_or("", |(_, place)| place);
    let host = text(headers, header::HOST);
    let known = |name: &str| !place.is_empty() && place.eq_ignore_ascii_case(name);
    if known(host) || trusted.iter().any(|name| known(name)) {
        return Ok(());
    }
    Err(Refusal::forbidden("Host and Origin do not match"))
}

fn dispatch(operations: &Operations, ask: &FtsRequest, words: &[&str]) -> Result<Reply, Refusal> {
    let (get, post, put, delete) = (
        ask.method == Method::GET || ask.method == Method::HEAD,
        ask.method == Method::POST,
        ask.method == Method::PUT,
        ask.method == Method::DELETE,
    );
    match words {
        [] if get => Reply::json(&fts::capabilities()),
        ["fts3", "ftsmon", rest @ ..] if get => monitor::answer(ask, rest),
        ["api-docs", "schema", "submit"] if get => Reply::json(&fts::submission::schema()),
        ["whoami"] if get => Reply::json(&ask.person.whoami()),
        ["whoami", "certificate"] if get => certificate(&ask.person),
        ["delegation", rest @ ..] => delegation::answer(operations, ask, rest),
        ["jobs"] if get => jobs::list(operations, ask),
        ["jobs"] if post || put => submit::submit(operations, ask),
        ["jobs", "all"] if delete => jobs::cancel_all(operations, ask, None),
        ["jobs", "vo", vo] if delete => jobs::cancel_all(operations, ask, Some(vo)),
        ["jobs", ids] if get => jobs::show(operations, ask, ids),
        ["jobs", ids] if delete => jobs::cancel(operations, ask, ids),
        ["jobs", ids] if post => jobs::modify(operations, ask, ids),
        ["jobs", id, "files"] if get => files::of_job(operations, ask, id),
        ["jobs", id, "files", chosen] if delete => files::cancel(operations, ask, id, chosen),
        ["jobs", id, "files", file, "retries"] if get => files::retries(operations, ask, id, file),
        ["jobs", id, "dm"] if get => files::deletions(operations, ask, id),
        ["jobs", id, field] if get => jobs::field(operations, ask, id, field),
        ["files"] if get => files::list(operations, ask),
        ["archive"] if get => jobs::list(operations, ask),
        ["archive", id] if get => files::archived(operations, ask, id, None),
        ["archive", id, field] if get => files::archived(operations, ask, id, Some(field)),
        ["ban", "se"] => bans::storages(operations, ask),
        ["ban", "dn"] => bans::people(operations, ask),
        ["status", "hosts"] if get => status::hosts(operations, ask),
        ["admin", "force-start"] if post => status::force_start(operations, ask),
        ["config", rest @ ..] => configuration::answer(operations, ask, rest),
        ["optimizer", rest @ ..] => network::answer(operations, ask, rest),
        ["autocomplete", what] if get => status::autocomplete(operations, ask, what),
        _ => Err(routes::refused(ask)),
    }
}

fn certificate(person: &Person) -> Result<Reply, Refusal> {
    let shown = person.certificate.as_ref().ok_or_else(|| Refusal::forbidden("Certificate required"))?;
    Ok(Reply::text("application/x-pem-file", shown.chain_pem.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn words_of(uri: &str, accept: &str) -> Option<Vec<String>> {
        path_of(&Request::builder().uri(uri).header(header::ACCEPT, accept).body(Body::empty()).unwrap())
    }

    #[test]
    fn doubled_and_trailing_slashes_mean_one() {
        let json = "application/json";
        for uri in ["/jobs", "//jobs", "/jobs/", "///jobs//"] {
            assert_eq!(words_of(uri, json), Some(vec!["jobs".to_owned()]), "{uri}");
        }
        assert_eq!(words_of("//config/links/a%2Fb+c", json).unwrap()[2], "a/b+c");
        assert_eq!(words_of("//", json), Some(Vec::new()));
        assert_eq!(words_of("/", "text/html,*/*"), None);
        assert_eq!(words_of("/api/v1/status", json), None);
        assert_eq!(words_of("/ui/", json), None);
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let check = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            same_origin(&headers, &["trusted.example:443".to_owned()])
        };
        assert!(check("fts:8446", None).is_ok() && check("fts:8446", Some("https://FTS:8446")).is_ok());
        assert!(check("fts:8446", Some("https://trusted.example:443")).is_ok());
        for origin in ["https://evil.example", "null", "", "https://fts:8446.evil.example"] {
            assert_eq!(check("fts:8446", Some(origin)).unwrap_err().message, "Host and Origin do not match");
        }
    }
}
