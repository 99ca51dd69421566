//! An upload body behind `Expect: 100-continue`: nothing is read before the server asks for it, so that a
//! redirect or a refusal costs no data and the bytes are still there for the server that takes them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::TrySendError;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::exchange::Body;

type Pieces = mpsc::Receiver<Bytes>;
type Sent = Result<Response<Incoming>, TrySendError<Request<Body>>>;

/// Where the bytes come from, how many there will be, and how many are gone.
#[derive(Clone)]
pub(crate) struct Upload {
    len: u64,
    pieces: Arc<Mutex<Option<Pieces>>>,
    sent: Arc<AtomicU64>,
    open: Arc<watch::Sender<bool>>,
    /// After this we send without having been told to.
    may_send: Duration,
    /// Without a byte going anywhere.
    stall: Duration,
}

impl Upload {
    pub(crate) fn new(len: u64, pieces: Pieces, may_send: Duration, stall: Duration) -> Upload {
        Upload {
            len,
            pieces: Arc::new(Mutex::new(Some(pieces))),
            sent: Arc::default(),
            open: Arc::new(watch::channel(false).0),
            may_send,
            stall,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= self.len
    }

    /// Whether some of it has gone to a server.
    pub(crate) fn is_begun(&self) -> bool {
        self.pieces.lock().is_none()
    }

    pub(crate) fn expect_continue(&self, request: &mut Request<Body>) {
        let open = self.open.clone();
        longhaul_outbound::expect_continue(request, self.len, move || {
            open.send_replace(true);
        });
    }

    pub(crate) fn body(&self) -> UploadBody {
        self.open.send_replace(false);
        let mut told = self.open.subscribe();
        let may_send = self.may_send;
        let wait = async move {
            tokio::select! {
                _ = told.wait_for(|open| *open) => {}
                () = sleep(may_send) => {}
            }
        };
        // Without content there is nothing to hold back.
        let wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>> =
            if self.len == 0 { None } else { Some(Box::pin(wait)) };
        UploadBody { upload: self.clone(), wait, pieces: None, left: self.len }
    }

    /// Waits for the answer: as long as bytes go, then `within`. The error is how long nothing happened.
    pub(crate) async fn watch(
        &self,
        sending: impl Future<Output = Sent>,
        within: Duration,
    ) -> Result<Sent, Duration> {
        let mut sending = std::pin::pin!(sending);
        let mut last = (self.sent.load(Ordering::Relaxed), Instant::now());
        loop {
            let patience = if last.0 >= self.len { within } else { self.stall.max(self.may_send) };
            let tick = patience.min(Duration::from_secs(1));
            tokio::select! {
                sent = &mut sending => return Ok(sent),
                () = sleep(tick) => {}
            }
            let sent = self.sent.load(Ordering::Relaxed);
            if sent != last.0 {
                last = (sent, Instant::now());
            } else if last.1.elapsed() >= patience {
                return Err(patience);
            }
        }
    }
}

pub(crate) struct UploadBody {
    upload: Upload,
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pieces: Option<Pieces>,
    left: u64,
}

impl hyper::body::Body for UploadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(wait) = &mut self.wait {
            std::task::ready!(wait.as_mut().poll(context));
            self.wait = None;
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.pieces.is_none() {
            let pieces = self.upload.pieces.lock().take();
            self.pieces = pieces;
        }
        let Some(pieces) = &mut self.pieces else {
            return Poll::Ready(Some(Err(io::Error::other("the bytes were sent to another server already"))));
        };
        match std::task::ready!(pieces.poll_recv(context)) {
            Some(piece) if piece.len() as u64 <= self.left => {
                self.left -= piece.len() as u64;
                self.upload.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Some(_) => Poll::Ready(Some(Err(io::Error::other("the source sent more than it said")))),
            None => Poll::Ready(Some(Err(io::Error::other("the source ended early")))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && self.wait.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
