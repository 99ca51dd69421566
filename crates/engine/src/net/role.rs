//! The roles of a stream (a state machine), the meaning of each frame in each role, and keepalive.
//!
//! ```text
//! dialled:   Dialling ─► Fetching | Calling | Parked ─► Fetching | Offered ─► Serving
//! accepted:  Stranger ─► Serving | Answering | Parked ─► Fetching
//! ```

use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{AgentId, Fault, FaultCode, Mark};
use longhaul_wire::keepalive::{Keepalive, KeepaliveAction, KeepaliveTimeouts};
use longhaul_wire::receiver::confine_to_source;
use longhaul_wire::source::JoinedStream;
use longhaul_wire::{
    Frame, FrameDecoder, FramePart, Hello, PathReport, STREAM_OPTIONS_SINCE, StreamNumber, VERSIONS,
    VersionRange, Welcome,
};

use super::{DialRace, Dialler, HANDSHAKE_MAX, Link, WELCOME_MAX};
use crate::calls::{CallClient, CallStream};
use crate::context::EngineContext;
use crate::fetch::{Arrival, Session};
use crate::offers::Offering;
use crate::paths::ResolvedPath;
use crate::serve::ServedSession;
use crate::tls::Sink;

/// The plaintext side of a stream, separate from the socket and TLS that produce the plaintext.
pub(super) struct StreamHandler {
    decoder: FrameDecoder,
    pub(super) role: Role,
    pub(super) link: Arc<Link>,
    pub(super) peer: Option<AgentId>,
    pub(super) deadline: Option<Duration>,
    keepalive: Keepalive,
    /// The destination of the current payload; none if it is discarded.
    arrival: Option<Arrival>,
    payload_bytes: u64,
    /// The path that was dialled.
    way: Option<ResolvedPath>,
    /// The round trip time at the handshake; zero if it was not measured.
    round_trip: Duration,
    /// The latest path report of the source.
    pub(super) report: Option<PathReport>,
    /// The mark to apply to the stream, until it is applied.
    pub(super) mark: Option<Mark>,
    /// Whether the peer has sent a mark.
    marked: bool,
    /// The pacing rate that the peer asks for, until it is applied.
    pub(super) pace: Option<u64>,
    /// Whether the source's protocol version knows `Mark` and `Pace`.
    pub(super) supports_options: bool,
    /// The offer that this stream belongs to.
    offered_by: Option<(Arc<Offering>, usize)>,
}

pub(super) enum Role {
    /// Dialled by this agent; the peer is not authenticated yet.
    Dialling {
        race: Arc<DialRace>,
        way: ResolvedPath,
        connected: bool,
    },
    Fetching {
        session: Arc<Session>,
        stream: StreamNumber,
        welcomed: bool,
    },
    Calling(Arc<CallClient>),
    /// Dialled and offered by this agent; the peer has not sent a hello.
    Offered,
    /// Accepted; the peer has not declared the stream's purpose.
    Stranger,
    /// The peer is a source, and no session uses the stream yet.
    Parked,
    Serving {
        serving: Arc<ServedSession>,
        joined: JoinedStream,
    },
    Answering(Arc<CallStream>),
}

fn lost_race() -> Fault {
    Fault::new(FaultCode::ConnectionLost, "another address of the peer was faster")
}

fn protocol_error(what: &'static str) -> Fault {
    Fault::new(FaultCode::ProtocolError, what)
}

impl StreamHandler {
    pub(super) fn new(role: Role, link: Arc<Link>, shared: &EngineContext) -> StreamHandler {
        let now = shared.now();
        StreamHandler {
            decoder: FrameDecoder::default(),
            role,
            link,
            peer: None,
            deadline: Some(now + HANDSHAKE_MAX),
            keepalive: Keepalive::new(now),
            arrival: None,
            payload_bytes: 0,
            way: None,
            round_trip: Duration::ZERO,
            report: None,
            mark: None,
            marked: false,
            pace: None,
            supports_options: false,
            offered_by: None,
        }
    }

    /// Called when the socket is connected. An error ends a stream that came too late.
    pub(super) fn handle_connected(
        &mut self,
        round_trip: Duration,
        shared: &EngineContext,
    ) -> Result<(), Fault> {
        if let Role::Dialling { race, connected, .. } = &mut self.role {
            *connected = true;
            race.connected();
            if let Dialler::Preconnect(ahead) = &race.dialler {
                shared.preconnect(ahead, ahead.additional_streams(round_trip));
            }
        }
        self.check_race()
    }

    fn check_race(&self) -> Result<(), Fault> {
        match &self.role {
            Role::Dialling { race, .. } if race.is_won() => Err(lost_race()),
            _ => Ok(()),
        }
    }

