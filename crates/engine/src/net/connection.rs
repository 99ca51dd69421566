//! One data stream: a non-blocking TCP socket and its TLS state. [`StreamHandler`] handles the plaintext.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_model::{AgentId, Fault, FaultCode, TrafficClass};
use longhaul_security::io_fault;
use longhaul_wire::Frame;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::DialRace;
use super::link::{Link, Outgoing, Payload};
use super::role::{Plaintext, Role, StreamHandler};
use super::sampler::Sampler;
use super::scavenger_window::ScavengerWindow;
use crate::context::EngineContext;
use crate::marks::{Flow, FlowEnd};
use crate::paths::ResolvedPath;
use crate::socket;
use crate::tcp::TcpInfo;
use crate::tls::{RECORDS_PER_KEY, ReadStatus, Tls};

/// Socket reads of one stream before the event loop turns to the others (fairness between streams).
const READS_PER_TURN_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionProgress {
    Blocked,
    HasMore,
    Closed,
}

pub(super) struct Connection {
    socket: TcpStream,
    connected: bool,
    tls: Tls,
    sending: Option<OutgoingProgress>,
    accepted: bool,
    sampler: Sampler,
    scavenger: Option<ScavengerWindow>,
    /// Present on a stream with a SciTags mark.
    flow: Option<Flow>,
    /// Payload bytes sent before the mark was known.
    sent_unmarked: u64,
    handler: StreamHandler,
}

struct OutgoingProgress {
    outgoing: Outgoing,
    /// Bytes sent, counted over head and payload together.
    at: usize,
}

impl Connection {
    pub(super) fn accepted(
        socket: TcpStream,
        link: Arc<Link>,
        shared: &EngineContext,
    ) -> Result<Connection, Fault> {
        socket::prepare_accepted(&socket, &shared.config.path);
        let tls = Tls::server(&shared.tls().server, &shared.deployment, records_per_key(shared))?;
        let inner = StreamHandler::new(Role::Stranger, link, shared);
        Ok(Connection {
            socket,
            connected: true,
            tls,
            sending: None,
            accepted: true,
            sampler: Sampler::default(),
            scavenger: None,
            flow: None,
            sent_unmarked: 0,
            handler: inner,
        })
    }

    pub(super) fn dialled(
        race: Arc<DialRace>,
        way: ResolvedPath,
        link: Arc<Link>,
        shared: &EngineContext,
    ) -> Result<Connection, Fault> {
        let profile = way.path.profile.as_ref().unwrap_or(&shared.config.path);
        let socket = {
            // The flow label of each flow has its own entropy bits.
            let marks = shared.marks.as_deref().map(|marks| (marks, shared.random_number() as u32));
            socket::connect(way.address, way.path.local, profile, race.dialler.treatment(), marks)?
        };
        let tls = match race.dialler.membership() {
            Some(other) => Tls::client(other.client(), other.deployment(), records_per_key(shared))?,
            None => Tls::client(&shared.tls().client, &shared.deployment, records_per_key(shared))?,
        };
        let role = Role::Dialling { race, way, connected: false };
        let inner = StreamHandler::new(role, link, shared);
        Ok(Connection {
            socket,
            connected: false,
            tls,
            sending: None,
            accepted: false,
            sampler: Sampler::default(),
            scavenger: None,
            flow: None,
            sent_unmarked: 0,
            handler: inner,
        })
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> Result<(), Fault> {
        registry.register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE).map_err(|error| {
            Fault::new(FaultCode::Internal, format!("watching a socket: {error}")).with_source(error)
        })
    }

    pub(super) fn is_unauthenticated(&self) -> bool {
        matches!(self.handler.role, Role::Stranger)
    }

    /// Samples `TCP_INFO` of the socket, about once a second.
    pub(super) fn sample(&mut self, shared: &EngineContext) {
        self.sampler.sample(&self.socket, &mut self.handler, shared, shared.now());
        if let Some(flow) = &mut self.flow {
            flow.report_progress(&self.socket, shared);
        }
    }

    /// Whether the stream belongs to a session of the scavenger class.
    pub(super) fn is_scavenger(&self) -> bool {
        matches!(
            &self.handler.role,
            Role::Fetching { session, .. } if session.class() == TrafficClass::Scavenger
        )
    }

    /// Adjusts the receive window of a scavenger stream.
    pub(super) fn scavenge(&mut self, now: Duration) {
        if !self.is_scavenger() || self.tls.peer().is_none() {
            return;
        }
        let scavenging = self.scavenger.get_or_insert_with(|| ScavengerWindow::new(now));
        if scavenging.update(&self.socket, now) {
            // The acknowledgement of this frame is what measures the round trip.
            self.handler.link.send_frame(&Frame::Ping { number: 0 });
        }
    }

