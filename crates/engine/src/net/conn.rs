//! One stream: socket, TLS, frames, and whose session it serves.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_security::io_fault;
use longhaul_wire::health::{Health, Pulse};
use longhaul_wire::source::Joined;
use longhaul_wire::{Frame, Hello, Piece, Splitter, StreamNumber, VERSIONS, Welcome};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::HANDSHAKE_MAX;
use super::link::{Link, Outgoing};
use crate::fetch::{Arrival, Session};
use crate::serve::Serving;
use crate::shared::Shared;
use crate::socket;
use crate::tls::{Received, Tls};

/// Socket reads of one stream before the others have their turn.
const READS_PER_TURN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Waits,
    HasMore,
    Over,
}

pub(super) struct Conn {
    socket: TcpStream,
    connected: bool,
    tls: Tls,
    sending: Option<Sending>,
    inner: Inner,
}

struct Sending {
    outgoing: Outgoing,
    /// Of head and payload together.
    at: usize,
}

/// What handles plaintext; apart from the socket and TLS, which produce it.
struct Inner {
    splitter: Splitter,
    role: Role,
    link: Arc<Link>,
    peer: Option<AgentId>,
    deadline: Option<Duration>,
    health: Health,
    /// Where the payload at hand goes; none if it is not wanted.
    arrival: Option<Arrival>,
    payload_bytes: u64,
}

enum Role {
    /// We dialled; welcomed or not.
    Fetching {
        session: Arc<Session>,
        stream: StreamNumber,
        welcomed: bool,
        others: VecDeque<SocketAddr>,
    },
    /// Somebody dialled us, and has not said what for.
    Stranger,
    Serving {
        serving: Arc<Serving>,
        joined: Joined,
    },
}

impl Conn {
    pub(super) fn accepted(socket: TcpStream, link: Arc<Link>, shared: &Shared) -> Result<Conn, Fault> {
        socket::prepare(&socket, shared);
        let tls = Tls::server(&shared.tls().server, &shared.deployment)?;
        Ok(Conn::new(socket, true, tls, Role::Stranger, link, shared))
    }

    pub(super) fn dialled(
        session: Arc<Session>,
        stream: StreamNumber,
        addresses: Vec<SocketAddr>,
        link: Arc<Link>,
        shared: &Shared,
    ) -> Result<Conn, Fault> {
        let mut others: VecDeque<SocketAddr> = addresses.into();
        let socket = connect(&mut others, shared)?;
        let tls = Tls::client(&shared.tls().client, &shared.deployment)?;
        let role = Role::Fetching { session, stream, welcomed: false, others };
        Ok(Conn::new(socket, false, tls, role, link, shared))
    }

