//! Storages of others as [`Storage`]s, which engines, scans and verifications drive as they drive a
//! directory: a collection of a WebDAV server, and a bucket of a storage that speaks S3.
//!
//! A file is sent in order, and cannot be appended to: one whose sending breaks is sent again from its first
//! byte. It gets its name when it is complete, and sizes are compared then, since a status of success ends
//! nothing.
//!
//! The methods block. They may be called from any thread but those that run tasks of a runtime.
//!
//! Start with [`RemoteStorage`]; `upload` feeds what is sent, `read` reads ahead, `webdav` and `s3` are what
//! differs.

mod file_access;
mod listing;
mod read;
mod s3;
mod s3_walk;
mod space;
mod storage;
mod third_party;
mod upload;
mod webdav;
mod webdav_walk;

pub use file_access::FileAccess;
pub use space::SpaceReport;
pub use storage::RemoteStorage;
pub use third_party::{ServerCopy, ServerCopyFault};

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use longhaul_model::{Algorithm, Digest, DigestSet, Fault, FaultCode, Pfn, StorageName};
use longhaul_storage::{Commit, Identity};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

use upload::{Content, Destination, FileUpload};

use crate::checksum::Checksum;
use crate::failure::{Failure, Kind, Scope};
use crate::order::{Credential, Stat};
use crate::remote::Remote;
use crate::url::RemoteUrl;
use crate::webdav::Resource;

/// The collection in the root that holds files before they are complete. Doors of this program keep
/// `.longhaul` to themselves.
const WORK: &str = ".longhaul-work";
/// The work directory of a posix storage, which a door over it does not show.
const POSIX_WORK: &str = ".longhaul";
/// The file in the work collection by which an agent knows its root again.
const ROOT_MARK: &str = "root-mark";
const ROOT_MARK_BYTES_MAX: u64 = 4 << 10;
/// Small files on their way to one server at once: bounds connections and memory.
const SMALL_SENDS_MAX: usize = 32;
/// Commits of one batch that are under way at once.
const COMMITS_PARALLEL_MAX: usize = 32;

/// What a storage of others is made of.
#[derive(Clone, Debug)]
pub struct RemoteStorageOptions {
    pub name: StorageName,
    /// The collection that is the storage's root, or a bucket with a prefix of its keys.
    pub url: String,
    pub credential: Credential,
    /// Whether files can be written and deleted.
    pub writable: bool,
    /// Names that differ only in case are one name.
    pub case_insensitive: bool,
    /// Longest component of a path that the server keeps and lists, in bytes. XRootD 5.5 cuts the last of 255
    /// bytes off in its listings.
    pub name_bytes_max: usize,
    /// Concurrent reads, and concurrent writes; none: the engine's default.
    pub parallel: Option<u16>,
    /// How many bytes it may hold, where neither its server (RFC 4331) nor a report tells what is free.
    pub capacity_bytes: Option<u64>,
    /// Where its site reports the space; what a server tells as its quota counts as well.
    pub space_report: Option<SpaceReport>,
    /// In the URL of a bucket, the bucket stands before the key, whatever the host is called.
    pub path_style: bool,
}

impl RemoteStorageOptions {
    /// A writable storage with every default.
    pub fn new(name: StorageName, url: impl Into<String>, credential: Credential) -> RemoteStorageOptions {
        RemoteStorageOptions {
            name,
            url: url.into(),
            credential,
            writable: true,
            case_insensitive: false,
            name_bytes_max: 255,
            parallel: None,
            capacity_bytes: None,
            space_report: None,
            path_style: true,
        }
    }
}

/// The server's side of a storage, for tasks of the runtime.
struct Root {
    name: StorageName,
    remote: Arc<Remote>,
    url: RemoteUrl,
    credential: Credential,
    writable: bool,
    name_bytes_max: usize,
    /// Whether the server decodes the names in headers; unknown until such a name was tried.
    decodes_headers: OnceCell<bool>,
    /// Places for small files on their way to a WebDAV server.
    small_sends: Arc<Semaphore>,
}

/// Size, time of modification (in whole seconds), and in place of an inode number a hash of name and ETag:
/// not every server has ETags. A weak one may become a strong one, as Apache's does after a second.
fn identity(url: &RemoteUrl, stat: &Stat) -> Identity {
    let mut hasher = DefaultHasher::new();
    url.path().hash(&mut hasher);
    stat.etag.as_deref().map(|etag| etag.trim_start_matches("W/")).hash(&mut hasher);
    Identity {
        size: stat.size,
        mtime_ns: stat.modified_s().unwrap_or(0).saturating_mul(1_000_000_000),
        inode: hasher.finish(),
    }
}

