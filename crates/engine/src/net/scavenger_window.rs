//! LEDBAT-like scavenger (less than best effort, after rLEDBAT, RFC 9840): samples the round trip time and
//! sets the receive window that [`Scavenger`] computes.

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

    /// Returns whether to send a frame so that a round trip is measured: while data arrive, the next segment
    /// acknowledges it.
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
        // Set each time, since the kernel forgets the clamp when it grows the buffer.
        if let Err(error) = tcp::set_window_clamp(socket.as_fd(), self.scavenger.window(now)) {
            tracing::debug!(%error, "a window cannot be set");
        }
        arrived
    }
}

/// Recovers new round trip samples from the kernel's smoothed average, in which each new sample has the
/// weight 1/8 (RFC 6298).
///
/// The average covers this side's own packets, which a source may acknowledge up to 40 ms late (delayed
/// acknowledgement) if its window has no room for data to carry the acknowledgement; that delay is not
/// queueing. The receiver-side estimate is read as well, and the shorter of the two counts.
fn undo_average(last: &TcpInfo, info: &TcpInfo) -> Option<Duration> {
    if info.round_trip == last.round_trip {
        return None;
    }
    let sample = (8 * info.round_trip).saturating_sub(7 * last.round_trip);
    // With two new samples this overshoots; the result is still no shorter than either of them.
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
