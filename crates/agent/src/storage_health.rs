//! Health of the storages: free space, and whether they accept writes (a circuit breaker with active probes).
//!
//! Trouble begins when the engine fails to write, when less than [`free_bytes_margin`] is free, or when a
//! probe (a small temporary file is written, flushed and removed) fails. It ends at the first check at which
//! a probe succeeds and there is room: the margin plus the size of the file that was refused, but at most a
//! twentieth of the storage, so that one huge file does not block all small ones. Trouble does not end before
//! the service has heard of it: the service would let the storage rest after the failures, and only the end
//! of a trouble tells it that files are accepted again. Each storage has a thread of its own, so that one
//! that hangs does not hide the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul_api::agent::StorageSpace;
use longhaul_api::pools::{PoolDrainReport, PoolReport};
use longhaul_model::{Blame, Fault, FaultCode, StorageName, units};
use longhaul_storage::{PoolStatus, Space, Storage, TempName};
use longhaul_threads::spawn_core;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::state_dir::random_u64;
use crate::step::{AgentTime, PeriodicLoop};

/// A storage is full with less than 1 % free, or less than this, whichever is smaller.
const FREE_MARGIN_BYTES_MAX: u64 = 256 << 20;
/// Bytes that a probe writes: enough to need blocks of its own on every file system.
const PROBE_BYTES: usize = 64 << 10;
/// A healthy storage is probed at every n-th check.
const CHECKS_PER_PROBE: u32 = 12;
/// Write failures that wait for a check; further ones say nothing new.
const WRITE_FAILURES_QUEUED_MAX: usize = 4;

/// The present health of all storages.
pub(crate) struct StorageHealth {
    latest: Mutex<Vec<StorageSpace>>,
    /// Notified when trouble begins or ends.
    pub changed: Notify,
    changes: AtomicU64,
    /// The changes that the service has heard of.
    changes_told: AtomicU64,
    failures: Vec<Arc<FailureQueue>>,
}

/// The engine could not write a file of this size.
struct WriteFailure {
    fault: Fault,
    size: u64,
}

/// Write failures at one storage, on their way to its watcher.
struct FailureQueue {
    storage: StorageName,
    queue: Mutex<QueuedFailures>,
    changed: Condvar,
}

#[derive(Default)]
struct QueuedFailures {
    failures: VecDeque<WriteFailure>,
    is_closed: bool,
}

impl FailureQueue {
    fn push(&self, failure: WriteFailure) {
        let mut queue = self.queue.lock();
        // A full queue holds failures of the same storage already.
        if queue.failures.len() < WRITE_FAILURES_QUEUED_MAX {
            queue.failures.push_back(failure);
            self.changed.notify_all();
        }
    }

    fn close(&self) {
        self.queue.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<WriteFailure> {
        self.queue.lock().failures.pop_front()
    }

    /// Waits for a failure, at most for `time`; false once the queue is closed.
    fn wait(&self, time: Duration) -> bool {
        let is_idle = |queue: &mut QueuedFailures| queue.failures.is_empty() && !queue.is_closed;
        let mut queue = self.queue.lock();
        self.changed.wait_while_for(&mut queue, is_idle, time);
        !queue.is_closed
    }
}

impl StorageHealth {
    /// With a loop for each storage; each needs a thread, since one that hangs must not hide the others.
    pub(crate) fn new(
        storages: &[Arc<dyn Storage>],
        period: Duration,
    ) -> (Arc<StorageHealth>, Vec<StorageWatch>) {
        let queue = |storage: &Arc<dyn Storage>| {
            let storage = storage.name().clone();
            Arc::new(FailureQueue { storage, queue: Mutex::default(), changed: Condvar::new() })
        };
        let failures: Vec<_> = storages.iter().map(queue).collect();
        let health = Arc::new(StorageHealth {
            latest: Mutex::new(Vec::new()),
            changed: Notify::new(),
            changes: AtomicU64::new(0),
            changes_told: AtomicU64::new(0),
            failures: failures.clone(),
        });
        let watches = storages.iter().zip(failures).map(|(storage, failures)| StorageWatch {
            watcher: StorageWatcher::new(storage.clone()),
            failures,
            health: health.clone(),
            period,
            check_at: None,
            is_settling: false,
        });
        let watches = watches.collect();
        (health, watches)
    }

