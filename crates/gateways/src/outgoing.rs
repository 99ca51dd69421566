//! How everything outside is dialled: with a short time to connect; over HTTP with connections that are kept a little.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Body;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use longhaul_model::{Fault, FaultCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
const IDLE_FOR: Duration = Duration::from_secs(20);

pub(crate) type Http<B> = Client<HttpsConnector<HttpConnector>, B>;

/// `B`: what requests carry. How long an answer may take is the caller's to say.
pub(crate) fn client<B>(tls: Arc<ClientConfig>) -> Http<B>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIME_MAX));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_FOR)
        .build(HttpsConnector::from((tcp, tls)))
}

/// A value in an address or a form.
pub(crate) fn in_url(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
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
