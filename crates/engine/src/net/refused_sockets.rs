//! Sockets of addresses that are not allowed: each is told so by one alert of seven bytes, and then closed.
//!
//! They stay open for a moment: what the peer has sent and nobody reads would turn the close into a reset,
//! which can overtake the alert, and a person over there would look for a fault of the network.

use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use mio::net::TcpStream;

use crate::tls::ACCESS_DENIED;

/// Who has not read its alert by then never does.
const REFUSED_SOCKET_LINGER: Duration = Duration::from_secs(1);
/// The oldest makes room for the next.
const REFUSED_SOCKETS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct RefusedSockets(VecDeque<(Duration, TcpStream)>);

impl RefusedSockets {
    pub(super) fn refuse(&mut self, mut socket: TcpStream, now: Duration) {
        // An empty socket buffer has room for it; if it has not, the stream just ends.
        let _ = socket.write(&ACCESS_DENIED);
        let _ = socket.shutdown(Shutdown::Write);
        if self.0.len() >= REFUSED_SOCKETS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, socket));
    }

    pub(super) fn tick(&mut self, now: Duration) {
        while self.0.front().is_some_and(|(since, _)| now.saturating_sub(*since) >= REFUSED_SOCKET_LINGER) {
            self.0.pop_front();
        }
    }
}
