//! One stream as a flow of its mark: what passes, and who is told when.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_model::{Mark, SciTag, Timestamp};
use longhaul_wire::firefly::{Firefly, State, Usage};
use mio::net::TcpStream;

use super::{Counted, Marks};
use crate::shared::Shared;
use crate::tcp::TcpInfo;

/// Which end of a flow this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Target,
}

pub(crate) struct Flow {
    marks: Arc<Marks>,
    end: End,
    counted: Arc<Counted>,
    /// None: nobody is told of it.
    told: Option<Told>,
}

struct Told {
    scitag: SciTag,
    source: SocketAddr,
    target: SocketAddr,
    started: Timestamp,
    /// When it is told of next, and what had passed when it was told of last.
    next: Duration,
    passed: u64,
}

impl Flow {
    /// The stream is this mark's from now on.
    pub(crate) fn begin(
        marks: &Arc<Marks>,
        socket: &TcpStream,
        end: End,
        mark: Mark,
        shared: &Shared,
    ) -> Flow {
        marks.connected(socket, mark);
        let ends = socket.local_addr().and_then(|own| Ok((own, socket.peer_addr()?)));
        let told = mark.scitag.zip(ends.ok()).map(|(scitag, (own, peer))| {
            let (source, target) = match end {
                End::Source => (own, peer),
                End::Target => (peer, own),
            };
            let next = shared.now() + marks.wanted.every.unwrap_or_default();
            Told { scitag, source, target, started: shared.wall(), next, passed: 0 }
        });
        let flow = Flow { marks: marks.clone(), end, counted: marks.counted(mark), told };
        flow.tell(State::Start, socket, shared.wall());
        flow
    }

    /// Payload that came or went.
    pub(crate) fn passed(&self, bytes: u64) {
        let counter = match self.end {
            End::Source => &self.counted.bytes_out,
            End::Target => &self.counted.bytes_in,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Tells of it now and then, while something passes.
    pub(crate) fn look(&mut self, socket: &TcpStream, shared: &Shared) {
        let now = shared.now();
        let (Some(every), Some(told)) = (self.marks.wanted.every, &mut self.told) else { return };
        if now < told.next {
            return;
        }
        told.next = now + every;
        let Ok(info) = TcpInfo::of(socket.as_fd()) else { return };
        let passed = info.bytes_acked + info.bytes_received;
        if std::mem::replace(&mut told.passed, passed) != passed {
            self.tell(State::Ongoing, socket, shared.wall());
        }
    }

    /// The stream is closed.
    pub(crate) fn end(self, socket: &TcpStream, shared: &Shared) {
        self.tell(State::End, socket, shared.wall());
    }

    fn tell(&self, state: State, socket: &TcpStream, now: Timestamp) {
        let Some(told) = &self.told else { return };
        let info = TcpInfo::of(socket.as_fd()).unwrap_or_default();
        let (sent, received) = match self.end {
            End::Source => (info.bytes_acked, info.bytes_received),
            End::Target => (info.bytes_received, info.bytes_acked),
        };
        let usage = Usage {
            sent,
            received,
            round_trip: info.round_trip,
            window_segments: info.window_segments,
            retransmits: info.retransmits,
            delivery_rate: info.delivery_rate,
        };
        let &Told { scitag, source, target, started, .. } = told;
        let firefly = Firefly { state, started, now, source, target, scitag, usage };
        self.marks.tell(&firefly, self.end == End::Source);
    }
}
