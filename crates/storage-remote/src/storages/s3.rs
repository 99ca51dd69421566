//! A bucket, or the keys of a bucket that have a prefix, as a storage.
//!
//! A file is sent to its final key as a multipart upload, which nobody sees before it is completed; a small
//! one is held in memory until then and sent by one PUT. Names are keys: there are no directories.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_model::{Algorithm, Fault, FaultCode, Hasher, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::read::RemoteSource;
use super::upload::{Content, Destination, FEED_TIMEOUT, FileUpload, RemoteTarget};
use super::{ROOT_MARK, ROOT_MARK_BYTES_MAX, RemoteStorageOptions, Root, commit_all, identity};
use crate::failure::{Failure, Kind, Scope};
use crate::remote::Remote;
use crate::s3::{Part, UploadEnd, WHOLE_MAX, is_whole_of};
use crate::upload::Upload;
use crate::url::RemoteUrl;

/// Bytes of one part, the last excepted: as large as a part can be, for it is sent as it comes.
const PART_BYTES: u64 = 4 << 30;
/// Pieces between the writer and the part that is being sent.
const PIECES_WAITING_MAX: usize = 2;

/// A bucket of a storage that speaks S3.
pub struct S3Storage {
    pub(super) root: Arc<Root>,
    pub(super) bucket: Bucket,
    options: RemoteStorageOptions,
    pub(super) runtime: Handle,
    /// Files that are being sent, and those that were sent and not yet committed.
    uploads: Mutex<BTreeMap<TempName, Arc<FileUpload>>>,
}

/// Where the keys of a storage are.
pub(super) struct Bucket {
    pub(super) url: RemoteUrl,
    /// What all keys begin with; empty, or with a slash at its end.
    pub(super) prefix: String,
}

impl S3Storage {
    /// Opens the storage; nothing is asked of the server.
    ///
    /// # Errors
    /// `BadRequest` if the URL names no bucket.
    pub fn open(
        remote: Arc<Remote>,
        options: RemoteStorageOptions,
        runtime: Handle,
    ) -> Result<S3Storage, Fault> {
        let root = Root::new(remote, &options)?;
        let Some((url, prefix)) = root.url.split_bucket(options.path_style) else {
            let detail =
                format!("{}: the URL of a bucket is s3s://host/bucket or s3s://bucket.host", root.url);
            return Err(Fault::new(FaultCode::BadRequest, detail));
        };
        let bucket = Bucket { url, prefix };
        Ok(S3Storage { root: Arc::new(root), bucket, options, runtime, uploads: Mutex::default() })
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        self.runtime.block_on(work)
    }

    fn upload(&self, temp: &TempName) -> Option<Arc<FileUpload>> {
        self.uploads.lock().get(temp).cloned()
    }

    fn begin_upload(
        &self,
        temp: &TempName,
        target: Option<&Pfn>,
        size: u64,
    ) -> Result<Arc<FileUpload>, Fault> {
        self.root.check_writable()?;
        let url = match target {
            Some(at) => self.root.url_of(at)?,
            None => self.root.work(temp.as_str())?,
        };
        let object = ObjectUpload { url, is_probe: target.is_none(), state: Mutex::default() };
        let destination = Destination::Object(Arc::new(object));
        let upload = FileUpload::new(self.root.clone(), destination, size, self.runtime.clone());
        if let Some(older) = self.uploads.lock().insert(temp.clone(), upload.clone()) {
            let root = self.root.clone();
            self.runtime.spawn(async move { root.forget(&older).await });
        }
        Ok(upload)
    }
}

