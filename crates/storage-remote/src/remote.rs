//! The client of remote storages: [`Remote`] and its operations on one storage. Errors are [`Fault`]s.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::address::Family;
use longhaul_model::{Algorithm, Blame, Fault, FaultCode, Locality};
use longhaul_outbound::SYSTEM_AUTHORITIES;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::Instant;

use crate::checksum::Checksum;
use crate::config::{RemoteConfig, Trust};
use crate::dial::Dialler;
use crate::exchange::Exchange;
use crate::naming::RenameCache;
use crate::order::{End, Entry, Standing, Stat};
use crate::rate_limiter::RateLimiter;
use crate::s3::{PartMemory, Records};
use crate::tape::TapeApis;
use crate::url::RemoteUrl;
use crate::webdav::{RenameOutcome, Resource};

/// The client. It holds connections and what was learned of servers; one for a process.
pub struct Remote {
    pub(crate) config: RemoteConfig,
    pub(crate) exchange: Arc<Exchange>,
    /// Rate limit of all reads.
    pub(crate) rate_limiter: Arc<RateLimiter>,
    pub(crate) renames: Arc<RenameCache>,
    /// Collections known to exist.
    pub(crate) seen: Arc<RecentSet>,
    /// Storages known to issue no macaroons.
    pub(crate) without_macaroons: Arc<RecentSet>,
    /// Unfinished uploads to S3.
    pub(crate) records: Arc<Records>,
    pub(crate) part_memory: Arc<PartMemory>,
    pub(crate) tape_apis: Arc<TapeApis>,
    /// Storages known to have no Tape REST API.
    pub(crate) without_tape: Arc<RecentSet>,
}

impl Remote {
    pub fn new(config: RemoteConfig) -> Result<Remote, Fault> {
        let roots = roots(&config.trust)?;
        let dialler = Dialler::new(roots, config.allow.clone(), config.times.connect)
            .map_err(|failure| failure.fault())?;
        let exchange = Exchange::new(dialler, config.redirect_hosts.clone());
        Ok(Remote {
            exchange: Arc::new(exchange),
            rate_limiter: Arc::new(RateLimiter::new(config.bytes_per_s)),
            renames: Arc::default(),
            seen: Arc::default(),
            without_macaroons: Arc::default(),
            records: Arc::new(Records::new(config.s3.records.clone())),
            part_memory: Arc::new(PartMemory::new(config.s3.memory_bytes)),
            tape_apis: Arc::default(),
            without_tape: Arc::default(),
            config,
        })
    }

    /// One that goes over this family of addresses only, and has what this one has learned. Storages that
    /// copy between themselves choose theirs without being asked.
    pub fn over(&self, family: Family) -> Remote {
        Remote {
            config: self.config.clone(),
            exchange: Arc::new(self.exchange.over(family)),
            rate_limiter: self.rate_limiter.clone(),
            renames: self.renames.clone(),
            seen: self.seen.clone(),
            without_macaroons: self.without_macaroons.clone(),
            records: self.records.clone(),
            part_memory: self.part_memory.clone(),
            tape_apis: self.tape_apis.clone(),
            without_tape: self.without_tape.clone(),
        }
    }

    /// Sets the rate limit, also for copies under way; see [`RemoteConfig::bytes_per_s`].
    pub fn limit_rate(&self, bytes_per_s: Option<u64>) {
        self.rate_limiter.set_rate(bytes_per_s);
    }

