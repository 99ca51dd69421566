//! Packet marking: socket marks (DSCP and flow label), fireflies, and traffic counters per mark.
//!
//! All streams of a session carry one mark, so each flow has one label, and its counters belong to that
//! label. Nothing here blocks: what the kernel does not accept at once is counted and skipped.

mod flow;
mod flow_label;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longhaul_model::Mark;
use longhaul_wire::firefly::Firefly;
use mio::net::TcpStream;
use parking_lot::Mutex;
use socket2::{SockRef, Socket};

use crate::interface::{MarkSnapshot, Marking, MarkingSnapshot};
use crate::socket::is_v6;

pub(crate) use flow::{Flow, FlowEnd};

/// Marks with counters of their own; peers choose the marks of what they fetch from us.
const MARKS_COUNTED_MAX: usize = 256;

/// Marks the engine's streams.
pub(crate) struct StreamMarker {
    config: Marking,
    /// UDP socket for IPv4, if the host has it and fireflies are sent.
    v4: Option<UdpSocket>,
    /// UDP socket for IPv6, if the host has it and fireflies are sent.
    v6: Option<UdpSocket>,
    counters: Mutex<BTreeMap<Mark, Arc<MarkCounters>>>,
    fireflies_sent: AtomicU64,
    fireflies_dropped: AtomicU64,
    unlabelled: AtomicU64,
    warned: AtomicBool,
}

