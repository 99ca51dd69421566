//! The event stream: what changes, as server-sent events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use hyper::body::Frame;
use longhaul_api::native::{ChangeEvent, ChangeKind};
use longhaul_model::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc, watch};

use super::credential::StreamCredential;

/// Events on their way to one listener.
const QUEUE: usize = 64;

/// Streams until the listener goes, stays behind for too long, the credential ends, or the service stops.
pub fn stream(credential: StreamCredential, stop: watch::Receiver<bool>, slot: OwnedSemaphorePermit) -> Body {
    let (sender, pieces) = mpsc::channel(QUEUE);
    // From now on, not from when the task begins: nothing is missed in between.
    let changes = credential.operations.changes();
    let ended = credential.operations.identity().ended_credentials();
    tokio::spawn(pump(credential, changes, ended, stop, sender, slot));
    Body::new(Pieces { pieces }.boxed())
}

async fn pump(
    credential: StreamCredential,
    mut changes: broadcast::Receiver<ChangeEvent>,
    mut ended: watch::Receiver<u64>,
    mut stop: watch::Receiver<bool>,
    sender: mpsc::Sender<Bytes>,
    _slot: OwnedSemaphorePermit,
) {
    let mut piece = Bytes::from_static(b": hello\n\n");
    let clock = credential.operations.clock();
    loop {
        if !credential.holds() || sender.send(piece).await.is_err() {
            return;
        }
        piece = tokio::select! {
            change = changes.recv() => match change {
                Ok(change) => event(&change),
                // Some were missed: everything may have changed.
                Err(broadcast::error::RecvError::Lagged(_)) => event(&everything(clock())),
                Err(broadcast::error::RecvError::Closed) => return,
            },
            // A comment when nothing happens, so that both ends notice a dead connection.
            _ = tokio::time::sleep(credential.check_wait()) => Bytes::from_static(b": \n\n"),
            Ok(()) = ended.changed() => Bytes::from_static(b": \n\n"),
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
