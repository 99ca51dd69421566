//! Client side of remote procedure calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_wire::limits::{CALL_BYTES_MAX, CALLS_OPEN_MAX};
use longhaul_wire::{Answer, Call, Frame};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::foreign_deployment::ForeignDeployment;
use crate::net::Link;

/// A stream for calls. Dropping it closes it.
#[derive(Debug)]
pub struct Channel {
    client: Arc<CallClient>,
    peer: AgentId,
}

impl Channel {
    pub(crate) fn open(calling: Arc<CallClient>, within: Duration) -> Result<Channel, Fault> {
        let peer = calling.wait_until_up(within)?;
        Ok(Channel { client: calling, peer })
    }

    /// The agent that answers.
    pub fn peer(&self) -> AgentId {
        self.peer
    }

    /// Calls the peer and waits for its answer, for as long as the stream lives. May be called from several
    /// threads at once.
    pub fn call(&self, request: &[u8]) -> Result<Vec<u8>, Fault> {
        self.client.call(request)
    }

    /// Whether a call could succeed.
    pub fn is_up(&self) -> bool {
        matches!(self.client.state.lock().stream, Stream::Up { .. })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.client.close();
    }
}

/// State shared by the network thread and the callers.
#[derive(Debug)]
pub(crate) struct CallClient {
    /// The deployment of the peer, if it is not the engine's own.
    pub(crate) membership: Option<ForeignDeployment>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    stream: Stream,
    next: u32,
    /// Calls without an answer, or with one that was not taken yet.
    open: BTreeMap<u32, Option<Result<Vec<u8>, Fault>>>,
}

enum Stream {
    Dialling,
    Up { link: Arc<Link>, peer: AgentId },
    Down(Fault),
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stream::Dialling => f.write_str("dialling"),
            Stream::Up { peer, .. } => write!(f, "up to agent {peer}"),
            Stream::Down(fault) => write!(f, "down: {fault}"),
        }
    }
}

impl CallClient {
    pub(crate) fn new(membership: Option<ForeignDeployment>) -> Arc<CallClient> {
        let state = State { stream: Stream::Dialling, next: 0, open: BTreeMap::new() };
        Arc::new(CallClient { membership, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// The peer has accepted the stream. False if nobody waits for it any more.
    pub(crate) fn stream_up(&self, link: Arc<Link>, peer: AgentId) -> bool {
        let mut state = self.state.lock();
        let waited_for = matches!(state.stream, Stream::Dialling);
        if waited_for {
            state.stream = Stream::Up { link, peer };
            self.changed.notify_all();
        }
        waited_for
    }

    /// The stream is closed, or could not be opened.
    pub(crate) fn stream_down(&self, fault: Fault) {
        let mut state = self.state.lock();
        if !matches!(state.stream, Stream::Down(_)) {
            state.stream = Stream::Down(fault);
            self.changed.notify_all();
        }
    }

    pub(crate) fn handle_answer(&self, answer: Answer) -> Result<(), Fault> {
        match self.state.lock().open.get_mut(&answer.number) {
            Some(place @ None) => *place = Some(answer.body),
            _ => return Err(Fault::new(FaultCode::ProtocolError, "an answer to an unknown call")),
        }
        self.changed.notify_all();
        Ok(())
    }

    fn wait_until_up(&self, within: Duration) -> Result<AgentId, Fault> {
        let deadline = Instant::now() + within;
        let mut state = self.state.lock();
        loop {
            match &state.stream {
                Stream::Up { peer, .. } => return Ok(*peer),
                Stream::Down(fault) => return Err(fault.clone()),
                Stream::Dialling if Instant::now() >= deadline => {
                    let detail = format!("the peer did not answer within {} s", within.as_secs_f32());
                    let fault = Fault::new(FaultCode::Unreachable, detail);
                    state.stream = Stream::Down(fault.clone());
                    return Err(fault);
                }
                Stream::Dialling => drop(self.changed.wait_until(&mut state, deadline)),
            }
        }
    }

    fn call(&self, request: &[u8]) -> Result<Vec<u8>, Fault> {
        if request.len() > CALL_BYTES_MAX {
            let detail = format!("a call of {} bytes; the limit is {CALL_BYTES_MAX}", request.len());
            return Err(Fault::new(FaultCode::TooLarge, detail));
        }
        let mut state = self.state.lock();
        while state.open.len() >= CALLS_OPEN_MAX && !matches!(state.stream, Stream::Down(_)) {
            self.changed.wait(&mut state);
        }
        let link = match &state.stream {
            Stream::Up { link, .. } => link.clone(),
            Stream::Down(fault) => return Err(fault.clone()),
            Stream::Dialling => {
                return Err(Fault::new(FaultCode::Internal, "a call before the stream is up"));
            }
        };
        let number = state.next;
        state.next = number.wrapping_add(1);
        state.open.insert(number, None);
        // Outside the lock: the body may be long, and is copied.
        drop(state);
        link.send_frame(&Frame::Call(Call { number, body: request.to_vec() }));
        self.wait_for_answer(number, self.state.lock())
    }

    fn wait_for_answer(&self, number: u32, mut state: MutexGuard<'_, State>) -> Result<Vec<u8>, Fault> {
        loop {
            let answered = state.open.get_mut(&number).and_then(Option::take);
            let down = if let Stream::Down(fault) = &state.stream { Some(fault.clone()) } else { None };
            if let Some(result) = answered.or(down.map(Err)) {
                state.open.remove(&number);
                // Another caller may wait for a free slot.
                self.changed.notify_all();
                return result;
            }
            self.changed.wait(&mut state);
        }
    }

    fn close(&self) {
        let mut state = self.state.lock();
        let fault = Fault::new(FaultCode::ConnectionLost, "the channel was closed");
        if let Stream::Up { link, .. } = std::mem::replace(&mut state.stream, Stream::Down(fault)) {
            link.close(None);
        }
    }
}
