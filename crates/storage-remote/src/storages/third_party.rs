//! Third-party copies between two storages (HTTP-TPC): one of the two servers moves the bytes, into a
//! temporary file of the target, which is verified before it gets its name.

use std::time::Duration;

use longhaul_model::{Algorithm, Digest, DigestSet, Fault, FaultCode, Pfn, Verification};
use longhaul_storage::{Commit, TempName};
use tokio::time::timeout;

use super::file_access::FileAccess;
use super::storage::{Protocol, RemoteStorage};
use crate::copy::with_earlier;
use crate::failure::{Failure, Kind, Scope};
use crate::order::{Mode, Stat};
use crate::tpc::{Terms, another_way_may_help};
use crate::url::RemoteUrl;
use crate::webdav::Resource;

/// Connections that a server which pulls a large file is asked to use.
pub(super) const STREAMS: u16 = 4;

/// A file that a server is asked to copy.
#[derive(Clone, Copy, Debug)]
pub struct ServerCopy<'a> {
    /// The file at the source.
    pub at: &'a Pfn,
    /// What is written at the target. A file of this name is replaced.
    pub temp: &'a TempName,
    pub size: u64,
    /// Experiment × 64 + activity, with which servers mark their packets.
    pub scitag: Option<u32>,
}

/// Why the servers have not copied a file.
#[derive(Clone, Debug)]
pub struct ServerCopyFault {
    pub fault: Fault,
    /// It is for the two servers, so that it awaits other files too; otherwise for this file.
    pub is_of_servers: bool,
}

impl ServerCopyFault {
    /// What stands in this file's way only.
    pub fn of_file(fault: Fault) -> ServerCopyFault {
        ServerCopyFault { fault, is_of_servers: false }
    }
}

impl RemoteStorage {
    /// Whether the two servers may be able to copy: a bucket asks nobody for anything, and what opens a file
    /// of one is told over TLS only.
    pub fn may_copy_from(&self, source: &RemoteStorage) -> bool {
        self.may_pull() && (!source.root.url.is_s3() || self.root.url.is_secure())
    }

    /// Whether the server may be able to pull files.
    pub fn may_pull(&self) -> bool {
        self.options.writable && matches!(self.protocol, Protocol::WebDav)
    }

    /// Has the servers copy a file of `source` into a temporary file of this storage: this one is asked to
    /// pull it, else the other one to push it. `progress` hears of bytes that were moved. Returns who did it.
    /// Dropping the future ends the copy.
    ///
    /// # Errors
    /// Neither server does, or the file at the source is another one; something may be left in the temporary
    /// file.
    pub async fn copy_from(
        &self,
        source: &RemoteStorage,
        file: ServerCopy<'_>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Mode, ServerCopyFault> {
        let from = source.find_file(file.at, file.size).await.map_err(ServerCopyFault::of_file)?;
        let temp = self.make_place(file).await.map_err(ServerCopyFault::of_file)?;
        let copy_by = |mode| self.copy_by(mode, source, &from, &temp, file, progress);
        let (first, second) = self.modes(source);
        let Err(failure) = copy_by(first).await else { return Ok(first) };
        let Some(second) = second.filter(|_| another_way_may_help(&failure)) else {
            return Err(copy_fault(first, failure, &[]));
        };
        let before = [format!("{first}: {}", failure.text)];
        copy_by(second).await.map(|()| second).map_err(|failure| copy_fault(second, failure, &before))
    }

