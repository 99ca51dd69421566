//! Sockets of addresses that are not on the allow-list: each receives one TLS alert of seven bytes and is
//! closed.
//!
//! A socket stays open for a moment: unread data from the peer would turn the close into a reset, which can
//! overtake the alert and look like a network fault to the peer.

use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use mio::net::TcpStream;

use crate::tls::ACCESS_DENIED;

/// Time a refused peer has to read its alert.
const REFUSED_SOCKET_LINGER: Duration = Duration::from_secs(1);
/// Refused sockets kept open; the next one evicts the oldest.
const REFUSED_SOCKETS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct RefusedSockets(VecDeque<(Duration, TcpStream)>);

impl RefusedSockets {
    pub(super) fn refuse(&mut self, mut socket: TcpStream, now: Duration) {
        // An empty socket buffer has room for the alert; if it does not, the stream just ends.
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
