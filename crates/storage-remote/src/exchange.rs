//! One HTTP request and its answer over a pooled connection: redirects by rule, limits on time and size,
//! token refresh after a 401, and connections returned to the pool when an answer was read to its end.
//!
//! Start with [`Exchange::send`].

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderValue, LOCATION, USER_AGENT,
};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use longhaul_model::address::Family;
use longhaul_model::{ErrorChain, Timestamp};
use longhaul_outbound::{
    CertificateId, CredentialScope, Http1Connection, IdlePool, Origin, REDIRECTS_MAX, keeps_method,
};
use tokio::time::timeout;

use crate::dial::{Dialler, certificate_of};
use crate::failure::{Failure, Kind, sanitized};
use crate::header_case;
use crate::order::Credential;
use crate::s3::{self, Signed};
use crate::upload::Upload;
use crate::url::RemoteUrl;

/// The largest piece of a body.
const BUFFER_BYTES_MAX: usize = 512 << 10;
/// Bytes of an error's body that are read.
const ERROR_BYTES_MAX: usize = 4 << 10;
const S3_ERROR_BYTES_MAX: usize = 64 << 10;
/// Bodies to S3 up to this size are hashed for their signature, over TLS.
const SIGNED_BYTES_MAX: usize = 64 << 10;

/// The credential that the active party of a copy shows to the passive one.
pub(crate) const TRANSFER_AUTHORIZATION: &str = "transferheaderauthorization";

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) enum Payload {
    None,
    Bytes(Bytes),
    /// Sent once, to the server that answers 100.
    Upload(Upload),
}

pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) url: &'a RemoteUrl,
    pub(crate) credential: &'a Credential,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Payload,
    /// Timeout for the head of the answer, from the end of the request.
    pub(crate) within: Duration,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        method: Method,
        url: &'a RemoteUrl,
        credential: &'a Credential,
        within: Duration,
    ) -> Call<'a> {
        Call { method, url, credential, headers: HeaderMap::new(), payload: Payload::None, within }
    }

    pub(crate) fn header(self, name: &'static str, value: &str) -> Result<Call<'a>, Failure> {
        self.header_bytes(name, value.as_bytes())
    }

    pub(crate) fn header_bytes(mut self, name: &'static str, value: &[u8]) -> Result<Call<'a>, Failure> {
        let value = HeaderValue::from_bytes(value)
            .map_err(|_| Failure::new(Kind::Order, format!("{name}: characters that no header can hold")))?;
        self.headers.insert(name, value);
        Ok(self)
    }
}

type Connection = Http1Connection<Body>;

/// Where a connection leads, and with which certificate it was made.
type ConnectionKey = (Origin, CertificateId);

/// Sends requests over pooled connections.
pub(crate) struct Exchange {
    dialler: Dialler,
    redirect_hosts: Vec<String>,
    idle: Arc<IdlePool<ConnectionKey, Body>>,
}

/// The head of an answer, and its body as it comes.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The URL that answered, after redirects.
    pub(crate) url: RemoteUrl,
    body: Incoming,
    connection: Option<Connection>,
    reusable: bool,
    key: ConnectionKey,
    idle: Arc<IdlePool<ConnectionKey, Body>>,
    /// Appended to the text of a refusal.
    more: Option<String>,
}

impl Exchange {
    pub(crate) fn new(dialler: Dialler, redirect_hosts: Vec<String>) -> Exchange {
        Exchange { dialler, redirect_hosts, idle: Arc::default() }
    }

    /// One that goes over this family of addresses only; connections are not shared with it.
    pub(crate) fn over(&self, family: Family) -> Exchange {
        Exchange::new(self.dialler.over(family), self.redirect_hosts.clone())
    }

    /// Whether another server may be sent to this host.
    pub(crate) async fn check_host(&self, url: &RemoteUrl) -> Result<(), Failure> {
        self.dialler.check_host(url).await
    }