impl Root {
    fn new(remote: Arc<Remote>, options: &RemoteStorageOptions) -> Result<Root, Fault> {
        Ok(Root {
            name: options.name.clone(),
            remote,
            url: RemoteUrl::parse(&options.url)?,
            credential: options.credential.clone(),
            writable: options.writable,
            name_bytes_max: options.name_bytes_max,
            decodes_headers: OnceCell::new(),
            small_sends: Arc::new(Semaphore::new(SMALL_SENDS_MAX)),
        })
    }

    fn check_writable(&self) -> Result<(), Fault> {
        if self.writable {
            return Ok(());
        }
        Err(Fault::new(FaultCode::TargetReadOnly, format!("{} is configured to be read only", self.name)))
    }

    fn resource<'a>(&'a self, url: &'a RemoteUrl) -> Resource<'a> {
        Resource { url, credential: &self.credential }
    }

    /// The URL of a file of the storage.
    fn url_of(&self, at: &Pfn) -> Result<RemoteUrl, Fault> {
        if at.storage != self.name {
            return Err(Fault::new(FaultCode::NotFound, format!("{at} is not in the storage {}", self.name)));
        }
        let first = at.path().split('/').next().unwrap_or_default();
        if first == WORK || first == POSIX_WORK {
            return Err(Fault::new(FaultCode::BadName, format!("{at} lies in the work directory")));
        }
        if at.path().contains('\\') {
            let detail = format!("{at}: not every server takes a backslash in a name");
            return Err(Fault::new(FaultCode::BadName, detail));
        }
        if at.path().split('/').any(|name| name.len() > self.name_bytes_max) {
            let detail = format!("{at}: a name there has at most {} bytes", self.name_bytes_max);
            return Err(Fault::new(FaultCode::NameTooLong, detail));
        }
        self.url.below(at.path())
    }

    fn work(&self, name: &str) -> Result<RemoteUrl, Fault> {
        self.url.below(&format!("{WORK}/{name}"))
    }

    /// A regular file with its URL; none if there is none.
    async fn stat_file(&self, at: &Pfn, scope: Scope) -> Result<Option<(RemoteUrl, Stat)>, Fault> {
        let url = self.url_of(at)?;
        let found = self.stat(&url).await.map_err(|failure| failure.in_storage(scope))?;
        match found {
            Some(stat) if stat.is_collection => {
                let detail = format!("{at} is a directory, not a file");
                Err(Fault::new(FaultCode::SourceUnreadable, detail))
            }
            found => Ok(found.map(|stat| (url, stat))),
        }
    }

    /// By PROPFIND, which tells collections from files; by HEAD of S3 and of a server that knows no PROPFIND.
    /// There is nothing below a file, whatever the server says of it (Apache: 400, XRootD: 500).
    async fn stat(&self, url: &RemoteUrl) -> Result<Option<Stat>, Failure> {
        match self.find(url).await {
            found if url.is_s3() => found,
            Err(Failure { kind: Kind::Status(_), .. }) if self.has_file_above(url).await => Ok(None),
            found => found,
        }
    }

    async fn find(&self, url: &RemoteUrl) -> Result<Option<Stat>, Failure> {
        if url.is_s3() {
            return self.remote.head(self.resource(url), None).await;
        }
        match self.remote.find(self.resource(url), None).await {
            Err(Failure { kind: Kind::Status(status), .. }) if matches!(status.as_u16(), 405 | 501) => {
                self.remote.head(self.resource(url), None).await
            }
            found => found,
        }
    }

    /// What is told of a file, with a digest of the first of these algorithms of which the server tells one.
    /// No further one is asked for: each question may have the server read the file.
    async fn stat_with_digest(
        &self,
        url: &RemoteUrl,
        algorithms: &[Algorithm],
    ) -> Result<Option<(Stat, Option<Digest>)>, Failure> {
        let mut algorithms = algorithms.iter().copied();
        let mut algorithm = algorithms.next();
        loop {
            let found = self.remote.head(self.resource(url), algorithm).await?;
            let Some(stat) = found else { return Ok(None) };
            let digest = stat.checksum.as_ref().and_then(Checksum::digest);
            algorithm = algorithms.next();
            if digest.is_some() || algorithm.is_none() {
                return Ok(Some((stat, digest)));
            }
        }
    }

    /// The first of these digests that the server tells, see [`Root::stat_with_digest`].
    async fn told_digest(
        &self,
        at: &Pfn,
        algorithms: &[Algorithm],
    ) -> Result<Option<(Identity, DigestSet)>, Fault> {
        let url = self.url_of(at)?;
        let found = self.stat_with_digest(&url, algorithms).await;
        let found = found.map_err(|failure| failure.in_storage(Scope::Source))?;
        let (stat, digest) = found
            .ok_or_else(|| Fault::new(FaultCode::SourceMissing, format!("{at} is not there any more")))?;
        Ok(digest.map(|digest| (identity(&url, &stat), DigestSet::from_iter([digest]))))
    }