    /// Checks the stream's deadlines. An error ends the stream.
    pub(super) fn check_timeouts(&mut self, now: Duration) -> Result<(), Fault> {
        if self.handler.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Fault::new(FaultCode::Unreachable, "the peer did not say hello in time"));
        }
        self.handler.check_keepalive(self.sampler.round_trip(), now)
    }

    pub(super) fn drive(
        &mut self,
        readable: bool,
        shared: &Arc<EngineContext>,
    ) -> Result<ConnectionProgress, Fault> {
        if !self.connected && !self.is_connected(shared)? {
            return Ok(ConnectionProgress::Blocked);
        }
        self.handler.adopt_session(shared);
        let mut progress = ConnectionProgress::Blocked;
        if readable {
            progress = self.read(shared)?;
            if self.sampler.is_new() {
                self.sample(shared);
            }
        }
        if let Err(fault) = self.write() {
            return Err(self.read_reason(shared).unwrap_or(fault));
        }
        if let Some(fault) = self.handler.link.take_close() {
            return fault.map_or(Ok(ConnectionProgress::Closed), Err);
        }
        Ok(progress)
    }

    /// Starts the flow of a stream that was given a mark.
    fn begin_flow(&mut self, shared: &EngineContext) {
        let (Some(marks), Some(mark)) = (&shared.marks, self.handler.mark.take()) else { return };
        let end =
            if matches!(self.handler.role, Role::Serving { .. }) { FlowEnd::Source } else { FlowEnd::Target };
        let flow = Flow::begin(marks, &self.socket, end, mark, shared);
        flow.count(std::mem::take(&mut self.sent_unmarked));
        self.flow = Some(flow);
    }

    fn is_connected(&mut self, shared: &EngineContext) -> Result<bool, Fault> {
        if let Some(error) = self.socket.take_error().map_err(io_fault)? {
            return Err(match &self.handler.role {
                Role::Dialling { way, .. } => socket::connect_fault(way.address, error),
                _ => io_fault(error),
            });
        }
        match self.socket.peer_addr() {
            Ok(_) => {
                self.connected = true;
                let round_trip = self.round_trip();
                self.handler.handle_connected(round_trip, shared)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {}
            Err(error) => return Err(io_fault(error)),
        }
        Ok(self.connected)
    }

    /// The round trip time that the kernel has measured so far; zero if there is no measurement.
    fn round_trip(&self) -> Duration {
        TcpInfo::read_from(self.socket.as_fd()).map_or(Duration::ZERO, |info| info.round_trip)
    }

    /// Reads until the socket is empty or the stream has had its turn.
    fn read(&mut self, shared: &Arc<EngineContext>) -> Result<ConnectionProgress, Fault> {
        for _ in 0..READS_PER_TURN_MAX {
            let inner = &mut self.handler;
            let received = self.tls.receive(&mut self.socket, &mut Plaintext { inner, shared });
            let payload = self.handler.note_received(shared);
            self.begin_flow(shared);
            if let Some(flow) = &self.flow {
                flow.count(payload);
            }
            let received = received?;
            if let Some(peer) = self.handler.peer {
                shared.refused_peers.check(peer)?;
            }
            if self.handler.peer.is_none()
                && let Some(peer) = self.tls.peer()
            {
                self.check_access(peer, shared)?;
                let round_trip = self.round_trip();
                self.handler.handle_authenticated(peer, round_trip, shared)?;
            }
            match received {
                ReadStatus::Drained => return Ok(ConnectionProgress::Blocked),
                ReadStatus::Closed => {
                    return Err(Fault::new(FaultCode::ConnectionLost, "the peer closed the connection"));
                }
                ReadStatus::More => {}
            }
        }
        Ok(ConnectionProgress::HasMore)
    }

    /// The reason that a peer gave before it closed the connection. A peer that has not read everything
    /// resets it, and then writing fails; Linux still delivers what had arrived before.
    fn read_reason(&mut self, shared: &Arc<EngineContext>) -> Option<Fault> {
        self.read(shared).err().filter(|told| told.code != FaultCode::ConnectionLost)
    }

    /// Whether the peer may connect, once it is authenticated. A peer that dialled this agent receives the
    /// text of the refusal.
    fn check_access(&self, peer: AgentId, shared: &EngineContext) -> Result<(), Fault> {
        shared.refused_peers.check(peer)?;
        let Some(identity) = self.tls.identity().filter(|_| self.accepted) else { return Ok(()) };
        shared.config.access.check_subject(identity).inspect_err(|_| {
            shared.counters.refused_subjects.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Seals and sends until the socket accepts no more or nothing is left.
    fn write(&mut self) -> Result<(), Fault> {
        self.handler.link.clear_notified();
        loop {
            let all_sealed = self.seal()?;
            if !self.tls.flush(&mut self.socket)? || all_sealed {
                return Ok(());
            }
        }
    }

    /// Fills the send buffer with sealed records. Returns true if there is nothing more to seal.
    fn seal(&mut self) -> Result<bool, Fault> {
        if self.tls.peer().is_none() {
            return Ok(true);
        }
        loop {
            if self.sending.is_none() {
                self.sending =
                    self.handler.link.next_outgoing().map(|outgoing| OutgoingProgress { outgoing, at: 0 });
            }
            let Some(sending) = &mut self.sending else { return Ok(true) };
            while let Some(rest) = sending.rest() {
                let taken = self.tls.send(rest, &mut self.socket)?;
                if taken == 0 {
                    return Ok(false);
                }
                sending.at += taken;
            }
            if let Some(OutgoingProgress { outgoing: Outgoing { payload, call, .. }, .. }) =
                self.sending.take()
            {
                let bytes = payload.as_ref().map_or(0, |payload| payload.bytes().len() as u64);
                match &self.flow {
                    Some(flow) => flow.count(bytes),
                    None => self.sent_unmarked += bytes,
                }
                payload.into_iter().for_each(Payload::finish);
                drop(call);
            }
        }
    }

    /// Reports a panic in this engine's handling of the stream.
    pub(super) fn abort(&self, fault: &Fault) {
        self.handler.abort(fault);
    }

    /// Closes the stream and reports its end to its user.
    pub(super) fn close(&mut self, fault: Option<Fault>, shared: &Arc<EngineContext>) {
        let told = Frame::Goodbye { fault: fault.clone() }.encode(0);
        if self.sending.is_none() {
            // A peer that does not receive the fault still sees the stream end.
            let _ = self.tls.send(&told, &mut self.socket);
        }
        self.tls.close();
        let _ = self.tls.flush(&mut self.socket);
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        self.handler.link.abandon();
        self.sending = None;
        if self.is_unauthenticated()
            && let Some(fault) = &fault
        {
            let from = self.socket.peer_addr().map(|from| from.to_string()).unwrap_or_default();
            match fault.code {
                // Probes of monitoring and of other agents end before they authenticate.
                FaultCode::ConnectionLost => {
                    tracing::debug!(from, fault = %fault.chain(), "a stream ended before it began")
                }
                _ => tracing::info!(from, fault = %fault.chain(), "a stream was refused"),
            }
        }
        if let Some(flow) = self.flow.take() {
            flow.end(&self.socket, shared);
        }
        self.handler.handle_end(fault, shared);
        if self.accepted {
            shared.network.accepted.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn records_per_key(shared: &EngineContext) -> u64 {
    shared.config.path.records_per_key.unwrap_or(RECORDS_PER_KEY)
}

impl OutgoingProgress {
    /// The bytes to send next; the head precedes the payload.
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc::channel;

    use longhaul_model::Timestamp;
    use longhaul_security::{PermitVerifier, data_server_tls};
    use longhaul_testkit::wait_until;
    use rustls::ServerConnection;

    use super::*;
    use crate::calls::CallClient;
    use crate::net::{Dialler, NetworkThread};
    use crate::tls::tests::{authority, credentials};
    use crate::{Config, Engine, Path};

    /// The network thread is about to write, and has not looked whether anything came.
    #[test]
    fn the_reason_of_a_refusal_is_read_although_the_connection_is_reset() {
        let home = tempfile::tempdir().unwrap();
        let authority = authority();
        let credentials = credentials(&authority);
        let config = Config::new(AgentId(7), "test", home.path());
        let permits = PermitVerifier::new(&authority.permit_key_pem()).unwrap();
        let clock = Arc::new(|| Timestamp(0));
        let engine = Engine::start(config, &credentials, permits, Vec::new(), clock, |_| ()).unwrap();
        let shared = engine.context();

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ((shaken, is_shaken), (refuse, may_refuse)) = (channel(), channel::<()>());
        let peer = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut tls = ServerConnection::new(data_server_tls(&credentials).unwrap()).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut socket).unwrap();
            }
            shaken.send(()).unwrap();
            may_refuse.recv().unwrap();
            let fault = Fault::new(FaultCode::NotFound, "nothing to call here");
            tls.writer().write_all(&Frame::Goodbye { fault: Some(fault) }.encode(0)).unwrap();
            while tls.wants_write() {
                tls.write_tls(&mut socket).unwrap();
            }
        });

        let poll = mio::Poll::new().unwrap();
        let link = Link::new(NetworkThread::idle(&poll), 1);
        let way = ResolvedPath { address, path: Arc::new(Path::new(address.to_string())) };
        let dialler = Dialler::Calls(CallClient::new(None));
        let race = Arc::new(DialRace::new(dialler, vec![way.clone()], shared.now()));
        let mut conn = Connection::dialled(race, way, link.clone(), shared).unwrap();
        let shakes = || {
            conn.drive(true, shared).unwrap();
            is_shaken.try_recv().is_ok()
        };
        wait_until(shakes, || "the handshake is not complete".into());
        // The peer does not read this, so that its end is a reset.
        link.send_frame(&Frame::Ping { number: 1 });
        conn.drive(false, shared).unwrap();
        refuse.send(()).unwrap();
        peer.join().unwrap();
        let mut ended = None;
        let writes = || {
            link.send_frame(&Frame::Ping { number: 2 });
            ended = conn.drive(false, shared).err();
            ended.is_some()
        };
        wait_until(writes, || "the connection is not reset".into());
        assert_eq!(ended.map(|fault| fault.code), Some(FaultCode::NotFound));
    }
}
