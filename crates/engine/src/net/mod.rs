//! Network threads: each runs an event loop (reactor) over many accepted and dialled streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_model::mark::Treatment;
use longhaul_model::{Fault, FaultCode};
use longhaul_wire::StreamNumber;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;

use crate::calls::CallClient;
use crate::context::EngineContext;
use crate::fetch::Session;
use crate::foreign_deployment::ForeignDeployment;
use crate::offers::{Offering, Preconnect};
use crate::paths::ResolvedPath;
use crate::sync::catch_panic;

mod connection;
mod happy_eyeballs;
mod link;
mod refused_sockets;
mod role;
mod sampler;
mod scavenger_window;

use connection::{Connection, ConnectionProgress};
use happy_eyeballs::{DialRace, RaceStep};
pub(crate) use link::{Link, Outgoing, Payload};
use refused_sockets::RefusedSockets;

/// Sockets of peers in all threads, unauthenticated ones included.
pub(crate) const ACCEPTED_MAX: usize = 1_024;
/// Accepted and not yet authenticated sockets of one thread. The next one evicts the oldest.
const UNAUTHENTICATED_MAX: usize = 64;
/// Timeout from connecting to the first frame.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Timeout from this agent's hello to the welcome, on an established stream.
const WELCOME_MAX: Duration = Duration::from_secs(5);
/// Interval of timeout checks.
const TICK_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of timeout checks while streams are being dialled.
const DIAL_TICK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of timeout checks while scavenger streams are running.
const SCAVENGER_TICK_INTERVAL: Duration = Duration::from_millis(20);
/// Events handled per turn of the loop, so that timeouts are checked even under load.
const EVENTS_PER_TURN_MAX: usize = 256;

const WAKER: Token = Token(0);
const FIRST_LISTENER: usize = 1;

/// The part of a network thread that other threads share.
pub(crate) struct NetworkThread {
    waker: Waker,
    commands: Mutex<Vec<Command>>,
    with_output: Mutex<Vec<usize>>,
}

pub(crate) enum Command {
    Dial { dialler: Dialler, ways: Vec<ResolvedPath> },
    Take { socket: TcpStream },
}

/// The user of a stream to be dialled.
pub(crate) enum Dialler {
    Session(Arc<Session>, StreamNumber),
    Calls(Arc<CallClient>),
    Offer(Arc<Offering>, usize),
    /// A preconnected stream, which a session uses later.
    Preconnect(Arc<Preconnect>),
}

impl Dialler {
    /// The paths in the order in which they are tried.
    pub(crate) fn rank_paths(&self, ways: Vec<ResolvedPath>, now: Duration) -> Vec<ResolvedPath> {
        match self {
            Dialler::Session(session, stream) => session.rank_paths(*stream, ways, now),
            Dialler::Calls(_) | Dialler::Offer(..) | Dialler::Preconnect(_) => ways,
        }
    }

    /// The traffic class and mark of the stream.
    fn treatment(&self) -> Treatment {
        match self {
            Dialler::Session(session, _) => session.treatment(),
            Dialler::Calls(_) | Dialler::Offer(..) | Dialler::Preconnect(_) => Treatment::default(),
        }
    }

    /// Set if the peer belongs to a foreign deployment.
    fn membership(&self) -> Option<ForeignDeployment> {
        match self {
            Dialler::Session(session, stream) => session.origin_of(*stream).membership.clone(),
            Dialler::Calls(calling) => calling.membership.clone(),
            Dialler::Offer(..) | Dialler::Preconnect(_) => None,
        }
    }

    fn path_failed(&self, way: &ResolvedPath, now: Duration) {
        if let Dialler::Session(session, _) = self {
            session.path_failed(way, now);
        }
    }

    /// Reports that the dialling failed or the stream ended.
    pub(crate) fn failed(&self, fault: Fault, shared: &EngineContext) {
        match self {
            Dialler::Session(session, stream) => session.stream_down(*stream, fault),
            Dialler::Calls(calling) => calling.stream_down(fault),
            Dialler::Offer(offering, place) => offering.stream_down(*place, fault, shared.now()),
            // A session that needs a stream dials itself and reports the failure.
            Dialler::Preconnect(_) => {
                tracing::debug!(fault = %fault.chain(), "a stream dialled ahead of work failed")
            }
        }
    }
}

impl NetworkThread {
    pub(crate) fn command(&self, command: Command) {
        self.commands.lock().push(command);
        self.wake();
    }

    fn has_output(&self, token: usize) {
        let mut tokens = self.with_output.lock();
        tokens.push(token);
        let first = tokens.len() == 1;
        drop(tokens);
        if first {
            self.wake();
        }
    }

    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "a network thread cannot be woken");
        }
    }
}

