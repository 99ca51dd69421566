//! Samples `TCP_INFO` about once a second, reports the measurements to sessions and peers, chooses the
//! congestion control, and enlarges socket buffers that limit the rate.

use std::os::fd::AsFd;
use std::time::Duration;

use longhaul_model::TrafficClass;
use longhaul_wire::path::ROUND_TRIP_SHORT_MAX;
use longhaul_wire::{Frame, PathReport};
use mio::net::TcpStream;

use super::role::{Role, StreamHandler};
use crate::context::EngineContext;
use crate::interface::PathProfile;
use crate::socket::{self, Direction};
use crate::tcp::{self, TcpInfo};

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two samples of losses, which decide the congestion control.
const LOSS_SAMPLE_INTERVAL: Duration = Duration::from_millis(150);
/// The share of time limited by a full buffer above which a larger buffer is set.
const LIMITED_TIME_SHARE_MIN: f64 = 0.3;
/// More than this engine's own pings and reports of one interval. Fewer acknowledged bytes do not prove that
/// the peer is alive: the kernel also acknowledges for a hanging process, and so does a relay whose other
/// side is dead.
const CONTROL_BYTES_MAX: u64 = 4 << 10;

#[derive(Default)]
pub(super) struct Sampler {
    last: Option<(Duration, TcpInfo)>,
    widened: bool,
    /// Whether the receive window is clamped below the requested size.
    window_clamped: bool,
    /// The pacing rate that was last sent to the source.
    announced_pace: Option<u64>,
    congestion: CongestionSwitch,
}

/// Which congestion control the stream uses.
#[derive(Default)]
struct CongestionSwitch {
    last: Option<(Duration, TcpInfo)>,
    /// The previous congestion control, while the stream uses BBR.
    before: Option<Vec<u8>>,
}

impl Sampler {
    pub(super) fn is_new(&self) -> bool {
        self.last.is_none()
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.last.map(|(_, info)| info.round_trip)
    }

    pub(super) fn sample(
        &mut self,
        socket: &TcpStream,
        inner: &mut StreamHandler,
        shared: &EngineContext,
        now: Duration,
    ) {
        let profile = &shared.config.path;
        if let Some(bytes_per_s) = inner.pace.take() {
            socket::set_pacing(socket, bytes_per_s, profile);
        }
        // A congestion control set in the configuration stays.
        if matches!(inner.role, Role::Serving { .. }) && profile.congestion.is_none() {
            self.congestion.update(socket, shared, now);
        }
        if self.last.is_some_and(|(at, _)| now.saturating_sub(at) < SAMPLE_INTERVAL) {
            return;
        }
        match &inner.role {
            Role::Fetching { welcomed: true, .. } => self.sample_fetching(socket, inner, profile, now),
            Role::Serving { .. } => self.sample_serving(socket, inner, profile, now),
            _ => {}
        }
    }

    fn sample_fetching(
        &mut self,
        socket: &TcpStream,
        inner: &mut StreamHandler,
        profile: &PathProfile,
        now: Duration,
    ) {
        let Role::Fetching { session, stream, .. } = &inner.role else { return };
        let Ok(info) = TcpInfo::read_from(socket.as_fd()) else { return };
        self.last = Some((now, info));
        // A scavenger stream has its own window control.
        let gives_way = session.class() == TrafficClass::Scavenger;
        let bounds = session.update_round_trip(*stream, &info);
        let window = bounds.window.filter(|_| !gives_way);
        self.clamp_window(socket, window);
        if inner.supports_options && self.announced_pace != bounds.pace {
            self.announced_pace = bounds.pace;
            inner.link.send_frame(&Frame::Pace { bytes_per_s: bounds.pace.unwrap_or(0) });
        }
        let held_up = |report: &PathReport| window.is_none() && is_limited(report.receiver_limited, report);
        if let Some(report) = inner.report.filter(held_up) {
            self.grow_buffer(socket, Direction::Receive, profile, &report);
        }
    }

    fn sample_serving(
        &mut self,
        socket: &TcpStream,
        inner: &mut StreamHandler,
        profile: &PathProfile,
        now: Duration,
    ) {
        let Ok(info) = TcpInfo::read_from(socket.as_fd()) else { return };
        let by_rate = socket::uses_bbr(socket);
        let Some((at, before)) = self.last.replace((now, info)) else {
            // The receiver's window depends on this report and has to be right before the window opens.
            if by_rate && info.round_trip >= ROUND_TRIP_SHORT_MAX {
                let round_trip = info.round_trip;
                let report = PathReport { round_trip, rate_based: by_rate, ..PathReport::default() };
                inner.link.send_frame(&Frame::Report(report));
            }
            return;
        };
        let report =
            PathReport { rate_based: by_rate, ..report_between(&before, &info, now.saturating_sub(at)) };
        // An idle stream has nothing to report.
        if carried_data(&report) || 2 * report.busy > report.interval {
            inner.link.send_frame(&Frame::Report(report));
        }
        if carried_data(&report) {
            inner.note_delivered(now);
        }
        if is_limited(report.buffer_limited, &report) {
            self.grow_buffer(socket, Direction::Send, profile, &report);
        }
    }

