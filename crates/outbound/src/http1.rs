//! One connection of HTTP/1.1 over a stream, and connections kept for the next request.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Header lines that a server may put before its body.
const HEADERS_MAX: usize = 100;
/// Connections kept to one place, and to all together.
const IDLE_PER_KEY_MAX: usize = 32;
const IDLE_MAX: usize = 512;
/// Servers close idle connections after some time of their own; most wait longer than this.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection that does not say within this that it is ready is not used again.
const READY_TIMEOUT: Duration = Duration::from_millis(200);

/// Begins HTTP on a stream. Somebody has to drive what comes second. The buffer is the largest piece of a
/// body.
pub async fn handshake_http1<S, B>(
    stream: S,
    buffer_bytes_max: usize,
) -> hyper::Result<(SendRequest<B>, Connection<TokioIo<S>, B>)>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    Builder::new()
        .max_buf_size(buffer_bytes_max)
        // XRootD 5.5 knows its headers in this case only; a length that it does not know is none.
        .title_case_headers(true)
        .max_headers(HEADERS_MAX)
        .handshake(TokioIo::new(stream))
        .await
}

/// A connection with the task that drives it.
pub struct Http1Connection<B> {
    pub sender: SendRequest<B>,
    task: JoinHandle<()>,
}

impl<B> Http1Connection<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub async fn open<S>(stream: S, buffer_bytes_max: usize) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake_http1(stream, buffer_bytes_max).await?;
        // Its end is seen by the sender.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Http1Connection { sender, task })
    }
}

impl<B> Drop for Http1Connection<B> {
    /// Closes at once, whatever is under way: that is how the other side learns that nobody waits any more.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Idle connections, the one used last first. A key says all that connections must not be shared between:
/// where they lead, and as whom.
pub struct IdlePool<K, B>(Mutex<Idle<K, B>>);

struct Idle<K, B> {
    connections: HashMap<K, VecDeque<(Http1Connection<B>, Instant)>>,
    count: usize,
}

impl<K, B> Default for IdlePool<K, B> {
    fn default() -> Self {
        IdlePool(Mutex::new(Idle { connections: HashMap::new(), count: 0 }))
    }
}

impl<K: Eq + Hash + Clone, B> IdlePool<K, B> {
    /// One that still works, as far as can be seen.
    pub async fn take(&self, key: &K) -> Option<Http1Connection<B>> {
        loop {
            let (mut connection, since) = {
                let mut idle = self.0.lock();
                let kept = idle.connections.get_mut(key)?;
                let taken = kept.pop_back()?;
                if kept.is_empty() {
                    idle.connections.remove(key);
                }
                idle.count -= 1;
                taken
            };
            let is_fresh = since.elapsed() < IDLE_TIMEOUT && !connection.sender.is_closed();
            if is_fresh && matches!(timeout(READY_TIMEOUT, connection.sender.ready()).await, Ok(Ok(()))) {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection on which the last answer was read to its end.
    pub fn put(&self, key: &K, connection: Http1Connection<B>) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = self.0.lock();
        if idle.count >= IDLE_MAX {
            idle.connections.clear();
            idle.count = 0;
        }
        let kept = idle.connections.entry(key.clone()).or_default();
        kept.push_back((connection, Instant::now()));
        if kept.len() > IDLE_PER_KEY_MAX {
            kept.pop_front();
        } else {
            idle.count += 1;
        }
    }
}
