//! The typed HTTP client that commands and agents share, driven by the table of routes.
//!
//! It never retries by itself, since only the caller knows whether a repetition is safe. Replies, events and
//! times are bounded. Every failure is a [`Problem`] with a next step, whether the service answered with one
//! or could not be reached.
//!
//! ```no_run
//! # async fn example(client: longhaul_api::client::Client) -> Result<(), longhaul_api::Problem> {
//! use longhaul_api::native::{DatasetView, Page};
//! use longhaul_api::routes;
//! let one: DatasetView = client.request(&routes::DATASET_SHOW).parameter("higgs/run7").send().await?;
//! let page: Page<DatasetView> = client.request(&routes::DATASET_LIST).query("limit", 10).send().await?;
//! # Ok(()) }
//! ```

mod body;
mod events;
mod failure;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::uri::{Authority, Scheme, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use longhaul_model::{FaultCode, json};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Problem;
use crate::routes::{Body, IDEMPOTENCY_HEADER, Method, Route};

pub use events::Events;

use body::RequestBody;

/// Larger replies are refused. The most work that an agent can get at once has about 10 MB.
pub const REPLY_BYTES_MAX: usize = 32 << 20;
/// Time limit of a whole request, unless the caller says otherwise.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of an upload. Registering a manifest of a million lines takes under a minute on a good disk.
pub const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection without a request is closed after this time, well before a service closes a silent one
/// (`limits.head_ms`, 10 s by default): a request over one that the service closes in that moment is lost,
/// and the client cannot know whether it was heard.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

type Http = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, RequestBody>;

/// A future that is compiled here and not once more in every crate that awaits it (decision 0036).
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Talks to one service. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    http: Http,
    scheme: Scheme,
    authority: Authority,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// Makes a client without connecting.
    ///
    /// `base_url` is `https://host:port`, or `http://` for a service on this machine. `tls` says which
    /// authority to trust and which certificate to present (`security`). `token` is an API token; agents have
    /// none.
    ///
    /// # Errors
    /// The address or the token is malformed.
    pub fn new(
        base_url: &str,
        tls: impl Into<Arc<rustls::ClientConfig>>,
        token: Option<String>,
    ) -> Result<Client, Problem> {
        Client::with_idle_timeout(base_url, tls, token, IDLE_TIMEOUT)
    }

    /// As [`Client::new`], with another time after which a connection without a request is closed.
    ///
    /// # Errors
    /// The address or the token is malformed.
    pub fn with_idle_timeout(
        base_url: &str,
        tls: impl Into<Arc<rustls::ClientConfig>>,
        token: Option<String>,
        idle_timeout: Duration,
    ) -> Result<Client, Problem> {
        let (scheme, authority) = parse_base(base_url)?;
        let authorization = token.map(bearer).transpose()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_idle_timeout(idle_timeout)
            .pool_timer(TokioTimer::new())
            .build(HttpsConnector::from((tcp, tls.into())));
        Ok(Client { http, scheme, authority, authorization })
    }

