//! Fetches files from one source: hands them to the engine, retries transient faults with backoff, and
//! reports how each file ended.
//!
//! It owns no thread: the caller passes the engine's events to it and calls it when
//! [`FetchJob::next_retry_at`] is due.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_engine::{AttemptOutcome, SourceShare};
use longhaul_model::fault::retry_delay;
use longhaul_model::{AttemptId, Blame, Fault, FaultCode, Lfn, Retry, StorageName, Tree, Verification};

use crate::rename_on_commit::{Destination, MappedStorage};
use crate::site::{FetchItem, Site, Source};

/// Network faults are final once no byte has arrived for this long. Long enough for a server to be restarted.
const NETWORK_STALL_MAX: Duration = Duration::from_secs(120);
/// How often a name is tried again that another copy of the same file holds, such as that of a client that
/// reconnected before its first try was given up.
const NAME_BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Half an hour of such retries; after that the file fails as busy.
const NAME_BUSY_RETRIES_MAX: u32 = 3_600;
/// A submission is split into about this many batches, within the bounds below.
const BATCHES_PER_SUBMIT: usize = 16;
const BATCH_FILES_MIN: usize = 16;
const BATCH_FILES_MAX: usize = 256;
/// Retries of one file for faults that are not the network's.
const TRIES_PER_FILE_MAX: u32 = 5;

/// A file to fetch, and what its tries have brought so far.
#[derive(Clone, Debug)]
pub(crate) struct FileFetch {
    /// Its name in the source's export.
    pub(crate) name: Lfn,
    pub(crate) size: u64,
    pub(crate) destination: Destination,
    pub(crate) tries: u32,
    /// Payload bytes of all tries; `resent` is the part that was sent more than once.
    pub(crate) moved: u64,
    pub(crate) resent: u64,
    /// An attempt that was already running, of an earlier connection, has brought the file.
    pub(crate) done_by_other: bool,
    /// How often its name was taken by another running fetch.
    pub(crate) name_retries: u32,
    /// Expected digest of each chunk.
    pub(crate) tree: Option<Arc<Tree>>,
    /// What each source contributed over all tries.
    pub(crate) shares: Vec<SourceShare>,
}

impl FileFetch {
    /// Bytes of a complete file that were present before its first try.
    pub(crate) fn resumed(&self) -> u64 {
        self.size.saturating_sub(self.moved.saturating_sub(self.resent))
    }

    pub(crate) fn new(name: Lfn, size: u64, spot: Destination) -> FileFetch {
        FileFetch {
            name,
            size,
            destination: spot,
            tries: 0,
            moved: 0,
            resent: 0,
            done_by_other: false,
            name_retries: 0,
            tree: None,
            shares: Vec::new(),
        }
    }

    /// Records a fault of one of its sources.
    pub(crate) fn add_source_fault(&mut self, source: usize, fault: Fault) {
        let mut shares = vec![SourceShare::default(); source + 1];
        shares[source].excluded = Some(fault);
        self.add_shares(shares);
    }

    fn add_shares(&mut self, shares: Vec<SourceShare>) {
        if self.shares.len() < shares.len() {
            self.shares.resize_with(shares.len(), SourceShare::default);
        }
        for (known, new) in self.shares.iter_mut().zip(shares) {
            known.bytes += new.bytes;
            known.wrong.extend(new.wrong);
            known.excluded = new.excluded.or(known.excluded.take());
        }
    }
}

/// A file that has ended, with its result.
#[derive(Debug)]
pub(crate) struct FetchResult {
    pub(crate) file: FileFetch,
    pub(crate) result: Result<(), Fault>,
}

enum Deferred {
    /// Retry after a fault; its name stays reserved.
    Retry(FileFetch),
    /// Another running fetch holds its name.
    NameBusy(FileFetch),
}

pub(crate) struct FetchJob<'a> {
    site: &'a Site,
    storage: Arc<MappedStorage>,
    job: u64,
    source: Source,
    target: StorageName,
    verification: Verification,
    running: HashMap<AttemptId, FileFetch>,
    deferred: BTreeMap<(Instant, AttemptId), Deferred>,
    last_success: Instant,
    /// No more retries.
    draining: bool,
    /// The engine is ending too and might still commit a file, so reservations must stay.
    abandoned: bool,
}

impl<'a> FetchJob<'a> {
    /// `job` was opened at the site by the caller, which passes its events to [`FetchJob::handle_finished`].
    pub(crate) fn new(
        site: &'a Site,
        job: u64,
        landing: Arc<MappedStorage>,
        source: Source,
        target: StorageName,
        verification: Verification,
    ) -> Self {
        FetchJob {
            site,
            storage: landing,
            job,
            source,
            target,
            verification,
            running: HashMap::new(),
            deferred: BTreeMap::new(),
            last_success: Instant::now(),
            draining: false,
            abandoned: false,
        }
    }

