//! One storage of others behind the [`Storage`] interface, whatever it speaks.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::read::RemoteSource;
use super::s3::{Bucket, OBJECT_BYTES_MAX, ObjectUpload};
use super::space::SpaceKnowledge;
use super::upload::{Destination, FileUpload, RemoteTarget};
use super::{ROOT_MARK, ROOT_MARK_BYTES_MAX, RemoteStorageOptions, Root, commit_all, identity};
use crate::failure::Scope;
use crate::remote::Remote;

/// A collection of a WebDAV server, or a bucket.
pub struct RemoteStorage {
    pub(super) root: Arc<Root>,
    pub(super) protocol: Protocol,
    pub(super) options: RemoteStorageOptions,
    pub(super) runtime: Handle,
    /// Files that are being sent, and those that were sent and not yet committed.
    uploads: Mutex<BTreeMap<TempName, Arc<FileUpload>>>,
    pub(super) space: Mutex<SpaceKnowledge>,
}

/// What the storage speaks.
pub(super) enum Protocol {
    WebDav,
    S3(Bucket),
}

impl RemoteStorage {
    /// Opens the storage, by the scheme of its URL; nothing is asked of the server.
    ///
    /// # Errors
    /// `BadRequest` if the URL is malformed, or names no bucket.
    pub fn open(
        remote: Arc<Remote>,
        options: RemoteStorageOptions,
        runtime: Handle,
    ) -> Result<RemoteStorage, Fault> {
        let root = Arc::new(Root::new(remote, &options)?);
        let protocol = match root.url.is_s3() {
            true => Protocol::S3(Bucket::parse(&root.url, options.path_style)?),
            false => Protocol::WebDav,
        };
        let (uploads, space) = (Mutex::default(), Mutex::default());
        Ok(RemoteStorage { root, protocol, options, runtime, uploads, space })
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        self.runtime.block_on(work)
    }

    fn upload(&self, temp: &TempName) -> Option<Arc<FileUpload>> {
        self.uploads.lock().get(temp).cloned()
    }

    /// Where a new file is sent.
    fn destination(&self, temp: &TempName, target: Option<&Pfn>) -> Result<Destination, Fault> {
        Ok(match (&self.protocol, target) {
            (Protocol::WebDav, _) => Destination::Temporary(self.root.work(temp.as_str())?),
            (Protocol::S3(_), Some(at)) => {
                Destination::Object(Arc::new(ObjectUpload::new(self.root.url_of(at)?)))
            }
            (Protocol::S3(_), None) => {
                Destination::Object(Arc::new(ObjectUpload::probe(self.root.work(temp.as_str())?)))
            }
        })
    }
}

impl Storage for RemoteStorage {
    fn name(&self) -> &StorageName {
        &self.root.name
    }

    fn capabilities(&self) -> Capabilities {
        let is_tree = matches!(self.protocol, Protocol::WebDav);
        Capabilities {
            writable: self.options.writable,
            case_insensitive: self.options.case_insensitive,
            random_write: false,
            device: None,
            parallel: self.options.parallel,
            discards: false,
            resumes: false,
            reads_temps: is_tree,
            sets_attributes: false,
            keeps_any_name: false,
            always_tells_space: false,
            has_directories: is_tree,
            removes_empty_directories: !is_tree,
        }
    }

    fn space(&self) -> Result<Space, Fault> {
        self.ask_space()
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

    fn told_digests(
        &self,
        at: &Pfn,
        algorithms: &[Algorithm],
    ) -> Result<Option<(Identity, DigestSet)>, Fault> {
        self.wait(self.root.told_digest(at, algorithms))
    }

    fn create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        self.root.check_writable()?;
        if matches!(self.protocol, Protocol::S3(_)) && size > OBJECT_BYTES_MAX {
            let detail = format!("{}: {size} bytes: S3 holds no object above 5 TiB", self.root.name);
            return Err(Fault::new(FaultCode::TargetFull, detail));
        }
        self.reserve(size)?;
        let destination = self.destination(temp, target)?;
        let older = self.uploads.lock().remove(temp);
        if let Some(older) = older {
            // Otherwise its last bytes might arrive after those of the new one.
            self.runtime.block_on(self.root.end_upload(&older));
        }
        let upload = FileUpload::new(self.root.clone(), destination, size, self.runtime.clone());
        self.uploads.lock().insert(temp.clone(), upload.clone());
        Ok(Box::new(RemoteTarget(upload)))
    }

    fn reopen(&self, temp: &TempName, _size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.remove_temp(temp)?;
        Ok(None)
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        let is_tree = matches!(self.protocol, Protocol::WebDav);
        let results = commit_all(&self.runtime, batch, |item| {
            let (root, item, upload) = (self.root.clone(), item.clone(), self.upload(&item.temp));
            async move {
                root.check_writable()?;
                match is_tree {
                    true => root.commit_temporary(&item, upload).await,
                    false => root.commit_object(&item, upload).await,
                }
            }
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

    /// Uploads to buckets are listed while this process lives: what an earlier one has begun has no name.
    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        let mut temps: Vec<TempName> = self.uploads.lock().keys().cloned().collect();
        if matches!(self.protocol, Protocol::WebDav) {
            temps.extend(self.wait(self.root.list_temporary())?);
        }
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
                self.root.end_upload(&upload).await;
            }
            match &self.protocol {
                Protocol::WebDav => self.root.delete(&url, None).await,
                Protocol::S3(_) => Ok(()),
            }
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
        let etag = stat.etag.as_deref().filter(|etag| !url.is_s3() && !etag.starts_with("W/"));
        self.wait(self.root.delete(&url, etag))
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        match &self.protocol {
            Protocol::WebDav => self.walk_collections(path, visit),
            Protocol::S3(bucket) => self.walk_bucket(bucket, path, visit),
        }
    }
}