    /// Called when the handshake is complete.
    pub(super) fn handle_authenticated(
        &mut self,
        peer: AgentId,
        round_trip: Duration,
        shared: &EngineContext,
    ) -> Result<(), Fault> {
        self.peer = Some(peer);
        self.round_trip = round_trip;
        self.keepalive.note_received(shared.now());
        let Role::Dialling { race, way, .. } = &self.role else { return Ok(()) };
        let (race, way) = (race.clone(), way.clone());
        if let Dialler::Session(session, stream) = &race.dialler
            && let wanted = session.origin_of(*stream).agent
            && peer != wanted
        {
            let detail = format!("the agent {peer} answered in place of {wanted}");
            return Err(Fault::new(FaultCode::Unreachable, detail));
        }
        let Some(late) = race.win(&way) else { return Err(lost_race()) };
        // While one of them may still answer, a spare path would be abandoned at once and another one tried,
        // without end.
        late.iter().for_each(|way| race.dialler.path_failed(way, shared.now()));
        self.way = Some(way);
        match &race.dialler {
            Dialler::Session(session, stream) => self.fetch_for(session.clone(), *stream, shared),
            Dialler::Calls(calling) => {
                // Calls may follow at once: a peer that does not accept them ends the stream.
                self.link.send_frame(&Frame::OpenCalls { versions: VERSIONS });
                if !calling.stream_up(self.link.clone(), peer) {
                    self.link.close(None);
                }
                self.deadline = Some(shared.now() + WELCOME_MAX);
                self.role = Role::Calling(calling.clone());
            }
            Dialler::Preconnect(_) => self.park(peer, shared)?,
            Dialler::Offer(offering, place) => {
                self.link.send_frame(&Frame::Offer { versions: VERSIONS });
                offering.stream_up(*place, peer, self.link.clone(), shared.now());
                self.offered_by = Some((offering.clone(), *place));
                self.role = Role::Offered;
                self.deadline = None;
            }
        }
        Ok(())
    }

    fn say_hello(&self, session: &Session, stream: StreamNumber) {
        let origin = session.origin_of(stream);
        let hello = Hello { versions: VERSIONS, session: origin.id, key: origin.key };
        self.link.send_frame(&Frame::Hello(hello));
    }

    /// Starts fetching if a session was assigned to a parked stream.
    pub(super) fn adopt_session(&mut self, shared: &EngineContext) {
        if matches!(self.role, Role::Parked)
            && let Some((session, stream)) = self.link.take_assignment()
        {
            self.fetch_for(session, stream, shared);
        }
    }

    fn fetch_for(&mut self, session: Arc<Session>, stream: StreamNumber, shared: &EngineContext) {
        self.say_hello(&session, stream);
        session.stream_up(stream, self.link.clone(), self.way.clone(), self.round_trip);
        self.deadline = Some(shared.now() + WELCOME_MAX);
        self.role = Role::Fetching { session, stream, welcomed: false };
    }

    /// Keepalive: whether the peer is alive; sessions supervise their own streams. A peer that uses a stream
    /// offered by this agent gets a shorter timeout, since it cannot dial another one itself.
    pub(super) fn check_keepalive(
        &mut self,
        round_trip: Option<Duration>,
        now: Duration,
    ) -> Result<(), Fault> {
        self.check_race()?;
        let watched = matches!(self.role, Role::Serving { .. } | Role::Calling(_) | Role::Answering(_))
            || matches!(self.role, Role::Offered)
            // The peer does not know the purpose of the streams that this agent dialled.
            || (matches!(self.role, Role::Parked) && self.way.is_none());
        if watched {
            let in_use = self.offered_by.is_some() && matches!(self.role, Role::Serving { .. });
            let busy = round_trip.filter(|_| in_use);
            match self.keepalive.check(busy.map_or(KeepaliveTimeouts::IDLE, KeepaliveTimeouts::busy), now) {
                KeepaliveAction::Wait => {}
                KeepaliveAction::Ping(number) => self.link.send_frame(&Frame::Ping { number }),
                KeepaliveAction::Close => return Err(Fault::new(FaultCode::Stalled, "the peer fell silent")),
            }
        }
        Ok(())
    }

    /// The peer's kernel has acknowledged data: the peer is alive even if it sends nothing.
    pub(super) fn note_delivered(&mut self, now: Duration) {
        self.keepalive.note_received(now);
    }

    /// Records that bytes arrived. Returns the payload bytes among them.
    pub(super) fn note_received(&mut self, shared: &EngineContext) -> u64 {
        let now = shared.now();
        self.keepalive.note_received(now);
        let payload = std::mem::take(&mut self.payload_bytes);
        if let Role::Fetching { session, stream, welcomed: true } = &self.role {
            session.note_received(*stream, payload, now);
        }
        payload
    }

