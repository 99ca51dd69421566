//! Connections: accepted, brought through TLS, and served one request after the other, each step within its
//! time. Which connections there may be says [`ConnectionPlaces`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use longhaul_identity::{GridUsers, Origin};
use longhaul_model::{AgentId, Fault, FaultCode, Timestamp};
use longhaul_security::{
    ClientIdentity, ConnectionBounds, ConnectionId, ConnectionPlaces, PeerIdentity, PlaceRefusal,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tower::ServiceExt;

use super::drain::DrainedBody;
use super::linger::linger;
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
    /// The host's clock: certificates are judged by it.
    pub clock: Clock,
    /// Never steps: for intervals.
    pub steady_clock: Clock,
    pub router: Router,
    pub limits: HttpLimits,
    pub stop: watch::Receiver<bool>,
}

/// The connections of one listener.
struct Admission {
    /// Dropping what is held for a handshake ends it.
    places: Mutex<ConnectionPlaces<oneshot::Sender<()>>>,
    clock: Clock,
}

/// Counts one connection until it is dropped.
struct AdmittedConnection {
    admission: Arc<Admission>,
    id: ConnectionId,
    address: IpAddr,
}

impl Admission {
    fn new(listening: &Listening) -> Arc<Admission> {
        let connections = listening.limits.connections as usize;
        let bounds = match &listening.tls {
            Some(_) => ConnectionBounds::secure(connections),
            None => ConnectionBounds::plain(connections),
        };
        let places = Mutex::new(ConnectionPlaces::new(bounds));
        Arc::new(Admission { places, clock: listening.steady_clock.clone() })
    }

    /// Admits a connection to its handshake, which has to end when the receiver says so.
    fn begin(self: &Arc<Self>, address: IpAddr) -> (AdmittedConnection, oneshot::Receiver<()>) {
        let (displace, displaced) = oneshot::channel();
        let (id, older) = self.places.lock().begin(address, displace);
        if let Some((address, _)) = older {
            self.note_refusal(address, PlaceRefusal::Displaced);
        }
        (AdmittedConnection { admission: self.clone(), id, address }, displaced)
    }

    /// Admits a connection that has no handshake.
    fn open(self: &Arc<Self>, address: IpAddr) -> Option<AdmittedConnection> {
        let opened = self.places.lock().open(address);
        match opened {
            Ok(id) => Some(AdmittedConnection { admission: self.clone(), id, address }),
            Err(refusal) => {
                self.note_refusal(address, refusal);
                None
            }
        }
    }

    fn note_refusal(&self, address: IpAddr, refusal: PlaceRefusal) {
        let due = self.places.lock().note_refusal((self.clock)());
        if let Some(refused) = due {
            let reason = refusal.reason();
            tracing::warn!(%address, refused, reason, "connections closed: the listener is at its bounds");
        }
    }
}

impl AdmittedConnection {
    /// The handshake has ended; false if there is no place for the connection.
    fn establish(&self, agent: Option<AgentId>) -> bool {
        let established = self.admission.places.lock().establish(self.id, agent);
        established.map_err(|refusal| self.admission.note_refusal(self.address, refusal)).is_ok()
    }
}

impl Drop for AdmittedConnection {
    fn drop(&mut self) {
        self.admission.places.lock().end(self.id);
    }
}

impl Listening {
    /// Serves until told to stop; then lets requests under way end.
    pub async fn run(self) {
        let mut stop = self.stop.clone();
        let mut tasks = JoinSet::new();
        let admission = Admission::new(&self);
        let shared = Arc::new(self);
        loop {
            while tasks.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = shared.listener.accept() => accepted,
                () = stopped(&mut stop) => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    let _ = stream.set_nodelay(true);
                    let shared = shared.clone();
                    if let Some(tls) = &shared.tls {
                        let tls = tls.read().clone();
                        let (admitted, displaced) = admission.begin(address.ip());
                        tasks.spawn(async move {
                            let handshake = tls.accept(stream);
                            shared.secure_connection(handshake, address, &admitted, displaced).await;
                        });
                    } else if let Some(admitted) = admission.open(address.ip()) {
                        tasks.spawn(async move {
                            let origin = Origin { address, secure: false, identity: Ok(None) };
                            shared.requests(stream, origin, None).await;
                            drop(admitted);
                        });
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
        let _ = tokio::time::timeout(STOP_GRACE, async { while tasks.join_next().await.is_some() {} }).await;
    }

    async fn secure_connection(
        &self,
        handshake: tokio_rustls::Accept<TcpStream>,
        address: SocketAddr,
        admitted: &AdmittedConnection,
        displaced: oneshot::Receiver<()>,
    ) {
        let ended = tokio::select! {
            ended = tokio::time::timeout(self.limits.head(), handshake) => ended,
            _ = displaced => return,
        };
        match ended {
            Ok(Ok(stream)) => {
                let (connection, trust) = (stream.get_ref().1, self.users.trust());
                let now = (self.clock)();
                let identity = longhaul_security::identify_client(connection, &self.deployment, trust, now);
                if !admitted.establish(agent_of(&identity)) {
                    return;
                }
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
        let mut connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head())
            .max_headers(HEADER_LINES_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(io, service);
        let mut stop = self.stop.clone();
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = stopped(&mut stop) => {
                Pin::new(&mut connection).graceful_shutdown();
                (&mut connection).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%address, %error, "connection ended");
            linger(connection.into_parts().io.into_inner()).await;
        }
    }
}

/// The agent of this deployment that showed its certificate.
fn agent_of(identity: &Result<Option<ClientIdentity>, Fault>) -> Option<AgentId> {
    match identity {
        Ok(Some(ClientIdentity::Agent(PeerIdentity::Agent { agent, .. }))) => Some(*agent),
        _ => None,
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
