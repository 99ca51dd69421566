//! Guards of HTTP requests: authentication, authorisation, and protection of browsers (CSRF, origins).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use longhaul_api::Problem;
use longhaul_api::routes::{Access, CSRF_HEADER, Route};
use longhaul_identity::{Caller, Origin, Requester, Visitor, not_authenticated};
use longhaul_model::{Fault, FaultCode, IncidentId};
use longhaul_security::{ClientIdentity, PeerIdentity, check_origin};

use super::answer::{finish, problem_response};
use super::{Http, body, cookie, for_agents};
use crate::operations::{AgentPeer, Operations};

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

/// The outermost layer: gives each request an id, and checks host and origin of plain HTTP.
pub async fn all(http: Arc<Http>, mut request: Request, next: Next) -> Response {
    let incident: IncidentId = http.operations.shared.kernel.new_id();
    request.extensions_mut().insert(incident);
    let mut response = match check_plain(&http, &request) {
        Ok(()) => next.run(request).await,
        Err(fault) => problem_response(fault.into(), incident),
    };
    finish(&mut response, incident);
    response
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

/// Before the pages: a login token in the address becomes a session; forms are small and come from ourselves.
pub async fn pages(http: Arc<Http>, mut request: Request, next: Next) -> Response {
    let incident = incident(&http, &request);
    let secure = is_secure(request.extensions());
    if request.method() == Method::GET
        && let Some((token, address)) = login_token(request.uri())
    {
        let visitor = visitor(&request);
        let login =
            move |operations: &Operations| operations.identity().session_login(&token, visitor.as_ref());
        return match http.operations.run(login).await {
            Ok(login) => redirect(&address, &cookie::set(&login.cookie, secure)),
            Err(problem) => problem_response(problem, incident),
        };
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
    let collected = match body::check_length(&parts.headers, limits.body_bytes) {
        Ok(()) => body::collect(body, limits).await,
        Err(problem) => Err(problem),
    };
    match collected {
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

/// The token of `?token=…`, and the address without it: it must not stay in the history.
fn login_token(uri: &http::Uri) -> Option<(String, String)> {
    let pairs: Vec<&str> = uri.query()?.split('&').collect();
    let token = pairs.iter().find_map(|pair| pair.strip_prefix("token="))?;
    let rest: Vec<&str> = pairs.iter().filter(|pair| !pair.starts_with("token=")).copied().collect();
    // A path that begins with two slashes would lead to another host.
    let path = format!("/{}", uri.path().trim_start_matches('/'));
    let address = if rest.is_empty() { path } else { format!("{path}?{}", rest.join("&")) };
    Some((token.to_owned(), address))
}

fn redirect(address: &str, cookie: &str) -> Response {
    let headers =
        [(header::LOCATION, address), (header::SET_COOKIE, cookie), (header::CACHE_CONTROL, "no-store")];
    (StatusCode::SEE_OTHER, headers).into_response()
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
    fn a_login_token_leaves_the_address() {
        let of = |uri: &str| login_token(&uri.parse().unwrap());
        assert_eq!(of("/ui/?token=lhl_1"), Some(("lhl_1".into(), "/ui/".into())));
        assert_eq!(of("/ui/?a=b&token=x&c=d"), Some(("x".into(), "/ui/?a=b&c=d".into())));
        assert_eq!(of("//evil.example/?token=x").map(|found| found.1), Some("/evil.example/".into()));
        assert_eq!(of("/ui/?page=2"), None);
    }
}