    /// How often trouble has begun or ended.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Notes that the service has heard of the first `changes` changes.
    pub(crate) fn note_told(&self, changes: u64) {
        self.changes_told.fetch_max(changes, Ordering::AcqRel);
    }

    pub(crate) fn latest(&self) -> Vec<StorageSpace> {
        self.latest.lock().clone()
    }

    /// Notes that the engine failed to write a file of `size` bytes.
    pub(crate) fn note_write_failure(&self, storage: &StorageName, fault: &Fault, size: u64) {
        if !matches!(fault.code, FaultCode::TargetFull | FaultCode::TargetReadOnly | FaultCode::TargetWrite) {
            return;
        }
        if let Some(failures) = self.failures.iter().find(|failures| failures.storage == *storage) {
            failures.push(WriteFailure { fault: fault.clone(), size });
        }
    }

    /// Tells the threads to end.
    pub(crate) fn stop(&self) {
        self.failures.iter().for_each(|failures| failures.close());
    }

    fn publish(&self, mut space: StorageSpace) {
        let mut latest = self.latest.lock();
        let place = latest.iter().position(|known| known.storage == space.storage);
        let before = place.and_then(|place| latest[place].trouble.clone());
        if space.trouble.is_none() && self.changes_told.load(Ordering::Acquire) < self.changes() {
            space.trouble.clone_from(&before);
        }
        if before.as_ref().map(|fault| fault.code) != space.trouble.as_ref().map(|fault| fault.code) {
            match &space.trouble {
                Some(fault) => {
                    tracing::warn!(storage = %space.storage, fault = %fault.chain(),
                        "the storage stopped accepting files")
                }
                None => tracing::info!(storage = %space.storage, "the storage accepts files again"),
            }
            self.changes.fetch_add(1, Ordering::Release);
            self.changed.notify_one();
        }
        match place {
            Some(place) => latest[place] = space,
            None => latest.push(space),
        }
    }
}

/// Free bytes that are never used.
fn free_bytes_margin(total_bytes: u64) -> u64 {
    (total_bytes / 100).min(FREE_MARGIN_BYTES_MAX)
}

/// Checks one storage periodically, and a period after a failure to write.
pub(crate) struct StorageWatch {
    watcher: StorageWatcher,
    failures: Arc<FailureQueue>,
    health: Arc<StorageHealth>,
    period: Duration,
    /// When the next check is due; none before the first.
    check_at: Option<AgentTime>,
    /// A write failure was published as it came: the next check may find that it has passed.
    is_settling: bool,
}

impl StorageWatch {
    /// Runs the loop in a thread of its own.
    pub(crate) fn spawn(self) {
        let storage = self.failures.storage.clone();
        let failures = self.failures.clone();
        let may_return = move || failures.queue.lock().is_closed;
        if let Err(error) = spawn_core("storage-watch", may_return, move || self.run()) {
            tracing::error!(%error, %storage, "cannot watch the storage");
        }
    }

    fn run(mut self) {
        let begun = Instant::now();
        loop {
            let now = begun.elapsed();
            let due = self.step(now).unwrap_or(now);
            if !self.failures.wait(due.saturating_sub(begun.elapsed())) {
                return;
            }
        }
    }
}

impl PeriodicLoop for StorageWatch {
    /// Blocks on the disk. To be called as well after a failure to write.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        let is_due = self.check_at.is_none_or(|due| now >= due);
        let failure = self.check_at.and_then(|_| self.failures.pop());
        // Repeated failures must not become a tight loop of probes.
        while failure.is_some() && self.failures.pop().is_some() {}
        match failure {
            Some(failure) if !self.is_settling => {
                self.is_settling = true;
                self.watcher.trouble = Some(failure);
                self.health.publish(self.watcher.state(self.watcher.storage.space().ok()));
            }
            // Further failures say nothing new before the check.
            _ if !is_due => return self.check_at,
            _ => {
                self.is_settling = false;
                self.health.publish(self.watcher.check());
            }
        }
        self.check_at = Some(now + self.period);
        self.check_at
    }
}

struct StorageWatcher {
    storage: Arc<dyn Storage>,
    trouble: Option<WriteFailure>,
    checks: u32,
}

