//! Bodies of requests: empty, bytes, or what a reader yields, piece by piece.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Size of a piece of an upload: few large frames.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces of an upload that wait for the network.
const PIECES_AHEAD: usize = 4;

/// Body of a request: empty, bytes, or what a reader yields, piece by piece.
pub struct RequestBody(Inner);

enum Inner {
    Whole(VecDeque<Bytes>),
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl RequestBody {
    pub(super) fn empty() -> Self {
        RequestBody(Inner::Whole(VecDeque::new()))
    }

    pub(super) fn reading(mut source: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        // The thread ends with the reader, or when the request is given up and nobody receives any more.
        tokio::task::spawn_blocking(move || {
            loop {
                let piece = read_piece(&mut source);
                let last = !matches!(&piece, Ok(piece) if !piece.is_empty());
                if matches!(&piece, Ok(piece) if piece.is_empty())
                    || sender.blocking_send(piece).is_err()
                    || last
                {
                    return;
                }
            }
        });
        RequestBody(Inner::Pieces(receiver))
    }
}

impl From<Vec<u8>> for RequestBody {
    fn from(bytes: Vec<u8>) -> Self {
        RequestBody(Inner::Whole(VecDeque::from([Bytes::from(bytes)])))
    }
}

/// Reads until a piece is full or the source ends, so that sources with short reads make few large frames
/// too.
fn read_piece(source: &mut impl Read) -> io::Result<Bytes> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    source.take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
    Ok(piece.into())
}

/// Reading the source of an upload failed. `failure` tells it from a broken connection.
#[derive(Debug, thiserror::Error)]
#[error("what is to be uploaded cannot be read")]
pub struct SourceError(#[source] pub io::Error);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = SourceError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SourceError>>> {
        let piece = match &mut self.0 {
            Inner::Whole(bytes) => bytes.pop_front().map(Ok),
            Inner::Pieces(receiver) => ready!(receiver.poll_recv(context)),
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data).map_err(SourceError)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Inner::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => SizeHint::with_exact(bytes.iter().map(|bytes| bytes.len() as u64).sum()),
            Inner::Pieces(_) => SizeHint::default(),
        }
    }
}