    pub(super) fn take(&mut self, mut bytes: &[u8], shared: &Arc<EngineContext>) -> Result<(), Fault> {
        if self.peer.is_none() {
            // Data came with the last message of the handshake, before the caller could check the peer's
            // identity.
            return Err(protocol_error("data before the hello"));
        }
        while let Some(piece) = self.decoder.next_part(&mut bytes)? {
            match piece {
                FramePart::Payload(part) => {
                    self.payload_bytes += part.len() as u64;
                    if let Some(arrival) = &mut self.arrival {
                        arrival.fill(part);
                        if arrival.is_unwanted() {
                            self.arrival = None;
                        }
                    }
                }
                FramePart::PayloadEnd => {
                    if let Role::Fetching { session, stream, .. } = &self.role {
                        session.end_payload(*stream, self.arrival.take());
                    }
                }
                FramePart::Frame { frame, payload_len } => self.handle_frame(frame, payload_len, shared)?,
            }
        }
        Ok(())
    }

    fn handle_frame(
        &mut self,
        frame: Frame,
        payload_len: u32,
        shared: &Arc<EngineContext>,
    ) -> Result<(), Fault> {
        match (&mut self.role, frame) {
            (Role::Fetching { session, stream, welcomed: true }, frame) => {
                if let Frame::Report(report) = &frame {
                    self.report = Some(*report);
                }
                self.arrival = match frame {
                    Frame::Data(head) => session.begin_chunk(*stream, &head, payload_len)?,
                    Frame::PackData(head) => session.begin_pack(*stream, &head, payload_len)?,
                    Frame::Unchanged(head) => {
                        session.keep_chunk(*stream, &head)?;
                        None
                    }
                    frame => {
                        session.handle_frame(*stream, frame)?;
                        None
                    }
                };
                Ok(())
            }
            (Role::Serving { .. }, frame) if frame.carries_payload() => {
                Err(protocol_error("a receiver sends no data"))
            }
            (Role::Serving { .. }, Frame::Mark(mark)) => {
                // Without this limit a peer could trigger one firefly packet for each mark it sends.
                if std::mem::replace(&mut self.marked, true) {
                    return Err(protocol_error("a stream has one mark"));
                }
                self.mark = Some(mark).filter(|mark| !mark.is_none());
                Ok(())
            }
            (Role::Serving { .. }, Frame::Pace { bytes_per_s }) => {
                self.pace = Some(bytes_per_s);
                Ok(())
            }
            (Role::Serving { serving, joined }, frame) => serving.handle_frame(*joined, frame),
            (Role::Stranger | Role::Offered, Frame::Hello(hello)) => self.serve(&hello, shared),
            (Role::Stranger, Frame::OpenCalls { versions }) => self.answer_calls(versions, shared),
            (Role::Stranger, Frame::Offer { versions }) => self.accept_offer(versions, shared),
            (Role::Stranger, _) => Err(protocol_error("the stream does not begin with its purpose")),
            (_, Frame::Ping { number }) => {
                self.link.send_frame(&Frame::Pong { number });
                Ok(())
            }
            (_, Frame::Pong { .. }) => Ok(()),
            (role, Frame::Goodbye { fault }) => {
                let fetching = matches!(role, Role::Fetching { .. });
                Err(fault
                    .map(|fault| if fetching { confine_to_source(fault) } else { fault })
                    .unwrap_or_else(|| Fault::new(FaultCode::ConnectionLost, "the peer closed the stream")))
            }
            (Role::Calling(calling), Frame::Answer(answer)) => calling.handle_answer(answer),
            (Role::Answering(stream), Frame::Call(call)) => shared.calls.call(stream, call),
            (Role::Calling(_) | Role::Fetching { .. }, Frame::Welcome(welcome)) => {
                self.handle_welcome(&welcome)
            }
            _ => Err(protocol_error("a frame that has no place here")),
        }
    }

    /// The peer has accepted the stream that this agent dialled, or that the peer had offered.
    fn handle_welcome(&mut self, welcome: &Welcome) -> Result<(), Fault> {
        if !VERSIONS.contains(welcome.version) {
            let detail = "the source chose a version that was not offered";
            return Err(Fault::new(FaultCode::VersionMismatch, detail));
        }
        self.deadline = None;
        if let Role::Fetching { session, stream, welcomed } = &mut self.role {
            *welcomed = true;
            self.supports_options = welcome.version >= STREAM_OPTIONS_SINCE;
            let mark = session.treatment().mark;
            if !mark.is_none() {
                self.mark = Some(mark);
                if self.supports_options {
                    self.link.send_frame(&Frame::Mark(mark));
                }
            }
            session.handle_welcome(*stream, welcome);
        }
        Ok(())
    }