#[cfg(test)]
impl NetworkThread {
    /// A thread that is not running.
    pub(crate) fn idle(poll: &Poll) -> Arc<NetworkThread> {
        let waker = Waker::new(poll.registry(), WAKER).unwrap();
        Arc::new(NetworkThread { waker, commands: Mutex::default(), with_output: Mutex::default() })
    }
}

/// All network threads, with the round-robin position for the next stream.
pub(crate) struct Network {
    threads: Vec<Arc<NetworkThread>>,
    next_thread: AtomicUsize,
    pub(crate) accepted: AtomicUsize,
}

impl Network {
    pub(crate) fn next(&self) -> &Arc<NetworkThread> {
        &self.threads[self.next_thread.fetch_add(1, Ordering::Relaxed) % self.threads.len()]
    }

    pub(crate) fn wake_all(&self) {
        self.threads.iter().for_each(|thread| thread.wake());
    }
}

/// Creates the threads' event queues before the threads run.
pub(crate) fn open(
    threads: usize,
    listeners: Vec<std::net::TcpListener>,
) -> Result<(Network, Vec<EventLoop>), Fault> {
    let failed = |error: std::io::Error| {
        Fault::new(FaultCode::Internal, format!("an event queue: {error}")).with_source(error)
    };
    let mut loops = Vec::new();
    for _ in 0..threads.max(1) {
        let poll = Poll::new().map_err(failed)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed)?;
        let me = Arc::new(NetworkThread { waker, commands: Mutex::default(), with_output: Mutex::default() });
        loops.push(EventLoop {
            poll,
            me,
            listeners: Vec::new(),
            conns: BTreeMap::new(),
            races: Vec::new(),
            next_token: 1_000,
            unfinished: Vec::new(),
            refused: RefusedSockets::default(),
            scavenges: false,
        });
    }
    for (place, listener) in listeners.into_iter().enumerate() {
        let mut listener = TcpListener::from_std(listener);
        let token = Token(FIRST_LISTENER + place);
        loops[0].poll.registry().register(&mut listener, token, Interest::READABLE).map_err(failed)?;
        loops[0].listeners.push(listener);
    }
    let threads = loops.iter().map(|each| each.me.clone()).collect();
    Ok((Network { threads, next_thread: AtomicUsize::new(0), accepted: AtomicUsize::new(0) }, loops))
}

pub(crate) struct EventLoop {
    poll: Poll,
    me: Arc<NetworkThread>,
    listeners: Vec<TcpListener>,
    conns: BTreeMap<usize, Connection>,
    races: Vec<Arc<DialRace>>,
    next_token: usize,
    /// Streams that have more to read than their share of one turn.
    unfinished: Vec<usize>,
    refused: RefusedSockets,
    /// Whether scavenger streams run, which are checked more often.
    scavenges: bool,
}

