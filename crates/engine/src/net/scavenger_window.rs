//! A stream that gives way to others: measures round trips, and sets the window that [`Scavenger`] decides
//! on.

use std::os::fd::AsFd;
use std::time::Duration;

use longhaul_wire::scavenger::Scavenger;
use mio::net::TcpStream;

use crate::tcp::{self, TcpInfo};

pub(super) struct ScavengerWindow {
    scavenger: Scavenger,
    last: Option<TcpInfo>,
}

impl ScavengerWindow {
    pub(super) fn new(now: Duration) -> ScavengerWindow {
        ScavengerWindow { scavenger: Scavenger::new(now), last: None }
    }

    /// Returns whether something should be sent, so that a round trip is measured: while data come, there is
    /// an answer with the next of them.
    pub(super) fn update(&mut self, socket: &TcpStream, now: Duration) -> bool {
        let Ok(info) = TcpInfo::read_from(socket.as_fd()) else { return false };
        let arrived = match self.last.replace(info) {
            None => {
                self.scavenger.add_round_trip(info.round_trip_min);
                true
            }
            Some(last) => {
                let arrived = info.bytes_received.saturating_sub(last.bytes_received);
                if let Some(sample) = undo_average(&last, &info) {
                    self.scavenger.add_round_trip(sample);
                }
                if arrived > 0 && !info.receiver_round_trip.is_zero() {
                    self.scavenger.add_round_trip(info.receiver_round_trip.max(info.round_trip_min));
                }
                self.scavenger.add_received(arrived);
                arrived > 0
            }
        };
        // Each time, since the kernel forgets it when it lets the buffer grow.
        if let Err(error) = tcp::set_window_clamp(socket.as_fd(), self.scavenger.window(now)) {
            tracing::debug!(%error, "a window cannot be set");
        }
        arrived
    }
}

/// What the kernel measured between two looks: it tells only an average, in which each new round trip counts
/// an eighth.
///
/// It is of what we send ourselves, which a source may acknowledge late if its window has no room for data
/// that could bring the answer: up to 40 ms that are no queue. So the kernel's other measure counts as well,
/// that of a receiver, and of both the shorter one.
fn undo_average(last: &TcpInfo, info: &TcpInfo) -> Option<Duration> {
    if info.round_trip == last.round_trip {
        return None;
    }
    let sample = (8 * info.round_trip).saturating_sub(7 * last.round_trip);
    // If there were two, that goes too far; it is no shorter than any was.
    Some(sample.max(info.round_trip_min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_average_is_undone() {
        let info = |round_trip: u64| TcpInfo {
            round_trip: Duration::from_micros(round_trip),
            round_trip_min: Duration::from_micros(20_000),
            ..TcpInfo::default()
        };
        let of = |last, now| undo_average(&info(last), &info(now)).map(|sample| sample.as_micros());
        assert_eq!(of(20_000, 21_000), Some(28_000));
        assert_eq!(of(30_000, 29_000), Some(22_000));
        assert_eq!(of(30_000, 27_000), Some(20_000));
        assert_eq!(of(30_000, 30_000), None);
    }
}
