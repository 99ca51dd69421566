//! One stream as a marked flow: traffic counters and fireflies.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_model::{Mark, SciTag, Timestamp};
use longhaul_wire::firefly::{Firefly, State, Usage};
use mio::net::TcpStream;

use super::{MarkCounters, StreamMarker};
use crate::context::EngineContext;
use crate::tcp::TcpInfo;

/// Which end of a flow this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowEnd {
    Source,
    Target,
}

/// A marked stream.
pub(crate) struct Flow {
    marks: Arc<StreamMarker>,
    end: FlowEnd,
    counters: Arc<MarkCounters>,
    /// Set if fireflies are sent.
    report: Option<FlowReport>,
}

/// State of a flow's fireflies.
struct FlowReport {
    scitag: SciTag,
    source: SocketAddr,
    target: SocketAddr,
    started: Timestamp,
    /// When the next firefly is due.
    next: Duration,
    /// Bytes that had passed at the last firefly.
    passed: u64,
}

impl Flow {
    /// The stream carries this mark from now on.
    pub(crate) fn begin(
        marks: &Arc<StreamMarker>,
        socket: &TcpStream,
        end: FlowEnd,
        mark: Mark,
        shared: &EngineContext,
    ) -> Flow {
        marks.mark_connected(socket, mark);
        let ends = socket.local_addr().and_then(|own| Ok((own, socket.peer_addr()?)));
        let told = mark.scitag.zip(ends.ok()).map(|(scitag, (own, peer))| {
            let (source, target) = match end {
                FlowEnd::Source => (own, peer),
                FlowEnd::Target => (peer, own),
            };
            let next = shared.now() + marks.config.firefly_interval.unwrap_or_default();
            FlowReport { scitag, source, target, started: shared.wall(), next, passed: 0 }
        });
        let flow = Flow { marks: marks.clone(), end, counters: marks.counters_of(mark), report: told };
        flow.send_firefly(State::Start, socket, shared.wall());
        flow
    }

    /// Counts payload sent or received.
    pub(crate) fn count(&self, bytes: u64) {
        let counter = match self.end {
            FlowEnd::Source => &self.counters.bytes_out,
            FlowEnd::Target => &self.counters.bytes_in,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sends a periodic firefly, if anything has passed.
    pub(crate) fn report_progress(&mut self, socket: &TcpStream, shared: &EngineContext) {
        let now = shared.now();
        let (Some(every), Some(told)) = (self.marks.config.firefly_interval, &mut self.report) else {
            return;
        };
        if now < told.next {
            return;
        }
        told.next = now + every;
        let Ok(info) = TcpInfo::read_from(socket.as_fd()) else { return };
        let passed = info.bytes_acked + info.bytes_received;
        if std::mem::replace(&mut told.passed, passed) != passed {
            self.send_firefly(State::Ongoing, socket, shared.wall());
        }
    }

    /// The stream is closed.
    pub(crate) fn end(self, socket: &TcpStream, shared: &EngineContext) {
        self.send_firefly(State::End, socket, shared.wall());
    }

    fn send_firefly(&self, state: State, socket: &TcpStream, now: Timestamp) {
        let Some(told) = &self.report else { return };
        let info = TcpInfo::read_from(socket.as_fd()).unwrap_or_default();
        let (sent, received) = match self.end {
            FlowEnd::Source => (info.bytes_acked, info.bytes_received),
            FlowEnd::Target => (info.bytes_received, info.bytes_acked),
        };
        let usage = Usage {
            sent,
            received,
            round_trip: info.round_trip,
            window_segments: info.window_segments,
            retransmits: info.retransmits,
            delivery_rate: info.delivery_rate,
        };
        let &FlowReport { scitag, source, target, started, .. } = told;
        let firefly = Firefly { state, started, now, source, target, scitag, usage };
        self.marks.send_firefly(&firefly, self.end == FlowEnd::Source);
    }
}
