//! Guards of HTTP requests: authentication, authorisation, and protection of browsers (CSRF, origins).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use longhaul_api::Problem;
use longhaul_api::routes::{Access, CSRF_HEADER, Route};
use longhaul_identity::{Caller, Origin, Requester, Visitor, not_authenticated};
use longhaul_model::{Fault, FaultCode, IncidentId};
use longhaul_security::{ClientIdentity, LOGIN_TOKEN_PREFIX, PeerIdentity, check_origin};

use super::answer::{finish, problem_response};
use super::{Http, body, cookie, for_agents};
use crate::operations::AgentPeer;

/// The identity of an admitted request.
pub struct Admitted {
    pub caller: Option<Caller>,
    pub agent: Option<AgentPeer>,
    pub cookie: Option<String>,
    pub secure: bool,
}

/// The id of a request, given by [`all`].
pub fn incident(http: &Http, request: &Request) -> IncidentId {
    request
        .extensions()
        .get::<IncidentId>()
        .copied()
        .unwrap_or_else(|| http.operations.shared.kernel.new_id())
}

/// How long browsers use TLS only, once they did.
const STRICT_TRANSPORT: &str = "max-age=31536000";

/// The outermost layer: gives each request an id, and checks its host, origin and cookies.
pub async fn all(http: Arc<Http>, mut request: Request, next: Next) -> Response {
    let incident: IncidentId = http.operations.shared.kernel.new_id();
    request.extensions_mut().insert(incident);
    let secure = is_secure(request.extensions());
    let strict = secure && !is_localhost(text(request.headers(), header::HOST));
    let checked = check_single(request.headers())
        .and_then(|()| check_plain(&http, &request))
        .and_then(|()| cookie::normalise(request.headers_mut(), secure));
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(fault) => problem_response(fault.into(), incident),
    };
    finish(&mut response, incident);
    if strict {
        let value = http::HeaderValue::from_static(STRICT_TRANSPORT);
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
    response
}

/// Whoever sits between might believe another one of two than we do.
fn check_single(headers: &HeaderMap) -> Result<(), Fault> {
    for name in [header::HOST, header::ORIGIN, header::AUTHORIZATION, header::CONTENT_TYPE] {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(Fault::new(FaultCode::BadRequest, format!("the header {name} is sent twice")));
        }
    }
    Ok(())
}

/// Browsers would use TLS for all ports of that name, also for the plain one on the same machine.
fn is_localhost(host: Option<&str>) -> bool {
    let name = host.unwrap_or_default().split(':').next().unwrap_or_default();
    name.eq_ignore_ascii_case("localhost")
}

/// A page of another web site must not steer the service on the visitor's own machine.
fn check_plain(http: &Http, request: &Request) -> Result<(), Fault> {
    if is_secure(request.extensions()) {
        return Ok(());
    }
    check_origin(
        text(request.headers(), header::HOST),
        text(request.headers(), header::ORIGIN),
        &http.plain_hosts,
    )
}

