//! A file on its way to the server: one PUT with a body of known size, fed by blocking writers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_model::{Fault, FaultCode};
use longhaul_storage::{SourceFile, TargetFile, TempName};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::Root;
use super::read::RemoteSource;
use crate::exchange::Payload;
use crate::failure::{Failure, Scope};
use crate::upload::Upload;
use crate::url::RemoteUrl;

/// Files up to this are sent in one piece when they are complete.
const WHOLE_BYTES_MAX: u64 = 1 << 20;
const PIECE_BYTES_MAX: usize = 256 << 10;
/// Pieces that wait to be sent: bounds the memory of one file.
const PIECES_WAITING_MAX: usize = 8;
/// How long the bytes may stay away: they come over a network that may pause, and the server has its own
/// patience.
const FEED_TIMEOUT: Duration = Duration::from_secs(600);

/// A temporary file that is being sent, or was.
pub(super) struct TempUpload {
    root: Arc<Root>,
    url: RemoteUrl,
    size: u64,
    runtime: Handle,
    feed: Mutex<Feed>,
    /// None until the PUT has ended.
    result: watch::Sender<Option<Result<(), Fault>>>,
}

/// What was written of a file.
struct Feed {
    written: u64,
    /// A small file, until it is complete.
    whole: Vec<u8>,
    pieces: Option<mpsc::Sender<Bytes>>,
    putting: Option<AbortHandle>,
}

impl TempUpload {
    pub(super) fn new(
        root: Arc<Root>,
        temp: TempName,
        size: u64,
        runtime: Handle,
    ) -> Result<TempUpload, Fault> {
        let url = root.work(temp.as_str())?;
        let feed = Feed { written: 0, whole: Vec::new(), pieces: None, putting: None };
        let upload =
            TempUpload { root, url, size, runtime, feed: Mutex::new(feed), result: watch::channel(None).0 };
        if size == 0 {
            upload.send(Payload::Bytes(Bytes::new()), &mut upload.feed.lock());
        }
        Ok(upload)
    }

    /// Starts the PUT.
    fn send(&self, payload: Payload, feed: &mut Feed) {
        let (root, url, result) = (self.root.clone(), self.url.clone(), self.result.clone());
        let putting = self.runtime.spawn(async move {
            let put = async {
                root.remote.make_parents(root.resource(&url)).await?;
                root.remote.put(root.resource(&url), payload).await
            };
            let ended = put.await.map_err(|failure: Failure| failure.in_storage(Scope::Target));
            result.send_replace(Some(ended));
        });
        feed.putting = Some(putting.abort_handle());
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let mut feed = self.feed.lock();
        if offset != feed.written {
            let detail = format!(
                "{}: a write at byte {offset} of a file that ends at {}: files are sent in order",
                self.url, feed.written
            );
            return Err(Fault::new(FaultCode::Internal, detail));
        }
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.size {
            let detail = format!("{}: {end} bytes of a file of {}", self.url, self.size);
            return Err(Fault::new(FaultCode::TargetWrite, detail));
        }
        if self.size <= WHOLE_BYTES_MAX {
            feed.whole.extend_from_slice(bytes);
        } else {
            self.feed_pieces(&mut feed, bytes)?;
        }
        feed.written = end;
        if end == self.size {
            feed.pieces = None;
            if feed.putting.is_none() {
                let whole = std::mem::take(&mut feed.whole);
                self.send(Payload::Bytes(whole.into()), &mut feed);
            }
        }
        Ok(())
    }

    fn feed_pieces(&self, feed: &mut Feed, bytes: &[u8]) -> Result<(), Fault> {
        if feed.putting.is_none() {
            let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
            let times = self.root.remote.config.times;
            let upload = Upload::new(self.size, receiver, times.may_send, FEED_TIMEOUT);
            feed.pieces = Some(sender);
            self.send(Payload::Upload(upload), feed);
        }
        let Some(pieces) = &feed.pieces else { return Err(self.unfinished()) };
        for piece in bytes.chunks(PIECE_BYTES_MAX) {
            if pieces.blocking_send(Bytes::copy_from_slice(piece)).is_err() {
                // The PUT has ended: it says why.
                return self.runtime.block_on(self.ended()).and(Err(self.unfinished()));
            }
        }
        Ok(())
    }

    fn unfinished(&self) -> Fault {
        Fault::new(FaultCode::TargetWrite, format!("{}: the server ended the PUT early", self.url))
    }

    /// Whether all bytes were written.
    fn is_complete(&self) -> bool {
        self.feed.lock().written == self.size
    }

    /// Ends the PUT, complete or not.
    pub(super) fn abort(&self) {
        let mut feed = self.feed.lock();
        feed.pieces = None;
        if let Some(putting) = feed.putting.take() {
            putting.abort();
        }
        let cancelled = || Fault::new(FaultCode::Cancelled, format!("{}: the PUT was given up", self.url));
        self.result.send_if_modified(|result| {
            let is_open = result.is_none();
            if is_open {
                *result = Some(Err(cancelled()));
            }
            is_open
        });
    }

    /// Returns when nothing is sent any more. A server may carry out what it has wholly got, so that this waits
    /// for its word rather than breaking off.
    pub(super) async fn end(&self) {
        if !self.is_complete() {
            self.abort();
        }
        let _ = self.ended().await;
    }

    /// The result of the PUT, once it has ended.
    pub(super) async fn ended(&self) -> Result<(), Fault> {
        let mut result = self.result.subscribe();
        let ended = result.wait_for(Option::is_some).await;
        ended.ok().and_then(|result| result.clone()).unwrap_or_else(|| Err(self.unfinished()))
    }

    /// As [`TempUpload::ended`]; fails at once for a file of which bytes are missing.
    pub(super) async fn finished(&self) -> Result<(), Fault> {
        if !self.is_complete() {
            let detail =
                format!("{}: {} of its {} bytes were written", self.url, self.feed.lock().written, self.size);
            return Err(Fault::new(FaultCode::TargetWrite, detail));
        }
        self.ended().await
    }
}

/// A temporary file open for writing.
pub(super) struct RemoteTarget {
    pub(super) upload: Arc<TempUpload>,
}

impl TargetFile for RemoteTarget {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        self.upload.write(bytes, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        let upload = &self.upload;
        let at_target = |fault: Fault| fault.blaming(longhaul_model::Blame::Target);
        upload.runtime.block_on(upload.finished())?;
        let stat = upload.runtime.block_on(upload.root.stat(&upload.url));
        let Some(stat) = stat.map_err(|failure| failure.in_storage(Scope::Target))? else {
            return Err(Fault::new(FaultCode::TargetWrite, format!("{} is gone", upload.url)));
        };
        let file = RemoteSource::new(upload.root.clone(), upload.url.clone(), stat, upload.runtime.clone());
        file.read_at(buffer, offset).map_err(at_target)
    }

    fn begin_writeback(&self, _offset: u64, _len: u64) {}

    /// Waits for the server's word on a complete file. There is nothing to say of an incomplete one, which no
    /// later attempt resumes.
    fn flush(&self) -> Result<(), Fault> {
        if !self.upload.is_complete() {
            return Ok(());
        }
        self.upload.runtime.block_on(self.upload.ended())
    }
}
