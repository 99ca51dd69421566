//! Response bodies: bytes at hand, a file that is read while it is sent (read-ahead), or chunks made
//! meanwhile.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use longhaul_model::{Fault, FaultCode};
use longhaul_storage::SourceFile;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;

use crate::buffers::{BUFFER_BYTES, Buffers};

/// Whether what a file is sent for goes on.
pub(crate) type StreamCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// Reads under way beside the piece that is being sent.
const READS_AHEAD: usize = 2;

pub(crate) enum Body {
    Whole(Option<Bytes>),
    File(Box<FileBody>),
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body {
    pub(crate) fn empty() -> Body {
        Body::Whole(None)
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body::Whole(Some(text.into()))
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::File(file) => file.poll(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Body::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) => bytes.is_none(),
            Body::File(file) => file.left == 0,
            Body::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::File(file) => SizeHint::with_exact(file.left),
            Body::Pieces(_) => SizeHint::default(),
        }
    }
}

/// A part of a file. A few reads are under way ahead of what is sent, on threads that wait for disks and for
/// nobody else: a slow client holds buffers, but no thread. An error ends the connection in the middle, so
/// that no client takes what it has for the whole.
pub(crate) struct FileBody {
    file: Arc<dyn SourceFile>,
    buffers: Arc<Buffers>,
    /// Where the next read begins, and where the last one ends.
    next: u64,
    end: u64,
    /// Bytes not yet given away.
    left: u64,
    reads: VecDeque<JoinHandle<Result<Bytes, Fault>>>,
    may_go_on: StreamCheck,
    _turn: Arc<OwnedSemaphorePermit>,
}

impl FileBody {
    pub(crate) fn new(
        file: Arc<dyn SourceFile>,
        buffers: Arc<Buffers>,
        (start, len): (u64, u64),
        turn: impl Into<Arc<OwnedSemaphorePermit>>,
        may_go_on: StreamCheck,
    ) -> FileBody {
        FileBody {
            file,
            buffers,
            next: start,
            end: start + len,
            left: len,
            reads: VecDeque::new(),
            may_go_on,
            _turn: turn.into(),
        }
    }

    fn read_ahead(&mut self) {
        while self.reads.len() < READS_AHEAD && self.next < self.end {
            let (file, buffers, offset) = (self.file.clone(), self.buffers.clone(), self.next);
            let len = (self.end - offset).min(BUFFER_BYTES as u64);
            let is_last = offset + len == self.end;
            // It ends with a look at the file, which has to come after all reads.
            if is_last && !self.reads.is_empty() {
                break;
            }
            self.next += len;
            self.reads.push_back(tokio::task::spawn_blocking(move || {
                read(file.as_ref(), &buffers, (offset, len), is_last)
            }));
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left > 0 && !(self.may_go_on)() {
            tracing::info!("a file is sent no further: the token of its request was revoked");
            self.abandon();
            return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::PermissionDenied))));
        }
        self.read_ahead();
        let Some(first) = self.reads.front_mut() else { return Poll::Ready(None) };
        let Poll::Ready(done) = Pin::new(first).poll(context) else { return Poll::Pending };
        self.reads.pop_front();
        let read = done.map_err(io::Error::other).and_then(|read| read.map_err(io::Error::other));
        match &read {
            Ok(bytes) => {
                self.left -= bytes.len() as u64;
                self.read_ahead();
            }
            Err(error) => {
                tracing::warn!(%error, "a file cannot be sent to its end");
                self.abandon();
            }
        }
        Poll::Ready(Some(read))
    }

    fn abandon(&mut self) {
        (self.next, self.end, self.left) = (0, 0, 0);
        self.reads.clear();
    }
}

/// Reads one piece. Before the last one is given away, the file has to be what it was when it was opened: the
/// client gets one version of it or an error.
pub(crate) fn read(
    file: &dyn SourceFile,
    buffers: &Arc<Buffers>,
    (offset, len): (u64, u64),
    is_last: bool,
) -> Result<Bytes, Fault> {
    let mut lent = buffers.take();
    lent.fill(len as usize, |bytes| file.read_at(bytes, offset))?;
    if lent.as_ref().len() as u64 != len {
        let detail = format!("{} bytes at byte {offset}, {len} were expected", lent.as_ref().len());
        return Err(Fault::new(FaultCode::SourceTruncated, detail));
    }
    if is_last && file.identity_now()? != file.identity() {
        return Err(Fault::new(FaultCode::SourceChanged, "the file changed while it was sent"));
    }
    Ok(lent.into_bytes())
}