impl StorageWatcher {
    fn new(storage: Arc<dyn Storage>) -> Self {
        StorageWatcher { storage, trouble: None, checks: 0 }
    }

    fn check(&mut self) -> StorageSpace {
        let space = match self.storage.space() {
            Ok(space) => space,
            Err(fault) => {
                self.trouble = Some(WriteFailure { fault: fault.blaming(Blame::Target), size: 0 });
                return self.state(None);
            }
        };
        if self.storage.capabilities().writable {
            let probe_due = self.trouble.is_some() || self.checks.is_multiple_of(CHECKS_PER_PROBE);
            self.checks = self.checks.wrapping_add(1);
            self.trouble = match self.space_trouble(space) {
                Some(trouble) => Some(trouble),
                None if probe_due => self.probe().err().map(|fault| WriteFailure { fault, size: 0 }),
                None => None,
            };
        } else {
            self.trouble = None;
        }
        self.state(Some(space))
    }

    fn space_trouble(&mut self, space: Space) -> Option<WriteFailure> {
        let refused = self.trouble.as_ref().filter(|trouble| trouble.fault.code == FaultCode::TargetFull);
        let size = refused.map_or(0, |trouble| trouble.size);
        let needed = free_bytes_margin(space.total_bytes) + size.min(space.total_bytes / 20);
        if space.free_bytes >= needed {
            return None;
        }
        let detail = format!("{} free, {} needed", units::bytes(space.free_bytes), units::bytes(needed));
        Some(WriteFailure { fault: Fault::new(FaultCode::TargetFull, detail), size })
    }

    fn probe(&self) -> Result<(), Fault> {
        let random = || {
            random_u64().map_err(|error| {
                Fault::new(FaultCode::Internal, format!("/dev/urandom: {error}")).with_source(error)
            })
        };
        let mut name = [0; 16];
        name[..8].copy_from_slice(&random()?.to_ne_bytes());
        name[8..].copy_from_slice(&random()?.to_ne_bytes());
        let temp = TempName::from_bytes(name);
        let write = || -> Result<(), Fault> {
            let file = self.storage.create(&temp, None, PROBE_BYTES as u64)?;
            file.write_at(&[0; PROBE_BYTES], 0)?;
            file.flush()
        };
        let written = write();
        self.storage.remove_temp(&temp).or(written.clone())?;
        written
    }

    fn state(&self, space: Option<Space>) -> StorageSpace {
        StorageSpace {
            storage: self.storage.name().clone(),
            total_bytes: space.map_or(0, |space| space.total_bytes),
            free_bytes: space.map_or(0, |space| space.free_bytes),
            trouble: self.trouble.as_ref().map(|trouble| trouble.fault.clone()),
            pools: self.storage.pools().into_iter().map(report_pool).collect(),
        }
    }
}

