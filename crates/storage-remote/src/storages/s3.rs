//! What is particular to buckets: a file is sent to its final key as a multipart upload, which nobody sees
//! before it is completed; a small one is held in memory until then and sent by one PUT. Names are keys:
//! there are no directories.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_model::{Fault, FaultCode};
use longhaul_storage::Commit;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::Root;
use super::upload::{Destination, FEED_TIMEOUT, FileUpload};
use crate::failure::{Failure, Kind, Scope};
use crate::s3::{Part, UploadEnd, is_whole_of};
use crate::upload::Upload;
use crate::url::RemoteUrl;

/// The largest object that S3 holds.
pub(super) const OBJECT_BYTES_MAX: u64 = 5 << 40;
/// Bytes of one part, the last excepted: as large as a part can be, for it is sent as it comes.
const PART_BYTES: u64 = 4 << 30;
/// Pieces between the writer and the part that is being sent.
const PIECES_WAITING_MAX: usize = 2;

/// Where the keys of a storage are.
pub(super) struct Bucket {
    pub(super) url: RemoteUrl,
    /// What all keys begin with; empty, or with a slash at its end.
    pub(super) prefix: String,
}

impl Bucket {
    pub(super) fn parse(url: &RemoteUrl, path_style: bool) -> Result<Bucket, Fault> {
        let (url, prefix) = url.split_bucket(path_style).ok_or_else(|| {
            let detail = format!("{url}: the URL of a bucket is s3s://host/bucket or s3s://bucket.host");
            Fault::new(FaultCode::BadRequest, detail)
        })?;
        Ok(Bucket { url, prefix })
    }
}

/// An object that is being sent and that nobody sees.
pub(super) struct ObjectUpload {
    pub(super) url: RemoteUrl,
    /// It tries whether the storage can be written, and is never committed.
    is_probe: bool,
    state: Mutex<ObjectState>,
}

#[derive(Default)]
enum ObjectState {
    /// Nothing is there.
    #[default]
    Nothing,
    /// All of it, in memory.
    Held { bytes: Bytes, _room: OwnedSemaphorePermit },
    /// A multipart upload, with the parts that were sent.
    Begun(String, Vec<Part>),
}

impl ObjectUpload {
    pub(super) fn new(url: RemoteUrl) -> ObjectUpload {
        ObjectUpload { url, is_probe: false, state: Mutex::default() }
    }

    pub(super) fn probe(url: RemoteUrl) -> ObjectUpload {
        ObjectUpload { url, is_probe: true, state: Mutex::default() }
    }

    /// Removes what is at the storage.
    pub(super) async fn take_back(&self, root: &Root) {
        let state = std::mem::take(&mut *self.state.lock());
        let taken_back = match state {
            ObjectState::Begun(id, _) => root.remote.object(root.resource(&self.url)).abort(&id).await,
            _ if self.is_probe => root.remote.delete(root.resource(&self.url), None).await.map(drop),
            _ => Ok(()),
        };
        if let Err(failure) = taken_back {
            tracing::warn!(object = %self.url, "parts of an upload may be left: {}", failure.text);
        }
    }

    /// Takes all bytes of a small object. Waits while those of others that are not committed take much
    /// memory.
    pub(super) async fn hold(&self, root: &Root, bytes: Bytes) -> Result<(), Fault> {
        if self.is_probe {
            return root.put_whole(&self.url, bytes).await;
        }
        let room = root.remote.part_memory.reserve(bytes.len() as u64).await;
        let room = room.map_err(|failure| failure.in_storage(Scope::Target))?;
        *self.state.lock() = ObjectState::Held { bytes, _room: room };
        Ok(())
    }

    /// Sends a large object.
    pub(super) async fn send(
        &self,
        root: &Root,
        size: u64,
        pieces: mpsc::Receiver<Bytes>,
    ) -> Result<(), Fault> {
        self.send_parts(root, size, pieces).await.map_err(|failure| failure.in_storage(Scope::Target))
    }

    /// Sends parts as their bytes come.
    async fn send_parts(
        &self,
        root: &Root,
        size: u64,
        mut pieces: mpsc::Receiver<Bytes>,
    ) -> Result<(), Failure> {
        let object = root.remote.object(root.resource(&self.url));
        let upload = object.begin().await?;
        *self.state.lock() = ObjectState::Begun(upload.clone(), Vec::new());
        let mut rest = Bytes::new();
        for (number, start) in (1_u32..).zip((0..size).step_by(PART_BYTES as usize)) {
            let len = PART_BYTES.min(size - start);
            let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
            let body = Upload::new(len, receiver, root.remote.config.times.may_send, FEED_TIMEOUT);
            let forwarding = forward(&mut pieces, &mut rest, sender, len);
            let (sent, ()) = tokio::join!(object.stream_part(&upload, number, body), forwarding);
            let part = sent?;
            if let ObjectState::Begun(_, parts) = &mut *self.state.lock() {
                parts.push(part);
            }
        }
        Ok(())
    }
}

/// Passes on the next `len` bytes. What the last piece has beyond them stays.
async fn forward(
    pieces: &mut mpsc::Receiver<Bytes>,
    rest: &mut Bytes,
    sender: mpsc::Sender<Bytes>,
    len: u64,
) {
    let mut left = len;
    while left > 0 {
        if rest.is_empty() {
            let Some(piece) = pieces.recv().await else { break };
            *rest = piece;
        }
        let taken = rest.split_to(rest.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        left -= taken.len() as u64;
        // Nobody takes it any more: then the request tells why.
        if sender.send(taken).await.is_err() {
            break;
        }
    }
}

impl Root {
    /// Completes an object: only now it has its name.
    pub(super) async fn commit_object(
        &self,
        item: &Commit,
        upload: Option<Arc<FileUpload>>,
    ) -> Result<(), Fault> {
        let target = self.url_of(&item.target)?;
        let incomplete = |what: &str| {
            Err(Fault::new(FaultCode::TargetWrite, format!("{}: its upload {what}", item.target)))
        };
        let Some(upload) = upload else { return incomplete("is gone") };
        upload.finished().await?;
        let Destination::Object(object) = &upload.destination else { return incomplete("is another") };
        if object.url != target || upload.size() != item.size {
            return incomplete("is that of another file");
        }
        let replaces = self.may_be_replaced(item, &target).await?;
        let requests = self.remote.object(self.resource(&target));
        let at_target = |failure: Failure| match failure.kind {
            Kind::Exists => self.clash(item),
            _ => failure.in_storage(Scope::Target),
        };
        let state = std::mem::take(&mut *object.state.lock());
        let committed = match &state {
            ObjectState::Nothing => return incomplete("is gone"),
            ObjectState::Held { bytes, .. } => requests.put(bytes.clone(), replaces).await.map(drop),
            ObjectState::Begun(id, parts) => match requests.complete(id, parts, replaces).await {
                Ok(UploadEnd::Done) => Ok(()),
                // The answer of an earlier request may have been lost, and the file be there.
                Ok(UploadEnd::Gone) => match self.stat(&target).await.map_err(at_target)? {
                    Some(stat) if stat.size == item.size && is_whole_of(&stat, parts) => Ok(()),
                    _ => return incomplete("was forgotten by the storage"),
                },
                Err(failure) => Err(failure),
            },
        };
        if let Err(failure) = committed {
            *object.state.lock() = state;
            return Err(at_target(failure));
        }
        match self.stat(&target).await.map_err(at_target)? {
            Some(stat) if stat.size == item.size => Ok(()),
            _ => incomplete("has ended, and the object is not there, or of another size"),
        }
    }
}
