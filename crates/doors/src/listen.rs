//! The listener: connections are accepted within limits, brought through TLS, and served one request after
//! the other, each step with a timeout.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use longhaul_model::hex;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::AddressCounts;
use longhaul_storage::Storage;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tokio_rustls::TlsAcceptor;

use crate::serve::{DoorContext, Peer, serve};
use crate::settings::{Access, Limits, Settings};

/// Head of a request, all its lines; a piece of a body is not larger either.
const BUFFER_BYTES_MAX: usize = 128 << 10;
const HEADER_LINES_MAX: usize = 100;
/// Several TLS records in one call.
const SOCKET_READ_BYTES: usize = 256 << 10;
/// Encrypted at once before the socket is asked: so many records leave in one call.
const TLS_BUFFER_BYTES: usize = 256 << 10;
/// After a failed accept (no file descriptor left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Requests that are being answered at a stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A future that is compiled here and not once more in every crate that awaits it (decision 0036).
type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One storage, open at some addresses.
pub struct Door {
    shared: Arc<DoorContext>,
    listeners: Vec<TcpListener>,
}

impl Door {
    /// Listens, and removes what a killed predecessor left of files that were on their way in.
    pub fn open(
        settings: Settings,
        access: Access,
        listen: &[SocketAddr],
    ) -> BoxFuture<'_, Result<Door, Fault>> {
        Box::pin(Door::open_at(settings, access, listen))
    }

    async fn open_at(settings: Settings, access: Access, listen: &[SocketAddr]) -> Result<Door, Fault> {
        let mut listeners = Vec::with_capacity(listen.len());
        for address in listen {
            let listener = TcpListener::bind(address).await.map_err(|error| {
                let detail =
                    format!("the door of {} cannot listen at {address}: {error}", settings.storage.name());
                Fault::new(FaultCode::from_listen_error(error.kind()), detail).with_source(error)
            })?;
            listeners.push(listener);
        }
        let (storage, owner) = (settings.storage.clone(), settings.owner);
        let tidied = tokio::task::spawn_blocking(move || remove_stale_temps(storage.as_ref(), owner)).await;
        if let Ok(Err(fault)) = tidied {
            tracing::warn!(fault = %fault.chain(), "what an earlier run left of files stays for now");
        }
        let run = random().map_err(|error| {
            Fault::new(FaultCode::Internal, format!("/dev/urandom: {error}")).with_source(error)
        })?;
        Ok(Door { shared: Arc::new(DoorContext::new(settings, access, run)?), listeners })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Replaces settings while the door is open.
    pub fn renewer(&self) -> Renewer {
        Renewer(self.shared.clone())
    }

    /// Serves until `stop` is true or its sender is gone; requests under way have a moment to end.
    pub fn run(self, stop: watch::Receiver<bool>) -> BoxFuture<'static, ()> {
        Box::pin(self.serve_until(stop))
    }

    async fn serve_until(self, stop: watch::Receiver<bool>) {
        let bounds = Arc::new(ConnectionLimits::new(&self.shared.settings.limits));
        let mut listening = JoinSet::new();
        for listener in self.listeners {
            listening.spawn(listen(self.shared.clone(), listener, bounds.clone(), stop.clone()));
        }
        while listening.join_next().await.is_some() {}
    }
}

/// Replaces certificates and rights of a door; connections that are open keep the certificate that they began
/// with.
pub struct Renewer(Arc<DoorContext>);

impl Renewer {
    pub fn renew(&self, access: Access) {
        self.0.replace_access(access);
    }
}

fn remove_stale_temps(storage: &dyn Storage, owner: [u8; 8]) -> Result<(), Fault> {
    if !storage.capabilities().writable {
        return Ok(());
    }
    let mark = hex::encode(&owner);
    for temp in storage.temps()?.iter().filter(|temp| temp.as_str().starts_with(&mark)) {
        storage.remove_temp(temp)?;
    }
    Ok(())
}

fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

/// How many connections there may be, in all and from one address; the addresses of an IPv6 /64 are one.
struct ConnectionLimits {
    all: Arc<Semaphore>,
    of_address_max: usize,
    of_addresses: Mutex<AddressCounts>,
}

/// Counts one connection against both limits until it is dropped.
struct ConnectionPermit {
    bounds: Arc<ConnectionLimits>,
    address: IpAddr,
    _one: tokio::sync::OwnedSemaphorePermit,
}

impl ConnectionLimits {
    fn new(limits: &Limits) -> ConnectionLimits {
        ConnectionLimits {
            all: Arc::new(Semaphore::new(limits.connections)),
            of_address_max: limits.connections_of_address,
            of_addresses: Mutex::default(),
        }
    }

    /// None if the address has its share already.
    fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        one: tokio::sync::OwnedSemaphorePermit,
    ) -> Option<ConnectionPermit> {
        let admitted = self.of_addresses.lock().add(address, self.of_address_max);
        admitted.then(|| ConnectionPermit { bounds: self.clone(), address, _one: one })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.bounds.of_addresses.lock().remove(self.address);
    }
}

