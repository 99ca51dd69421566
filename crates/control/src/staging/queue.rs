//! Queue of one tape-backed storage: the files that subscriptions want from tape, what is asked of the tape
//! system, and what is on disk for how long (a pin). Pure: time is an argument.
//!
//! ```text
//! Waiting ─(order)─► Ordered ─(on disk)─► Pinned ─(arrived at all targets)─► forgotten, released
//!    ▲                  │                   │
//!    └──(fails, hangs)──┴──(pin is over)────┘
//! ```
//!
//! Files are ordered in bulk and by block: a tape system mounts each cartridge once for all that it knows of.
//! What is ordered or pinned is bounded; how much of its disk a site gives to it, its agent knows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::fault::retry_delay;
use longhaul_model::{BlockId, FileId, Lfn, Retry, StageId, StorageId, Timestamp};

/// Files that one queue holds. Those beyond it are met again when their blocks are expanded again.
const FILES_MAX: usize = 100_000;
/// Files of one order.
pub(crate) const ORDER_FILES_MAX: usize = 1_000;
/// Orders are given when nothing further was wanted for this long: a dataset is one burst, however long it
/// takes to look up what is wanted of it.
pub(crate) const GATHER_TIME: Duration = Duration::from_secs(2);
/// Where more is wanted all the time, orders are given when a file is overdue by this.
const GATHER_TIME_MAX: Duration = Duration::from_secs(30);
/// Files that failed together are ordered together again: no jitter, which is the middle of its range.
const RETRY_JITTER: f64 = 0.5;

/// A file that is wanted from tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapeFile {
    pub(crate) file: FileId,
    pub(crate) block: BlockId,
    pub(crate) lfn: Lfn,
    pub(crate) size: u64,
}

/// What may be ordered or pinned at once, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagingLimits {
    pub(crate) files: u64,
    pub(crate) pin: Duration,
    /// An order without an answer for this long is given again.
    pub(crate) order_timeout: Duration,
}

/// Files to be brought to disk by one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StageBatch {
    pub(crate) order: StageId,
    pub(crate) lfns: Vec<Lfn>,
}

/// A file on disk, and the targets that want it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StagedFile {
    pub(crate) file: FileId,
    pub(crate) block: BlockId,
    pub(crate) targets: BTreeSet<StorageId>,
}

/// What a queue holds, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagingStatus {
    pub waiting: FileSum,
    pub ordered: FileSum,
    pub pinned: FileSum,
    /// Files that failed at least once and are not on disk.
    pub failing: u64,
    /// Since when the file waits that was ordered first and is not on disk.
    pub oldest_order: Option<Timestamp>,
    /// The last file that did not come, and why.
    pub last_failure: Option<StageFailure>,
}

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSum {
    pub files: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageFailure {
    pub lfn: Lfn,
    pub why: String,
    pub at: Timestamp,
}

#[derive(Debug)]
struct QueuedFile {
    block: BlockId,
    lfn: Lfn,
    size: u64,
    targets: BTreeSet<StorageId>,
    /// Orders that did not bring it.
    failures: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting { until: Timestamp },
    Ordered { order: StageId, at: Timestamp, until: Timestamp },
    Pinned { order: StageId, until: Timestamp },
}

/// What became of files whose time was over.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Expired {
    /// Files that can be read no longer.
    pub(crate) unpinned: Vec<FileId>,
    /// Files that need not be brought, or stay, by these orders.
    pub(crate) releases: Releases,
}

pub(crate) type Releases = BTreeMap<StageId, Vec<Lfn>>;

#[derive(Debug, Default)]
pub(crate) struct StagingQueue {
    files: BTreeMap<FileId, QueuedFile>,
    by_lfn: BTreeMap<Lfn, FileId>,
    /// Files by the end of their phase.
    ends: BTreeSet<(Timestamp, FileId)>,
    by_demand: BTreeSet<(BlockId, StorageId, FileId)>,
    waiting: FileSum,
    ordered: FileSum,
    pinned: FileSum,
    last_failure: Option<StageFailure>,
    last_wanted: Timestamp,
}

