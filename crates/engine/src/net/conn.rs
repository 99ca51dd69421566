//! One stream: its socket and its TLS. What is done with the plaintext is [`Inner`]'s business.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, TrafficClass};
use longhaul_security::io_fault;
use longhaul_wire::Frame;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::Race;
use super::link::{Link, Outgoing, Payload};
use super::role::{Inner, Plaintext, Role};
use super::sample::Sampler;
use super::scavenge::Scavenging;
use crate::marks::{End, Flow};
use crate::paths::Way;
use crate::shared::Shared;
use crate::socket;
use crate::tcp::TcpInfo;
use crate::tls::{RECORDS_PER_KEY, Received, Tls};

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
    accepted: bool,
    sampler: Sampler,
    scavenging: Option<Scavenging>,
    /// Of a marked stream.
    flow: Option<Flow>,
    /// Payload sent before its mark was known.
    sent_unmarked: u64,
    inner: Inner,
}

struct Sending {
    outgoing: Outgoing,
    /// Of head and payload together.
    at: usize,
}

impl Conn {
    pub(super) fn accepted(socket: TcpStream, link: Arc<Link>, shared: &Shared) -> Result<Conn, Fault> {
        socket::prepare(&socket, &shared.config.path);
        let tls = Tls::server(&shared.tls().server, &shared.deployment, records_per_key(shared))?;
        let inner = Inner::new(Role::Stranger, link, shared);
        Ok(Conn {
            socket,
            connected: true,
            tls,
            sending: None,
            accepted: true,
            sampler: Sampler::default(),
            scavenging: None,
            flow: None,
            sent_unmarked: 0,
            inner,
        })
    }