fn report_pool(status: PoolStatus) -> PoolReport {
    let PoolStatus { name, state, space, waiting_bytes: _, bytes_per_s, fault, drain } = status;
    let drain = drain.map(|drain| PoolDrainReport {
        moved_files: drain.moved_files,
        stuck_files: drain.stuck_files,
        last_fault: drain.last_fault,
        is_empty: drain.is_empty,
    });
    PoolReport {
        name,
        state,
        total_bytes: space.map_or(0, |space| space.total_bytes),
        free_bytes: space.map_or(0, |space| space.free_bytes),
        write_bytes_per_s: bytes_per_s.map(|rate| rate as u64),
        trouble: fault,
        drain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_storage::hooked::HookedStorage;

    use crate::fault_injecting_storage::fault_injecting_storage;

    const GB: u64 = 1_000_000_000;

    fn free(storage: &HookedStorage, free_bytes: u64) {
        storage.set_space(Space { total_bytes: 10 * GB, free_bytes });
    }

    fn code(space: StorageSpace) -> Option<FaultCode> {
        space.trouble.map(|fault| fault.code)
    }

    #[test]
    fn trouble_begins_and_ends_with_free_space_and_probes() {
        let directory = tempfile::tempdir().unwrap();
        let storage = fault_injecting_storage(directory.path());
        let mut watcher = StorageWatcher::new(storage.clone());
        free(&storage, 5 * GB);
        assert_eq!(code(watcher.check()), None);
        free(&storage, GB / 20);
        let full = watcher.check();
        assert!(full.trouble.as_ref().unwrap().detail.contains("100 MB needed"), "{full:?}");
        free(&storage, GB / 10);
        assert_eq!(code(watcher.check()), None, "1 % is free again");
        storage.set_create_fault(Some(Fault::new(FaultCode::TargetReadOnly, "read-only file system")));
        let looks: Vec<_> = (0..CHECKS_PER_PROBE).map(|_| code(watcher.check())).collect();
        assert_eq!(
            looks.last().unwrap(),
            &Some(FaultCode::TargetReadOnly),
            "a probe finds it before a transfer does"
        );
        storage.set_create_fault(None);
        assert_eq!(code(watcher.check()), None);
        assert!(storage.temps().unwrap().is_empty(), "probes are removed");
    }

    #[test]
    fn a_refused_file_must_fit_unless_it_is_huge() {
        let directory = tempfile::tempdir().unwrap();
        let storage = fault_injecting_storage(directory.path());
        let mut watcher = StorageWatcher::new(storage.clone());
        free(&storage, GB / 4);
        watcher.trouble = Some(WriteFailure { fault: Fault::new(FaultCode::TargetFull, ""), size: GB / 5 });
        assert_eq!(code(watcher.check()), Some(FaultCode::TargetFull), "the margin of 0.1 GB and 0.2 GB");
        assert_eq!(code(watcher.check()), Some(FaultCode::TargetFull), "and it is not forgotten");
        free(&storage, 3 * GB / 10);
        assert_eq!(code(watcher.check()), None);
        watcher.trouble = Some(WriteFailure { fault: Fault::new(FaultCode::TargetFull, ""), size: 9 * GB });
        free(&storage, 6 * GB / 10);
        assert_eq!(code(watcher.check()), None, "small files may go on");
    }

    #[test]
    fn a_write_failure_is_published_at_once_and_checked_a_period_later() {
        let directory = tempfile::tempdir().unwrap();
        let storage = fault_injecting_storage(directory.path());
        let storages: [Arc<dyn Storage>; 1] = [storage.clone()];
        let s = Duration::from_secs;
        let (health, mut watches) = StorageHealth::new(&storages, s(10));
        let mut watch = watches.pop().unwrap();
        assert_eq!((watch.step(s(0)), watch.step(s(4))), (Some(s(10)), Some(s(10))));
        assert_eq!(code(health.latest()[0].clone()), None);
        let fault = Fault::new(FaultCode::TargetFull, "no room for 7 bytes");
        (0..3).for_each(|_| health.note_write_failure(storage.name(), &fault, 7));
        assert_eq!(watch.step(s(5)), Some(s(15)), "as it is");
        assert_eq!((code(health.latest()[0].clone()), health.changes()), (Some(FaultCode::TargetFull), 1));
        assert_eq!(watch.step(s(6)), Some(s(15)), "the others say nothing new");
        health.note_write_failure(storage.name(), &fault, 7);
        assert_eq!(watch.step(s(7)), Some(s(15)), "nor does a later one");
        assert_eq!(watch.step(s(15)), Some(s(25)));
        let seen = || (code(health.latest()[0].clone()), health.changes());
        assert_eq!(
            seen(),
            (Some(FaultCode::TargetFull), 1),
            "there is room, but nobody knows that there was none"
        );
        health.note_told(health.changes());
        assert_eq!(watch.step(s(25)), Some(s(35)));
        assert_eq!(seen(), (None, 2), "there is room");
    }

    #[tokio::test]
    async fn write_failures_are_published_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let storage = fault_injecting_storage(directory.path());
        let storages: [Arc<dyn Storage>; 1] = [storage.clone()];
        let (spaces, watches) = StorageHealth::new(&storages, Duration::from_secs(3_600));
        watches.into_iter().for_each(StorageWatch::spawn);
        spaces.note_write_failure(
            storage.name(),
            &Fault::new(FaultCode::TargetFull, "no room for 7 bytes"),
            7,
        );
        spaces.changed.notified().await;
        assert_eq!(code(spaces.latest()[0].clone()), Some(FaultCode::TargetFull));
        spaces.stop();
    }
}