    /// Has this storage's server pull a file of a storage that another agent serves. `progress` hears of
    /// bytes that were moved. Dropping the future ends the copy.
    ///
    /// # Errors
    /// The server pulls nothing, or nothing from there; something may be left in the temporary file.
    pub async fn pull(
        &self,
        access: &FileAccess,
        file: ServerCopy<'_>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), ServerCopyFault> {
        let of_pull = |failure| copy_fault(Mode::Pull, failure, &[]);
        let of_all = |failure| ServerCopyFault { is_of_servers: true, ..of_pull(failure) };
        if access.is_secret() && !self.root.url.is_secure() {
            let text = format!("{}: what opens a file is told over TLS only: use https", self.root.url);
            return Err(of_all(Failure::new(Kind::Refused, text)));
        }
        let remote = &self.root.remote;
        remote.exchange.check_host(access.url()).await.map_err(of_all)?;
        let temp = self.make_place(file).await.map_err(ServerCopyFault::of_file)?;
        let terms = Terms { streams: access.streams(), ..self.terms(file) };
        let credential = access.credential();
        let from = Resource { url: access.url(), credential: &credential };
        let copied = remote.third_party(Mode::Pull, from, self.root.resource(&temp), None, terms, progress);
        in_time(terms.lasts, copied).await.map_err(of_pull)
    }

    /// The URL of a file of this storage that has this size.
    pub(super) async fn find_file(&self, at: &Pfn, size: u64) -> Result<RemoteUrl, Fault> {
        let found = self.root.stat_file(at, Scope::Source).await?;
        let (url, stat) =
            found.ok_or_else(|| Fault::new(FaultCode::SourceMissing, format!("{at} is not there")))?;
        if stat.size != size {
            let detail = format!("{at} has {} bytes, {size} are registered", stat.size);
            return Err(Fault::new(FaultCode::SourceChanged, detail));
        }
        Ok(url)
    }

    /// The URL of the temporary file, with the collections above it.
    async fn make_place(&self, file: ServerCopy<'_>) -> Result<RemoteUrl, Fault> {
        let temp = self.root.work(file.temp.as_str())?;
        let made = self.root.remote.make_parents(self.root.resource(&temp)).await;
        made.map_err(|failure| failure.in_storage(Scope::Target))?;
        Ok(temp)
    }

    fn terms(&self, file: ServerCopy<'_>) -> Terms {
        let lasts = self.root.remote.config.times.copy_of(file.size);
        Terms { lasts, overwrite: true, streams: STREAMS, size: file.size, scitag: file.scitag }
    }

    /// Whether nothing has the name yet.
    ///
    /// # Errors
    /// The name is not one that the storage can hold, or the server does not answer.
    pub async fn is_free(&self, at: &Pfn) -> Result<bool, Fault> {
        Ok(self.root.stat_file(at, Scope::Target).await?.is_none())
    }

    /// Gives a temporary file its name, as [`Storage::commit`](longhaul_storage::Storage::commit) does.
    ///
    /// # Errors
    /// It has another size, or something has the name.
    pub async fn commit_copy(&self, commit: &Commit) -> Result<(), Fault> {
        self.root.check_writable()?;
        self.root.commit_temporary(commit, None).await
    }