    /// Metadata of a file, none if there is none; with a checksum if an algorithm is named and the storage
    /// has it.
    pub async fn stat(&self, end: &End, checksum: Option<Algorithm>) -> Result<Option<Stat>, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        let place = Resource { url: &url, credential: &end.credential };
        let found = if url.path().ends_with('/') && !url.is_s3() {
            self.find(place, checksum).await
        } else {
            self.head(place, checksum).await
        };
        found.map_err(|failure| failure.fault())
    }

    /// As [`Remote::stat`], also of what may be a collection: some servers tell of those as if they were
    /// files.
    pub async fn member(&self, end: &End) -> Result<Option<Stat>, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        let place = Resource { url: &url, credential: &end.credential };
        if !url.is_s3()
            && let Ok(found) = self.find(place, None).await
        {
            return Ok(found);
        }
        self.head(place, None).await.map_err(|failure| failure.fault())
    }

    /// The members of a collection, none of what is below them.
    pub async fn list(&self, end: &End) -> Result<Vec<Entry>, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        not_of_s3(&url, "listed")?;
        let place = Resource { url: &url, credential: &end.credential };
        self.members(place).await.map_err(|failure| failure.fault())
    }

    /// A collection, and those above it that are missing.
    pub async fn mkdir(&self, end: &End) -> Result<(), Fault> {
        let url = RemoteUrl::parse(&format!("{}/", end.url.trim_end_matches('/')))?;
        not_of_s3(&url, "made")?;
        let place = Resource { url: &url, credential: &end.credential };
        // A parent of nothing below it is the collection itself.
        let below = RemoteUrl::parse(&format!("{}/x", end.url.trim_end_matches('/')))?;
        self.make_parents(place.at(&below)).await.map_err(|failure| failure.fault())
    }

    /// The checksum of a file: as the storage tells it, else by reading where that is allowed.
    pub async fn checksum(&self, end: &End, algorithm: Algorithm) -> Result<Checksum, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        let place = Resource { url: &url, credential: &end.credential };
        let found = self.head(place, Some(algorithm)).await.map_err(|failure| failure.fault())?;
        let Some(stat) = found else {
            return Err(Fault::new(FaultCode::SourceMissing, format!("{url}: there is no such file")));
        };
        self.told_or_read(place, &stat, algorithm).await.map_err(|failure| failure.fault())
    }

    /// What stands there, with that checksum and where it lies, each as far as the storage tells; none if
    /// there is nothing.
    pub async fn standing(&self, end: &End, algorithm: Algorithm) -> Result<Option<Standing>, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        let place = Resource { url: &url, credential: &end.credential };
        let found = self.head(place, Some(algorithm)).await.map_err(|failure| failure.fault())?;
        let Some(stat) = found else { return Ok(None) };
        let (on_disk, on_tape) = match self.locality(place).await {
            Ok(Some(at)) => (Some(at.is_on_disk()), Some(at.is_on_tape())),
            // A storage without a tape system has everything on disk.
            Ok(None) => (Some(true), Some(false)),
            Err(_) => (None, None),
        };
        // Reading it would stage it from tape.
        let readable = on_disk == Some(true);
        let checksum = match stat.checksum.clone() {
            None if readable => self.told_or_read(place, &stat, algorithm).await.ok(),
            told => told,
        };
        Ok(Some(Standing { size: stat.size, checksum, on_disk, on_tape }))
    }

    /// Where a file of a storage with a tape system lies; none where there is no such system.
    pub async fn lies(&self, end: &End) -> Result<Option<Locality>, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        let place = Resource { url: &url, credential: &end.credential };
        self.locality(place).await.map_err(|failure| failure.fault())
    }

    /// Deletes a file, or a collection, which most servers do with all that is in it; says whether there was
    /// one.
    pub async fn remove(&self, end: &End) -> Result<bool, Fault> {
        let url = RemoteUrl::parse(&end.url)?;
        let place = Resource { url: &url, credential: &end.credential };
        self.delete(place, None).await.map_err(|failure| failure.fault())
    }

    /// Gives a file another name of the same storage. Without `overwrite`, a file that has the name stays.
    pub async fn rename(&self, end: &End, to: &str, overwrite: bool) -> Result<(), Fault> {
        let (url, to) = (RemoteUrl::parse(&end.url)?, RemoteUrl::parse(to)?);
        not_of_s3(&url, "renamed")?;
        if url.origin() != to.origin() {
            let detail = format!("{url} and {to} are on two storages");
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        let place = Resource { url: &url, credential: &end.credential };
        match self.move_to(place, &to, overwrite).await.map_err(|failure| failure.fault())? {
            RenameOutcome::Done => Ok(()),
            RenameOutcome::Exists => {
                Err(Fault::new(FaultCode::NameClash, format!("{to} exists")).blaming(Blame::Target))
            }
        }
    }
}

fn not_of_s3(url: &RemoteUrl, done: &str) -> Result<(), Fault> {
    if url.is_s3() {
        let detail = format!(
            "{url}: on a storage that speaks S3, files are read, written and deleted; nothing is {done}"
        );
        return Err(Fault::new(FaultCode::BadRequest, detail));
    }
    Ok(())
}

fn roots(trust: &Trust) -> Result<RootCertStore, Fault> {
    let read = |path: &std::path::Path| {
        std::fs::read_to_string(path).map_err(|error| {
            Fault::new(FaultCode::BadRequest, format!("authorities of storages: {}: {error}", path.display()))
                .with_source(error)
        })
    };
    let texts = match trust {
        Trust::Pem(pem) => vec![pem.clone()],
        Trust::Files(files) => files.iter().map(|file| read(file)).collect::<Result<_, _>>()?,
        Trust::System => {
            let found = SYSTEM_AUTHORITIES.iter().map(std::path::Path::new).find(|path| path.is_file());
            found.map(read).transpose()?.into_iter().collect()
        }
    };
    let mut roots = RootCertStore::empty();
    for text in texts {
        // Bundles of systems hold some certificates that are not understood: those are left out, as
        // everywhere.
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok);
        roots.add_parsable_certificates(certificates);
    }
    if roots.is_empty() {
        let detail = "no certificate of an authority was found, so no storage can be believed";
        return Err(Fault::new(FaultCode::BadRequest, detail));
    }
    Ok(roots)
}

/// A set whose members expire (TTL cache).
#[derive(Default)]
pub(crate) struct RecentSet(Mutex<HashMap<String, Instant>>);

const RECENT_TTL: Duration = Duration::from_secs(60);
const RECENT_MAX: usize = 20_000;

impl RecentSet {
    pub(crate) fn contains(&self, what: &str) -> bool {
        let seen = self.0.lock();
        seen.get(what).is_some_and(|since| since.elapsed() < RECENT_TTL)
    }

    pub(crate) fn add(&self, what: String) {
        let mut seen = self.0.lock();
        if seen.len() >= RECENT_MAX {
            seen.clear();
        }
        seen.insert(what, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cancel, CopyOrder};

    fn movable<T: Send>(_: &T) {}

    /// Whoever copies does so in tasks.
    #[test]
    fn copies_can_go_from_thread_to_thread() {
        let copying = |remote: &'static Remote, order: &'static CopyOrder, cancel: &'static Cancel| {
            let future = remote.copy(order, &|_| {}, cancel);
            movable(&future);
        };
        let _ = copying;
    }
}
