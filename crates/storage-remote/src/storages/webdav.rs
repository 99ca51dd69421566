//! A collection of a WebDAV server as a storage.
//!
//! Files are sent to names of their own in a work collection by one PUT each, and get their final
//! names by MOVE (RFC 4918).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use longhaul_model::{Fault, FaultCode, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::read::RemoteSource;
use super::upload::{Destination, FileUpload, RemoteTarget};
use super::{ROOT_MARK, ROOT_MARK_BYTES_MAX, RemoteStorageOptions, Root, commit_all, identity};
use crate::exchange::Payload;
use crate::failure::{Failure, Kind, Scope};
use crate::remote::Remote;
use crate::url::RemoteUrl;
use crate::webdav::RenameOutcome;

/// A collection of a WebDAV server.
pub struct WebDavStorage {
    pub(super) root: Arc<Root>,
    options: RemoteStorageOptions,
    pub(super) runtime: Handle,
    /// As the server told it last, less what was announced since; at most as large as it tells when it is
    /// asked anew. None: nobody knows.
    free_bytes: Mutex<Option<u64>>,
    /// Files that are being sent, and those that were sent and not yet committed.
    uploads: Mutex<BTreeMap<TempName, Arc<FileUpload>>>,
}

impl WebDavStorage {
    /// Opens the storage; nothing is asked of the server.
    ///
    /// # Errors
    /// `BadRequest` if the URL is none of a WebDAV server.
    pub fn open(
        remote: Arc<Remote>,
        options: RemoteStorageOptions,
        runtime: Handle,
    ) -> Result<WebDavStorage, Fault> {
        let root = Root::new(remote, &options)?;
        if root.url.is_s3() {
            let detail = format!("{}: the URL of a WebDAV storage begins with https or davs", root.url);
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        Ok(WebDavStorage {
            root: Arc::new(root),
            options,
            runtime,
            free_bytes: Mutex::default(),
            uploads: Mutex::default(),
        })
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        self.runtime.block_on(work)
    }

    /// Fails for a file that does not fit, asking the server anew before it says so: what it told last may be
    /// old.
    fn reserve(&self, size: u64) -> Result<(), Fault> {
        let take = |free_bytes: &mut Option<u64>| match free_bytes {
            None => true,
            Some(free_bytes) if *free_bytes >= size => {
                *free_bytes -= size;
                true
            }
            Some(_) => false,
        };
        if take(&mut self.free_bytes.lock()) {
            return Ok(());
        }
        let space = self.space()?;
        if take(&mut self.free_bytes.lock()) {
            return Ok(());
        }
        let detail =
            format!("{}: {size} bytes do not fit into {} free ones", self.root.name, space.free_bytes);
        Err(Fault::new(FaultCode::TargetFull, detail))
    }

    fn upload(&self, temp: &TempName) -> Option<Arc<FileUpload>> {
        self.uploads.lock().get(temp).cloned()
    }

    fn begin_upload(&self, temp: &TempName, size: u64) -> Result<Arc<FileUpload>, Fault> {
        self.root.check_writable()?;
        self.reserve(size)?;
        let destination = Destination::Temporary(self.root.work(temp.as_str())?);
        let upload = FileUpload::new(self.root.clone(), destination, size, self.runtime.clone());
        if let Some(older) = self.uploads.lock().insert(temp.clone(), upload.clone()) {
            older.abort();
        }
        Ok(upload)
    }
}

impl Storage for WebDavStorage {
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
            reads_temps: true,
            sets_attributes: false,
            has_directories: true,
            removes_empty_directories: false,
        }
    }

    fn space(&self) -> Result<Space, Fault> {
        let root = &self.root;
        let quota = self.wait(async {
            let found = root.remote.quota(root.resource(&root.url)).await;
            found.map_err(|failure| failure.in_storage(Scope::Target))
        })?;
        let space = match (quota.available_bytes, quota.used_bytes, self.options.capacity_bytes) {
            (Some(free_bytes), used_bytes, _) => {
                Space { total_bytes: free_bytes.saturating_add(used_bytes.unwrap_or(0)), free_bytes }
            }
            (None, Some(used_bytes), Some(total_bytes)) => {
                Space { total_bytes, free_bytes: total_bytes.saturating_sub(used_bytes) }
            }
            (None, None, Some(total_bytes)) => Space { total_bytes, free_bytes: total_bytes },
            // Nobody can tell: shown as unknown, and nothing is refused for it.
            (None, _, None) => Space { total_bytes: 0, free_bytes: 0 },
        };
        *self.free_bytes.lock() = (space.total_bytes > 0).then_some(space.free_bytes);
        Ok(space)
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

    fn create(
        &self,
        temp: &TempName,
        _target: Option<&Pfn>,
        size: u64,
    ) -> Result<Box<dyn TargetFile>, Fault> {
        let upload = self.begin_upload(temp, size)?;
        Ok(Box::new(RemoteTarget(upload)))
    }

    fn reopen(&self, temp: &TempName, _size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.remove_temp(temp)?;
        Ok(None)
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        let results = commit_all(&self.runtime, batch, |item| {
            let (root, item, upload) = (self.root.clone(), item.clone(), self.upload(&item.temp));
            async move { root.commit(&item, upload).await }
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

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        let mut temps: Vec<TempName> = self.uploads.lock().keys().cloned().collect();
        let work = self.root.work("")?;
        let members = self.wait(async {
            match self.root.remote.members(self.root.resource(&work)).await {
                Ok(members) => Ok(members),
                // Nothing was sent yet, or the server lists nothing.
                Err(Failure { kind: Kind::Status(status), .. })
                    if matches!(status.as_u16(), 404 | 405 | 501) =>
                {
                    Ok(Vec::new())
                }
                Err(failure) => Err(failure.in_storage(Scope::Target)),
            }
        })?;
        temps.extend(members.iter().filter_map(|member| TempName::parse(&member.name).ok()));
        temps.sort();
        temps.dedup();
        Ok(temps)
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        self.root.check_writable()?;
        let upload = self.uploads.lock().remove(temp);
        let url = self.root.work(temp.as_str())?;
        self.wait(async {
            if let Some(upload) = upload {
                upload.end().await;
            }
            let removed = self.root.remote.delete(self.root.resource(&url), None).await;
            removed.map(drop).map_err(|failure| failure.in_storage(Scope::Target))
        })
    }

    fn root_mark(&self) -> Result<Option<String>, Fault> {
        let mark = self.root.work(ROOT_MARK)?;
        self.wait(self.root.read_text(&mark, ROOT_MARK_BYTES_MAX))
    }

    fn put_root_mark(&self, text: &str) -> Result<(), Fault> {
        self.root.check_writable()?;
        let mark = self.root.work(ROOT_MARK)?;
        self.wait(self.root.put_whole(&mark, text.to_owned().into()))
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.root.check_writable()?;
        let Some((url, stat)) = self.wait(self.root.stat_file(at, Scope::Target))? else { return Ok(()) };
        let found = identity(&url, &stat);
        if found != *expected {
            let detail = format!("{at} is {found}, not {expected} (size:mtime:inode), and stays");
            return Err(Fault::new(FaultCode::Conflict, detail));
        }
        // Only while it is the same, where the server can tell.
        let etag = stat.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        self.wait(async {
            match self.root.remote.delete(self.root.resource(&url), etag).await {
                Ok(_) => Ok(()),
                Err(Failure { kind: Kind::Status(StatusCode::PRECONDITION_FAILED), .. }) => {
                    let detail = format!("{at} has changed in this moment, and stays");
                    Err(Fault::new(FaultCode::Conflict, detail))
                }
                Err(failure) => Err(failure.in_storage(Scope::Target)),
            }
        })
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        self.walk_from(path, visit)
    }
}

impl Root {
    /// A file in one piece, with the collections above it.
    async fn put_whole(&self, url: &RemoteUrl, bytes: Bytes) -> Result<(), Fault> {
        let put = async {
            self.remote.make_parents(self.resource(url)).await?;
            self.remote.put(self.resource(url), Payload::Bytes(bytes)).await
        };
        put.await.map_err(|failure| failure.in_storage(Scope::Target))
    }

    /// Waits until the file was sent, compares its size, and gives it its name.
    async fn commit(&self, item: &Commit, upload: Option<Arc<FileUpload>>) -> Result<(), Fault> {
        self.check_writable()?;
        let target = self.url_of(&item.target)?;
        let temp = self.work(item.temp.as_str())?;
        if let Some(upload) = upload {
            upload.finished().await?;
        }
        let at_target = |failure: Failure| failure.in_storage(Scope::Target);
        let incomplete = |what: String| {
            Err(Fault::new(FaultCode::TargetWrite, format!("{}: its temporary file {what}", item.target)))
        };
        match self.stat(&temp).await.map_err(at_target)? {
            None => return incomplete("is gone".to_owned()),
            Some(stat) if stat.size != item.size => {
                return incomplete(format!("has {} bytes, {} are expected", stat.size, item.size));
            }
            Some(_) => {}
        }
        let overwrite = self.may_be_replaced(item, &target).await?;
        if let Err(failure) = self.remote.make_parents(self.resource(&target)).await {
            return Err(self.explain_refusal(item, &target, failure).await);
        }
        let destination = self.spelled(&target).await.map_err(at_target)?;
        match self.remote.move_to_spelled(self.resource(&temp), &destination, overwrite).await {
            Ok(RenameOutcome::Done) => Ok(()),
            Ok(RenameOutcome::Exists) => Err(self.clash(item)),
            Err(failure) => {
                // The answer may be lost and the rename done.
                let is_there = self.stat(&target).await.map_err(at_target)?;
                let is_gone = self.stat(&temp).await.map_err(at_target)?.is_none();
                match is_there {
                    Some(stat) if is_gone && stat.size == item.size => Ok(()),
                    // Somebody was faster.
                    Some(_) if !overwrite => Err(self.clash(item)),
                    _ => Err(self.explain_refusal(item, &target, failure).await),
                }
            }
        }
    }

    /// Whether something has the target's name that may be replaced; fails if it may not. Looked up first,
    /// since XRootD replaces whatever it is told.
    async fn may_be_replaced(&self, item: &Commit, target: &RemoteUrl) -> Result<bool, Fault> {
        let found = self.stat(target).await.map_err(|failure| failure.in_storage(Scope::Target))?;
        let Some(stat) = found else { return Ok(false) };
        match &item.replaces {
            Some(expected) if !stat.is_collection && identity(target, &stat) == *expected => Ok(true),
            _ => Err(self.clash(item)),
        }
    }

    /// The URL of a new name as the server wants to read it in a header: percent-encoded (RFC 4918), or
    /// literally, as XRootD does.
    async fn spelled(&self, target: &RemoteUrl) -> Result<Vec<u8>, Failure> {
        if !target.path().contains('%') || *self.decodes_headers.get_or_try_init(|| self.try_escape()).await?
        {
            return Ok(target.whole().into_bytes());
        }
        Ok(target.whole_decoded())
    }

    /// Renames an empty file to a name with an escape, and looks which name it got.
    async fn try_escape(&self) -> Result<bool, Failure> {
        let url = |name: &str| self.work(name).map_err(|fault| Failure::of_fault(&fault));
        let (from, decoded, literal) = (url("escape-probe")?, url("escape probe")?, url("escape%20probe")?);
        self.remote.make_parents(self.resource(&from)).await?;
        self.remote.put(self.resource(&from), Payload::Bytes(Bytes::new())).await?;
        self.remote.move_to(self.resource(&from), &decoded, true).await?;
        let is_decoded = self.find(&decoded).await?.is_some();
        let got = if is_decoded { &decoded } else { &literal };
        self.remote.delete(self.resource(got), None).await?;
        Ok(is_decoded)
    }

    /// The fault of a commit that the server refuses. It cannot make a collection below a file.
    async fn explain_refusal(&self, item: &Commit, target: &RemoteUrl, failure: Failure) -> Fault {
        let is_refused = matches!(failure.kind, Kind::Status(_));
        match is_refused && self.has_file_above(target).await {
            true => self.clash(item),
            false => failure.in_storage(Scope::Target),
        }
    }
}
