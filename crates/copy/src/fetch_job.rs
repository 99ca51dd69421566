//! Files of one source on their way: gives them to the engine, tries again what failed for a passing reason,
//! and tells how each ended.
//!
//! It holds no thread: whoever owns it feeds it with what the engine tells, and asks when it wants to be
//! woken.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_engine::{Finished, Share};
use longhaul_model::fault::retry_delay;
use longhaul_model::{AttemptId, Blame, Fault, FaultCode, Lfn, Retry, StorageName, Tree, Verification};

use crate::rename_on_commit::{Destination, MappedStorage};
use crate::site::{FetchItem, Site, Source};

/// Nothing at all has come for so long: what fails from then on has failed. Long enough for a server to be
/// restarted.
const NETWORK_STALL_MAX: Duration = Duration::from_secs(120);
/// Another copy of the same file is under way: of a client that came back before its first try was given up,
/// say.
const NAME_BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Half an hour.
const NAME_BUSY_RETRIES_MAX: u32 = 3_600;
/// What is given to the engine at once goes in about so many batches, of so many files each.
const BATCHES_PER_SUBMIT: usize = 16;
const BATCH_FILES_MIN: usize = 16;
const BATCH_FILES_MAX: usize = 256;
/// Tries of one file, for reasons that are not the network's.
const TRIES_PER_FILE_MAX: u32 = 5;

/// A file that shall land.
#[derive(Clone, Debug)]
pub(crate) struct FileFetch {
    /// As the source's export calls it.
    pub(crate) name: Lfn,
    pub(crate) size: u64,
    pub(crate) destination: Destination,
    pub(crate) tries: u32,
    /// Payload of all tries, and of it what was sent again.
    pub(crate) moved: u64,
    pub(crate) resent: u64,
    /// An attempt that was under way already has brought it.
    pub(crate) done_by_other: bool,
    /// How often it was found that a file of this name is under way already.
    pub(crate) name_retries: u32,
    /// What each chunk of it has to be.
    pub(crate) tree: Option<Arc<Tree>>,
    /// What each source of it brought in all tries.
    pub(crate) shares: Vec<Share>,
}

impl FileFetch {
    /// What of a complete file was there before its first try.
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

    /// Something is wrong with one of its sources.
    pub(crate) fn add_source_fault(&mut self, source: usize, fault: Fault) {
        let mut shares = vec![Share::default(); source + 1];
        shares[source].left_out = Some(fault);
        self.add_shares(shares);
    }

    fn add_shares(&mut self, shares: Vec<Share>) {
        if self.shares.len() < shares.len() {
            self.shares.resize_with(shares.len(), Share::default);
        }
        for (known, new) in self.shares.iter_mut().zip(shares) {
            known.bytes += new.bytes;
            known.wrong.extend(new.wrong);
            known.left_out = new.left_out.or(known.left_out.take());
        }
    }
}

/// How a file ended.
#[derive(Debug)]
pub(crate) struct FetchResult {
    pub(crate) file: FileFetch,
    pub(crate) result: Result<(), Fault>,
}

enum Deferred {
    /// Its spot is taken.
    Retry(FileFetch),
    /// Its name is another's at the moment.
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
    /// Nothing is tried again.
    draining: bool,
    /// The engine ends as well, and might still commit a file whose spot it needs.
    abandoned: bool,
}

impl<'a> FetchJob<'a> {
    /// `job` was opened at the site by whoever hands its events on to [`Fetching::told`].
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

    /// From here on what fails has failed, and what waits for another try is given up.
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

    /// The process is about to end.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.deferred.len()
    }

    /// Bytes that are written of files under way.
    pub(crate) fn running_bytes(&self) -> u64 {
        self.site.engine().snapshot().running.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Payload that has come over the network.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.site.engine().snapshot().bytes_in
    }

    /// Begins with these. Some may be at their end at once.
    pub(crate) fn start(&mut self, files: Vec<FileFetch>) -> Vec<FetchResult> {
        let mut ended = Vec::new();
        let mut begun = Vec::with_capacity(files.len());
        if self.len() == 0 {
            // Patience is for silence of the source, not for our own.
            self.last_success = Instant::now();
        }
        for mut file in files {
            if !self.storage.reserve(file.name.as_str(), file.destination.clone()) {
                file.name_retries += 1;
                if file.name_retries > NAME_BUSY_RETRIES_MAX {
                    let detail = "another file is on its way to this name";
                    ended.push(FetchResult { file, result: Err(Fault::new(FaultCode::Busy, detail)) });
                } else {
                    let at = (Instant::now() + NAME_BUSY_RETRY_INTERVAL, self.site.new_attempt());
                    self.deferred.insert(at, Deferred::NameBusy(file));
                }
                continue;
            }
            // Whoever had the name may have put the very file there.
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
        // Each batch has a permit, and the source has to know it before its files are asked for: several
        // short ones are on their way over as many streams at once.
        let many = (fetches.len() / BATCHES_PER_SUBMIT).clamp(BATCH_FILES_MIN, BATCH_FILES_MAX);
        for batch in fetches.chunks(many) {
            self.site.fetch(self.job, &self.source, &self.target, self.verification, batch);
        }
    }

    /// What the engine told: ends, and after a passing fault another try.
    pub(crate) fn handle_finished(&mut self, finished: Vec<Finished>) -> Vec<FetchResult> {
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

    /// When to call [`Fetching::wake`] again.
    pub(crate) fn next_retry_at(&self) -> Option<Instant> {
        self.deferred.keys().next().map(|(at, _)| *at)
    }

    /// Begins again with what has waited long enough.
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

    /// Files that wait for another try, and how often they were tried.
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
