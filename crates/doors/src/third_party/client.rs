//! HTTPS client towards the remote side of a third-party copy: dialled addresses are checked, credentials go
//! only to the host they are for, redirects are bounded.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use longhaul_model::units::printable;
use longhaul_outbound::{
    AddressPolicy, ConnectError, Connector, CredentialScope, Origin, REDIRECTS_MAX, TlsError, dial_twice,
    handshake_http1, handshake_tls, keeps_method,
};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutWriter;
use tokio_rustls::client::TlsStream;

use super::error::CopyError;
use super::markers::{Progress, one_line};
use crate::answer::{Outcome, Refusal};
use crate::listen::with_write_timeout;
use crate::settings::Outgoing;

/// For connecting, and again for the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// A storage may read the whole file for its checksum before it answers.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(1_800);
/// An upload is answered after its last byte; its own stall limit watches until then.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// Bytes of an error text of the remote side that are shown.
const TEXT_BYTES_MAX: usize = 400;
const SOCKET_READ_BYTES: usize = 256 << 10;
const TLS_BUFFER_BYTES: usize = 256 << 10;
/// A piece of a body is not larger.
const BUFFER_BYTES_MAX: usize = 128 << 10;
const HEADERS_MAX: usize = 32;

/// A body of a request to the other party.
pub(crate) type RequestBody = http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>;

type RemoteStream = TlsStream<BufReader<Pin<Box<TimeoutWriter<TcpStream>>>>>;

/// The file at the remote side, and the headers of each request for it.
pub(crate) struct Remote {
    outgoing: Arc<Outgoing>,
    connector: Connector,
    url: Uri,
    /// The client's `TransferHeader…`s, for the host in `url` and no other.
    headers: HeaderMap,
    connect_timeout: Duration,
    stall: Duration,
    progress: Progress,
}

/// A response and the URL that gave it, after redirects.
pub(crate) struct RemoteResponse {
    pub(crate) response: Response<Incoming>,
    pub(crate) url: Uri,
}

impl Remote {
    /// Refuses what must not be dialled or sent, as far as that can be seen without dialling.
    pub(crate) fn new(
        outgoing: Arc<Outgoing>,
        url: &str,
        request: &HeaderMap,
        stall: Duration,
        progress: Progress,
    ) -> Outcome<Remote> {
        let url = parse_url(url)?;
        let headers = transfer_headers(request)?;
        let policy = AddressPolicy::public(outgoing.allow.clone());
        let connector = Connector::new(policy, usize::MAX, CONNECT_TIMEOUT);
        let connect_timeout = CONNECT_TIMEOUT;
        Ok(Remote { outgoing, connector, url, headers, connect_timeout, stall, progress })
    }