fn is_secure(extensions: &http::Extensions) -> bool {
    extensions.get::<Origin>().is_some_and(|origin| origin.secure)
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Decides about one request of the table. `requester` gets to know who asks, whatever comes of it.
pub async fn admit(
    http: &Arc<Http>,
    route: &'static Route,
    parts: &Parts,
    requester: &mut Requester,
) -> Result<Admitted, Problem> {
    let origin = parts.extensions.get::<Origin>();
    let secure = origin.is_some_and(|origin| origin.secure);
    let nobody = Admitted { caller: None, agent: None, cookie: None, secure };
    if route.operation == "agent_join" && !secure {
        return Err(not_authenticated("agents connect with TLS"));
    }
    if for_agents(route) {
        let agent = agent(origin)?;
        (requester.who, requester.credential) =
            (format!("agent {} of {}", agent.agent, agent.site), "certificate");
        http.operations.shared.control.agents.check_admitted(agent.agent)?;
        return Ok(Admitted { agent: Some(agent), ..nobody });
    }
    if route.operation == "session_login" {
        check_login_request(&parts.headers, secure, &http.plain_hosts)?;
    }
    let is_open = match route.access {
        Access::Public => true,
        Access::LocalOrViewer => is_local(origin, &parts.headers),
        _ => false,
    };
    if is_open {
        return Ok(nobody);
    }
    let changes = route.method != longhaul_api::routes::Method::Get;
    if parts.headers.contains_key(header::AUTHORIZATION) {
        // Until it is known whose.
        requester.credential = "a token that does not count";
    }
    let (caller, cookie) = caller(http, &parts.headers).await?;
    (requester.who, requester.credential) = (caller.principal.name.clone(), caller.credential());
    requester.right = caller.principal.right();
    in_time(http, &requester.rate_limit_key())?;
    if cookie.is_some() && changes {
        check_same_site(&parts.headers, secure, &http.plain_hosts)?;
        let shown = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
        caller.check_csrf(shown)?;
    }
    caller.may_open(route)?;
    if route.access == Access::Submitter {
        let caller = caller.clone();
        http.operations.run(move |operations| operations.may_submit(&caller)).await?;
    }
    // Measurements come by the second.
    if changes && route.access != Access::Observer {
        let (operation, path) = (route.operation, parts.uri.path());
        tracing::info!(operation, by = %caller.principal.name, path = %path, "change");
    }
    Ok(Admitted { caller: Some(caller), cookie, ..nobody })
}

/// Whether somebody on this host asks. A proxy on this host that asks for others says so.
fn is_local(origin: Option<&Origin>, headers: &HeaderMap) -> bool {
    let is_forwarded = headers.contains_key(header::FORWARDED) || headers.contains_key("x-forwarded-for");
    origin.is_some_and(|origin| origin.address.ip().to_canonical().is_loopback()) && !is_forwarded
}

/// Whether a user may make one more request now.
pub(crate) fn in_time(http: &Http, who: &str) -> Result<(), Problem> {
    let Err(wait) = http.rate_limiter.take(who, http.operations.now()) else { return Ok(()) };
    let detail = format!(
        "{who} made more than {} requests a second (service.limits.user_requests_per_s): the next is taken \
            in {} ms",
        http.rate_limiter.per_s(),
        wait.as_millis() + 1
    );
    let seconds = whole_seconds(wait);
    let mut problem = Problem::from(Fault::new(FaultCode::Busy, detail)).too_many(seconds);
    problem.title = "too many requests of one user".to_owned();
    Err(problem.with_remedy("wait that long, ask for more in one request, or listen to events and messages"))
}

/// Rounded up: nobody who waits that long comes too soon.
fn whole_seconds(wait: Duration) -> u32 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

fn agent(origin: Option<&Origin>) -> Result<AgentPeer, Problem> {
    let identity = match origin {
        Some(origin) if origin.secure => origin.identity.clone()?,
        _ => None,
    };
    match identity {
        Some(ClientIdentity::Agent(PeerIdentity::Agent { agent, site, .. })) => Ok(AgentPeer { agent, site }),
        Some(ClientIdentity::Grid(_)) => {
            Err(Fault::new(FaultCode::NotAllowed, "this is a user's certificate, not an agent's").into())
        }
        Some(ClientIdentity::Agent(PeerIdentity::Service { .. })) => {
            Err(Fault::new(FaultCode::NotAllowed, "this is a service's certificate, not an agent's").into())
        }
        None => Err(not_authenticated(
            "no agent's certificate was shown: agents connect with the one they joined with",
        )),
    }
}

/// By token or by cookie; the token wins. The second value is the cookie if that is what counted.
async fn caller(http: &Arc<Http>, headers: &HeaderMap) -> Result<(Caller, Option<String>), Problem> {
    if let Some(value) = text(headers, header::AUTHORIZATION) {
        let token = value
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim().to_owned());
        let token =
            token.ok_or_else(|| not_authenticated("the Authorization header must be: Bearer TOKEN"))?;
        let caller =
            http.operations.run(move |operations| operations.identity().caller_of_token(&token)).await?;
        return Ok((caller, None));
    }
    let value = cookie::get(headers).ok_or_else(|| not_authenticated("no credential was shown"))?;
    Ok((http.operations.identity().caller_of_cookie(&value)?, Some(value)))
}

