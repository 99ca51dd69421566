//! A file on its way to a server: a body of known size, fed by blocking writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use longhaul_model::{Blame, Fault, FaultCode};
use longhaul_storage::{SourceFile, TargetFile};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::Root;
use super::read::RemoteSource;
use super::s3::ObjectUpload;
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
pub(super) const FEED_TIMEOUT: Duration = Duration::from_secs(600);

/// Where the bytes go.
pub(super) enum Destination {
    /// A name of its own, from which the file is renamed.
    Temporary(RemoteUrl),
    /// An object that nobody sees before it is complete.
    Object(Arc<ObjectUpload>),
}

/// The bytes of a file.
pub(super) enum Content {
    Whole(Bytes),
    /// So many, in pieces.
    Pieces(u64, mpsc::Receiver<Bytes>),
}

/// A file that is being sent, or was.
pub(super) struct FileUpload {
    root: Arc<Root>,
    pub(super) destination: Destination,
    size: u64,
    runtime: Handle,
    /// Bytes written so far.
    written: AtomicU64,
    /// Held by the writer, also while it waits until the server takes more.
    feed: Mutex<Feed>,
    sending: Mutex<Option<AbortHandle>>,
    /// None until all was sent, or nothing more is.
    result: watch::Sender<Option<Result<(), Fault>>>,
}

/// Where what is written goes.
struct Feed {
    /// A small file, until it is complete.
    whole: Vec<u8>,
    pieces: Option<mpsc::Sender<Bytes>>,
}

impl FileUpload {
    pub(super) fn new(
        root: Arc<Root>,
        destination: Destination,
        size: u64,
        runtime: Handle,
    ) -> Arc<FileUpload> {
        let feed = Feed { whole: Vec::new(), pieces: None };
        let (feed, sending, result) = (Mutex::new(feed), Mutex::default(), watch::channel(None).0);
        let written = AtomicU64::new(0);
        let upload =
            Arc::new(FileUpload { root, destination, size, runtime, written, feed, sending, result });
        if size == 0 {
            upload.send_whole(Bytes::new());
        }
        upload
    }

    /// Sends a small file, which is complete. Waits while too many are on their way.
    fn send_whole(&self, bytes: Bytes) {
        match &self.destination {
            Destination::Temporary(url) => {
                let (root, url, result) = (self.root.clone(), url.clone(), self.result.clone());
                let place = self.runtime.block_on(self.root.small_sends.clone().acquire_owned());
                let sending = self.runtime.spawn(async move {
                    result.send_replace(Some(root.put_temporary(&url, Content::Whole(bytes)).await));
                    drop(place);
                });
                *self.sending.lock() = Some(sending.abort_handle());
            }
            Destination::Object(object) => {
                let held = self.runtime.block_on(object.hold(&self.root, bytes));
                self.result.send_replace(Some(held));
            }
        }
    }

    /// Starts sending a large file.
    fn send_pieces(&self, pieces: mpsc::Receiver<Bytes>) {
        let (root, result, size) = (self.root.clone(), self.result.clone(), self.size);
        let sending = match &self.destination {
            Destination::Temporary(url) => {
                let url = url.clone();
                self.runtime.spawn(async move {
                    let content = Content::Pieces(size, pieces);
                    result.send_replace(Some(root.put_temporary(&url, content).await));
                })
            }
            Destination::Object(object) => {
                let object = object.clone();
                self.runtime.spawn(async move {
                    result.send_replace(Some(object.send(&root, size, pieces).await));
                })
            }
        };
        *self.sending.lock() = Some(sending.abort_handle());
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let mut feed = self.feed.lock();
        let written = self.written();
        if offset != written {
            let detail = format!(
                "{}: a write at byte {offset} of a file that ends at {written}: files are sent in order",
                self.url()
            );
            return Err(Fault::new(FaultCode::Internal, detail));
        }
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.size {
            let detail = format!("{}: {end} bytes of a file of {}", self.url(), self.size);
            return Err(Fault::new(FaultCode::TargetWrite, detail));
        }
        if self.size <= WHOLE_BYTES_MAX {
            feed.whole.extend_from_slice(bytes);
        } else {
            self.feed_pieces(&mut feed, bytes)?;
        }
        self.written.store(end, Ordering::Release);
        if end == self.size {
            feed.pieces = None;
            if self.size <= WHOLE_BYTES_MAX && self.size > 0 {
                self.send_whole(std::mem::take(&mut feed.whole).into());
            }
        }
        Ok(())
    }