    /// Address that requests go to.
    pub fn base_url(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    /// Starts building a request for a route.
    pub fn request(&self, route: &'static Route) -> Request {
        let timeout = if matches!(route.request, Body::Lines(_)) { UPLOAD_TIMEOUT } else { REQUEST_TIMEOUT };
        Request {
            client: self.clone(),
            route,
            parameters: Vec::new(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Ok(RequestBody::empty()),
            timeout,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.base_url())
    }
}

/// A request under construction. Nothing is sent before one of the `send` methods.
pub struct Request {
    client: Client,
    route: &'static Route,
    parameters: Vec<String>,
    query: Vec<(&'static str, String)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Result<RequestBody, Problem>,
    timeout: Duration,
}

impl Request {
    /// Adds the next parameter of the path, which is percent-encoded.
    pub fn parameter(mut self, value: impl ToString) -> Self {
        self.parameters.push(value.to_string());
        self
    }

    /// Adds a query parameter.
    ///
    /// # Panics
    /// If the route has no such parameter.
    pub fn query(mut self, name: &'static str, value: impl ToString) -> Self {
        let known = self.route.query.iter().any(|query| query.name == name);
        assert!(known, "{} has no query parameter {name}", self.route.operation);
        self.query.push((name, value.to_string()));
        self
    }

    /// As [`Request::query`], if there is a value.
    pub fn maybe(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Sets a JSON body.
    pub fn json(mut self, value: &impl Serialize) -> Self {
        self.body = serde_json::to_vec(value).map(RequestBody::from).map_err(|error| {
            Problem::new(FaultCode::Internal, "the request cannot be written", error.to_string())
        });
        self
    }

    /// Sets a body of any length, such as a file or standard input. A thread of its own reads it as fast as
    /// the service takes it.
    pub fn upload(mut self, source: impl std::io::Read + Send + 'static) -> Self {
        self.body = Ok(RequestBody::reading(source));
        self
    }

    /// Sets the idempotency key: for a repetition with the same key the service returns its first answer and
    /// does nothing.
    pub fn idempotency_key(mut self, key: &str) -> Self {
        match HeaderValue::from_str(key) {
            Ok(value) => self.headers.push((HeaderName::from_static(IDEMPOTENCY_HEADER), value)),
            Err(_) => {
                let detail = "an idempotency key consists of printable ASCII characters";
                self.body =
                    Err(Problem::new(FaultCode::BadRequest, "the idempotency key is malformed", detail));
            }
        }
        self
    }

    /// Limits the time from connecting to the last byte of the reply.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends the request and reads a JSON reply; `()` fits an empty one.
    ///
    /// # Errors
    /// The service's problem, or one that says why there is no reply or why it is not understood.
    pub async fn send<Reply: DeserializeOwned>(self) -> Result<Reply, Problem> {
        let whole = self.send_bytes().await?;
        let whole = if whole.is_empty() { b"null" } else { &whole[..] };
        json::from_slice(whole).map_err(|error| {
            Problem::new(FaultCode::ProtocolError, "the reply is not understood", error.to_string())
                .with_remedy(
                    "the service may be newer or older than this program: compare `longhaul \
                    --version` with `longhaul status`",
                )
        })
    }

    /// Sends the request and reads the reply as it is.
    ///
    /// # Errors
    /// The service's problem, or one that says why there is no reply.
    pub fn send_bytes(self) -> BoxFuture<Result<Bytes, Problem>> {
        Box::pin(self.exchange())
    }

    async fn exchange(self) -> Result<Bytes, Problem> {
        let timeout = self.timeout;
        let base = self.client.base_url();
        let whole = async { read_whole(self.start().await?).await };
        tokio::time::timeout(timeout, whole).await.unwrap_or_else(|_| Err(failure::timed_out(&base, timeout)))
    }

    /// Sends the request and opens a stream of events. The time limit covers only its beginning.
    ///
    /// # Errors
    /// The service's problem, or one that says why there is no reply.
    pub fn send_events(self) -> BoxFuture<Result<Events, Problem>> {
        Box::pin(self.open_events())
    }

    async fn open_events(self) -> Result<Events, Problem> {
        let timeout = self.timeout;
        let base = self.client.base_url();
        match tokio::time::timeout(timeout, self.start()).await {
            Ok(reply) => Ok(Events::new(reply?.into_body())),
            Err(_) => Err(failure::timed_out(&base, timeout)),
        }
    }

    /// Sends the request; a reply without success becomes its problem.
    async fn start(self) -> Result<http::Response<Incoming>, Problem> {
        let client = self.client.clone();
        let reply = client.http.request(self.build()?).await;
        let reply =
            reply.map_err(|error| failure::request_problem(&client.base_url(), &error).with_source(error))?;
        if reply.status().is_success() {
            return Ok(reply);
        }
        let status = reply.status();
        let whole = read_whole(reply).await?;
        Err(failure::reply_problem(status.as_u16(), &whole))
    }

    fn build(self) -> Result<http::Request<RequestBody>, Problem> {
        let malformed = |error: http::Error| {
            Problem::new(FaultCode::BadRequest, "the request is malformed", error.to_string())
        };
        let parameters: Vec<&str> = self.parameters.iter().map(String::as_str).collect();
        let query: Vec<(&str, &str)> =
            self.query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let uri = Uri::builder()
            .scheme(self.client.scheme.clone())
            .authority(self.client.authority.clone())
            .path_and_query(self.route.target(&parameters, &query))
            .build()
            .map_err(malformed)?;
        let mut request = http::Request::builder()
            .method(method(self.route.method))
            .uri(uri)
            .header(USER_AGENT, concat!("longhaul/", env!("CARGO_PKG_VERSION")));
        if let Some(kind) = self.route.request.media_type() {
            request = request.header(CONTENT_TYPE, kind);
        }
        if let Some(kind) = self.route.reply.media_type() {
            request = request.header(ACCEPT, kind);
        }
        if let Some(authorization) = &self.client.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        request.body(self.body?).map_err(malformed)
    }
}

async fn read_whole(reply: http::Response<Incoming>) -> Result<Bytes, Problem> {
    let whole = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
    whole.map(|whole| whole.to_bytes()).map_err(|error| failure::body_problem(error.as_ref()))
}

fn method(method: Method) -> http::Method {
    match method {
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Patch => http::Method::PATCH,
        Method::Delete => http::Method::DELETE,
    }
}

fn parse_base(base_url: &str) -> Result<(Scheme, Authority), Problem> {
    let malformed = |why: &str| {
        let shown = longhaul_model::units::printable(&base_url.chars().take(200).collect::<String>());
        Problem::new(
            FaultCode::BadRequest,
            "the service's address is malformed",
            format!("\"{shown}\" {why}"),
        )
        .with_remedy("give it as https://host:port")
    };
    let parts = base_url.parse::<Uri>().map_err(|error| malformed(&error.to_string()))?.into_parts();
    let path = parts.path_and_query.as_ref().map_or("/", |path| path.as_str());
    match (parts.scheme, parts.authority) {
        (Some(scheme), Some(authority)) if scheme == Scheme::HTTPS || scheme == Scheme::HTTP => {
            if authority.as_str().contains('@') {
                return Err(malformed("holds a user name"));
            }
            if path != "/" {
                return Err(malformed("has a path"));
            }
            Ok((scheme, authority))
        }
        _ => Err(malformed("does not begin with https://host or http://host")),
    }
}

fn bearer(token: String) -> Result<HeaderValue, Problem> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(|_| {
        Problem::new(
            FaultCode::NotAuthenticated,
            "the API token is malformed",
            "it holds unprintable characters",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_or_refused() {
        for good in ["https://a.example:7700", "https://[::1]:7700/", "http://127.0.0.1:8080"] {
            assert_eq!(
                parse_base(good).map(|(scheme, authority)| format!("{scheme}://{authority}")).unwrap(),
                good.trim_end_matches('/')
            );
        }
        for bad in [
            "",
            "a.example",
            "a.example:7700",
            "ftp://a",
            "https://",
            "https://a/b",
            "https://me@a",
            "https://a b",
        ] {
            let problem = parse_base(bad).unwrap_err();
            assert_eq!(problem.exit_code(), 2, "{bad}");
            assert!(problem.remedy.contains("https://"));
        }
    }

    #[test]
    fn tokens_stay_out_of_debug_output() {
        let value = bearer("lht_secret\n".into()).unwrap();
        assert!(!format!("{value:?}").contains("secret"));
        assert!(bearer("a\nb".into()).is_err());
    }
}