impl Storage for S3Storage {
    fn name(&self) -> &StorageName {
        &self.root.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            writable: self.options.writable,
            case_insensitive: self.options.case_insensitive,
            random_write: false,
            device: None,
            parallel: self.options.parallel,
            discards: false,
            resumes: false,
            reads_temps: false,
            sets_attributes: false,
            has_directories: false,
            removes_empty_directories: true,
        }
    }

    /// S3 tells no space.
    fn space(&self) -> Result<Space, Fault> {
        Ok(Space { total_bytes: 0, free_bytes: 0 })
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        let found = self.wait(self.root.stat_file(at, Scope::Source))?;
        Ok(found.map(|(url, stat)| identity(&url, &stat)))
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        let Some((url, stat)) = self.wait(self.root.stat_file(at, Scope::Source))? else {
            return Err(Fault::new(FaultCode::SourceMissing, format!("{at} is not there")));
        };
        Ok(Box::new(RemoteSource::new(self.root.clone(), url, stat, self.runtime.clone())))
    }

    fn create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        if size > WHOLE_MAX.saturating_mul(1 << 10) {
            let detail = format!("{}: {size} bytes: S3 holds no object above 5 TiB", self.root.name);
            return Err(Fault::new(FaultCode::TargetFull, detail));
        }
        Ok(Box::new(RemoteTarget(self.begin_upload(temp, target, size)?)))
    }

    fn reopen(&self, temp: &TempName, _size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.remove_temp(temp)?;
        Ok(None)
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        let results = commit_all(&self.runtime, batch, |item| {
            let (root, item, upload) = (self.root.clone(), item.clone(), self.upload(&item.temp));
            async move { root.commit_object(&item, upload).await }
        });
        let mut uploads = self.uploads.lock();
        batch.iter().zip(&results).filter(|(_, result)| result.is_ok()).for_each(|(item, _)| {
            uploads.remove(&item.temp);
        });
        results
    }

    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        for at in at {
            let found = self.wait(self.root.stat_file(at, Scope::Target))?;
            found.ok_or_else(|| Fault::new(FaultCode::TargetWrite, format!("{at} is gone")))?;
        }
        Ok(())
    }

    /// Those of this process: what an earlier one has begun has no name.
    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        Ok(self.uploads.lock().keys().cloned().collect())
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        self.root.check_writable()?;
        if let Some(upload) = self.uploads.lock().remove(temp) {
            self.runtime.block_on(self.root.forget(&upload));
        }
        Ok(())
    }

    fn root_mark(&self) -> Result<Option<String>, Fault> {
        let mark = self.root.work(ROOT_MARK)?;
        self.wait(self.root.read_text(&mark, ROOT_MARK_BYTES_MAX))
    }

    fn put_root_mark(&self, text: &str) -> Result<(), Fault> {
        self.root.check_writable()?;
        let mark = self.root.work(ROOT_MARK)?;
        let object = self.root.remote.object(self.root.resource(&mark));
        self.wait(async {
            let put = object.put(Bytes::from(text.to_owned()), true).await;
            put.map(drop).map_err(|failure| failure.in_storage(Scope::Target))
        })
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.root.check_writable()?;
        let Some((url, stat)) = self.wait(self.root.stat_file(at, Scope::Target))? else { return Ok(()) };
        let found = identity(&url, &stat);
        if found != *expected {
            let detail = format!("{at} is {found}, not {expected} (size:mtime:inode), and stays");
            return Err(Fault::new(FaultCode::Conflict, detail));
        }
        self.wait(async {
            let deleted = self.root.remote.delete(self.root.resource(&url), None).await;
            deleted.map(drop).map_err(|failure| failure.in_storage(Scope::Target))
        })
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        self.walk_from(path, visit)
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
    /// Takes the bytes of the object.
    pub(super) async fn take(&self, root: &Root, content: Content) -> Result<(), Fault> {
        let taken = match content {
            Content::Whole(bytes) => self.hold(root, bytes).await,
            Content::Pieces(size, pieces) => self.send(root, size, pieces).await,
        };
        taken.map_err(|failure| failure.in_storage(Scope::Target))
    }

    async fn hold(&self, root: &Root, bytes: Bytes) -> Result<(), Failure> {
        if self.is_probe {
            return root.remote.object(root.resource(&self.url)).put(bytes, true).await.map(drop);
        }
        let room = root.remote.part_memory.reserve(bytes.len() as u64).await?;
        *self.state.lock() = ObjectState::Held { bytes, _room: room };
        Ok(())
    }

    /// Sends parts as their bytes come. The storage's MD5 of a part, where its ETag is one, is compared with
    /// ours.
    async fn send(&self, root: &Root, size: u64, mut pieces: mpsc::Receiver<Bytes>) -> Result<(), Failure> {
        let object = root.remote.object(root.resource(&self.url));
        let upload = object.begin().await?;
        *self.state.lock() = ObjectState::Begun(upload.clone(), Vec::new());
        let mut rest = Bytes::new();
        for (number, start) in (1_u32..).zip((0..size).step_by(PART_BYTES as usize)) {
            let len = PART_BYTES.min(size - start);
            let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
            let body = Upload::new(len, receiver, root.remote.config.times.may_send, FEED_TIMEOUT);
            let forwarding = forward(&mut pieces, &mut rest, sender, len);
            let (sent, md5) = tokio::join!(object.stream_part(&upload, number, body), forwarding);
            let part = sent?;
            let digest = md5.finish().get(Algorithm::Md5);
            if digest.is_some_and(|digest| part.contradicts(&digest)) {
                let text = format!("{}: part {number}: the storage has other bytes than were sent", self.url);
                return Err(Failure::new(Kind::WrongChecksum, text));
            }
            if let ObjectState::Begun(_, parts) = &mut *self.state.lock() {
                parts.push(part);
            }
        }
        Ok(())
    }
}

