//! How everything outside is dialled: with a short time to connect; over HTTP with connections that are kept
//! a little.

use std::error::Error;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use longhaul_model::address::{IpNetwork, check_dial};
use longhaul_model::{Fault, FaultCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower::Service;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
const IDLE_FOR: Duration = Duration::from_secs(20);

pub(crate) type Http<B> = Client<HttpsConnector<Dialler>, B>;

type Failed = Box<dyn Error + Send + Sync>;
type Later<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Where connections may lead.
#[derive(Clone, Debug)]
pub enum Reach {
    /// All addresses come from an administrator.
    Anywhere,
    /// Some come from an answer, which must not lead into the network of this host: only to the one host that
    /// an administrator named, to public addresses, and to those that are allowed.
    Outside { named: String, allow: Vec<IpNetwork> },
}

impl Reach {
    fn check(&self, host: &str, address: IpAddr) -> Result<(), String> {
        match self {
            Reach::Outside { named, allow } if !named.eq_ignore_ascii_case(host) => {
                check_dial(address, allow)
                    .map_err(|what| format!("{host} is {what}, which is not allowed here ({address})"))
            }
            _ => Ok(()),
        }
    }
}

/// `B`: what requests carry. How long an answer may take is the caller's to say.
pub(crate) fn client<B>(tls: Arc<ClientConfig>) -> Http<B>
where
    B: Body + Send,
    B::Data: Send,
{
    client_within(tls, Reach::Anywhere)
}

pub(crate) fn client_within<B>(tls: Arc<ClientConfig>, reach: Reach) -> Http<B>
where
    B: Body + Send,
    B::Data: Send,
{
    let reach = Arc::new(reach);
    let mut tcp = HttpConnector::new_with_resolver(Resolver { reach: reach.clone() });
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIME_MAX));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_FOR)
        .build(HttpsConnector::from((Dialler { tcp, reach }, tls)))
}

/// Judges addresses that stand for themselves; those of names are judged when they are resolved, once, and
/// then dialled.
#[derive(Clone)]
pub(crate) struct Dialler {
    tcp: HttpConnector<Resolver>,
    reach: Arc<Reach>,
}

impl Service<http::Uri> for Dialler {
    type Response = TokioIo<TcpStream>;
    type Error = Failed;
    type Future = Later<Self::Response, Failed>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse()
            && let Err(why) = self.reach.check(host, address)
        {
            return Box::pin(std::future::ready(Err(why.into())));
        }
        let connecting = self.tcp.call(uri);
        Box::pin(async move { Ok(connecting.await?) })
    }
}

#[derive(Clone)]
pub(crate) struct Resolver {
    reach: Arc<Reach>,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Failed;
    type Future = Later<Self::Response, Failed>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let reach = self.reach.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let (mut allowed, mut refused) = (Vec::new(), None);
            for address in found {
                match reach.check(name.as_str(), address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(why) => refused = Some(why),
                }
            }
            match refused {
                Some(why) if allowed.is_empty() => Err(why.into()),
                _ => Ok(allowed.into_iter()),
            }
        })
    }
}

/// An error with all that is behind it: what was refused to be dialled stands at the end.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

/// One small answer over TLS, whatever its status; nobody is sent elsewhere.
pub(crate) async fn ask(
    http: &Http<Full<Bytes>>,
    url: &str,
    request: http::Result<http::Request<Full<Bytes>>>,
    within: Duration,
    bytes_max: usize,
) -> Result<(http::StatusCode, Bytes), Fault> {
    let failed = |code, why: String| Fault::new(code, format!("{url}: {why}"));
    let mut request = request.map_err(|error| failed(FaultCode::BadRequest, error.to_string()))?;
    if request.uri().scheme() != Some(&http::uri::Scheme::HTTPS) {
        return Err(failed(FaultCode::BadRequest, "it is no https address".into()));
    }
    let headers = request.headers_mut();
    headers.insert(ACCEPT, http::HeaderValue::from_static("application/json"));
    headers
        .insert(USER_AGENT, http::HeaderValue::from_static(concat!("longhaul/", env!("CARGO_PKG_VERSION"))));
    let whole = async {
        let reply = http.request(request).await;
        let reply = reply.map_err(|error| failed(FaultCode::Unreachable, with_causes(&error)))?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), bytes_max).collect().await;
        let body = body.map_err(|error| failed(FaultCode::ConnectionLost, error.to_string()))?;
        Ok((status, body.to_bytes()))
    };
    let late = |_| failed(FaultCode::Stalled, format!("no answer within {} s", within.as_secs()));
    tokio::time::timeout(within, whole).await.map_err(late)?
}

/// A connection, with TLS or without.
pub(crate) type Stream = Box<dyn Both>;

pub(crate) trait Both: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Both for T {}

pub(crate) async fn tcp(host: &str, port: u16) -> Result<Stream, Fault> {
    let unreachable = |why: String| Fault::new(FaultCode::Unreachable, format!("{host}:{port}: {why}"));
    let stream = match timeout(CONNECT_TIME_MAX, TcpStream::connect((host, port))).await {
        Err(_) => return Err(unreachable(format!("no answer within {} s", CONNECT_TIME_MAX.as_secs()))),
        Ok(connected) => connected.map_err(|error| unreachable(error.to_string()))?,
    };
    stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
    Ok(Box::new(stream))
}

pub(crate) async fn tls(stream: Stream, host: &str, config: Arc<ClientConfig>) -> Result<Stream, Fault> {
    let failed = |why: String| Fault::new(FaultCode::Unreachable, format!("{host}: TLS: {why}"));
    let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(error.to_string()))?;
    let shaken = timeout(CONNECT_TIME_MAX, TlsConnector::from(config).connect(name, stream)).await;
    match shaken {
        Err(_) => Err(failed(format!("no handshake within {} s", CONNECT_TIME_MAX.as_secs()))),
        Ok(connected) => Ok(Box::new(connected.map_err(|error| failed(error.to_string()))?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_lead_to_the_named_host_and_outside_only() {
        let reach =
            Reach::Outside { named: "login.example.org".into(), allow: vec!["10.1.0.0/16".parse().unwrap()] };
        let may = |host: &str, address: &str| reach.check(host, address.parse().unwrap()).is_ok();
        assert!(may("login.example.org", "10.9.9.9") && may("LOGIN.example.org", "127.0.0.1"));
        assert!(may("keys.example.org", "192.1.2.3") && may("keys.example.org", "10.1.2.3"));
        for inside in ["127.0.0.1", "169.254.169.254", "10.9.9.9", "::1", "::ffff:127.0.0.1", "fd00::1"] {
            assert!(!may("keys.example.org", inside), "{inside}");
            assert!(Reach::Anywhere.check("keys.example.org", inside.parse().unwrap()).is_ok());
        }
        assert!(reach.check("x", "127.0.0.1".parse().unwrap()).unwrap_err().contains("a loopback address"));
    }
}
