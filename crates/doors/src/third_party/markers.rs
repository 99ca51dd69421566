//! Performance markers for the client of a third-party copy, and the final line with the result.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::error::CopyError;

/// Clients and load balancers give up after 30 s of silence or more.
pub(crate) const MARKER_INTERVAL: Duration = Duration::from_secs(5);

/// How far a copy has come.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<State>);

#[derive(Default)]
struct State {
    bytes: AtomicU64,
    /// Seconds since 1970 when it began; 0 before.
    began: AtomicI64,
    peer: Mutex<Option<SocketAddr>>,
}

impl Progress {
    pub(crate) fn add(&self, bytes: u64) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn connected(&self, peer: SocketAddr) {
        *self.0.peer.lock() = Some(peer);
    }

    fn marker(&self, now: i64) -> String {
        let began = match self.0.began.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(began) => began,
        };
        let peer = *self.0.peer.lock();
        let peer = peer.map_or(String::new(), |peer| format!("    RemoteConnections: tcp:{peer}\n"));
        format!(
            "Perf Marker\n    Timestamp: {now}\n    State: Running\n    Stripe Index: 0\n    Stripe Start \
                Time: {began}\n    \
             Stripe Transfer Time: {}\n    Stripe Bytes Transferred: {}\n    Stripe Status: RUNNING\n    \
             Total Stripe Count: 1\n{peer}End\n",
            (now - began).max(0),
            self.bytes()
        )
    }
}

/// Drives a copy, telling of it, until it ends or nobody listens any more: then it is dropped, and with it
/// what it has done.
pub(crate) async fn drive_with_markers(
    copy: impl Future<Output = Result<(), CopyError>>,
    progress: Progress,
    sender: mpsc::Sender<io::Result<Bytes>>,
) {
    let mut copy = std::pin::pin!(copy);
    let result = loop {
        if sender.send(Ok(progress.marker(now()).into())).await.is_err() {
            return;
        }
        tokio::select! {
            result = &mut copy => break result,
            () = tokio::time::sleep(MARKER_INTERVAL) => {}
            () = sender.closed() => return,
        }
    };
    let line = match result {
        Ok(()) => "success: Created\n".to_owned(),
        Err(why) => format!("failure: {}\n", one_line(&why.to_string())),
    };
    let _ = sender.send(Ok(format!("{}{line}", progress.marker(now())).into())).await;
}

/// Texts of peers are part of it: they neither end the line nor steer a terminal.
pub(crate) fn one_line(text: &str) -> String {
    const CHARACTERS_MAX: usize = 500;
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(CHARACTERS_MAX).collect::<String>().trim().to_owned()
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_have_the_grammar_that_controllers_read() {
        let progress = Progress::default();
        progress.add(7);
        progress.connected("[2001:db8::1]:443".parse().unwrap());
        assert!(progress.marker(100).contains("    Stripe Transfer Time: 0\n"));
        let marker = progress.marker(105);
        assert!(
            marker.starts_with("Perf Marker\n    Timestamp: 105\n") && marker.ends_with("\nEnd\n"),
            "{marker}"
        );
        assert!(
            marker.contains("    Stripe Bytes Transferred: 7\n") && marker.contains("Transfer Time: 5\n")
        );
        assert!(marker.contains("    RemoteConnections: tcp:[2001:db8::1]:443\n"));
    }

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(one_line("a\r\nsuccess: Created\n"), "a  success: Created");
        assert!(one_line(&"x".repeat(9_999)).len() <= 500);
    }
}