/// Traffic under one mark.
#[derive(Default)]
pub(crate) struct MarkCounters {
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

impl StreamMarker {
    pub(crate) fn new(wanted: Marking) -> StreamMarker {
        let is_told = !wanted.collectors.is_empty() || wanted.target_port.is_some();
        let open = |from: SocketAddr| {
            let socket = UdpSocket::bind(from).and_then(|socket| {
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            socket
                .inspect_err(|error| tracing::debug!(%from, %error, "no fireflies in this address family"))
                .ok()
        };
        let socket = |any: SocketAddr| is_told.then(|| open(any)).flatten();
        StreamMarker {
            v4: socket((Ipv4Addr::UNSPECIFIED, 0).into()),
            v6: socket((Ipv6Addr::UNSPECIFIED, 0).into()),
            config: wanted,
            counters: Mutex::default(),
            fireflies_sent: AtomicU64::new(0),
            fireflies_dropped: AtomicU64::new(0),
            unlabelled: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        }
    }

    /// Accepted connections reflect the peer's flow label: Linux allows no other label on them.
    pub(crate) fn prepare_listener(&self, listener: &TcpListener) {
        if self.config.flow_label
            && listener.local_addr().is_ok_and(|address| address.is_ipv6())
            && let Err(error) = flow_label::reflect(&SockRef::from(listener))
        {
            tracing::info!(
                %error,
                "accepted streams carry no flow label; `sysctl net.ipv6.flowlabel_reflect=1` enables it"
            );
        }
    }

    /// Marks a socket that is about to connect. Returns the address to connect to, which holds the label.
    pub(crate) fn before_connect(
        &self,
        socket: &Socket,
        address: SocketAddr,
        mark: Mark,
        random: u32,
    ) -> SocketAddr {
        self.set_class(&SockRef::from(socket), address.is_ipv6(), mark);
        let SocketAddr::V6(mut to) = address else { return address };
        let label = mark.scitag.filter(|_| self.config.flow_label).and_then(|tag| tag.flow_label(random));
        match label.map(|label| flow_label::lease(&SockRef::from(socket), *to.ip(), label)) {
            Some(Ok(label)) => to.set_flowinfo(label.to_be()),
            Some(Err(error)) => self.warn_unlabelled(&error),
            None => {}
        }
        to.into()
    }

    /// Marks a connected stream with the DSCP. Its label was set when it was dialled.
    pub(crate) fn mark_connected(&self, socket: &TcpStream, mark: Mark) {
        let v6 = is_v6(socket);
        self.set_class(&SockRef::from(socket), v6, mark);
        if v6
            && self.config.flow_label
            && mark.scitag.is_some()
            && flow_label::flow_label_of(socket).is_none()
        {
            self.unlabelled.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn set_class(&self, socket: &SockRef<'_>, v6: bool, mark: Mark) {
        let Some(dscp) = mark.dscp.filter(|_| self.config.dscp) else { return };
        let byte = dscp.byte().into();
        let set = if v6 { socket.set_tclass_v6(byte) } else { socket.set_tos_v4(byte) };
        if let Err(error) = set {
            tracing::debug!(%dscp, %error, "the kernel refused a DSCP");
        }
    }

    fn warn_unlabelled(&self, error: &std::io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the kernel refused a flow label; streams go without (logged once)");
        }
    }

    fn counters_of(&self, mark: Mark) -> Arc<MarkCounters> {
        let mut all = self.counters.lock();
        let full = all.len() >= MARKS_COUNTED_MAX && !all.contains_key(&mark);
        // Marks beyond the limit share one counter.
        all.entry(if full { Mark::default() } else { mark }).or_default().clone()
    }

    /// Sends a firefly to all collectors. Never blocks.
    fn send_firefly(&self, firefly: &Firefly, from_source: bool) {
        let datagram = firefly.datagram(&self.config.host);
        let at_target = self.config.target_port.filter(|_| from_source);
        let at_target = at_target.map(|port| SocketAddr::new(firefly.target.ip().to_canonical(), port));
        for to in self.config.collectors.iter().copied().chain(at_target) {
            let socket = if to.is_ipv6() { &self.v6 } else { &self.v4 };
            let sent = socket.as_ref().is_some_and(|socket| socket.send_to(&datagram, to).is_ok());
            let count = if sent { &self.fireflies_sent } else { &self.fireflies_dropped };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> MarkingSnapshot {
        let of = |(mark, counted): (&Mark, &Arc<MarkCounters>)| MarkSnapshot {
            mark: *mark,
            bytes_in: counted.bytes_in.load(Ordering::Relaxed),
            bytes_out: counted.bytes_out.load(Ordering::Relaxed),
        };
        MarkingSnapshot {
            marks: self.counters.lock().iter().map(of).collect(),
            fireflies_sent: self.fireflies_sent.load(Ordering::Relaxed),
            fireflies_dropped: self.fireflies_dropped.load(Ordering::Relaxed),
            streams_unlabelled: self.unlabelled.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use longhaul_model::mark::Treatment;
    use longhaul_model::{SciTag, TrafficClass};

    use super::*;
    use crate::interface::PathProfile;
    use crate::tcp::peer_marking;

    fn marks(change: impl FnOnce(&mut Marking)) -> StreamMarker {
        let mut wanted = Marking { flow_label: true, dscp: true, ..Marking::default() };
        change(&mut wanted);
        StreamMarker::new(wanted)
    }

    fn mark(dscp: &str) -> Mark {
        Mark { scitag: SciTag::new(2, 26).ok(), dscp: dscp.parse().ok() }
    }

    /// What the other end sees of a stream that we dial: its traffic class, and its flow label.
    fn dialled(any: &str, treatment: Treatment, marks: Option<&StreamMarker>) -> Option<(u8, Option<u32>)> {
        let Ok(listener) = TcpListener::bind(any) else {
            eprintln!("SKIPPED: this host has no {any}");
            return None;
        };
        let to = listener.local_addr().unwrap();
        let marks = marks.map(|marks| (marks, 0));
        let near = crate::socket::connect(to, None, &PathProfile::default(), treatment, marks).unwrap();
        let (far, _) = listener.accept().unwrap();
        let seen = peer_marking(far.as_fd(), to.is_ipv6()).unwrap().unwrap();
        Some((seen & !0b11, flow_label::flow_label_of(&near)))
    }

    #[test]
    fn a_dialled_stream_is_marked_from_its_first_packet() {
        let all = marks(|_| {});
        let of = |dscp: &str| Treatment { mark: mark(dscp), ..Treatment::default() };
        for (any, label) in [("127.0.0.1:0", None), ("[::1]:0", Some(0x10068))] {
            let Some(seen) = dialled(any, of("af11"), Some(&all)) else { continue };
            assert_eq!(seen, (10 << 2, label), "{any}");
            let scavenger = Treatment { class: TrafficClass::Scavenger, ..of("cs1") };
            assert_eq!(
                dialled(any, scavenger, Some(&all)).unwrap().0,
                8 << 2,
                "in place of the scavenger's own"
            );
            // Nothing is set without marking, and only what is configured.
            assert_eq!(dialled(any, of("af11"), None).unwrap().0, 0);
            let no_class = marks(|wanted| wanted.dscp = false);
            assert_eq!(dialled(any, of("af11"), Some(&no_class)).unwrap(), (0, label));
            let no_label = marks(|wanted| wanted.flow_label = false);
            assert_ne!(dialled(any, of("af11"), Some(&no_label)).unwrap().1, Some(0x10068));
        }
        assert_eq!(all.snapshot().streams_unlabelled, 0);
    }

    #[test]
    fn an_accepted_stream_is_marked_once_its_mark_is_known() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else { continue };
            let v6 = listener.local_addr().unwrap().is_ipv6();
            let _far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let near = TcpStream::from_std(listener.accept().unwrap().0);
            let class = |near: &TcpStream| {
                let socket = SockRef::from(near);
                if v6 { socket.tclass_v6().unwrap() } else { socket.tos_v4().unwrap() }
            };
            let marks = marks(|_| {});
            assert_eq!(class(&near), 0);
            marks.mark_connected(&near, mark("cs1"));
            assert_eq!(class(&near), 8 << 2);
            assert_eq!(marks.snapshot().streams_unlabelled, u64::from(v6), "the kernel sets no label");
        }
    }

    #[test]
    fn the_number_of_counted_marks_is_bounded() {
        let marks = marks(|_| {});
        for number in 0..2 * MARKS_COUNTED_MAX as u32 {
            let scitag = SciTag::from_number(65 + number).ok();
            marks.counters_of(Mark { scitag, dscp: None }).bytes_in.fetch_add(1, Ordering::Relaxed);
        }
        let counted = marks.snapshot().marks;
        assert!(counted.len() <= MARKS_COUNTED_MAX + 1);
        assert_eq!(counted.iter().map(|row| row.bytes_in).sum::<u64>(), 2 * MARKS_COUNTED_MAX as u64);
    }
}