    /// Deletes a file; with an ETag, only while it has that.
    async fn delete(&self, url: &RemoteUrl, etag: Option<&str>) -> Result<(), Fault> {
        match self.remote.delete(self.resource(url), etag).await {
            Ok(_) => Ok(()),
            Err(Failure { kind: Kind::Status(StatusCode::PRECONDITION_FAILED), .. }) => {
                let detail = format!("{url} has changed in this moment, and stays");
                Err(Fault::new(FaultCode::Conflict, detail))
            }
            Err(failure) => Err(failure.in_storage(Scope::Target)),
        }
    }

    /// Writes a small file under its name.
    async fn put_whole(&self, url: &RemoteUrl, bytes: Bytes) -> Result<(), Fault> {
        if !url.is_s3() {
            return self.put_temporary(url, Content::Whole(bytes)).await;
        }
        let put = self.remote.object(self.resource(url)).put(bytes, true).await;
        put.map(drop).map_err(|failure| failure.in_storage(Scope::Target))
    }

    /// Whether something has the target's name that may be replaced; fails if it may not. Looked up first:
    /// XRootD replaces whatever it is told, and not every bucket honours `If-None-Match`.
    async fn may_be_replaced(&self, item: &Commit, target: &RemoteUrl) -> Result<bool, Fault> {
        let found = self.stat(target).await.map_err(|failure| failure.in_storage(Scope::Target))?;
        let Some(stat) = found else { return Ok(false) };
        match &item.replaces {
            Some(expected) if !stat.is_collection && identity(target, &stat) == *expected => Ok(true),
            _ => Err(self.clash(item)),
        }
    }

    /// Ends an upload, and takes back what is at a bucket of it.
    async fn end_upload(&self, upload: &FileUpload) {
        upload.end().await;
        if let Destination::Object(object) = &upload.destination {
            object.take_back(self).await;
        }
    }

    /// A small file as text; none if it is not there.
    async fn read_text(&self, url: &RemoteUrl, bytes_max: u64) -> Result<Option<String>, Fault> {
        let at_source = |failure: Failure| failure.in_storage(Scope::Source);
        let Some(stat) = self.stat(url).await.map_err(at_source)? else { return Ok(None) };
        if stat.size > bytes_max {
            let detail = format!("{url} has {} bytes, more than {bytes_max}", stat.size);
            return Err(Fault::new(FaultCode::TooLarge, detail));
        }
        let mut text = Vec::new();
        let mut reading = self.remote.read(self.resource(url), &stat, 1);
        while let Some(piece) = reading.next().await.map_err(at_source)? {
            text.extend_from_slice(&piece);
        }
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    fn clash(&self, item: &Commit) -> Fault {
        Fault::new(FaultCode::NameClash, format!("{} exists", item.target))
    }

    async fn has_file_above(&self, target: &RemoteUrl) -> bool {
        let mut next = target.parent();
        while let Some(above) = next.filter(|above| above.path().len() > self.url.path().len()) {
            let plain = above.without_slash();
            if let Ok(Some(stat)) = self.find(&plain).await {
                return !stat.is_collection;
            }
            next = above.parent();
        }
        false
    }
}

/// Commits a batch, many files at once, and returns the results in its order.
fn commit_all<F>(
    runtime: &Handle,
    batch: &[Commit],
    mut commit: impl FnMut(&Commit) -> F,
) -> Vec<Result<(), Fault>>
where
    F: Future<Output = Result<(), Fault>> + Send + 'static,
{
    let abnormal = || Err(Fault::new(FaultCode::Internal, "a commit ended abnormally"));
    let mut results: Vec<Result<(), Fault>> = batch.iter().map(|_| abnormal()).collect();
    // Among several files for one name the first gets it: XRootD would let the last one replace the others.
    let mut names = BTreeSet::new();
    let (first, later): (Vec<usize>, Vec<usize>) =
        (0..batch.len()).partition(|&place| names.insert(batch[place].target.path()));
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for place in first {
            if running.len() >= COMMITS_PARALLEL_MAX
                && let Some(Ok((place, result))) = running.join_next().await
            {
                results[place] = result;
            }
            let committing = commit(&batch[place]);
            running.spawn(async move { (place, committing.await) });
        }
        while let Some(ended) = running.join_next().await {
            if let Ok((place, result)) = ended {
                results[place] = result;
            }
        }
        for place in later {
            results[place] = commit(&batch[place]).await;
        }
    });
    results
}
