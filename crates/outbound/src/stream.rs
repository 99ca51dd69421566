//! Connections to brokers and the like, which speak protocols of their own.

use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// A server that an administrator named is near or has good lines; nobody waits longer for one that is down.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, with TLS or without.
pub type Stream = Box<dyn Duplex>;

pub trait Duplex: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Duplex for T {}

/// Connects to a host that an administrator named.
pub async fn connect(host: &str, port: u16) -> Result<Stream, Fault> {
    let unreachable = |why: String| Fault::new(FaultCode::Unreachable, format!("{host}:{port}: {why}"));
    let stream = match timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await {
        Err(_) => return Err(unreachable(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))),
        Ok(connected) => connected.map_err(|error| unreachable(error.to_string()).with_source(error))?,
    };
    stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()).with_source(error))?;
    Ok(Box::new(stream))
}

pub async fn connect_tls(stream: Stream, host: &str, config: Arc<ClientConfig>) -> Result<Stream, Fault> {
    let failed = |why: String| Fault::new(FaultCode::Unreachable, format!("{host}: TLS: {why}"));
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| failed(error.to_string()).with_source(error))?;
    let shaken = timeout(CONNECT_TIMEOUT, TlsConnector::from(config).connect(name, stream)).await;
    match shaken {
        Err(_) => Err(failed(format!("no handshake within {} s", CONNECT_TIMEOUT.as_secs()))),
        Ok(connected) => {
            Ok(Box::new(connected.map_err(|error| failed(error.to_string()).with_source(error))?))
        }
    }
}
