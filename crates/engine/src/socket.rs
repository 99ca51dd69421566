//! Options of data sockets.

use std::time::Duration;

use mio::net::TcpStream;
use socket2::SockRef;

use crate::shared::Shared;

/// Unsent bytes that the kernel may hold: enough to keep it busy between two turns of our loop, while what it does not
/// hold can still go another way.
const NOTSENT_LOWAT: u32 = 512 << 10;
/// An unacknowledged byte this old means that the path is dead.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sets what a data stream needs. None of it is vital, so that failures are only noted.
pub(crate) fn prepare(socket: &TcpStream, _shared: &Shared) {
    let socket = SockRef::from(socket);
    // Frames are handed over whole: waiting for more only delays requests.
    let results = [
        socket.set_tcp_nodelay(true),
        socket.set_tcp_notsent_lowat(NOTSENT_LOWAT),
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT)),
    ];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "a socket option was refused");
    }
}