    /// Sends a request and follows redirects; `body` makes it anew for each hop.
    pub(crate) async fn send(
        &self,
        method: Method,
        more: &[(HeaderName, HeaderValue)],
        mut body: impl FnMut(&mut Request<RequestBody>),
    ) -> Result<RemoteResponse, CopyError> {
        let mut url = self.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.request(&method, &url, more)?;
            body(&mut request);
            let mut connection = self.connect(&url).await?;
            let response = tokio::time::timeout(answer_timeout(&method), connection.send_request(request));
            let response = response.await.map_err(|_| CopyError::AnswerTimeout)?;
            let response = response.map_err(CopyError::Connection)?;
            if !keeps_method(response.status()) {
                return Ok(RemoteResponse { response, url });
            }
            url = redirected(&url, &response)?;
        }
        Err(CopyError::TooManyRedirects)
    }

    fn request(
        &self,
        method: &Method,
        url: &Uri,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<Request<RequestBody>, CopyError> {
        let target = url.path_and_query().map_or("/", |target| target.as_str());
        let empty = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
        let mut request =
            Request::builder().method(method).uri(target).body(empty).map_err(CopyError::Url)?;
        let headers = request.headers_mut();
        if (CredentialScope { origin: &origin(&self.url), hosts: &[] }).contains(&origin(url)) {
            headers.extend(self.headers.clone());
        }
        headers.extend(more.iter().cloned());
        let host = url.authority().map_or("", Authority::as_str);
        headers.insert(header::HOST, HeaderValue::from_str(host)?);
        headers.insert(header::USER_AGENT, HeaderValue::from_static("longhaul-door"));
        Ok(request)
    }

    async fn connect(&self, url: &Uri) -> Result<SendRequest<RequestBody>, CopyError> {
        let second = async {
            tracing::debug!(host = url.host(), "a connection hangs; a second is tried beside it");
            self.connect_tls(url).await
        };
        let (stream, address) = dial_twice(self.connect_timeout, self.connect_tls(url), second).await?;
        self.progress.connected(address);
        let shaken = handshake_http1(stream, BUFFER_BYTES_MAX).await;
        let (sender, connection) = shaken.map_err(CopyError::Connection)?;
        // Ends when the exchange is dropped.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection of a third-party copy ended");
            }
        });
        Ok(sender)
    }

    async fn connect_tls(&self, url: &Uri) -> Result<(RemoteStream, SocketAddr), CopyError> {
        let dial = tokio::time::timeout(self.connect_timeout, self.dial(url)).await;
        let (stream, address) = dial.map_err(|_| CopyError::ConnectTimeout)??;
        let host = host_of(url)?;
        let stream = BufReader::with_capacity(SOCKET_READ_BYTES, with_write_timeout(stream, self.stall));
        let handshake = handshake_tls(stream, host, self.outgoing.tls.clone(), Some(TLS_BUFFER_BYTES));
        let stream = tokio::time::timeout(self.connect_timeout, handshake).await;
        let stream = stream.map_err(|_| CopyError::HandshakeTimeout)?;
        let stream = stream.map_err(|error| match error {
            TlsError::HostName => CopyError::NoHostName(host.to_owned()),
            TlsError::Handshake(error) => {
                CopyError::Tls { host: printable(host), fault: longhaul_security::io_fault(error) }
            }
        })?;
        Ok((stream, address))
    }

    /// Resolved once, and exactly what was judged is dialled.
    async fn dial(&self, url: &Uri) -> Result<(TcpStream, SocketAddr), CopyError> {
        let host = host_of(url)?;
        let port = url.port_u16().unwrap_or(443);
        let shown = printable(host);
        self.connector.connect(host, port).await.map_err(|error| match error {
            ConnectError::Refused(_) => CopyError::AddressRefused(shown),
            ConnectError::NoAddress | ConnectError::NoAddressOf(_) => CopyError::NoAddress(shown),
            ConnectError::Unresolved(error) | ConnectError::Unreachable(error) => {
                CopyError::Unreachable { host: shown, error }
            }
            ConnectError::TimedOut => CopyError::NoAnswer(shown),
        })
    }

    /// The next chunk of a body, within the stall limit.
    pub(crate) async fn next(&self, body: &mut Incoming) -> Result<Option<Bytes>, CopyError> {
        loop {
            let frame = tokio::time::timeout(self.stall, body.frame()).await;
            match frame.map_err(|_| CopyError::Stalled(self.stall))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(CopyError::ConnectionLost(error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The error for a status that is no success, with the text of the remote side.
    pub(crate) async fn refused(&self, heard: RemoteResponse) -> CopyError {
        let status = heard.response.status();
        let mut body = heard.response.into_body();
        let mut text = Vec::new();
        while text.len() < TEXT_BYTES_MAX {
            match self.next(&mut body).await {
                Ok(Some(bytes)) => text.extend_from_slice(&bytes),
                _ => break,
            }
        }
        text.truncate(TEXT_BYTES_MAX);
        let is_plain = |text: &str| !text.contains('<');
        let said = String::from_utf8(text).ok().filter(|text| is_plain(text)).map(|text| one_line(&text));
        let said = said.filter(|text| !text.is_empty()).unwrap_or_else(|| reason(status));
        CopyError::Status { status: status.as_u16(), text: said }
    }
}

fn answer_timeout(method: &Method) -> Duration {
    match *method {
        Method::HEAD => DIGEST_TIMEOUT,
        Method::PUT => UPLOAD_TIMEOUT,
        _ => ANSWER_TIMEOUT,
    }
}

fn reason(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or("unknown").to_owned()
}

pub(crate) fn parse_url(text: &str) -> Outcome<Uri> {
    let uri: Uri = text.parse().map_err(|_| Refusal::bad("the remote URL is malformed"))?;
    let Some(authority) = uri.authority() else { return Err(Refusal::bad("the remote URL has no host")) };
    if authority.as_str().contains('@') {
        return Err(Refusal::bad("the remote URL has a user in it, which is not taken"));
    }
    match uri.scheme_str() {
        Some("https" | "davs") => {}
        scheme => {
            let shown = printable(scheme.unwrap_or_default());
            let text = format!("{shown}:// is not taken: third-party copies go over https:// or davs://");
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, text));
        }
    }
    if host_of(&uri).is_ok_and(|host| host.is_empty()) {
        return Err(Refusal::bad("the remote URL has no host"));
    }
    Ok(uri)
}

fn host_of(url: &Uri) -> Result<&str, CopyError> {
    url.host().map(|host| host.trim_matches(['[', ']'])).ok_or(CopyError::NoHost)
}

/// All that is dialled here is HTTPS, also where it is called davs.
fn origin(url: &Uri) -> Origin {
    let host = url.host().unwrap_or_default().to_ascii_lowercase();
    Origin { is_secure: true, host, port: url.port_u16().unwrap_or(443) }
}

fn redirected(from: &Uri, response: &Response<Incoming>) -> Result<Uri, CopyError> {
    let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or(CopyError::RedirectWithoutLocation)?;
    let absolute = match (location.starts_with('/'), from.authority()) {
        (true, Some(authority)) => format!("https://{authority}{location}"),
        _ => location.to_owned(),
    };
    parse_url(&absolute).map_err(|refusal| CopyError::BadRedirect(refusal.text))
}

const PREFIX: &str = "transferheader";
/// Headers of framing, or of one hop, that a client cannot set.
const NOT_FORWARDED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// For whom the data travels. The other party is told as well, so that whichever sends can mark its packets.
const SCITAG: HeaderName = HeaderName::from_static("scitag");

/// The headers that the client gives for the other party. The HTTP library has seen to it that no value
/// breaks a line.
fn transfer_headers(request: &HeaderMap) -> Outcome<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in request {
        let Some(name) = name.as_str().strip_prefix(PREFIX) else { continue };
        if NOT_FORWARDED.contains(&name) {
            continue;
        }
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Refusal::bad("a TransferHeader has no proper name"))?;
        let mut value = value.clone();
        value.set_sensitive(true);
        headers.append(name, value);
        if headers.len() > HEADERS_MAX {
            return Err(Refusal::bad(format!("more than {HEADERS_MAX} TransferHeaders")));
        }
    }
    if let Some(scitag) = request.get(SCITAG).filter(|_| !headers.contains_key(SCITAG)) {
        headers.insert(SCITAG, scitag.clone());
    }
    Ok(headers)
}

