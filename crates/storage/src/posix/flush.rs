//! Flushes data and names to disk, with the failure semantics of `fsync` (Rebello et al., USENIX ATC 2020).
//!
//! The kernel reports a write-back error once per descriptor and then drops the data: a second flush succeeds
//! without the bytes. So an error of a file-system-wide flush fails every temporary file that existed then,
//! whichever caller asked for the flush, and no flush is ever retried.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use longhaul_model::{Fault, FaultCode};
use parking_lot::Mutex;
use rustix::fs::{self, OFlags};
use rustix::io::{self, Errno};

use super::FlushPolicy;
use super::fault::{Role, fault};
use super::fault_injector::{FaultInjector, Syscall};
use super::rooted_tree::{RootedTree, split};
use super::work::{OpenMode, WorkDirectory};
use crate::{Commit, TempName};

/// Up to this many directories are flushed one by one: cheaper than the whole file system, and without
/// writing other users' data. Beyond, one flush of everything costs less than many commits of the file
/// system's journal.
const DIRECTORIES_FLUSHED_SINGLY_MAX: usize = 4;

/// Directories remembered as durable; beyond, all are forgotten and flushed once more.
const DURABLE_DIRECTORIES_MAX: usize = 10_000;

pub(super) struct Flusher {
    policy: FlushPolicy,
    fault_injector: FaultInjector,
    /// Held during a file-system-wide flush, so that its error, which is reported once, is counted before
    /// another such flush can succeed.
    flushing: Mutex<()>,
    ledger: Mutex<FlushState>,
    /// Directories whose own names are known to be on disk. An existing directory need not be: another
    /// commit, or a killed process, may have created it without flushing it.
    named: Mutex<BTreeSet<Vec<u8>>>,
}

#[derive(Default)]
struct FlushState {
    /// Failed file-system-wide flushes since the storage was opened.
    failures: u64,
    /// One entry per temporary file.
    begun: HashMap<TempName, TempState>,
}

/// The flush state of a temporary file.
struct TempState {
    /// The number of failures when it was begun, or none if a flush of its own failed.
    failures_before: Option<u64>,
    /// Set if it was written in one step with these attributes (size, mode, time).
    put: Option<PutAttributes>,
}

type PutAttributes = (u64, Option<u32>, Option<i64>);

fn put_as(item: &Commit) -> PutAttributes {
    (item.size, item.mode, item.mtime_ns)
}

impl Flusher {
    pub(super) fn new(policy: FlushPolicy, fault_injector: FaultInjector) -> Self {
        Flusher {
            policy,
            fault_injector,
            flushing: Mutex::default(),
            ledger: Mutex::default(),
            named: Mutex::default(),
        }
    }

    pub(super) fn policy(&self) -> FlushPolicy {
        self.policy
    }

    pub(super) fn begin(&self, temp: &TempName) {
        let mut ledger = self.state();
        let failures = ledger.failures;
        ledger.begun.insert(temp.clone(), TempState { failures_before: Some(failures), put: None });
    }

    /// Records that the temporary file of `item` already has its final attributes.
    pub(super) fn mark_put(&self, item: &Commit) {
        if let Some(begun) = self.state().begun.get_mut(&item.temp) {
            begun.put = Some(put_as(item));
        }
    }

    /// Whether it was recorded so; no other process writes to it.
    pub(super) fn was_put(&self, item: &Commit) -> bool {
        self.state().begun.get(&item.temp).is_some_and(|begun| begun.put == Some(put_as(item)))
    }

    /// Records that a flush of `temp` alone failed.
    pub(super) fn lose(&self, temp: &TempName) {
        self.state().begun.insert(temp.clone(), TempState { failures_before: None, put: None });
    }

    /// Whether a flush failed since `temp` was begun, in which case its data may be lost.
    pub(super) fn is_lost(&self, temp: &TempName) -> bool {
        let ledger = self.state();
        let lost = |begun: &TempState| begun.failures_before.is_none_or(|before| before < ledger.failures);
        ledger.begun.get(temp).is_some_and(lost)
    }

    /// Forgets `temp`, which is renamed or removed.
    pub(super) fn end(&self, temp: &TempName) {
        self.state().begun.remove(temp);
    }

    /// Flushes the data of complete temporary files, and the attributes where some were set; one result each.
    pub(super) fn flush_data(&self, work: &WorkDirectory, batch: &[&Commit]) -> Vec<Result<(), Fault>> {
        if self.policy == FlushPolicy::None {
            return batch.iter().map(|_| Ok(())).collect();
        }
        if batch.len() > 1 && work.flushed_as_a_whole {
            let whole = self.flush_file_system(work);
            return batch.iter().map(|item| whole.clone().and_then(|()| self.check(&item.temp))).collect();
        }
        batch.iter().map(|item| self.flush_one(work, item).and_then(|()| self.check(&item.temp))).collect()
    }