    fn feed_pieces(&self, feed: &mut Feed, bytes: &[u8]) -> Result<(), Fault> {
        let pieces = feed.pieces.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
            self.send_pieces(receiver);
            sender
        });
        let stall = self.root.remote.config.times.stall;
        for piece in bytes.chunks(PIECE_BYTES_MAX) {
            let taken = async { timeout(stall, pieces.send(Bytes::copy_from_slice(piece))).await };
            match self.runtime.block_on(taken) {
                Ok(Ok(())) => {}
                // Sending has ended: it says why.
                Ok(Err(_)) => return self.runtime.block_on(self.ended()).and(Err(self.unfinished())),
                Err(_) => {
                    let detail =
                        format!("{}: the server takes no byte for {} s", self.url(), stall.as_secs());
                    return Err(Fault::new(FaultCode::TargetWrite, detail));
                }
            }
        }
        Ok(())
    }

    /// Bytes of the whole file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    fn url(&self) -> &RemoteUrl {
        match &self.destination {
            Destination::Temporary(url) => url,
            Destination::Object(object) => &object.url,
        }
    }

    fn unfinished(&self) -> Fault {
        Fault::new(FaultCode::TargetWrite, format!("{}: the server ended the upload early", self.url()))
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Whether all bytes were written.
    fn is_complete(&self) -> bool {
        self.written() == self.size
    }

    /// Ends sending, complete or not. A writer that waits fails.
    pub(super) fn abort(&self) {
        if let Some(sending) = self.sending.lock().take() {
            sending.abort();
        }
        let cancelled = || Fault::new(FaultCode::Cancelled, format!("{}: it was given up", self.url()));
        self.result.send_if_modified(|result| {
            let is_open = result.is_none();
            if is_open {
                *result = Some(Err(cancelled()));
            }
            is_open
        });
    }

    /// Returns when nothing is sent any more. A server may carry out what it has wholly got, so that this
    /// waits for its word rather than breaking off.
    pub(super) async fn end(&self) {
        if !self.is_complete() {
            self.abort();
        }
        let _ = self.ended().await;
    }

    /// The result of sending, once it has ended.
    async fn ended(&self) -> Result<(), Fault> {
        let mut result = self.result.subscribe();
        let ended = result.wait_for(Option::is_some).await;
        ended.ok().and_then(|result| result.clone()).unwrap_or_else(|| Err(self.unfinished()))
    }

    /// As `ended`; fails at once for a file of which bytes are missing.
    pub(super) async fn finished(&self) -> Result<(), Fault> {
        let written = self.written();
        if written != self.size {
            let detail = format!("{}: {written} of its {} bytes were written", self.url(), self.size);
            return Err(Fault::new(FaultCode::TargetWrite, detail));
        }
        self.ended().await
    }
}

impl Root {
    pub(super) async fn put_temporary(&self, url: &RemoteUrl, content: Content) -> Result<(), Fault> {
        let payload = match content {
            Content::Whole(bytes) => Payload::Bytes(bytes),
            Content::Pieces(size, pieces) => {
                let may_send = self.remote.config.times.may_send;
                Payload::Upload(Upload::new(size, pieces, may_send, FEED_TIMEOUT))
            }
        };
        let put = async {
            self.remote.make_parents(self.resource(url)).await?;
            self.remote.put(self.resource(url), payload).await
        };
        put.await.map_err(|failure: Failure| failure.in_storage(Scope::Target))
    }
}

/// A temporary file open for writing.
pub(super) struct RemoteTarget(pub(super) Arc<FileUpload>);

impl TargetFile for RemoteTarget {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        self.0.write(bytes, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        let upload = &self.0;
        upload.runtime.block_on(upload.finished())?;
        let Destination::Temporary(url) = &upload.destination else {
            let detail = format!(
                "{}: an object cannot be read before it is complete: verify end-to-end instead",
                upload.url()
            );
            return Err(Fault::new(FaultCode::TargetWrite, detail));
        };
        let stat = upload.runtime.block_on(upload.root.stat(url));
        let Some(stat) = stat.map_err(|failure| failure.in_storage(Scope::Target))? else {
            return Err(Fault::new(FaultCode::TargetWrite, format!("{url} is gone")));
        };
        let file = RemoteSource::new(upload.root.clone(), url.clone(), stat, upload.runtime.clone());
        file.read_at(buffer, offset).map_err(|fault| fault.blaming(Blame::Target))
    }

    fn begin_writeback(&self, _offset: u64, _len: u64) {}

    /// Waits for the server's word on a complete file. There is nothing to say of an incomplete one, which no
    /// later attempt resumes.
    fn flush(&self) -> Result<(), Fault> {
        if !self.0.is_complete() {
            return Ok(());
        }
        self.0.runtime.block_on(self.0.ended())
    }
}
