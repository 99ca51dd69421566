//! Connections: accepted, brought through TLS, and served one request after the other, each step within its
//! time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use longhaul_identity::{GridUsers, Origin};
use longhaul_model::{Fault, FaultCode, Timestamp};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tower::ServiceExt;

use super::drain::DrainedBody;
use crate::{Clock, HttpLimits};

/// Head of a request, all its lines.
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADER_LINES_MAX: usize = 100;
/// Pause after a failed accept: for example, no file descriptor is left.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Connections that still answer their last request at a stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// One listening socket with all it needs to serve.
pub struct Listening {
    pub listener: TcpListener,
    /// None: plain HTTP.
    pub tls: Option<crate::listener_tls::Acceptor>,
    pub deployment: Arc<str>,
    pub users: Arc<GridUsers>,
    pub clock: Clock,
    pub router: Router,
    pub limits: HttpLimits,
    pub connections: Arc<Semaphore>,
    pub stop: watch::Receiver<bool>,
}

impl Listening {
    /// Serves until told to stop; then lets requests under way end.
    pub async fn run(self) {
        let mut stop = self.stop.clone();
        let mut tasks = JoinSet::new();
        let shared = Arc::new(self);
        loop {
            while tasks.try_join_next().is_some() {}
            let Ok(permit) = shared.connections.clone().acquire_owned().await else { break };
            let accepted = tokio::select! {
                accepted = shared.listener.accept() => accepted,
                () = stopped(&mut stop) => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    let shared = shared.clone();
                    tasks.spawn(async move {
                        shared.connection(stream, address).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
        let _ = tokio::time::timeout(STOP_GRACE, async { while tasks.join_next().await.is_some() {} }).await;
    }

    async fn connection(&self, stream: TcpStream, address: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            let origin = Origin { address, secure: false, identity: Ok(None) };
            return self.requests(stream, origin, None).await;
        };
        let tls = tls.read().clone();
        match tokio::time::timeout(self.limits.head(), tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let (connection, trust) = (stream.get_ref().1, self.users.trust());
                let now = (self.clock)();
                let identity = longhaul_security::identify_client(connection, &self.deployment, trust, now);
                let origin = Origin { address, secure: true, identity };
                let expires = longhaul_security::peer_chain_expires(stream.get_ref().1);
                self.requests(stream, origin, expires).await;
            }
            Ok(Err(error)) => {
                tracing::debug!(%address, fault = %longhaul_security::io_fault(error), "handshake failed")
            }
            Err(_) => tracing::debug!(%address, "no handshake in time"),
        }
    }

    async fn requests<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        origin: Origin,
        certificate_expires: Option<Timestamp>,
    ) {
        let address = origin.address;
        // What the peer does not take for so long is an error; one that waits for an answer rightly sends
        // nothing.
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(self.limits.stall()));
        let io = TokioIo::new(Box::pin(stream));
        let (router, clock) = (self.router.clone(), self.clock.clone());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let waits = request.headers().contains_key(hyper::header::EXPECT);
            let mut request = request.map(|body| Body::new(DrainedBody::new(body, waits)));
            let mut origin = origin.clone();
            // The connection may stay open for longer than what was shown when it began.
            if certificate_expires.is_some_and(|expires| expires <= clock()) {
                origin.identity = Err(expired());
            }
            request.extensions_mut().insert(origin);
            router.clone().oneshot(request)
        });
        let mut connection = std::pin::pin!(
            hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.head())
                .max_headers(HEADER_LINES_MAX)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(io, service)
        );
        let mut stop = self.stop.clone();
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%address, %error, "connection ended");
        }
    }
}

fn expired() -> Fault {
    let detail = "the certificate of this connection has expired: connect again with a valid one";
    Fault::new(FaultCode::NotAuthenticated, detail)
}

/// Returns when the service is told to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender goes only when the service does: that is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}