/// A browser says where a request comes from: from one of our own pages, or nowhere.
fn check_same_site(headers: &HeaderMap, secure: bool, plain_hosts: &[String]) -> Result<(), Problem> {
    let (host, origin) = (text(headers, header::HOST), text(headers, header::ORIGIN));
    let own = match (secure, host) {
        (false, _) => plain_hosts.to_vec(),
        (true, Some(host)) => vec![host.to_owned()],
        (true, None) => Vec::new(),
    };
    Ok(check_origin(host, origin, &own)?)
}

/// Another site's page must not log a browser in as somebody else: it can send no JSON here unless we allow
/// it, and its origin is not ours.
fn check_login_request(headers: &HeaderMap, secure: bool, plain_hosts: &[String]) -> Result<(), Problem> {
    let kind = text(headers, header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let detail = "a login needs the header Content-Type: application/json";
        return Err(Fault::new(FaultCode::BadRequest, detail).into());
    }
    check_same_site(headers, secure, plain_hosts)
}

/// Before the pages: forms are small and come from ourselves, and no API token is in an address.
pub async fn pages(http: Arc<Http>, mut request: Request, next: Next) -> Response {
    let incident = incident(&http, &request);
    let secure = is_secure(request.extensions());
    if request.method() == Method::GET
        && let Err(problem) = check_address(request.uri())
    {
        return problem_response(problem, incident);
    }
    // Also of whoever is not logged in: another site's form must not log a browser in as somebody else.
    if !request.method().is_safe()
        && let Err(problem) = check_same_site(request.headers(), secure, &http.plain_hosts)
    {
        let requester = Requester::anonymous(request.extensions().get::<Origin>());
        let now = http.operations.now();
        let what = ("page", request.uri().path());
        http.operations.shared.identity.audit().record(&requester, what, Err(&problem.detail), now);
        return problem_response(problem, incident);
    }
    if let Some(visitor) = visitor(&request) {
        request.extensions_mut().insert(visitor);
    }
    // Whoever is not logged in sees the page that says so: that is for the pages to decide.
    let mut requester = Requester::anonymous(request.extensions().get::<Origin>());
    if let Ok((caller, _)) = caller(&http, request.headers()).await {
        (requester.who, requester.credential) = (caller.principal.name.clone(), caller.credential());
        requester.right = caller.principal.right();
        request.extensions_mut().insert(caller);
    }
    if let Err(problem) = in_time(&http, &requester.rate_limit_key()) {
        return problem_response(problem, incident);
    }
    let changes = !request.method().is_safe();
    let path = request.uri().path().to_owned();
    let response = page(&http, request, next, incident).await;
    note_page(&http, &requester, &path, changes, &response);
    response
}

async fn page(http: &Http, request: Request, next: Next, incident: IncidentId) -> Response {
    let (parts, body) = request.into_parts();
    let limits = &http.operations.config().limits;
    let is_known = parts.extensions.get::<Caller>().is_some();
    let bounds = http.bodies.bounds(is_known, limits.body_bytes);
    match body::collect(&parts.headers, body, limits, &bounds).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(problem) => problem_response(problem, incident),
    }
}

/// Whoever is not logged in is led to the door, which is no refusal; logins have a log of their own.
fn note_page(http: &Http, requester: &Requester, path: &str, changes: bool, response: &Response) {
    let status = response.status();
    let is_refusal = status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED;
    if path.starts_with("/ui/login") || requester.credential == "none" && !is_refusal {
        return;
    }
    let why = response.extensions().get::<Problem>().map_or("refused", |problem| problem.detail.as_str());
    let outcome = if is_refusal { Err(why) } else { Ok(()) };
    if is_refusal || changes {
        http.operations.shared.identity.audit().record(
            requester,
            ("page", path),
            outcome,
            http.operations.now(),
        );
    }
}

fn visitor(request: &Request) -> Option<Visitor> {
    request.extensions().get::<Origin>().map(Visitor::new)
}