    fn serve(&mut self, hello: &Hello, shared: &Arc<EngineContext>) -> Result<(), Fault> {
        let version = negotiate_version(hello.versions)?;
        let Some(peer) = self.peer else { return Err(Fault::new(FaultCode::NotAuthenticated, "")) };
        let (serving, joined) = shared.serve.join(peer, hello, self.link.clone(), shared)?;
        self.link.send_frame(&Frame::Welcome(Welcome { version, incarnation: serving.incarnation() }));
        self.deadline = None;
        self.role = Role::Serving { serving, joined };
        Ok(())
    }

    fn answer_calls(&mut self, versions: VersionRange, shared: &Arc<EngineContext>) -> Result<(), Fault> {
        let version = negotiate_version(versions)?;
        let Some(peer) = self.peer else { return Err(Fault::new(FaultCode::NotAuthenticated, "")) };
        self.role = Role::Answering(shared.calls.join(peer, self.link.clone())?);
        self.link.send_frame(&Frame::Welcome(Welcome { version, incarnation: 0 }));
        self.deadline = None;
        Ok(())
    }

    fn accept_offer(&mut self, versions: VersionRange, shared: &Arc<EngineContext>) -> Result<(), Fault> {
        negotiate_version(versions)?;
        let Some(peer) = self.peer else { return Err(Fault::new(FaultCode::NotAuthenticated, "")) };
        self.park(peer, shared)
    }

    /// Assigns the stream to a waiting session, or parks it.
    fn park(&mut self, peer: AgentId, shared: &EngineContext) -> Result<(), Fault> {
        match shared.offers.park_or_assign(peer, &self.link, shared.now())? {
            Some((session, stream)) => self.fetch_for(session, stream, shared),
            None => {
                self.role = Role::Parked;
                self.deadline = None;
            }
        }
        Ok(())
    }

    /// Reports a panic in this engine's handling of the stream.
    pub(super) fn abort(&self, fault: &Fault) {
        if let Role::Fetching { session, .. } = &self.role {
            session.abort(fault);
        }
    }

    /// Reports the end of a closed stream to its user.
    pub(super) fn handle_end(&mut self, fault: Option<Fault>, shared: &Arc<EngineContext>) {
        let arrival = self.arrival.take();
        let peer = self.peer;
        if let Some(fault) = &fault {
            tracing::debug!(?peer, fault = %fault.chain(), "a stream ended");
        }
        let why = fault.unwrap_or_else(|| Fault::new(FaultCode::ConnectionLost, "the stream was closed"));
        if let Some((offering, place)) = self.offered_by.take() {
            offering.stream_down(place, why.clone(), shared.now());
        }
        match std::mem::replace(&mut self.role, Role::Offered) {
            Role::Dialling { race, way, connected } => {
                if !race.is_won() {
                    race.dialler.path_failed(&way, shared.now());
                }
                race.lost(connected, why);
            }
            Role::Fetching { session, stream, .. } => {
                session.payload_lost(arrival);
                session.stream_ended(stream, &self.link, why);
            }
            Role::Calling(calling) => calling.stream_down(why),
            Role::Serving { serving, joined } => serving.stream_down(joined),
            Role::Answering(stream) => shared.calls.leave(&stream),
            Role::Parked => {
                shared.offers.remove(&self.link);
                // A session may have been assigned a moment ago.
                if let Some((session, stream)) = self.link.take_assignment() {
                    session.stream_down(stream, why);
                }
            }
            Role::Offered | Role::Stranger => {}
        }
    }
}

/// Receives the plaintext of a stream from the record layer.
pub(super) struct Plaintext<'a> {
    pub(super) inner: &'a mut StreamHandler,
    pub(super) shared: &'a Arc<EngineContext>,
}

impl Sink for Plaintext<'_> {
    fn take(&mut self, plaintext: &[u8]) -> Result<(), Fault> {
        self.inner.take(plaintext, self.shared)
    }

    fn in_payload(&self) -> bool {
        self.inner.arrival.is_some() && self.inner.decoder.payload_left() > 0
    }

    fn space(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.inner.decoder.payload_left() {
            return None;
        }
        let arrival = self.inner.arrival.as_mut()?;
        Some(arrival.space()).filter(|space| space.len() > len)
    }

    fn filled(&mut self, len: usize) -> Result<(), Fault> {
        let inner = &mut *self.inner;
        inner.decoder.skip_payload(len);
        inner.payload_bytes += len as u64;
        if let Some(arrival) = &mut inner.arrival {
            arrival.advance(len);
            if arrival.is_unwanted() {
                inner.arrival = None;
            }
        }
        // The payload may be complete.
        inner.take(&[], self.shared)
    }
}

fn negotiate_version(versions: VersionRange) -> Result<u16, Fault> {
    VERSIONS.negotiate(versions).ok_or_else(|| {
        let detail = format!("the peer speaks versions {versions}, this agent {VERSIONS}");
        Fault::new(FaultCode::VersionMismatch, detail)
    })
}
