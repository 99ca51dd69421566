//! Handles each request of a client.

use std::sync::Arc;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AgentId, Algorithm, DigestSet, Fault, FaultCode, Pfn, TrafficClass, Verification};
use longhaul_storage::digest_file;
use parking_lot::Mutex;

use super::listing::Listing;
use super::receive_job::ReceiveJob;
use super::{ClientState, Inner, trees};
use crate::protocol::{
    DigestAnswer, Entry, Kind, ListRequest, Page, RelativePath, Reply, Request, VERSION_MAX, VERSION_MIN,
    Welcome,
};
use crate::remote::PROGRAM;
use crate::rename_on_commit::{MappedStorage, refuse_work_directory};
use crate::site::{EXPORT, Source, storage_name};
use crate::target_index::DIGEST_READ_BYTES;

/// Open listings of one client.
const LISTINGS_PER_CLIENT_MAX: usize = 64;
/// Receive jobs of one client.
const JOBS_PER_CLIENT_MAX: usize = 8;

impl Inner {
    pub(super) fn reply(&self, peer: AgentId, request: Request) -> Result<Reply, Fault> {
        if !matches!(request, Request::Hello { .. })
            && !self.clients.lock().get(&peer).is_some_and(|known| known.welcomed)
        {
            return Err(Fault::new(FaultCode::ProtocolError, "the first request must be hello"));
        }
        match request {
            Request::Hello { version_min, version_max, program, looks_at, lists } => {
                let mut welcome = self.hello(peer, (version_min, version_max), &program, &looks_at)?;
                if let Some(of) = lists.filter(|of| self.is_directory(&of.path)) {
                    // If it fails, the client requests it separately and gets the fault.
                    welcome.page = self.list(peer, 0, 0, &of).ok();
                }
                Ok(Reply::Hello(welcome))
            }
            Request::List { listing, of, page } => self.list(peer, listing, page, &of).map(Reply::Page),
            Request::Stat { paths } => Ok(Reply::Stats { found: self.describe(&paths)? }),
            Request::Digests { paths } => {
                let mut buffer = Vec::new();
                let found =
                    paths.iter().map(|path| DigestAnswer::from_result(self.digest(path, &mut buffer)));
                Ok(Reply::Digests { found: found.collect() })
            }
            Request::Trees { parts } => {
                let mut buffer = vec![0; CHUNK_BYTES as usize];
                let found = parts.iter().map(|part| trees::answer(&*self.export, part, &mut buffer));
                Ok(Reply::Trees { found: found.collect() })
            }
            Request::MakeDirectories { paths } => {
                let landing = self.writable_storage()?;
                for path in &paths {
                    landing.make_directory(path.as_str(), None)?;
                }
                Ok(Reply::Done)
            }
            Request::Receive { job, verification, class } => self.receive(peer, job, verification, class),
            Request::ReceiveFiles { job, files } => {
                for file in &files {
                    refuse_work_directory(file.path.as_str())?;
                }
                self.receiving(peer, job)?.add_files(files);
                Ok(Reply::Done)
            }
            Request::ReceivePoll { job, wait_ms } => {
                Ok(Reply::Received(self.receiving(peer, job)?.poll(wait_ms)))
            }
            Request::ReceiveEnd { job } => {
                let ended = self.clients.lock().get_mut(&peer).and_then(|known| known.receiving.remove(&job));
                if let Some(ended) = ended {
                    ended.drain();
                }
                Ok(Reply::Done)
            }
            Request::Fetch { order } => {
                self.writable_storage()?;
                // Promise 9: this follows no link, so the path that the copy opens is beneath the root.
                self.index.existing(order.target.as_str())?;
                self.orders.begin(peer, &self.root, *order).map(Reply::Fetched)
            }
            Request::FetchPoll { order, seen, told, wait_ms } => {
                self.orders.poll(order, seen, told, wait_ms).map(Reply::Fetched)
            }
            Request::FetchCancel { order } => {
                self.orders.cancel(order)?;
                Ok(Reply::Done)
            }
            Request::Space { .. } => {
                let space = self.export.space()?;
                Ok(Reply::Space { total_bytes: space.total_bytes, free_bytes: space.free_bytes })
            }
        }
    }

