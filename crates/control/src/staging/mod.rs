//! Staging for subscriptions: files whose only usable replicas are on tape are brought to disk first, in bulk
//! and by block, by the agents of their tape-backed storages.
//!
//! The scheduler never sees a replica on tape as a source before it is on disk and pinned: the answer to an
//! expansion leaves such files out ([`Staging::keep_readable`]), and what is staged is expanded again. A
//! replica that just arrived at a tape-backed storage is read at once; where it has left the disk already,
//! the attempt fails with E2005 and the file is staged ([`Staging::note_not_on_disk`]).
//!
//! Everything here is kept in memory. After a restart of the service the same files are wanted again; what
//! the tape systems did meanwhile stays on disk for its pins, so that nothing is brought twice.
//!
//! Start with `queue`, a state machine without clock; `commit_loop::staging` drives it.

pub mod config;
pub(crate) mod queue;

use std::collections::{BTreeMap, BTreeSet};

use longhaul_catalog::MissingFile;
use longhaul_model::{BlockId, FileId, Lfn, StageId, StorageId, Timestamp};
use parking_lot::Mutex;

use config::StagingConfig;
use queue::{NotWanted, Releases, StageBatch, StagedFile, StagingQueue, TapeFile};

pub use queue::{FileSum, StageFailure, StagingStatus};

/// The queues of all tape-backed storages.
pub struct Staging {
    config: StagingConfig,
    queues: Mutex<BTreeMap<StorageId, StagingQueue>>,
}

/// Where the files of one answer are wanted.
pub(crate) struct Wanted {
    pub(crate) block: BlockId,
    pub(crate) target: StorageId,
}

/// What to tell the agent of a storage, and the scheduler.
#[derive(Debug, Default)]
pub(crate) struct StorageNews {
    pub(crate) orders: Vec<StageBatch>,
    pub(crate) releases: Releases,
    pub(crate) unpinned: Vec<FileId>,
}

impl Staging {
    pub fn new(config: StagingConfig) -> Staging {
        Staging { config, queues: Mutex::default() }
    }

    /// Leaves out of an answer what can be read only after it was staged, and has that staged. Tapes are not
    /// asked for a file that a connected storage has on disk, nor for an empty one: tape systems keep none.
    pub(crate) fn keep_readable(
        &self,
        wanted: &Wanted,
        files: &mut Vec<MissingFile>,
        is_tape: impl Fn(&StorageId) -> bool,
        is_connected: impl Fn(&StorageId) -> bool,
        now: Timestamp,
    ) {
        if !files.iter().any(|file| file.sources.iter().any(&is_tape)) {
            return;
        }
        let mut queues = self.queues.lock();
        files.retain_mut(|file| {
            let tapes: Vec<StorageId> = file.sources.iter().copied().filter(&is_tape).collect();
            if tapes.is_empty() || file.size == 0 {
                return true;
            }
            file.sources.retain(|source| !is_tape(source));
            if file.sources.iter().any(&is_connected) {
                return true;
            }
            // The one that has it on disk or is at it already; else one whose agent is there.
            let has = |tape: &StorageId| queues.get(tape).is_some_and(|queue| queue.has(file.file));
            let best = tapes.iter().max_by_key(|tape| (has(tape), is_connected(tape)));
            let Some(&tape) = best else { return true };
            let wish =
                TapeFile { file: file.file, block: wanted.block, lfn: file.lfn.clone(), size: file.size };
            if queues.entry(tape).or_default().want(wish, wanted.target, now) {
                file.sources.push(tape);
            }
            !file.sources.is_empty()
        });
    }

    /// A transfer found that the file is on tape only.
    pub(crate) fn note_not_on_disk(
        &self,
        storage: StorageId,
        file: TapeFile,
        target: StorageId,
        now: Timestamp,
    ) {
        self.queues.lock().entry(storage).or_default().not_on_disk(file, target, now);
    }

    /// A target has a file: returns what the agents of tape-backed storages need not keep for it.
    pub(crate) fn note_arrived(&self, file: FileId, target: StorageId) -> Vec<(StorageId, StageId, Lfn)> {
        let mut queues = self.queues.lock();
        let released = queues.iter_mut().filter_map(|(&storage, queue)| {
            let (order, lfn) = queue.arrived(file, target)?;
            Some((storage, order, lfn))
        });
        released.collect()
    }

    /// What an agent says of a file. `Err`: nobody wants it by this order.
    pub(crate) fn note_report(
        &self,
        storage: StorageId,
        order: StageId,
        lfn: &Lfn,
        why_not: Option<&str>,
        now: Timestamp,
    ) -> Result<Option<StagedFile>, NotWanted> {
        let limits = self.config.limits();
        let mut queues = self.queues.lock();
        queues.get_mut(&storage).ok_or(NotWanted)?.report(order, lfn, why_not, &limits, now)
    }

    /// The storages from which something is wanted.
    pub(crate) fn storages(&self) -> Vec<StorageId> {
        let queues = self.queues.lock();
        queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(&storage, _)| storage).collect()
    }

    /// What is due at a storage. Orders are given only while `has_agent`.
    pub(crate) fn step(
        &self,
        storage: StorageId,
        has_agent: bool,
        now: Timestamp,
        new_order: impl FnMut() -> StageId,
    ) -> StorageNews {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&storage) else { return StorageNews::default() };
        let expired = queue.expire(now);
        let orders =
            if has_agent { queue.take_orders(&self.config.limits(), now, new_order) } else { Vec::new() };
        StorageNews { orders, releases: expired.releases, unpinned: expired.unpinned }
    }

    /// The orders of a storage that go on.
    pub(crate) fn orders(&self, storage: StorageId) -> Vec<StageBatch> {
        self.queues.lock().get(&storage).map(StagingQueue::orders).unwrap_or_default()
    }

    /// The blocks that targets want from a storage.
    pub(crate) fn demands(&self, storage: StorageId) -> BTreeSet<(BlockId, StorageId)> {
        self.queues.lock().get(&storage).map(StagingQueue::demands).unwrap_or_default()
    }

    /// Nobody wants a block at a target any more: returns what need not be kept.
    pub(crate) fn demand_gone(&self, storage: StorageId, block: BlockId, target: StorageId) -> Releases {
        let mut queues = self.queues.lock();
        queues.get_mut(&storage).map(|queue| queue.demand_gone(block, target)).unwrap_or_default()
    }

    /// The storage was removed.
    pub(crate) fn forget_storage(&self, storage: StorageId) {
        self.queues.lock().remove(&storage);
    }

    /// What is wanted from a storage; none if nothing is.
    pub fn status(&self, storage: StorageId) -> Option<StagingStatus> {
        let queues = self.queues.lock();
        queues.get(&storage).filter(|queue| !queue.is_empty()).map(StagingQueue::status)
    }

    /// Whether a target waits for anything from tape.
    pub fn is_awaited_by(&self, target: StorageId) -> bool {
        self.queues.lock().values().any(|queue| queue.is_awaited_by(target))
    }

    /// What a target waits for of these blocks, by storage.
    pub fn awaited_by(
        &self,
        target: StorageId,
        blocks: &BTreeSet<BlockId>,
    ) -> BTreeMap<StorageId, StagingStatus> {
        let queues = self.queues.lock();
        let awaited = queues.iter().map(|(&storage, queue)| (storage, queue.awaited_by(target, blocks)));
        awaited.filter(|(_, status)| status.waiting.files + status.ordered.files > 0).collect()
    }

    pub(crate) fn pin_s(&self) -> u32 {
        self.config.pin_s
    }
}