impl EventLoop {
    pub(crate) fn run(mut self, shared: &Arc<EngineContext>) {
        let mut events = Events::with_capacity(EVENTS_PER_TURN_MAX);
        let mut ticked = shared.now();
        let mut scavenged = ticked;
        while !shared.is_stopping() {
            let wait = match (self.unfinished.is_empty(), self.races.is_empty()) {
                (true, _) if self.scavenges => SCAVENGER_TICK_INTERVAL,
                (true, true) => TICK_INTERVAL,
                (true, false) => DIAL_TICK_INTERVAL,
                (false, _) => Duration::ZERO,
            };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != std::io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "waiting for sockets failed");
            }
            for token in std::mem::take(&mut self.unfinished) {
                self.drive(token, true, shared);
            }
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(place) if place < 1_000 => self.accept_from(place - FIRST_LISTENER, shared),
                    Token(token) => {
                        let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                        self.drive(token, readable, shared);
                    }
                }
            }
            self.take_commands(shared);
            self.step_races(shared);
            let with_output = std::mem::take(&mut *self.me.with_output.lock());
            for token in with_output {
                self.drive(token, false, shared);
            }
            let now = shared.now();
            if self.scavenges && now.saturating_sub(scavenged) >= SCAVENGER_TICK_INTERVAL {
                scavenged = now;
                self.conns.values_mut().for_each(|conn| conn.scavenge(now));
            }
            if now.saturating_sub(ticked) >= TICK_INTERVAL {
                ticked = now;
                self.tick(now, shared);
            }
        }
        for (_, mut conn) in std::mem::take(&mut self.conns) {
            conn.close(None, shared);
        }
    }

    fn take_commands(&mut self, shared: &Arc<EngineContext>) {
        let commands = std::mem::take(&mut *self.me.commands.lock());
        for command in commands {
            match command {
                Command::Take { socket } => {
                    let (token, link) = self.new_link();
                    self.evict_unauthenticated(shared);
                    match Connection::accepted(socket, link, shared) {
                        Ok(conn) => self.begin(token, conn, shared),
                        Err(fault) => {
                            shared.network.accepted.fetch_sub(1, Ordering::Relaxed);
                            tracing::info!(fault = %fault.chain(), "an accepted stream could not be used");
                        }
                    }
                }
                Command::Dial { dialler, ways } => {
                    self.races.push(Arc::new(DialRace::new(dialler, ways, shared.now())));
                }
            }
        }
    }

    fn step_races(&mut self, shared: &Arc<EngineContext>) {
        let mut races = std::mem::take(&mut self.races);
        races.retain(|race| {
            loop {
                match race.step(shared.now()) {
                    RaceStep::Begin(way) => {
                        let (token, link) = self.new_link();
                        match Connection::dialled(race.clone(), way, link, shared) {
                            Ok(conn) => self.begin(token, conn, shared),
                            Err(fault) => race.lost(false, fault),
                        }
                    }
                    RaceStep::Wait => return true,
                    RaceStep::Won => return false,
                    RaceStep::Lost(fault) => {
                        race.dialler.failed(fault, shared);
                        return false;
                    }
                }
            }
        });
        self.races.append(&mut races);
    }

    fn new_link(&mut self) -> (usize, Arc<Link>) {
        self.next_token += 1;
        (self.next_token, Link::new(self.me.clone(), self.next_token))
    }

    fn begin(&mut self, token: usize, mut conn: Connection, shared: &Arc<EngineContext>) {
        match conn.register(self.poll.registry(), Token(token)) {
            Ok(()) => drop(self.conns.insert(token, conn)),
            Err(fault) => conn.close(Some(fault), shared),
        }
    }

    /// Distributes new sockets over the threads, round robin.
    fn accept_from(&mut self, place: usize, shared: &Arc<EngineContext>) {
        while let Some(listener) = self.listeners.get(place) {
            match listener.accept() {
                Ok((socket, peer)) if !shared.config.access.allows_address(peer.ip()) => {
                    shared.counters.refused_addresses.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(%peer, "a stream was refused: its address is not allowed");
                    self.refused.refuse(socket, shared.now());
                }
                Ok((socket, peer)) => {
                    if shared.network.accepted.fetch_add(1, Ordering::Relaxed) >= ACCEPTED_MAX {
                        shared.network.accepted.fetch_sub(1, Ordering::Relaxed);
                        tracing::warn!(%peer, "too many streams, one is refused");
                        continue;
                    }
                    shared.network.next().command(Command::Take { socket });
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // For example out of file descriptors: the next tick tries again.
                    tracing::warn!(%error, "accepting a stream failed");
                    return;
                }
            }
        }
    }

    fn evict_unauthenticated(&mut self, shared: &Arc<EngineContext>) {
        let strangers: Vec<usize> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.is_unauthenticated())
            .map(|(&token, _)| token)
            .collect();
        if strangers.len() >= UNAUTHENTICATED_MAX {
            let fault = Fault::new(FaultCode::Busy, "too many streams begin at once");
            self.end(strangers[0], Some(fault), shared);
        }
    }

    fn drive(&mut self, token: usize, readable: bool, shared: &Arc<EngineContext>) {
        let Some(conn) = self.conns.get_mut(&token) else { return };
        let progress = catch_panic("a stream", || conn.drive(readable, shared));
        match progress {
            Ok(Ok(ConnectionProgress::Blocked)) => {}
            Ok(Ok(ConnectionProgress::HasMore)) => self.unfinished.push(token),
            Ok(Ok(ConnectionProgress::Closed)) => self.end(token, None, shared),
            Ok(Err(fault)) => self.end(token, Some(fault), shared),
            Err(fault) => {
                let _ = catch_panic("ending a session", || conn.abort(&fault));
                self.end(token, Some(fault), shared);
            }
        }
    }

    fn end(&mut self, token: usize, fault: Option<Fault>, shared: &Arc<EngineContext>) {
        if let Some(mut conn) = self.conns.remove(&token) {
            let _ = catch_panic("closing a stream", || conn.close(fault, shared));
        }
    }

    fn tick(&mut self, now: Duration, shared: &Arc<EngineContext>) {
        for place in 0..self.listeners.len() {
            self.accept_from(place, shared);
        }
        self.refused.tick(now);
        self.conns.values_mut().for_each(|conn| conn.sample(shared));
        self.scavenges = self.conns.values().any(Connection::is_scavenger);
        let late: Vec<(usize, Fault)> = self
            .conns
            .iter_mut()
            .filter_map(|(&token, conn)| conn.check_timeouts(now).err().map(|fault| (token, fault)))
            .collect();
        late.into_iter().for_each(|(token, fault)| self.end(token, Some(fault), shared));
    }
}