    fn new(
        socket: TcpStream,
        connected: bool,
        tls: Tls,
        role: Role,
        link: Arc<Link>,
        shared: &Shared,
    ) -> Conn {
        let now = shared.now();
        let inner = Inner {
            splitter: Splitter::default(),
            role,
            link,
            peer: None,
            deadline: Some(now + HANDSHAKE_MAX),
            health: Health::new(now),
            arrival: None,
            payload_bytes: 0,
        };
        Conn { socket, connected, tls, sending: None, inner }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> Result<(), Fault> {
        registry
            .register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
            .map_err(|error| Fault::new(FaultCode::Internal, format!("watching a socket: {error}")))
    }

    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.inner.role, Role::Stranger)
    }

    /// Time-outs. An error ends the stream.
    pub(super) fn check(&mut self, now: Duration) -> Result<(), Fault> {
        if self.inner.deadline.is_some_and(|deadline| now >= deadline) {
            let seconds = HANDSHAKE_MAX.as_secs();
            return Err(Fault::new(
                FaultCode::Unreachable,
                format!("the peer did not say hello within {seconds} s"),
            ));
        }
        if let Role::Serving { .. } = self.inner.role {
            match self.inner.health.check(now) {
                Pulse::Fine => {}
                Pulse::Ask(number) => self.inner.link.send_frame(&Frame::Ping { number }),
                Pulse::Dead => return Err(Fault::new(FaultCode::Stalled, "the target fell silent")),
            }
        }
        Ok(())
    }

    pub(super) fn drive(
        &mut self,
        readable: bool,
        registry: &Registry,
        token: Token,
        shared: &Arc<Shared>,
    ) -> Result<Progress, Fault> {
        match self.drive_on(readable, shared) {
            Err(fault) if self.try_next_address(&fault, registry, token, shared) => Ok(Progress::Waits),
            other => other,
        }
    }

    fn drive_on(&mut self, readable: bool, shared: &Arc<Shared>) -> Result<Progress, Fault> {
        if !self.connected && !self.is_connected()? {
            return Ok(Progress::Waits);
        }
        let mut progress = Progress::Waits;
        if readable {
            progress = self.read(shared)?;
        }
        self.write()?;
        if let Some(fault) = self.inner.link.closing() {
            return fault.map_or(Ok(Progress::Over), Err);
        }
        Ok(progress)
    }

    fn is_connected(&mut self) -> Result<bool, Fault> {
        if let Some(error) = self.socket.take_error().map_err(|error| io_fault(&error))? {
            return Err(io_fault(&error));
        }
        match self.socket.peer_addr() {
            Ok(_) => self.connected = true,
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {}
            Err(error) => return Err(io_fault(&error)),
        }
        Ok(self.connected)
    }

    /// Reads until the socket is empty or the turn is over.
    fn read(&mut self, shared: &Arc<Shared>) -> Result<Progress, Fault> {
        for _ in 0..READS_PER_TURN {
            let inner = &mut self.inner;
            let received = self.tls.receive(&mut self.socket, &mut |bytes| inner.take(bytes, shared));
            self.inner.heard(shared);
            let received = received?;
            if self.inner.peer.is_none()
                && let Some(peer) = self.tls.peer()
            {
                self.inner.peer_known(peer, shared)?;
            }
            match received {
                Received::Drained => return Ok(Progress::Waits),
                Received::Closed => {
                    return Err(Fault::new(FaultCode::ConnectionLost, "the peer closed the connection"));
                }
                Received::More => {}
            }
        }
        Ok(Progress::HasMore)
    }

    /// Seals and sends until the socket takes no more or nothing is left.
    fn write(&mut self) -> Result<(), Fault> {
        self.inner.link.looked_at();
        loop {
            let all_sealed = self.seal()?;
            if !self.tls.flush(&mut self.socket)? || all_sealed {
                return Ok(());
            }
        }
    }

    /// Fills the space for sealed bytes. True if there is nothing more to seal.
    fn seal(&mut self) -> Result<bool, Fault> {
        if self.tls.peer().is_none() {
            return Ok(true);
        }
        loop {
            if self.sending.is_none() {
                self.sending = self.inner.link.next().map(|outgoing| Sending { outgoing, at: 0 });
            }
            let Some(sending) = &mut self.sending else { return Ok(true) };
            while let Some(rest) = sending.rest() {
                let taken = self.tls.send(rest)?;
                if taken == 0 {
                    return Ok(false);
                }
                sending.at += taken;
            }
            if let Some(payload) = self.sending.take().and_then(|sending| sending.outgoing.payload) {
                payload.finish();
            }
        }
    }

    /// A step of ours panicked.
    pub(super) fn broken(&self, fault: &Fault) {
        if let Role::Fetching { session, .. } = &self.inner.role {
            session.broken(fault);
        }
    }

    /// Closes the stream and tells its session.
    pub(super) fn shut(&mut self, fault: Option<Fault>, shared: &Shared) {
        let told = Frame::Goodbye { fault: fault.clone() }.encode(0);
        if self.sending.is_none() {
            // Whether the peer hears it does not matter: then it sees the stream end.
            let _ = self.tls.send(&told);
        }
        self.tls.close();
        let _ = self.tls.flush(&mut self.socket);
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        self.inner.link.abandon();
        self.sending = None;
        let arrival = self.inner.arrival.take();
        let peer = self.inner.peer;
        match &self.inner.role {
            Role::Fetching { session, stream, .. } => {
                let fault =
                    fault.unwrap_or_else(|| Fault::new(FaultCode::ConnectionLost, "the stream was closed"));
                tracing::debug!(source = %session.peer(), stream = stream.0, %fault, "a stream ended");
                session.lost(arrival);
                session.stream_down(*stream, fault);
            }
            Role::Serving { serving, joined } => {
                if let Some(fault) = fault {
                    tracing::debug!(?peer, %fault, "a served stream ended");
                }
                serving.stream_down(*joined);
                shared.network.accepted.fetch_sub(1, Ordering::Relaxed);
            }
            Role::Stranger => {
                if let Some(fault) = fault {
                    let from = self.socket.peer_addr().map(|from| from.to_string()).unwrap_or_default();
                    tracing::info!(from, %fault, "a stream was refused");
                }
                shared.network.accepted.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether another address of the peer is being tried after this fault.
    pub(super) fn try_next_address(
        &mut self,
        fault: &Fault,
        registry: &Registry,
        token: Token,
        shared: &Arc<Shared>,
    ) -> bool {
        let Role::Fetching { welcomed: false, others, .. } = &mut self.inner.role else { return false };
        if others.is_empty() {
            return false;
        }
        tracing::debug!(%fault, "trying the peer's next address");
        let Ok(mut socket) = connect(others, shared) else { return false };
        let Ok(tls) = Tls::client(&shared.tls().client, &shared.deployment) else { return false };
        let _ = registry.deregister(&mut self.socket);
        if registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE).is_err() {
            return false;
        }
        self.socket = socket;
        self.tls = tls;
        self.connected = false;
        self.inner.peer = None;
        self.inner.splitter = Splitter::default();
        self.inner.deadline = Some(shared.now() + HANDSHAKE_MAX);
        true
    }
}

/// Begins to connect to the first address that the system does not refuse at once.
fn connect(addresses: &mut VecDeque<SocketAddr>, shared: &Shared) -> Result<TcpStream, Fault> {
    let mut last = Fault::new(FaultCode::Unreachable, "the peer has no address");
    while let Some(address) = addresses.pop_front() {
        match TcpStream::connect(address) {
            Ok(socket) => {
                socket::prepare(&socket, shared);
                return Ok(socket);
            }
            Err(error) => last = Fault::new(FaultCode::Unreachable, format!("{address}: {error}")),
        }
    }
    Err(last)
}

impl Sending {
    /// What is next, of the head first.
    fn rest(&self) -> Option<&[u8]> {
        let head = &self.outgoing.head;
        if self.at < head.len() {
            return Some(&head[self.at..]);
        }
        let payload = self.outgoing.payload.as_ref()?.bytes();
        let at = self.at - head.len();
        (at < payload.len()).then(|| &payload[at..])
    }
}

impl Inner {
    /// The handshake is done.
    fn peer_known(&mut self, peer: AgentId, shared: &Shared) -> Result<(), Fault> {
        self.peer = Some(peer);
        if let Role::Fetching { session, .. } = &self.role {
            if peer != session.peer() {
                let detail = format!("the agent {peer} answered in place of {}", session.peer());
                return Err(Fault::new(FaultCode::Unreachable, detail));
            }
            let hello = Hello { versions: VERSIONS, session: session.id(), key: session.key() };
            self.link.send_frame(&Frame::Hello(hello));
        }
        self.health.heard(shared.now());
        Ok(())
    }

    fn heard(&mut self, shared: &Shared) {
        let now = shared.now();
        self.health.heard(now);
        let payload = std::mem::take(&mut self.payload_bytes);
        if let Role::Fetching { session, stream, welcomed: true, .. } = &self.role {
            session.heard(*stream, payload, now);
        }
    }

    fn take(&mut self, mut bytes: &[u8], shared: &Arc<Shared>) -> Result<(), Fault> {
        if self.peer.is_none() {
            // Data came with the last message of the handshake, before the caller could say who it is.
            return Err(Fault::new(FaultCode::ProtocolError, "data before the hello"));
        }
        while let Some(piece) = self.splitter.next(&mut bytes)? {
            match piece {
                Piece::Payload(part) => {
                    self.payload_bytes += part.len() as u64;
                    if let Some(arrival) = &mut self.arrival {
                        arrival.fill(part);
                        if arrival.is_void() {
                            self.arrival = None;
                        }
                    }
                }
                Piece::PayloadEnd => {
                    if let Role::Fetching { session, stream, .. } = &self.role {
                        session.arrived(*stream, self.arrival.take());
                    }
                }
                Piece::Frame { frame, payload_len } => self.frame(frame, payload_len, shared)?,
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: Frame, payload_len: u32, shared: &Arc<Shared>) -> Result<(), Fault> {
        match (&mut self.role, frame) {
            (Role::Fetching { session, stream, welcomed: true, .. }, frame) => {
                self.arrival = match frame {
                    Frame::Data(head) => session.chunk_begins(*stream, &head, payload_len)?,
                    Frame::PackData(head) => session.pack_begins(*stream, &head, payload_len)?,
                    frame => {
                        session.frame(*stream, frame)?;
                        None
                    }
                };
                Ok(())
            }
            (Role::Fetching { session, stream, welcomed, .. }, Frame::Welcome(welcome)) => {
                if !VERSIONS.contains(welcome.version) {
                    return Err(Fault::new(
                        FaultCode::VersionMismatch,
                        "the source chose a version that was not offered",
                    ));
                }
                *welcomed = true;
                self.deadline = None;
                session.stream_up(*stream, welcome.incarnation, self.link.clone());
                Ok(())
            }
            (Role::Serving { serving, joined }, frame) => {
                if frame.carries_payload() {
                    return Err(Fault::new(FaultCode::ProtocolError, "a receiver sends no data"));
                }
                serving.frame(*joined, frame)
            }
            (Role::Stranger, Frame::Hello(hello)) => self.welcome(&hello, shared),
            (_, Frame::Goodbye { fault: Some(fault) }) => Err(fault),
            _ => Err(Fault::new(FaultCode::ProtocolError, "the stream does not begin with a hello")),
        }
    }

    fn welcome(&mut self, hello: &Hello, shared: &Arc<Shared>) -> Result<(), Fault> {
        let Some(version) = VERSIONS.common(hello.versions) else {
            let detail = format!("the target speaks versions {}, the source {VERSIONS}", hello.versions);
            return Err(Fault::new(FaultCode::VersionMismatch, detail));
        };
        let Some(peer) = self.peer else { return Err(Fault::new(FaultCode::NotAuthenticated, "")) };
        let (serving, joined) = shared.serve.join(peer, hello, self.link.clone(), shared)?;
        self.link.send_frame(&Frame::Welcome(Welcome { version, incarnation: serving.incarnation() }));
        self.deadline = None;
        self.role = Role::Serving { serving, joined };
        Ok(())
    }
}
