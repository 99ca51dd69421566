//! The pooled HTTP client, for small requests to servers that an administrator named: a short time to
//! connect, connections kept for a little while, bounded answers, no redirects.

use std::error::Error;
use std::io;
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
use longhaul_model::{ErrorChain, Fault, FaultCode};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower::Service;

use crate::policy::AddressPolicy;
use crate::resolver::Resolver;
use crate::stream::CONNECT_TIMEOUT;

const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// `B` is the type of the bodies that requests carry.
pub type HttpClient<B> = Client<HttpsConnector<CheckedConnector>, B>;

type BoxError = Box<dyn Error + Send + Sync>;
type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// How long a whole answer may take is the caller's to say.
pub fn client<B>(tls: Arc<ClientConfig>, policy: AddressPolicy) -> HttpClient<B>
where
    B: Body + Send,
    B::Data: Send,
{
    let policy = Arc::new(policy);
    let mut tcp = HttpConnector::new_with_resolver(CheckedResolver { policy: policy.clone() });
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build(HttpsConnector::from((CheckedConnector { tcp, policy }, tls)))
}

/// Checks addresses that stand in a URL themselves; those of names are checked when they are resolved, once,
/// and then dialled.
#[derive(Clone)]
pub struct CheckedConnector {
    tcp: HttpConnector<CheckedResolver>,
    policy: Arc<AddressPolicy>,
}

impl Service<http::Uri> for CheckedConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response, BoxError>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse()
            && let Err(why) = check(&self.policy, host, address)
        {
            return Box::pin(std::future::ready(Err(why.into())));
        }
        let connecting = self.tcp.call(uri);
        Box::pin(async move { Ok(connecting.await?) })
    }
}

#[derive(Clone)]
pub struct CheckedResolver {
    policy: Arc<AddressPolicy>,
}

impl Service<Name> for CheckedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response, BoxError>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let policy = self.policy.clone();
        Box::pin(async move {
            let found = Resolver::system().resolve(name.as_str(), 0).await?;
            let (mut allowed, mut refused) = (Vec::new(), None);
            for address in found {
                match check(&policy, name.as_str(), address.ip()) {
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

/// An address that the policy does not allow.
#[derive(Debug, thiserror::Error)]
#[error("{host} is {kind}, which is not allowed here ({address})")]
struct AddressRefused {
    host: String,
    kind: &'static str,
    address: IpAddr,
}

fn check(policy: &AddressPolicy, host: &str, address: IpAddr) -> Result<(), AddressRefused> {
    policy.check(host, address).map_err(|kind| AddressRefused { host: host.to_owned(), kind, address })
}

/// Sends one request over TLS, and reads a small answer, whatever its status. Redirects are not followed.
pub async fn send_bounded(
    http: &HttpClient<Full<Bytes>>,
    url: &str,
    request: http::Result<http::Request<Full<Bytes>>>,
    within: Duration,
    bytes_max: usize,
) -> Result<(http::StatusCode, Bytes), Fault> {
    let failed = |code, why: String| Fault::new(code, format!("{url}: {why}"));
    let mut request =
        request.map_err(|error| failed(FaultCode::BadRequest, error.to_string()).with_source(error))?;
    if request.uri().scheme() != Some(&http::uri::Scheme::HTTPS) {
        return Err(failed(FaultCode::BadRequest, "it is no https address".into()));
    }
    let headers = request.headers_mut();
    headers.insert(ACCEPT, http::HeaderValue::from_static("application/json"));
    headers
        .insert(USER_AGENT, http::HeaderValue::from_static(concat!("longhaul/", env!("CARGO_PKG_VERSION"))));
    let whole = async {
        let reply = http.request(request).await;
        let reply = reply.map_err(|error| {
            failed(FaultCode::Unreachable, ErrorChain::new(&error).to_string()).with_source(error)
        })?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), bytes_max).collect().await;
        let body = body.map_err(|error| {
            failed(FaultCode::ConnectionLost, error.to_string()).with_source(io::Error::other(error))
        })?;
        Ok((status, body.to_bytes()))
    };
    let late = |_| failed(FaultCode::Stalled, format!("no answer within {} s", within.as_secs()));
    tokio::time::timeout(within, whole).await.map_err(late)?
}