async fn listen(
    shared: Arc<DoorContext>,
    listener: TcpListener,
    bounds: Arc<ConnectionLimits>,
    mut stop: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let one = tokio::select! {
            one = bounds.all.clone().acquire_owned() => one,
            () = stopped(&mut stop) => break,
        };
        let Ok(one) = one else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let Some(seat) = bounds.admit(address.ip(), one) else { continue };
                let (shared, stop) = (shared.clone(), stop.clone());
                tasks.spawn(async move {
                    connection(shared, stream, address, stop).await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a door cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let _ = tokio::time::timeout(STOP_GRACE, async { while tasks.join_next().await.is_some() {} }).await;
}

async fn connection(
    shared: Arc<DoorContext>,
    stream: TcpStream,
    address: SocketAddr,
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let limits = shared.settings.limits;
    let access = shared.access();
    let acceptor = TlsAcceptor::from(access.tls.clone());
    let stream = BufReader::with_capacity(SOCKET_READ_BYTES, with_write_timeout(stream, limits.stall));
    let accept = acceptor.accept_with(stream, |tls| tls.set_buffer_limit(Some(TLS_BUFFER_BYTES)));
    match tokio::time::timeout(limits.head, accept).await {
        Ok(Ok(stream)) => {
            let connection: &rustls::CommonState = stream.get_ref().1;
            let subjects = match &shared.settings.users {
                Some(users) => users.names(connection),
                None => Ok(longhaul_security::subject_names(connection, access.identities)),
            };
            let subjects = subjects.map(Arc::from).map_err(|fault| Arc::from(fault.detail));
            let ends = longhaul_security::peer_chain_expires(connection);
            let certificate_ends = ends.map_or(jiff::Timestamp::MAX, to_jiff);
            requests(shared, stream, Peer { address, subjects, certificate_ends }, stop).await;
        }
        Ok(Err(error)) => {
            tracing::debug!(%address, fault = %longhaul_security::io_fault(error), "handshake failed")
        }
        Err(_) => tracing::debug!(%address, "no handshake in time"),
    }
}

fn to_jiff(time: longhaul_model::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(time.0).unwrap_or(jiff::Timestamp::MAX)
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin>(
    shared: Arc<DoorContext>,
    stream: S,
    peer: Peer,
    mut stop: watch::Receiver<bool>,
) {
    let (head, address) = (shared.settings.limits.head, peer.address);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (shared, peer) = (shared.clone(), peer.clone());
        async move { Ok::<_, Infallible>(serve(shared, peer, request).await) }
    });
    let mut connection = std::pin::pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .max_headers(HEADER_LINES_MAX)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
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

/// A stream whose peer must take what is sent to it: a write that makes no progress for so long is an error.
/// Reading is timed where it is known whether the peer has to send.
pub(crate) fn with_write_timeout(stream: TcpStream, stall: Duration) -> Pin<Box<TimeoutWriter<TcpStream>>> {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(stall));
    Box::pin(stream)
}

/// Returns at a stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections of these addresses that are admitted in turn, all of them held open.
    fn admitted(of_address_max: usize, addresses: &[&str]) -> Vec<bool> {
        let limits = Limits { connections: 100, connections_of_address: of_address_max, ..Limits::default() };
        let bounds = Arc::new(ConnectionLimits::new(&limits));
        let mut open = Vec::new();
        let admit = |address: &&str| {
            let one = bounds.all.clone().try_acquire_owned().unwrap();
            let permit = bounds.admit(address.parse().unwrap(), one);
            let is_admitted = permit.is_some();
            open.extend(permit);
            is_admitted
        };
        addresses.iter().map(admit).collect()
    }

    #[test]
    fn a_host_with_many_addresses_has_the_share_of_one() {
        let one_network = ["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:ffff:ffff:ffff:ffff"];
        assert_eq!(admitted(2, &one_network), [true, true, false]);
        assert_eq!(admitted(1, &["2001:db8:0:1::1", "2001:db8:0:2::1"]), [true, true], "two networks");
        assert_eq!(admitted(1, &["192.0.2.1", "::ffff:192.0.2.1"]), [true, false], "one address, mapped");
        assert_eq!(admitted(1, &["192.0.2.1", "192.0.2.2"]), [true, true], "two addresses of IPv4");
    }

    #[test]
    fn a_closed_connection_gives_its_place_back() {
        let limits = Limits { connections_of_address: 1, ..Limits::default() };
        let bounds = Arc::new(ConnectionLimits::new(&limits));
        let admit = |address: &str| {
            bounds.admit(address.parse().unwrap(), bounds.all.clone().try_acquire_owned().unwrap())
        };
        let first = admit("2001:db8::1");
        assert!(first.is_some() && admit("2001:db8::2").is_none());
        drop(first);
        assert!(admit("2001:db8::2").is_some());
        assert!(bounds.of_addresses.lock().is_empty(), "nothing is left of those that went");
    }
}