    pub(super) fn dialled(
        race: Arc<Race>,
        way: Way,
        link: Arc<Link>,
        shared: &Shared,
    ) -> Result<Conn, Fault> {
        let profile = way.path.profile.as_ref().unwrap_or(&shared.config.path);
        let socket = {
            // Each flow has its own entropy in its label.
            let marks = shared.marks.as_deref().map(|marks| (marks, shared.random_number() as u32));
            socket::connect(way.address, way.path.local, profile, race.dialler.treatment(), marks)?
        };
        let tls = match race.dialler.membership() {
            Some(other) => Tls::client(other.client(), other.deployment(), records_per_key(shared))?,
            None => Tls::client(&shared.tls().client, &shared.deployment, records_per_key(shared))?,
        };
        let role = Role::Dialling { race, way, connected: false };
        let inner = Inner::new(role, link, shared);
        Ok(Conn {
            socket,
            connected: false,
            tls,
            sending: None,
            accepted: false,
            sampler: Sampler::default(),
            scavenging: None,
            flow: None,
            sent_unmarked: 0,
            inner,
        })
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> Result<(), Fault> {
        registry
            .register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
            .map_err(|error| Fault::new(FaultCode::Internal, format!("watching a socket: {error}")))
    }

    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.inner.role, Role::Stranger)
    }

    /// Looks at what the kernel knows of the stream, about once a second.
    pub(super) fn sample(&mut self, shared: &Shared) {
        self.sampler.look(&self.socket, &mut self.inner, shared, shared.now());
        if let Some(flow) = &mut self.flow {
            flow.look(&self.socket, shared);
        }
    }

    /// Whether it has to give way to other traffic.
    pub(super) fn scavenges(&self) -> bool {
        matches!(
            &self.inner.role,
            Role::Fetching { session, .. } if session.class() == TrafficClass::Scavenger
        )
    }

    /// Gives way.
    pub(super) fn scavenge(&mut self, now: Duration) {
        if !self.scavenges() || self.tls.peer().is_none() {
            return;
        }
        let scavenging = self.scavenging.get_or_insert_with(|| Scavenging::new(now));
        if scavenging.look(&self.socket, now) {
            // Its acknowledgement is what measures the round trip.
            self.inner.link.send_frame(&Frame::Ping { number: 0 });
        }
    }

    /// Time-outs. An error ends the stream.
    pub(super) fn check(&mut self, now: Duration) -> Result<(), Fault> {
        if self.inner.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Fault::new(FaultCode::Unreachable, "the peer did not say hello in time"));
        }
        self.inner.check_pulse(self.sampler.round_trip(), now)
    }

    pub(super) fn drive(&mut self, readable: bool, shared: &Arc<Shared>) -> Result<Progress, Fault> {
        if !self.connected && !self.is_connected(shared)? {
            return Ok(Progress::Waits);
        }
        self.inner.follow_orders(shared);
        let mut progress = Progress::Waits;
        if readable {
            progress = self.read(shared)?;
            if self.sampler.is_new() {
                self.sample(shared);
            }
        }
        self.write()?;
        if let Some(fault) = self.inner.link.closing() {
            return fault.map_or(Ok(Progress::Over), Err);
        }
        Ok(progress)
    }

    /// The stream may have been given a mark.
    fn begin_flow(&mut self, shared: &Shared) {
        let (Some(marks), Some(mark)) = (&shared.marks, self.inner.mark.take()) else { return };
        let end = if matches!(self.inner.role, Role::Serving { .. }) { End::Source } else { End::Target };
        let flow = Flow::begin(marks, &self.socket, end, mark, shared);
        flow.passed(std::mem::take(&mut self.sent_unmarked));
        self.flow = Some(flow);
    }

    fn is_connected(&mut self, shared: &Shared) -> Result<bool, Fault> {
        if let Some(error) = self.socket.take_error().map_err(|error| io_fault(&error))? {
            return Err(io_fault(&error));
        }
        match self.socket.peer_addr() {
            Ok(_) => {
                self.connected = true;
                let round_trip = self.round_trip();
                self.inner.connected(round_trip, shared)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {}
            Err(error) => return Err(io_fault(&error)),
        }
        Ok(self.connected)
    }

    /// As the kernel has measured it so far; zero if it has not.
    fn round_trip(&self) -> Duration {
        TcpInfo::of(self.socket.as_fd()).map_or(Duration::ZERO, |info| info.round_trip)
    }

    /// Reads until the socket is empty or the turn is over.
    fn read(&mut self, shared: &Arc<Shared>) -> Result<Progress, Fault> {
        for _ in 0..READS_PER_TURN {
            let inner = &mut self.inner;
            let received = self.tls.receive(&mut self.socket, &mut Plaintext { inner, shared });
            let payload = self.inner.heard(shared);
            self.begin_flow(shared);
            if let Some(flow) = &self.flow {
                flow.passed(payload);
            }
            let received = received?;
            if self.inner.peer.is_none()
                && let Some(peer) = self.tls.peer()
            {
                self.check_access(shared)?;
                let round_trip = self.round_trip();
                self.inner.peer_known(peer, round_trip, shared)?;
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

    /// Whether somebody who dialled us may come in, now that we know who it is. The refusal goes to the peer
    /// in words.
    fn check_access(&self, shared: &Shared) -> Result<(), Fault> {
        let Some(identity) = self.tls.identity().filter(|_| self.accepted) else { return Ok(()) };
        shared.config.access.check_subject(identity).inspect_err(|_| {
            shared.counters.refused_subjects.fetch_add(1, Ordering::Relaxed);
        })
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
                let taken = self.tls.send(rest, &mut self.socket)?;
                if taken == 0 {
                    return Ok(false);
                }
                sending.at += taken;
            }
            if let Some(Sending { outgoing: Outgoing { payload, call, .. }, .. }) = self.sending.take() {
                let bytes = payload.as_ref().map_or(0, |payload| payload.bytes().len() as u64);
                match &self.flow {
                    Some(flow) => flow.passed(bytes),
                    None => self.sent_unmarked += bytes,
                }
                payload.into_iter().for_each(Payload::finish);
                drop(call);
            }
        }
    }

    /// A step of ours panicked.
    pub(super) fn broken(&self, fault: &Fault) {
        self.inner.broken(fault);
    }

    /// Closes the stream and tells who uses it.
    pub(super) fn shut(&mut self, fault: Option<Fault>, shared: &Arc<Shared>) {
        let told = Frame::Goodbye { fault: fault.clone() }.encode(0);
        if self.sending.is_none() {
            // Whether the peer hears it does not matter: then it sees the stream end.
            let _ = self.tls.send(&told, &mut self.socket);
        }
        self.tls.close();
        let _ = self.tls.flush(&mut self.socket);
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        self.inner.link.abandon();
        self.sending = None;
        if self.is_stranger()
            && let Some(fault) = &fault
        {
            let from = self.socket.peer_addr().map(|from| from.to_string()).unwrap_or_default();
            match fault.code {
                // Looks of other agents, and of monitoring: they go before they say who they are.
                FaultCode::ConnectionLost => tracing::debug!(from, %fault, "a stream ended before it began"),
                _ => tracing::info!(from, %fault, "a stream was refused"),
            }
        }
        if let Some(flow) = self.flow.take() {
            flow.end(&self.socket, shared);
        }
        self.inner.ended(fault, shared);
        if self.accepted {
            shared.network.accepted.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn records_per_key(shared: &Shared) -> u64 {
    shared.config.path.records_per_key.unwrap_or(RECORDS_PER_KEY)
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
