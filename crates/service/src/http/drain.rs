//! The rest of a body that nobody reads, such as one over its limit: it is read and dropped while the reply
//! is on its way. A connection closed with bytes unread is reset, and the client loses the reply that says
//! why.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

/// Bytes read and dropped at most; a client that still sends loses its connection.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
/// The longest time for it.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// A body that is drained if it is dropped before its end.
pub struct DrainedBody<B: Body<Data = Bytes> + Send + Unpin + 'static> {
    /// None after the end.
    body: Option<B>,
    /// The client sends nothing before it is told to, which happens at the first read.
    waits: bool,
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> DrainedBody<B> {
    /// `waits`: the request expects `100-continue`.
    pub fn new(body: B, waits: bool) -> Self {
        DrainedBody { body: Some(body), waits }
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Body for DrainedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.waits = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drop for DrainedBody<B> {
    fn drop(&mut self) {
        if self.waits || self.is_end_stream() {
            return;
        }
        // Without a runtime the connection is gone as well.
        if let (Some(body), Ok(runtime)) = (self.body.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(DRAIN_TIME, drain(body)));
        }
    }
}

async fn drain<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let mut left = DRAIN_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(bytes) else { return };
        left = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tokio::sync::oneshot;

    const PIECE: Bytes = Bytes::from_static(&[0; 1 << 20]);

    /// Gives so many pieces, and tells at its end how many are left.
    struct Pieces {
        left: u64,
        end: Option<oneshot::Sender<u64>>,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
            self.left = left;
            Poll::Ready(Some(Ok(Frame::data(PIECE))))
        }
    }

    impl Drop for Pieces {
        fn drop(&mut self) {
            if let Some(end) = self.end.take() {
                let _ = end.send(self.left);
            }
        }
    }

    fn pieces(left: u64) -> (Pieces, oneshot::Receiver<u64>) {
        let (end, ended) = oneshot::channel();
        (Pieces { left, end: Some(end) }, ended)
    }

    #[tokio::test]
    async fn the_rest_of_a_refused_body_is_read() {
        let (body, ended) = pieces(10);
        let mut body = DrainedBody::new(body, false);
        assert!(body.frame().await.is_some());
        drop(body);
        assert_eq!(ended.await, Ok(0));
        // Permission was given with the first read, so all of it comes.
        let (body, ended) = pieces(10);
        let mut body = DrainedBody::new(body, true);
        assert!(body.frame().await.is_some());
        drop(body);
        assert_eq!(ended.await, Ok(0));
    }

    #[tokio::test]
    async fn a_body_without_an_end_is_read_up_to_a_bound() {
        let (body, ended) = pieces(1_000);
        drop(DrainedBody::new(body, false));
        assert_eq!(ended.await, Ok(1_000 - 64 - 1));
    }

    #[tokio::test]
    async fn a_client_that_waits_for_permission_gets_its_refusal_instead() {
        let (body, ended) = pieces(10);
        drop(DrainedBody::new(body, true));
        assert_eq!(ended.await, Ok(10));
    }
}