    fn flush_one(&self, work: &WorkDirectory, item: &Commit) -> Result<(), Fault> {
        let temp = &item.temp;
        let flush = || {
            let file = work.reopen(temp, OpenMode::Read)?.ok_or(Errno::NOENT)?;
            if item.sets_attributes() {
                self.flush_with(&file, temp, |file| fs::fsync(file))
            } else {
                self.flush_open(&file, temp)
            }
        };
        flush().map_err(|errno| fault(Role::Write, errno, format_args!("flushing the temporary file {temp}")))
    }

    /// Flushes one temporary file (`fdatasync`).
    pub(super) fn flush_open(&self, file: &OwnedFd, temp: &TempName) -> io::Result<()> {
        self.flush_with(file, temp, |file| fs::fdatasync(file))
    }

    fn flush_with(
        &self,
        file: &OwnedFd,
        temp: &TempName,
        sync: fn(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let flush = || {
            self.fault_injector.before(Syscall::FlushData, temp.as_str())?;
            io::retry_on_intr(|| sync(file.as_fd()))
        };
        flush().inspect_err(|_| self.lose(temp))
    }

    fn flush_file_system(&self, work: &WorkDirectory) -> Result<(), Fault> {
        let _one_at_a_time = self.flushing.lock();
        let flush = || {
            self.fault_injector.before(Syscall::FlushFileSystem, "")?;
            io::retry_on_intr(|| fs::syncfs(&work.flush_handle))
        };
        flush().map_err(|errno| {
            self.state().failures += 1;
            fault(Role::Write, errno, "flushing the file system")
        })
    }

    fn check(&self, temp: &TempName) -> Result<(), Fault> {
        if !self.is_lost(temp) {
            return Ok(());
        }
        let detail = format!("the temporary file {temp} may have lost data when a flush failed");
        Err(Fault::new(FaultCode::TargetWrite, detail))
    }

    /// Flushes the names in these directories (paths without links; empty: the root).
    pub(super) fn flush_names(
        &self,
        work: &WorkDirectory,
        rooted_tree: &RootedTree,
        directories: &BTreeSet<Vec<u8>>,
    ) -> Result<(), Fault> {
        if self.policy == FlushPolicy::None {
            return Ok(());
        }
        let all = self.with_unflushed_parents(directories);
        if all.len() > DIRECTORIES_FLUSHED_SINGLY_MAX && work.flushed_as_a_whole {
            self.flush_file_system(work)?;
        } else {
            self.flush_one_by_one(rooted_tree, &all)?;
        }
        let mut named = self.named.lock();
        if named.len() + all.len() > DURABLE_DIRECTORIES_MAX {
            named.clear();
        }
        named.extend(all);
        Ok(())
    }

    /// Records a newly created directory, whose name is not flushed yet.
    pub(super) fn note_created(&self, path: &[u8]) {
        self.named.lock().remove(path);
    }

    /// The directories, with their parents up to the first whose name is known to be on disk.
    fn with_unflushed_parents(&self, directories: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
        let named = self.named.lock();
        let mut all = directories.clone();
        for directory in directories {
            let mut path: &[u8] = directory;
            while !path.is_empty() && !named.contains(path) {
                path = split(path).0;
                all.insert(path.to_vec());
            }
        }
        all
    }

    fn flush_one_by_one(
        &self,
        rooted_tree: &RootedTree,
        directories: &BTreeSet<Vec<u8>>,
    ) -> Result<(), Fault> {
        for path in directories {
            let shown = String::from_utf8_lossy(path);
            let flush = || {
                let directory = match rooted_tree.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
                    // Emptied and pruned by a deletion meanwhile, so no committed name is in it.
                    Err(Errno::NOENT) => return Ok(()),
                    opened => opened?,
                };
                self.fault_injector.before(Syscall::FlushDirectory, &shown)?;
                io::retry_on_intr(|| fs::fsync(&directory))
            };
            flush().map_err(|errno| {
                fault(Role::Write, errno, format_args!("flushing the directory {:?}", &*shown))
            })?;
        }
        Ok(())
    }

    /// Flushes files under their final names (paths without links), with the names of all parent directories.
    pub(super) fn flush_present(
        &self,
        work: &WorkDirectory,
        rooted_tree: &RootedTree,
        paths: &[Vec<u8>],
    ) -> Result<(), Fault> {
        if self.policy == FlushPolicy::None || paths.is_empty() {
            return Ok(());
        }
        if work.flushed_as_a_whole {
            return self.flush_file_system(work);
        }
        let mut directories = BTreeSet::from([Vec::new()]);
        for path in paths {
            let flush = || {
                let file = rooted_tree.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
                self.fault_injector.before(Syscall::FlushData, &String::from_utf8_lossy(path))?;
                io::retry_on_intr(|| fs::fsync(&file))
            };
            flush().map_err(|errno| fault(Role::Write, errno, "flushing a file that was there"))?;
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            directories.extend(slashes.map(|(at, _)| path[..at].to_vec()));
        }
        self.flush_names(work, rooted_tree, &directories)
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, FlushState> {
        self.ledger.lock()
    }
}