    /// Set each time, since the kernel forgets the clamp when it grows the buffer.
    fn clamp_window(&mut self, socket: &TcpStream, window: Option<u64>) {
        let bounded = std::mem::replace(&mut self.window_clamped, window.is_some());
        let window = window.or(bounded.then_some(u64::MAX));
        if let Some(Err(error)) = window.map(|bytes| tcp::set_window_clamp(socket.as_fd(), bytes)) {
            tracing::debug!(%error, "a window cannot be set");
        }
    }

    /// Set once, and only where the configuration does not: the kernel's autotuning is better as long as its
    /// limits suffice.
    fn grow_buffer(
        &mut self,
        socket: &TcpStream,
        direction: Direction,
        profile: &PathProfile,
        report: &PathReport,
    ) {
        let decided = match direction {
            Direction::Receive => profile.receive_buffer.is_some(),
            Direction::Send => profile.send_buffer.is_some(),
        };
        if !decided && !self.widened {
            self.widened = true;
            let rate = report.acked_bytes as f64 / report.interval.as_secs_f64().max(0.1);
            // Twice the limited amount, and as much again for the round trip in which it grows.
            let need = 4.0 * rate * report.round_trip.as_secs_f64();
            socket::grow_buffer(socket, direction, need as u64);
        }
    }
}

impl CongestionSwitch {
    fn update(&mut self, socket: &TcpStream, shared: &EngineContext, now: Duration) {
        if self.last.is_some_and(|(at, _)| now.saturating_sub(at) < LOSS_SAMPLE_INTERVAL) {
            return;
        }
        let (Ok(info), Ok(peer)) = (TcpInfo::read_from(socket.as_fd()), socket.peer_addr()) else { return };
        // The first sample only reads what others have measured.
        let (at, before) = self.last.replace((now, info)).unwrap_or((now, info));
        let report = report_between(&before, &info, now.saturating_sub(at));
        let by_rate = self.before.is_some();
        let wants = shared.congestion_controls.observe(peer.ip(), &report, info.round_trip_min, by_rate, now);
        let done = match &self.before {
            None if wants => socket::use_bbr(socket).map(|name| self.before = Some(name)),
            Some(name) if !wants => {
                socket::restore_congestion_control(socket, name).map(|()| self.before = None)
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            tracing::debug!(%error, %peer, "the kernel does not change the law by which it sends");
            shared.congestion_controls.refused(peer.ip(), now);
        } else if wants != by_rate {
            tracing::debug!(%peer, by_rate = wants, "a stream is sent by another law");
        }
    }
}

fn is_limited(time: Duration, report: &PathReport) -> bool {
    time.as_secs_f64() > LIMITED_TIME_SHARE_MIN * report.interval.as_secs_f64()
}

fn carried_data(report: &PathReport) -> bool {
    report.acked_bytes > CONTROL_BYTES_MAX
}

fn report_between(before: &TcpInfo, after: &TcpInfo, interval: Duration) -> PathReport {
    PathReport {
        interval,
        round_trip: after.round_trip,
        delivery_rate: if after.app_limited { 0 } else { after.delivery_rate },
        acked_bytes: after.bytes_acked.saturating_sub(before.bytes_acked),
        segments: after.segments_sent.wrapping_sub(before.segments_sent),
        retransmits: after.retransmits.wrapping_sub(before.retransmits),
        busy: after.busy.saturating_sub(before.busy),
        receiver_limited: after.receiver_limited.saturating_sub(before.receiver_limited),
        buffer_limited: after.buffer_limited.saturating_sub(before.buffer_limited),
        rate_based: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_covers_the_time_since_the_previous_one() {
        let ms = Duration::from_millis;
        let before = TcpInfo { bytes_acked: 100, busy: ms(500), retransmits: u32::MAX, ..TcpInfo::default() };
        let after = TcpInfo {
            bytes_acked: 1_100,
            busy: ms(1_400),
            receiver_limited: ms(400),
            retransmits: 1,
            round_trip: ms(80),
            ..TcpInfo::default()
        };
        let report = report_between(&before, &after, ms(1_000));
        assert_eq!((report.acked_bytes, report.busy, report.retransmits), (1_000, ms(900), 2));
        assert!(is_limited(report.receiver_limited, &report) && !is_limited(report.buffer_limited, &report));
        assert!(!carried_data(&report), "that was a question of ours");
        assert!(carried_data(&PathReport { acked_bytes: 20_000, ..report }));
    }
}
