//! Server side of remote procedure calls: call streams of peers, the queue of their calls, and the worker
//! threads.
//!
//! Bounded throughout: streams per peer, open calls per stream (more close the stream), bytes of calls and
//! answers in total (load shedding: a call beyond the limit gets "busy"). A call counts until its answer has
//! been sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_wire::limits::{CALL_BYTES_MAX, CALLS_OPEN_MAX};
use longhaul_wire::{Answer, Call, Frame};
use parking_lot::{Condvar, Mutex};

use crate::interface::Responder;
use crate::net::{Link, Outgoing};
use crate::queue::Queue;
use crate::sync::catch_panic;

/// Call streams of one peer; a peer needs one.
const CALL_STREAMS_PER_PEER_MAX: usize = 64;
/// Memory for calls and answers: 64 of maximum length.
const CALLS_BYTES_MAX: usize = 64 * CALL_BYTES_MAX;
/// Bytes accounted for each call in addition to its body, so that empty calls are not free.
const CALL_OVERHEAD_BYTES: usize = 256;

/// The calls of all peers.
pub(crate) struct CallServer {
    responder: Option<Arc<dyn Responder>>,
    queue: Queue<CallJob>,
    peers: Mutex<BTreeMap<AgentId, Peer>>,
    returned: Condvar,
    bytes: Arc<AtomicUsize>,
}

/// A peer with call streams, or with calls still being answered.
#[derive(Default)]
struct Peer {
    streams: usize,
    calls: usize,
    /// The responder is being notified that the peer is gone.
    notifying_gone: bool,
}

enum CallJob {
    Call { stream: Arc<CallStream>, number: u32, body: Vec<u8>, open: OpenCall },
    PeerGone(AgentId),
}

/// One call stream of a peer.
pub(crate) struct CallStream {
    peer: AgentId,
    link: Arc<Link>,
    open: AtomicUsize,
    over: AtomicBool,
}

/// A call that is not finished: releases its share of the limits when its answer has been sent.
pub(crate) struct OpenCall {
    stream: Arc<CallStream>,
    all_bytes: Arc<AtomicUsize>,
    bytes: usize,
}

impl OpenCall {
    fn account(&mut self, bytes: usize) {
        self.all_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.stream.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl CallServer {
    pub(crate) fn new(responder: Option<Arc<dyn Responder>>) -> CallServer {
        CallServer {
            responder,
            queue: Queue::new(usize::MAX),
            peers: Mutex::default(),
            returned: Condvar::new(),
            bytes: Arc::default(),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.responder.is_some()
    }

    /// A peer opens a stream for calls.
    pub(crate) fn join(&self, peer: AgentId, link: Arc<Link>) -> Result<Arc<CallStream>, Fault> {
        if !self.is_enabled() {
            return Err(Fault::new(FaultCode::NotFound, "this agent answers no calls"));
        }
        let mut peers = self.peers.lock();
        let known = peers.entry(peer).or_default();
        if known.streams >= CALL_STREAMS_PER_PEER_MAX {
            let detail = format!("{CALL_STREAMS_PER_PEER_MAX} streams for calls are open already");
            return Err(Fault::new(FaultCode::Busy, detail));
        }
        known.streams += 1;
        Ok(Arc::new(CallStream { peer, link, open: AtomicUsize::new(0), over: AtomicBool::new(false) }))
    }

    /// Accepts a call. An error closes its stream.
    pub(crate) fn call(&self, stream: &Arc<CallStream>, call: Call) -> Result<(), Fault> {
        if stream.open.fetch_add(1, Ordering::AcqRel) >= CALLS_OPEN_MAX {
            stream.open.fetch_sub(1, Ordering::AcqRel);
            let detail = format!("more than {CALLS_OPEN_MAX} calls are open on one stream");
            return Err(Fault::new(FaultCode::ProtocolError, detail));
        }
        let mut open = OpenCall { stream: stream.clone(), all_bytes: self.bytes.clone(), bytes: 0 };
        open.account(CALL_OVERHEAD_BYTES + call.body.len());
        if self.bytes.load(Ordering::Relaxed) > CALLS_BYTES_MAX {
            let busy = Fault::new(FaultCode::Busy, "too many calls at once");
            stream.send(call.number, Err(busy), open);
            return Ok(());
        }
        self.peers.lock().entry(stream.peer).or_default().calls += 1;
        self.queue.push(CallJob::Call { stream: stream.clone(), number: call.number, body: call.body, open });
        Ok(())
    }

    /// The stream is closed.
    pub(crate) fn leave(&self, stream: &CallStream) {
        stream.over.store(true, Ordering::Release);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&stream.peer) else { return };
        peer.streams -= 1;
        if peer.take_departure() {
            self.queue.push(CallJob::PeerGone(stream.peer));
        }
    }

    /// Runs a worker thread.
    pub(crate) fn run_worker(&self) {
        while let Some(job) = self.queue.take() {
            match job {
                CallJob::Call { stream, number, body, open } => {
                    let peer = stream.peer;
                    self.answer(&stream, number, body, open);
                    self.call_finished(peer);
                }
                CallJob::PeerGone(peer) => self.notify_gone(peer),
            }
        }
    }

    fn answer(&self, stream: &CallStream, number: u32, body: Vec<u8>, mut open: OpenCall) {
        let Some(responder) = &self.responder else { return };
        let mut peers = self.peers.lock();
        // The notification precedes this call in the queue, so another worker is at it.
        while peers.get(&stream.peer).is_some_and(|peer| peer.notifying_gone) {
            self.returned.wait(&mut peers);
        }
        drop(peers);
        if stream.over.load(Ordering::Acquire) {
            return;
        }
        let answer =
            catch_panic("answering a call", || responder.answer(stream.peer, body)).and_then(|answer| {
                if answer.len() <= CALL_BYTES_MAX {
                    return Ok(answer);
                }
                let detail = format!("an answer of {} bytes; the limit is {CALL_BYTES_MAX}", answer.len());
                Err(Fault::new(FaultCode::TooLarge, detail))
            });
        open.account(answer.as_ref().map_or(0, Vec::len));
        stream.send(number, answer, open);
    }

    fn call_finished(&self, id: AgentId) {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&id) else { return };
        peer.calls -= 1;
        let leaves = peer.take_departure();
        drop(peers);
        if leaves {
            self.notify_gone(id);
        }
    }

    fn notify_gone(&self, id: AgentId) {
        if let Some(responder) = &self.responder {
            tracing::debug!(peer = %id, "the last call stream of a peer is closed");
            let _ = catch_panic("notifying that a peer is gone", || responder.gone(id));
        }
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get_mut(&id) {
            peer.notifying_gone = false;
            if peer.streams == 0 && peer.calls == 0 {
                peers.remove(&id);
            }
        }
        drop(peers);
        self.returned.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.queue.close();
    }
}

impl Peer {
    /// Whether the peer has just gone; true once.
    fn take_departure(&mut self) -> bool {
        let leaves = self.streams == 0 && self.calls == 0 && !self.notifying_gone;
        self.notifying_gone |= leaves;
        leaves
    }
}

impl CallStream {
    fn send(&self, number: u32, body: Result<Vec<u8>, Fault>, open: OpenCall) {
        let head = Frame::Answer(Answer { number, body }).encode(0);
        self.link.send(Outgoing { head, payload: None, call: Some(open) });
    }
}