    /// Removes the temporary files that `is_stale` knows.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn remove_temporary(&self, is_stale: impl Fn(&TempName) -> bool) -> Result<(), Fault> {
        let temps = self.root.list_temporary().await?;
        for temp in temps.iter().filter(|temp| is_stale(temp)) {
            self.remove_copy(temp).await?;
        }
        Ok(())
    }

    /// Removes what a copy has left that did not become a file.
    ///
    /// # Errors
    /// As [`RemoteStorage::remove_temporary`].
    pub async fn remove_copy(&self, temp: &TempName) -> Result<(), Fault> {
        self.root.delete(&self.root.work(temp.as_str())?, None).await
    }

    /// Which server is asked first, and which after it. One that knows no third-party copies may take a
    /// destination at another port of its own host for a file of its own, as nginx does, so that none is
    /// asked for that.
    fn modes(&self, source: &RemoteStorage) -> (Mode, Option<Mode>) {
        let (from, to) = (&source.root.url, &self.root.url);
        if from.origin() == to.origin() {
            // A copy within one server (RFC 4918, section 9.8).
            return (Mode::Push, None);
        }
        match from.is_s3() || from.host() == to.host() {
            true => (Mode::Pull, None),
            false => (Mode::Pull, Some(Mode::Push)),
        }
    }

    async fn copy_by(
        &self,
        mode: Mode,
        source: &RemoteStorage,
        from: &RemoteUrl,
        temp: &RemoteUrl,
        file: ServerCopy<'_>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), Failure> {
        let (from, temp) = (source.root.resource(from), self.root.resource(temp));
        let terms = self.terms(file);
        let (ours, theirs) = (&self.root.remote, &source.root.remote);
        let (active, passive) = if mode == Mode::Pull { (ours, theirs) } else { (theirs, ours) };
        let copied = async {
            let macaroon = passive.macaroon(mode, from, temp, terms.lasts).await;
            active.third_party(mode, from, temp, macaroon, terms, progress).await
        };
        in_time(terms.lasts, copied).await
    }

    /// Verifies a temporary file by the catalog's digests: by one that the server tells or, where it tells
    /// none of them or `reads_back`, by reading all of it. Returns the digests that were found equal.
    ///
    /// # Errors
    /// It is not there, or has another size or digest.
    pub async fn verify_temporary(
        &self,
        file: ServerCopy<'_>,
        digests: &DigestSet,
        reads_back: bool,
    ) -> Result<(DigestSet, Verification), Fault> {
        let temp = self.root.work(file.temp.as_str())?;
        let at_target = |failure: Failure| failure.in_storage(Scope::Target);
        let algorithms: Vec<Algorithm> = digests.algorithms().collect();
        let asked = if reads_back { &[][..] } else { &algorithms };
        let found = self.root.stat_with_digest(&temp, asked).await.map_err(at_target)?;
        let (stat, told) = check_copy(found, file)?;
        if let Some(told) = told {
            let told = compare(file, digests, DigestSet::from_iter([told]))?;
            return Ok((told, Verification::EndToEnd));
        }
        let place = self.root.resource(&temp);
        let read = self.root.remote.digest_by_reading(place, &stat, algorithms, STREAMS).await;
        Ok((compare(file, digests, read.map_err(at_target)?)?, Verification::Readback))
    }
}

/// Why one of the servers has not copied a file, and another before it.
fn copy_fault(mode: Mode, failure: Failure, before: &[String]) -> ServerCopyFault {
    let is_of_servers = another_way_may_help(&failure);
    let text = format!("{mode}: {}", failure.text);
    let fault = with_earlier(Failure { text, ..failure }, before).in_storage(Scope::Target);
    ServerCopyFault { fault, is_of_servers }
}

fn check_copy(
    found: Option<(Stat, Option<Digest>)>,
    file: ServerCopy<'_>,
) -> Result<(Stat, Option<Digest>), Fault> {
    let wrong = |what: String| Fault::new(FaultCode::TargetWrite, format!("the copy of {} {what}", file.at));
    match found {
        None => Err(wrong("is not there, though the server said that it had made it".to_owned())),
        Some((stat, _)) if stat.size != file.size => {
            Err(wrong(format!("has {} bytes, {} are expected", stat.size, file.size)))
        }
        Some(found) => Ok(found),
    }
}

async fn in_time(within: Duration, copied: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    timeout(within, copied).await.unwrap_or_else(|_| {
        let text = format!("Operation timed out: not done within {} s", within.as_secs());
        Err(Failure::new(Kind::TimedOut, text))
    })
}

fn compare(file: ServerCopy<'_>, wanted: &DigestSet, found: DigestSet) -> Result<DigestSet, Fault> {
    match wanted.contradiction(&found) {
        None => Ok(found),
        Some((wanted, found)) => {
            let detail = format!("the copy of {} has {found}, {wanted} is registered", file.at);
            Err(Fault::new(FaultCode::Corrupted, detail))
        }
    }
}