impl StagingQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(crate) fn has(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// A target wants a file. Returns whether it is on disk and can be read at once.
    pub(crate) fn want(&mut self, wanted: TapeFile, target: StorageId, now: Timestamp) -> bool {
        let TapeFile { file, block, lfn, size } = wanted;
        if let Some(known) = self.files.get_mut(&file) {
            if known.targets.insert(target) {
                self.by_demand.insert((block, target, file));
            }
            return matches!(known.phase, Phase::Pinned { .. });
        }
        if self.files.len() >= FILES_MAX {
            return false;
        }
        self.by_lfn.insert(lfn.clone(), file);
        self.by_demand.insert((block, target, file));
        self.last_wanted = now;
        let until = now + GATHER_TIME;
        let queued = QueuedFile {
            block,
            lfn,
            size,
            targets: BTreeSet::from([target]),
            failures: 0,
            phase: Phase::Waiting { until },
        };
        self.files.insert(file, queued);
        self.ends.insert((until, file));
        self.waiting.add(size);
        false
    }

    /// A reader did not find a file on disk, whatever was believed.
    pub(crate) fn not_on_disk(&mut self, wanted: TapeFile, target: StorageId, now: Timestamp) {
        let (file, until) = (wanted.file, now + GATHER_TIME);
        if self.want(wanted, target, now) {
            self.set_phase(file, Phase::Waiting { until });
        }
    }

    /// The next orders, within the limits; `new_order` gives their numbers. None while more is being wanted.
    pub(crate) fn take_orders(
        &mut self,
        limits: &StagingLimits,
        now: Timestamp,
        mut new_order: impl FnMut() -> StageId,
    ) -> Vec<StageBatch> {
        let is_waiting = |file: &FileId| self.phase(*file).is_some_and(|phase| phase.is_waiting());
        let first = self.ends.iter().find(|(_, file)| is_waiting(file));
        let is_quiet = now.since(self.last_wanted) >= GATHER_TIME;
        let is_due = |due: Timestamp| due <= now && is_quiet || due + GATHER_TIME_MAX <= now;
        if first.is_none_or(|(due, _)| !is_due(*due)) {
            return Vec::new();
        }
        let due = self.ends.range(..=(now + GATHER_TIME, FileId(u64::MAX)));
        let mut due: Vec<FileId> = due.map(|(_, file)| *file).filter(is_waiting).collect();
        due.sort_by_key(|file| (self.files.get(file).map(|queued| queued.block), *file));
        let mut batches: Vec<StageBatch> = Vec::new();
        let until = now + limits.order_timeout;
        for file in due {
            let Some(lfn) = self.files.get(&file).map(|queued| queued.lfn.clone()) else { continue };
            if self.ordered.files + self.pinned.files >= limits.files {
                break;
            }
            match batches.last_mut() {
                Some(batch) if batch.lfns.len() < ORDER_FILES_MAX => batch.lfns.push(lfn),
                _ => batches.push(StageBatch { order: new_order(), lfns: vec![lfn] }),
            }
            if let Some(batch) = batches.last() {
                self.set_phase(file, Phase::Ordered { order: batch.order, at: now, until });
            }
        }
        batches
    }

    /// The orders that go on: what an agent is to know when its session begins.
    pub(crate) fn orders(&self) -> Vec<StageBatch> {
        let mut orders: Releases = BTreeMap::new();
        for queued in self.files.values() {
            if let Phase::Ordered { order, .. } | Phase::Pinned { order, .. } = queued.phase {
                orders.entry(order).or_default().push(queued.lfn.clone());
            }
        }
        orders.into_iter().map(|(order, lfns)| StageBatch { order, lfns }).collect()
    }

    /// The agent says that a file of an order is on disk, or why it does not come. Returns the file if it can
    /// be read now and could not before. `Err`: nobody wants it by this order.
    pub(crate) fn report(
        &mut self,
        order: StageId,
        lfn: &Lfn,
        why_not: Option<&str>,
        limits: &StagingLimits,
        now: Timestamp,
    ) -> Result<Option<StagedFile>, NotWanted> {
        let file = *self.by_lfn.get(lfn).ok_or(NotWanted)?;
        let queued = self.files.get_mut(&file).ok_or(NotWanted)?;
        match (queued.phase, why_not) {
            (Phase::Ordered { order: ordered, .. }, None) if ordered == order => {
                queued.failures = 0;
                let staged = StagedFile { file, block: queued.block, targets: queued.targets.clone() };
                self.set_phase(file, Phase::Pinned { order, until: now + limits.pin });
                Ok(Some(staged))
            }
            (Phase::Ordered { order: ordered, .. }, Some(why)) if ordered == order => {
                let why = why.to_owned();
                self.last_failure = Some(StageFailure { lfn: lfn.clone(), why, at: now });
                self.retry(file, now);
                Ok(None)
            }
            (Phase::Pinned { order: pinned, .. }, None) if pinned == order => Ok(None),
            _ => Err(NotWanted),
        }
    }

    /// A target has the file. Returns the order to be released, if nobody else wants it from here.
    pub(crate) fn arrived(&mut self, file: FileId, target: StorageId) -> Option<(StageId, Lfn)> {
        let queued = self.files.get_mut(&file)?;
        queued.targets.remove(&target);
        let block = queued.block;
        let is_last = queued.targets.is_empty();
        self.by_demand.remove(&(block, target, file));
        if is_last { self.forget(file) } else { None }
    }

    /// Nobody wants a block at a target any more.
    pub(crate) fn demand_gone(&mut self, block: BlockId, target: StorageId) -> Releases {
        let range = (block, target, FileId(0))..=(block, target, FileId(u64::MAX));
        let files: Vec<FileId> = self.by_demand.range(range).map(|(_, _, file)| *file).collect();
        let mut releases = Releases::new();
        for (order, lfn) in files.into_iter().filter_map(|file| self.arrived(file, target)) {
            releases.entry(order).or_default().push(lfn);
        }
        releases
    }

    /// The blocks that targets want from here.
    pub(crate) fn demands(&self) -> BTreeSet<(BlockId, StorageId)> {
        self.by_demand.iter().map(|&(block, target, _)| (block, target)).collect()
    }

    /// What is over by now: orders that hang are given anew, pins that ended as well.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Expired {
        let over = self.ends.range(..=(now, FileId(u64::MAX))).map(|(_, file)| *file);
        let over: Vec<FileId> = over.collect();
        let mut expired = Expired::default();
        for file in over {
            let Some(queued) = self.files.get(&file) else { continue };
            let (lfn, phase) = (queued.lfn.clone(), queued.phase);
            match phase {
                Phase::Waiting { .. } => continue,
                Phase::Ordered { order, at, .. } => {
                    let why = format!("nothing was heard of it for {} h", now.since(at).as_secs() / 3_600);
                    self.last_failure = Some(StageFailure { lfn: lfn.clone(), why, at: now });
                    self.retry(file, now);
                    expired.releases.entry(order).or_default().push(lfn);
                }
                Phase::Pinned { order, .. } => {
                    self.set_phase(file, Phase::Waiting { until: now });
                    expired.unpinned.push(file);
                    expired.releases.entry(order).or_default().push(lfn);
                }
            }
        }
        expired
    }

    pub(crate) fn status(&self) -> StagingStatus {
        let ordered_at = |queued: &QueuedFile| match queued.phase {
            Phase::Ordered { at, .. } => Some(at),
            _ => None,
        };
        let is_failing = |queued: &&QueuedFile| queued.failures > 0 && !queued.phase.is_pinned();
        StagingStatus {
            waiting: self.waiting,
            ordered: self.ordered,
            pinned: self.pinned,
            failing: self.files.values().filter(is_failing).count() as u64,
            oldest_order: self.files.values().filter_map(ordered_at).min(),
            last_failure: self.last_failure.clone(),
        }
    }

    pub(crate) fn is_awaited_by(&self, target: StorageId) -> bool {
        self.by_demand.iter().any(|(_, wanted_at, _)| *wanted_at == target)
    }

    /// What a target waits for here: files that are not on disk, and those that are.
    pub(crate) fn awaited_by(&self, target: StorageId, blocks: &BTreeSet<BlockId>) -> StagingStatus {
        let mut status =
            StagingStatus { last_failure: self.last_failure.clone(), ..StagingStatus::default() };
        for &block in blocks {
            let range = (block, target, FileId(0))..=(block, target, FileId(u64::MAX));
            let files = self.by_demand.range(range).filter_map(|(_, _, file)| self.files.get(file));
            for queued in files {
                status.failing += u64::from(queued.failures > 0 && !queued.phase.is_pinned());
                match queued.phase {
                    Phase::Waiting { .. } => status.waiting.add(queued.size),
                    Phase::Ordered { at, .. } => {
                        status.ordered.add(queued.size);
                        status.oldest_order = Some(status.oldest_order.map_or(at, |oldest| oldest.min(at)));
                    }
                    Phase::Pinned { .. } => status.pinned.add(queued.size),
                }
            }
        }
        status
    }

    fn phase(&self, file: FileId) -> Option<Phase> {
        self.files.get(&file).map(|queued| queued.phase)
    }

    /// Back to the queue after a failure, for a while that grows.
    fn retry(&mut self, file: FileId, now: Timestamp) {
        let Some(queued) = self.files.get_mut(&file) else { return };
        queued.failures = queued.failures.saturating_add(1);
        let delay = retry_delay(Retry::Later, queued.failures, RETRY_JITTER);
        self.set_phase(file, Phase::Waiting { until: now + delay });
    }

    fn set_phase(&mut self, file: FileId, phase: Phase) {
        let Some(queued) = self.files.get_mut(&file) else { return };
        let (before, size) = (std::mem::replace(&mut queued.phase, phase), queued.size);
        self.ends.remove(&(before.end(), file));
        self.ends.insert((phase.end(), file));
        self.sum(before).remove(size);
        self.sum(phase).add(size);
    }

    fn forget(&mut self, file: FileId) -> Option<(StageId, Lfn)> {
        let queued = self.files.remove(&file)?;
        self.ends.remove(&(queued.phase.end(), file));
        self.by_lfn.remove(&queued.lfn);
        self.sum(queued.phase).remove(queued.size);
        match queued.phase {
            Phase::Waiting { .. } => None,
            Phase::Ordered { order, .. } | Phase::Pinned { order, .. } => Some((order, queued.lfn)),
        }
    }

    fn sum(&mut self, phase: Phase) -> &mut FileSum {
        match phase {
            Phase::Waiting { .. } => &mut self.waiting,
            Phase::Ordered { .. } => &mut self.ordered,
            Phase::Pinned { .. } => &mut self.pinned,
        }
    }
}

/// A file that nobody wants by this order: it was cancelled, or ordered anew.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotWanted;

impl Phase {
    fn end(self) -> Timestamp {
        match self {
            Phase::Waiting { until } | Phase::Ordered { until, .. } | Phase::Pinned { until, .. } => until,
        }
    }

    fn is_waiting(self) -> bool {
        matches!(self, Phase::Waiting { .. })
    }

    fn is_pinned(self) -> bool {
        matches!(self, Phase::Pinned { .. })
    }
}

impl FileSum {
    fn add(&mut self, size: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
    }

    fn remove(&mut self, size: u64) {
        self.files = self.files.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
    }
}

#[cfg(test)]
mod tests;