    /// Stops retrying: from now on faults are final, and deferred files are dropped.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        let waiting = std::mem::take(&mut self.deferred);
        waiting.values().for_each(|later| self.release_name(later));
    }

    fn release_name(&self, later: &Deferred) {
        if let Deferred::Retry(wanted) = later {
            self.storage.release(wanted.name.as_str());
        }
    }

    /// Leaves reservations in place, since the process is about to end.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.deferred.len()
    }

    /// Bytes written so far of files that are running.
    pub(crate) fn running_bytes(&self) -> u64 {
        self.site.engine().snapshot().running.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Payload bytes received over the network.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.site.engine().snapshot().bytes_in
    }

    /// Starts fetching these files. Returns those that ended at once.
    pub(crate) fn start(&mut self, files: Vec<FileFetch>) -> Vec<FetchResult> {
        let mut ended = Vec::new();
        let mut begun = Vec::with_capacity(files.len());
        if self.len() == 0 {
            // The stall limit counts the source's silence, not our own idle time.
            self.last_success = Instant::now();
        }
        for mut file in files {
            if !self.storage.reserve(file.name.as_str(), file.destination.clone()) {
                file.name_retries += 1;
                if file.name_retries > NAME_BUSY_RETRIES_MAX {
                    let detail = "another file is being written to this name";
                    ended.push(FetchResult { file, result: Err(Fault::new(FaultCode::Busy, detail)) });
                } else {
                    let at = (Instant::now() + NAME_BUSY_RETRY_INTERVAL, self.site.new_attempt());
                    self.deferred.insert(at, Deferred::NameBusy(file));
                }
                continue;
            }
            // The previous holder of the name may have committed this very file.
            let name = file.name.as_str();
            if file.name_retries > 0 && self.storage.is_committed(name, &file.destination, file.size) {
                file.done_by_other = true;
                ended.push(self.finish(file, Ok(())));
            } else {
                begun.push(file);
            }
        }
        self.submit(begun);
        ended
    }

    fn submit(&mut self, files: Vec<FileFetch>) {
        if files.is_empty() {
            return;
        }
        let mut fetches = Vec::with_capacity(files.len());
        for wanted in files {
            let attempt = self.site.new_attempt();
            let (name, tree) = (wanted.name.clone(), wanted.tree.clone());
            fetches.push(FetchItem { attempt, name, size: wanted.size, tree });
            self.running.insert(attempt, wanted);
        }
        // Each batch has a permit that the source must receive before the batch's files are requested;
        // several short permits travel in parallel over as many streams.
        let many = (fetches.len() / BATCHES_PER_SUBMIT).clamp(BATCH_FILES_MIN, BATCH_FILES_MAX);
        for batch in fetches.chunks(many) {
            self.site.fetch(self.job, &self.source, &self.target, self.verification, batch);
        }
    }

    /// Handles finished attempts: returns files that have ended and defers those worth another try.
    pub(crate) fn handle_finished(&mut self, finished: Vec<AttemptOutcome>) -> Vec<FetchResult> {
        let mut ended = Vec::with_capacity(finished.len());
        for one in finished {
            let Some(mut wanted) = self.running.remove(&one.attempt) else { continue };
            wanted.moved += one.bytes_moved;
            wanted.resent += one.bytes_resent;
            wanted.add_shares(one.shares);
            if one.bytes_moved > 0 || one.result.is_ok() {
                self.last_success = Instant::now();
            }
            match one.result {
                Ok(_) => ended.push(self.finish(wanted, Ok(()))),
                Err(fault) if self.should_retry(&fault, wanted.tries) => {
                    wanted.tries += 1;
                    let jitter = f64::from(one.attempt.0 as u32 % 100) / 100.0;
                    let at = Instant::now() + retry_delay(fault.retry, wanted.tries, jitter);
                    self.deferred.insert((at, one.attempt), Deferred::Retry(wanted));
                }
                Err(fault) => ended.push(self.finish(wanted, Err(fault))),
            }
        }
        ended
    }

    fn should_retry(&self, fault: &Fault, tries: u32) -> bool {
        if self.draining {
            return false;
        }
        match (fault.retry, fault.blame) {
            (Retry::Now, Blame::Network) => self.last_success.elapsed() < NETWORK_STALL_MAX,
            (Retry::Now, _) => tries < TRIES_PER_FILE_MAX,
            (Retry::Later | Retry::Never, _) => false,
        }
    }

    fn finish(&self, wanted: FileFetch, result: Result<(), Fault>) -> FetchResult {
        match &result {
            Ok(()) => self.storage.mark_committed(wanted.name.as_str()),
            Err(_) => self.storage.release(wanted.name.as_str()),
        }
        FetchResult { file: wanted, result }
    }

    /// When to call [`FetchJob::retry_due`] next.
    pub(crate) fn next_retry_at(&self) -> Option<Instant> {
        self.deferred.keys().next().map(|(at, _)| *at)
    }

    /// Restarts files whose retry delay is over.
    pub(crate) fn retry_due(&mut self, now: Instant) -> Vec<FetchResult> {
        let (mut again, mut named) = (Vec::new(), Vec::new());
        while let Some(first) = self.deferred.first_entry() {
            if first.key().0 > now {
                break;
            }
            match first.remove() {
                Deferred::Retry(wanted) => again.push(wanted),
                Deferred::NameBusy(wanted) => named.push(wanted),
            }
        }
        self.submit(again);
        if named.is_empty() { Vec::new() } else { self.start(named) }
    }

    /// How many files wait for another try.
    pub(crate) fn deferred_files(&self) -> usize {
        self.deferred.len()
    }
}

impl Drop for FetchJob<'_> {
    fn drop(&mut self) {
        self.site.close_job(self.job);
        if self.abandoned {
            return;
        }
        self.running.values().for_each(|wanted| self.storage.release(wanted.name.as_str()));
        self.deferred.values().for_each(|later| self.release_name(later));
    }
}
