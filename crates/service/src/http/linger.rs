//! The end of a connection whose request could not be read, such as one with a head over its limit. The
//! client may still be sending: closed at once, its connection would be reset, and the reply that says why
//! lost.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// The longest time that a client has to read the reply and to close.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// Bytes read and dropped at most meanwhile.
const LINGER_BYTES_MAX: u64 = 1 << 20;

/// A stream that comes back from whoever used it, when they drop it.
pub struct LentStream<S> {
    stream: Option<S>,
    owner: StreamOwner<S>,
}

/// Where a [`LentStream`] comes back to.
pub struct StreamOwner<S>(Arc<Mutex<Option<S>>>);

impl<S> Clone for StreamOwner<S> {
    fn clone(&self) -> Self {
        StreamOwner(self.0.clone())
    }
}

/// Lends a stream out.
pub fn lend<S>(stream: S) -> (LentStream<S>, StreamOwner<S>) {
    let owner = StreamOwner(Arc::default());
    (LentStream { stream: Some(stream), owner: owner.clone() }, owner)
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamOwner<S> {
    /// Ends the stream, once it is back, so that what was written arrives: says that nothing more comes, and
    /// reads for a while what the client still sends.
    pub async fn linger(self) {
        let Some(mut stream) = self.0.lock().take() else { return };
        let end = async {
            stream.shutdown().await?;
            tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
        };
        let _ = tokio::time::timeout(LINGER_TIME, end).await;
    }
}

impl<S> Drop for LentStream<S> {
    fn drop(&mut self) {
        *self.owner.0.lock() = self.stream.take();
    }
}

/// Only a dropped one has none.
fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl<S: AsyncRead + Unpin> AsyncRead for LentStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Some(stream) => Pin::new(stream).poll_read(context, buffer),
            None => Poll::Ready(Err(gone())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LentStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Some(stream) => Pin::new(stream).poll_write(context, bytes),
            None => Poll::Ready(Err(gone())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Some(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            None => Poll::Ready(Err(gone())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Some(stream) => Pin::new(stream).poll_flush(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Some(stream) => Pin::new(stream).poll_shutdown(context),
            None => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_arrives_though_the_client_still_sends() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (mut lent, owner) = lend(server);
        let sender = async {
            // More than fits: it is taken, though nobody wants it.
            client.write_all(&[0; 10 << 10]).await.unwrap();
            let mut reply = String::new();
            client.read_to_string(&mut reply).await.unwrap();
            drop(client);
            reply
        };
        let server = async {
            lent.write_all(b"431").await.unwrap();
            drop(lent);
            owner.linger().await;
        };
        let (reply, ()) = tokio::join!(sender, server);
        assert_eq!(reply, "431");
    }

    #[tokio::test]
    async fn a_stream_that_is_not_back_is_not_waited_for() {
        let (_client, server) = tokio::io::duplex(8);
        let (_lent, owner) = lend(server);
        owner.linger().await;
    }
}