/// An address may carry a one-time login token, and no other secret: it stays in histories and logs.
fn check_address(uri: &http::Uri) -> Result<(), Problem> {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    let Some(token) = pairs.find_map(|pair| pair.strip_prefix("token=")) else { return Ok(()) };
    if token.starts_with(LOGIN_TOKEN_PREFIX) {
        return Ok(());
    }
    let detail = "only a one-time login token may be in an address: others can read addresses";
    let remedy = "log in at /ui/login; revoke the token if it is an API token (longhaul token revoke NAME)";
    Err(Problem::from(Fault::new(FaultCode::BadRequest, detail)).with_remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_local() {
        let local = |address: &str, forwarded: Option<&'static str>| {
            let address = address.parse().unwrap();
            let origin = Origin { address, secure: true, identity: Ok(None) };
            let mut headers = HeaderMap::new();
            if let Some(name) = forwarded {
                headers.insert(name, http::HeaderValue::from_static("for=192.0.2.1"));
            }
            is_local(Some(&origin), &headers)
        };
        assert!(local("127.0.0.1:1", None) && local("[::1]:1", None) && local("[::ffff:127.0.0.9]:1", None));
        for (address, forwarded) in [
            ("192.0.2.1:1", None),
            ("[2001:db8::1]:1", None),
            ("10.0.0.1:1", None),
            ("[::ffff:192.0.2.1]:1", None),
            ("127.0.0.1:1", Some("forwarded")),
            ("[::1]:1", Some("x-forwarded-for")),
        ] {
            assert!(!local(address, forwarded), "{address} {forwarded:?}");
        }
        assert!(!is_local(None, &HeaderMap::new()), "it is not known who asks");
    }

    #[test]
    fn no_api_token_is_taken_from_an_address() {
        let check = |uri: &str| check_address(&uri.parse().unwrap()).map_err(|problem| problem.status);
        for good in ["/ui/", "/ui/?token=lhl_1", "/ui/login?a=b&token=lhl_1", "/ui/?page=2"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["/ui/?token=lht_1", "/ui/login?a=b&token=lht_1", "/ui/?token=%6cht_1", "/ui/?token="] {
            assert_eq!(check(bad), Err(400), "{bad}");
        }
    }

    #[test]
    fn a_header_that_is_sent_twice_is_refused() {
        for name in ["host", "origin", "authorization", "content-type"] {
            let name = http::HeaderName::from_static(name);
            let mut headers = HeaderMap::new();
            headers.append(&name, "a".parse().unwrap());
            assert!(check_single(&headers).is_ok());
            headers.append(&name, "a".parse().unwrap());
            assert_eq!(check_single(&headers).unwrap_err().code, FaultCode::BadRequest, "{name}");
        }
    }

    #[test]
    fn another_sites_page_logs_nobody_in() {
        let hosts = ["127.0.0.1:8080".to_owned()];
        let check = |kind: Option<&str>, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "127.0.0.1:8080".parse().unwrap());
            for (name, value) in [(header::CONTENT_TYPE, kind), (header::ORIGIN, origin)] {
                if let Some(value) = value {
                    headers.insert(name, value.parse().unwrap());
                }
            }
            check_login_request(&headers, false, &hosts).map_err(|problem| problem.status)
        };
        let (json, own) = (Some("application/json; charset=utf-8"), Some("http://127.0.0.1:8080"));
        assert_eq!((check(json, None), check(json, own)), (Ok(()), Ok(())));
        for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("text/json")] {
            assert_eq!(check(kind, own), Err(400), "{kind:?}");
        }
        assert_eq!(check(json, Some("http://evil.example")), Err(403));
        assert_eq!(check(json, Some("null")), Err(403));
    }

    #[test]
    fn a_name_that_the_plain_port_has_too_is_not_bound_to_tls() {
        assert!(is_localhost(Some("localhost:8443")) && is_localhost(Some("LOCALHOST")));
        assert!(!is_localhost(Some("longhaul.example.org:8443")) && !is_localhost(None));
    }
}