    /// Follows redirects, and refreshes a token that is refused, if it can be. Any status comes back as an
    /// answer.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Answer, Failure> {
        let Credential::Refreshing(refreshing) = call.credential else {
            return self.follow(&call, call.credential).await;
        };
        let token = refreshing.current().await;
        let mut answer = self.follow(&call, &Credential::Bearer(token.clone())).await?;
        // An upload cannot be sent again once it has begun.
        let repeats = match &call.payload {
            Payload::None | Payload::Bytes(_) => true,
            Payload::Upload(upload) => !upload.is_begun(),
        };
        if answer.status != StatusCode::UNAUTHORIZED || !repeats {
            return Ok(answer);
        }
        match refreshing.refresh_refused(&token).await {
            Ok(Some(fresh)) => {
                answer.finish().await;
                tracing::debug!(url = %call.url, "a token was refused, and another is shown");
                self.follow(&call, &Credential::Bearer(fresh)).await
            }
            Ok(None) => Ok(answer),
            Err(why) => {
                answer.more = Some(format!("and the token could not be renewed: {why}"));
                Ok(answer)
            }
        }
    }

    async fn follow(&self, call: &Call<'_>, shown: &Credential) -> Result<Answer, Failure> {
        let mut url = call.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let trusted = self.may_see(call.url, &url);
            let credential = if trusted { shown } else { &Credential::None };
            let answer = self.send_once(call, &url, credential, trusted).await?;
            // S3 signs for one host: where it sends us we could show nothing, and its answer names the right
            // one.
            if !follows(answer.status, &call.method) || url.is_s3() {
                return Ok(answer);
            }
            let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let Some(location) = location else { return Ok(answer) };
            url = url.redirected(location).map_err(|fault| Failure::of_fault(&fault))?;
            answer.finish().await;
        }
        let text = format!("{}: redirected more than {REDIRECTS_MAX} times", call.url);
        Err(Failure::new(Kind::Refused, text))
    }

    /// Credentials go to the origin they are for, and to hosts that the configuration names.
    fn may_see(&self, meant: &RemoteUrl, url: &RemoteUrl) -> bool {
        CredentialScope { origin: &meant.origin(), hosts: &self.redirect_hosts }.contains(&url.origin())
    }

    async fn send_once(
        &self,
        call: &Call<'_>,
        url: &RemoteUrl,
        credential: &Credential,
        trusted: bool,
    ) -> Result<Answer, Failure> {
        let key = (url.origin(), certificate_of(credential));
        let request = || {
            let mut request = request(call, url, credential)?;
            if !trusted {
                // The credential for the other end of a copy is as secret as the one for this end.
                request.headers_mut().remove(TRANSFER_AUTHORIZATION);
            }
            Ok::<_, Failure>(spelled(request))
        };
        let mut unsent = request()?.await;
        loop {
            let (mut connection, used) = match self.idle.take(&key).await {
                Some(connection) => (connection, true),
                None => (self.connect(url, credential).await?, false),
            };
            let sending = connection.sender.try_send_request(unsent);
            let sent = match &call.payload {
                Payload::Upload(upload) => upload.watch(sending, call.within).await,
                _ => timeout(call.within, sending).await.map_err(|_| call.within),
            };
            match sent {
                Ok(Ok(response)) => {
                    let (head, body) = response.into_parts();
                    // An answer before the end of what we send: the rest of it stands in the way of a next
                    // request.
                    let whole = match &call.payload {
                        Payload::Upload(upload) => upload.is_sent(),
                        _ => true,
                    };
                    return Ok(Answer {
                        reusable: whole,
                        status: head.status,
                        headers: head.headers,
                        url: url.clone(),
                        body,
                        connection: Some(connection),
                        key,
                        idle: self.idle.clone(),
                        more: None,
                    });
                }
                // Nothing of it was sent: the server had closed the connection meanwhile.
                Ok(Err(mut error)) if used && error.message().is_some() => match error.take_message() {
                    Some(back) => unsent = back,
                    None => return Err(lost(call, url, &"the connection was closed")),
                },
                // A server may close an idle connection in the moment in which we ask.
                Ok(Err(_)) if used && repeats(call) => {
                    unsent = request()?.await;
                }
                Ok(Err(error)) => return Err(lost(call, url, &error.into_error())),
                Err(waited) => {
                    let text = format!(
                        "{} {url}: Operation timed out: no answer for {} s",
                        call.method,
                        waited.as_secs()
                    );
                    return Err(Failure::new(Kind::TimedOut, text));
                }
            }
        }
    }

    async fn connect(&self, url: &RemoteUrl, credential: &Credential) -> Result<Connection, Failure> {
        let stream = self.dialler.dial(url, credential).await?;
        Connection::open(stream, BUFFER_BYTES_MAX)
            .await
            .map_err(|error| Failure::new(Kind::Lost, format!("{}: {error}", url.authority())))
    }
}