/// Passes on the next `len` bytes, and computes their MD5. What the last piece has beyond them stays.
async fn forward(
    pieces: &mut mpsc::Receiver<Bytes>,
    rest: &mut Bytes,
    sender: mpsc::Sender<Bytes>,
    len: u64,
) -> Hasher {
    let mut md5 = Hasher::new([Algorithm::Md5]);
    let mut left = len;
    while left > 0 {
        if rest.is_empty() {
            let Some(piece) = pieces.recv().await else { break };
            *rest = piece;
        }
        let taken = rest.split_to(rest.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        md5.update(&taken);
        left -= taken.len() as u64;
        // Nobody takes it any more: then the request tells why.
        if sender.send(taken).await.is_err() {
            break;
        }
    }
    md5
}

impl Root {
    /// Completes an object: only now it has its name.
    async fn commit_object(&self, item: &Commit, upload: Option<Arc<FileUpload>>) -> Result<(), Fault> {
        self.check_writable()?;
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
        let replaces = self.object_in_the_way(item, &target).await?;
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

    /// Whether an object has the name that may be replaced; fails if it may not. Looked up first, since not
    /// every storage honours `If-None-Match`.
    async fn object_in_the_way(&self, item: &Commit, target: &RemoteUrl) -> Result<bool, Fault> {
        let found = self.stat(target).await.map_err(|failure| failure.in_storage(Scope::Target))?;
        match (found, &item.replaces) {
            (None, _) => Ok(false),
            (Some(stat), Some(expected)) if identity(target, &stat) == *expected => Ok(true),
            _ => Err(self.clash(item)),
        }
    }

    /// Ends an upload, and takes back what is at the storage of it.
    async fn forget(&self, upload: &FileUpload) {
        upload.end().await;
        let Destination::Object(object) = &upload.destination else { return };
        let state = std::mem::take(&mut *object.state.lock());
        let requests = self.remote.object(self.resource(&object.url));
        let taken_back = match state {
            ObjectState::Begun(id, _) => requests.abort(&id).await,
            _ if object.is_probe => self.remote.delete(self.resource(&object.url), None).await.map(drop),
            _ => Ok(()),
        };
        if let Err(failure) = taken_back {
            tracing::warn!(object = %object.url, "parts of an upload may be left: {}", failure.text);
        }
    }
}