    fn hello(
        &self,
        peer: AgentId,
        (min, max): (u16, u16),
        program: &str,
        looks_at: &[RelativePath],
    ) -> Result<Welcome, Fault> {
        if min > VERSION_MAX || max < VERSION_MIN {
            let detail = format!(
                "the client supports versions {min} to {max}, this server {VERSION_MIN} to {VERSION_MAX}"
            );
            return Err(Fault::new(FaultCode::VersionMismatch, detail));
        }
        let found = self.describe(looks_at)?;
        let program = longhaul_model::units::printable(program);
        tracing::info!(client = %peer, program, "client connected");
        self.clients.lock().entry(peer).or_default().welcomed = true;
        Ok(Welcome {
            version: max.min(VERSION_MAX),
            program: PROGRAM.to_owned(),
            agent: self.agent,
            writable: self.writable,
            found,
            page: None,
        })
    }

    fn is_directory(&self, path: &RelativePath) -> bool {
        let found = self.index.describe(path);
        found.is_ok_and(|found| found.is_some_and(|entry| entry.kind == Kind::Directory))
    }

    fn with_client<T>(
        &self,
        peer: AgentId,
        with: impl FnOnce(&mut ClientState) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        with(self.clients.lock().entry(peer).or_default())
    }

    fn list(&self, peer: AgentId, number: u32, page: u32, of: &ListRequest) -> Result<Page, Fault> {
        let known = self.with_client(peer, |known| {
            if page == 0 {
                known.listings.remove(&number);
            }
            if known.listings.len() >= LISTINGS_PER_CLIENT_MAX && !known.listings.contains_key(&number) {
                return Err(Fault::new(
                    FaultCode::Busy,
                    format!("{LISTINGS_PER_CLIENT_MAX} listings are open already"),
                ));
            }
            Ok(known.listings.get(&number).cloned())
        })?;
        let listing = match known {
            Some(listing) => listing,
            None => {
                let fresh = Arc::new(Mutex::new(Listing::open(&self.root, of)?));
                self.with_client(peer, |known| Ok(known.listings.insert(number, fresh.clone())))?;
                fresh
            }
        };
        let page = listing.lock().page(page)?;
        Ok(page)
    }

    fn describe(&self, paths: &[RelativePath]) -> Result<Vec<Option<Entry>>, Fault> {
        paths
            .iter()
            .map(|path| {
                refuse_work_directory(path.as_str())?;
                self.index.describe(path)
            })
            .collect()
    }

    fn digest(&self, path: &RelativePath, buffer: &mut Vec<u8>) -> Result<DigestSet, Fault> {
        let at = Pfn::new(storage_name(EXPORT), path.as_str())?;
        buffer.resize(DIGEST_READ_BYTES, 0);
        Ok(digest_file(&*self.export, &at, [Algorithm::Crc32c], buffer)?.0)
    }

    /// The storage for clients' files, if the server is writable.
    fn writable_storage(&self) -> Result<Arc<MappedStorage>, Fault> {
        self.storage.clone().ok_or_else(|| {
            let detail = "this server is read-only: start it with --write to accept files";
            Fault::new(FaultCode::NotAllowed, detail)
        })
    }

    fn receive(
        &self,
        peer: AgentId,
        job: u32,
        verification: Verification,
        class: TrafficClass,
    ) -> Result<Reply, Fault> {
        let landing = self.writable_storage()?;
        let site = self.site.get().and_then(std::sync::Weak::upgrade);
        let site = site.ok_or_else(|| Fault::new(FaultCode::Busy, "the server is starting or stopping"))?;
        let source = Source { agent: peer, addresses: Vec::new(), class, guest: None, replicas: Vec::new() };
        self.with_client(peer, |known| {
            // The client died and reconnected before we noticed: its old job may finish by itself.
            if let Some(old) = known.receiving.remove(&job) {
                old.drain();
            }
            if known.receiving.len() >= JOBS_PER_CLIENT_MAX {
                return Err(Fault::new(
                    FaultCode::Busy,
                    format!("{JOBS_PER_CLIENT_MAX} jobs are running already"),
                ));
            }
            let receiving = ReceiveJob::begin(site, landing, source, verification)?;
            known.receiving.insert(job, receiving);
            Ok(Reply::Done)
        })
    }

    fn receiving(&self, peer: AgentId, job: u32) -> Result<Arc<ReceiveJob>, Fault> {
        let known = self.clients.lock().get(&peer).and_then(|known| known.receiving.get(&job).cloned());
        // It belonged to an earlier connection of this client.
        known.ok_or_else(|| Fault::new(FaultCode::ConnectionLost, format!("there is no job {job}")))
    }
}