impl Answer {
    /// Fails unless it is a success.
    pub(crate) async fn ok(self, what: &str) -> Result<Answer, Failure> {
        if self.status.is_success() { Ok(self) } else { Err(self.into_failure(what).await) }
    }

    /// The failure of a refusal, with a little of its text.
    pub(crate) async fn into_failure(mut self, what: &str) -> Failure {
        let (status, url, more) = (self.status, self.url.clone(), self.more.take());
        if url.is_s3() {
            return self.into_s3_failure(what).await;
        }
        let plain = self
            .headers
            .get(http::header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_none_or(|kind| kind.starts_with("text/plain") || kind.starts_with("application/json"));
        let mut text = format!("{what} {url}: {status}");
        if let Ok(body) = self.bytes(ERROR_BYTES_MAX, Duration::from_secs(5)).await {
            let body = sanitized(&String::from_utf8_lossy(&body));
            if plain && !body.is_empty() {
                text.push_str(": ");
                text.push_str(&body);
            }
        }
        if let Some(more) = more {
            text.push_str(", ");
            text.push_str(&more);
        }
        Failure::new(Kind::Status(status), text)
    }

    /// The same of S3, which tells its trouble in XML, and in answer to `HEAD` not at all.
    async fn into_s3_failure(self, what: &str) -> Failure {
        let (status, url) = (self.status, self.url.clone());
        let begin = format!("{what} {url}: {status}");
        let skew = if status == StatusCode::FORBIDDEN { s3::skew(&self.headers, now()) } else { None };
        let body = self.bytes(S3_ERROR_BYTES_MAX, Duration::from_secs(5)).await.unwrap_or_default();
        if let Some(clocks) = skew {
            return Failure::new(Kind::Skewed, format!("{begin}: {clocks}"));
        }
        match s3::refusal(status, &body) {
            Some((kind, text)) => Failure::new(kind, format!("{begin}: {text}")),
            None if status == StatusCode::FORBIDDEN => {
                let text =
                    format!("{begin}: the keys are wrong, or may not see this object or list its bucket");
                Failure::new(Kind::Status(status), text)
            }
            None => Failure::new(Kind::Status(status), begin),
        }
    }

    /// The next chunk of the body; none at its end.
    pub(crate) async fn data(&mut self, within: Duration) -> Result<Option<Bytes>, Failure> {
        loop {
            match timeout(within, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(error))) => {
                    let text = format!("{}: the connection broke: {}", self.url, ErrorChain::new(&error));
                    return Err(Failure::new(Kind::Lost, text));
                }
                Ok(None) => {
                    self.give_back();
                    return Ok(None);
                }
                Err(_) => {
                    let text = format!("{}: no byte for {} s", self.url, within.as_secs());
                    return Err(Failure::new(Kind::TimedOut, text));
                }
            }
        }
    }

    /// The whole body, if it has no more than `most` bytes.
    pub(crate) async fn bytes(mut self, most: usize, within: Duration) -> Result<Bytes, Failure> {
        let mut whole = BytesMut::new();
        while let Some(data) = self.data(within).await? {
            if whole.len() + data.len() > most {
                let text = format!("{}: the answer has more than {most} bytes", self.url);
                return Err(Failure::new(Kind::Malformed, text));
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    }

    /// Reads what is left, if it is little, so that the connection can be used again.
    pub(crate) async fn finish(self) {
        let _ = self.bytes(ERROR_BYTES_MAX, Duration::from_secs(5)).await;
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The `Content-Length`.
    pub(crate) fn length(&self) -> Option<u64> {
        self.header(CONTENT_LENGTH.as_str()).and_then(|text| text.trim().parse().ok())
    }

    /// Data that are packed are not the file. `aws-chunked` is how an object once came to its bucket: S3
    /// takes the word off, others tell it for ever, of bytes that are plain.
    pub(crate) fn is_packed(&self) -> bool {
        const PLAIN: [&[u8]; 2] = [b"identity", b"aws-chunked"];
        let is_plain = |coding: &[u8]| PLAIN.iter().any(|plain| coding.eq_ignore_ascii_case(plain));
        self.headers.get(CONTENT_ENCODING).is_some_and(|coding| !is_plain(coding.as_bytes()))
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| self.reusable) {
            self.idle.put(&self.key, connection);
        }
    }
}

fn follows(status: StatusCode, method: &Method) -> bool {
    let see_other = status == StatusCode::SEE_OTHER && (*method == Method::GET || *method == Method::HEAD);
    keeps_method(status) || see_other
}

/// Whether a request is idempotent and can be sent again.
fn repeats(call: &Call<'_>) -> bool {
    matches!(call.payload, Payload::None | Payload::Bytes(_))
        && matches!(call.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND")
}

fn request(call: &Call<'_>, url: &RemoteUrl, credential: &Credential) -> Result<Request<Body>, Failure> {
    let malformed = |_| Failure::new(Kind::Order, format!("{url}: no request can be made of it"));
    let uri: Uri = url.request_target().parse().map_err(malformed)?;
    let (body, length) = match &call.payload {
        Payload::None => (Empty::new().map_err(|never| match never {}).boxed_unsync(), None),
        Payload::Bytes(bytes) => (
            Full::new(bytes.clone()).map_err(|never| match never {}).boxed_unsync(),
            Some(bytes.len() as u64),
        ),
        Payload::Upload(upload) => (upload.body().boxed_unsync(), Some(upload.len())),
    };
    let mut request = Request::new(body);
    *request.method_mut() = call.method.clone();
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    *headers = call.headers.clone();
    let text = |value: String| {
        HeaderValue::try_from(value).map_err(|_| Failure::new(Kind::Order, format!("{url}: not a header")))
    };
    headers.insert(HOST, text(url.authority())?);
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("longhaul/", env!("CARGO_PKG_VERSION"))));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Credential::Bearer(token) = credential {
        if !url.is_secure() {
            let text = format!("{url}: a token is sent over TLS only: use https or davs");
            return Err(Failure::new(Kind::Refused, text));
        }
        headers.insert(AUTHORIZATION, bearer(token)?);
    }
    if let Payload::Upload(upload) = &call.payload {
        upload.expect_continue(&mut request);
    }
    match credential {
        Credential::S3(keys) => {
            let payload = match &call.payload {
                Payload::None => Signed::Bytes(b""),
                // Hashing large ones for a second time buys nothing where TLS guards them.
                Payload::Bytes(bytes) if !url.is_secure() || bytes.len() <= SIGNED_BYTES_MAX => {
                    Signed::Bytes(bytes)
                }
                Payload::Bytes(_) | Payload::Upload(_) => Signed::Nothing,
            };
            s3::sign(keys, &call.method, url, request.headers_mut(), payload, now()).map_err(|_| {
                Failure::new(Kind::Order, format!("{url}: the keys hold characters that no header can hold"))
            })?;
        }
        _ if url.is_s3() => {
            let text = format!("{url}: there are no keys for this bucket: an S3 URL needs some");
            return Err(Failure::new(Kind::Refused, text));
        }
        _ => {}
    }
    Ok(request)
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO + since
}

async fn spelled(mut request: Request<Body>) -> Request<Body> {
    if request.headers().contains_key(TRANSFER_AUTHORIZATION) {
        request.extensions_mut().extend(header_case::spelling().await);
    }
    request
}

/// The word with a capital, as some servers know no other.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| Failure::new(Kind::Order, "the token holds characters that no header can hold"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn lost(call: &Call<'_>, url: &RemoteUrl, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Kind::Lost, format!("{} {url}: the connection broke: {error}", call.method))
}