pub(crate) fn no_client_tls() -> Refusal {
    Refusal::new(StatusCode::NOT_IMPLEMENTED, "third-party copies are switched off at this door")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_outbound::Resolver;
    use longhaul_testkit::{CertificateAuthority, server_tls};
    use tokio_rustls::TlsAcceptor;

    #[test]
    fn only_https_without_users_is_dialled() {
        for good in
            ["https://a.example/x?copy_mode=pull&a=%20", "davs://a.example:1094/x", "https://[2001:db8::1]/x"]
        {
            assert!(parse_url(good).is_ok(), "{good}");
        }
        for (bad, status) in [
            ("file:///etc/passwd", 400),
            ("http://a.example/x", 501),
            ("gopher://a.example/x", 501),
            ("root://a.example//x", 501),
            ("https://user:secret@a.example/x", 400),
            ("https:///x", 400),
            ("/x", 400),
            ("", 400),
        ] {
            assert_eq!(parse_url(bad).unwrap_err().status.as_u16(), status, "{bad}");
        }
    }

    /// A name that leads to a public address when it is judged and to a private one a moment later
    /// ("rebinding"): what was judged is dialled, and each connection, also one after a redirect, is judged
    /// for itself. 127.0.0.2 stands for a public address.
    #[tokio::test]
    async fn a_name_that_changes_leads_nowhere_else() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        use tokio::net::TcpListener;

        let (good, private) = loop {
            let good = TcpListener::bind("127.0.0.2:0").await.unwrap();
            let port = good.local_addr().unwrap().port();
            // Somebody may have the port there.
            if let Ok(private) = TcpListener::bind(("127.0.0.1", port)).await {
                break (good, private);
            }
        };
        let port = good.local_addr().unwrap().port();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let resolver = Resolver::fixed(move |port| {
            let host =
                if count.fetch_add(1, Ordering::SeqCst) == 0 { [127, 0, 0, 2] } else { [127, 0, 0, 1] };
            vec![SocketAddr::from((host, port))]
        });
        let tls =
            longhaul_security::foreign_client_tls(longhaul_security::ForeignServerTrust::Anyone).unwrap();
        let outgoing = Arc::new(Outgoing { tls, allow: vec!["127.0.0.2/32".parse().unwrap()] });
        let url = format!("https://storage.example:{port}/x");
        let stall = Duration::from_secs(20);
        let remote = Remote::new(outgoing, &url, &HeaderMap::new(), stall, Progress::default()).unwrap();
        let connector = Connector { resolver, ..remote.connector.clone() };
        let remote = Remote { connector, ..remote };
        let (_stream, address) = remote.dial(&remote.url).await.unwrap();
        assert_eq!((address, asked.load(Ordering::SeqCst)), (good.local_addr().unwrap(), 1));
        good.accept().await.unwrap();
        for tries in 2..5 {
            let refused = remote.dial(&remote.url).await.unwrap_err();
            assert!(refused.to_string().contains("is not at a public address"), "{refused}");
            assert_eq!(asked.load(Ordering::SeqCst), tries);
        }
        for listener in [good, private] {
            let waiting = listener.into_std().unwrap().accept();
            assert_eq!(waiting.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        }
    }

    /// A server whose kernel took a connection of which it knows nothing.
    #[tokio::test]
    async fn a_second_connection_is_tried_beside_one_that_hangs() {
        let authority = CertificateAuthority::new("storages");
        let acceptor = TlsAcceptor::from(server_tls(&authority.issue("storage", &["127.0.0.1"])));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/x", listener.local_addr().unwrap());
        let trust = longhaul_security::ForeignServerTrust::Authorities(&authority.ca_pem);
        let tls = longhaul_security::foreign_client_tls(trust).unwrap();
        let outgoing = Arc::new(Outgoing { tls, allow: vec!["127.0.0.1/32".parse().unwrap()] });
        let stall = Duration::from_secs(20);
        let remote = Remote::new(outgoing, &url, &HeaderMap::new(), stall, Progress::default()).unwrap();
        let remote = Remote { connect_timeout: Duration::from_secs(8), ..remote };
        let serving = async {
            let lost = listener.accept().await.unwrap();
            let (second, _) = listener.accept().await.unwrap();
            (lost, acceptor.accept(second).await.unwrap())
        };
        let (connected, _served) = tokio::join!(remote.connect(&remote.url), serving);
        assert!(connected.is_ok(), "{:?}", connected.err());
    }

    #[test]
    fn framing_is_not_for_the_client_to_say() {
        let mut request = HeaderMap::new();
        for (name, value) in [
            ("TransferHeaderAuthorization", "Bearer x"),
            ("transferheadercontent-length", "7"),
            ("TransferHeaderHost", "x"),
            ("TransferHeaderTransfer-Encoding", "chunked"),
            ("TransferHeaderX-Own", "y"),
            ("Other", "z"),
            ("SciTag", "204"),
        ] {
            request.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let headers = transfer_headers(&request).unwrap();
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "scitag", "x-own"]);
        assert!(!format!("{headers:?}").contains("Bearer"), "credentials stay out of logs");
    }
}
