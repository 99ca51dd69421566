//! The handle to a stream for other threads: a bounded queue of outgoing frames, which the stream's network
//! thread sends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_model::{Fault, FaultCode};
use longhaul_wire::source::JoinedStream;
use longhaul_wire::{Frame, StreamNumber};
use parking_lot::Mutex;

use crate::buffer_pool::Buffer;
use crate::calls::OpenCall;
use crate::fetch::Session;
use crate::net::NetworkThread;
use crate::serve::ServedSession;

/// Frames queued for one stream. Data frames are bounded by their buffers (credit-based flow control); this
/// bounds the answers to a peer that sends requests and does not read.
const OUTBOX_FRAMES_MAX: usize = 10_000;

/// A frame queued for sending.
pub(crate) struct Outgoing {
    pub(crate) head: Vec<u8>,
    pub(crate) payload: Option<Payload>,
    /// The call that this frame answers; it ends when the frame is sent or dropped.
    pub(crate) call: Option<OpenCall>,
}

/// A filled buffer. When it is sent or dropped, the session that filled it may fill the next one, and takes
/// its lock for that: never drop a payload while holding the session's lock.
pub(crate) struct Payload {
    buffer: Option<Buffer>,
    len: usize,
    sent: u64,
    owner: Arc<ServedSession>,
    stream: JoinedStream,
}

impl Payload {
    pub(crate) fn new(
        buffer: Buffer,
        len: usize,
        owner: Arc<ServedSession>,
        stream: JoinedStream,
    ) -> Payload {
        assert!(len <= buffer.len(), "a payload lies in its buffer");
        Payload { buffer: Some(buffer), len, sent: 0, owner, stream }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..self.len])
    }

    pub(super) fn finish(mut self) {
        self.sent = self.len as u64;
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.buffer = None;
        self.owner.payload_sent(self.stream, self.sent);
    }
}

pub(crate) struct Link {
    thread: Arc<NetworkThread>,
    token: usize,
    outbox: Mutex<Outbox>,
    /// Whether the thread has been woken and has not looked yet.
    notified: AtomicBool,
}

#[derive(Default)]
struct Outbox {
    frames: VecDeque<Outgoing>,
    close: Option<Option<Fault>>,
    assignment: Option<(Arc<Session>, StreamNumber)>,
}

impl Link {
    pub(crate) fn new(thread: Arc<NetworkThread>, token: usize) -> Arc<Link> {
        Arc::new(Link { thread, token, outbox: Mutex::default(), notified: AtomicBool::new(false) })
    }

    pub(crate) fn send_frame(&self, frame: &Frame) {
        self.send(Outgoing { head: frame.encode(0), payload: None, call: None });
    }

    pub(crate) fn send(&self, outgoing: Outgoing) {
        let mut refused = None;
        let mut outbox = self.outbox.lock();
        if outbox.frames.len() >= OUTBOX_FRAMES_MAX {
            let fault = Fault::new(FaultCode::ProtocolError, "the peer asks without reading the answers");
            outbox.close.get_or_insert(Some(fault));
            refused = Some(outgoing);
        } else {
            outbox.frames.push_back(outgoing);
        }
        drop(outbox);
        drop(refused);
        self.notify();
    }

    /// Ends the stream; a fault is sent to the peer.
    pub(crate) fn close(&self, fault: Option<Fault>) {
        self.outbox.lock().close.get_or_insert(fault);
        self.notify();
    }

    /// Assigns an offered stream to a session.
    pub(crate) fn assign_to(&self, session: Arc<Session>, stream: StreamNumber) {
        self.outbox.lock().assignment = Some((session, stream));
        self.notify();
    }

    fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.thread.has_output(self.token);
        }
    }

    /// Called by the network thread before it reads the queue.
    pub(super) fn clear_notified(&self) {
        self.notified.store(false, Ordering::Release);
    }

    pub(super) fn next_outgoing(&self) -> Option<Outgoing> {
        self.outbox.lock().frames.pop_front()
    }

    pub(crate) fn take_close(&self) -> Option<Option<Fault>> {
        self.outbox.lock().close.take()
    }

    pub(super) fn take_assignment(&self) -> Option<(Arc<Session>, StreamNumber)> {
        self.outbox.lock().assignment.take()
    }

    /// Drops the frames that were not sent.
    pub(super) fn abandon(&self) {
        let frames = std::mem::take(&mut self.outbox.lock().frames);
        drop(frames);
    }
}
