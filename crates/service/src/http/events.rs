//! The event stream: what changes, as server-sent events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use hyper::body::Frame;
use longhaul_api::native::{ChangeEvent, ChangeKind};
use longhaul_model::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc, watch};

/// A comment is sent this often when nothing happens, so that both ends notice a dead connection.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Events on their way to one listener.
const QUEUE: usize = 64;

/// Streams until the listener goes, stays behind for too long, or the service stops.
pub fn stream(
    changes: broadcast::Receiver<ChangeEvent>,
    clock: crate::Clock,
    stop: watch::Receiver<bool>,
    slot: OwnedSemaphorePermit,
) -> Body {
    let (sender, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(pump(changes, clock, stop, sender, slot));
    Body::new(Pieces { pieces }.boxed())
}

async fn pump(
    mut changes: broadcast::Receiver<ChangeEvent>,
    clock: crate::Clock,
    mut stop: watch::Receiver<bool>,
    sender: mpsc::Sender<Bytes>,
    _slot: OwnedSemaphorePermit,
) {
    let mut piece = Bytes::from_static(b": hello\n\n");
    loop {
        if sender.send(piece).await.is_err() {
            return;
        }
        piece = tokio::select! {
            change = changes.recv() => match change {
                Ok(change) => event(&change),
                // Some were missed: everything may have changed.
                Err(broadcast::error::RecvError::Lagged(_)) => event(&everything(clock())),
                Err(broadcast::error::RecvError::Closed) => return,
            },
            _ = tokio::time::sleep(HEARTBEAT) => Bytes::from_static(b": \n\n"),
            _ = stop.wait_for(|stop| *stop) => return,
            _ = sender.closed() => return,
        };
    }
}

fn everything(at: Timestamp) -> ChangeEvent {
    ChangeEvent { at, kind: ChangeKind::Status, id: None }
}

fn event(change: &ChangeEvent) -> Bytes {
    let data = serde_json::to_string(change).unwrap_or_default();
    let kind = serde_json::to_value(change.kind).ok().and_then(|kind| kind.as_str().map(str::to_owned));
    // JSON has no line feeds, so one data line is enough.
    format!("event: {}\ndata: {data}\n\n", kind.unwrap_or_default()).into()
}

struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.pieces.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Listeners at a time.
pub type Slots = Arc<tokio::sync::Semaphore>;
